//! Free numbers of the mmapped arrays.

use aya_ebpf::maps::Stack;
use rdmatop_common::counters::free;

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
