//! How much of each growing map is in use, and how much may be.

use core::ptr::read_volatile;

use aya_ebpf::{macros::map, maps::Array};
use rdmatop_common::counters::{Room, room};

use crate::words::add;

/// `BPF_F_MMAPABLE`, include/uapi/linux/bpf.h.
pub(crate) const MMAPABLE: u32 = 1 << 10;

/// How much of each growing map is in use, and how much may be. Both sides write and read it.
#[map]
static ROOM: Array<Room> = Array::with_max_entries(room::COUNT, MMAPABLE);

/// Adds to count `what` of a map's [`Room`], which has one count per generation of a hash table. Not
/// inlined, as the functions of [`crate::grown::Generations`].
#[inline(never)]
pub(crate) fn count(row: u32, what: usize, change: u64) {
    count_here(row, what, change);
}

/// As [`count`], in the caller's own frame: the frames of a chain of calls have 512 bytes in all.
#[inline(always)]
pub(crate) fn count_here(row: u32, what: usize, change: u64) {
    if what < room::GENERATIONS as usize
        && let Some(room) = ROOM.get_ptr_mut(row)
    {
        // SAFETY: the map checked the pointer, and the count is one of those that the row has.
        add(unsafe { (&raw mut (*room).used).cast::<u64>().add(what) }, change);
    }
}

/// The programs may take numbers below this.
#[inline(never)]
pub(crate) fn limit(row: u32) -> u32 {
    // SAFETY: the map checked the pointer; user space writes the word whole.
    ROOM.get_ptr_mut(row).map_or(0, |room| unsafe {
        read_volatile(&raw const (*room).limit) as u32
    })
}
