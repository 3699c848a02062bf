//! What facts mean: totals, what is stuck, what cannot be observed and why.
//!
//! Facts are judged once, and the result stands beside them in the snapshot, so that the screen, `--once` and
//! `--json` agree. What was concluded from QPs alone is reused as long as no QP row changes.

mod bound;
mod bypass;
mod peers;
mod stuck;
#[cfg(test)]
mod tests;
mod totals;
mod uncounted;
#[cfg(test)]
mod uncounted_tests;
mod unexplained;
mod unobserved;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Serialize, Serializer};

use crate::{
    facts::{Facts, QpRow},
    input::Verdict,
    value::Shared,
};
use rdmatop_base::order::Ordered as _;

pub use peers::{Peer, address};
pub use stuck::{Reason, STUCK_MARK, Stuck, StuckQp};
pub use totals::{Scale, StateCount, Sum, Totals, counts_bytes, says_nothing};
pub(super) use uncounted::QpsWritten;
pub use uncounted::{why_process_is_uncounted, why_qp_is_unknown};
pub use unexplained::{Unexplained, unseen_qps};
pub(super) use unexplained::{are_known, is_of_the_core, notes_of, unexplained};
pub use unobserved::{Unobserved, looked_at_none, sentence};

/// What facts mean.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Sums over all rows.
    pub totals: Totals,
    /// What cannot be observed, and why.
    pub unobserved: Vec<Unobserved>,
    /// Ports that move data which no queue pair explains. They are concluded from all rows, so a filter
    /// cannot make a port look unexplained.
    pub unexplained: Vec<Unexplained>,
    /// Scale of bars.
    pub scale: Scale,
    /// Number of probes that are on, partly on, broken, and not supported by this kernel. Probes for a driver
    /// that is not loaded are not counted.
    pub probes: [usize; 4],
    /// For each process with stuck QPs, by its uid: how many QPs are stuck, and the reason of the first; a
    /// failed QP comes before one that only waits.
    by_process: BTreeMap<u64, (u64, Stuck)>,
    /// How many of `rows.waiting` are stuck at the snapshot's time.
    stuck: usize,
    rows: Arc<Rows>,
}

/// What the rows of QPs show, independent of the time and of the rest.
#[derive(Clone, Debug, Default, PartialEq)]
struct Rows {
    /// Live QPs by state, in numeric order.
    states: Vec<StateCount>,
    /// Number of live QPs.
    live: u64,
    /// QPs that are stuck, or will be if they stay as they are. With each: the time (`CLOCK_MONOTONIC`, ns)
    /// from which it counts as stuck; the earliest comes first.
    waiting: Vec<(u64, StuckQp)>,
    /// Live QPs that move data without a counter slot, by device.
    uncounted: BTreeMap<u64, u64>,
    /// Bytes sent and received per second, by device.
    moved: BTreeMap<u64, [Option<f64>; 2]>,
    /// Devices with a QP, also one that has ended, that carries more than management datagrams.
    able: BTreeSet<u64>,
    by_numbers: peers::ByNumbers,
    /// By device, the live QPs that carry somebody's work requests: whether any is counted, and whose are
    /// not.
    counted: BTreeMap<u64, uncounted::Counted>,
    /// Live QPs that a process has connected, by their paths.
    paths: BTreeMap<PathKey, u64>,
    links: bound::Links,
}

/// What determines how the packets of a QP leave the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathKey {
    /// [`DeviceRow::uid`](crate::facts::DeviceRow::uid).
    pub device: u64,
    /// Port of the device.
    pub port: u32,
    /// [`ProcessRow::uid`](crate::facts::ProcessRow::uid).
    pub process: u64,
    /// Index of the QP's own address in the port's GID table.
    pub sgid_index: Option<u8>,
    /// Path MTU, bytes.
    pub mtu: Option<u16>,
}

impl PathKey {
    /// The path of a QP; `None` when the QP is not connected, or nothing is known of its path.
    fn of(qp: &QpRow) -> Option<Self> {
        let key = Self {
            device: qp.device_uid?,
            port: qp.port?,
            process: qp.process_uid?,
            sgid_index: qp.sgid_index,
            mtu: qp.path_mtu,
        };
        (key.sgid_index.is_some() || key.mtu.is_some()).then_some(key)
    }
}

impl Rows {
    fn of(qps: &[Arc<QpRow>]) -> Self {
        let mut out = Self::default();
        // Unknown ones come last.
        let mut states: BTreeMap<_, u64> = BTreeMap::new();
        for qp in qps {
            totals::add_moved(&mut out.moved, qp);
            out.able.extend(qp.device_uid.filter(|_| !is_of_the_core(qp)));
            if qp.exited {
                continue;
            }
            out.live += 1;
            *states.entry((qp.state.is_none(), qp.state)).or_default() += 1;
            if let Some((process, link)) = bound::link_of(qp) {
                out.links.entry(process).or_default().insert(link);
            }
            uncounted::count(&mut out.counted, qp);
            if let Some(path) = PathKey::of(qp) {
                *out.paths.entry(path).or_default() += 1;
            }
            if let (true, Some(device)) = (qp.uncounted, qp.device_uid) {
                *out.uncounted.entry(device).or_default() += 1;
            }
            out.waiting
                .extend(stuck::from(qp).map(|(at, why)| (at, StuckQp::new(qp, why))));
        }
        out.waiting.order_by_key(|(at, _)| *at);
        let states = states.into_iter();
        out.states = states
            .map(|((_, state), qps)| StateCount { state, qps })
            .collect();
        out
    }

    /// How many QPs are stuck at a given time.
    fn stuck_at(&self, mono_ns: u64) -> usize {
        self.waiting.partition_point(|(at, _)| *at <= mono_ns)
    }

    fn by_process(&self, stuck: usize) -> BTreeMap<u64, (u64, Stuck)> {
        let mut out = BTreeMap::new();
        for (_, qp) in self.waiting.iter().take(stuck) {
            let Some(process) = qp.process_uid else { continue };
            let (count, first) = out.entry(process).or_insert((0, qp.stuck));
            *count += 1;
            if qp.stuck.is_wrong() && !first.is_wrong() {
                *first = qp.stuck;
            }
        }
        out
    }
}

/// Whether each row is the same `Arc` as in other facts. The addresses of the rows are compared, so
/// that ten thousand QPs are not read; when no QP changed, the address of the whole list is the same.
fn same_rows(a: &Shared<Arc<QpRow>>, b: &Shared<Arc<QpRow>>) -> bool {
    a.is(b) || a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl Judgement {
    /// Judges facts. `before` are facts that were judged, and how; most rows of both may be the same, and
    /// what was concluded of these is taken over.
    pub fn of(facts: &Facts, unexplained: Vec<Unexplained>, before: Option<(&Facts, &Self)>) -> Self {
        let kept = before.filter(|(before, _)| same_rows(&before.qps, &facts.qps));
        let kept = kept.map(|(_, judgement)| judgement);
        let rows = kept.map_or_else(|| Arc::new(Rows::of(&facts.qps)), |kept| Arc::clone(&kept.rows));
        let stuck = rows.stuck_at(facts.mono_ns);
        let by_process = rows.by_process(stuck);
        let mut probes = [0; 4];
        for probe in &facts.health.probes {
            probes[match probe.verdict {
                Verdict::Ok => 0,
                Verdict::Partial => 1,
                Verdict::Broken => 2,
                Verdict::Unsupported => 3,
                Verdict::NotApplicable => continue,
            }] += 1;
        }
        Self {
            totals: Totals::of(facts, &unexplained, &rows),
            unexplained,
            unobserved: unobserved::of(facts, &rows),
            scale: Scale::of(&facts.ports),
            probes,
            by_process,
            stuck,
            rows,
        }
    }

    /// Stuck QPs: failures first, then the longest wait.
    pub fn stuck(&self) -> impl ExactSizeIterator<Item = &StuckQp> + Clone {
        self.rows.waiting.iter().take(self.stuck).map(|(_, qp)| qp)
    }

    /// The paths of live QPs, and how many have each.
    pub fn paths(&self) -> impl Iterator<Item = (PathKey, u64)> {
        self.rows.paths.iter().map(|(key, qps)| (*key, *qps))
    }

    /// For a process with stuck QPs: how many, and the reason of the first; failures come before waits.
    pub fn stuck_of(&self, process_uid: u64) -> Option<(u64, Stuck)> {
        self.by_process.get(&process_uid).copied()
    }
}

impl Serialize for Judgement {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Written<'a> {
            totals: &'a Totals,
            stuck: Vec<&'a StuckQp>,
            unobserved: &'a [Unobserved],
            unexplained: &'a [Unexplained],
        }
        Written {
            totals: &self.totals,
            stuck: self.stuck().collect(),
            unobserved: &self.unobserved,
            unexplained: &self.unexplained,
        }
        .serialize(serializer)
    }
}
