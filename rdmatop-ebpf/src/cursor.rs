//! Counters that follow an index of a ring.

/// Advances a cursor, which counts WRs, to where the ring's index is now.
///
/// Programs store the cursor and never add to it. Two CPUs that move it at once can therefore leave it a
/// little too low, and the next event corrects that. The caller must read the cursor before the index: then
/// the index is never behind the cursor.
#[inline(always)]
pub(crate) fn advance(count: u64, base: u64, index: u32, mask: u32) -> u64 {
    // The mask leaves at most 32 bits. Only 64-bit operations are used, so that no value has to be extended.
    let behind = u64::from(index).wrapping_sub(count + base) & u64::from(mask);
    count + behind
}
