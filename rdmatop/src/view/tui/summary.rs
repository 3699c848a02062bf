//! Sums over a snapshot, made once for each snapshot and not for each frame.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::ib::QpState;
use crate::model::input::{EbpfState, Verdict};
use crate::model::snapshot::{PortRow, QpRow, Snapshot};
use crate::model::value::Counter;

use super::stuck::{Chance, Stuck};

/// Owner of the QPs that carry management datagrams.
const MAD: &str = "[ib_core]";

/// A sum of rates of which some may be unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// The sum of what is known; `None` when nothing is.
    pub rate: Option<f64>,
    /// Something is missing from it.
    pub partial: bool,
}

impl Sum {
    /// Adds a counter's rate; a part makes a part.
    fn add_counter(&mut self, counter: Option<Counter>) {
        self.add(counter.and_then(|counter| counter.rate));
        self.partial |= counter.is_some_and(|counter| counter.partial);
    }

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
    /// Of each process with stuck QPs, by its uid: how many, and why the first, what is wrong before what is late.
    pub stuck_of: BTreeMap<u64, (u64, Stuck)>,
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
    /// The same by process.
    stuck_of: BTreeMap<u64, (u64, Stuck)>,
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
                Chance::Now(why) => {
                    out.stuck += 1;
                    note(&mut out.stuck_of, qp, why);
                }
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

/// Counts a stuck QP for its process.
fn note(stuck_of: &mut BTreeMap<u64, (u64, Stuck)>, qp: &QpRow, why: Stuck) {
    let Some(process) = qp.process_uid else {
        return;
    };
    let (count, first) = stuck_of.entry(process).or_insert((0, why));
    *count += 1;
    if why.wrong() && !first.wrong() {
        *first = why;
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
        let mut out = Self {
            scale: scale(snapshot),
            states: rows.states.clone(),
            qps: rows.live,
            stuck: rows.stuck,
            stuck_of: rows.stuck_of.clone(),
            ..Self::default()
        };
        for qp in rows.waiting.iter().filter_map(|at| snapshot.qps.get(*at)) {
            if let Some(why) = Stuck::of(qp, snapshot.mono_ns) {
                out.stuck += 1;
                note(&mut out.stuck_of, qp, why);
            }
        }
        for device in &snapshot.devices {
            let ports = || snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
            if ports().any(counts_bytes) {
                ports().for_each(|p| {
                    out.tx.add_counter(p.tx_bytes);
                    out.rx.add_counter(p.rx_bytes);
                });
            } else {
                // A provider without byte counters of its own (rxe): what eBPF counted by QP stands in.
                let [tx, rx] = rows.moved.get(&device.uid).copied().unwrap_or_default();
                // Where no packet passed there were no bytes either. Else reads by a peer are sent, and its writes
                // received, without a work request here.
                for (sum, bytes, packets) in [
                    (
                        &mut out.tx,
                        tx,
                        (|p| p.tx_packets) as fn(&PortRow) -> Option<Counter>,
                    ),
                    (&mut out.rx, rx, |p| p.rx_packets),
                ] {
                    let mut rates = ports().map(|p| packets(p).and_then(|c| c.rate));
                    let still = ports().next().is_some() && rates.all(|rate| rate == Some(0.0));
                    if still && bytes.is_none_or(|rate| rate == 0.0) {
                        sum.add(Some(0.0));
                    } else {
                        sum.add(bytes);
                        sum.partial = true;
                    }
                }
            }
        }
        for process in snapshot.processes.iter().filter(|p| p.qps > 0) {
            let sent = process.traffic.tx_wr;
            // Its datagrams of management are nobody's traffic: unknown ones must not make every sum a floor.
            if sent.is_some_and(|c| c.rate.is_some()) || !(process.kernel && &*process.comm == MAD) {
                out.wr.add_counter(sent);
            }
        }
        let counted = matches!(snapshot.health.ebpf, EbpfState::On { .. });
        if out.wr == Sum::default() && counted && !snapshot.devices.is_empty() {
            // Nobody is there to post one.
            out.wr.add(Some(0.0));
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
    port.tx_bytes.is_some() || port.rx_bytes.is_some()
}

fn scale(snapshot: &Snapshot) -> Scale {
    let ports = &snapshot.ports;
    // Packets of the provider are all there were; bytes that eBPF counted are those of work requests only.
    let packets = !ports.iter().any(counts_bytes)
        && ports
            .iter()
            .any(|p| p.tx_packets.is_some() || p.rx_packets.is_some());
    let bytes = !packets
        && ports
            .iter()
            .any(|p| p.any_tx_bytes().or(p.any_rx_bytes()).is_some());
    let link = bytes && ports.iter().all(|p| p.rate_bps.is_some_and(|r| r > 0));
    let counters = ports.iter().flat_map(|p| {
        if packets {
            [p.tx_packets, p.rx_packets]
        } else {
            [p.any_tx_bytes().copied(), p.any_rx_bytes().copied()]
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
    use crate::model::value::Source;
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

    #[test]
    fn a_port_without_a_packet_moved_nothing_and_one_with_packets_may_have() {
        let mut s = testkit::one_row();
        s.qps.clear();
        let none = Some(Counter {
            total: 7,
            rate: Some(0.0),
            source: Source::Netlink,
            partial: false,
        });
        s.ports[0].tx_packets = none;
        let sums = Summary::of(&s);
        assert_eq!((sums.tx.rate, sums.tx.partial), (Some(0.0), false));
        assert_eq!((sums.rx.rate, sums.rx.partial), (None, true), "packets came in");
        s.ports[0].tx_packets = None;
        assert!(Summary::of(&s).tx.partial, "packets are not known");
    }

    #[test]
    fn a_port_or_a_process_of_which_a_part_is_missing_makes_the_total_a_floor() {
        let whole = testkit::busy();
        let sums = Summary::of(&whole);
        let mut s = whole.clone();
        for counter in s.ports.iter_mut().filter_map(|p| p.tx_bytes.as_mut()).take(1) {
            counter.partial = true;
        }
        let port = Summary::of(&s);
        assert_eq!((port.tx.rate, port.tx.partial), (sums.tx.rate, true));
        assert_eq!(port.rx, sums.rx);
        let mut s = whole.clone();
        for counter in s
            .processes
            .iter_mut()
            .filter_map(|p| p.traffic.tx_wr.as_mut())
            .take(1)
        {
            counter.partial = true;
        }
        assert!(Summary::of(&s).wr.partial);
    }

    #[test]
    fn unknown_management_datagrams_make_no_sum_a_floor_and_other_kernel_consumers_do() {
        let mut s = testkit::one_row();
        let mut kernel = s.processes[0].clone();
        (kernel.uid, kernel.pid, kernel.kernel, kernel.comm) = (9, None, true, "[ib_core]".into());
        kernel.traffic = crate::model::snapshot::Traffic::default();
        s.processes.push(kernel);
        assert!(!Summary::of(&s).wr.partial);
        s.processes[1].comm = "[nvme_rdma]".into();
        assert!(Summary::of(&s).wr.partial);
        s.processes.clear();
        assert_eq!(Summary::of(&s).wr.rate, Some(0.0), "nobody posts");
        s.health.ebpf = EbpfState::Disabled;
        assert_eq!(Summary::of(&s).wr.rate, None, "nobody counts");
    }

    #[test]
    fn stuck_qps_are_counted_for_their_process_with_what_is_wrong_first() {
        let mut s = testkit::busy();
        let mut late = (*s.qps[1]).clone();
        (late.state, late.process_uid, late.uid) = (Some(QpState(4)), Some(4276), 99);
        late.timeline = Arc::new(vec![crate::model::snapshot::Step {
            mono_ns: s.mono_ns,
            state: QpState(4),
            duration_ns: None,
        }]);
        s.qps.insert(0, Arc::new(late));
        s.mono_ns += 10 * S;
        let sums = Summary::of(&s);
        assert_eq!(sums.stuck_of.get(&4276), Some(&(2, Stuck::Failed)));
        assert_eq!(sums.stuck_of.len(), 1, "the kernel's have no process here");
        assert_eq!(sums.stuck, 3);
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
