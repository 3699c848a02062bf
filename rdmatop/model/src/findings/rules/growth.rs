//! What only several snapshots show: how the number of QPs of each process developed lately, with which
//! errnos verbs fail now, which links go down repeatedly, and when ports counted requests that failed.

use std::collections::{BTreeMap, VecDeque};

use super::Consumers;
use super::flaps::Flaps;
use super::latency::Latencies;
use super::requests::Failed;
use crate::facts::{Facts, VerbRow};
use crate::findings::{Limits, S, words};
use rdmatop_base::order::Gather as _;

/// What each process had of something within a window: times, and the number at each, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Growth(BTreeMap<u64, VecDeque<(u64, u64)>>);

impl Growth {
    /// `numbers`: that of each process that is there; one that is unknown leaves what was known. One point
    /// for each `part` of the window is enough: it takes the newest number.
    fn look(
        &mut self,
        now: u64,
        [window, part]: [u64; 2],
        numbers: impl Iterator<Item = (u64, Option<u64>)>,
    ) {
        let mut seen = BTreeMap::new();
        for (uid, number) in numbers {
            let mut points = self.0.remove(&uid).unwrap_or_default();
            if let Some(number) = number {
                if points.back().is_some_and(|(_, before)| *before > number) {
                    points.clear();
                }
                let is_next = points.len() > 1;
                match points.back_mut() {
                    Some((_, before)) if *before == number => {}
                    Some((then, before)) if is_next && now.saturating_sub(*then) < part => *before = number,
                    _ => points.push_back((now, number)),
                }
                // The last point before the window stays: growth within the window begins there.
                while points.len() > 1 && points[1].0 <= now.saturating_sub(window) {
                    points.pop_front();
                }
            }
            seen.insert(uid, points);
        }
        self.0 = seen;
    }

    /// By how much it grew within the window, and since when, if it grew in so many steps: one jump is a
    /// start.
    pub(super) fn in_steps(&self, steps: usize, process_uid: u64) -> Option<(u64, u64)> {
        let points = self.0.get(&process_uid)?;
        let ((since, first), (_, last)) = (points.front()?, points.back()?);
        (points.len() > steps).then(|| (last - first, *since))
    }
}

/// PID, number of the verb, errno. A driver's own verb has its name only while the devices of the process are
/// known: by name, all its failures would be new whenever the name changes.
type Failure = (u32, u32, u32);

/// ENOMEM and ENOSPC, with which a driver refuses what it has no room for.
const SHORT: [u32; 2] = [12, 28];
/// For how long such a failure matters, ns.
const SHORT_NS: u64 = 60 * S;

/// Time over which calls are looked at, ns: one registration of large memory takes seconds.
const CALLS_NS: u64 = 20 * S;
/// Objects that are made and taken back again within that time: fewer are a start or an end.
const AGAIN: u64 = 3;

/// The verbs for MRs, of which a process should register each once: the first makes one, the last takes it
/// back.
pub(super) const REGIONS: &[&str] = &["reg_mr", "dereg_mr"];
/// The same of QPs, which a connection needs at each end, with what is called for each of them between.
pub(super) const CONNECTIONS: &[&str] = &["create_qp", "modify_qp", "destroy_qp"];

/// Totals of a process at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Calls {
    at_ns: u64,
    made: u64,
    ended: u64,
    /// Time in the kernel for all of its calls; `None`: it is not measured of one of the verbs.
    ns: Option<u64>,
    /// Some calls were not counted.
    partial: bool,
    bytes: u64,
}

impl Calls {
    fn add(&mut self, row: &VerbRow) {
        let times = row.latency.as_ref();
        let ns = times.map(|times| times.mean_ns.unwrap_or(0).saturating_mul(times.count));
        self.ns = self.ns.zip(ns).map(|(all, one)| all.saturating_add(one));
        self.partial |= row.calls.partial;
    }
}

/// What a process makes and takes back again and again, per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecentCalls {
    pub(super) calls: f64,
    /// Time in the kernel as a share of that of one thread; `None`: it is not measured.
    pub(super) share: Option<f64>,
    /// `at least ` where some calls were not counted.
    floor: &'static str,
    pub(super) bytes: f64,
}

impl RecentCalls {
    /// Its share of time in words, where it is known.
    pub(super) fn time(&self) -> Option<String> {
        let floor = self.floor;
        let share = words::percent(self.share?);
        Some(format!("{floor}{share} of a thread's time"))
    }

    /// Calls per second in words.
    pub(super) fn rate(&self) -> String {
        format!("{}{}", self.floor, words::number(self.calls))
    }

    /// Seconds in the kernel for each object, where they are known and no call is missing.
    pub(super) fn each(&self) -> Option<f64> {
        let share = self.share.filter(|_| self.floor.is_empty())?;
        Some(share / self.calls)
    }
}

/// What grew from snapshot to snapshot.
#[derive(Clone, Debug, Default)]
pub(in crate::findings) struct RuleHistory {
    /// QPs of each process.
    pub(super) qps: Growth,
    /// Bytes that each process had registered, in eight parts of the window.
    pub(super) memory: Growth,
    /// What each process made and took back, by the verb that makes it and by PID.
    made: BTreeMap<(&'static str, u32), VecDeque<Calls>>,
    /// Failed calls: in all, and in the last interval.
    failures: BTreeMap<Failure, (u64, u64)>,
    /// When calls of a verb by a process last failed for lack of something.
    short: BTreeMap<(u32, u32), u64>,
    /// The times at which links went down.
    pub(super) flaps: Flaps,
    /// How long work requests of each process took.
    pub(super) latencies: Latencies,
    /// What ports counted of requests that failed.
    pub(super) failed: Failed,
    /// Modules of the kernel with connected QPs in the last snapshot.
    pub(super) consumers: Consumers,
}

impl RuleHistory {
    pub(in crate::findings) fn look(&mut self, facts: &Facts, limits: &Limits) {
        let now = facts.mono_ns;
        let live = || super::live(facts);
        let qps = live().map(|row| (row.uid, Some(row.qps)));
        self.qps.look(now, [limits.leak_window_s * S, 0], qps);
        let memory = live().map(|row| (row.uid, row.mr_bytes));
        let window = limits.mr_growth_window_s * S;
        self.memory.look(now, [window, window / 8], memory);
        let mut before = std::mem::take(&mut self.made);
        self.makes(REGIONS, facts, &mut before);
        self.makes(CONNECTIONS, facts, &mut before);
        self.consumers = super::consumers(facts);
        self.flaps.look(facts, limits, &self.consumers);
        self.latencies.look(facts);
        self.failed.look(facts);
        self.failures = facts.verbs.iter().flat_map(|row| self.failures_of(row)).collect();
        self.short.retain(|_, at| now.saturating_sub(*at) < SHORT_NS);
        let short = self.failures.iter();
        let short = short.filter(|((_, _, errno), (_, more))| SHORT.contains(errno) && *more > 0);
        self.short
            .extend(short.map(|((pid, verb, _), _)| ((*pid, *verb), now)));
    }

    /// Whether calls of a verb failed for lack of something in the last minute.
    pub(super) fn ran_short(&self, row: &VerbRow) -> bool {
        self.short.contains_key(&(row.pid, row.number))
    }

    fn makes(
        &mut self,
        verbs: &[&'static str],
        facts: &Facts,
        before: &mut BTreeMap<(&'static str, u32), VecDeque<Calls>>,
    ) {
        let oldest = facts.mono_ns.saturating_sub(CALLS_NS);
        let of = |verb: &'static str| facts.verbs.iter().filter(move |row| &*row.verb == verb);
        let (make, rest) = (verbs[0], &verbs[1..]);
        let mut others: BTreeMap<u32, Vec<&VerbRow>> = BTreeMap::new();
        for row in rest.iter().flat_map(|verb| of(verb)) {
            others.entry(row.pid).or_default().push(row);
        }
        let processes = facts.processes.iter();
        let bytes: BTreeMap<u64, u64> = processes.map(|row| (row.uid, row.mr_registered)).gather();
        for row in of(make) {
            let key = (make, row.pid);
            let mut points = before.remove(&key).unwrap_or_default();
            let registered = row.process_uid.and_then(|uid| bytes.get(&uid));
            let mut now = Calls {
                at_ns: facts.mono_ns,
                made: row.calls.total,
                ns: Some(0),
                bytes: registered.copied().unwrap_or(0),
                ..Calls::default()
            };
            now.add(row);
            for other in others.get(&row.pid).into_iter().flatten() {
                now.add(other);
                if rest.last() == Some(&&*other.verb) {
                    now.ended = other.calls.total;
                }
            }
            // Fewer than before: another process has the PID now.
            if points.back().is_some_and(|last| last.made > now.made) {
                points.clear();
            }
            points.push_back(now);
            while points.len() > 1 && points[1].at_ns <= oldest {
                points.pop_front();
            }
            self.made.insert(key, points);
        }
    }

    /// What a process made and took back lately; `None` where that is too short a time or too little to say.
    pub(super) fn lately(&self, verbs: &[&'static str], pid: u32) -> Option<RecentCalls> {
        let points = self.made.get(&(verbs[0], pid))?;
        let (first, last) = (points.front()?, points.back()?);
        let ns = last
            .at_ns
            .checked_sub(first.at_ns)
            .filter(|ns| *ns >= CALLS_NS / 4)?;
        let per_s = |now: u64, then: u64| now.saturating_sub(then) as f64 * 1e9 / ns as f64;
        let again = (last.made - first.made).min(last.ended.saturating_sub(first.ended));
        (again >= AGAIN).then(|| RecentCalls {
            calls: per_s(last.made, first.made),
            share: last.ns.zip(first.ns).map(|(now, then)| per_s(now, then) / 1e9),
            floor: if last.partial { "at least " } else { "" },
            bytes: per_s(last.bytes, first.bytes),
        })
    }

    fn failures_of(&self, row: &VerbRow) -> impl Iterator<Item = (Failure, (u64, u64))> {
        row.errnos.iter().map(|(errno, total)| {
            let key = (row.pid, row.number, *errno);
            let before = self.failures.get(&key).map_or(0, |(total, _)| *total);
            // The total fell: another process has the PID now.
            let more = total.checked_sub(before).unwrap_or(*total);
            (key, (*total, more))
        })
    }

    /// How many calls of a verb failed with this errno in the last interval; `None` if none did.
    pub(super) fn of_errno(&self, row: &VerbRow, errno: u32) -> Option<u64> {
        let (_, more) = self.failures.get(&(row.pid, row.number, errno))?;
        (*more > 0).then_some(*more)
    }
}
