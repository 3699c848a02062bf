//! The array of per-QP counters, read through memory.

use std::{
    mem::offset_of,
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use rdmatop_common::counters::{QpSlot, slot_flag};
use zerocopy::FromZeros as _;

use super::mapped::{Mapped, MappedError, Reach};

/// The words whose sum tells a change: owner and flags, then every count that is no breakdown of another.
const SUMMED: std::ops::Range<usize> = offset_of!(QpSlot, owner_pid) / 8..offset_of!(QpSlot, ops) / 8;

/// What a slot was when it was last given.
///
/// All of its counts and flags only grow, so their sum is the same when and only when each of them is.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    born_ns: u64,
    sum: u64,
    /// Given once more after it came to rest: a breakdown (by opcode, status, time) may be written a moment after
    /// the sum that it belongs to.
    settled: bool,
}

/// The mapped array.
pub struct SlotMap {
    array: Mapped<QpSlot>,
    reach: Reach,
    /// By number, as far as any was in use.
    seen: Vec<Seen>,
}

impl SlotMap {
    /// Maps the array and hands all slots to the kernel side.
    pub(super) fn open(slots: Map, free: Map) -> Result<Self, MappedError> {
        let array = Mapped::open(slots, "QP_SLOTS")?;
        let mut free: Stack<MapData, u64> =
            Stack::try_from(free).map_err(|_| MappedError::NoMap("FREE_SLOTS"))?;
        let reach = Reach::fill(&mut free, array.count())?;
        Ok(Self {
            array,
            reach,
            seen: Vec::new(),
        })
    }

    /// Gives copies of the slots in use that have changed since the last sweep; the first sweep gives all. A slot
    /// whose QP is gone is given once more, with its final counters, and is free afterwards.
    ///
    /// An idle slot costs the reading of some twenty words, and no system call.
    pub fn sweep(&mut self, mut give: impl FnMut(u32, QpSlot)) {
        let array = &self.array;
        // SAFETY: inside the mapping; the kernel writes the word whole.
        let in_use = |number| unsafe { read_volatile(&raw const (*array.at(number)).qp) != 0 };
        for number in self.reach.numbers(in_use) {
            let place = array.at(number);
            // SAFETY: inside the mapping; the kernel writes each word whole.
            let (qp, born_ns, flags) = unsafe {
                (
                    read_volatile(&raw const (*place).qp),
                    read_volatile(&raw const (*place).born_ns),
                    read_volatile(&raw const (*place).flags),
                )
            };
            if qp == 0 {
                continue;
            }
            let destroyed = flags & slot_flag::DESTROYED != 0;
            // Before the copy: what is counted in between is in the next sweep's sum.
            let sum = sum(place);
            let index = number as usize;
            if index >= self.seen.len() {
                self.seen.resize(index + 1, Seen::default());
            }
            let Some(seen) = self.seen.get_mut(index) else {
                break;
            };
            let moved = seen.born_ns != born_ns || seen.sum != sum;
            if !moved && seen.settled && !destroyed {
                continue;
            }
            *seen = Seen {
                born_ns,
                sum,
                settled: !moved,
            };
            // The flag first: with it set, what is copied after it is final. Without it each counter is of this
            // moment or of the one before.
            fence(Ordering::Acquire);
            let mut copy = array.read(number);
            copy.flags = flags;
            // Two CPUs that move the cursor at once can leave it a WR behind until the next look.
            copy.tx_posted = copy.tx_posted.max(copy.tx_done);
            if destroyed {
                *seen = Seen::default();
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
            give(number, copy);
        }
    }
}

/// Sum of the [`SUMMED`] words of a slot.
fn sum(place: *const QpSlot) -> u64 {
    let words = place.cast::<u64>();
    SUMMED.fold(0, |sum, word| {
        // SAFETY: the caller's slot is inside the mapping, the word is one of its own and aligned as it is; the
        // kernel writes it whole.
        sum.wrapping_add(unsafe { read_volatile(words.add(word)) })
    })
}
