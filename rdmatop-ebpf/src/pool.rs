//! Numbers of the mmapped arrays: who has which.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

use aya_ebpf::maps::Stack;
use rdmatop_common::counters::free;

/// Tries to find a range: more CPUs than there are ranges may be here at once.
const TRIES: u32 = 4;

/// Adds on a word that several CPUs share.
#[inline(always)]
pub(crate) fn add(word: *mut u64, value: u64) {
    // SAFETY: the pointer is a member of a map value that the verifier knows; the add is locked.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(word, value) };
}

/// Takes a number that nobody has.
#[inline(always)]
pub(crate) fn take(stack: &Stack<u64>) -> Option<u32> {
    for _ in 0..TRIES {
        let Ok(Some(range)) = stack.pop() else { continue };
        let (first, end) = free::unpack(range);
        if first + 1 < end {
            // There was room for what was just popped.
            let _ = stack.push(free::pack(first + 1, end), 0);
        }
        return Some(first);
    }
    None
}

/// Gives one back that has not been used.
#[inline(always)]
pub(crate) fn give_back(stack: &Stack<u64>, number: u32) {
    let _ = stack.push(free::pack(number, number + 1), 0);
}
