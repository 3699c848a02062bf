//! Sending a record, or counting that it could not be sent.

use rdmatop_common::{
    counters::loss,
    event::{ObjectRecord, Prefix, QpRecord},
};

use crate::{
    maps::{EVENTS, LOSSES},
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

/// Sends a record. The wake-up is the kernel's adaptive one: the reader is woken only when it had caught up,
/// and it naps after each drain, so a storm costs few wake-ups and an idle machine none.
#[inline(always)]
pub(crate) fn send<T: Copy + 'static>(record: &T) {
    match EVENTS.reserve::<T>(0) {
        Some(mut entry) => {
            entry.write(*record);
            entry.submit(0);
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
unsafe impl Prefixed for QpRecord {}
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
        record.copy_from_nonoverlapping(call, 1);
        let prefix = record.cast::<Prefix>();
        (*prefix).duration_ns = now - (*prefix).ts_ns;
        (*prefix).ts_ns = now;
        (*prefix).rc = rc;
    }
    entry.submit(0);
}
