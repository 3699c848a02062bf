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

/// Whether the programs keep both counts. `unknown`: the readings that are unknown for each provider that is
/// counted.
pub(crate) fn is_compared(resolved: &ResolvedOffsets, unknown: &[(u32, u32)]) -> bool {
    const BOTH: u32 = slot_flag::NO_CQES | slot_flag::NO_RETRANSMITS;
    let of_rxe = |(flag, unknown): &(u32, u32)| *flag == slot_flag::provider::RXE && unknown & BOTH == 0;
    resolved.has(TASKLETS) && unknown.iter().any(of_rxe)
}

pub(super) struct RxeCounts(Mapped<RxeSeen>);

impl RxeCounts {
    pub(crate) fn open(seen: Map) -> Result<Self, MappedError> {
        Ok(Self(Mapped::open(seen, map::RXE_SEEN)?))
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
            packets: Some(packets),
            receives: Some(receives),
        }
    }
}
