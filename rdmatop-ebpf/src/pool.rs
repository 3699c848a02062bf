//! Free numbers of the mmapped arrays: those never used, those given back, and those that user space has read
//! and zeroed.

use core::ptr::read_volatile;

use aya_ebpf::maps::{Array, Queue, Stack};
use rdmatop_common::counters::{QpSlot, free, place::UNCOUNTED};

use crate::{
    maps::{FREE_SLOTS, QP_SLOTS, USED_SLOTS},
    offsets::EAGER_SLOTS,
};

/// How often to look for a range: more CPUs than there are ranges may be taking one at the same time.
const TRIES: u32 = 4;

/// Takes a free number below a limit.
#[inline(always)]
pub(crate) fn take_below(stack: &Stack<u64>, limit: u32) -> Option<u32> {
    for _ in 0..TRIES {
        // Peek first: while this CPU pops a range only to push it back, another CPU would split the range
        // below. A range above the limit may be on top only because another CPU holds the range that was on
        // top.
        let Ok(Some(range)) = stack.peek() else { continue };
        if free::unpack(range).0 >= limit {
            continue;
        }
        let Ok(Some(range)) = stack.pop() else { continue };
        let (first, end) = free::unpack(range);
        if first >= limit {
            // The stack has room for it, because this CPU has just popped it.
            let _ = stack.push(range, 0);
            continue;
        }
        if first + 1 < end {
            let _ = stack.push(free::pack(first + 1, end), 0);
        }
        return Some(first);
    }
    None
}

/// Takes a free number.
#[inline(always)]
pub(crate) fn take(stack: &Stack<u64>) -> Option<u32> {
    take_below(stack, u32::MAX)
}

/// Gives back a number that has not been used. It must come from this stack: then there is room for it.
#[inline(always)]
pub(crate) fn give_back(stack: &Stack<u64>, number: u32) {
    let _ = stack.push(free::pack(number, number + 1), 0);
}

/// Whether user space has read and zeroed a slot.
#[inline(always)]
pub(crate) fn is_clean(slots: &Array<QpSlot>, number: u32) -> bool {
    slots
        .get_ptr(number)
        // SAFETY: the map checked the pointer; user space writes this whole word last.
        .is_some_and(|slot| unsafe { read_volatile(&raw const (*slot).qp) == 0 })
}

/// Takes the number that was retired first, if it `is_free` by now. Otherwise moves it to the end of the
/// queue.
#[inline(always)]
pub(crate) fn reuse(used: &Queue<u32>, is_free: impl Fn(u32) -> bool) -> Option<u32> {
    let Ok(Some(number)) = used.pop() else {
        return None;
    };
    if is_free(number) {
        return Some(number);
    }
    // The queue has room for it, because this CPU has just popped it.
    let _ = used.push(number, 0);
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
    let is_free = |number| number < limit && is_clean(&QP_SLOTS, number);
    let reused = || match USED_SLOTS.peek() {
        Ok(Some(oldest)) if is_free(oldest) => reuse(&USED_SLOTS, is_free),
        _ => None,
    };
    let slot = reused().or_else(|| take_below(&FREE_SLOTS, limit)).or_else(|| {
        // No unused slot is left. User space frees slots in an order that differs a little from that of
        // the queue, so try several.
        for _ in 0..4 {
            if moving != 0
                && let Some(slot) = reuse(&USED_SLOTS, is_free)
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
pub(crate) fn give_back_slot(number: u32) {
    let _ = USED_SLOTS.push(number, 0);
}
