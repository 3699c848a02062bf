//! The thread that attaches probes to programs and detaches them. For each the kernel takes up to seconds.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    ptr::{read_volatile, write_volatile},
    sync::{
        Arc, Mutex,
        atomic::{Ordering, fence},
        mpsc::{self, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use rdmatop_common::counters::{QpSlot, UserHits, UserQp, slot_flag};
use rustix::time::ClockId;

use super::{
    LOOK, Ready, Shared, UserOptions,
    failures::{Failures, ONE},
    guard::Guard,
    hooks::Function,
    locked, off,
    price::Sample,
    probed::{Full, Party, Probed},
    target::{Finder, ProbePoint, Program, Target, Unfit},
    turns::{ROUND_NS, Turns},
};
use crate::{
    attach::{
        explain,
        probe::{Event, UprobePmu},
    },
    maps::mapped::{Mapped, UsedRanges},
};
use rdmatop_base::text;
use rdmatop_model::cause::{Cause, CauseId, Concerns, Obstacle};
use rdmatop_sources::{
    clock, limits,
    privileges::Raised,
    uprobes::{Opened, user},
};

/// How often to try a QP that cannot be probed yet before giving up.
const TRIES: u32 = 10;
/// The most functions to probe at a time: each takes three or five open files.
const MOST_FUNCTIONS: usize = 128;
/// How often to look for probes that no program can hit any more, ns.
const TIDY_NS: u64 = 1_000_000_000;
/// How long not to ask again whether a process's memory lock is free, ns: the question takes seconds.
const HELD_NS: u64 = 10_000_000_000;

/// Loaded programs by name.
pub(super) type Programs = BTreeMap<&'static str, OwnedFd>;

/// Ends the thread when dropped, without waiting for it.
pub(super) struct Worker {
    _alive: SyncSender<()>,
}

/// The arrays that the thread reads.
pub(super) struct Arrays {
    pub(super) slots: Mapped<QpSlot>,
    /// More counters of the QPs in `slots`.
    pub(super) qps: Mapped<UserQp>,
    pub(super) hits: Mapped<UserHits>,
}

impl Worker {
    /// Starts the thread. If that fails, nothing is probed, and the report says so.
    pub(super) fn start(
        options: UserOptions,
        programs: Programs,
        sample: Sample,
        arrays: Arrays,
        shared: Arc<Mutex<Shared>>,
    ) -> Self {
        let (alive, ended) = mpsc::sync_channel(0);
        let reports = Arc::clone(&shared);
        let Arrays { slots, qps, hits } = arrays;
        let used_ranges = UsedRanges::of(slots.count());
        let mut work = Work {
            options,
            programs,
            sample,
            slots,
            qps,
            hits,
            used_ranges,
            shared,
            pmu: UprobePmu::read(),
            probed: Probed::new(MOST_FUNCTIONS),
            remover: None,
            tidied_ns: 0,
            judged: HashMap::new(),
            guard: Guard::new(options.limit),
            rejected: (0, 0),
            failures: Failures::default(),
            finder: Finder::default(),
            turns: Turns::default(),
            silent: BTreeSet::new(),
            users: BTreeSet::new(),
            held: None,
        };
        let run = move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if !work.round() {
                    break;
                }
            }
        };
        if let Err(error) = thread::Builder::new().name("uprobes".to_owned()).spawn(run) {
            locked(&reports).report.off = Some(off(limits::no_thread(&error)));
        }
        Self { _alive: alive }
    }
}

/// The probes of a function.
struct Probes {
    /// The time at which the probes were attached.
    since_ns: u64,
    /// The probes at the function's entry and at its return.
    _events: Vec<Event>,
    file: File,
}

impl Probes {
    /// Whether the file has been deleted: then only processes that have mapped it can still use it.
    fn is_of_deleted_file(&self) -> bool {
        self.file.metadata().is_ok_and(|file| file.nlink() == 0)
    }
}

/// Whether a QP can be probed.
#[derive(Clone, Copy)]
enum Verdict {
    /// Not so far, after this many tries: see [`TRIES`].
    Tried(u32),
    /// Not before [`HELD_NS`] after this time, because of [`Work::held`], or because there is no room for
    /// more probes.
    Waits(u64),
    Ready,
    Unfit,
}

/// What the thread knows about a QP.
struct Judged {
    verdict: Verdict,
    /// Sends and receives that the provider has rejected so far.
    rejected: (u64, u64),
    /// How often its calls have hit a probe so far.
    hits: u64,
    /// The probed functions that it uses, until it is destroyed.
    uses: Vec<ProbePoint>,
}

impl Default for Judged {
    fn default() -> Self {
        Self {
            verdict: Verdict::Tried(0),
            rejected: (0, 0),
            hits: 0,
            uses: Vec::new(),
        }
    }
}

struct Work {
    options: UserOptions,
    programs: Programs,
    sample: Sample,
    slots: Mapped<QpSlot>,
    qps: Mapped<UserQp>,
    hits: Mapped<UserHits>,
    used_ranges: UsedRanges,
    shared: Arc<Mutex<Shared>>,
    pmu: Option<UprobePmu>,
    probed: Probed<Probes>,
    /// Leads to the thread that detaches probes, for each of which the kernel takes up to seconds.
    remover: Option<mpsc::Sender<Vec<Probes>>>,
    /// When [`Work::tidy`] last looked, ns.
    tidied_ns: u64,
    /// What is known of each QP, by number and birth.
    judged: HashMap<(u32, u64), Judged>,
    guard: Guard,
    /// Rejected sends and receives of QPs that no longer have a slot.
    rejected: (u64, u64),
    /// Failures by process, as long as the process has QPs.
    failures: Failures,
    finder: Finder,
    /// Whose QPs are looked at next.
    turns: Turns,
    /// Processes whose memory did not answer in time.
    silent: BTreeSet<u32>,
    /// Processes with living QPs, including those that are not to be probed.
    users: BTreeSet<u32>,
    /// Why nothing can be probed at present, and when that was found, ns.
    held: Option<(u64, Cause)>,
}

/// A QP in a slot.
#[derive(Clone, Copy)]
struct SlotQp {
    number: u32,
    born_ns: u64,
    pid: u32,
    qpn: u32,
    lives: bool,
}

fn add(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0.saturating_add(b.0), a.1.saturating_add(b.1))
}

/// Why no more functions are probed. What fits may change with each QP that is destroyed.
fn no_room(full: Full) -> Obstacle {
    let (who, share) = match full {
        Full::Process => ("its", MOST_FUNCTIONS / 4),
        Full::User => ("its user's", MOST_FUNCTIONS / 2),
        Full::All => ("all", MOST_FUNCTIONS),
    };
    let why = format!("{who} queue pairs may use {share} functions, and those of one more do not fit");
    Obstacle::new(CauseId::NotProbed, why, ONE)
}

fn monotonic() -> u64 {
    clock::read(ClockId::Monotonic)
}

impl Work {
    /// Looks at all QPs once. Returns false when the thread has to end.
    fn round(&mut self) -> bool {
        let qps = self.qps_with_slots();
        let there: BTreeSet<(u32, u64)> = qps.iter().map(|qp| (qp.number, qp.born_ns)).collect();
        let now_ns = monotonic();
        self.judged.retain(|key, qp| {
            let stays = there.contains(key);
            if !stays {
                self.rejected = add(self.rejected, qp.rejected);
                self.probed.release(&qp.uses, now_ns);
            }
            stays
        });
        for qp in qps.iter().filter(|qp| !qp.lives) {
            if let Some(known) = self.judged.get_mut(&(qp.number, qp.born_ns)) {
                self.probed.release(&std::mem::take(&mut known.uses), now_ns);
            }
        }
        let alive: BTreeSet<u32> = qps.iter().filter(|qp| qp.lives).map(|qp| qp.pid).collect();
        let undecided = |qp: &&SlotQp| {
            let known = self.judged.get(&(qp.number, qp.born_ns));
            qp.lives && known.is_none_or(|known| !matches!(known.verdict, Verdict::Ready | Verdict::Unfit))
        };
        let waits: BTreeSet<u32> = qps.iter().filter(undecided).map(|qp| qp.pid).collect();
        self.failures
            .retain(|pid, passes| if passes { &waits } else { &alive }.contains(&pid));
        self.silent.retain(|pid| alive.contains(pid));
        // No QP has asked again, so those that waited are gone.
        self.held
            .take_if(|(since_ns, _)| now_ns.saturating_sub(*since_ns) > 2 * HELD_NS);
        locked(&self.shared)
            .ready
            .retain(|number, ready| there.contains(&(*number, ready.born_ns)));
        let mut waiting = Vec::new();
        let mut users = BTreeMap::new();
        for qp in qps {
            let key = (qp.number, qp.born_ns);
            let now = self.qps.read(qp.number);
            let known = self.judged.entry(key).or_default();
            known.rejected = (now.tx_rejected, now.rx_rejected);
            self.guard.called(qp.pid, now.hits.saturating_sub(known.hits));
            known.hits = now.hits;
            let tried = match known.verdict {
                Verdict::Tried(tried) => Some(tried),
                Verdict::Waits(since_ns) if now_ns.saturating_sub(since_ns) > HELD_NS => Some(0),
                _ => None,
            };
            // Skip a destroyed QP: the memory of its program no longer describes it.
            if let Some(tried) = tried.filter(|_| qp.lives) {
                let user = *users.entry(qp.pid).or_insert_with(|| user(qp.pid));
                waiting.push((qp, now.handle, tried, Party { user, pid: qp.pid }));
            }
        }
        self.turns.order(&mut waiting, |(.., party)| *party);
        let begun_ns = monotonic();
        for (qp, handle, tried, party) in waiting {
            let since_ns = monotonic();
            if since_ns.saturating_sub(begun_ns) > ROUND_NS {
                break;
            }
            if !self.turns.may_ask(party.user, since_ns) {
                continue;
            }
            // Opening a file that another process has mapped requires CAP_SYS_ADMIN, as attaching does.
            let rights = Raised::for_attach();
            let mut uses = Vec::new();
            let verdict = self.judge(qp, handle, tried, party, &mut uses);
            drop(rights);
            let else_ns = monotonic().saturating_sub(since_ns);
            let else_ns = else_ns.saturating_sub(std::mem::take(&mut self.finder.took_ns));
            self.turns.spent(party, else_ns);
            let known = self.judged.entry((qp.number, qp.born_ns)).or_default();
            (known.verdict, known.uses) = (verdict, uses);
        }
        self.tidy(now_ns);
        self.account()
    }

    /// Removes the probes that no program can hit any more.
    fn tidy(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.tidied_ns) < TIDY_NS {
            return;
        }
        self.tidied_ns = now_ns;
        let gone = self.probed.unreachable(now_ns, Probes::is_of_deleted_file);
        self.unprobe(gone);
    }

    /// Detaches probes on a thread of its own.
    fn unprobe(&mut self, gone: Vec<Probes>) {
        if gone.is_empty() {
            return;
        }
        let remover = self.remover.get_or_insert_with(|| {
            let (to, gone) = mpsc::channel::<Vec<Probes>>();
            // Without a thread the receiver is dropped here; `send` then fails, and the probes are detached.
            let _ = thread::Builder::new()
                .name("unprobe".to_owned())
                .spawn(move || gone.into_iter().for_each(drop));
            to
        });
        if remover.send(gone).is_err() {
            self.remover = None;
        }
    }

    /// The QPs in slots, including destroyed ones whose last counts have not been read yet.
    fn qps_with_slots(&mut self) -> Vec<SlotQp> {
        let slots = &self.slots;
        // SAFETY: the number is inside the mapping; the kernel side writes the word whole.
        let in_use = |number| unsafe { read_volatile(&raw const (*slots.at(number)).qp) != 0 };
        let wanted = self.options.pid;
        let users = &mut self.users;
        users.clear();
        let read = |number| {
            let place = slots.at(number);
            // SAFETY: as above.
            let (qp, slot_qp) = unsafe {
                let slot_qp = SlotQp {
                    number,
                    born_ns: read_volatile(&raw const (*place).born_ns),
                    pid: read_volatile(&raw const (*place).owner_pid),
                    qpn: read_volatile(&raw const (*place).qpn),
                    lives: read_volatile(&raw const (*place).flags) & slot_flag::DESTROYED == 0,
                };
                (read_volatile(&raw const (*place).qp), slot_qp)
            };
            if qp != 0 && slot_qp.lives {
                users.insert(slot_qp.pid);
            }
            (qp != 0 && wanted.is_none_or(|pid| pid == slot_qp.pid)).then_some(slot_qp)
        };
        self.used_ranges.numbers(in_use).filter_map(read).collect()
    }

    /// Finds and probes the functions that a QP's program posts with.
    fn judge(
        &mut self,
        qp: SlotQp,
        handle: u64,
        tried: u32,
        party: Party,
        uses: &mut Vec<ProbePoint>,
    ) -> Verdict {
        // Each question to such a process would take the whole time limit.
        if self.silent.contains(&qp.pid) {
            return Verdict::Unfit;
        }
        let program = Program {
            pid: qp.pid,
            handle,
            qpn: qp.qpn,
        };
        let found = self.finder.of(program, self.options.ends);
        let took_ns = self.finder.took_ns;
        if self.turns.took(party, took_ns, monotonic()) && !matches!(found, Ok(_) | Err(Unfit::Silent)) {
            let why = "its memory takes more than a second to answer, so others come first";
            self.fails(qp, Obstacle::new(CauseId::NotProbed, why, ""), true);
        }
        let target = match found {
            Ok(target) => target,
            Err(Unfit::NotYet(_)) if tried < TRIES => return Verdict::Tried(tried + 1),
            Err(Unfit::Silent) => {
                self.silent.insert(qp.pid);
                let why = "its memory does not answer: a page of it keeps who reads it waiting";
                self.fails(qp, Obstacle::new(CauseId::NotProbed, why, ""), false);
                return Verdict::Unfit;
            }
            Err(Unfit::NotYet(why) | Unfit::Never(why)) => {
                self.fails(qp, Obstacle::new(CauseId::NotProbed, why, ""), false);
                return Verdict::Unfit;
            }
        };
        let Target {
            points,
            sends_are_seen,
        } = target;
        if let Err(full) = self.probed.has_room(party, points.iter().map(|(point, _)| point)) {
            self.fails(qp, no_room(full), true);
            return Verdict::Waits(monotonic());
        }
        if points.iter().any(|(point, _)| !self.probed.has(point)) && self.must_wait() {
            return Verdict::Waits(monotonic());
        }
        let mut since_ns = 0;
        for (point, file) in points {
            match self.probe(point, file, party) {
                Ok(since) => {
                    since_ns = since_ns.max(since);
                    uses.push(point);
                }
                Err((verdict, obstacle)) => {
                    self.probed.release(&std::mem::take(uses), monotonic());
                    self.fails(qp, obstacle, matches!(verdict, Verdict::Waits(_)));
                    return verdict;
                }
            }
        }
        if sends_are_seen {
            self.publish(qp, since_ns);
        } else {
            let why = "some of its ibv_wr_* calls share a function or are not in its library's file";
            self.fails(qp, Obstacle::new(CauseId::NotProbed, why, ""), false);
        }
        let ready = Ready {
            born_ns: qp.born_ns,
            since_ns,
            sends_are_seen,
        };
        locked(&self.shared).ready.insert(qp.number, ready);
        Verdict::Ready
    }

    /// Whether no probe may be attached at present, because some call holds the memory lock of a process that
    /// may have mapped the same library. The kernel would wait for that lock without a way to interrupt it,
    /// and every fork(2) of the machine would wait too. A process that takes the lock after this question is
    /// not noticed.
    fn must_wait(&mut self) -> bool {
        let now_ns = monotonic();
        if let Some((since_ns, _)) = &self.held
            && now_ns.saturating_sub(*since_ns) < HELD_NS
        {
            return true;
        }
        let found = self.finder.locked(self.users.iter().copied());
        let why = match found {
            Ok(None) => {
                self.held = None;
                return false;
            }
            Ok(Some(pid)) => format!("a call of process {pid} holds the lock of its memory"),
            Err(why) => why,
        };
        let remedy = "the locks are asked for again after ten seconds";
        self.held = Some((now_ns, off(Obstacle::new(CauseId::NotProbed, why, remedy))));
        true
    }

    /// Tells the kernel side the time since when all functions of a QP have been probed.
    fn publish(&self, qp: SlotQp, since_ns: u64) {
        let place = self.qps.at(qp.number);
        // SAFETY: the number is inside the mapping; the kernel side reads `probed_ns` only after it has found
        // this birth.
        unsafe {
            write_volatile(&raw mut (*place).probed_ns, since_ns);
            fence(Ordering::Release);
            write_volatile(&raw mut (*place).probed_birth_ns, qp.born_ns);
        }
    }

    /// `passes`: a later try may succeed.
    fn fails(&mut self, qp: SlotQp, obstacle: Obstacle, passes: bool) {
        // All QPs of a process fail for the same reason, so one line reports them.
        let what = format!("Not counted: work requests of process {}", qp.pid);
        let cause = obstacle.takes(what, Concerns::Host);
        if self.failures.add(qp.pid, user(qp.pid), cause.clone(), passes) {
            log::warn!(what = cause.what.as_str(), qp = qp.number, why = cause.why.as_str(); "refused");
        }
    }

    /// Probes a function for one more QP, if it is not probed yet. Returns since when it has been probed.
    fn probe(&mut self, point: ProbePoint, file: Opened, of: Party) -> Result<u64, (Verdict, Obstacle)> {
        if let Some(probes) = self.probed.take(&point) {
            return Ok(probes.since_ns);
        }
        let waits = |full| (Verdict::Waits(monotonic()), no_room(full));
        let gone = self.probed.make_room(of).map_err(waits)?;
        self.unprobe(gone);
        if self.guard.hit_ns.is_none() {
            self.guard.hit_ns = self.measure();
        }
        let pid = point.pid.or(self.options.pid);
        let events = self.attach(point.function, &file.path(), point.offset, pid);
        let events = events.map_err(|obstacle| (Verdict::Unfit, obstacle))?;
        log::info!(point:? = point; "attached");
        let since_ns = monotonic();
        let probes = Probes {
            since_ns,
            _events: events,
            file: file.into_file(),
        };
        self.probed.add(point, probes, of);
        Ok(since_ns)
    }

    /// Attaches to the return first: an entry that is remembered would be a loss if no program sees its
    /// return.
    fn attach(
        &self,
        function: Function,
        path: &str,
        offset: u64,
        pid: Option<u32>,
    ) -> Result<Vec<Event>, Obstacle> {
        let none = || {
            Obstacle::new(
                CauseId::NoKprobes,
                "this kernel has no uprobe events: CONFIG_UPROBE_EVENTS",
                "",
            )
        };
        let pmu = self.pmu.ok_or_else(none)?;
        let (entry, back) = function.programs();
        let attach = |program: &str, at_return| {
            let program = self.programs.get(program).ok_or_else(none)?;
            pmu.attach(program, path, offset, pid, at_return, function.cookie())
                .map_err(|error| explain(&error))
        };
        let back = back.map(|program| attach(program, true)).transpose()?;
        Ok(std::iter::once(attach(entry, false)?).chain(back).collect())
    }

    /// Measures the cost of a hit, ns: half of what entry and return add to a call of [`Sample`].
    fn measure(&self) -> Option<u64> {
        let (file, offset) = Sample::place()?;
        let plain = self.sample.call_ns();
        let own = Some(std::process::id());
        let events = self.attach(Function::PostSend, &file.path(), offset, own).ok()?;
        let probed = self.sample.call_ns();
        drop(events);
        Some((probed.saturating_sub(plain) / 2).max(1))
    }

    /// Updates the report. Returns false if the probes cost too much and must be removed.
    fn account(&mut self) -> bool {
        let mut sum = UserHits {
            hits: 0,
            unmatched: 0,
            missed: 0,
            reserved: [0; 5],
        };
        for cpu in 0..self.hits.count() {
            let hits = self.hits.read(cpu);
            sum.hits = sum.hits.saturating_add(hits.hits);
            sum.unmatched = sum.unmatched.saturating_add(hits.unmatched);
            sum.missed = sum.missed.saturating_add(hits.missed);
        }
        let here = self.judged.values().map(|qp| qp.rejected);
        let (sends, receives) = here.fold(self.rejected, add);
        let too_costly = self.guard.exceeds(sum.hits, Duration::from_nanos(monotonic()));
        let mut shared = locked(&self.shared);
        let ready = shared.ready.len() as u64;
        let report = &mut shared.report;
        report.functions = self.probed.len() as u64;
        report.qps = ready;
        report.hits = sum.hits;
        report.hits_per_s = self.guard.speed();
        report.hit_ns = self.guard.hit_ns;
        report.cores = self.guard.cores();
        report.unmatched = sum.unmatched;
        report.missed = sum.missed;
        report.rejected_sends = sends;
        report.rejected_receives = receives;
        report.failures = self.failures.causes();
        report
            .failures
            .extend(self.held.iter().map(|(_, cause)| cause.clone()));
        if too_costly {
            let why = format!(
                "the probes took {:.0}% of a core from the programs, and may take {:.0}%{}",
                self.guard.cores().unwrap_or(0.0) * 100.0,
                self.options.limit * 100.0,
                self.guard.most().map_or_else(String::new, |(pid, share)| {
                    format!(
                        "; of the calls for known queue pairs {:.0}% were those of process {pid}",
                        share * 100.0
                    )
                })
            );
            let remedy = "`--uprobe-limit` takes a higher percentage, `--uprobes=PID` probes one process";
            report.off = Some(off(Obstacle::new(
                CauseId::TooCostly,
                text::sanitize(why.as_bytes()),
                remedy,
            )));
            report.functions = 0;
            report.qps = 0;
            report.hits_per_s = None;
            report.cores = None;
            shared.ready.clear();
        }
        !too_costly
    }
}
