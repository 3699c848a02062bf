//! Reading the maps: losses, verb counters, counters of QPs. All through memory: see `maps.rs` of rdmatop-ebpf.

use std::sync::{Arc, Mutex, PoisonError};

use rdmatop_common::{
    counters::{QpSlot, VerbEntry, VerbErrorEntry, VerbKey, loss},
    names::map,
    verb,
};
use rustix::time::ClockId;
use zerocopy::IntoBytes as _;

use super::{
    carried::Carried,
    mapped::{Mapped, MappedError},
    session::Session,
    skipped::Skips,
    slots::SlotMap,
    verb_table::Table,
};
use crate::model::input::{ReadAt, Skipped, SlotHead, SlotsSample, VerbsSample};
use crate::source::{clock, proc::lives, root::Root};

/// Slots handed over at a time: ten thousand that all changed are 8 MB.
const SLOTS_A_SAMPLE: usize = 64;

/// Where the counts begin in a slot.
const COUNTS: usize = std::mem::offset_of!(QpSlot, doorbells);

/// The maps of one session.
struct Maps {
    losses: Mapped<u64>,
    verbs: Table<VerbEntry>,
    errors: Table<VerbErrorEntry>,
    /// `None` where no data path is counted.
    slots: Option<SlotMap>,
    /// Calls of post_send are in `verbs`, not only doorbells of `slots`.
    counts_writes: bool,
    /// The slots in use were told of once; since then only changes are.
    slots_told: bool,
    /// When they were last read.
    slots_at: Option<u64>,
    skips: Skips,
}

impl Maps {
    /// Takes the maps. Called before counting begins: the lists of free entries are filled here.
    fn of(session: &mut Session) -> Result<Self, MappedError> {
        let losses = session.take_map(map::LOSSES);
        Ok(Self {
            losses: Mapped::open(losses.ok_or(MappedError::NoMap("LOSSES"))?, "LOSSES")?,
            verbs: Table::open(
                session.take_map(map::VERBS),
                session.take_map(map::VERB_INDEX),
                session.take_map(map::FREE_VERBS),
                "VERBS",
            )?,
            errors: Table::open(
                session.take_map(map::VERB_ERRORS),
                session.take_map(map::VERB_ERROR_INDEX),
                session.take_map(map::FREE_VERB_ERRORS),
                "VERB_ERRORS",
            )?,
            slots: session.take_slots(),
            counts_writes: session.counts_writes(),
            slots_told: false,
            slots_at: None,
            skips: Skips::new(session.watched()),
        })
    }
}

/// Whether a process is there. The kernel side speaks of pids of the initial namespace, and so does our /proc.
fn is_alive(pid: u32) -> bool {
    lives(&Root::default(), pid)
}

/// Totals of sessions that have ended: a session's maps start at zero, what is told must not fall.
struct Past {
    losses: [u64; loss::COUNT as usize],
    /// There was a session.
    begun: bool,
    /// `None`: some session was not told of all.
    skipped: Option<Vec<Skipped>>,
    counts: Carried,
}

impl Default for Past {
    fn default() -> Self {
        Self {
            losses: [0; loss::COUNT as usize],
            begun: false,
            skipped: Some(Vec::new()),
            counts: Carried::default(),
        }
    }
}

impl Past {
    /// What was skipped in all, with what the present session says.
    fn and(&self, now: Option<Vec<Skipped>>) -> Option<Vec<Skipped>> {
        let mut all = self.skipped.clone()?;
        for skipped in now? {
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
    /// The programs do not run: what the maps say is no count of what happens.
    paused: bool,
}

/// The maps of the present session, shared by the ring reader and the sampler.
#[derive(Clone, Default)]
pub struct MapSweep(Arc<Mutex<Inner>>);

impl MapSweep {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the maps of a new session, before it counts.
    pub fn adopt(&self, session: &mut Session) -> Result<(), MappedError> {
        let maps = Maps::of(session);
        let mut inner = self.inner();
        inner.maps = None;
        inner.maps = Some(maps?);
        inner.paused = false;
        Ok(())
    }

    /// Tells nothing of QPs and verbs until the next session.
    pub(super) fn pause(&self) {
        self.inner().paused = true;
    }

    /// Lets go of an ending session's maps, keeping what it had lost and what it knew of processes.
    pub(super) fn release(&self) {
        self.look_for_all_skips();
        let (losses, skipped) = (self.losses(), self.skipped());
        self.inner().paused = false;
        let counts = self.verbs();
        let mut inner = self.inner();
        inner.past.losses = losses;
        if inner.maps.is_some() {
            (inner.past.begun, inner.past.skipped) = (true, skipped);
        }
        if let Some(counts) = counts {
            inner.past.counts.keep(counts, is_alive);
        }
        inner.maps = None;
    }

    /// Losses by cause, cumulative over all sessions. What the kernel skipped is as of the last
    /// [`MapSweep::look_for_skips`] or [`MapSweep::look_for_all_skips`].
    pub fn losses(&self) -> [u64; loss::COUNT as usize] {
        let inner = self.inner();
        let mut sums = [0; loss::COUNT as usize];
        if let Some(maps) = &inner.maps {
            for (cause, sum) in (0..maps.losses.count()).zip(sums.iter_mut()) {
                *sum = maps.losses.read(cause);
            }
            maps.skips.add_to(&mut sums);
        }
        for (sum, past) in sums.iter_mut().zip(inner.past.losses) {
            *sum += past;
        }
        sums
    }

    /// Programs that the kernel skipped, over all sessions, as of the last look; `None` where it does not count that.
    pub fn skipped(&self) -> Option<Vec<Skipped>> {
        let inner = self.inner();
        match &inner.maps {
            Some(maps) => inner.past.and(maps.skips.named()),
            None if inner.past.begun => inner.past.skipped.clone(),
            None => None,
        }
    }

    /// Asks the kernel about some of the programs, in turn: cheap enough for every round.
    pub fn look_for_skips(&self) {
        if let Some(maps) = &mut self.inner().maps {
            maps.skips.look();
        }
    }

    /// Asks about all programs: before losses are reported for the last time, and after the counts were read.
    pub fn look_for_all_skips(&self) {
        if let Some(maps) = &mut self.inner().maps {
            maps.skips.look_at_all();
        }
    }

    /// Verb counters now, `None` without a session. Entries of processes that are gone give way when room is scarce.
    /// Those of post_send are as of the last [`MapSweep::slots`].
    pub fn verbs(&self) -> Option<VerbsSample> {
        let mut inner = self.inner();
        let Inner { maps, past, paused } = &mut *inner;
        let maps = maps.as_mut().filter(|_| !*paused)?;
        // The failures first: none is then without its call.
        let errors = maps.errors.read(is_alive);
        let (verbs, span) = clock::timed(|| maps.verbs.read(is_alive));
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
            mono_ns: ReadAt::between(span.before_ns, span.after_ns).mono_ns,
            calls_only_ns: maps.slots_at,
            verbs: verbs.into_iter().map(|entry| (entry.key, entry.stats)).collect(),
            calls_only,
            errors: errors.into_iter().map(|entry| (entry.key, entry.count)).collect(),
        };
        past.counts.add_to(&mut sample);
        Some(sample)
    }

    /// Frees counter slots of destroyed QPs when slots are scarce; their counts are in the next [`MapSweep::slots`].
    pub(super) fn make_room(&self) {
        let mut inner = self.inner();
        if !inner.paused
            && let Some(slots) = inner.maps.as_mut().and_then(|maps| maps.slots.as_mut())
        {
            slots.make_room();
        }
    }

    /// Gives what has changed in the counters of QPs, in one sample or more; nothing where no data path is counted.
    /// Whoever asks must hand all of it on: a change is given once, and so is the slot of a destroyed QP.
    pub fn slots(&self, mono_ns: u64, out: &mut dyn FnMut(SlotsSample)) {
        let mut inner = self.inner();
        if inner.paused {
            return;
        }
        let Some(maps) = inner.maps.as_mut() else { return };
        let Some(slots) = maps.slots.as_mut() else { return };
        let mut sample = SlotsSample {
            mono_ns,
            partial: maps.slots_told,
            capacity: slots.capacity(),
            ..SlotsSample::default()
        };
        maps.slots_told = true;
        // In samples of their own: another QP may have the slot by now, and must be told of later.
        let kept = slots.take_kept();
        for some in kept.chunks(SLOTS_A_SAMPLE) {
            out(SlotsSample {
                slots: some.to_vec(),
                more: true,
                at: Some(ReadAt::from(monotonic())),
                ..sample.clone()
            });
        }
        let began_ns = monotonic();
        // When the first of those in `sample` was copied: between two samples the engine may have kept us waiting.
        let mut from_ns = began_ns;
        slots.sweep(|number, slot| {
            if slot.as_bytes().iter().skip(COUNTS).all(|byte| *byte == 0) {
                sample.idle.push((number, SlotHead::of(&slot)));
                return;
            }
            if sample.slots.len() == SLOTS_A_SAMPLE {
                let rest = SlotsSample {
                    slots: Vec::with_capacity(SLOTS_A_SAMPLE),
                    idle: std::mem::take(&mut sample.idle),
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
        });
        let ended_ns = monotonic();
        sample.at = Some(ReadAt::between(from_ns, ended_ns));
        maps.slots_at = Some(ReadAt::between(began_ns, ended_ns).mono_ns);
        out(sample);
    }
}

fn monotonic() -> u64 {
    clock::read(ClockId::Monotonic)
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
            skipped: Some(vec![skipped("a", 2)]),
            ..Past::default()
        };
        assert_eq!(
            past.and(Some(vec![skipped("b", 1), skipped("a", 3)])),
            Some(vec![skipped("a", 5), skipped("b", 1)])
        );
        assert_eq!(past.and(None), None);
        let unknown = Past {
            skipped: None,
            ..Past::default()
        };
        assert_eq!(unknown.and(Some(Vec::new())), None);
    }

    #[test]
    fn without_a_session_nothing_is_known_of_skips() {
        assert_eq!(MapSweep::default().skipped(), None);
    }
}
