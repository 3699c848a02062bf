//! `--uprobes`: work requests of programs whose posts do not enter the kernel, by probes on the provider's
//! functions.
//!
//! The kernel side finds the QPs (`hooks`) and counts each in a slot. A thread (`worker`) looks at the slots
//! (`arrays`) and leads each QP through its stages (`stages`): it finds the functions that the QP's program
//! posts with (`questions`, `target`), and attaches probes to each function of a file once (`attacher`).
//! Functions of the system's libraries are probed for all processes that map the file, so that nothing is
//! missed of processes that start later; those of any other file are probed for one process. The model gets
//! only QPs whose functions are probed. `guard` watches the cost, which `price` measures.
mod arrays;
mod attacher;
mod failures;
mod guard;
mod hooks;
mod owners;
mod price;
mod probed;
mod questions;
mod silent;
mod stages;
mod target;
mod turns;
mod worker;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use aya::maps::{HashMap as AyaHashMap, Map, MapData, Stack};
use rdmatop_common::{
    counters::{QpSlot, UserHits, UserQp, free, slot_flag},
    names::map,
};

pub use hooks::{HOOKS, PROGRAMS};

use crate::{
    attach::explain,
    load::{Loader, Target},
    maps::{
        mapped::{Mapped, MappedError},
        slots::SlotMap,
    },
};
use arrays::Arrays;
use attacher::Programs;
use price::Sample;
use rdmatop_model::{
    cause::{Cause, Concerns, Obstacle},
    input::UprobesReport,
};
use rdmatop_sources::clock::monotonic;
use worker::Worker;

/// What the user asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UserOptions {
    /// One process, by its PID in the initial namespace, or all.
    pub pid: Option<u32>,
    /// How much of a core the probes may take.
    pub limit: f64,
    /// Probe the functions that return completions too: for records of the ends of work requests.
    pub ends: bool,
}

impl UserOptions {
    /// The report before anything is probed.
    pub(super) fn report(self) -> UprobesReport {
        UprobesReport {
            pid: self.pid,
            limit: self.limit,
            ..UprobesReport::default()
        }
    }
}

/// The sweep numbers user slots from here on, above all other slots.
pub(super) const FIRST_NUMBER: u32 = 1 << 20;

/// What the worker thread shares with the sweep.
#[derive(Debug, Default)]
struct Shared {
    /// QPs whose functions are probed, by number.
    ready: HashMap<u32, Ready>,
    report: UprobesReport,
}

/// A QP whose functions are all probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ready {
    born_ns: u64,
    /// When the last of its functions was probed.
    since_ns: u64,
    sends_are_seen: bool,
    /// Its probes were replaced, and what it posted meanwhile is in no count.
    has_gap: bool,
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Slots and worker of the probed QPs of one session.
pub(super) struct UserPath {
    slots: SlotMap,
    shared: Arc<Mutex<Shared>>,
    /// Ends when this is dropped. Nobody waits for the thread, because detaching its probes takes long.
    _worker: Worker,
}

impl UserPath {
    /// Takes the maps, loads the programs and starts the thread. Call it before counting begins, because it
    /// makes system calls on maps.
    pub(super) fn open(
        options: UserOptions,
        loader: &Loader,
        maps: &mut HashMap<String, Map>,
    ) -> Result<Self, Obstacle> {
        let load = |name| loader.load(name, &Target::Kprobe).map(|program| (name, program));
        let programs = programs(options).map(load).collect::<Result<Programs, _>>();
        let programs = programs.map_err(|error| explain(&error))?;
        let sample = Sample::new();
        Self::mapped(options, programs, sample, maps).map_err(|error| explain(&error))
    }

    fn mapped(
        options: UserOptions,
        programs: Programs,
        sample: Sample,
        maps: &mut HashMap<String, Map>,
    ) -> Result<Self, MappedError> {
        let mut take = |name: &'static str| maps.remove(name).ok_or(MappedError::NoMap(name));
        let (slots, mut free) = (take(map::USER_SLOTS)?, take(map::FREE_USER)?);
        let heads = Mapped::<QpSlot>::open(&slots, map::USER_SLOTS)?;
        let qps = Mapped::<UserQp>::open(take(map::USER_QPS)?, map::USER_QPS)?;
        let hits = Mapped::<UserHits>::open(take(map::USER_HITS)?, map::USER_HITS)?;
        let slots = SlotMap::open(slots, &mut free, map::USER_SLOTS, Vec::new())?;
        own(free, take(map::USER_INDEX)?, sample.handle())?;
        let shared = Arc::new(Mutex::new(Shared {
            report: options.report(),
            ..Shared::default()
        }));
        let arrays = Arrays::new(heads, qps, hits);
        let worker = Worker::start(options, programs, sample, arrays, Arc::clone(&shared));
        Ok(Self {
            slots,
            shared,
            _worker: worker,
        })
    }

    /// Passes on the slots that have changed, numbered from [`FIRST_NUMBER`] on.
    pub(super) fn sweep(&mut self, mut give: impl FnMut(u32, QpSlot)) {
        let (ready, pid) = {
            let shared = locked(&self.shared);
            if shared.report.off.is_some() {
                return;
            }
            (shared.ready.clone(), shared.report.pid)
        };
        let of = |number, born_ns| ready.get(&number).filter(|ready| ready.born_ns == born_ns);
        self.slots.sweep_some(
            |number, born_ns| of(number, born_ns).is_some(),
            |number, slot| {
                if let Some(ready) = of(number, slot.born_ns) {
                    give(FIRST_NUMBER + number, completed(&slot, *ready));
                } else if slot.flags & slot_flag::DESTROYED != 0
                    && pid.is_none_or(|pid| pid == slot.owner_pid)
                {
                    give(FIRST_NUMBER + number, unjudged(&slot));
                }
            },
        );
    }

    /// Number and cost of the probes.
    pub(super) fn report(&self) -> UprobesReport {
        locked(&self.shared).report.clone()
    }
}

pub(super) fn programs(options: UserOptions) -> impl Iterator<Item = &'static str> {
    let polls = |name: &str| name.starts_with("user_poll_");
    PROGRAMS
        .into_iter()
        .filter(move |name| options.ends || !polls(name))
}

/// No program sees WRs finish, so the accepted WRs count as finished.
fn done_as_posted(mut slot: QpSlot) -> QpSlot {
    slot.tx_done = slot.tx_posted;
    slot
}

/// Adapts a slot to how its QP is probed.
fn completed(slot: &QpSlot, ready: Ready) -> QpSlot {
    let mut slot = done_as_posted(*slot);
    // Posts that the QP made before its functions were probed are missing.
    let is_late = ready.since_ns > slot.since_ns && slot.flags & slot_flag::SINCE_ATTACH == 0;
    if is_late || ready.has_gap {
        slot.flags |= slot_flag::SINCE_ATTACH | slot_flag::LATE;
    }
    if !ready.sends_are_seen {
        slot.flags |= slot_flag::NO_SENDS;
    }
    slot
}

/// The last counts of a QP whose functions the worker has not looked at, or could not probe. Probes for other
/// programs may have counted none, some or all of its posts.
fn unjudged(slot: &QpSlot) -> QpSlot {
    let mut slot = done_as_posted(*slot);
    slot.flags |= slot_flag::SINCE_ATTACH | slot_flag::LATE;
    slot
}

/// Takes a number for rdmatop's own QP, to which only [`Sample`] posts. Its slot shows as free.
fn own(free: Map, index: Map, handle: u64) -> Result<(), MappedError> {
    let mut free: Stack<MapData, u64> =
        Stack::try_from(free).map_err(|_| MappedError::NoMap(map::FREE_USER))?;
    let (first, end) = free::unpack(free.pop(0)?);
    free.push(free::pack(first + 1, end), 0)?;
    let mut index: AyaHashMap<MapData, [u64; 2], u32> =
        AyaHashMap::try_from(index).map_err(|_| MappedError::NoMap(map::USER_INDEX))?;
    // The key has the layout of `UserKey` in rdmatop-ebpf: handle, process, zero.
    index.insert([handle, u64::from(std::process::id())], first, 0)?;
    Ok(())
}

/// The cause to report when nothing is probed.
pub(super) fn off(obstacle: Obstacle) -> Cause {
    obstacle.takes(
        "Not counted: work requests that bypass the kernel",
        Concerns::Host,
    )
}

/// How often the thread looks for new QPs.
const LOOK: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros as _;

    #[test]
    fn counts_that_began_late_are_told_from_those_of_qps_from_before() {
        const OLD: u32 = slot_flag::SINCE_ATTACH;
        const LATE: u32 = slot_flag::SINCE_ATTACH | slot_flag::LATE;
        let ready = |since_ns| Ready {
            born_ns: 10,
            since_ns,
            sends_are_seen: true,
            has_gap: false,
        };
        let slot = |flags| QpSlot {
            since_ns: 10,
            tx_posted: 7,
            flags,
            ..QpSlot::new_zeroed()
        };
        for (flags, probed_ns, expected) in [(0, 9, 0), (0, 11, LATE), (OLD, 9, OLD), (OLD, 11, OLD)] {
            let passed_on = completed(&slot(flags), ready(probed_ns));
            assert_eq!((passed_on.flags, passed_on.tx_done), (expected, 7));
            let has_gap = Ready {
                has_gap: true,
                ..ready(probed_ns)
            };
            assert_eq!(completed(&slot(flags), has_gap).flags, LATE);
        }
        for flags in [0, OLD] {
            assert_eq!(unjudged(&slot(flags)).flags, LATE);
        }
    }
}
