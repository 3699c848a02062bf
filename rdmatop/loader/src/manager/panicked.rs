//! Reports a panic in the thread that keeps the eBPF session. Such a panic is a defect of rdmatop and must
//! not look like a quiet machine: it detaches the session's programs, and nothing is counted from then on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{maps::sweep::MapSweep, session::report::not_started};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::seam::Feed;

/// Runs `work` to its end; if it panics, reports that nothing is counted any more. The panic has printed its
/// message by then. Must not be called on a thread of the runtime: it waits for room in the channel.
pub fn reported(work: impl FnOnce(), sweep: &MapSweep, feed: &Feed) {
    // Of what `work` leaves half done only the sweep's maps are used again, and these are then dropped.
    if catch_unwind(AssertUnwindSafe(work)).is_ok() {
        return;
    }
    sweep.pause();
    let obstacle = Obstacle::new(
        CauseId::Defect,
        "the thread that reads the eBPF maps panicked: this is a defect of rdmatop",
        "Start it again, and report the panic's message.",
    );
    // If the engine has ended, it needs no report.
    if feed.send_blocking(not_started(obstacle)).is_ok() {
        // Do this last: it reads the maps once more, which may be what panicked.
        sweep.release();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::mpsc;

    use super::*;
    use rdmatop_model::input::{EbpfState, Input};
    use rdmatop_sources::seam::Message;

    fn after(work: impl FnOnce()) -> Option<Input> {
        let (to, mut from) = mpsc::channel(1);
        reported(work, &MapSweep::default(), &Feed::new(to, Arc::default()));
        match from.try_recv().ok()? {
            Message::Input(timed) => Some(timed.input),
            Message::RoundDone => panic!("a round has ended"),
        }
    }

    #[test]
    fn a_panic_is_reported_as_a_defect_and_an_ordinary_end_is_not() {
        assert!(after(|| {}).is_none());
        let Some(Input::Ebpf(report)) = after(|| panic!("on purpose")) else {
            panic!("no report");
        };
        let EbpfState::Unavailable(unavailable) = &report.state else {
            panic!("{:?}", report.state);
        };
        let cause = &unavailable.cause;
        assert_eq!(cause.id, CauseId::Defect);
        assert!(cause.why.contains("panicked"), "{cause}");
    }
}
