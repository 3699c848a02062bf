//! Reads losses, verb counters and counters of QPs from the maps, always through mmap. `maps.rs` of
//! rdmatop-ebpf says why.

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rdmatop_common::{
    counters::{QpSlot, VerbEntry, VerbErrorEntry, VerbKey, loss},
    names::map,
    verb,
    wr::count,
};

use crate::{
    maps::{
        callers::{Callers, Floods},
        carried::Carried,
        mapped::{Mapped, MappedError},
        rxe_seen::RxeCounts,
        skipped::Skips,
        slots::SlotMap,
        verb_table::{Entry, Table},
    },
    session::Session,
    user::UserPath,
};
use rdmatop_model::cause::Cause;
use rdmatop_model::input::{Flood, ReadAt, SeenByPrograms, Skipped, SlotsSample, UprobesReport, VerbsSample};
use rdmatop_sources::{
    clock::{self, monotonic},
    proc::lives,
    root::Root,
};

/// How many slots to pass on at a time: ten thousand changed slots take 8 MB.
const SLOTS_A_SAMPLE: usize = 64;

struct Maps {
    losses: Mapped<u64>,
    /// The value of `loss::REFUSED` when the last complete list of QPs began.
    listed: Arc<AtomicU64>,
    callers: Callers,
    /// `None` if no program counts verbs.
    verbs: Option<Table<VerbEntry>>,
    /// `None` if no program counts failures.
    errors: Option<Table<VerbErrorEntry>>,
    /// `None` if no data path is counted.
    slots: Option<SlotMap>,
    /// `None` without `--uprobes`. The error says why nothing is probed.
    user: Option<Result<UserPath, Cause>>,
    /// `verbs` includes the calls of post_send, so the doorbells in `slots` must not be added.
    counts_writes: bool,
    /// All slots in use have been reported once; from now on only changed ones are.
    slots_told: bool,
    /// All verbs have been reported once; from now on only changed ones are.
    verbs_told: bool,
    /// The time of the last reading of the slots.
    slots_at: Option<u64>,
    skips: Skips,
    /// What SoftRoCE's programs saw; `None` if the kernel counts what it skips, or skips nothing.
    seen: Option<RxeCounts>,
    /// Counts of work requests; `None` if no trace follows them.
    work: Option<Mapped<u64>>,
    /// The largest result of [`Maps::unreported_work`] so far.
    unreported: Cell<u64>,
}

/// Counts of work requests, by [`count`].
pub(crate) type WorkCounts = [u64; count::COUNT as usize];

impl Maps {
    /// Takes the maps. Call it before counting begins, because it fills the lists of free entries.
    fn of(session: &mut Session, floods: Floods) -> Result<Self, MappedError> {
        let losses = session.take_map(map::LOSSES);
        let (seen, work) = (session.take_map(map::RXE_SEEN), session.take_map(map::WR_COUNTS));
        let seen = seen.filter(|_| session.compares != [false; 2]);
        let work = work.filter(|_| session.follows_work());
        Ok(Self {
            losses: Mapped::open(losses.ok_or(MappedError::NoMap("LOSSES"))?, "LOSSES")?,
            listed: Arc::default(),
            callers: Callers::open(session.take_map(map::CALLERS), floods)?,
            verbs: table(session, [map::VERBS, map::VERB_INDEX, map::FREE_VERBS])?,
            errors: table(
                session,
                [map::VERB_ERRORS, map::VERB_ERROR_INDEX, map::FREE_VERB_ERRORS],
            )?,
            slots: session.slots.take(),
            user: session.user.take(),
            counts_writes: session.counts_writes(),
            slots_told: false,
            verbs_told: false,
            slots_at: None,
            skips: Skips::new(session.watched()),
            seen: seen
                .map(|seen| RxeCounts::open(seen, session.compares))
                .transpose()?,
            work: work.map(|counts| Mapped::open(counts, "WR_COUNTS")).transpose()?,
            unreported: Cell::new(0),
        })
    }

    /// The present value of `loss::REFUSED`; `None` if all QPs have been listed since it last grew.
    fn unlisted(&self) -> Option<u64> {
        let refused = self.losses.read(loss::REFUSED);
        (refused > self.listed.load(Ordering::Relaxed)).then_some(refused)
    }

    fn work(&self) -> WorkCounts {
        let mut counts = WorkCounts::default();
        if let Some(map) = &self.work {
            for (what, count) in (0..map.count()).zip(counts.iter_mut()) {
                *count = map.read(what);
            }
        }
        counts
    }

    /// Ends of work requests in skipped runs that nothing else has reported. The result never falls: what has
    /// been reported as lost stays lost, even if the QP's next visit finds it. Otherwise fewer would have
    /// happened than were seen and lost.
    fn unreported_work(&self) -> u64 {
        let work = self.work();
        let reported = work[count::HEALED as usize] + work[count::INDEXED as usize];
        let unreported = self.skips.of_work().saturating_sub(reported);
        self.unreported.set(self.unreported.get().max(unreported));
        self.unreported.get()
    }
}

/// The table that these maps form: its array, its index and its free numbers. `None` if no program uses it.
fn table<T: Entry>(
    session: &mut Session,
    [array, index, free]: [&'static str; 3],
) -> Result<Option<Table<T>>, MappedError> {
    let maps = (
        session.take_map(array),
        session.take_map(index),
        session.take_map(free),
    );
    let (Some(entries), Some(index), Some(free)) = maps else {
        return Ok(None);
    };
    Table::open(entries, index, free, array).map(Some)
}

/// Whether a process exists. The kernel side reports PIDs of the initial namespace, as this /proc does.
fn is_alive(pid: u32) -> bool {
    lives(&Root::default(), pid)
}

/// Totals of sessions that have ended. A new session's maps start at zero, but reported totals must not fall.
#[derive(Default)]
struct Past {
    losses: [u64; loss::COUNT as usize],
    floods: Floods,
    /// At least one session has run.
    begun: bool,
    skipped: Vec<Skipped>,
    /// In some session the kernel did not report skips.
    uncounted: bool,
    counts: Carried,
    work: WorkCounts,
}

impl Past {
    /// All skips so far, including those of the present session.
    fn and(&self, now: Option<Vec<Skipped>>) -> Option<Vec<Skipped>> {
        let mut all = self.skipped.clone();
        for skipped in now.filter(|_| !self.uncounted)? {
            match all.iter_mut().find(|known| known.hook == skipped.hook) {
                Some(known) => known.count += skipped.count,
                None => all.push(skipped),
            }
        }
        Some(all)
    }
}

#[derive(Default)]
struct Inner {
    maps: Option<Maps>,
    past: Past,
    /// The programs do not run at present, so the maps miss what happens.
    paused: bool,
    sessions: u64,
    /// Probes on one process that the user asked for in the live view.
    requested: Option<RequestedProbes>,
    /// Such probes have ended, and the engine has not been told yet.
    requested_over: bool,
}

/// Probes that the user asked for; `number` counts the user's requests.
struct RequestedProbes {
    number: u64,
    /// The counters; until the probes count, a report about them.
    path: Result<UserPath, UprobesReport>,
}

/// The maps of the present session, shared by the ring reader and the sampler.
#[derive(Clone, Default)]
pub struct MapSweep(Arc<Mutex<Inner>>);

impl std::fmt::Debug for MapSweep {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MapSweep")
    }
}

impl MapSweep {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the maps of a new session, before it counts.
    pub fn adopt(&self, session: &mut Session) -> Result<(), MappedError> {
        let maps = Maps::of(session, self.inner().past.floods.clone());
        let mut inner = self.inner();
        inner.maps = None;
        inner.maps = Some(maps?);
        inner.sessions += 1;
        inner.paused = false;
        Ok(())
    }

    /// Reports nothing about QPs and verbs until the next session.
    pub(crate) fn pause(&self) {
        self.inner().paused = true;
    }

    /// Drops the maps of an ending session, but keeps its losses and its counts per process.
    pub(crate) fn release(&self) {
        self.read_skips();
        let (losses, skipped, work) = (self.losses(), self.skipped(), self.work());
        self.floods();
        self.inner().paused = false;
        let counts = self.verbs(true);
        let mut inner = self.inner();
        inner.past.losses = losses;
        inner.past.work = work.unwrap_or(inner.past.work);
        if inner.maps.is_some() {
            (inner.past.begun, inner.past.uncounted) = (true, skipped.is_none());
            inner.past.skipped = skipped.unwrap_or_default();
        }
        if let Some(counts) = counts {
            inner.past.counts.keep(counts, is_alive);
        }
        inner.maps = None;
    }

    /// Losses by cause, cumulative over all sessions. Skips by the kernel are as of the last
    /// [`MapSweep::read_skips`].
    pub fn losses(&self) -> [u64; loss::COUNT as usize] {
        let inner = self.inner();
        let mut sums = [0; loss::COUNT as usize];
        if let Some(maps) = &inner.maps {
            for (cause, sum) in (0..maps.losses.count()).zip(sums.iter_mut()) {
                *sum = maps.losses.read(cause);
            }
            maps.skips.add_to(&mut sums);
            sums[loss::WR_MISSED as usize] += maps.unreported_work();
        }
        for (sum, past) in sums.iter_mut().zip(inner.past.losses) {
            *sum += past;
        }
        sums
    }

    /// Processes that made more events than they may, over all sessions.
    pub fn floods(&self) -> Vec<Flood> {
        let mut inner = self.inner();
        let Inner { maps, past, .. } = &mut *inner;
        if let Some(maps) = maps {
            past.floods = maps.callers.read(monotonic());
        }
        past.floods.clone().rows()
    }

    /// What SoftRoCE's programs have seen so far; `None` if they do not count it, or not now.
    pub fn seen(&self, mono_ns: u64) -> Option<SeenByPrograms> {
        let inner = self.inner();
        let maps = inner.maps.as_ref().filter(|_| !inner.paused)?;
        Some(maps.seen.as_ref()?.read(inner.sessions, mono_ns))
    }

    /// Number and cost of probes on programs; `None` if the user asked for none, or between two sessions.
    pub fn uprobes(&self) -> Option<UprobesReport> {
        let inner = self.inner();
        if let Some(asked) = &inner.requested {
            return Some(match &asked.path {
                Ok(user) => user.report(),
                Err(report) => report.clone(),
            });
        }
        Some(match inner.maps.as_ref()?.user.as_ref()? {
            Ok(user) => user.report(),
            Err(cause) => UprobesReport {
                off: Some(cause.clone()),
                ..UprobesReport::default()
            },
        })
    }

    /// Notes that the user has asked for probes on one process.
    pub(crate) fn request_probes(&self, number: u64, report: UprobesReport) {
        let path = Err(report);
        self.inner().requested = Some(RequestedProbes { number, path });
    }

    /// Notes that the probes of this request count, so that [`MapSweep::slots`] reads them from now on, or
    /// passes on a report about them. Does nothing if the user no longer asks for them.
    pub(crate) fn set_probes(&self, number: u64, path: Result<UserPath, UprobesReport>) {
        let mut inner = self.inner();
        if let Some(asked) = inner.requested.as_mut().filter(|asked| asked.number == number) {
            asked.path = path;
        }
    }

    /// Notes that the user no longer asks for these probes. Their thread detaches them.
    pub(crate) fn end_probes(&self, number: u64) {
        let mut inner = self.inner();
        let ended = inner.requested.take_if(|asked| asked.number == number);
        inner.requested_over |= ended.is_some();
    }

    /// Whether such probes have ended since the last call.
    pub fn uprobes_are_over(&self) -> bool {
        std::mem::take(&mut self.inner().requested_over)
    }

    /// Counts of work requests, cumulative over all sessions; `None` if no trace follows them.
    pub(crate) fn work(&self) -> Option<WorkCounts> {
        let inner = self.inner();
        let maps = inner.maps.as_ref()?;
        maps.work.as_ref()?;
        let mut sums = maps.work();
        sums[count::HAPPENED as usize] += maps.unreported_work();
        for (sum, past) in sums.iter_mut().zip(inner.past.work) {
            *sum += past;
        }
        Some(sums)
    }

    /// Programs that the kernel skipped, over all sessions, as of the last look. `None` if the kernel does
    /// not count skips.
    pub fn skipped(&self) -> Option<Vec<Skipped>> {
        let inner = self.inner();
        match &inner.maps {
            Some(maps) => inner.past.and(maps.skips.named()),
            None if inner.past.begun => inner.past.and(Some(Vec::new())),
            None => None,
        }
    }

    /// Asks the kernel how often it skipped the programs. Call it also before losses are reported for the
    /// last time, but after the counts have been read.
    pub fn read_skips(&self) {
        if let Some(maps) = &mut self.inner().maps {
            maps.skips.read();
        }
    }

    /// Verb counters at present; `None` without a session. When room is scarce, this drops entries of ended
    /// processes. Calls of post_send that come from doorbells are as of the last [`MapSweep::slots`]. The
    /// first sample of a session has all entries, later ones only those that changed, unless `all` is set.
    pub fn verbs(&self, all: bool) -> Option<VerbsSample> {
        let mut inner = self.inner();
        let Inner {
            maps, past, paused, ..
        } = &mut *inner;
        let maps = maps.as_mut().filter(|_| !*paused)?;
        // Read failures first, so that the calls include each failure that was read.
        let partial = std::mem::replace(&mut maps.verbs_told, true) && !all;
        let errors = maps.errors.as_mut().map(|table| table.read(!partial, is_alive));
        let (verbs, span) = clock::timed(|| maps.verbs.as_mut().map(|table| table.read(!partial, is_alive)));
        let ((verbs, gone), (errors, _)) = (verbs.unwrap_or_default(), errors.unwrap_or_default());
        let mut calls_only = Vec::new();
        if let Some(slots) = &mut maps.slots
            && !maps.counts_writes
        {
            slots.forget_posts(is_alive);
            let key = |pid| VerbKey {
                pid,
                verb: verb::POST_SEND,
            };
            calls_only.extend(slots.posts().map(|(pid, calls)| (key(pid), calls)));
        }
        let mut sample = VerbsSample {
            mono_ns: span.mono_ns,
            calls_only_ns: maps.slots_at,
            partial,
            gone: gone.iter().map(|key| (key.pid, key.verb)).collect(),
            verbs: verbs.iter().map(|entry| (entry.key, entry.stats)).collect(),
            calls_only,
            errors: errors.iter().map(|entry| (entry.key, entry.count)).collect(),
        };
        past.counts.add_to(&mut sample);
        Some(sample)
    }

    /// How often QPs found no room in the tables so far, and where to write that number once all QPs have
    /// been listed. `None` if no QP was refused since the last list.
    pub(crate) fn unlisted(&self) -> Option<(u64, Arc<AtomicU64>)> {
        let inner = self.inner();
        let maps = inner.maps.as_ref()?;
        // Without slots no work request is counted, so a missing QP does not matter.
        maps.slots.as_ref()?;
        Some((maps.unlisted()?, Arc::clone(&maps.listed)))
    }

    /// Frees counter slots of destroyed QPs when slots are scarce; the next [`MapSweep::slots`] has their
    /// counts. Returns true if it has looked for all of these QPs and freed their slots.
    pub(crate) fn make_room(&self) -> bool {
        // The sampler holds the lock while it waits for the engine. The reader of records must not wait.
        let Ok(mut inner) = self.0.try_lock() else {
            return false;
        };
        let Inner { maps, paused, .. } = &mut *inner;
        let slots = maps.as_mut().and_then(|maps| maps.slots.as_mut());
        slots.filter(|_| !*paused).is_some_and(SlotMap::make_room)
    }

    /// Passes on the counters of QPs that have changed, in one or more samples; nothing if no data path is
    /// counted. The caller must use every sample, because each change is reported once, and so is the slot of
    /// a destroyed QP.
    pub fn slots(&self, mono_ns: u64, out: &mut dyn FnMut(SlotsSample)) {
        let mut inner = self.inner();
        if inner.paused {
            return;
        }
        let Inner { maps, requested, .. } = &mut *inner;
        let Some(maps) = maps.as_mut() else { return };
        if maps.slots.is_none() && maps.user.is_none() && requested.is_none() {
            return;
        }
        let mut sample = SlotsSample {
            mono_ns,
            partial: maps.slots_told,
            capacity: maps.slots.as_ref().map_or(0, SlotMap::capacity),
            lacks_some: maps.slots.is_some() && maps.unlisted().is_some(),
            ..SlotsSample::default()
        };
        maps.slots_told = true;
        // They get samples of their own: another QP may have the slot by now, and must be reported later.
        let kept = maps.slots.as_mut().map(SlotMap::take_kept).unwrap_or_default();
        for some in kept.chunks(SLOTS_A_SAMPLE) {
            out(SlotsSample {
                slots: some.to_vec(),
                more: true,
                at: Some(ReadAt::from(monotonic())),
                ..sample.clone()
            });
        }
        let began_ns = monotonic();
        // The time at which the first slot in `sample` was copied: between two samples the engine may have
        // made this thread wait.
        let mut from_ns = began_ns;
        let mut put = |number, slot: QpSlot| {
            if sample.slots.len() == SLOTS_A_SAMPLE {
                let rest = SlotsSample {
                    slots: Vec::with_capacity(SLOTS_A_SAMPLE),
                    ..sample
                };
                let mut full = std::mem::replace(&mut sample, rest);
                full.more = true;
                full.at = Some(ReadAt::between(from_ns, monotonic()));
                out(full);
            }
            if sample.slots.is_empty() {
                from_ns = monotonic();
            }
            sample.slots.push((number, slot));
        };
        if let Some(slots) = &mut maps.slots {
            slots.sweep(&mut put);
        }
        if let Some(Ok(user)) = &mut maps.user {
            user.sweep(&mut put);
        } else if let Some(RequestedProbes { path: Ok(user), .. }) = requested {
            user.sweep(&mut put);
        }
        let ended_ns = monotonic();
        sample.at = Some(ReadAt::between(from_ns, ended_ns));
        maps.slots_at = Some(ReadAt::between(began_ns, ended_ns).mono_ns);
        out(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(hook: &str, count: u64) -> Skipped {
        Skipped {
            program: hook.to_owned(),
            hook: hook.to_owned(),
            count,
            cost: String::new(),
        }
    }

    #[test]
    fn what_was_skipped_adds_up_over_sessions_until_one_does_not_know() {
        let past = Past {
            skipped: vec![skipped("a", 2)],
            ..Past::default()
        };
        assert_eq!(
            past.and(Some(vec![skipped("b", 1), skipped("a", 3)])),
            Some(vec![skipped("a", 5), skipped("b", 1)])
        );
        assert_eq!(past.and(None), None);
        let unknown = Past {
            uncounted: true,
            ..Past::default()
        };
        assert_eq!(unknown.and(Some(Vec::new())), None);
    }

    #[test]
    fn without_a_session_nothing_is_known_of_skips() {
        assert_eq!(MapSweep::default().skipped(), None);
    }
}
