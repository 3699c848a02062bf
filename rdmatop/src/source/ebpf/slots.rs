//! The array of per-QP counters, read through memory.

use std::{
    collections::HashMap,
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
    posts: Posts,
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
    pub(super) fn open(slots: Map, free: Map) -> Result<Self, MappedError> {
        let array = Mapped::open(slots, "QP_SLOTS")?;
        let mut free: Stack<MapData, u64> =
            Stack::try_from(free).map_err(|_| MappedError::NoMap("FREE_SLOTS"))?;
        let reach = Reach::fill(&mut free, array.count())?;
        Ok(Self {
            array,
            reach,
            posts: Posts::default(),
        })
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
            self.posts.add(number, &copy);
            found.push((number, copy));
        }
        found
    }
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
