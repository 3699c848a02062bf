//! The array of per-QP counters, read through memory.

use std::{
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use rdmatop_common::counters::{QpSlot, slot_flag};
use zerocopy::FromZeros as _;

use super::mapped::{Mapped, MappedError, Reach};

/// The mapped array.
pub struct SlotMap {
    array: Mapped<QpSlot>,
    reach: Reach,
}

impl SlotMap {
    /// Maps the array and hands all slots to the kernel side.
    pub(super) fn open(slots: Map, free: Map) -> Result<Self, MappedError> {
        let array = Mapped::open(slots, "QP_SLOTS")?;
        let mut free: Stack<MapData, u64> =
            Stack::try_from(free).map_err(|_| MappedError::NoMap("FREE_SLOTS"))?;
        let reach = Reach::fill(&mut free, array.count())?;
        Ok(Self { array, reach })
    }

    /// Copies of the slots in use. A slot whose QP is gone is given once more, with its final counters, and is
    /// free afterwards.
    pub fn sweep(&mut self) -> Vec<(u32, QpSlot)> {
        let array = &self.array;
        // SAFETY: inside the mapping; the kernel writes the word whole.
        let in_use = |number| unsafe { read_volatile(&raw const (*array.at(number)).qp) != 0 };
        let mut found = Vec::new();
        for number in self.reach.numbers(in_use) {
            if !in_use(number) {
                continue;
            }
            let place = array.at(number);
            // SAFETY: inside the mapping.
            let flags = unsafe { read_volatile(&raw const (*place).flags) };
            // The flag first: with it set, what is copied after it is final. Without it each counter is of this
            // moment or of the one before.
            fence(Ordering::Acquire);
            let mut copy = array.read(number);
            copy.flags = flags;
            // Two CPUs that move the cursor at once can leave it a WR behind until the next look.
            copy.tx_posted = copy.tx_posted.max(copy.tx_done);
            if copy.flags & slot_flag::DESTROYED != 0 {
                // The address goes last: without it the kernel side takes the slot for free.
                let empty = QpSlot {
                    qp: copy.qp,
                    ..QpSlot::new_zeroed()
                };
                // SAFETY: inside the mapping; the kernel side has forgotten the QP and writes here no more.
                unsafe {
                    write_volatile(place, empty);
                    fence(Ordering::Release);
                    write_volatile(&raw mut (*place).qp, 0);
                }
            }
            found.push((number, copy));
        }
        found
    }
}
