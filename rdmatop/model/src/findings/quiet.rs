//! How much it means when nothing is found.

use crate::input::EbpfState;
use crate::snapshot::Snapshot;

/// How long and at how much the rules have looked when nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Programs are being attached.
    Starting,
    /// Rules have looked for this many seconds, and some need more.
    Looking(u64),
    /// Rules have looked at everything that they can.
    Whole,
}

impl Quiet {
    /// The longest `Kind::window_ns`, s: any symptom had time to be raised. Rules that compare with minutes
    /// before (`latency-rises`, `mr-growth`) need longer.
    pub const ENOUGH_S: u64 = 30;

    /// How much the rules have looked at so far.
    pub fn of(snapshot: &Snapshot) -> Self {
        let seconds = snapshot.health.looked_ns / 1_000_000_000;
        match snapshot.health.ebpf {
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
    use crate::findings::FindingId;

    #[test]
    fn every_window_is_over_after_that_time() {
        let windows = FindingId::ALL.iter().map(|id| id.kind().window_ns());
        assert_eq!(windows.max(), Some(Quiet::ENOUGH_S * 1_000_000_000));
    }
}
