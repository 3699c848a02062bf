//! Sending a record, or counting that it could not be sent.

use core::{
    cell::UnsafeCell,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::{
    counters::loss,
    event::{ObjectRecord, Prefix},
};

use aya_ebpf::maps::ring_buf::RingBufEntry;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::{
    body::rxe_shared::works_in_softirqs,
    maps::{EVENTS, LOSSES},
    offsets::counts,
    share::{caller, is_over_share},
    task::now,
    words::{add, copy, zeroed},
};

/// Counts a loss.
#[inline(always)]
pub(crate) fn lost(cause: u32) {
    lost_many(cause, 1);
}

/// Counts several losses of one cause. Losses are rare, so one array for all CPUs, which user space reads
/// through mmap, costs less than one per CPU.
#[inline(never)]
pub(crate) fn lost_many(cause: u32, n: u64) {
    if let Some(count) = LOSSES.get_ptr_mut(cause) {
        add(count, n);
    }
}

/// `BPF_RB_NO_WAKEUP` and `BPF_RB_FORCE_WAKEUP`, include/uapi/linux/bpf.h.
const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

/// 1 while the ring buffer holds a record for which the reader has not been woken. In `.bss`, as the hints in
/// maps.rs.
static HELD: Held = Held(UnsafeCell::new(0));

struct Held(UnsafeCell<u32>);

// SAFETY: a word that is read and written whole; an extra wake-up does no harm, and the reader looks once a
// second anyway.
unsafe impl Sync for Held {}

/// The flags to submit a record with. By default the kernel wakes the reader only if it had read everything,
/// and the reader sleeps after each drain: a storm of records costs few wake-ups, an idle machine none.
///
/// `breaking`: the record is about a QP that goes to ERR. Before Linux 6.4 rxe flushes the QP's queues in a
/// softirq, raised by the call that has just returned. A wake-up interrupts this CPU (irq_work), and softirqs
/// run at the end of that interrupt, in the middle of this program. There the kernel skips every other
/// program without notice, so all CQEs of the flush would be missed. Therefore this record wakes nobody: the
/// reader finds it with the next record, or on its own timer. Another interrupt can still come in that
/// moment: `slots::Provider::flushed` counts what it hid.
#[inline(always)]
fn wakeup(breaking: bool) -> u64 {
    if !counts() || !works_in_softirqs() {
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

/// What `bpf_ringbuf_query` tells: bytes that nobody has read yet, bytes that the ring buffer can hold, and
/// how far the reader and the programs have come, in bytes since it was made. `BPF_RB_*`,
/// include/uapi/linux/bpf.h.
const UNREAD: u64 = 0;
const SIZE: u64 = 1;
const READ_TO: u64 = 2;
const WRITTEN_TO: u64 = 3;

/// Reserves space for a record, or counts that there is none. `whose`: the process on whose share of the ring
/// buffer the record goes.
#[inline(always)]
fn space<T: 'static>(whose: impl FnOnce() -> u32) -> Option<RingBufEntry<T>> {
    let (unread, size) = (EVENTS.query(UNREAD), EVENTS.query(SIZE));
    if unread > size - size / 4 {
        let free = size - unread;
        let bytes = size_of::<T>() as u64;
        let (read, written) = (EVENTS.query(READ_TO), EVENTS.query(WRITTEN_TO));
        if is_over_share(u64::from(whose()), bytes, free, read, written) != 0 {
            return None;
        }
    }
    let entry = EVENTS.reserve(0);
    if entry.is_none() {
        lost(loss::RING);
    }
    entry
}

/// Makes a record of the current process in the ring buffer itself and sends it.
#[inline(always)]
pub(crate) fn send<T: FromZeros + IntoBytes + 'static>(fill: impl FnOnce(&mut T)) {
    send_for(caller, fill);
}

/// As [`send`], for a process that need not be the current one.
#[inline(always)]
pub(crate) fn send_for<T: FromZeros + IntoBytes + 'static>(
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    if let Some(mut entry) = space::<T>(whose) {
        fill(zeroed(&mut entry));
        entry.submit(wakeup(false));
    }
}

/// As [`send`], of a QP and its owner, and for a `fill` that writes every byte: the space holds what an
/// earlier record left there. `breaking` as for [`wakeup`].
#[inline(always)]
pub(crate) fn send_whole<T: FromBytes + 'static>(
    breaking: bool,
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    if let Some(mut entry) = space::<T>(whose) {
        // SAFETY: the kernel's memory; FromBytes says that any bytes are a value.
        fill(unsafe { entry.assume_init_mut() });
        entry.submit(wakeup(breaking));
    }
}

/// As [`send_for`], but without waking the reader, which looks once a second: a wake-up would let softirqs
/// run here.
#[inline(always)]
pub(crate) fn send_quietly<T: FromZeros + IntoBytes + 'static>(
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    if let Some(mut entry) = space::<T>(whose) {
        fill(zeroed(&mut entry));
        entry.submit(NO_WAKEUP);
    }
}

/// A record that begins with a prefix.
///
/// # Safety
/// The prefix must be its first member.
pub(crate) unsafe trait Prefixed: Copy + 'static {}

// SAFETY: it is.
unsafe impl Prefixed for ObjectRecord {}

/// Sends the record that the entry program remembered, with the call's end and result. Copies it once, from
/// map to ring.
///
/// # Safety
/// The pointer must be to a map value that nobody writes meanwhile.
#[inline(always)]
pub(crate) unsafe fn finish<T: Prefixed>(call: *const T, rc: i32) {
    let Some(mut entry) = space::<T>(caller) else {
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
