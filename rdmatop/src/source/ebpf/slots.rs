//! The array of per-QP counters, read through memory.

use std::{
    mem::offset_of,
    num::NonZeroUsize,
    os::fd::AsFd,
    ptr::{NonNull, read_volatile},
    sync::atomic::{Ordering, fence},
};

use aya::maps::{Map, MapData, MapError, Stack};
use rdmatop_common::counters::{QpSlot, slot_flag};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use zerocopy::FromZeros as _;

/// How far past the last slot in use a new one is looked for: slots are popped in order, and a CPU that has
/// popped one may not have written it yet when another's is seen.
const LOOKAHEAD: u32 = 64;

/// First and last of the words whose sum tells a change: owner and flags, then every count that is no breakdown of
/// another.
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

/// Why the slots cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SlotsError {
    /// The object does not have the map, or it is of another type.
    #[error("the object has no usable {0} map")]
    NoMap(&'static str),
    /// The kernel refused the mapping.
    #[error("cannot mmap the counters: {0}; BPF_F_MMAPABLE needs Linux 5.5")]
    Mmap(#[from] rustix::io::Errno),
    /// The free slots could not be handed to the kernel side.
    #[error("cannot fill the list of free slots: {0}")]
    Fill(#[from] MapError),
}

/// The mapped array and the list of what is free in it.
pub struct SlotMap {
    array: NonNull<QpSlot>,
    bytes: NonZeroUsize,
    count: u32,
    /// Slots that have ever been in use are `0..high`: the kernel side takes the lowest that was freed last.
    high: u32,
    free: Stack<MapData, u32>,
    /// Below `high`.
    seen: Vec<Seen>,
    /// Slots zeroed and not yet accepted back by the kernel (the list's lock was held).
    waiting: Vec<u32>,
    /// Keeps the map itself.
    _map: Map,
}

// SAFETY: the pointer is to a shared mapping that this value owns; nothing about it is tied to a thread.
unsafe impl Send for SlotMap {}

impl SlotMap {
    /// Maps the array and hands all slots to the kernel side.
    pub(super) fn open(slots: Map, free: Map) -> Result<Self, SlotsError> {
        let Map::Array(data) = &slots else {
            return Err(SlotsError::NoMap("QP_SLOTS"));
        };
        let count = data
            .info()
            .map_err(|_| SlotsError::NoMap("QP_SLOTS"))?
            .max_entries();
        let bytes =
            NonZeroUsize::new(count as usize * size_of::<QpSlot>()).ok_or(SlotsError::NoMap("QP_SLOTS"))?;
        // SAFETY: a new shared mapping at an address of the kernel's choice; the size is the map's, which the
        // kernel rounds up to pages itself. QpSlot's size is a multiple of 8, so the array has no gaps.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes.get(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                data.fd().as_fd(),
                0,
            )?
        };
        let array = NonNull::new(address.cast()).ok_or(SlotsError::NoMap("QP_SLOTS"))?;
        let mut map = Self {
            array,
            bytes,
            count,
            high: 0,
            seen: Vec::new(),
            free: Stack::try_from(free).map_err(|_| SlotsError::NoMap("FREE_SLOTS"))?,
            waiting: Vec::new(),
            _map: slots,
        };
        for slot in (0..count).rev() {
            map.free.push(slot, 0)?;
        }
        Ok(map)
    }

    fn at(&self, slot: u32) -> *mut QpSlot {
        debug_assert!(slot < self.count);
        // SAFETY: below `count`, so inside the mapping.
        unsafe { self.array.as_ptr().add(slot as usize) }
    }

    fn in_use(&self, slot: u32) -> bool {
        // SAFETY: inside the mapping; the kernel writes the word whole.
        unsafe { read_volatile(&raw const (*self.at(slot)).qp) != 0 }
    }

    fn sum(&self, slot: u32) -> u64 {
        let words = self.at(slot).cast::<u64>();
        SUMMED.fold(0, |sum, word| {
            // SAFETY: the word is one of this slot's, aligned as it is; the kernel writes it whole.
            sum.wrapping_add(unsafe { read_volatile(words.add(word)) })
        })
    }

    /// Gives copies of the slots in use that have changed since the last sweep; the first sweep gives all. A slot
    /// whose QP is gone is given once more, with its final counters, and is free afterwards.
    ///
    /// An idle slot costs the reading of some twenty words, and no system call.
    pub fn sweep(&mut self, mut give: impl FnMut(u32, QpSlot)) {
        while let Some(beyond) = (self.high..self.count.min(self.high + LOOKAHEAD))
            .rev()
            .find(|slot| self.in_use(*slot))
        {
            self.high = beyond + 1;
        }
        self.seen.resize(self.high as usize, Seen::default());
        for (number, index) in (0..self.high).zip(0..) {
            if !self.in_use(number) {
                continue;
            }
            let place = self.at(number);
            // SAFETY: inside the mapping; the kernel writes the words whole.
            let (born_ns, flags) = unsafe {
                (
                    read_volatile(&raw const (*place).born_ns),
                    read_volatile(&raw const (*place).flags),
                )
            };
            let destroyed = flags & slot_flag::DESTROYED != 0;
            // Before the copy: what is counted in between is in the next sweep's sum.
            let sum = self.sum(number);
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
            // SAFETY: inside the mapping. The kernel side writes words while they are copied: each counter is
            // whole, and of this moment or of the one before.
            let mut copy = unsafe {
                // The flag first: with it set, what is copied after it is final.
                fence(Ordering::Acquire);
                read_volatile(place)
            };
            copy.flags = flags;
            // Two CPUs that move the cursor at once can leave it a WR behind until the next look.
            copy.tx_posted = copy.tx_posted.max(copy.tx_done);
            if destroyed {
                *seen = Seen::default();
                // SAFETY: inside the mapping; the kernel side has forgotten the QP and writes here no more.
                unsafe { place.write_volatile(QpSlot::new_zeroed()) };
                self.waiting.push(number);
            }
            give(number, copy);
        }
        let free = &mut self.free;
        self.waiting.retain(|slot| free.push(*slot, 0).is_err());
    }
}

impl Drop for SlotMap {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`; nobody holds a reference into it.
        let _ = unsafe { munmap(self.array.as_ptr().cast(), self.bytes.get()) };
    }
}
