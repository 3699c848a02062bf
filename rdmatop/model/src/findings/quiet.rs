//! How much it means when nothing is found.

use crate::facts::Facts;
use crate::input::EbpfState;

/// How long and at how much the rules have looked when nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoFindings {
    /// Programs are being attached.
    Starting,
    /// Rules have looked for this many seconds, and some need more.
    Looking(u64),
    /// Rules have looked at everything that they can, but for those of
    /// [`Snapshot::still_looks`](crate::snapshot::Snapshot::still_looks).
    Whole,
}

impl NoFindings {
    /// The longest `FindingKind::window_ns`, s: any symptom had time to be raised. Rules that compare with
    /// minutes before need longer ([`Snapshot::still_looks`](crate::snapshot::Snapshot::still_looks)).
    pub const ENOUGH_S: u64 = 30;

    /// How much the rules have looked at so far.
    pub fn of(facts: &Facts) -> Self {
        let seconds = facts.health.looked_ns / 1_000_000_000;
        match facts.health.ebpf {
            EbpfState::Starting => Self::Starting,
            _ if seconds < Self::ENOUGH_S => Self::Looking(seconds),
            _ => Self::Whole,
        }
    }
}

/// What is judged without eBPF programs.
pub const WITHOUT_EBPF: &str = "ports and states of QPs";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::findings::{FindingId, FindingTracker};
    use crate::testkit;

    #[test]
    fn every_window_is_over_after_that_time() {
        let windows = FindingId::ALL.iter().map(|id| id.kind().window_ns());
        assert_eq!(windows.max(), Some(NoFindings::ENOUGH_S * 1_000_000_000));
    }

    #[test]
    fn nothing_found_is_no_verdict_of_rules_that_look_for_longer() {
        let mut s = testkit::one_row();
        let mut watch = FindingTracker::default();
        s.health.ebpf = EbpfState::Disabled;
        let mut after = |seconds: u64| {
            s.mono_ns += seconds * 1_000_000_000;
            watch.look_at(&s);
            s.health.looked_ns = watch.looked_ns();
            let longest = watch
                .still_looks()
                .into_iter()
                .max_by_key(|(_, seconds)| *seconds);
            (NoFindings::of(&s), longest)
        };
        let growth = Some((FindingId::MrGrowth, 1800));
        assert_eq!(after(0), (NoFindings::Looking(0), growth));
        assert_eq!(after(29), (NoFindings::Looking(29), growth));
        assert_eq!(after(60), (NoFindings::Whole, growth));
        assert_eq!(after(1710), (NoFindings::Whole, growth));
        assert_eq!(after(1), (NoFindings::Whole, None));
    }
}
