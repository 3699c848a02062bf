//! Free counter slots: those never used, those given back, and those that user space has read and zeroed.

use core::ptr::read_volatile;

use rdmatop_common::counters::place::UNCOUNTED;

use crate::{
    maps::{FREE_SLOTS, QP_SLOTS, USED_SLOTS},
    offsets::EAGER_SLOTS,
    pool,
};

/// Whether user space has read and zeroed a slot.
#[inline(always)]
fn is_clean(slot: u32) -> bool {
    // SAFETY: the map checked the pointer; user space writes this whole word last.
    QP_SLOTS
        .get_ptr_mut(slot)
        .is_some_and(|slot| unsafe { read_volatile(&raw const (*slot).qp) == 0 })
}

/// Takes the slot that was retired first, if user space has zeroed it and its number is below the limit.
/// Otherwise moves that slot to the end of the queue.
#[inline(always)]
fn reuse(limit: u32) -> Option<u32> {
    let Ok(Some(slot)) = USED_SLOTS.pop() else {
        return None;
    };
    if slot < limit && is_clean(slot) {
        return Some(slot);
    }
    // The queue has room for it, because this CPU has just popped it.
    let _ = USED_SLOTS.push(slot, 0);
    None
}

/// Takes a free slot, `UNCOUNTED` for none. `moving`: 1 for a QP that moves, which may get any slot. Retired
/// slots come first, so that slots in use stay at the start of the array and a sweep is short. Global: see
/// `slots`.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn take_slot(moving: u64) -> u64 {
    let limit = if moving == 0 {
        EAGER_SLOTS.load()
    } else {
        UNCOUNTED
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
    let slot = reused()
        .or_else(|| pool::take_below(&FREE_SLOTS, limit))
        .or_else(|| {
            // No unused slot is left. User space frees slots in an order that differs a little from that of
            // the queue, so try several.
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

/// Puts back a slot that was taken and not used. It goes to the queue, also where it came from the stack: the
/// queue has room for every slot, but the stack would have none after a thousand that came from the queue.
#[inline(always)]
pub(crate) fn give_back(number: u32) {
    let _ = USED_SLOTS.push(number, 0);
}
