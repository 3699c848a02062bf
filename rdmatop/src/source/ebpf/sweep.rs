//! Reading the maps: losses, verb counters, counters of QPs.

use std::{
    collections::HashMap as StdHashMap,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError},
};

use aya::{
    Pod,
    maps::{HashMap, Map, MapData, MapError, PerCpuArray},
};
use rdmatop_common::{
    counters::{VerbErrorKey, VerbKey, VerbStats, loss},
    names::map,
};

use super::{fentry::misses, session::Session, slots::SlotMap};
use crate::model::input::{SlotsSample, VerbsSample};

/// ABI types as aya wants them: foreign trait and foreign type need a wrapper of ours.
macro_rules! pod {
    ($name:ident, $inner:ty) => {
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        struct $name($inner);

        // SAFETY: the wrapper is transparent over a type of rdmatop-common, which zerocopy has checked to be
        // plain integers without padding: any bytes are a valid value and no byte of it is uninitialised.
        unsafe impl Pod for $name {}
    };
}

pod!(Key, VerbKey);
pod!(ErrorKey, VerbErrorKey);

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Stats(VerbStats);

// SAFETY: as above: transparent over plain integers without padding.
unsafe impl Pod for Stats {}

/// Slots handed over at a time: ten thousand that all changed are 8 MB.
const SLOTS_A_SAMPLE: usize = 64;

/// The maps of one session.
struct Maps {
    losses: PerCpuArray<MapData, u64>,
    verbs: HashMap<MapData, Key, Stats>,
    errors: HashMap<MapData, ErrorKey, u64>,
    /// `None` where no data path is counted.
    slots: Option<SlotMap>,
    /// The slots in use were told of once; since then only changes are.
    slots_told: bool,
    /// Programs of the data path.
    programs: Vec<OwnedFd>,
}

impl Maps {
    fn of(session: &mut Session) -> Option<Self> {
        let slots = session.take_slots();
        let programs = session.datapath_programs();
        let mut take = |name: &str| -> Option<Map> { session.take_map(name) };
        Some(Self {
            losses: PerCpuArray::try_from(take(map::LOSSES)?).ok()?,
            verbs: HashMap::try_from(take(map::VERBS)?).ok()?,
            errors: HashMap::try_from(take(map::VERB_ERRORS)?).ok()?,
            slots,
            slots_told: false,
            programs,
        })
    }
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

    /// Takes over the maps of a new session.
    pub fn adopt(&self, session: &mut Session) {
        let mut inner = self.inner();
        inner.maps = Maps::of(session);
    }

    /// Lets go of an ending session's maps, keeping what it had lost.
    pub(super) fn release(&self) {
        let losses = self.losses();
        let mut inner = self.inner();
        inner.past.losses = losses;
        inner.maps = None;
    }

    /// Losses by cause, cumulative over all sessions.
    pub fn losses(&self) -> [u64; loss::COUNT as usize] {
        let inner = self.inner();
        let mut sums = inner.past.losses;
        if let Some(maps) = &inner.maps {
            for (cause, sum) in (0u32..).zip(sums.iter_mut()) {
                if let Ok(values) = maps.losses.get(&cause, 0) {
                    *sum += values.iter().sum::<u64>();
                }
            }
            if let Some(sum) = sums.get_mut(loss::MISSED as usize) {
                *sum += maps.programs.iter().filter_map(|p| misses(p).ok()).sum::<u64>();
            }
        }
        sums
    }

    /// Verb counters, `None` without a session. Processes that are gone are dropped from the maps by
    /// [`MapSweep::forget`].
    pub fn verbs(&self, mono_ns: u64) -> Option<VerbsSample> {
        let inner = self.inner();
        let maps = inner.maps.as_ref()?;
        // An entry that is deleted while it is walked over makes the walk start again: keep the last copy.
        let verbs: StdHashMap<_, _> = maps.verbs.iter().filter_map(Result::ok).collect();
        let errors: StdHashMap<_, _> = maps.errors.iter().filter_map(Result::ok).collect();
        Some(VerbsSample {
            mono_ns,
            verbs: verbs.into_iter().map(|(key, stats)| (key.0, stats.0)).collect(),
            errors: errors.into_iter().map(|(key, count)| (key.0, count)).collect(),
        })
    }

    /// Gives what has changed in the counters of QPs, in one sample or more; nothing where no data path is counted.
    /// Whoever asks must hand all of it on: a change is given once, and so is the slot of a destroyed QP.
    pub fn slots(&self, mono_ns: u64, out: &mut dyn FnMut(SlotsSample)) {
        let mut inner = self.inner();
        let Some(maps) = inner.maps.as_mut() else { return };
        let Some(slots) = maps.slots.as_mut() else { return };
        let mut sample = SlotsSample {
            mono_ns,
            partial: maps.slots_told,
            ..SlotsSample::default()
        };
        maps.slots_told = true;
        slots.sweep(|number, slot| {
            if sample.slots.len() == SLOTS_A_SAMPLE {
                let rest = SlotsSample {
                    slots: Vec::with_capacity(SLOTS_A_SAMPLE),
                    ..sample
                };
                let mut full = std::mem::replace(&mut sample, rest);
                full.more = true;
                out(full);
            }
            sample.slots.push((number, slot));
        });
        out(sample);
    }

    /// Gives back the entries of a process that has ended.
    pub fn forget(&self, pid: u32) {
        let mut inner = self.inner();
        let Some(maps) = inner.maps.as_mut() else { return };
        let keys: Vec<Key> = maps
            .verbs
            .keys()
            .filter_map(Result::ok)
            .filter(|k| k.0.pid == pid)
            .collect();
        for key in keys {
            let _: Result<(), MapError> = maps.verbs.remove(&key);
        }
        let keys: Vec<ErrorKey> = maps
            .errors
            .keys()
            .filter_map(Result::ok)
            .filter(|k| k.0.pid == pid)
            .collect();
        for key in keys {
            let _: Result<(), MapError> = maps.errors.remove(&key);
        }
    }
}
