//! QPs that wait for someone who has to act. One judgement for the table, the header and the detail pane.

use crate::model::ib::{QpState, QpType};
use crate::model::snapshot::QpRow;
use crate::model::value::Counter;

use super::format;
use super::theme::Tone;

/// A connection takes milliseconds from INIT to RTS; a QP that needs seconds waits for its peer.
const SETUP_NS: u64 = 5_000_000_000;
/// Snapshots in which nothing finished before a QP that sends the same again is called stuck.
const QUIET: usize = 3;
const INIT: QpState = QpState(1);
const RTS: QpState = QpState(3);
const SQD: QpState = QpState(4);
const SQE: QpState = QpState(5);
const ERR: QpState = QpState(6);
/// Stands behind the state, so that it can be found without colours.
pub const MARK: &str = "!";

/// Why a QP is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// In ERR: both queues are flushed.
    Failed,
    /// In SQE: the send queue stopped at an error.
    SendFailed,
    /// In SQD: the send queue was told to drain, and nobody let it go on for this long, ns.
    Drained(u64),
    /// Connected type, in INIT for this long, ns: no peer came.
    Alone(u64),
    /// In RTS, and the receiver has no buffers: nothing finishes, and RNR waits go on.
    NoBuffers,
    /// In RTS: nothing finishes, and packets are sent again.
    NoAnswer,
}

/// What a row says by itself, whatever the time is.
#[derive(Clone, Copy, Debug)]
pub enum Chance {
    /// As it is, it never is stuck.
    Never,
    /// It is.
    Now(Stuck),
    /// It will be when it stays as it is for long, ns.
    Later(fn(u64) -> Stuck),
}

impl Chance {
    /// Of a row. By number: asked of every QP of which something changed.
    pub fn of(qp: &QpRow) -> Self {
        let Some(state) = qp.state.filter(|_| !qp.exited) else {
            return Self::Never;
        };
        match state {
            ERR => Self::Now(Stuck::Failed),
            SQE => Self::Now(Stuck::SendFailed),
            SQD => Self::Later(Stuck::Drained),
            // RC, UC, XRC_INI, XRC_TGT.
            INIT if matches!(qp.qp_type, Some(QpType(2 | 3 | 9 | 10))) => Self::Later(Stuck::Alone),
            RTS if grows(qp.traffic.rnr_waits) && rests(qp) => Self::Later(|_| Stuck::NoBuffers),
            RTS if grows(qp.traffic.retransmits) && rests(qp) => Self::Later(|_| Stuck::NoAnswer),
            _ => Self::Never,
        }
    }
}

fn grows(counter: Option<Counter>) -> bool {
    counter.and_then(|c| c.rate).is_some_and(|rate| rate > 0.0)
}

/// Whether it is known that no send WR finished, and no byte moved in the newest points of the history. An
/// empty history is one of nothing but zeroes and unknowns.
fn rests(qp: &QpRow) -> bool {
    let sent = &qp.history.tx;
    qp.traffic.tx_wr.and_then(|c| c.rate) == Some(0.0)
        && (sent.is_empty() || sent.len() >= QUIET)
        && sent.iter().rev().take(QUIET).all(|point| *point == Some(0.0))
}

impl Stuck {
    /// Whether `qp` is stuck at `mono_ns` (`CLOCK_MONOTONIC`).
    ///
    /// RTR is never stuck: a side that only receives stays there for its whole life, as perftest's do. Neither
    /// is INIT for types without a peer, nor RESET, where libraries keep QPs in store.
    pub fn of(qp: &QpRow, mono_ns: u64) -> Option<Self> {
        match Chance::of(qp) {
            Chance::Never => None,
            Chance::Now(stuck) => Some(stuck),
            Chance::Later(stuck) => waited(qp, mono_ns).map(stuck),
        }
    }

    /// Wrong, and not just late.
    pub fn wrong(self) -> bool {
        matches!(self, Self::Failed | Self::SendFailed)
    }

    /// How loud.
    pub fn tone(self) -> Tone {
        if self.wrong() { Tone::Bad } else { Tone::Warn }
    }

    /// What it means and what to look at, in one line.
    pub fn why(self) -> String {
        let long = |ns: u64| format::age(ns / 1_000_000_000);
        match self {
            Self::Failed => {
                "Stuck in ERR: every work request is flushed until the application resets or destroys it. \
                 Trace (o) may show what came before."
                    .to_owned()
            }
            Self::SendFailed => {
                "Stuck in SQE: a send failed and the send queue stopped; it still receives.".to_owned()
            }
            Self::Drained(ns) => format!(
                "Stuck in SQD for {}: its send queue was told to drain and not to go on.",
                long(ns)
            ),
            Self::Alone(ns) => format!(
                "Stuck in INIT for {}: connecting takes milliseconds; no peer has answered.",
                long(ns)
            ),
            Self::NoBuffers => {
                "Stuck: nothing finishes, the receiver answers \"not ready\" (RNR). It posts no receive \
                 buffers: look at the peer's process, which is stopped, busy elsewhere, or hangs."
                    .to_owned()
            }
            Self::NoAnswer => {
                "Stuck: nothing finishes and packets are sent again. The peer is gone or packets are \
                 lost on the way: look at DROP and RETX on tab 3, here and there."
                    .to_owned()
            }
        }
    }
}

/// Time in the present state, if that is longer than any set-up.
fn waited(qp: &QpRow, mono_ns: u64) -> Option<u64> {
    let began = qp
        .timeline
        .iter()
        .rev()
        .take_while(|step| Some(step.state) == qp.state)
        .last()?;
    let ns = mono_ns.saturating_sub(began.mono_ns);
    (ns >= SETUP_NS).then_some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::snapshot::Step;
    use crate::view::fixture;

    const S: u64 = 1_000_000_000;

    fn after(state: u8, qp_type: u8, seconds: u64) -> Option<Stuck> {
        let mut qp = fixture::unknown_qp();
        qp.qp_type = Some(QpType(qp_type));
        qp.state = Some(QpState(state));
        let step = Step {
            mono_ns: 100 * S,
            state: QpState(state),
            duration_ns: None,
        };
        qp.timeline = std::sync::Arc::new(vec![step]);
        Stuck::of(&qp, (100 + seconds) * S)
    }

    #[test]
    fn the_numbers_are_those_of_the_names() {
        let names = [INIT, RTS, SQD, SQE, ERR].map(|s| s.name().unwrap());
        assert_eq!(names, ["INIT", "RTS", "SQD", "SQE", "ERR"]);
    }

    #[test]
    fn a_receiver_that_rests_in_rtr_is_not_stuck() {
        for seconds in [0, 6, 86_400] {
            assert_eq!(after(2, 2, seconds), None);
        }
    }

    #[test]
    fn err_and_sqe_are_stuck_at_once_and_init_and_sqd_after_five_seconds() {
        assert_eq!(after(6, 2, 0), Some(Stuck::Failed));
        assert_eq!(after(5, 3, 0), Some(Stuck::SendFailed));
        assert_eq!(after(1, 2, 4), None);
        assert_eq!(after(1, 2, 5), Some(Stuck::Alone(5 * S)));
        assert_eq!(after(4, 2, 4), None);
        assert_eq!(after(4, 2, 60), Some(Stuck::Drained(60 * S)));
    }

    #[test]
    fn types_without_a_peer_may_stay_in_init_and_any_type_in_reset() {
        for qp_type in [0, 1, 4, 8] {
            assert_eq!(after(1, qp_type, 600), None, "type {qp_type}");
        }
        assert_eq!(after(0, 2, 600), None);
    }

    /// A QP in RTS for `seconds` whose counters grow by so much, and which moved `sent` lately.
    fn sends(seconds: u64, finished: f64, rnr: f64, again: f64, sent: &[f64]) -> Option<Stuck> {
        let mut qp = fixture::unknown_qp();
        (qp.qp_type, qp.state) = (Some(QpType(2)), Some(RTS));
        let step = Step {
            mono_ns: 0,
            state: RTS,
            duration_ns: None,
        };
        qp.timeline = std::sync::Arc::new(vec![step]);
        let counter = |rate| {
            Some(Counter {
                total: 9,
                rate: Some(rate),
                source: crate::model::value::Source::Ebpf,
                partial: false,
            })
        };
        let traffic = std::sync::Arc::make_mut(&mut qp.traffic);
        (traffic.tx_wr, traffic.rnr_waits, traffic.retransmits) =
            (counter(finished), counter(rnr), counter(again));
        std::sync::Arc::make_mut(&mut qp.history).tx = sent.iter().copied().map(Some).collect();
        Stuck::of(&qp, seconds * S)
    }

    #[test]
    fn a_sender_is_stuck_when_it_sends_the_same_again_and_nothing_finishes() {
        let quiet = [5.0, 0.0, 0.0, 0.0];
        assert_eq!(sends(60, 0.0, 80.0, 3.0, &quiet), Some(Stuck::NoBuffers));
        assert_eq!(sends(60, 0.0, 0.0, 3.0, &quiet), Some(Stuck::NoAnswer));
        assert_eq!(
            sends(60, 0.0, 80.0, 0.0, &[]),
            Some(Stuck::NoBuffers),
            "it never moved"
        );
        assert_eq!(sends(60, 0.0, 0.0, 0.0, &quiet), None, "it has nothing to send");
        assert_eq!(sends(60, 1.0, 80.0, 3.0, &quiet), None, "it is slow");
        assert_eq!(sends(60, 0.0, 80.0, 3.0, &[0.0, 5.0, 0.0]), None, "it just moved");
        assert_eq!(sends(60, 0.0, 80.0, 3.0, &[0.0, 0.0]), None, "too short to tell");
        assert_eq!(sends(4, 0.0, 80.0, 3.0, &quiet), None, "it just connected");
    }

    #[test]
    fn what_is_gone_or_not_known_is_not_stuck() {
        let mut qp = fixture::unknown_qp();
        assert_eq!(Stuck::of(&qp, S), None);
        // How long it has been in INIT is not known.
        (qp.state, qp.qp_type) = (Some(QpState(1)), Some(QpType(2)));
        assert_eq!(Stuck::of(&qp, u64::MAX), None);
        (qp.state, qp.exited) = (Some(QpState(6)), true);
        assert_eq!(Stuck::of(&qp, S), None);
    }
}
