//! Processes: read once when they are new, watched for their end.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use rustix::time::ClockId;

use super::{limits::Limits, mappings::Mappings};

use crate::app::patience::stretched;
use rdmatop_model::{
    cause::Cause,
    input::{Input, MappingCount, ProcessFacts},
};
use rdmatop_sources::{
    clock,
    proc::{
        Ask, Asker, Details, Part, ProcBasic, ProcCache, ProcDetail, ProcKey, Users, Workload, clock_ticks,
        lives, locked::locked, read_basic, start_offset,
    },
    root::Root,
    seam::{Polled, Wants},
};

/// How long a round waits for details of new processes.
const PATIENCE: Duration = Duration::from_millis(300);
/// The same in a mode that prints once: there, what is missing stays missing. A process that does not answer
/// takes two seconds.
const ONCE: Duration = Duration::from_secs(3);

/// The details of processes, for all sources that need some.
pub type SharedDetails = Arc<Mutex<Details>>;

/// Answers for the processes the engine asks for, and reports when one is gone.
pub struct ProcessSource {
    root: Root,
    cache: ProcCache,
    details: SharedDetails,
    watched: BTreeSet<u32>,
    limits: Limits,
    mappings: Mappings,
    /// The notes that were sent last.
    late: Vec<Cause>,
    /// The mode prints once.
    once: bool,
    start_offset: i64,
    /// Clock ticks of a second.
    ticks: Option<u64>,
}

impl ProcessSource {
    /// Reads under `root`.
    pub fn new(root: Root, details: SharedDetails) -> Self {
        Self {
            start_offset: offset(&root),
            ticks: clock_ticks(&root),
            root,
            cache: ProcCache::default(),
            details,
            watched: BTreeSet::new(),
            limits: Limits::default(),
            mappings: Mappings::default(),
            late: Vec::new(),
            once: false,
        }
    }

    /// Sends the facts of new processes and of those that have exec'ed another program, of those that are
    /// asked about `again` once they are read, and details that come late.
    fn send_facts(
        &mut self,
        (fresh, again): (&[ProcKey], &[ProcKey]),
        wants: &Wants,
        read_ns: u64,
        out: &mut dyn FnMut(Input),
    ) {
        // The first round of such a mode says so; its later rounds only look processes up.
        self.once |= wants.once;
        let mut details = self.details.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = &self.cache;
        let of = |key: ProcKey| cache.get(key.pid).filter(|process| process.key() == key);
        details.keep(|key| of(key).is_some());
        let parts = if wants.counters {
            Part::SHOWN
        } else {
            &[Part::CommandLine]
        };
        for process in fresh.iter().chain(again).filter_map(|key| of(*key)) {
            details.ask(Asker::Rows, ask(process, parts));
        }
        let (since_ns, patience) = patience(self.once, read_ns);
        details.settle(since_ns, patience);
        let mut answers = details.take(Asker::Rows);
        for key in fresh {
            answers.entry(*key).or_insert_with(|| unanswered(read_ns));
        }
        let mut counts = Vec::new();
        let slept_ns = slept_ns();
        for (key, detail) in answers {
            if let Some(process) = of(key) {
                // What was counted before an exec is gone, too, where the new list was not readable.
                let (count, counted_ns) = (detail.mappings, detail.read_ns);
                let facts = ProcessFacts {
                    born_ns: born_ns(process.stat.start, self.ticks, slept_ns),
                    ..facts(process, detail, self.start_offset, read_ns)
                };
                counts.push(MappingCount {
                    pid: facts.pid,
                    start_ticks: facts.start_ticks,
                    count,
                    read_ns: counted_ns,
                });
                out(Input::Process(Box::new(facts)));
            }
        }
        if wants.counters {
            self.mappings.send(&self.root, counts, out);
        }
    }

    /// Sends the notes about processes of which something is unknown, where they have changed.
    fn send_notes(&mut self, out: &mut dyn FnMut(Input)) {
        let details = self.details.lock().unwrap_or_else(PoisonError::into_inner);
        let late: Vec<Cause> = details.notes().into_iter().chain(self.limits.note()).collect();
        drop(details);
        if late != self.late {
            self.late.clone_from(&late);
            out(Input::SlowProcesses(late));
        }
    }
}

impl Polled for ProcessSource {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() {
            return;
        }
        self.watched.extend(wants.processes.iter());
        let read_ns = clock::monotonic();
        let changes = self.cache.refresh(&self.root, self.watched.iter().copied());
        for key in changes.gone {
            // A reused number is both gone and new: the engine gets both inputs, in this order.
            if self.cache.get(key.pid).is_none() {
                self.watched.remove(&key.pid);
            }
            out(Input::ProcessGone {
                pid: key.pid,
                start_ticks: Some(key.start.saturating_sub_signed(self.start_offset)),
            });
        }
        // After an exec it is another program with the same resources.
        let fresh = changes.new;
        let known = wants.processes.iter().filter_map(|pid| self.cache.get(*pid));
        let again = known.map(ProcBasic::key).filter(|key| !fresh.contains(key));
        let again: Vec<ProcKey> = again.collect();
        self.send_facts((&fresh, &again), wants, read_ns, out);
        if wants.counters && !wants.only_processes {
            let Self {
                watched,
                cache,
                limits,
                root,
                ..
            } = self;
            let path = |pid: &u32| {
                let process = cache.get(*pid)?;
                Some((*pid, process.uid, process.cgroup.as_ref()?.path.as_str()))
            };
            limits.look(root, read_ns, watched.iter().filter_map(path), out);
        }
        self.send_notes(out);
        let locked = wants.locked.iter().filter_map(|pid| locked(&self.root, *pid));
        let locked: Vec<_> = locked.collect();
        if !locked.is_empty() {
            out(Input::Locked(locked));
        }
        for pid in wants.processes.iter() {
            if self.cache.get(*pid).is_none() {
                self.watched.remove(pid);
                if !lives(&self.root, *pid) {
                    out(Input::ProcessGone {
                        pid: *pid,
                        start_ticks: None,
                    });
                }
            }
        }
    }
}

/// For how long the machine has slept, ns: the boot clock goes on then, by which /proc has start times, and
/// the monotonic one stands still.
fn slept_ns() -> u64 {
    let awake_ns = clock::monotonic();
    clock::read(ClockId::Boottime).saturating_sub(awake_ns)
}

/// `CLOCK_MONOTONIC` when a process started, or earlier: the machine may have slept since, and /proc has
/// whole ticks. 0: not known.
fn born_ns(start: u64, ticks: Option<u64>, slept_ns: u64) -> u64 {
    let per_tick = ticks.map_or(0, |ticks| 1_000_000_000 / ticks);
    start.saturating_mul(per_tick).saturating_sub(slept_ns)
}

/// What a round that began at `round_ns` waits for: details that were asked for since the first value, for no
/// longer than the second.
fn patience(once: bool, round_ns: u64) -> (u64, Duration) {
    if once {
        (0, stretched(ONCE))
    } else {
        (round_ns, PATIENCE)
    }
}

fn ask(process: &ProcBasic, parts: &[Part]) -> Ask {
    Ask {
        process: process.key(),
        user: process.uid,
        name: process.stat.comm.clone(),
        parts: parts.to_vec(),
    }
}

/// Reads facts of processes that a source has found.
pub(super) struct Search {
    pub(super) root: Root,
    details: SharedDetails,
    start_offset: i64,
}

impl Search {
    /// Reads under `root`.
    pub(super) fn new(root: Root, details: SharedDetails) -> Self {
        Self {
            start_offset: offset(&root),
            root,
            details,
        }
    }

    /// The facts about exactly these processes, read now; those that do not answer in time have no details.
    pub(super) fn facts(&self, processes: &[ProcKey], parts: &[Part], once: bool) -> Vec<ProcessFacts> {
        if processes.is_empty() {
            return Vec::new();
        }
        let read_ns = clock::monotonic();
        let users = Users::read(&self.root);
        let basic = processes.iter().filter_map(|key| {
            read_basic(&self.root, &users, key.pid).filter(|process| process.key() == *key)
        });
        let basic: Vec<ProcBasic> = basic.collect();
        let asks = basic.iter().map(|process| ask(process, parts)).collect();
        let mut details = self.details.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = details.search(asks, patience(once, read_ns).1);
        drop(details);
        let facts = basic.iter().map(|process| {
            let detail = found
                .remove(&process.key())
                .unwrap_or_else(|| unanswered(read_ns));
            facts(process, detail, self.start_offset, read_ns)
        });
        facts.collect()
    }
}

/// What to add to start times; see [`start_offset`].
fn offset(root: &Root) -> i64 {
    clock_ticks(root).map_or(0, |ticks| start_offset(root, ticks))
}

fn unanswered(read_ns: u64) -> ProcDetail {
    ProcDetail {
        read_ns,
        ..ProcDetail::default()
    }
}

/// What is known of a process, since `read_ns` or since its details were read: what comes late is older.
fn facts(process: &ProcBasic, detail: ProcDetail, start_offset: i64, read_ns: u64) -> ProcessFacts {
    ProcessFacts {
        pid: process.stat.pid,
        start_ticks: process.stat.start.saturating_sub_signed(start_offset),
        born_ns: 0,
        read_ns: read_ns.min(detail.read_ns),
        comm: Some(process.stat.comm.clone()),
        cmdline: detail.cmdline,
        uid: process.uid,
        user: process.user.clone(),
        cgroup: process.cgroup.as_ref().map(|c| c.path.clone()),
        workload: process.cgroup.as_ref().and_then(|c| spell(&c.workload)),
        workload_claimed: process.cgroup.as_ref().is_some_and(|c| c.workload.claimed),
        ppid: Some(process.stat.ppid),
        libraries: detail.libraries,
        environ: detail.environ,
        verbs_files: detail.verbs_files,
    }
}

/// A workload in one or two words, the innermost that is known. One that is only claimed ends with `?`, so
/// that it never looks like one that root named.
pub(super) fn spell(workload: &Workload) -> Option<String> {
    let name = name(workload)?;
    Some(if workload.claimed {
        format!("{name}?")
    } else {
        name
    })
}

fn name(workload: &Workload) -> Option<String> {
    if let Some(slurm) = &workload.slurm {
        let step = slurm
            .step
            .as_deref()
            .map_or_else(String::new, |step| format!(".{step}"));
        return Some(format!("slurm {}{step}", slurm.job));
    }
    if let Some(pod) = &workload.pod {
        return Some(format!("pod {pod}"));
    }
    if let Some(container) = &workload.container {
        // Container tools show and accept twelve digits.
        return Some(format!("container {}", container.get(..12).unwrap_or(container)));
    }
    workload.machine.as_ref().map(|machine| format!("vm {machine}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    const TAIL: &str =
        "S 1 7 7 0 -1 4194560 100 0 0 0 30 12 0 0 20 -5 4 0 100 1000 200 18446744073709551615 1";

    fn wants(counters: bool) -> Wants {
        Wants {
            processes: Arc::new([7]),
            counters,
            qps: true,
            ..Wants::default()
        }
    }

    #[test]
    fn a_process_has_details_with_its_first_facts_and_anew_after_an_exec() {
        let fake = Fake::new();
        let becomes = |comm: &str, library: &str| {
            fake.proc("7/stat", format!("7 ({comm}) {TAIL}\n"));
            fake.proc("7/cmdline", format!("{comm}\0-x\0"));
            fake.proc("7/maps", format!("1-2 r-xp 0 08:01 3 /usr/lib/{library}\n"));
        };
        let details = Arc::new(Mutex::new(Details::new(fake.root())));
        let mut source = ProcessSource::new(fake.root(), details);
        let mut facts = |counters| {
            let mut got = Vec::new();
            source.poll(&wants(counters), &mut |input| match input {
                Input::Process(facts) => got.push((facts.cmdline.unwrap(), facts.libraries)),
                Input::Mappings(_) => {}
                other => panic!("{other:?}"),
            });
            got
        };
        becomes("bash", "libmpi.so.40");
        let libraries = |name: &str| Some(vec![name.to_owned()]);
        assert_eq!(facts(true), [("bash -x".into(), libraries("libmpi.so.40"))]);
        becomes("bash", "libuct_ib.so.0");
        assert_eq!(
            facts(true),
            [("bash -x".into(), libraries("libuct_ib.so.0"))],
            "it is asked for again"
        );
        becomes("ib_send_bw", "libibverbs.so.1");
        assert_eq!(
            facts(true),
            [("ib_send_bw -x".into(), libraries("libibverbs.so.1"))]
        );
        becomes("traced", "libibverbs.so.1");
        assert_eq!(
            facts(false),
            [("traced -x".into(), None)],
            "no view shows the rest"
        );
    }

    #[test]
    fn mappings_are_counted_where_libraries_are_read_and_anew_after_an_exec() {
        let fake = Fake::new();
        fake.proc("sys/vm/max_map_count", "65530\n");
        let becomes = |comm: &str, mappings: usize| {
            fake.proc("7/stat", format!("7 ({comm}) {TAIL}\n"));
            fake.proc("7/maps", "1-2 rw-p 0 00:00 0\n".repeat(mappings));
        };
        let details = Arc::new(Mutex::new(Details::new(fake.root())));
        let mut source = ProcessSource::new(fake.root(), details);
        let mut asks = true;
        let mut counts = |counters| {
            let mut got = Vec::new();
            let mut wants = wants(counters);
            if !std::mem::take(&mut asks) {
                wants.processes = Arc::default();
            }
            source.poll(&wants, &mut |input| {
                if let Input::Mappings(sample) = input {
                    got.extend(
                        sample
                            .processes
                            .iter()
                            .map(|one| (one.pid, one.count, sample.limit)),
                    );
                }
            });
            got
        };
        becomes("bash", 30);
        assert_eq!(counts(true), [(7, Some(30), Some(65_530))]);
        becomes("bash", 40);
        assert_eq!(counts(true), [], "the list is not read for it");
        becomes("ib_send_bw", 3000);
        assert_eq!(counts(true), [(7, Some(3000), Some(65_530))]);
        becomes("traced", 50);
        assert_eq!(counts(false), [], "a trace reads no mappings");
        fake.remove("proc/7/maps");
        fake.proc("7/stat", format!("7 (hidden) {TAIL}\n"));
        assert_eq!(counts(true), [(7, None, Some(65_530))]);
    }

    #[test]
    fn facts_are_as_old_as_the_oldest_of_them() {
        let fake = Fake::new();
        fake.proc("7/stat", format!("7 (trainer) {TAIL}\n"));
        let basic = read_basic(&fake.root(), &Users::read(&fake.root()), 7).unwrap();
        let [now, late] = [5, 9].map(|round_ns| facts(&basic, unanswered(7), 0, round_ns).read_ns);
        assert_eq!([now, late], [5, 7]);
        // Those of a round are no older than it, their mappings too.
        let details = Arc::new(Mutex::new(Details::new(fake.root())));
        let mut source = ProcessSource::new(fake.root(), details);
        let (before_ns, mut read) = (clock::monotonic(), Vec::new());
        source.poll(&wants(true), &mut |input| match input {
            Input::Process(facts) => read.push(facts.read_ns),
            Input::Mappings(sample) => read.extend(sample.processes.iter().map(|one| one.read_ns)),
            _ => {}
        });
        let since = before_ns..=clock::monotonic();
        assert!(
            read.len() == 2 && read.iter().all(|ns| since.contains(ns)),
            "{read:?}"
        );
    }

    #[test]
    fn masked_neither_command_line_nor_environment_is_read() {
        let fake = Fake::new();
        fake.proc("7/stat", format!("7 (trainer) {TAIL}\n"));
        fake.proc("7/cmdline", "trainer\0--token=secret\0");
        fake.proc("7/environ", "NCCL_IB_HCA=mlx5_0\0");
        fake.proc("7/maps", "1-2 r-xp 0 08:01 3 /usr/lib/libnccl.so.2\n");
        for counters in [true, false] {
            let details = Arc::new(Mutex::new(Details::masked(fake.root())));
            let mut source = ProcessSource::new(fake.root(), details);
            let mut got = Vec::new();
            source.poll(&wants(counters), &mut |input| match input {
                Input::Process(facts) => got.push((facts.cmdline, facts.environ, facts.libraries.is_some())),
                Input::Mappings(_) => {}
                other => panic!("{other:?}"),
            });
            assert_eq!(got, [(None, None, counters)]);
        }
    }

    #[test]
    fn a_process_is_never_taken_for_younger_than_it_is() {
        assert_eq!(born_ns(250, Some(100), 0), 2_500_000_000);
        assert_eq!(born_ns(250, Some(100), 2_000_000_000), 500_000_000);
        assert_eq!(born_ns(250, Some(100), 3_000_000_000), 0);
        assert_eq!(born_ns(250, None, 0), 0);
    }

    #[test]
    fn a_job_takes_precedence_over_its_container() {
        let slurm = Workload::from_path("/system.slice/slurmstepd.scope/job_211/step_0/user/task_0");
        assert_eq!(spell(&slurm).as_deref(), Some("slurm 211.0"));
        let id = "a".repeat(64);
        let docker = Workload::from_path(&format!("/docker/{id}"));
        assert_eq!(spell(&docker).as_deref(), Some("container aaaaaaaaaaaa"));
        let claim = Workload::from_path("/user.slice/user@1000.service/slurmstepd.scope/job_211/step_0");
        assert_eq!(spell(&claim).as_deref(), Some("slurm 211.0?"));
        assert_eq!(spell(&Workload::default()), None);
    }
}
