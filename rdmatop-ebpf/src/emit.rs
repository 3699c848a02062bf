//! Sending a record, or counting that it could not be sent.

use rdmatop_common::counters::loss;

use crate::{
    maps::{EVENTS, LOSSES},
    pool::add,
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
