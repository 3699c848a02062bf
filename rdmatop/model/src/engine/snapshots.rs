//! What is kept from one snapshot to the next: rows that are used again, what is judged and found, and who
//! has devices open whose ports move data that no queue pair explains.

use std::sync::{Arc, Weak};

use super::{history, paths::Paths, rows::Rows, shares::Shares};
use crate::{
    cause::{Cause, CauseId},
    findings::{FindingTracker, Limits},
    input::{GpuSample, OpenersSample},
    judgement::{self, Judgement},
    snapshot::{Facts, Snapshot},
};

/// A search of all open files is not made again before this, ns.
const EVERY: u64 = 10_000_000_000;

/// The state that one snapshot leaves to the next.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    pub(super) rows: Rows,
    /// Which bytes of ports are whose.
    pub(super) shares: Shares,
    /// Whom queue pairs send to that were connected unseen.
    pub(super) paths: Paths,
    /// How busy GPUs were in the seconds that traffic is averaged over.
    gpus: Vec<GpuSample>,
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

    /// Judges facts, with a note for what moves and is not explained, and looks for findings.
    pub(super) fn judge(&mut self, facts: Facts) -> Arc<Snapshot> {
        let before = self.last.upgrade();
        let (mut facts, judgement) = judged(facts, self.openers.as_ref(), &self.gpus, before.as_deref());
        let moves = !judgement.unexplained.is_empty();
        self.wanted_ns = moves.then_some(facts.mono_ns);
        if !moves {
            // Who had it open then is no candidate for what may move later.
            self.openers = None;
        }
        let findings = self.findings.look(&facts, &judgement).into();
        if let Some(note) = self.findings.left_out().note() {
            let all = facts.health.notes.iter().cloned().chain([note]);
            facts.health.notes = all.collect::<Vec<_>>().into();
        }
        facts.health.looked_ns = self.findings.looked_ns();
        let snapshot = Arc::new(Snapshot {
            facts,
            judgement,
            findings,
            still_looks: self.findings.still_looks(),
        });
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
        again.facts.health.notes = others.cloned().collect();
        (again.facts, again.judgement) = judged(again.facts, Some(sample), &self.gpus, Some(latest));
        Some(again)
    }
}

fn judged(
    mut facts: Facts,
    openers: Option<&Arc<OpenersSample>>,
    gpus: &[GpuSample],
    before: Option<&Snapshot>,
) -> (Facts, Judgement) {
    let unexplained = judgement::unexplained(&facts, openers);
    let own = judgement::notes_of(&unexplained);
    if !own.is_empty() {
        // What makes values of a device old, or the device go, is said before.
        let first = |note: &&Cause| matches!(note.id, CauseId::SlowDevice | CauseId::RemovalWaits);
        let (before, after): (Vec<_>, Vec<_>) = facts.health.notes.iter().partition(first);
        let all = before
            .into_iter()
            .cloned()
            .chain(own)
            .chain(after.into_iter().cloned());
        facts.health.notes = all.collect();
    }
    let before = before.map(|before| (&before.facts, &before.judgement));
    let judgement = Judgement::of(&facts, unexplained, before);
    let bounds = judgement.bounds(&facts, gpus);
    let last = gpus.last().filter(|sample| sample.is_of(facts.mono_ns));
    for (row, bound) in facts.processes.iter_mut().zip(bounds) {
        row.bound = bound;
        row.gpus = last
            .zip(row.pid.filter(|_| !row.exited))
            .and_then(|(sample, pid)| sample.of(pid));
        if last.is_none_or(|sample| sample.takes_addresses) {
            row.host_regions = None;
        }
    }
    (facts, judgement)
}
