//! How much it says that nothing is found.

use crate::input::EbpfState;
use crate::snapshot::Snapshot;

/// How much rules have looked at where nothing is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quiet {
    /// Programs are being attached.
    Starting,
    /// Rules have looked for so many seconds, and some need more.
    Looking(u64),
    /// Rules have looked at all that they can.
    Whole,
}

impl Quiet {
    /// Seconds after which every rule had the time that it needs: the longest window of a symptom in bursts.
    pub const ENOUGH_S: u64 = 30;

    /// How much rules have looked at in a snapshot.
    pub fn of(snapshot: &Snapshot) -> Self {
        let seconds = snapshot.health.looked_ns / 1_000_000_000;
        match snapshot.health.ebpf {
            EbpfState::Starting => Self::Starting,
            _ if seconds < Self::ENOUGH_S => Self::Looking(seconds),
            _ => Self::Whole,
        }
    }
}

/// What is judged without programs.
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
