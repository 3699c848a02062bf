//! What only several snapshots show: how the number of QPs of each process developed lately, with which
//! errnos verbs fail now, and which links go down repeatedly.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::flaps::Flaps;
use super::latency::Latencies;
use super::memory;
use crate::findings::Limits;
use crate::snapshot::{Snapshot, VerbRow};

const S: u64 = 1_000_000_000;
/// Number of increases from which a process leaks QPs: one jump is a start, not a leak.
const STEPS: usize = 5;

/// PID, verb, errno.
type Failure = (u32, Arc<str>, u32);

/// Time over which registrations are looked at, ns: registering large memory takes seconds.
const REGISTRATIONS_NS: u64 = 20 * S;
/// Fewest regions that are both registered and deregistered within that time: fewer are a start or an end.
const AGAIN: u64 = 3;

/// What a process had registered up to one time.
#[derive(Clone, Copy, Debug)]
struct Registrations {
    at_ns: u64,
    made: u64,
    ended: u64,
    /// Time in the kernel for `made` and `ended` calls.
    ns: u64,
    bytes: u64,
}

impl Registrations {
    /// `row` and `ended` are the calls of reg_mr and dereg_mr.
    fn of(at_ns: u64, row: &VerbRow, ended: Option<&VerbRow>, bytes: u64) -> Self {
        let ns = |row: &VerbRow| {
            let times = row.latency.as_ref();
            times.map_or(0, |times| times.mean_ns.unwrap_or(0).saturating_mul(times.count))
        };
        Self {
            at_ns,
            made: row.calls.total,
            ended: ended.map_or(0, |row| row.calls.total),
            ns: ns(row) + ended.map_or(0, ns),
            bytes,
        }
    }
}

/// What a process registers again and again, per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Registered {
    pub(super) calls: f64,
    /// Time in the kernel as a share of that of one thread.
    pub(super) share: f64,
    pub(super) bytes: f64,
}

/// What grew from snapshot to snapshot.
#[derive(Clone, Debug, Default)]
pub(in crate::findings) struct Growth {
    /// Number of QPs by time, oldest first; only points at which it changed.
    by_process: BTreeMap<u64, VecDeque<(u64, u64)>>,
    /// What each process registered, by PID.
    registrations: BTreeMap<u32, VecDeque<Registrations>>,
    /// Failed calls: in total, and in the last interval.
    failures: BTreeMap<Failure, (u64, u64)>,
    /// The times at which links went down.
    pub(super) flaps: Flaps,
    /// What processes have registered.
    pub(super) memory: memory::Registered,
    /// How long work requests of each process took.
    pub(super) latencies: Latencies,
}

impl Growth {
    pub(in crate::findings) fn look(&mut self, snapshot: &Snapshot, limits: &Limits) {
        let now = snapshot.mono_ns;
        let oldest = now.saturating_sub(limits.leak_window_s * S);
        let mut seen = BTreeMap::new();
        for row in super::live(snapshot) {
            let mut points = self.by_process.remove(&row.uid).unwrap_or_default();
            if points.back().is_some_and(|(_, qps)| *qps > row.qps) {
                points.clear();
            }
            if points.back().is_none_or(|(_, qps)| *qps != row.qps) {
                points.push_back((now, row.qps));
            }
            // The last point before the window stays: growth within the window begins there.
            while points.len() > 1 && points[1].0 <= oldest {
                points.pop_front();
            }
            seen.insert(row.uid, points);
        }
        self.by_process = seen;
        self.registrations(snapshot);
        self.memory.look(snapshot, limits);
        self.flaps.look(snapshot, limits);
        self.latencies.look(snapshot);
        self.failures = snapshot
            .verbs
            .iter()
            .flat_map(|row| self.failures_of(row))
            .collect();
    }

    fn registrations(&mut self, snapshot: &Snapshot) {
        let oldest = snapshot.mono_ns.saturating_sub(REGISTRATIONS_NS);
        let mut before = std::mem::take(&mut self.registrations);
        let of = |verb: &'static str| snapshot.verbs.iter().filter(move |row| &*row.verb == verb);
        let ended: BTreeMap<u32, &VerbRow> = of("dereg_mr").map(|row| (row.pid, row)).collect();
        let processes = snapshot.processes.iter();
        let bytes: BTreeMap<u64, u64> = processes.map(|row| (row.uid, row.mr_registered)).collect();
        for row in of("reg_mr") {
            let mut points = before.remove(&row.pid).unwrap_or_default();
            let registered = row.process_uid.and_then(|uid| bytes.get(&uid));
            let now = Registrations::of(
                snapshot.mono_ns,
                row,
                ended.get(&row.pid).copied(),
                registered.copied().unwrap_or(0),
            );
            // The total fell: another process has the PID now.
            if points.back().is_some_and(|last| last.made > now.made) {
                points.clear();
            }
            points.push_back(now);
            while points.len() > 1 && points[1].at_ns <= oldest {
                points.pop_front();
            }
            self.registrations.insert(row.pid, points);
        }
    }

    /// What a process registered lately; `None` if that is too short a time or too few regions.
    pub(super) fn registered(&self, pid: u32) -> Option<Registered> {
        let points = self.registrations.get(&pid)?;
        let (first, last) = (points.front()?, points.back()?);
        let ns = last
            .at_ns
            .checked_sub(first.at_ns)
            .filter(|ns| *ns >= REGISTRATIONS_NS / 4)?;
        let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 * 1e9 / ns as f64;
        let again = (last.made - first.made).min(last.ended.saturating_sub(first.ended));
        (again >= AGAIN).then(|| Registered {
            calls: per_s(last.made, first.made),
            share: per_s(last.ns, first.ns) / 1e9,
            bytes: per_s(last.bytes, first.bytes),
        })
    }

    fn failures_of(&self, row: &VerbRow) -> impl Iterator<Item = (Failure, (u64, u64))> {
        row.errnos.iter().map(|(errno, total)| {
            let key = (row.pid, Arc::clone(&row.verb), *errno);
            let before = self.failures.get(&key).map_or(0, |(total, _)| *total);
            // The total fell: another process has the PID now.
            let more = total.checked_sub(before).unwrap_or(*total);
            (key, (*total, more))
        })
    }

    /// How many calls of a verb failed with this errno in the last interval; `None` if none did.
    pub(super) fn of_errno(&self, row: &VerbRow, errno: u32) -> Option<u64> {
        let (_, more) = self.failures.get(&(row.pid, Arc::clone(&row.verb), errno))?;
        (*more > 0).then_some(*more)
    }

    /// By how many QPs a process grew within the window, and since when, if it grew in several steps.
    pub(super) fn of(&self, process_uid: u64) -> Option<(u64, u64)> {
        let points = self.by_process.get(&process_uid)?;
        let ((since, first), (_, last)) = (points.front()?, points.back()?);
        (points.len() > STEPS).then(|| (last.saturating_sub(*first), *since))
    }
}
