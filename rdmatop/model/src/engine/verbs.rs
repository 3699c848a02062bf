//! Verb calls by process, and which failures are no faults.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use foldhash::fast::FixedState;
use rdmatop_base::turns::in_turn;
use rdmatop_common::{
    counters::{VerbKey, VerbStats},
    event::VerbRecord,
    verb,
};
use zerocopy::FromZeros as _;

use super::{
    driver_verbs,
    hash::{NumberMap, NumberSet},
    losses::Losses,
    machine::Machine,
    meter::{Meter, Width},
    processes::Processes,
    qp::Owner,
    records::{attribute, call_ns, event_of},
    tally,
};
use crate::{
    event::{Event, EventKind},
    input::{Now, VerbsSample},
    snapshot::{VerbRow, registers_memory},
    value::Source,
};

const ENOMEM: u32 = 12;

/// The verb's name, or what is known of its number.
fn name_of(number: u32) -> Arc<str> {
    match verb::name(number) {
        Some(name) => name.into(),
        None if number & verb::WRITE != 0 => format!("write_{}", number & 0xff).into(),
        None if number & verb::CM != 0 => format!("cm_{}", number & 0xff).into(),
        None => format!("ioctl_{}_{}", number >> 16, number & 0xffff).into(),
    }
}

/// Calls of one verb by one process.
#[derive(Debug)]
struct Calls {
    process: u64,
    /// Only the number of calls is known.
    only: bool,
    made: Meter,
    errors: Meter,
    raw: VerbStats,
    /// The counts of an earlier holder of the PID.
    before: VerbStats,
    errnos: BTreeMap<u32, Errno>,
}

impl Calls {
    /// Calls of the process itself, and how many of them failed.
    fn own(&self) -> (u64, u64) {
        let (raw, before) = (&self.raw, &self.before);
        (
            raw.calls.saturating_sub(before.calls),
            raw.errors.saturating_sub(before.errors),
        )
    }

    /// Takes over what `raw` has counted by `at_ns`.
    fn read(&mut self, at_ns: u64) {
        let (made, errors) = self.own();
        self.made.read(made, at_ns, Width::Bits64);
        self.errors.read(errors, at_ns, Width::Bits64);
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Errno {
    raw: u64,
    before: u64,
}

/// All calls.
#[derive(Debug, Default)]
pub(super) struct Verbs {
    /// Also of processes that are forgotten, while the kernel side has the entry: it counts on for the next
    /// process with the PID.
    rows: BTreeMap<VerbKey, Calls>,
    /// Entries that the kernel side has.
    held: NumberSet<VerbKey>,
    last_ns: Option<u64>,
    /// Processes whose registrations of memory failed for want of it, and of which is not asked yet how much
    /// they may lock.
    short_of_memory: BTreeSet<u32>,
}

/// Processes that one round asks about.
const ASKED: usize = 64;

impl Verbs {
    /// Folds the verb counters in.
    pub(super) fn apply(&mut self, sample: &VerbsSample, processes: &mut Processes) {
        if self.last_ns.is_some_and(|last| sample.mono_ns <= last) {
            return;
        }
        let before_ns = self.last_ns.replace(sample.mono_ns);
        if !sample.partial {
            self.held = NumberSet::with_capacity_and_hasher(sample.verbs.len(), FixedState::default());
        }
        for (pid, verb) in &sample.gone {
            let key = VerbKey {
                pid: *pid,
                verb: *verb,
            };
            self.held.remove(&key);
        }
        let mut calls_only = NumberSet::default();
        let mut faults: NumberMap<u64, u64> = NumberMap::default();
        let only = sample.calls_only.iter().map(|(key, calls)| {
            let stats = VerbStats {
                calls: *calls,
                ..VerbStats::new_zeroed()
            };
            (*key, stats, true)
        });
        let all = sample.verbs.iter().map(|(key, stats)| (*key, *stats, false));
        for (key, stats, only) in all.chain(only) {
            if key.pid == 0 {
                continue;
            }
            let (key, stats) = (&key, &stats);
            if only {
                calls_only.insert(*key);
            } else {
                self.held.insert(*key);
            }
            let idle = self.rows.get(key).filter(|row| row.raw.calls == stats.calls);
            let process = match idle {
                // Nothing new: no sign of life of the process, nor of another with its PID.
                Some(row) => row.process,
                None => processes.caller(key.pid, before_ns, sample.mono_ns),
            };
            let at_ns = sample.calls_only_ns.filter(|_| only).unwrap_or(sample.mono_ns);
            let delta = self.calls(*key, stats, process, at_ns, before_ns);
            if let Some(row) = self.rows.get_mut(key) {
                // Totals continue when the data path changes: what is unknown for some calls is unknown for
                // the sum.
                row.only |= only;
            }
            *faults.entry(process).or_default() += delta;
        }
        for (key, count) in &sample.errors {
            let verb = VerbKey {
                pid: key.pid,
                verb: key.verb,
            };
            if let Some(calls) = self.rows.get_mut(&verb) {
                let errno = calls.errnos.entry(key.errno).or_default();
                let grown = count.checked_sub(errno.raw).unwrap_or(*count);
                if *count < errno.raw {
                    errno.before = 0;
                }
                errno.raw = *count;
                if grown > 0 && key.errno == ENOMEM && verb::name(key.verb).is_some_and(registers_memory) {
                    self.short_of_memory.insert(key.pid);
                }
                if verb::is_probe(key.verb, key.errno)
                    && let Some(faults) = faults.get_mut(&calls.process)
                {
                    *faults = faults.saturating_sub(grown);
                }
            }
        }
        for calls in self.rows.values_mut().filter(|calls| !calls.only) {
            // Of what is left out it is known that it stands still. The others were read at this very time
            // already.
            faults.entry(calls.process).or_default();
            calls.made.add(0, sample.mono_ns);
            calls.errors.add(0, sample.mono_ns);
        }
        for (process, faults) in faults {
            if let Some(process) = processes.get_mut(process) {
                let meter = process
                    .faults
                    .get_or_insert_with(|| Meter::new(0, sample.mono_ns));
                meter.add(faults, sample.mono_ns);
            }
        }
        let held = &self.held;
        self.rows.retain(|key, calls| {
            processes.get(calls.process).is_some() || held.contains(key) || calls_only.contains(key)
        });
    }

    /// Folds one entry in; returns the errors that are new.
    fn calls(
        &mut self,
        key: VerbKey,
        stats: &VerbStats,
        process: u64,
        at_ns: u64,
        before_ns: Option<u64>,
    ) -> u64 {
        if let Some(row) = self.rows.get_mut(&key).filter(|row| row.process == process) {
            let delta = stats.errors.checked_sub(row.raw.errors).unwrap_or(stats.errors);
            if stats.calls < row.raw.calls {
                row.before = VerbStats::new_zeroed();
            }
            row.raw = *stats;
            row.read(at_ns);
            return delta;
        }
        // The map knows only PIDs: what the last holder did is not the new one's.
        let last = self
            .rows
            .remove(&key)
            .filter(|last| last.raw.calls <= stats.calls);
        let mut row = Calls {
            process,
            only: false,
            made: Meter::default(),
            errors: Meter::default(),
            raw: *stats,
            before: last.as_ref().map_or_else(VerbStats::new_zeroed, |last| last.raw),
            errnos: last.map(|last| last.errnos).unwrap_or_default(),
        };
        for errno in row.errnos.values_mut() {
            errno.before = errno.raw;
        }
        let (made, errors) = row.own();
        (row.made, row.errors) = match before_ns {
            // It has made none of them before the last sweep: all belong to this interval.
            Some(last_ns) => (Meter::new(0, last_ns), Meter::new(0, last_ns)),
            None => (Meter::new(made, at_ns), Meter::new(errors, at_ns)),
        };
        // A meter takes no second reading of one time.
        row.read(at_ns);
        self.rows.insert(key, row);
        errors
    }

    /// The event of a call that failed; `None` where that is no fault.
    pub(super) fn failure(record: &VerbRecord, machine: &mut Machine, now: Now) -> Option<Event> {
        let prefix = &record.prefix;
        if verb::is_probe(record.verb, prefix.rc.unsigned_abs()) {
            return None;
        }
        let mut event = event_of(EventKind::VerbError, prefix, now);
        let owner = Owner {
            comm: Some(machine.names.of(&prefix.comm)).filter(|comm| !comm.is_empty()),
            ..Owner::user(prefix.pid, 0)
        };
        let owner = machine.processes.of(owner, prefix.ts_ns);
        attribute(&mut event, owner, prefix);
        let device = machine.device_in(prefix, call_ns(prefix));
        let driver = device.as_ref().and_then(|(uid, _)| machine.devices.get(*uid));
        let own = driver.and_then(|driver| driver_verbs::name(driver.provider, record.verb));
        event.verb = Some(own.map_or_else(|| name_of(record.verb), Into::into));
        event.device = device.map(|(_, name)| name);
        event.rc = Some(prefix.rc);
        Some(event)
    }

    /// Whether the kernel side has an entry of a process.
    #[cfg(test)]
    pub(super) fn holds(&self, pid: u32) -> bool {
        self.held.iter().any(|key| key.pid == pid)
    }

    /// Two rows turn out to be one process.
    pub(super) fn rename(&mut self, from: u64, to: u64) {
        let of_it = self.rows.values_mut().filter(|calls| calls.process == from);
        of_it.for_each(|calls| calls.process = to);
    }

    /// Whether failures are counted at all.
    pub(super) fn are_counted(&self, losses: &Losses) -> bool {
        self.last_ns.is_some() && !losses.verbs_incomplete()
    }

    pub(super) fn rows(&self, machine: &Machine, now_ns: u64) -> Vec<VerbRow> {
        let mut rows = Vec::with_capacity(self.rows.len());
        let each = self.rows.iter().filter(|(key, _)| key.verb != verb::DMABUF);
        for (key, calls) in each {
            let Some(process) = machine.processes.get(calls.process) else {
                continue;
            };
            let errnos: Vec<(u32, u64)> = calls
                .errnos
                .iter()
                .map(|(errno, count)| (*errno, count.raw.saturating_sub(count.before)))
                .filter(|(_, count)| *count > 0)
                .collect();
            // That verb is a wait: its duration says nothing about the kernel.
            let timed = !calls.only && key.verb != verb::CM_GET_EVENT;
            let mut buckets = calls.raw.hist;
            for (bucket, before) in buckets.iter_mut().zip(&calls.before.hist) {
                *bucket = bucket.saturating_sub(*before);
            }
            rows.push(VerbRow {
                process_uid: Some(calls.process),
                pid: key.pid,
                comm: Some(Arc::clone(&process.comm)),
                verb: match machine.driver_verb(*key, calls.process) {
                    Some(name) => name.into(),
                    None => name_of(key.verb),
                },
                number: key.verb,
                calls: calls.made.counter(Source::Ebpf, now_ns),
                errors: (!calls.only).then(|| calls.errors.counter(Source::Ebpf, now_ns)),
                probe: !errnos.is_empty() && errnos.iter().all(|(errno, _)| verb::is_probe(key.verb, *errno)),
                errnos,
                latency: timed.then(|| {
                    tally::latency(
                        &buckets,
                        calls.raw.ns.saturating_sub(calls.before.ns),
                        calls.raw.max_ns,
                        0,
                    )
                }),
            });
        }
        rows
    }

    /// The processes of which calls of this verb have succeeded, by their uids, and how many calls; of
    /// `all`: also those that failed.
    pub(super) fn callers_of(&self, verb: u32, all: bool, processes: &Processes) -> BTreeMap<u64, u64> {
        let mut callers = BTreeMap::new();
        let is_there = |calls: &Calls| processes.get(calls.process).is_some();
        let rows = self
            .rows
            .iter()
            .filter(|(key, calls)| key.verb == verb && is_there(calls));
        for (_, calls) in rows {
            let (made, errors) = calls.own();
            let errors = if all { 0 } else { errors };
            if made > errors {
                *callers.entry(calls.process).or_default() += made - errors;
            }
        }
        callers
    }

    /// Whether calls are counted at all.
    pub(super) fn are_read(&self) -> bool {
        self.last_ns.is_some()
    }

    /// Processes of which it is wanted how much memory they may lock, [`ASKED`] at most. The users take
    /// turns, and the rest are in later answers.
    pub(super) fn take_short_of_memory(&mut self, processes: &Processes) -> Vec<u32> {
        let user = |pid: &u32| {
            let row = processes.holder(*pid).and_then(|uid| processes.get(uid));
            row.and_then(|row| row.facts.user.clone())
        };
        let wanted = in_turn(self.short_of_memory.iter().copied(), ASKED, user);
        self.short_of_memory.retain(|pid| !wanted.contains(pid));
        wanted
    }
}
