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

use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_common::counters::{QpSlot, UserHits, UserQp, slot_flag};
use rustix::time::ClockId;

use super::{
    LOOK, Ready, Shared, UserOptions,
    failures::{Failures, ONE},
    guard::Guard,
    hooks::Function,
    locked, off,
    owners::Owners,
    price::Sample,
    probed::{Full, Gone, Party, Probed, Process},
    silent::{Silent, rest_ns},
    target::{Finder, Known, ProbePoint, Program, Target, Unfit},
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
    uprobes::{Opened, Place, keeps_a_reader, user},
};

/// What is done about a program that could not be read.
const AGAIN: &str = "it is asked again, after a longer time each time";

/// How often to try a QP that cannot be probed yet, one look after another, before it is tried at a lower
/// rate.
const TRIES: u32 = 10;
/// The most functions to probe at a time: each takes three or five open files.
const MOST_FUNCTIONS: usize = 128;
/// How often to look for probes that no program can hit any more, ns.
const TIDY_NS: u64 = 1_000_000_000;
/// How long not to ask again whether a process's memory lock is free, ns: the question takes seconds. As long
/// waits what finds no room.
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
            silent: Silent::default(),
            owners: Owners::default(),
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
    /// Not before this time, ns: because of [`Work::held`], because there is no room for more probes,
    /// because former ones are still being removed, or because its program could not be read.
    Waits(u64),
    Ready,
    Unfit,
}

/// What the thread knows about a QP.
struct Judged {
    verdict: Verdict,
    /// How often in a row it was put off, after [`TRIES`], because its program could not be read.
    unread: u32,
    /// Some of its posts are in no count, because its probes were replaced.
    has_gap: bool,
    /// Sends and receives that the provider has rejected so far.
    rejected: (u64, u64),
    /// How often its calls have hit a probe so far.
    hits: u64,
    /// The probed functions that it uses, until it is destroyed, and for whom.
    uses: Vec<ProbePoint>,
    of: Party,
}

impl Default for Judged {
    fn default() -> Self {
        Self {
            verdict: Verdict::Tried(0),
            unread: 0,
            has_gap: false,
            rejected: (0, 0),
            hits: 0,
            uses: Vec::new(),
            of: Party::default(),
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
    remover: Option<mpsc::Sender<Vec<Gone<Probes>>>>,
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
    silent: Silent,
    /// Processes with living QPs, including those that are not to be probed.
    owners: Owners,
    /// Why nothing can be probed at present, and when that was found, ns.
    held: Option<Held>,
}

/// The lock of a process's memory is held, or it is not known whether.
struct Held {
    since_ns: u64,
    /// Whose lock, if that is known.
    pid: Option<u32>,
    cause: Cause,
}

/// A QP in a slot.
#[derive(Clone, Copy)]
struct SlotQp {
    number: u32,
    born_ns: u64,
    pid: u32,
    owner: Process,
    qpn: u32,
    lives: bool,
}

impl SlotQp {
    fn key(&self) -> (u32, u64) {
        (self.number, self.born_ns)
    }
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
        let there: BTreeSet<(u32, u64)> = qps.iter().map(SlotQp::key).gather();
        let now_ns = monotonic();
        self.judged.retain(|key, qp| {
            let stays = there.contains(key);
            if !stays {
                self.rejected = add(self.rejected, qp.rejected);
                self.probed.release(&qp.uses, qp.of, now_ns);
            }
            stays
        });
        for qp in qps.iter().filter(|qp| !qp.lives) {
            if let Some(known) = self.judged.get_mut(&qp.key()) {
                self.probed
                    .release(&std::mem::take(&mut known.uses), known.of, now_ns);
            }
        }
        self.forget(&qps, now_ns);
        locked(&self.shared)
            .ready
            .retain(|number, ready| there.contains(&(*number, ready.born_ns)));
        let mut waiting = Vec::new();
        for qp in qps {
            let now = self.qps.read(qp.number);
            let known = self.judged.entry(qp.key()).or_default();
            known.rejected = (now.tx_rejected, now.rx_rejected);
            self.guard.called(qp.pid, now.hits.saturating_sub(known.hits));
            known.hits = now.hits;
            let tried = match known.verdict {
                Verdict::Tried(tried) => Some(tried),
                Verdict::Waits(until_ns) if until_ns <= now_ns && known.unread > 0 => Some(TRIES),
                Verdict::Waits(until_ns) if until_ns <= now_ns => Some(0),
                _ => None,
            };
            // Skip a destroyed QP: the memory of its program no longer describes it.
            if let Some(tried) = tried.filter(|_| qp.lives) {
                waiting.push((qp, now.handle, tried, self.owners.party(qp.pid, user)));
            }
        }
        self.turns.order(&mut waiting, now_ns, |(.., party)| *party);
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
            // The time of questions is charged already, that for a lock to whose lock it is.
            let else_ns = monotonic().saturating_sub(since_ns);
            let else_ns = else_ns.saturating_sub(std::mem::take(&mut self.finder.took_ns));
            self.turns.spent(party, else_ns);
            let known = self.judged.entry(qp.key()).or_default();
            (known.verdict, known.uses, known.of) = (verdict, uses, party);
        }
        self.tidy(now_ns);
        self.account()
    }

    /// Forgets what is said of processes that have ended, and of QPs that wait no more.
    fn forget(&mut self, qps: &[SlotQp], now_ns: u64) {
        let undecided = |qp: &&SlotQp| {
            let known = self.judged.get(&qp.key());
            qp.lives && known.is_none_or(|known| !matches!(known.verdict, Verdict::Ready | Verdict::Unfit))
        };
        let waits: BTreeSet<u32> = qps.iter().filter(undecided).map(|qp| qp.pid).gather();
        let alive: BTreeSet<u32> = qps.iter().filter(|qp| qp.lives).map(|qp| qp.pid).gather();
        self.failures
            .retain(|pid, passes| if passes { &waits } else { &alive }.contains(&pid));
        let owners = &self.owners;
        self.silent.retain(|process| owners.lives(process));
        self.held.take_if(|held| {
            let is_gone = held.pid.is_some_and(|pid| !owners.has(pid));
            // No QP has asked again, so those that waited are gone.
            let is_old = now_ns.saturating_sub(held.since_ns) > 2 * HELD_NS;
            is_gone || is_old || waits.is_empty()
        });
        self.turns.retain(&owners.known(), now_ns);
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
    fn unprobe(&mut self, gone: Vec<Gone<Probes>>) {
        if gone.is_empty() {
            return;
        }
        let remover = self.remover.get_or_insert_with(|| {
            let (to, gone) = mpsc::channel::<Vec<Gone<Probes>>>();
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
        let owners = &mut self.owners;
        owners.look();
        let read = |number| {
            let place = slots.at(number);
            // SAFETY: as above.
            let (qp, slot_qp) = unsafe {
                let owner = Process {
                    pid: read_volatile(&raw const (*place).owner_pid),
                    start_ns: read_volatile(&raw const (*place).owner_start_ns),
                };
                let slot_qp = SlotQp {
                    number,
                    born_ns: read_volatile(&raw const (*place).born_ns),
                    pid: owner.pid,
                    owner,
                    qpn: read_volatile(&raw const (*place).qpn),
                    lives: read_volatile(&raw const (*place).flags) & slot_flag::DESTROYED == 0,
                };
                (read_volatile(&raw const (*place).qp), slot_qp)
            };
            if qp != 0 && slot_qp.lives {
                owners.sees(slot_qp.owner);
            }
            (qp != 0 && wanted.is_none_or(|pid| pid == slot_qp.pid)).then_some(slot_qp)
        };
        let qps: Vec<SlotQp> = self.used_ranges.numbers(in_use).filter_map(read).collect();
        self.owners.seen();
        qps
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
        let now_ns = monotonic();
        // Each question to such a process would take the whole time limit.
        if let Some(until_ns) = self.silent.rests(party.process, now_ns, keeps_a_reader) {
            return Verdict::Waits(until_ns);
        }
        let program = Program {
            party,
            handle,
            qpn: qp.qpn,
        };
        let probed = &self.probed;
        let known = |file: &Opened, place: &Place| {
            let is_it = |probes: &Probes| file.is(&probes.file, place.offset);
            let file = probed.known_as(file.identity, is_it)?;
            let for_all = probed.has_for_all(file);
            Some(Known { file, for_all })
        };
        let found = self.finder.of(program, self.options.ends, known);
        let took_ns = self.finder.took_ns;
        if self.turns.took(party, took_ns, monotonic()) && !matches!(found, Ok(_) | Err(Unfit::Silent)) {
            let why = "its memory takes more than a second to answer, so others come first";
            self.fails(qp, party, Obstacle::new(CauseId::NotProbed, why, ""), true);
        }
        if !matches!(found, Err(Unfit::Silent)) {
            self.silent.answered(party.process);
        }
        let target = match found {
            Ok(target) => {
                self.judged.entry(qp.key()).or_default().unread = 0;
                target
            }
            Err(Unfit::NotYet(_)) if tried < TRIES => return Verdict::Tried(tried + 1),
            Err(Unfit::Silent) => {
                let why = "its memory does not answer: a page or the lock of it keeps who reads it waiting";
                self.fails(qp, party, Obstacle::new(CauseId::NotProbed, why, AGAIN), true);
                return Verdict::Waits(self.silent.was_late(party.process, monotonic()));
            }
            Err(Unfit::NotYet(why)) => {
                self.fails(qp, party, Obstacle::new(CauseId::NotProbed, why, AGAIN), true);
                let known = self.judged.entry(qp.key()).or_default();
                let until_ns = monotonic() + rest_ns(known.unread);
                known.unread += 1;
                return Verdict::Waits(until_ns);
            }
            Err(Unfit::Never(why)) => {
                self.fails(qp, party, Obstacle::new(CauseId::NotProbed, why, ""), false);
                return Verdict::Unfit;
            }
        };
        let Target {
            mut points,
            sends_are_seen,
        } = target;
        // What is probed is taken first, so that it does not make room for the others.
        points.order_by_key(|(point, _)| !self.probed.has(point));
        if let Err(full) = self.probed.has_room(party, points.iter().map(|(point, _)| point)) {
            self.fails(qp, party, no_room(full), true);
            return Verdict::Waits(monotonic() + HELD_NS);
        }
        let is_new = points.iter().any(|(point, _)| !self.probed.has(point));
        if is_new && self.must_wait() {
            return Verdict::Waits(monotonic() + HELD_NS);
        }
        if points.iter().any(|(point, _)| self.probed.is_leaving(point)) {
            return Verdict::Waits(monotonic() + ROUND_NS);
        }
        let mut since_ns = 0;
        for (point, file) in points {
            match self.probe(point, file, party) {
                Ok(since) => {
                    since_ns = since_ns.max(since);
                    uses.push(point);
                }
                Err((verdict, obstacle)) => {
                    self.probed.release(&std::mem::take(uses), party, monotonic());
                    self.fails(qp, party, obstacle, matches!(verdict, Verdict::Waits(_)));
                    return verdict;
                }
            }
        }
        if sends_are_seen {
            self.publish(qp.number, qp.born_ns, since_ns);
        } else {
            let why = "some of its ibv_wr_* calls share a function or are not in its library's file";
            self.fails(qp, party, Obstacle::new(CauseId::NotProbed, why, ""), false);
        }
        let ready = Ready {
            born_ns: qp.born_ns,
            since_ns,
            sends_are_seen,
            has_gap: self.judged.get(&qp.key()).is_some_and(|known| known.has_gap),
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
        let held = self.held.as_ref();
        if held.is_some_and(|held| now_ns.saturating_sub(held.since_ns) < HELD_NS) {
            return true;
        }
        let owners = self.owners.parties(user);
        let turns = &mut self.turns;
        let found = self.finder.locked(owners, |of, took_ns| turns.spent(of, took_ns));
        let (pid, why) = match found {
            Ok(None) => {
                self.held = None;
                return false;
            }
            Ok(Some(pid)) => {
                let why = format!("a call of process {pid} holds the lock of its memory");
                (Some(pid), why)
            }
            Err(why) => (None, why),
        };
        let remedy = "the locks are asked for again after ten seconds";
        self.held = Some(Held {
            since_ns: now_ns,
            pid,
            cause: off(Obstacle::new(CauseId::NotProbed, why, remedy)),
        });
        true
    }

    /// Tells the kernel side the time since when all functions of a QP have been probed.
    fn publish(&self, number: u32, born_ns: u64, since_ns: u64) {
        let place = self.qps.at(number);
        // SAFETY: the number is inside the mapping; the kernel side reads `probed_ns` only after it has found
        // this birth.
        unsafe {
            write_volatile(&raw mut (*place).probed_ns, since_ns);
            fence(Ordering::Release);
            write_volatile(&raw mut (*place).probed_birth_ns, born_ns);
        }
    }

    /// `passes`: a later try may succeed.
    fn fails(&mut self, qp: SlotQp, of: Party, obstacle: Obstacle, passes: bool) {
        // All QPs of a process fail for the same reason, so one line reports them.
        let what = format!("Not counted: work requests of process {}", qp.pid);
        let cause = obstacle.takes(what, Concerns::Host);
        if self.failures.add(qp.pid, of.user, cause.clone(), passes) {
            log::warn!(what = cause.what.as_str(), qp = qp.number, why = cause.why.as_str(); "refused");
        }
    }

    /// Probes a function for one more QP, if it is not probed yet. Returns since when it has been probed.
    fn probe(&mut self, point: ProbePoint, file: Opened, of: Party) -> Result<u64, (Verdict, Obstacle)> {
        if let Some(probes) = self.probed.take(&point, of) {
            return Ok(probes.since_ns);
        }
        if point.process.is_none() {
            self.replace_singles(&point);
        }
        let waits = |full| (Verdict::Waits(monotonic() + HELD_NS), no_room(full));
        let gone = self.probed.make_room(of).map_err(waits)?;
        self.unprobe(gone);
        if self.guard.hit_ns.is_none() {
            self.guard.hit_ns = self.measure();
        }
        let pid = point.process.map(|process| process.pid).or(self.options.pid);
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

    /// Removes the probes at a place for single processes, before it is probed for all. It waits for that: a
    /// program that hit both would count twice. What their QPs post meanwhile is in no count, and they are
    /// looked at anew.
    fn replace_singles(&mut self, place: &ProbePoint) {
        let gone = self.probed.singles(place);
        if gone.is_empty() {
            return;
        }
        let now_ns = monotonic();
        let mut late = Vec::new();
        for ((number, born_ns), known) in &mut self.judged {
            if known.uses.iter().any(|point| point.meets(place)) {
                let uses = std::mem::take(&mut known.uses);
                self.probed.release(&uses, known.of, now_ns);
                (known.verdict, known.has_gap) = (Verdict::Tried(0), true);
                locked(&self.shared).ready.remove(number);
                late.push((*number, *born_ns));
            }
        }
        for (number, born_ns) in late {
            self.publish(number, born_ns, now_ns);
        }
        log::info!(point:? = place; "replaced");
        drop(gone);
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
            .extend(self.held.iter().map(|held| held.cause.clone()));
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
