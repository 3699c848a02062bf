//! What the programs of SoftRoCE saw, for a comparison with the driver's own counters.
//!
//! Before Linux 6.4 rxe works in softirqs. In a softirq that interrupts one of our programs the kernel skips
//! all our other programs, and kernels of that age do not count this. But the driver counts the same packets
//! and receives, and the model compares both counts.

use rdmatop_common::{counters::RxeSeen, names::map};

use crate::{
    hooks::Compared,
    maps::mapped::{Mapped, MappedError},
    offsets::ResolvedOffsets,
    plan::Outcome,
    session::Session,
};
use rdmatop_model::input::SeenByPrograms;

/// The offset that is known only if the driver works in softirqs.
const TASKLETS: &str = "OFF_RXE_TASK_TASKLET";

/// Which of the two counts the programs keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ComparedCounts {
    pub(crate) packets: bool,
    pub(crate) receives: bool,
}

impl ComparedCounts {
    /// Decides by the attached programs. `counts`: the session counts.
    pub(crate) fn of(counts: bool, resolved: &ResolvedOffsets, outcomes: &[Outcome]) -> Self {
        let softirqs = counts && resolved.has(TASKLETS);
        let runs = |what| {
            let mut on = outcomes.iter().filter(|outcome| outcome.is_on());
            softirqs && on.any(|outcome| outcome.hook.compared == Some(what))
        };
        Self {
            packets: runs(Compared::Packets),
            receives: runs(Compared::Receives),
        }
    }
}

pub(super) struct RxeCounts {
    map: Mapped<RxeSeen>,
    compared: ComparedCounts,
}

impl RxeCounts {
    /// Takes the map; `None` if nothing is counted in it.
    pub(crate) fn open(session: &mut Session) -> Result<Option<Self>, MappedError> {
        let compared = session.compared();
        match session
            .take_map(map::RXE_SEEN)
            .filter(|_| compared != ComparedCounts::default())
        {
            Some(map) => Ok(Some(Self {
                map: Mapped::open(map, map::RXE_SEEN)?,
                compared,
            })),
            None => Ok(None),
        }
    }

    /// The counts of session `session`, at `mono_ns`.
    pub(crate) fn read(&self, session: u64, mono_ns: u64) -> SeenByPrograms {
        let rows = (0..self.map.count()).map(|row| self.map.read(row));
        let (packets, receives) = rows.fold((0_u64, 0_u64), |(packets, receives), row| {
            (
                packets.wrapping_add(row.packets),
                receives.wrapping_add(row.receives),
            )
        });
        SeenByPrograms {
            session,
            mono_ns,
            packets: self.compared.packets.then_some(packets),
            receives: self.compared.receives.then_some(receives),
        }
    }
}
