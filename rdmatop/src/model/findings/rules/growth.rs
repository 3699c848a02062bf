//! What only several snapshots show: how the number of QPs of each process developed lately, and with which errno verbs fail
//! now, and which links go down again and again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::flaps::Flaps;
use super::latency::Latencies;
use crate::model::findings::Limits;
use crate::model::snapshot::{Snapshot, VerbRow};

const S: u64 = 1_000_000_000;
/// Looks in which a process has to grow: one jump is a start, not a leak.
const STEPS: usize = 5;

/// A process id, a verb, and an errno.
type Failure = (u32, Arc<str>, u32);

/// What grew from snapshot to snapshot.
#[derive(Clone, Debug, Default)]
pub(in crate::model::findings) struct Growth {
    /// Numbers of QPs by time, oldest first; only those that changed.
    by_process: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// Failed calls: in all, and in the last interval.
    failures: BTreeMap<Failure, (u64, u64)>,
    /// When links went down.
    pub(super) flaps: Flaps,
    /// How long work requests of each process took.
    pub(super) latencies: Latencies,
}

impl Growth {
    pub(in crate::model::findings) fn look(&mut self, snapshot: &Snapshot, limits: &Limits) {
        let now = snapshot.mono_ns;
        let oldest = now.saturating_sub(limits.leak_window_s * S);
        let mut seen = BTreeMap::new();
        for row in snapshot.processes.iter().filter(|row| !row.kernel && !row.exited) {
            let mut points = self.by_process.remove(&row.uid).unwrap_or_default();
            if points.back().is_some_and(|(_, qps)| *qps > row.qps) {
                points.clear();
            }
            if points.back().is_none_or(|(_, qps)| *qps != row.qps) {
                points.push_back((now, row.qps));
            }
            // The point before the window is where growth within it begins.
            while points.len() > 1 && points[1].0 <= oldest {
                points.pop_front();
            }
            seen.insert(row.uid, points);
        }
        self.by_process = seen;
        self.flaps.look(snapshot, limits);
        self.latencies.look(snapshot);
        self.failures = snapshot
            .verbs
            .iter()
            .flat_map(|row| self.failures_of(row))
            .collect();
    }

    fn failures_of(&self, row: &VerbRow) -> impl Iterator<Item = (Failure, (u64, u64))> {
        row.errnos.iter().map(|(errno, total)| {
            let key = (row.pid, Arc::clone(&row.verb), *errno);
            let before = self.failures.get(&key).map_or(0, |(total, _)| *total);
            // Fewer than before: another process has the PID now.
            let more = total.checked_sub(before).unwrap_or(*total);
            (key, (*total, more))
        })
    }

    /// How many calls of a verb failed with this errno in the last interval; `None` for none.
    pub(super) fn of_errno(&self, row: &VerbRow, errno: u32) -> Option<u64> {
        let (_, more) = self.failures.get(&(row.pid, Arc::clone(&row.verb), errno))?;
        (*more > 0).then_some(*more)
    }

    /// By how many QPs a process grew in the window, and since when, if it grew in several steps and the last one was
    /// within the window too.
    pub(super) fn of(&self, process_uid: u64) -> Option<(u64, u64)> {
        let points = self.by_process.get(&process_uid)?;
        let ((since, first), (_, last)) = (points.front()?, points.back()?);
        (points.len() > STEPS).then(|| (last.saturating_sub(*first), *since))
    }
}
