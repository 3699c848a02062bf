//! Time limits for what a machine that is not shared does in seconds.

use std::time::Duration;

/// The limit, times `RDMATOP_PATIENCE`: a machine that is emulated, or that others keep busy, needs many
/// times as long to load programs and to answer, and is neither broken nor slow by itself.
pub(super) fn stretched(limit: Duration) -> Duration {
    limit * factor(std::env::var("RDMATOP_PATIENCE").ok().as_deref())
}

fn factor(asked: Option<&str>) -> u32 {
    asked
        .and_then(|factor| factor.parse().ok())
        .filter(|factor| (1..=1000).contains(factor))
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_that_makes_no_sense_is_none() {
        assert_eq!(factor(None), 1);
        assert_eq!(factor(Some("20")), 20);
        for nonsense in ["", "0", "-1", "x", "1001"] {
            assert_eq!(factor(Some(nonsense)), 1);
        }
    }
}
