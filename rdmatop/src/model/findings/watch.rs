//! Hysteresis: from symptoms of single snapshots to findings that are raised and cleared.

use std::collections::{BTreeMap, btree_map::Entry};

use super::rules::{self, Growth, Scene};
use super::{About, Finding, FindingId, Limits, Symptom};
use crate::model::snapshot::Snapshot;

const S: u64 = 1_000_000_000;
/// Findings at most. A host with more has one cause, and the first hundred name it.
const MAX: usize = 128;

/// A finding was raised or cleared.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// It holds from now on.
    Raised(Finding),
    /// It no longer holds.
    Cleared(Finding),
}

/// A symptom over time.
#[derive(Clone, Debug)]
struct Track {
    /// From when on it counts as lasting, ns.
    held_ns: u64,
    /// The last snapshot that showed it, ns.
    seen_ns: u64,
    raised: bool,
    finding: Finding,
}

/// Follows symptoms from snapshot to snapshot.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    limits: Limits,
    tracks: Tracks,
    growth: Growth,
    /// The last snapshot, ns.
    last_ns: Option<u64>,
    changes: Vec<Change>,
}

impl Watch {
    /// With limits of one's own.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Looks at the next snapshot, which is judged. Returns what is wrong, the worst first, then the oldest.
    pub fn look(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        self.growth.look(snapshot, &self.limits);
        let symptoms = rules::all(&Scene::new(snapshot, &self.limits, &self.growth));
        self.follow(snapshot, symptoms)
    }

    /// Takes what the rules name in the next snapshot.
    pub(super) fn follow(&mut self, snapshot: &Snapshot, symptoms: Vec<Symptom>) -> Vec<Finding> {
        let now = snapshot.mono_ns;
        let scene = Scene::new(snapshot, &self.limits, &self.growth);
        for symptom in symptoms {
            see(&mut self.tracks, self.last_ns, symptom, &scene);
        }
        self.last_ns = Some(now);
        let changes = &mut self.changes;
        self.tracks.retain(|(id, _), track| {
            let gone = now.saturating_sub(track.seen_ns);
            if track.seen_ns == now {
                if !track.raised && now.saturating_sub(track.held_ns) >= id.kind().raise_s * S {
                    track.raised = true;
                    changes.push(Change::Raised(track.finding.clone()));
                }
                return true;
            }
            let keep = track.raised && gone < id.kind().clear_s * S;
            if track.raised && !keep {
                changes.push(Change::Cleared(track.finding.clone()));
            }
            keep
        });
        // Nobody may take them for long: the newest say most.
        let surplus = self.changes.len().saturating_sub(4 * MAX);
        self.changes.drain(..surplus);
        let raised = self.tracks.values().filter(|track| track.raised);
        let mut findings: Vec<Finding> = raised.map(|track| track.finding.clone()).collect();
        findings.sort_by(|a, b| {
            let worst = b.severity.cmp(&a.severity);
            worst.then(a.since_mono_ns.cmp(&b.since_mono_ns))
        });
        findings.truncate(MAX);
        findings
    }

    /// What was raised and cleared since the last call.
    pub fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }
}

type Tracks = BTreeMap<(FindingId, About), Track>;

/// Notes that a snapshot shows a symptom.
fn see(tracks: &mut Tracks, last_ns: Option<u64>, symptom: Symptom, scene: &Scene<'_>) {
    let now = scene.snapshot.mono_ns;
    let full = tracks.len() >= 4 * MAX;
    match tracks.entry((symptom.id, symptom.about.clone())) {
        Entry::Occupied(mut entry) => {
            let track = entry.get_mut();
            let worse = symptom.severity > track.finding.severity;
            // Two symptoms of one snapshot: the worse one speaks, and the victims are those of both.
            let again = track.seen_ns == now;
            if again && !worse {
                add(&mut track.finding.victims, symptom.victims);
                return;
            }
            let before = again.then(|| std::mem::take(&mut track.finding.victims));
            let since = track.finding.since_mono_ns.min(symptom.since_ns);
            track.finding = finding(symptom, scene);
            track.finding.since_mono_ns = since;
            add(&mut track.finding.victims, before.unwrap_or_default());
            track.seen_ns = now;
        }
        Entry::Vacant(entry) if !full => {
            // The last snapshot did not show it, whatever this one says of the time before.
            let held_ns = last_ns.map_or(symptom.since_ns, |last| last.max(symptom.since_ns));
            entry.insert(Track {
                held_ns,
                seen_ns: now,
                raised: false,
                finding: finding(symptom, scene),
            });
        }
        Entry::Vacant(_) => {}
    }
}

fn add(victims: &mut Vec<u64>, more: Vec<u64>) {
    for uid in more {
        if !victims.contains(&uid) {
            victims.push(uid);
        }
    }
}

fn finding(symptom: Symptom, scene: &Scene<'_>) -> Finding {
    let process = symptom.about.process.and_then(|uid| scene.process(uid));
    let device = symptom.about.device.and_then(|uid| scene.device(uid));
    Finding {
        id: symptom.id,
        severity: symptom.severity,
        verdict: symptom.verdict,
        evidence: symptom.evidence,
        why: symptom.id.kind().why,
        next: symptom.next,
        fixed: symptom.id.kind().fixed,
        since_mono_ns: symptom.since_ns,
        short: symptom.short,
        pid: process.and_then(|row| row.pid),
        comm: process.map(|row| row.comm.clone()),
        device: device.map(|row| row.name.clone()),
        port: symptom.about.port,
        victims: symptom.victims,
        about: symptom.about,
    }
}
