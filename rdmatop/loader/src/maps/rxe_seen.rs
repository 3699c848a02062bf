//! What the programs of SoftRoCE saw, for a comparison with the driver's own counters.
//!
//! Before Linux 6.4 rxe works in softirqs. In a softirq that interrupts one of our programs the kernel skips
//! all our other programs, and kernels of that age do not count this. But the driver counts the same packets
//! and receives, and the model compares both counts.

use aya::maps::Map;
use rdmatop_common::{
    counters::{RxeSeen, slot_flag},
    names::map,
};

use crate::{
    maps::mapped::{Mapped, MappedError},
    offsets::ResolvedOffsets,
};
use rdmatop_model::input::SeenByPrograms;

/// The offset that is known only if the driver works in softirqs.
const TASKLETS: &str = "OFF_RXE_TASK_TASKLET";

/// Whether the programs count packets and receives, each for itself. `unknown`: the readings that are unknown
/// for each provider that is counted.
pub(crate) fn compared(resolved: &ResolvedOffsets, unknown: &[(u32, u32)]) -> [bool; 2] {
    let of_rxe = unknown.iter().find(|(flag, _)| *flag == slot_flag::provider::RXE);
    let lacks = of_rxe
        .filter(|_| resolved.has(TASKLETS))
        .map(|(_, unknown)| *unknown);
    [slot_flag::NO_RETRANSMITS, slot_flag::NO_CQES].map(|flag| lacks.is_some_and(|lacks| lacks & flag == 0))
}

/// The counts, and which of them are kept.
pub(super) struct RxeCounts(Mapped<RxeSeen>, [bool; 2]);

impl RxeCounts {
    pub(crate) fn open(seen: Map, kept: [bool; 2]) -> Result<Self, MappedError> {
        Ok(Self(Mapped::open(seen, map::RXE_SEEN)?, kept))
    }

    /// The counts of session `session`, at `mono_ns`.
    pub(crate) fn read(&self, session: u64, mono_ns: u64) -> SeenByPrograms {
        let rows = (0..self.0.count()).map(|row| self.0.read(row));
        let (packets, receives) = rows.fold((0_u64, 0_u64), |(packets, receives), row| {
            (
                packets.wrapping_add(row.packets),
                receives.wrapping_add(row.receives),
            )
        });
        SeenByPrograms {
            session,
            mono_ns,
            packets: self.1[0].then_some(packets),
            receives: self.1[1].then_some(receives),
        }
    }
}
