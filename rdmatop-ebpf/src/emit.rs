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
    share::{LIFECYCLE, caller, is_refused},
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
static PENDING_WAKEUP: PendingWakeup = PendingWakeup(UnsafeCell::new(0));

struct PendingWakeup(UnsafeCell<u32>);

// SAFETY: programs read and write the whole word. A race can only cause an extra wake-up, which does no harm,
// or a missing one, and the reader looks once a second anyway.
unsafe impl Sync for PendingWakeup {}

/// Returns the flags with which to submit a record. With 0 the kernel wakes the reader only if it had read
/// all. The reader sleeps after each drain: a storm of records costs few wake-ups, an idle machine none.
///
/// `breaking`: the record is about a QP that goes to ERR. Before Linux 6.4 rxe flushes the QP's queues in a
/// softirq, raised by the call that has just returned. Waking the reader interrupts this CPU (irq_work), and
/// the kernel runs softirqs at the end of that interrupt, in the middle of this program, where it skips every
/// other program without notice: no program would see the CQEs of the flush. Therefore this record wakes
/// nobody: the reader finds it with the next record, or when its timer ends. Another interrupt can still come
/// at that moment: `slots::Provider::flushed` counts the CQEs that it hid.
#[inline(always)]
fn wakeup(breaking: bool) -> u64 {
    if !counts() || !works_in_softirqs() {
        return 0;
    }
    // SAFETY: see `PendingWakeup`.
    unsafe {
        if breaking {
            write_volatile(PENDING_WAKEUP.0.get(), 1);
            return NO_WAKEUP;
        }
        if read_volatile(PENDING_WAKEUP.0.get()) == 0 {
            return 0;
        }
        write_volatile(PENDING_WAKEUP.0.get(), 0);
    }
    FORCE_WAKEUP
}

/// Reserves space for a record, or counts that there is none. `whose` returns the process to whose share of
/// the ring buffer the record counts.
#[inline(always)]
fn space<T: 'static>(whose: impl FnOnce() -> u32) -> Option<RingBufEntry<T>> {
    if is_refused(&EVENTS, LIFECYCLE, size_of::<T>() as u64, whose) {
        return None;
    }
    let entry = EVENTS.reserve(0);
    if entry.is_none() {
        lost(loss::RING);
    }
    entry
}

/// Builds a record about the current process in the ring buffer's memory, and submits it.
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

/// As [`send`], for a record about a QP that counts to the share of `whose`. `fill` must write every byte,
/// because the space still holds an earlier record. `breaking` as for [`wakeup`].
#[inline(always)]
pub(crate) fn send_whole<T: FromBytes + 'static>(
    breaking: bool,
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    if let Some(mut entry) = space::<T>(whose) {
        // SAFETY: the kernel has reserved this memory, and with FromBytes any bytes are a valid value.
        fill(unsafe { entry.assume_init_mut() });
        entry.submit(wakeup(breaking));
    }
}

/// As [`send_for`], but does not wake the reader, which looks once a second: waking it would let softirqs run
/// inside this program.
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

// SAFETY: its first member is a `Prefix`.
unsafe impl Prefixed for ObjectRecord {}

/// Sends the record that the entry program remembered, with the call's end and result added. Copies it only
/// once, from the map into the ring buffer.
///
/// # Safety
/// `call` must point to a map value that nobody writes meanwhile.
#[inline(always)]
pub(crate) unsafe fn finish<T: Prefixed>(call: *const T, rc: i32) {
    let Some(mut entry) = space::<T>(caller) else {
        return;
    };
    let now = now();
    // SAFETY: the caller promises a valid value; the space is that of a T, which begins with a prefix.
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
