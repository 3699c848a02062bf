//! Values of variables.

/// A list of devices or interfaces as NCCL reads it (`parseStringList`, src/misc/utils.cc): `=` in front:
/// whole names, `^`: all but these; each may have `:PORT`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct List<'a> {
    /// Whether the list takes all but its entries.
    pub(super) not: bool,
    /// Names are complete, not prefixes.
    pub(super) exact: bool,
    /// Each with its port.
    pub(super) entries: Vec<(&'a str, Option<u32>)>,
}

impl<'a> List<'a> {
    /// `exact`: names are complete even without the mark.
    pub(super) fn parse(text: &'a str, exact: bool) -> Self {
        let (not, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (marked, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entry = |entry: &'a str| {
            let mut parts = entry.split(':');
            let name = parts.next().filter(|name| !name.is_empty())?;
            Some((name, parts.next().and_then(|port| port.parse().ok())))
        };
        Self {
            not,
            exact: exact || marked,
            entries: text.split(',').map(str::trim).filter_map(entry).collect(),
        }
    }

    pub(super) fn means(&self, entry: &str, name: &str) -> bool {
        if self.exact {
            name == entry
        } else {
            name.starts_with(entry)
        }
    }

    /// Whether the list selects this name.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.entries.is_empty() || self.entries.iter().any(|(entry, _)| self.means(entry, name)) != self.not
    }

    /// Whether it selects this port of a device.
    pub(super) fn takes_port(&self, name: &str, port: u32) -> bool {
        let meant =
            |(entry, of): &(&str, Option<u32>)| self.means(entry, name) && of.is_none_or(|of| of == port);
        self.entries.is_empty() || self.entries.iter().any(meant) != self.not
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_mean_what_nccl_takes_them_for() {
        let list = List::parse("mlx5_1,mlx5_0:2", false);
        assert!(list.takes("mlx5_1") && list.takes("mlx5_10") && !list.takes("mlx5_2"));
        assert!(list.takes_port("mlx5_0", 2) && !list.takes_port("mlx5_0", 1));
        let exact = List::parse("=mlx5_1", false);
        assert!(exact.takes("mlx5_1") && !exact.takes("mlx5_10"));
        let not = List::parse("^docker,lo", false);
        assert!(!not.takes("docker0") && !not.takes("lo") && not.takes("eth0"));
        assert!(List::parse("", false).takes("x") && List::parse(",,:1", false).takes("x"));
        assert!(!List::parse("eth", true).takes("eth0"));
    }
}
