//! Counters that follow an index of a ring.

/// Advances a cursor, which counts WRs, to where the ring's index is now.
///
/// Programs store a cursor and never add to it: two CPUs that move it at once can leave it a little behind,
/// and the next event corrects that. The caller must read the cursor before the index, so that the index is
/// never behind it.
#[inline(always)]
pub(crate) fn advance(count: u64, base: u64, index: u32, mask: u32) -> u64 {
    // The mask leaves 32 bits at most; without an operation of 32 bits none has to be extended to 64.
    let behind = u64::from(index).wrapping_sub(count + base) & u64::from(mask);
    count + behind
}
