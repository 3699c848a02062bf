//! Every symbol that is not plain text, in one table with two versions. Nothing else in the view contains a
//! non-ASCII symbol.

use rdmatop_model::findings::{Role, Severity};

/// Symbols that the view draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// Every symbol is ASCII.
    pub ascii: bool,
    /// Marks the end of a text that was cut.
    pub cut: &'static str,
    /// Stands between two states.
    pub arrow: &'static str,
    /// Sorted upwards and sorted downwards.
    pub sort: [&'static str; 2],
    /// More columns to the left and to the right, named by the keys that show them.
    pub more: [&'static str; 2],
    /// Heights of a sparkline or chart in eighths, from nearly nothing to full.
    pub eighths: [&'static str; 8],
    /// An unknown point in a sparkline.
    pub gap: &'static str,
    /// Parts of a bar's cell, from an eighth to full.
    pub bar: [&'static str; 8],
    /// The empty part of a bar.
    pub track: &'static str,
    /// Horizontal line.
    pub rule: &'static str,
    /// Vertical line.
    pub wall: &'static str,
    /// In a tree: a child with a sibling below it, and the last child.
    pub tree: [&'static str; 2],
    /// In a tree: the first of a group of siblings whose parent is not shown.
    pub group: &'static str,
    /// Stands before what is wrong or missing.
    pub alert: &'static str,
    /// The process that causes something critical, and one that causes something less.
    pub cause: [&'static str; 2],
    /// A process that suffers from something critical, and from something less.
    pub victim: [&'static str; 2],
    /// A process that does what may be intended.
    pub meant: &'static str,
    /// Stands before a sum of which a part is not known.
    pub at_least: &'static str,
}

/// Signs for terminals that show UTF-8.
pub const UNICODE: Glyphs = Glyphs {
    ascii: false,
    cut: "…",
    arrow: "→",
    sort: ["↑", "↓"],
    more: ["←", "→"],
    eighths: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    gap: "·",
    bar: ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"],
    track: "░",
    rule: "─",
    wall: "│",
    tree: ["├─", "└─"],
    group: "┌─",
    alert: "●",
    cause: ["▲", "△"],
    victim: ["▼", "▽"],
    meant: "i",
    at_least: "≥",
};

/// Signs for all other terminals.
pub const ASCII: Glyphs = Glyphs {
    ascii: true,
    cut: "~",
    arrow: "->",
    sort: ["^", "v"],
    more: ["<-", "->"],
    eighths: ["_", "_", ".", ":", "-", "=", "+", "#"],
    gap: " ",
    bar: ["-", "-", "-", "-", "=", "=", "=", "#"],
    track: ".",
    rule: "-",
    wall: "|",
    tree: ["|-", "`-"],
    group: ",-",
    alert: "*",
    cause: ["!", "+"],
    victim: ["O", "o"],
    meant: "i",
    at_least: ">",
};

impl Glyphs {
    /// The sign of a finding in the row of a process.
    pub const fn sign(&self, severity: Severity, role: Role) -> &'static str {
        let signs = match role {
            Role::Cause => self.cause,
            Role::Victim => self.victim,
            Role::Possible => return "?",
        };
        match severity {
            Severity::Critical => signs[0],
            Severity::Warning => signs[1],
            Severity::Info => self.meant,
        }
    }

    /// A bar `fraction` full in `width` cells; the empty part is drawn as a track.
    pub fn bar(&self, fraction: f64, width: usize) -> (String, String) {
        let units = (fraction.clamp(0.0, 1.0) * width as f64 * 8.0).round();
        // A small value must never be drawn as nothing.
        let units = if fraction > 0.0 { units.max(1.0) } else { 0.0 };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "0 to 8 * width"
        )]
        let units = units as usize;
        let mut filled = self.bar[7].repeat(units / 8);
        if !units.is_multiple_of(8) {
            filled.push_str(self.bar[units % 8 - 1]);
        }
        let used = units.div_ceil(8);
        (filled, self.track.repeat(width.saturating_sub(used)))
    }

    /// One cell of a sparkline.
    pub fn spark(&self, value: Option<f64>, max: f64) -> &'static str {
        let Some(value) = value else { return self.gap };
        if max <= 0.0 || value <= 0.0 {
            return " ";
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 7")]
        let step = ((value / max * 8.0).ceil().clamp(1.0, 8.0) as usize) - 1;
        self.eighths[step]
    }
}

/// Whether the terminal shows UTF-8: the locale is UTF-8, and it is not a console with a 256-symbol font.
///
/// `env` reads an environment variable. locale(7): `LC_ALL` beats `LC_CTYPE` beats `LANG`; empty is unset.
pub fn utf8_terminal(env: impl Fn(&str) -> Option<String>) -> bool {
    let term = env("TERM").unwrap_or_default();
    if matches!(term.as_str(), "dumb" | "linux" | "vt100" | "vt220" | "ansi") {
        return false;
    }
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| env(name).filter(|v| !v.is_empty()));
    locale.is_some_and(|l| {
        let l = l.to_ascii_lowercase();
        l.contains("utf-8") || l.contains("utf8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(g: &Glyphs) -> Vec<&'static str> {
        let mut all = vec![
            g.cut, g.arrow, g.gap, g.track, g.rule, g.wall, g.group, g.alert, g.meant,
        ];
        all.extend(
            g.sort
                .iter()
                .chain(&g.more)
                .chain(&g.eighths)
                .chain(&g.bar)
                .chain(&g.tree)
                .chain([&g.at_least])
                .chain(&g.cause)
                .chain(&g.victim),
        );
        all
    }

    #[test]
    fn every_ascii_glyph_is_ascii_and_the_bar_cells_are_one_column() {
        assert!(all(&ASCII).iter().all(|g| g.is_ascii()));
        for table in [ASCII, UNICODE] {
            for cell in table
                .eighths
                .iter()
                .chain(&table.bar)
                .chain([&table.gap, &table.track])
            {
                assert_eq!(super::super::text::width(cell), 1);
            }
            for pair in table.tree {
                assert_eq!(super::super::text::width(pair), 2);
            }
        }
    }

    #[test]
    fn a_bar_fills_its_width_and_never_hides_a_little() {
        for table in [ASCII, UNICODE] {
            for fraction in [0.0, 0.001, 0.3, 0.5, 0.99, 1.0, 7.0] {
                let (full, track) = table.bar(fraction, 10);
                assert_eq!(full.chars().count() + track.chars().count(), 10, "{fraction}");
                assert_eq!(full.is_empty(), fraction == 0.0);
            }
        }
    }

    #[test]
    fn an_unknown_point_differs_from_zero() {
        assert_ne!(UNICODE.spark(None, 5.0), UNICODE.spark(Some(0.0), 5.0));
        assert_eq!(UNICODE.spark(Some(5.0), 5.0), "█");
        assert_eq!(UNICODE.spark(Some(0.001), 5.0), "▁");
    }

    #[test]
    fn the_locale_decides_and_the_first_one_set_wins() {
        let with = |vars: &'static [(&str, &str)]| {
            utf8_terminal(|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned()))
        };
        assert!(with(&[("TERM", "xterm"), ("LANG", "en_GB.UTF-8")]));
        assert!(!with(&[
            ("TERM", "xterm"),
            ("LANG", "en_GB.UTF-8"),
            ("LC_ALL", "C")
        ]));
        assert!(!with(&[("TERM", "linux"), ("LANG", "en_GB.UTF-8")]));
        assert!(!with(&[]));
    }
}
