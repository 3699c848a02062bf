//! Sums over a snapshot, made once for each snapshot and not for each frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ib::QpState;
use crate::model::input::Verdict;
use crate::model::snapshot::{PortRow, QpRow, Snapshot};
use crate::model::value::{Counter, Source};

use super::stuck::{Chance, Stuck};

/// A sum of rates of which some may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The sum of what is known; `None` when nothing is.
    pub rate: Option<f64>,
    /// Something is missing from it.
    pub partial: bool,
}

impl Sum {
    fn add(&mut self, rate: Option<f64>) {
        match rate {
            Some(rate) => *self.rate.get_or_insert(0.0) += rate,
            None => self.partial = true,
        }
    }
}

/// What a full bar means on the Devices tab: one scale for all rows, so that bars compare.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scale {
    /// Every port's true rate is known: full is the link.
    pub link: bool,
    /// No provider counts bytes: bars and rates are packets.
    pub packets: bool,
    /// Otherwise full is the busiest direction of any port: its rate.
    pub max: f64,
}

impl Scale {
    /// What a full bar is called.
    pub fn name(&self) -> &'static str {
        if self.link { "of link" } else { "of max" }
    }
}

/// Sums over a snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Bytes sent per second.
    pub tx: Sum,
    /// Bytes received per second.
    pub rx: Sum,
    /// Send WRs per second.
    pub wr: Sum,
    /// Live QPs by state, in numeric order; `None` is a state nobody told us.
    pub states: Vec<(Option<QpState>, u64)>,
    /// Live QPs.
    pub qps: u64,
    /// Live QPs that wait for someone who has to act.
    pub stuck: u64,
    /// Scale of the bars.
    pub scale: Scale,
    /// Probes that are on, partly on, broken, and off for a reason.
    pub probes: [usize; 4],
    rows: Rows,
}

/// What the rows of QPs say, whatever the time is and whatever else is in the snapshot.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    /// Live ones by state, in numeric order.
    states: Vec<(Option<QpState>, u64)>,
    /// Live ones.
    live: u64,
    /// Those that are stuck now.
    stuck: u64,
    /// Those that will be when they stay as they are, by place.
    waiting: Vec<usize>,
    /// Bytes sent and received per second, by device.
    moved: BTreeMap<u64, [Option<f64>; 2]>,
}

impl Rows {
    fn of(qps: &[Arc<QpRow>]) -> Self {
        let mut out = Self::default();
        let (mut known, mut unknown) = ([0; 256], 0);
        for (at, qp) in qps.iter().enumerate() {
            out.add_moved(qp);
            if qp.exited {
                continue;
            }
            out.live += 1;
            match qp.state {
                Some(state) => known[usize::from(state.0)] += 1,
                None => unknown += 1,
            }
            match Chance::of(qp) {
                Chance::Never => {}
                Chance::Now(_) => out.stuck += 1,
                Chance::Later(_) => out.waiting.push(at),
            }
        }
        let states = (0..=u8::MAX).map(|state| (Some(QpState(state)), known[usize::from(state)]));
        out.states = states
            .chain([(None, unknown)])
            .filter(|(_, count)| *count > 0)
            .collect();
        out
    }

    fn add_moved(&mut self, qp: &QpRow) {
        let t = &*qp.traffic;
        let (Some(uid), true) = (qp.device_uid, t.tx_bytes.is_some() || t.rx_bytes.is_some()) else {
            return;
        };
        // The bytes of a READ are asked for by a send WR, and received.
        let reads = t.by_opcode.iter().filter(|o| matches!(o.opcode.0, 4 | 11));
        let read: f64 = reads.filter_map(|o| o.bytes.rate).sum();
        let rates = [t.tx_bytes, t.rx_bytes].map(|c| c.and_then(|c| c.rate));
        let moved = [
            rates[0].map(|tx| (tx - read).max(0.0)),
            rates[1].map(|rx| rx + read),
        ];
        for (sum, rate) in self.moved.entry(uid).or_default().iter_mut().zip(moved) {
            if let Some(rate) = rate {
                *sum.get_or_insert(0.0) += rate;
            }
        }
    }
}

/// Whether each row is the very row of the other snapshot.
fn same_rows(a: &[Arc<QpRow>], b: &[Arc<QpRow>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl Summary {
    /// Sums over `snapshot`.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self::with(snapshot, Rows::of(&snapshot.qps))
    }

    /// Sums over the snapshot after `before`, of which these are the sums. Ten thousand QPs at rest are told by
    /// their addresses, and not looked at.
    #[must_use]
    pub fn after(self, before: &Snapshot, snapshot: &Snapshot) -> Self {
        if same_rows(&before.qps, &snapshot.qps) {
            Self::with(snapshot, self.rows)
        } else {
            Self::of(snapshot)
        }
    }

    fn with(snapshot: &Snapshot, rows: Rows) -> Self {
        let late = |at: &&usize| {
            let qp = snapshot.qps.get(**at);
            qp.is_some_and(|qp| Stuck::of(qp, snapshot.mono_ns).is_some())
        };
        let mut out = Self {
            scale: scale(snapshot),
            states: rows.states.clone(),
            qps: rows.live,
            stuck: rows.stuck + rows.waiting.iter().filter(late).count() as u64,
            ..Self::default()
        };
        for device in &snapshot.devices {
            let ports = || snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
            if ports().any(counts_bytes) {
                ports().for_each(|p| {
                    out.tx.add(p.tx_bytes.and_then(|c| c.rate));
                    out.rx.add(p.rx_bytes.and_then(|c| c.rate));
                });
            } else {
                // A provider without byte counters of its own (rxe): what eBPF counted by QP stands in.
                let [tx, rx] = rows.moved.get(&device.uid).copied().unwrap_or_default();
                out.tx.add(tx);
                out.rx.add(rx);
                // Reads by a peer are sent, and its writes received, without a work request here.
                (out.tx.partial, out.rx.partial) = (true, true);
            }
        }
        for process in snapshot.processes.iter().filter(|p| p.qps > 0) {
            out.wr.add(process.traffic.tx_wr.and_then(|c| c.rate));
        }
        for probe in &snapshot.health.probes {
            let at = match probe.verdict {
                Verdict::Ok => 0,
                Verdict::Partial => 1,
                Verdict::Broken => 2,
                Verdict::NotApplicable | Verdict::Unsupported => 3,
            };
            out.probes[at] += 1;
        }
        out.rows = rows;
        out
    }
}

/// Whether the port has byte counters of the provider's own, which every byte passes.
pub(super) fn counts_bytes(port: &PortRow) -> bool {
    let own = |c: Counter| c.source != Source::Ebpf;
    port.tx_bytes.is_some_and(own) || port.rx_bytes.is_some_and(own)
}

fn scale(snapshot: &Snapshot) -> Scale {
    let ports = &snapshot.ports;
    // Packets of the provider are all there were; bytes that eBPF counted are those of work requests only.
    let packets = !ports.iter().any(counts_bytes)
        && ports
            .iter()
            .any(|p| p.tx_packets.is_some() || p.rx_packets.is_some());
    let bytes = !packets && ports.iter().any(|p| p.tx_bytes.is_some() || p.rx_bytes.is_some());
    let link = bytes && ports.iter().all(|p| p.rate_bps.is_some_and(|r| r > 0));
    let counters = ports.iter().flat_map(|p| {
        if packets {
            [p.tx_packets, p.rx_packets]
        } else {
            [p.tx_bytes, p.rx_bytes]
        }
    });
    Scale {
        link,
        packets,
        max: counters.flatten().filter_map(|c| c.rate).fold(0.0, f64::max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tui::testkit;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_row_that_waits_becomes_stuck_though_it_did_not_change() {
        let mut before = testkit::busy();
        for qp in &mut before.qps {
            let qp = Arc::make_mut(qp);
            qp.exited |= !matches!(Chance::of(qp), Chance::Never);
        }
        let mut qp = (*before.qps[1]).clone();
        qp.state = Some(QpState(1));
        qp.timeline = Arc::new(vec![crate::model::snapshot::Step {
            mono_ns: before.mono_ns,
            state: QpState(1),
            duration_ns: None,
        }]);
        before.qps[1] = Arc::new(qp);
        let mut after = before.clone();
        after.mono_ns += 6 * S;
        assert!(same_rows(&before.qps, &after.qps));
        let sums = Summary::of(&before);
        assert_eq!(sums.stuck, 0);
        assert_eq!(sums.after(&before, &after).stuck, 1);
    }

    proptest! {
        #[test]
        fn sums_that_were_kept_are_those_that_are_made_anew(
            steps in proptest::collection::vec((0usize..20, 0u8..7, 0u64..4, any::<bool>()), 1..12),
        ) {
            let mut before = testkit::busy();
            let mut sums = Summary::of(&before);
            for (at, state, seconds, gone) in steps {
                let mut after = before.clone();
                after.mono_ns += seconds * S;
                if let Some(qp) = after.qps.get_mut(at) {
                    let qp = Arc::make_mut(qp);
                    (qp.state, qp.exited) = (Some(QpState(state)), gone);
                    if let Some(tx) = &mut Arc::make_mut(&mut qp.traffic).tx_bytes {
                        tx.rate = Some(f64::from(state));
                    }
                } else if at == 19 {
                    after.qps.pop();
                } else if at == 18 {
                    after.ports.pop();
                }
                sums = sums.after(&before, &after);
                prop_assert_eq!(&sums, &Summary::of(&after));
                before = after;
            }
        }
    }
}
