//! Sending a record, or counting that it could not be sent.

use rdmatop_common::counters::loss;
use zerocopy::{FromZeros, IntoBytes};

use crate::{
    body::rxe_shared::works_in_softirqs,
    maps::{EVENTS, LOSSES, PENDING_WAKEUP},
    offsets::counts,
    share::{LIFECYCLE, caller, is_refused},
    words::{add, zeroed},
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
pub(crate) const NO_WAKEUP: u64 = 1;
const FORCE_WAKEUP: u64 = 2;

/// Returns the flags with which to submit a record. With 0 the kernel wakes the reader only if it had read
/// all. The reader sleeps after each drain: a storm of records costs few wake-ups, an idle machine none.
///
/// `breaking`: the record is about a QP that goes to ERR. Before Linux 6.4 rxe
/// flushes the QP's queues in a softirq, raised by the call that has just returned. Waking the reader
/// interrupts this CPU (irq_work), and the kernel runs softirqs at the end of that interrupt, in the middle
/// of this program, where it skips every other program without notice: no program would see the CQEs of the
/// flush. Therefore this record wakes nobody: the reader finds it with the next record, or when its timer
/// ends. Another interrupt can still come at that moment: `slots::Provider::flushed` counts the CQEs that it
/// hid.
#[inline(always)]
fn wakeup(breaking: bool) -> u64 {
    if !counts() || !works_in_softirqs() {
        return 0;
    }
    if breaking {
        PENDING_WAKEUP.store(1);
        return NO_WAKEUP;
    }
    if PENDING_WAKEUP.load() == 0 {
        return 0;
    }
    PENDING_WAKEUP.store(0);
    FORCE_WAKEUP
}

/// Builds a record about the current process in the ring buffer's memory, and submits it.
#[inline(always)]
pub(crate) fn send<T: FromZeros + IntoBytes + 'static>(fill: impl FnOnce(&mut T)) {
    send_for(false, caller, fill);
}

/// As [`send`], for a record that counts to the share of `whose`. `breaking` as for [`wakeup`].
#[inline(always)]
pub(crate) fn send_for<T: FromZeros + IntoBytes + 'static>(
    breaking: bool,
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    send_with(|| wakeup(breaking), whose, fill);
}

/// As [`send_for`], with the `flags` of the record's submission.
#[inline(always)]
pub(crate) fn send_with<T: FromZeros + IntoBytes + 'static>(
    flags: impl FnOnce() -> u64,
    whose: impl FnOnce() -> u32,
    fill: impl FnOnce(&mut T),
) {
    if is_refused(&EVENTS, LIFECYCLE, size_of::<T>() as u64, whose) {
        return;
    }
    let Some(mut entry) = EVENTS.reserve(0) else {
        lost(loss::RING);
        return;
    };
    fill(zeroed(&mut entry));
    entry.submit(flags());
}
