//! Devices that the user wants left alone (`--exclude-device`).

use std::sync::Arc;

use wildmatch::WildMatch;

/// Patterns of device names: `*` stands for any characters, `?` for one.
#[derive(Clone, Debug, Default)]
pub struct Excluded(Arc<[WildMatch]>);

impl Excluded {
    /// Devices whose names match one of these.
    pub fn new(patterns: &[String]) -> Self {
        Self(patterns.iter().map(|pattern| WildMatch::new(pattern)).collect())
    }

    /// Whether the device of this name, safe to print, is left alone.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_or_a_pattern_leaves_devices_alone() {
        let some = Excluded::new(&["mlx5_9".to_owned(), "rdmap*s?".to_owned()]);
        for (name, is) in [
            ("mlx5_9", true),
            ("mlx5_90", false),
            ("amlx5_9", false),
            ("rdmap10s27", false),
            ("rdmap10s2", true),
            ("rdmaps1", true),
            ("", false),
        ] {
            assert_eq!(some.has(name), is, "{name}");
        }
        assert!(!Excluded::default().has("mlx5_0"));
        assert!(Excluded::new(&["*".to_owned()]).has("mlx5_0"));
    }
}
