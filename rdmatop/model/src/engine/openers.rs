//! Processes that have devices open, for ports that move data which no queue pair explains.

use std::sync::Arc;

use super::Engine;
use crate::{
    cause::{Cause, CauseId},
    input::{GpuSample, OpenersSample},
    judgement::{AllUnexplained, Bound},
    snapshot::Snapshot,
};

/// A search of all open files is not made again before this, ns.
const EVERY: u64 = 10_000_000_000;

/// Who has what open, and whether that is of interest.
#[derive(Debug, Default)]
pub(super) struct Holders {
    sample: Option<Arc<OpenersSample>>,
    /// When the last snapshot was made, if it had a port whose traffic is not explained.
    wanted_ns: Option<u64>,
}

impl Engine {
    pub(super) fn openers(&mut self, sample: OpenersSample) {
        self.holders.sample = Some(Arc::new(sample));
    }

    /// Whether a search is wanted.
    pub fn needs_openers(&self) -> bool {
        let last = self.holders.sample.as_ref();
        let is_due = |now_ns: u64| last.is_none_or(|last| now_ns.saturating_sub(last.mono_ns) >= EVERY);
        self.holders.wanted_ns.is_some_and(is_due)
    }

    /// Judges a snapshot, with a note for what moves and is not explained.
    pub(super) fn judge(&mut self, snapshot: Snapshot, before: Option<&Snapshot>) -> Snapshot {
        let snapshot = judged(snapshot, self.holders.sample.as_ref(), &self.gpus, before);
        let moves = !snapshot.unexplained.is_empty();
        self.holders.wanted_ns = moves.then_some(snapshot.mono_ns);
        if !moves {
            // Who had it open then is no candidate for what may move later.
            self.holders.sample = None;
        }
        snapshot
    }

    /// The last snapshot, which has all rows, again with the candidates that were found since; `None` where
    /// none were looked for.
    pub fn with_openers(&self, latest: &Snapshot) -> Option<Snapshot> {
        let sample = self.holders.sample.as_ref()?;
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
