//! Counter slots that nobody has: those never used, and those that user space has read and zeroed.

use core::ptr::read_volatile;

use rdmatop_common::{
    counters::{free, place::UNCOUNTED},
    event::UNKNOWN_U32,
};

use crate::{
    maps::{FREE_SLOTS, QP_SLOTS, USED_SLOTS},
    offsets::EAGER_SLOTS,
    pool,
};

/// Whether user space has read and zeroed a slot.
#[inline(always)]
fn is_clean(slot: u32) -> bool {
    // SAFETY: the map checked the pointer; user space writes the word whole, and last.
    QP_SLOTS
        .get_ptr(slot)
        .is_some_and(|slot| unsafe { read_volatile(&raw const (*slot).qp) == 0 })
}

/// Takes the slot that was given up first, if it is free again and below the limit; otherwise it goes to the end of the
/// queue.
#[inline(always)]
fn reuse(limit: u32) -> Option<u32> {
    let Ok(Some(slot)) = USED_SLOTS.pop() else {
        return None;
    };
    if slot < limit && is_clean(slot) {
        return Some(slot);
    }
    // There was room for what was just popped.
    let _ = USED_SLOTS.push(slot, 0);
    None
}

/// A slot that nobody has had yet.
#[inline(always)]
fn fresh(limit: u32) -> Option<u32> {
    if limit != UNKNOWN_U32 {
        // Taken off and put back the range would fall to pieces.
        let Ok(Some(range)) = FREE_SLOTS.peek() else {
            return None;
        };
        if free::unpack(range).0 >= limit {
            return None;
        }
    }
    let number = pool::take(&FREE_SLOTS)?;
    if number < limit {
        return Some(number);
    }
    pool::give_back(&FREE_SLOTS, number);
    None
}

/// A free slot, `UNCOUNTED` for none; `moving`: of all there are. Used ones first: those in use stay at the start of the
/// array, so a sweep is short. Not inlined: at a return the verifier forgets on which of the many ways it came there.
#[inline(never)]
pub(crate) fn take(moving: u64) -> u64 {
    let limit = if moving != 0 {
        UNKNOWN_U32
    } else {
        EAGER_SLOTS.load()
    };
    let reused = || {
        if let Ok(Some(oldest)) = USED_SLOTS.peek()
            && oldest < limit
            && is_clean(oldest)
        {
            reuse(limit)
        } else {
            None
        }
    };
    let slot = reused().or_else(|| fresh(limit)).or_else(|| {
        // None is left that nobody has had. The order of the queue is not quite that of the sweeps.
        for _ in 0..4 {
            if moving != 0
                && let Some(slot) = reuse(limit)
            {
                return Some(slot);
            }
        }
        None
    });
    u64::from(slot.unwrap_or(UNCOUNTED))
}

/// Puts back a slot that was taken and not used.
#[inline(always)]
pub(crate) fn give_back(number: u32) {
    pool::give_back(&FREE_SLOTS, number);
}
