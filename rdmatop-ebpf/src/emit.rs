//! Sending a record, or counting that it could not be sent.

use core::{
    cell::UnsafeCell,
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::{
    counters::loss,
    event::{ObjectRecord, Prefix},
    offsets::UNKNOWN,
};

use zerocopy::{FromZeros, IntoBytes};

use crate::{
    maps::{EVENTS, LOSSES},
    offsets::{OFF_RXE_TASK_TASKLET, WANT_COUNTERS},
    pool::add,
    task::now,
};

/// Counts a loss.
#[inline(always)]
pub(crate) fn lost(cause: u32) {
    lost_many(cause, 1);
}

/// Counts several losses of one cause. Losses are rare: one array for all CPUs, which user space reads through
/// memory, costs less than one a CPU.
#[inline(always)]
pub(crate) fn lost_many(cause: u32, n: u64) {
    if let Some(count) = LOSSES.get_ptr_mut(cause) {
        add(count, n);
    }
}

/// Zeroes a place word by word. Without this LLVM calls a memset that goes byte by byte: five instructions each.
///
/// # Safety
/// The place must be writable and aligned to 8 bytes; all zeroes must be a value of `T`, whose size must be a
/// multiple of 8.
#[inline(always)]
pub(crate) unsafe fn clear<T>(place: *mut T) {
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: inside the place.
        unsafe { write_volatile(place.cast::<u64>().add(word), 0) };
    }
}

/// A zeroed value on the stack. As [`clear`].
#[inline(always)]
pub(crate) fn zeroed<T: FromZeros + IntoBytes>(place: &mut MaybeUninit<T>) -> &mut T {
    const { assert!(align_of::<T>() == 8 && size_of::<T>().is_multiple_of(8)) };
    // SAFETY: the place is ours; FromZeros says that zeroes are a value, and they are written before it is used.
    unsafe {
        clear(place.as_mut_ptr());
        place.assume_init_mut()
    }
}

/// Copies a place word by word, for the same reason.
///
/// # Safety
/// Both must be valid, aligned to 8 bytes and not overlap; the size of `T` must be a multiple of 8.
#[inline(always)]
pub(crate) unsafe fn copy<T>(from: *const T, to: *mut T) {
    for word in 0..size_of::<T>() / 8 {
        // SAFETY: inside both.
        unsafe {
            let value = from.cast::<u64>().add(word).read();
            write_volatile(to.cast::<u64>().add(word), value);
        }
    }
}

/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`, include/uapi/linux/bpf.h.
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

/// 1 while the reader has not been told of a record. Of `.bss`, as the hints in maps.rs.
static HELD: Held = Held(UnsafeCell::new(0));

struct Held(UnsafeCell<u32>);

// SAFETY: a word that is read and written whole; a wake-up too many does no harm, and the reader looks once a second.
unsafe impl Sync for Held {}

/// How a record is submitted. The wake-up is the kernel's adaptive one: the reader is woken only when it had caught up,
/// and it naps after each drain, so a storm costs few wake-ups and an idle machine none.
///
/// `breaking`: of a QP that goes to ERR. Before Linux 6.4 rxe flushes its queues in a softirq, raised by the call that
/// has just returned. A wake-up is an interrupt of this CPU (irq_work), at whose end softirqs run: in the midst of the
/// program, where the kernel skips every other one without telling, and with it all CQEs of the flush. So the reader is
/// told later: by the next record, or by its own clock.
#[inline(always)]
fn wakeup(breaking: bool) -> u64 {
    if OFF_RXE_TASK_TASKLET.load() == UNKNOWN || WANT_COUNTERS.load() == 0 {
        return 0;
    }
    // SAFETY: see `Held`.
    unsafe {
        if breaking {
            write_volatile(HELD.0.get(), 1);
            return NO_WAKEUP;
        }
        if read_volatile(HELD.0.get()) == 0 {
            return 0;
        }
        write_volatile(HELD.0.get(), 0);
    }
    FORCE_WAKEUP
}

/// Makes a record in the ring buffer itself and sends it.
#[inline(always)]
pub(crate) fn send<T: FromZeros + IntoBytes + 'static>(fill: impl FnOnce(&mut T)) {
    send_of(false, fill);
}

/// As [`send`]; `breaking` as [`wakeup`] has it.
#[inline(always)]
pub(crate) fn send_of<T: FromZeros + IntoBytes + 'static>(breaking: bool, fill: impl FnOnce(&mut T)) {
    match EVENTS.reserve::<T>(0) {
        Some(mut entry) => {
            fill(zeroed(&mut entry));
            entry.submit(wakeup(breaking));
        }
        None => lost(loss::RING),
    }
}

/// As [`send`], from where a wake-up would let softirqs run; the reader looks once a second.
#[inline(always)]
pub(crate) fn send_quietly<T: FromZeros + IntoBytes + 'static>(fill: impl FnOnce(&mut T)) {
    match EVENTS.reserve::<T>(0) {
        Some(mut entry) => {
            fill(zeroed(&mut entry));
            entry.submit(NO_WAKEUP);
        }
        None => lost(loss::RING),
    }
}

/// A record that begins with a prefix.
///
/// # Safety
/// The prefix must be its first member.
pub(crate) unsafe trait Prefixed: Copy + 'static {}

// SAFETY: it is.
unsafe impl Prefixed for ObjectRecord {}

/// Sends what an entry remembered, with the call's end and result. Copied once, from map to ring.
///
/// # Safety
/// The pointer must be to a map value that nobody writes meanwhile.
#[inline(always)]
pub(crate) unsafe fn finish<T: Prefixed>(call: *const T, rc: i32) {
    let Some(mut entry) = EVENTS.reserve::<T>(0) else {
        lost(loss::RING);
        return;
    };
    let now = now();
    // SAFETY: the caller's promise; the room is a T's, which begins with a prefix.
    unsafe {
        let record = entry.as_mut_ptr();
        copy(call, record);
        let prefix = record.cast::<Prefix>();
        (*prefix).duration_ns = now - (*prefix).ts_ns;
        (*prefix).ts_ns = now;
        (*prefix).rc = rc;
    }
    entry.submit(wakeup(false));
}
