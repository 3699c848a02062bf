//! Reading the maps: losses, verb counters, counters of QPs. All through memory: see `maps.rs` of rdmatop-ebpf.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rdmatop_common::{
    counters::{VerbEntry, VerbErrorEntry, VerbKey, VerbStats, loss},
    names::map,
    verb,
};
use zerocopy::FromZeros as _;

use super::{
    mapped::{Mapped, MappedError},
    session::Session,
    skipped::Skips,
    slots::SlotMap,
    verb_table::Table,
};
use crate::model::input::{SlotsSample, VerbsSample};

/// The maps of one session.
struct Maps {
    losses: Mapped<u64>,
    verbs: Table<VerbEntry>,
    errors: Table<VerbErrorEntry>,
    /// `None` where no data path is counted.
    slots: Option<SlotMap>,
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
            skips: Skips::new(session.watched()),
        })
    }
}

/// Whether a process is there. The kernel side speaks of pids of the initial namespace, and so does our /proc.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Totals of sessions that have ended: a session's maps start at zero, what is told must not fall.
#[derive(Default)]
struct Past {
    losses: [u64; loss::COUNT as usize],
}

#[derive(Default)]
struct Inner {
    maps: Option<Maps>,
    past: Past,
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
        Ok(())
    }

    /// Lets go of an ending session's maps, keeping what it had lost.
    pub(super) fn release(&self) {
        let losses = self.final_losses();
        let mut inner = self.inner();
        inner.past.losses = losses;
        inner.maps = None;
    }

    /// Losses by cause, cumulative over all sessions. What the kernel skipped is as of the last
    /// [`MapSweep::look_for_skips`].
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

    /// Asks the kernel about some of the programs, in turn: cheap enough for every round.
    pub fn look_for_skips(&self) {
        if let Some(maps) = &mut self.inner().maps {
            maps.skips.look();
        }
    }

    /// As [`MapSweep::losses`], with what the kernel has skipped until now.
    pub fn final_losses(&self) -> [u64; loss::COUNT as usize] {
        if let Some(maps) = &mut self.inner().maps {
            maps.skips.look_at_all();
        }
        self.losses()
    }

    /// Verb counters, `None` without a session. Entries of processes that are gone give way when room is scarce.
    /// Those of post_send are as of the last [`MapSweep::slots`].
    pub fn verbs(&self, mono_ns: u64) -> Option<VerbsSample> {
        let mut inner = self.inner();
        let maps = inner.maps.as_mut()?;
        // The failures first: none is then without its call.
        let errors = maps.errors.read(is_alive);
        let verbs = maps.verbs.read(is_alive);
        let mut verbs: Vec<_> = verbs.into_iter().map(|entry| (entry.key, entry.stats)).collect();
        // With a data path write() has no probe: its doorbells are the calls of post_send. Without durations.
        if let Some(slots) = &mut maps.slots {
            slots.forget_posts(is_alive);
            verbs.extend(slots.posts().map(|(pid, calls)| {
                let verb = verb::POST_SEND;
                (
                    VerbKey { pid, verb },
                    VerbStats {
                        calls,
                        ..VerbStats::new_zeroed()
                    },
                )
            }));
        }
        Some(VerbsSample {
            mono_ns,
            verbs,
            errors: errors.into_iter().map(|entry| (entry.key, entry.count)).collect(),
        })
    }

    /// Counters of QPs, `None` where no data path is counted. Whoever asks must hand all of it on: the slot of a
    /// destroyed QP is given once.
    pub fn slots(&self, mono_ns: u64) -> Option<SlotsSample> {
        let mut inner = self.inner();
        let slots = inner.maps.as_mut()?.slots.as_mut()?.sweep();
        Some(SlotsSample { mono_ns, slots })
    }
}
