//! The array of per-QP counters, read through mmap.

use std::{
    collections::HashMap,
    mem::offset_of,
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use rdmatop_common::counters::{QpSlot, place, slot_flag};
use zerocopy::FromZeros as _;

use crate::maps::mapped::{Mapped, MappedError, UsedRanges};

/// The most final counts of destroyed QPs to keep for the next sweep when slots are scarce: 7 MB. If more QPs
/// end between two samples, slots run out, and the kernel side counts the QPs that find none.
const MOST_KEPT: usize = 8192;

/// The words whose sum shows a change: owner, flags, and every count that is no breakdown of another.
const SUMMED: std::ops::Range<usize> = offset_of!(QpSlot, owner_pid) / 8..offset_of!(QpSlot, ops) / 8;

/// The state of a slot when it was last reported.
///
/// Counts and flags only grow, so the sum stays the same only if each of them does. (Soft iWARP takes back
/// the count of a CQE without room, within one call; [`SETTLED`] has such a slot reported again.)
#[derive(Clone, Copy, Debug, Default)]
struct LastReading {
    /// Birth of the slot's QP, with the bit [`SETTLED`].
    born: u64,
    sum: u64,
}

/// Bit in [`LastReading::born`]: the slot has been reported once more after it stopped changing, because a
/// breakdown (by opcode, status, time) may be written a moment after its total. No birth has this bit, which
/// stands for 292 years after boot.
const SETTLED: u64 = 1 << 63;

/// The mapped array.
pub struct SlotMap {
    array: Mapped<QpSlot>,
    used_ranges: UsedRanges,
    /// By slot number, up to the highest that was in use.
    seen: Vec<LastReading>,
    posts: Posts,
    /// Final counts of slots that were freed since the last sweep.
    kept: Vec<(u32, QpSlot)>,
    /// Readings that are unknown for a provider's QPs, because a program of its data path is not attached:
    /// one of `slot_flag::provider`, and bits of `slot_flag`.
    unknown: Vec<(u32, u32)>,
}

/// Calls of post_send by process: doorbells of its QPs, including destroyed ones.
#[derive(Debug, Default)]
struct Posts {
    /// Doorbells of each slot's QP at the last sweep.
    seen: Vec<u64>,
    total: HashMap<u32, u64>,
}

impl Posts {
    fn add(&mut self, number: u32, slot: &QpSlot) {
        let number = number as usize;
        if self.seen.len() <= number {
            // Most of ten thousand QPs ring no doorbell.
            if slot.doorbells == 0 {
                return;
            }
            self.seen.resize(number + 1, 0);
        }
        let Some(seen) = self.seen.get_mut(number) else {
            return;
        };
        if slot.doorbells > *seen && slot.flags & slot_flag::KERNEL == 0 && slot.owner_pid != 0 {
            *self.total.entry(slot.owner_pid).or_default() += slot.doorbells - *seen;
        }
        // The next QP with this slot starts at zero.
        *seen = if slot.flags & slot_flag::DESTROYED == 0 {
            slot.doorbells
        } else {
            0
        };
    }
}

impl SlotMap {
    /// Passes all slot numbers to the kernel side.
    pub(crate) fn open(
        slots: Map,
        free: &mut Map,
        name: &'static str,
        unknown: Vec<(u32, u32)>,
    ) -> Result<Self, MappedError> {
        let mut free: Stack<&mut MapData, u64> =
            Stack::try_from(free).map_err(|_| MappedError::NoMap(name))?;
        let array = Mapped::open(slots, name)?;
        Ok(Self {
            used_ranges: UsedRanges::fill(&mut free, array.count())?,
            array,
            seen: Vec::new(),
            posts: Posts::default(),
            kept: Vec::new(),
            unknown,
        })
    }

    /// Number of slots.
    pub(super) fn capacity(&self) -> u32 {
        self.array.count()
    }

    /// Calls of post_send by process, as of the last sweep. The process is the QP's owner.
    pub(crate) fn posts(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.posts.total.iter().map(|(pid, calls)| (*pid, *calls))
    }

    /// Forgets the calls of ended processes, if there are many.
    pub(super) fn forget_posts(&mut self, is_alive: impl Fn(u32) -> bool) {
        const MANY: usize = 4096;
        if self.posts.total.len() > MANY {
            self.posts.total.retain(|pid, _| is_alive(*pid));
        }
    }

    /// Frees the slots of destroyed QPs if slots of the upper half are in use. It does not wait for the next
    /// sweep, which may be minutes away (`--once`) while other QPs move. Returns false if there was no need,
    /// or if not all could be freed.
    pub(crate) fn make_room(&mut self) -> bool {
        let array = &self.array;
        let ranges = self.used_ranges.near(|number| array.in_use(number));
        if !self.used_ranges.goes_beyond(place::eager(self.capacity())) {
            return false;
        }
        let mut ended = Vec::new();
        for number in ranges.into_iter().flatten() {
            // SAFETY: the number is inside the mapping; the kernel side writes each word whole.
            let flags = unsafe { read_volatile(&raw const (*array.at(number)).flags) };
            if flags & slot_flag::DESTROYED != 0 {
                ended.push(number);
            }
        }
        for number in ended {
            if self.kept.len() == MOST_KEPT {
                return false;
            }
            fence(Ordering::Acquire);
            let last = last(array, number);
            if let Some(seen) = self.seen.get_mut(number as usize) {
                *seen = LastReading::default();
            }
            self.posts.add(number, &last);
            self.kept.push((number, marked(last, &self.unknown)));
        }
        true
    }

    /// Takes the final counts of slots that were freed since the last sweep.
    pub(super) fn take_kept(&mut self) -> Vec<(u32, QpSlot)> {
        std::mem::take(&mut self.kept)
    }

    /// Passes on copies of the slots in use that have changed since the last sweep; the first sweep passes on
    /// all. The slot of a destroyed QP is passed on once more, with its final counters, and is then free.
    ///
    /// An idle slot costs reading some twenty words, and no system call.
    pub fn sweep(&mut self, give: impl FnMut(u32, QpSlot)) {
        self.sweep_some(|_, _| true, give);
    }

    /// As [`SlotMap::sweep`], only for slots whose number and birth `wanted` accepts; a slot that it accepts
    /// later is passed on then. The slot of a destroyed QP is passed on in any case.
    pub(crate) fn sweep_some(
        &mut self,
        wanted: impl Fn(u32, u64) -> bool,
        mut give: impl FnMut(u32, QpSlot),
    ) {
        let array = &self.array;
        let ranges = self.used_ranges.ranges(|number| array.in_use(number));
        for numbers in ranges.into_iter().filter(|numbers| !numbers.is_empty()) {
            if self.seen.len() < numbers.end as usize {
                self.seen.resize(numbers.end as usize, LastReading::default());
            }
            for number in numbers {
                let place = array.at(number);
                let Some(seen) = self.seen.get_mut(number as usize) else {
                    break;
                };
                // SAFETY: the slot is inside the mapping; the kernel side writes each word whole.
                let (qp, born_ns, flags) = unsafe { head(place) };
                if qp == 0 {
                    continue;
                }
                let destroyed = flags & slot_flag::DESTROYED != 0;
                // Sum before the copy: a count that changes in between changes the sum of the next sweep.
                let sum = sum(place);
                let unchanged = seen.born == born_ns | SETTLED && seen.sum == sum;
                if !destroyed && (unchanged || !wanted(number, born_ns)) {
                    continue;
                }
                let moved = seen.born & !SETTLED != born_ns || seen.sum != sum;
                let settled = if moved { 0 } else { SETTLED };
                *seen = LastReading {
                    born: born_ns | settled,
                    sum,
                };
                // The flags were read before this. If they have DESTROYED, everything that is copied now is
                // final. If not, the kernel side may change counters during the copy.
                fence(Ordering::Acquire);
                let copy = if destroyed {
                    *seen = LastReading::default();
                    last(array, number)
                } else {
                    QpSlot {
                        flags,
                        ..not_behind(array.read(number))
                    }
                };
                self.posts.add(number, &copy);
                give(number, marked(copy, &self.unknown));
            }
        }
    }
}

/// Reads the slot of a destroyed QP for the last time and frees it. The caller has seen
/// `slot_flag::DESTROYED` before.
fn last(array: &Mapped<QpSlot>, number: u32) -> QpSlot {
    let place = array.at(number);
    let copy = not_behind(array.read(number));
    // Clear the address last, because the kernel side takes a slot without an address as free.
    let empty = QpSlot {
        qp: copy.qp,
        ..QpSlot::new_zeroed()
    };
    // SAFETY: the slot is inside the mapping; the kernel side has forgotten the QP and no longer writes here.
    unsafe {
        write_volatile(place, empty);
        fence(Ordering::Release);
        write_volatile(&raw mut (*place).qp, 0);
    }
    copy
}

/// Adds the flags of readings that are unknown for all QPs of the slot's provider.
fn marked(mut copy: QpSlot, unknown: &[(u32, u32)]) -> QpSlot {
    let provider = copy.flags & slot_flag::provider::MASK;
    let of_provider = unknown.iter().filter(|(other, _)| *other == provider);
    copy.flags = of_provider.fold(copy.flags, |flags, (_, bits)| flags | bits);
    copy
}

/// Corrects `tx_posted`, which two CPUs that move the cursor at once can leave behind until the next event.
fn not_behind(mut copy: QpSlot) -> QpSlot {
    copy.tx_posted = copy.tx_posted.max(copy.tx_done);
    copy
}

/// QP, birth and flags of a slot.
///
/// # Safety
///
/// The slot is inside the mapping; the kernel writes each word whole.
unsafe fn head(place: *const QpSlot) -> (u64, u64, u32) {
    // SAFETY: the caller promises it.
    unsafe {
        (
            read_volatile(&raw const (*place).qp),
            read_volatile(&raw const (*place).born_ns),
            read_volatile(&raw const (*place).flags),
        )
    }
}

/// Sum of the [`SUMMED`] words of a slot.
fn sum(place: *const QpSlot) -> u64 {
    let words = place.cast::<u64>();
    SUMMED.fold(0, |sum, word| {
        // SAFETY: the caller's slot is inside the mapping, and the word is an aligned one of this slot; the
        // kernel side writes it whole.
        sum.wrapping_add(unsafe { read_volatile(words.add(word)) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_a_process_outlive_its_qps_and_kernel_consumers_make_none() {
        let mut posts = Posts::default();
        let mut slot = QpSlot {
            qp: 1,
            owner_pid: 231,
            doorbells: 5,
            ..QpSlot::new_zeroed()
        };
        posts.add(3, &slot);
        slot.doorbells = 7;
        slot.flags = slot_flag::DESTROYED;
        posts.add(3, &slot);
        slot.flags = 0;
        slot.doorbells = 2;
        posts.add(3, &slot);
        posts.add(3, &slot);
        assert_eq!(posts.total, HashMap::from([(231, 9)]));
        slot.flags = slot_flag::KERNEL;
        slot.doorbells = 50;
        posts.add(3, &slot);
        assert_eq!(posts.total, HashMap::from([(231, 9)]));
    }
}
