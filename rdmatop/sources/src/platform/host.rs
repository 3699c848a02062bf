//! The host: its kernel, and how much memory is available.

use crate::root::{Root, kernel_version, parse_u64};
use rdmatop_base::text;

/// The header of every report. All text is safe to print.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Host {
    /// `/proc/sys/kernel/hostname`.
    pub hostname: Option<String>,
    /// Kernel release, such as `6.12.107-amd64`.
    pub kernel: Option<String>,
    /// Seconds since boot.
    pub uptime_s: Option<u64>,
    /// Memory available without swapping, bytes.
    pub memory_available: Option<u64>,
}

impl Host {
    pub(super) fn read(root: &Root) -> Self {
        const SMALL: usize = 16 << 10;
        let bytes = |path: &str| root.bytes(&root.proc(path), SMALL).unwrap_or_default();
        Self {
            hostname: root.line(&root.proc("sys/kernel/hostname")),
            kernel: root.kernel_release(),
            uptime_s: parse_uptime(&bytes("uptime")),
            memory_available: meminfo_bytes(&bytes("meminfo"), b"MemAvailable:"),
        }
    }

    /// Major and minor number of the kernel.
    pub fn kernel_version(&self) -> Option<(u32, u32)> {
        kernel_version(self.kernel.as_deref()?)
    }
}

/// One variable of os-release(5), safe to print: shell assignments, quoted or not. The last assignment wins,
/// as in a shell.
pub fn os_release(raw: &[u8], key: &str) -> Option<String> {
    let lines = raw.split(|b| *b == b'\n').map(<[u8]>::trim_ascii);
    let value = lines
        .filter_map(|line| line.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
        .next_back()?;
    let unquoted = match value {
        [b'"', inner @ .., b'"'] | [b'\'', inner @ .., b'\''] => inner,
        _ => value,
    };
    let mut plain = Vec::with_capacity(unquoted.len());
    let mut bytes = unquoted.iter();
    while let Some(byte) = bytes.next() {
        plain.extend(if *byte == b'\\' { bytes.next() } else { Some(byte) });
    }
    Some(text::sanitize_bounded(&plain, 256)).filter(|value| !value.is_empty())
}

fn parse_uptime(raw: &[u8]) -> Option<u64> {
    parse_u64(
        raw.split(|b| *b == b'.')
            .next()
            .filter(|whole| !whole.is_empty())?,
    )
}

fn meminfo_bytes(raw: &[u8], key: &[u8]) -> Option<u64> {
    let value = raw
        .split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(key))?;
    parse_u64(value.trim_ascii().strip_suffix(b"kB")?)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn the_header_is_read() {
        let fake = Fake::new();
        fake.proc("sys/kernel/osrelease", "6.12.107+deb13-amd64\n")
            .proc("sys/kernel/hostname", "n\x1b1\n");
        fake.proc("uptime", "2018.03 3447.41\n");
        fake.proc(
            "meminfo",
            "MemTotal:       24684084 kB\nMemFree: 1 kB\nMemAvailable:   100 kB\n",
        );
        let host = Host::read(&fake.root());
        assert_eq!(
            (host.hostname.as_deref(), host.uptime_s),
            (Some("n\\x1b1"), Some(2018))
        );
        assert_eq!(host.memory_available, Some(102_400));
        assert_eq!(host.kernel_version(), Some((6, 12)));
    }

    #[test]
    fn quotes_escapes_and_repeated_keys_are_those_of_a_shell() {
        let raw = b"ID='a b'\nVERSION_ID=1\nID=\"c\\\"d\"\nXID=no\nEMPTY=\n";
        assert_eq!(os_release(raw, "ID").as_deref(), Some("c\"d"));
        assert_eq!((os_release(raw, "EMPTY"), os_release(raw, "NAME")), (None, None));
    }

    #[test]
    fn odd_versions_and_times_are_unknown() {
        let version = |kernel: &str| {
            Host {
                kernel: Some(kernel.into()),
                ..Host::default()
            }
            .kernel_version()
        };
        assert_eq!(
            (version("7.2.13"), version("x"), version("6"), version("")),
            (Some((7, 2)), None, None, None)
        );
        assert_eq!(parse_uptime(b".5"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, value: Vec<u8>) {
            let _ = os_release(&raw, "ID");
            let _ = os_release(&[b"ID=".as_slice(), &value].concat(), "ID");
            let _ = (parse_uptime(&raw), meminfo_bytes(&raw, b""));
        }
    }
}
