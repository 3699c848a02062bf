//! What is kept from one snapshot to the next: rows that are used again, what is judged and found, and who
//! has devices open whose ports move data that no queue pair explains.

use std::sync::{Arc, Weak};

use super::{history, rows::Rows, shares::Shares};
use crate::{
    cause::{Cause, CauseId},
    findings::{FindingTracker, Limits},
    input::{GpuSample, OpenersSample},
    judgement::{AllUnexplained, Bound},
    snapshot::Snapshot,
};

/// A search of all open files is not made again before this, ns.
const EVERY: u64 = 10_000_000_000;

/// The state that one snapshot leaves to the next.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    pub(super) rows: Rows,
    /// Which bytes of ports are whose.
    pub(super) shares: Shares,
    /// How busy GPUs were in the seconds that traffic is averaged over.
    gpus: Vec<GpuSample>,
    /// Who has what open.
    openers: Option<Arc<OpenersSample>>,
    /// When the open files were last looked at.
    searched_ns: Option<u64>,
    /// Open files of some processes were not readable then, and will not be later.
    hidden: bool,
    /// When the last snapshot was made, if it had a port whose traffic is not explained.
    wanted_ns: Option<u64>,
    pub(super) findings: FindingTracker,
    last_ns: Option<u64>,
    /// The last snapshot, while a view holds it: its judgement is reused where nothing changed.
    last: Weak<Snapshot>,
}

impl Snapshots {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            findings: FindingTracker::new(limits),
            ..Self::default()
        }
    }

    /// Takes over who has what open.
    pub(super) fn openers(&mut self, sample: OpenersSample) {
        self.searched_ns = Some(sample.mono_ns);
        self.hidden = sample.hidden;
        self.openers = Some(Arc::new(sample));
    }

    /// Whether the last search saw all open files and is long enough ago for another one, whatever it is for.
    pub(super) fn may_search(&self) -> bool {
        let is_due = |at_ns: u64| {
            self.last_ns
                .is_some_and(|now_ns| now_ns.saturating_sub(at_ns) >= EVERY)
        };
        !self.hidden && self.searched_ns.is_none_or(is_due)
    }

    /// Takes over how busy GPUs were.
    pub(super) fn gpus(&mut self, sample: GpuSample) {
        let since_ns = sample.mono_ns.saturating_sub(history::SPAN_NS);
        self.gpus.retain(|old| old.before_ns >= since_ns);
        self.gpus.push(sample);
    }

    /// The time since the last snapshot, of one that is made now.
    pub(super) fn interval_ns(&mut self, now_ns: u64) -> Option<u64> {
        let last_ns = self.last_ns.replace(now_ns)?;
        Some(now_ns.saturating_sub(last_ns))
    }

    /// Judges a snapshot, with a note for what moves and is not explained, and looks for findings.
    pub(super) fn judge(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        let before = self.last.upgrade();
        let mut snapshot = judged(snapshot, self.openers.as_ref(), &self.gpus, before.as_deref());
        let moves = !snapshot.unexplained.is_empty();
        self.wanted_ns = moves.then_some(snapshot.mono_ns);
        if !moves {
            // Who had it open then is no candidate for what may move later.
            self.openers = None;
        }
        snapshot.findings = self.findings.look(&snapshot).into();
        if let Some(note) = self.findings.left_out().note() {
            let all = snapshot.health.notes.iter().cloned().chain([note]);
            snapshot.health.notes = all.collect::<Vec<_>>().into();
        }
        snapshot.health.looked_ns = self.findings.looked_ns();
        snapshot.health.still_looks = self.findings.still_looks();
        let snapshot = Arc::new(snapshot);
        self.last = Arc::downgrade(&snapshot);
        snapshot
    }

    /// Whether a search for openers is wanted.
    pub(super) fn needs_openers(&self) -> bool {
        let last = self.openers.as_ref();
        let is_due = |now_ns: u64| last.is_none_or(|last| now_ns.saturating_sub(last.mono_ns) >= EVERY);
        self.wanted_ns.is_some_and(is_due)
    }

    /// See `Engine::with_openers`.
    pub(super) fn with_openers(&self, latest: &Snapshot) -> Option<Snapshot> {
        let sample = self.openers.as_ref()?;
        let mut again = latest.clone();
        // Its notes are made anew.
        let others = latest
            .health
            .notes
            .iter()
            .filter(|note| note.id != CauseId::UnseenQps);
        again.health.notes = others.cloned().collect();
        Some(judged(again, Some(sample), &self.gpus, Some(latest)))
    }
}

fn judged(
    mut snapshot: Snapshot,
    openers: Option<&Arc<OpenersSample>>,
    gpus: &[GpuSample],
    before: Option<&Snapshot>,
) -> Snapshot {
    snapshot.unexplained = AllUnexplained::find(&snapshot, openers);
    let own = snapshot.unexplained.notes();
    if !own.is_empty() {
        // What makes values of a device old, or the device go, is said before.
        let first = |note: &&Cause| matches!(note.id, CauseId::SlowDevice | CauseId::RemovalWaits);
        let (before, after): (Vec<_>, Vec<_>) = snapshot.health.notes.iter().partition(first);
        let all = before
            .into_iter()
            .cloned()
            .chain(own)
            .chain(after.into_iter().cloned());
        snapshot.health.notes = all.collect();
    }
    let mut snapshot = snapshot.judged(before);
    let bounds = Bound::find(&snapshot, gpus);
    let last = gpus.last().filter(|sample| sample.is_of(snapshot.mono_ns));
    for (row, bound) in snapshot.processes.iter_mut().zip(bounds) {
        row.bound = bound;
        row.gpus = last
            .zip(row.pid.filter(|_| !row.exited))
            .and_then(|(sample, pid)| sample.of(pid));
    }
    snapshot
}
