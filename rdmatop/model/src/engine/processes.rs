//! Processes and kernel consumers. A process is (pid, start time). Records and slots of QPs have both; a pid
//! without a start time stands for its present holder, until /proc or a record has the start time.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    flow::Flow,
    hash::NumberMap,
    history::{Average, Series},
    memory::{Memory, Region},
    meter::Meter,
    names,
    qp::Owner,
    reused::{self, Reused},
    tcp::Tcp,
};
use crate::{
    input::{LimitReached, LockedMemory, MappingsSample, ProcessFacts},
    snapshot::{Mappings, ProcessRow},
};
use rdmatop_base::order::Gather as _;

/// Devices kept of those on which a process has no QP any more.
const DEVICES_LEFT: usize = 64;
/// After so long the mappings of a process that registers memory are counted again, ns.
const RECOUNT_NS: u64 = 300_000_000_000;
/// Nanoseconds of a clock tick as /proc counts them (`USER_HZ`).
const TICK_NS: u64 = 10_000_000;

/// A process or a kernel consumer.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) uid: u64,
    pub(super) pid: Option<u32>,
    pub(super) kernel: bool,
    /// As /proc has it, or as follows from `start_ns`.
    start_ticks: Option<u64>,
    /// The start of the process as the kernel side reports it.
    pub(super) start_ns: Option<u64>,
    pub(super) ended_ns: Option<u64>,
    /// Since when it has done nothing and owned no QP, where only records show it.
    idle_ns: Option<u64>,
    pub(super) comm: Arc<str>,
    /// `comm` is a name that was read; otherwise it is made of the pid.
    named: bool,
    /// When it started, or earlier; 0: not known.
    pub(super) born_ns: u64,
    /// When /proc was last read for this process; 0: never.
    pub(super) read_ns: u64,
    /// What /proc said, as views see it: the rest of the row is elsewhere.
    pub(super) facts: ProcessRow,
    /// Living QPs by generation of the device.
    pub(super) qps: BTreeMap<u64, u64>,
    /// Devices on which it had QPs that are gone.
    pub(super) left: BTreeSet<u64>,
    pub(super) memory: Memory,
    pub(super) flow: Option<Box<Flow>>,
    /// QPs of it that are gone posted what nothing counted, or may have: its sum is a lower bound.
    pub(super) lacks: bool,
    pub(super) faults: Option<Meter>,
    pub(super) tcp: Option<Box<Tcp>>,
    /// The limit of its RDMA cgroup that is reached.
    pub(super) limited: Option<Arc<LimitReached>>,
    /// How much memory it may lock, when that was looked up.
    pub(super) locked: Option<Arc<LockedMemory>>,
    pub(super) mappings: Option<Mappings>,
    /// When they were asked for again.
    recount_ns: u64,
    pub(super) series: Series,
    pub(super) average: Average,
}

/// The processes there are, and for some time those there were.
#[derive(Debug, Default)]
pub(super) struct Processes {
    all: BTreeMap<u64, Process>,
    /// The present holder of each pid.
    by_pid: NumberMap<u32, u64>,
    /// By pid and start, those whose start the kernel side reported.
    by_start: NumberMap<(u32, u64), u64>,
    by_kernel_name: HashMap<Arc<str>, u64>,
    wanted: Vec<u32>,
    /// Memory regions by the address of their `struct ib_mr`, which no two of any device have at one time.
    regions: Reused<u64, Region>,
    /// Processes whose name changed since the last snapshot.
    pub(super) renamed: BTreeSet<u64>,
    last_uid: u64,
}

impl Processes {
    pub(super) fn get(&self, uid: u64) -> Option<&Process> {
        self.all.get(&uid)
    }

    pub(super) fn get_mut(&mut self, uid: u64) -> Option<&mut Process> {
        self.all.get_mut(&uid)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Process> {
        self.all.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        self.all.values_mut()
    }

    pub(super) fn holder(&self, pid: u32) -> Option<u64> {
        self.by_pid.get(&pid).copied()
    }

    /// The process that calls of a pid swept at `ts_ns` belong to. A sweep is the first one after the
    /// process's end when the one before it was earlier: then it still has what the process did last.
    pub(super) fn caller(&mut self, pid: u32, before_ns: Option<u64>, ts_ns: u64) -> u64 {
        let last_words = self.holder(pid).filter(|uid| {
            let ended = self.all.get(uid).and_then(|process| process.ended_ns);
            ended.is_some_and(|ended| before_ns.is_none_or(|before| ended >= before))
        });
        last_words.unwrap_or_else(|| self.user(pid, None, ts_ns))
    }

    /// The process that a user's object of `ts_ns` belongs to: the holder of the pid, unless it had ended by
    /// then.
    pub(super) fn user(&mut self, pid: u32, comm: Option<&Arc<str>>, ts_ns: u64) -> u64 {
        let holder = self.holder(pid).and_then(|uid| self.all.get_mut(&uid));
        let there = holder.filter(|process| process.ended_ns.is_none_or(|ended| ts_ns <= ended));
        let Some(process) = there else {
            return self.add_user(pid, comm);
        };
        process.idle_ns = None;
        let uid = process.uid;
        if let Some(comm) = comm {
            self.name(uid, comm);
        }
        uid
    }

    /// A record has the name of a process of which only the PID was known.
    pub(super) fn name(&mut self, uid: u64, comm: &Arc<str>) {
        self.rename(uid, comm, |process| !process.named);
    }

    /// The process's first thread was named `comm` at `ts_ns`: that is the process's name and replaces the
    /// one from /proc. A shell that forks a program is read under the shell's name until the exec, and a
    /// short program is never read again.
    pub(super) fn called(&mut self, uid: u64, comm: &Arc<str>, ts_ns: u64) {
        self.rename(uid, comm, |process| process.read_ns < ts_ns);
    }

    fn rename(&mut self, uid: u64, comm: &Arc<str>, may: impl FnOnce(&Process) -> bool) {
        let process = self.all.get_mut(&uid);
        if let Some(process) = process.filter(|process| process.comm != *comm && may(process)) {
            process.comm = Arc::clone(comm);
            process.named = true;
            self.renamed.insert(uid);
        }
    }

    /// The process of this pid that was started at `start_ns`, as the kernel side reports for `ts_ns`.
    fn started(&mut self, pid: u32, start_ns: u64, comm: Option<&Arc<str>>, ts_ns: u64) -> u64 {
        let uid = match self.by_start.get(&(pid, start_ns)) {
            Some(uid) => *uid,
            None => self.start(pid, (start_ns / TICK_NS, Some(start_ns)), comm, ts_ns),
        };
        if let Some(process) = self.all.get_mut(&uid) {
            process.idle_ns = None;
        }
        if let Some(comm) = comm {
            self.name(uid, comm);
        }
        uid
    }

    /// A start time that was not known before, in ticks and as the kernel side reports it: it belongs to the
    /// PID's holder if that one's start is not known, else to another process.
    fn start(
        &mut self,
        pid: u32,
        (ticks, start_ns): (u64, Option<u64>),
        comm: Option<&Arc<str>>,
        ts_ns: u64,
    ) -> u64 {
        let holder = self.holder(pid);
        let process = holder.and_then(|uid| self.all.get(&uid));
        let is_it = process.is_some_and(|process| {
            process.start_ns.is_none()
                && match process.start_ticks {
                    Some(known) => known == ticks,
                    None => process.ended_ns.is_none_or(|ended| ts_ns <= ended),
                }
        });
        let is_newest = process.is_none_or(|process| match process.start_ns.zip(start_ns) {
            Some((known, start_ns)) => known < start_ns,
            None => process.start_ticks.is_none_or(|known| known < ticks),
        });
        let uid = match holder {
            Some(holder) if is_it => holder,
            // The earlier holder of the number has ended.
            holder if is_newest => {
                if let Some(holder) = holder {
                    self.end(holder, ts_ns);
                }
                self.add_user(pid, comm)
            }
            _ => {
                let uid = self.add_named(pid, comm);
                self.end(uid, ts_ns);
                uid
            }
        };
        if let Some(process) = self.all.get_mut(&uid) {
            (process.start_ticks, process.start_ns) = (Some(ticks), start_ns);
        }
        if let Some(start_ns) = start_ns {
            self.by_start.insert((pid, start_ns), uid);
        }
        uid
    }

    fn add_user(&mut self, pid: u32, comm: Option<&Arc<str>>) -> u64 {
        let uid = self.add_named(pid, comm);
        self.by_pid.insert(pid, uid);
        self.wanted.push(pid);
        uid
    }

    fn add_named(&mut self, pid: u32, comm: Option<&Arc<str>>) -> u64 {
        // Without a name the pid is all there is to show.
        let name = comm.map_or_else(|| format!("#{pid}").into(), Arc::clone);
        self.add(name, comm.is_some(), Some(pid))
    }

    /// The row of a kernel consumer; `name` has its brackets.
    pub(super) fn kernel(&mut self, name: &Arc<str>) -> u64 {
        if let Some(uid) = self.by_kernel_name.get(name) {
            return *uid;
        }
        let uid = self.add(Arc::clone(name), true, None);
        self.by_kernel_name.insert(Arc::clone(name), uid);
        uid
    }

    fn add(&mut self, comm: Arc<str>, named: bool, pid: Option<u32>) -> u64 {
        self.last_uid += 1;
        let uid = self.last_uid;
        self.all.insert(
            uid,
            Process {
                uid,
                pid,
                kernel: pid.is_none(),
                comm,
                named,
                ..Process::default()
            },
        );
        uid
    }

    /// Completes an owner with the process it is.
    pub(super) fn of(&mut self, mut owner: Owner, ts_ns: u64) -> Owner {
        owner.process = match (&owner.comm, owner.pid) {
            (Some(name), _) if owner.kernel => Some(self.kernel(name)),
            (comm, Some(pid)) if owner.start_ns != 0 => {
                Some(self.started(pid, owner.start_ns, comm.as_ref(), ts_ns))
            }
            (comm, Some(pid)) => Some(self.user(pid, comm.as_ref(), ts_ns)),
            _ => None,
        };
        owner
    }

    /// Folds in what /proc said. Returns two rows that are one process: the first is gone, and what counts
    /// calls is to be the second's.
    pub(super) fn learn(&mut self, facts: &ProcessFacts, now_ns: u64) -> Option<(u64, u64)> {
        let mut uid = match self.holder(facts.pid) {
            Some(uid) => uid,
            None => self.add_user(facts.pid, None),
        };
        let holder = self.all.get(&uid);
        let started = holder.and_then(|process| process.start_ticks);
        let has_qps = holder.is_some_and(|process| !process.qps.is_empty() || process.flow.is_some());
        let known = self.find(facts.pid, facts.start_ticks);
        let mut joined = None;
        match (started, known) {
            (Some(ticks), _) if ticks > facts.start_ticks => {
                // The number was reused since /proc was read: the facts are of one before.
                if let Some(uid) = known {
                    self.describe(uid, facts);
                }
                return None;
            }
            (Some(ticks), _) if ticks != facts.start_ticks => {
                self.end(uid, now_ns);
                uid = self.add_user(facts.pid, None);
            }
            // The process was taken for ended, and what has only the PID for that of another one.
            (None, Some(known)) if !has_qps => {
                let faults = self.all.remove(&uid).and_then(|process| process.faults);
                self.by_pid.insert(facts.pid, known);
                if let (Some(process), Some(faults)) = (self.all.get_mut(&known), faults) {
                    process
                        .faults
                        .get_or_insert_with(|| Meter::new(0, now_ns))
                        .join(&faults);
                }
                joined = Some((uid, known));
                uid = known;
            }
            _ => {}
        }
        self.describe(uid, facts);
        let is_it = known == Some(uid) || started == Some(facts.start_ticks);
        if let Some(process) = self.all.get_mut(&uid).filter(|_| is_it) {
            // One before it was gone from /proc, not this one.
            process.ended_ns = None;
        }
        self.wanted.retain(|pid| *pid != facts.pid);
        joined
    }

    fn describe(&mut self, uid: u64, facts: &ProcessFacts) {
        if let Some(comm) = names::safe_opt(facts.comm.as_ref()) {
            self.rename(uid, &comm, |_| true);
        }
        let Some(process) = self.all.get_mut(&uid) else {
            return;
        };
        process.start_ticks = Some(facts.start_ticks);
        (process.born_ns, process.read_ns) = (facts.born_ns, facts.read_ns);
        let safe = |text: &String| names::safe(text.as_bytes());
        process.facts = ProcessRow {
            ppid: facts.ppid,
            cmdline: names::safe_opt(facts.cmdline.as_ref()),
            user: names::safe_opt(facts.user.as_ref()).or_else(|| facts.uid.map(|id| id.to_string().into())),
            cgroup: names::safe_opt(facts.cgroup.as_ref()),
            workload: names::safe_opt(facts.workload.as_ref()),
            workload_claimed: facts.workload_claimed,
            libraries: facts
                .libraries
                .as_ref()
                .map(|list| list.iter().map(safe).collect()),
            environ: facts.environ.as_ref().map(|list| {
                let safe = |(name, value): &(String, String)| (safe(name), safe(value));
                list.iter().map(safe).collect()
            }),
            // Only what looks at TCP connections reads it.
            verbs_files: facts.verbs_files.or(process.facts.verbs_files),
            ..ProcessRow::default()
        };
    }

    /// The process of this pid and start time, as /proc had it at `ts_ns`.
    pub(super) fn at_ticks(&mut self, pid: u32, ticks: u64, ts_ns: u64) -> u64 {
        let known = self.find(pid, ticks);
        known.unwrap_or_else(|| self.start(pid, (ticks, None), None, ts_ns))
    }

    fn find(&self, pid: u32, start_ticks: u64) -> Option<u64> {
        let is_it = |process: &&Process| process.pid == Some(pid) && process.start_ticks == Some(start_ticks);
        self.all.values().find(is_it).map(|process| process.uid)
    }

    /// A process is gone from /proc: the pid's holder, or the one of `start_ticks`.
    pub(super) fn gone(&mut self, pid: u32, start_ticks: Option<u64>, now_ns: u64) -> Option<u64> {
        let uid = self.holder(pid)?;
        let started = self.all.get(&uid).and_then(|process| process.start_ticks);
        if let (Some(gone), Some(started)) = (start_ticks, started)
            && gone != started
        {
            let before = self.find(pid, gone)?;
            self.end(before, now_ns);
            return Some(before);
        }
        self.wanted.retain(|wanted| *wanted != pid);
        self.end(uid, now_ns);
        Some(uid)
    }

    /// Whether a process has ended, as far as is known; one that is not known has.
    pub(super) fn has_ended(&self, uid: Option<u64>) -> bool {
        let process = uid.and_then(|uid| self.all.get(&uid));
        process.is_none_or(|process| process.ended_ns.is_some())
    }

    fn end(&mut self, uid: u64, now_ns: u64) {
        if let Some(process) = self.all.get_mut(&uid)
            && process.ended_ns.is_none()
        {
            process.ended_ns = Some(now_ns);
        }
    }

    /// Numbers name other processes from now on: those known until now have ended, as far as is known.
    pub(super) fn end_all(&mut self, now_ns: u64) {
        let holders: Vec<u64> = self.by_pid.drain().map(|(_, uid)| uid).collect();
        for uid in holders {
            self.end(uid, now_ns);
        }
        self.wanted.clear();
    }

    /// A living QP came.
    pub(super) fn link(&mut self, uid: u64, device: u64) {
        if let Some(process) = self.all.get_mut(&uid) {
            *process.qps.entry(device).or_default() += 1;
        }
    }

    /// A living QP went.
    pub(super) fn unlink(&mut self, uid: u64, device: u64) {
        if let Some(process) = self.all.get_mut(&uid)
            && let Some(count) = process.qps.get_mut(&device)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                process.qps.remove(&device);
                if process.left.len() < DEVICES_LEFT {
                    process.left.insert(device);
                }
            }
        }
    }

    /// Takes over MR bytes by PID, of all devices.
    pub(super) fn registered(&mut self, sums: &BTreeMap<u32, u64>, mono_ns: u64) {
        let sums = sums.iter().filter(|(pid, _)| **pid != 0);
        let sums: BTreeMap<u64, u64> = sums
            .map(|(pid, bytes)| (self.user(*pid, None, mono_ns), *bytes))
            .gather();
        for process in self.all.values_mut() {
            if let Some(bytes) = sums.get(&process.uid) {
                process.memory.dumped(*bytes, mono_ns);
            } else if !process.kernel && process.ended_ns.is_none() {
                process.memory.dumped(0, mono_ns);
            }
        }
    }

    pub(super) fn registers(&mut self, object: u64, region: Region, ts_ns: u64) {
        // The address had a region whose end was lost, or is told later.
        if let Some(lost) = reused::give(&mut self.regions, object, region, ts_ns) {
            self.remember(lost, -1, ts_ns);
        }
        self.remember(region, 1, ts_ns);
    }

    /// A region was deregistered, by a call from `call_ns` to `ts_ns`; `told`: what the record says of it.
    /// Returns how many bytes it had.
    pub(super) fn deregisters(
        &mut self,
        object: u64,
        (call_ns, ts_ns): (u64, u64),
        told: Region,
    ) -> Option<u64> {
        let region = match reused::end(&mut self.regions, object, call_ns) {
            Some((region, true)) => region,
            Some((_, false)) => return told.bytes,
            None => told,
        };
        self.remember(region, -1, ts_ns);
        told.bytes.or(region.bytes)
    }

    fn remember(&mut self, region: Region, sign: i128, ts_ns: u64) {
        if let Some(process) = region.process.and_then(|uid| self.all.get_mut(&uid)) {
            let bytes = region.bytes.map(|bytes| sign * i128::from(bytes));
            process.memory.change(bytes, ts_ns);
        }
    }

    /// Takes over which processes are at a limit of their RDMA cgroup.
    pub(super) fn limited(&mut self, reached: Vec<LimitReached>) {
        self.all.values_mut().for_each(|process| process.limited = None);
        for limit in reached {
            if let Some(process) = self.holder(limit.pid).and_then(|uid| self.get_mut(uid)) {
                process.limited = Some(Arc::new(limit));
            }
        }
    }

    /// Takes over how much memory processes may lock.
    pub(super) fn locked(&mut self, found: Vec<LockedMemory>) {
        for locked in found {
            if let Some(process) = self.holder(locked.pid).and_then(|uid| self.get_mut(uid)) {
                process.locked = Some(Arc::new(locked));
            }
        }
    }

    /// Takes over how many mappings processes have, and how many one may have.
    pub(super) fn mappings(&mut self, sample: MappingsSample) {
        for read in sample.processes {
            if let Some(process) = self
                .find(read.pid, read.start_ticks)
                .and_then(|uid| self.get_mut(uid))
            {
                process.mappings = read.count.map(|count| Mappings {
                    count,
                    limit: None,
                    read_ns: read.read_ns,
                });
            }
        }
        for mappings in self.iter_mut().filter_map(|process| process.mappings.as_mut()) {
            mappings.limit = sample.limit;
        }
    }

    /// Has the mappings counted again of a process with memory regions whose count is old: of one at a time,
    /// the oldest.
    pub(super) fn count_again(&mut self, now_ns: u64) {
        let Some(mut oldest) = now_ns.checked_sub(RECOUNT_NS) else {
            return;
        };
        let mut due = None;
        for process in self.all.values_mut() {
            let read_ns = process.mappings.map_or(u64::MAX, |mappings| mappings.read_ns);
            let since_ns = read_ns.max(process.recount_ns);
            let lives = process.ended_ns.is_none();
            if since_ns <= oldest && lives && process.memory.bytes().is_some_and(|bytes| bytes > 0) {
                oldest = since_ns;
                due = Some(process);
            }
        }
        if let Some((process, pid)) = due.and_then(|process| process.pid.map(|pid| (process, pid))) {
            process.recount_ns = now_ns;
            self.wanted.push(pid);
        }
    }

    /// Process ids whose facts are wanted.
    pub(super) fn take_wanted(&mut self) -> Vec<u32> {
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Forgets processes that ended, own nothing any more, and have been shown for long enough. With `idle`
    /// also users that have owned no QP and made no call for that long: where no input reports the end of a
    /// process, it may have ended, and is not shown as ended.
    pub(super) fn forget(&mut self, now_ns: u64, linger_ns: u64, idle: bool) {
        let (by_pid, by_start) = (&mut self.by_pid, &mut self.by_start);
        self.all.retain(|uid, process| {
            if !process.qps.is_empty() {
                process.idle_ns = None;
                return true;
            }
            let ended = process.ended_ns;
            let is_over = ended.is_some_and(|ended| ended.saturating_add(linger_ns) <= now_ns);
            let is_idle = idle && process.pid.is_some() && {
                let since = *process.idle_ns.get_or_insert(now_ns);
                now_ns.saturating_sub(since) > linger_ns
            };
            let keep = !is_over && !is_idle;
            if let Some(pid) = process.pid.filter(|_| !keep) {
                if by_pid.get(&pid) == Some(uid) {
                    by_pid.remove(&pid);
                }
                if let Some(start_ns) = process.start_ns {
                    by_start.remove(&(pid, start_ns));
                }
            }
            keep
        });
    }
}
