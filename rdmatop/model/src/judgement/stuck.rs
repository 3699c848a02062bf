//! QPs that make no progress until an application acts.

use std::sync::Arc;

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use crate::{
    facts::QpRow,
    ib::{QpState, QpType},
    value::Counter,
};
use rdmatop_base::text;

/// A connection takes milliseconds from INIT to RTS; a QP that needs seconds waits for its peer.
const SETUP_NS: u64 = 5_000_000_000;
/// Number of snapshots without a finished work request after which a QP that repeats packets is called stuck.
const QUIET: usize = 3;

/// Stands behind the state of a stuck QP, so that it is visible without colours.
pub const STUCK_MARK: &str = "!";

/// Why a QP is stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The QP is in ERR: both queues are flushed.
    Failed,
    /// In SQE: the send queue stopped at an error.
    SendFailed,
    /// In SQD: the application asked the send queue to drain, and did not resume it.
    Drained,
    /// Connected type, in INIT: no peer connected.
    Alone,
    /// In RTS, and the receiver has no buffers: nothing finishes, and RNR waits go on.
    NoBuffers,
    /// In RTS: nothing finishes, and packets are sent again.
    NoAnswer,
}

impl Reason {
    /// Whether the QP sends packets again.
    pub fn repeats(self) -> bool {
        matches!(self, Self::NoBuffers | Self::NoAnswer)
    }

    /// What it means and what to look at.
    pub fn why(self) -> &'static str {
        match self {
            Self::Failed => "every work request is flushed until the application resets or destroys it.",
            Self::SendFailed => "a send failed and the send queue stopped; it still receives.",
            Self::Drained => "the application drained its send queue and has not resumed it.",
            Self::Alone => "connecting takes milliseconds; no peer has answered.",
            Self::NoBuffers => {
                "nothing finishes, the receiver answers \"not ready\" (RNR). It posts no receive buffers: look at the \
                 peer's process, which is stopped, busy elsewhere, or hangs."
            }
            Self::NoAnswer => {
                "nothing finishes and packets are sent again. The peer is gone or packets are lost on the way: look at \
                 the drops and retransmissions of the ports, here and there."
            }
        }
    }
}

/// A stuck QP's reason and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The reason why the QP is stuck.
    pub reason: Reason,
    /// Time (`CLOCK_MONOTONIC`, ns) at which the QP entered its state; `None` when that is not known.
    pub since_ns: Option<u64>,
}

impl Stuck {
    /// Whether `qp` is stuck at `mono_ns` (`CLOCK_MONOTONIC`).
    pub fn of(qp: &QpRow, mono_ns: u64) -> Option<Self> {
        from(qp).filter(|(at, _)| *at <= mono_ns).map(|(_, stuck)| stuck)
    }

    /// A failure, not just a delay.
    pub fn is_wrong(self) -> bool {
        matches!(self.reason, Reason::Failed | Reason::SendFailed)
    }

    /// The state in which the QP is stuck, with a blank before it, and for how long where that tells
    /// something: ` in INIT for 7s`.
    pub fn place(self, mono_ns: u64) -> String {
        let long = || {
            let ns = self.since_ns.map_or(0, |since| mono_ns.saturating_sub(since));
            text::age(ns / 1_000_000_000)
        };
        match self.reason {
            Reason::Failed => " in ERR".to_owned(),
            Reason::SendFailed => " in SQE".to_owned(),
            Reason::Drained => format!(" in SQD for {}", long()),
            Reason::Alone => format!(" in INIT for {}", long()),
            Reason::NoBuffers | Reason::NoAnswer => String::new(),
        }
    }

    /// State, duration and reason in one line, as of `mono_ns` (`CLOCK_MONOTONIC`).
    pub fn sentence(self, mono_ns: u64) -> String {
        format!("Stuck{}: {}", self.place(mono_ns), self.reason.why())
    }
}

impl Serialize for Stuck {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Stuck", 3)?;
        object.serialize_field("reason", &self.reason)?;
        object.serialize_field("since_mono_ns", &self.since_ns)?;
        object.serialize_field("why", self.reason.why())?;
        object.end()
    }
}

/// Why a QP is stuck, or will be if it stays as it is, and the time from which it counts as stuck; 0 means at
/// once. States are compared by number, because this runs for every QP of which something changed.
///
/// RTR is never stuck: a side that only receives stays there for its whole life, as perftest's receivers do.
/// Neither is INIT for types without a peer, nor RESET, where libraries keep spare QPs.
pub(super) fn from(qp: &QpRow) -> Option<(u64, Stuck)> {
    let state = qp.state.filter(|_| !qp.exited)?;
    let reason = match state {
        QpState::ERR => Reason::Failed,
        QpState::SQE => Reason::SendFailed,
        QpState::SQD => Reason::Drained,
        // RC, UC, XRC_INI, XRC_TGT.
        QpState::INIT if matches!(qp.qp_type, Some(QpType(2 | 3 | 9 | 10))) => Reason::Alone,
        QpState::RTS if grows(qp.traffic.rnr_waits) && rests(qp) => Reason::NoBuffers,
        QpState::RTS if grows(qp.traffic.retransmits) && rests(qp) => Reason::NoAnswer,
        _ => return None,
    };
    let steps = qp.timeline.iter().rev();
    let began = steps.take_while(|step| step.state == state).last();
    let since_ns = began.map(|step| step.mono_ns);
    let stuck = Stuck { reason, since_ns };
    let at = if stuck.is_wrong() {
        0
    } else {
        since_ns?.saturating_add(SETUP_NS)
    };
    Some((at, stuck))
}

fn grows(counter: Option<Counter>) -> bool {
    counter.and_then(|c| c.rate).is_some_and(|rate| rate > 0.0)
}

/// Whether it is known that no send WR finished and no byte moved in the newest points of the history. An
/// empty history means that all points were 0 or unknown.
fn rests(qp: &QpRow) -> bool {
    let sent = &qp.history.tx;
    qp.traffic.tx_wr.and_then(|c| c.rate) == Some(0.0)
        && (sent.is_empty() || sent.len() >= QUIET)
        && sent.iter().rev().take(QUIET).all(|point| *point == Some(0.0))
}

/// A stuck QP: which one, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StuckQp {
    /// [`QpRow::uid`].
    pub uid: u64,
    /// Device name.
    pub device: Arc<str>,
    /// QP number, or [`crate::facts::NO_NUMBER`].
    #[serde(serialize_with = "crate::facts::numbered")]
    pub qpn: u32,
    /// Process id of its owner.
    pub pid: Option<u32>,
    /// Owner's name.
    pub comm: Option<Arc<str>>,
    /// [`QpRow::process_uid`].
    pub process_uid: Option<u64>,
    /// Why and since when the QP is stuck.
    #[serde(flatten)]
    pub stuck: Stuck,
}

impl StuckQp {
    pub(super) fn new(qp: &QpRow, stuck: Stuck) -> Self {
        Self {
            uid: qp.uid,
            device: Arc::clone(&qp.device),
            qpn: qp.qpn,
            pid: qp.pid,
            comm: qp.comm.clone(),
            process_uid: qp.process_uid,
            stuck,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{snapshot::Step, testkit::rows, value::Source};

    const S: u64 = 1_000_000_000;

    fn after(state: u8, qp_type: u8, seconds: u64) -> Option<Reason> {
        let mut qp = rows::unknown_qp();
        qp.qp_type = Some(QpType(qp_type));
        qp.state = Some(QpState(state));
        let step = Step {
            mono_ns: 100 * S,
            state: QpState(state),
            duration_ns: None,
        };
        qp.timeline = Arc::new(vec![step]);
        Stuck::of(&qp, (100 + seconds) * S).map(|stuck| stuck.reason)
    }

    #[test]
    fn a_receiver_that_rests_in_rtr_is_not_stuck() {
        for seconds in [0, 6, 86_400] {
            assert_eq!(after(2, 2, seconds), None);
        }
    }

    #[test]
    fn err_and_sqe_are_stuck_at_once_and_init_and_sqd_after_five_seconds() {
        assert_eq!(after(6, 2, 0), Some(Reason::Failed));
        assert_eq!(after(5, 3, 0), Some(Reason::SendFailed));
        assert_eq!(after(1, 2, 4), None);
        assert_eq!(after(1, 2, 5), Some(Reason::Alone));
        assert_eq!(after(4, 2, 4), None);
        assert_eq!(after(4, 2, 60), Some(Reason::Drained));
    }

    #[test]
    fn a_sentence_says_where_and_for_how_long() {
        let stuck = Stuck {
            reason: Reason::Alone,
            since_ns: Some(100 * S),
        };
        let line = stuck.sentence(107 * S);
        assert!(
            line.starts_with("Stuck in INIT for 7s: connecting takes"),
            "{line}"
        );
    }

    #[test]
    fn types_without_a_peer_may_stay_in_init_and_any_type_in_reset() {
        for qp_type in [0, 1, 4, 8] {
            assert_eq!(after(1, qp_type, 600), None, "type {qp_type}");
        }
        assert_eq!(after(0, 2, 600), None);
    }

    /// A QP in RTS for `seconds` whose counters grow by these amounts and whose last points are `sent`.
    fn sends(seconds: u64, finished: f64, rnr: f64, again: f64, sent: &[f64]) -> Option<Reason> {
        let mut qp = rows::unknown_qp();
        (qp.qp_type, qp.state) = (Some(QpType(2)), Some(QpState::RTS));
        let step = Step {
            mono_ns: 0,
            state: QpState::RTS,
            duration_ns: None,
        };
        qp.timeline = Arc::new(vec![step]);
        let counter = |rate| Some(Counter::whole(9, Some(rate), Source::Ebpf));
        let traffic = Arc::make_mut(&mut qp.traffic);
        (traffic.tx_wr, traffic.rnr_waits, traffic.retransmits) =
            (counter(finished), counter(rnr), counter(again));
        Arc::make_mut(&mut qp.history).tx = sent.iter().copied().map(Some).collect();
        Stuck::of(&qp, seconds * S).map(|stuck| stuck.reason)
    }

    #[test]
    fn a_sender_is_stuck_when_it_sends_the_same_again_and_nothing_finishes() {
        let quiet = [5.0, 0.0, 0.0, 0.0];
        assert_eq!(sends(60, 0.0, 80.0, 3.0, &quiet), Some(Reason::NoBuffers));
        assert_eq!(sends(60, 0.0, 0.0, 3.0, &quiet), Some(Reason::NoAnswer));
        assert_eq!(
            sends(60, 0.0, 80.0, 0.0, &[]),
            Some(Reason::NoBuffers),
            "it never moved"
        );
        assert_eq!(sends(60, 0.0, 0.0, 0.0, &quiet), None, "it has nothing to send");
        assert_eq!(sends(60, 1.0, 80.0, 3.0, &quiet), None, "it is slow");
        assert_eq!(sends(60, 0.0, 80.0, 3.0, &[0.0, 5.0, 0.0]), None, "it just moved");
        assert_eq!(
            sends(60, 0.0, 80.0, 3.0, &[0.0, 0.0]),
            None,
            "the time is too short"
        );
        assert_eq!(sends(4, 0.0, 80.0, 3.0, &quiet), None, "it just connected");
    }

    #[test]
    fn what_is_gone_or_not_known_is_not_stuck() {
        let mut qp = rows::unknown_qp();
        assert_eq!(Stuck::of(&qp, S), None);
        // How long it has been in INIT is not known.
        (qp.state, qp.qp_type) = (Some(QpState(1)), Some(QpType(2)));
        assert_eq!(Stuck::of(&qp, u64::MAX), None);
        (qp.state, qp.exited) = (Some(QpState(6)), true);
        assert_eq!(Stuck::of(&qp, S), None);
    }
}
