//! The array of per-QP counters, read through memory.

use std::{
    collections::HashMap,
    mem::offset_of,
    ptr::{read_volatile, write_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, Stack};
use rdmatop_common::counters::{QpSlot, place, slot_flag};
use zerocopy::FromZeros as _;

use super::mapped::{Mapped, MappedError, Reach};

/// Slots of destroyed QPs that are kept for the next sweep, when slots are scarce: 7 MB. Who samples less often than
/// these fill finds that the kernel side counts what found no slot.
const MOST_KEPT: usize = 8192;

/// The words whose sum tells a change: owner and flags, then every count that is no breakdown of another.
const SUMMED: std::ops::Range<usize> = offset_of!(QpSlot, owner_pid) / 8..offset_of!(QpSlot, ops) / 8;

/// What a slot was when it was last given.
///
/// All of its counts and flags only grow, so their sum is the same when and only when each of them is.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Its birth, and [`SETTLED`].
    born: u64,
    sum: u64,
}

/// In [`Seen::born`]: given once more after it came to rest. A breakdown (by opcode, status, time) may be written a
/// moment after the sum that it belongs to. A bit that a time has not: it would be 292 years after the boot.
const SETTLED: u64 = 1 << 63;

/// The mapped array.
pub struct SlotMap {
    array: Mapped<QpSlot>,
    reach: Reach,
    /// By number, as far as any was in use.
    seen: Vec<Seen>,
    posts: Posts,
    /// Final counts of slots that were freed since the last sweep.
    kept: Vec<(u32, QpSlot)>,
    /// What is not known of the QPs of a provider, because a program of its data path is not attached: one of
    /// `slot_flag::provider`, and bits of `slot_flag`.
    unknown: Vec<(u32, u32)>,
}

/// Calls of post_send by process: doorbells of its QPs, those that are gone included.
#[derive(Debug, Default)]
struct Posts {
    /// Doorbells of each slot's tenant at the last sweep.
    seen: Vec<u64>,
    total: HashMap<u32, u64>,
}

impl Posts {
    fn add(&mut self, number: u32, slot: &QpSlot) {
        let number = number as usize;
        if self.seen.len() <= number {
            self.seen.resize(number + 1, 0);
        }
        let Some(seen) = self.seen.get_mut(number) else {
            return;
        };
        if slot.doorbells > *seen && slot.flags & slot_flag::KERNEL == 0 && slot.owner_pid != 0 {
            *self.total.entry(slot.owner_pid).or_default() += slot.doorbells - *seen;
        }
        // The next tenant finds the slot zeroed.
        *seen = if slot.flags & slot_flag::DESTROYED == 0 {
            slot.doorbells
        } else {
            0
        };
    }
}

impl SlotMap {
    /// Maps the array and hands all slots to the kernel side.
    pub(super) fn open(slots: Map, free: Map, unknown: Vec<(u32, u32)>) -> Result<Self, MappedError> {
        let array = Mapped::open(slots, "QP_SLOTS")?;
        let mut free: Stack<MapData, u64> =
            Stack::try_from(free).map_err(|_| MappedError::NoMap("FREE_SLOTS"))?;
        let reach = Reach::fill(&mut free, array.count())?;
        Ok(Self {
            array,
            reach,
            seen: Vec::new(),
            posts: Posts::default(),
            kept: Vec::new(),
            unknown,
        })
    }

    /// Slots there are.
    pub(super) fn capacity(&self) -> u32 {
        self.array.count()
    }

    /// Calls of post_send by process, as of the last sweep. The process is the QP's owner.
    pub(super) fn posts(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.posts.total.iter().map(|(pid, calls)| (*pid, *calls))
    }

    /// Forgets the calls of processes that are gone, when there are many.
    pub(super) fn forget_posts(&mut self, is_alive: impl Fn(u32) -> bool) {
        const MANY: usize = 4096;
        if self.posts.total.len() > MANY {
            self.posts.total.retain(|pid, _| is_alive(*pid));
        }
    }

    /// Frees slots of destroyed QPs when the last half is in use, without waiting for a sweep: that may be minutes away
    /// (`--once`), and others move meanwhile.
    pub(super) fn make_room(&mut self) {
        let array = &self.array;
        // SAFETY: inside the mapping; the kernel writes the word whole.
        let in_use = |number| unsafe { read_volatile(&raw const (*array.at(number)).qp) != 0 };
        let numbers = self.reach.numbers(in_use);
        if !self.reach.goes_beyond(place::eager(array.count())) {
            return;
        }
        let mut ended = Vec::new();
        for number in numbers {
            let place = array.at(number);
            // SAFETY: inside the mapping; the kernel writes each word whole.
            let flags = unsafe { read_volatile(&raw const (*place).flags) };
            if flags & slot_flag::DESTROYED != 0 {
                ended.push(number);
            }
        }
        for number in ended {
            if self.kept.len() == MOST_KEPT {
                break;
            }
            fence(Ordering::Acquire);
            let last = last(array, number);
            if let Some(seen) = self.seen.get_mut(number as usize) {
                *seen = Seen::default();
            }
            self.posts.add(number, &last);
            self.kept.push((number, marked(last, &self.unknown)));
        }
    }

    /// Final counts of slots that were freed before this sweep.
    pub(super) fn take_kept(&mut self) -> Vec<(u32, QpSlot)> {
        std::mem::take(&mut self.kept)
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
            if seen.born == born_ns | SETTLED && seen.sum == sum && !destroyed {
                continue;
            }
            let moved = seen.born & !SETTLED != born_ns || seen.sum != sum;
            let settled = if moved { 0 } else { SETTLED };
            *seen = Seen {
                born: born_ns | settled,
                sum,
            };
            // The flag first: with it set, what is copied after it is final. Without it each counter is of this
            // moment or of the one before.
            fence(Ordering::Acquire);
            let copy = if destroyed {
                *seen = Seen::default();
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

/// Reads the slot of a destroyed QP for the last time and frees it. The caller has seen the flag before.
fn last(array: &Mapped<QpSlot>, number: u32) -> QpSlot {
    let place = array.at(number);
    let copy = not_behind(array.read(number));
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
    copy
}

/// Adds what is not known of QPs of a slot's provider.
fn marked(mut copy: QpSlot, unknown: &[(u32, u32)]) -> QpSlot {
    let provider = copy.flags & slot_flag::provider::MASK;
    let of_provider = unknown.iter().filter(|(other, _)| *other == provider);
    copy.flags = of_provider.fold(copy.flags, |flags, (_, bits)| flags | bits);
    copy
}

/// Two CPUs that move the cursor at once can leave it a WR behind until the next look.
fn not_behind(mut copy: QpSlot) -> QpSlot {
    copy.tx_posted = copy.tx_posted.max(copy.tx_done);
    copy
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
