//! QPs whose work requests may be counted: see `slots`. These programs see the QPs of all providers.

use crate::{maps::QpKnown, providers::Any, slots};

/// Remembers a QP that has just been created.
#[inline(always)]
pub(crate) fn made(known: &mut QpKnown, qp: u64) {
    slots::made::<Any>(known, qp);
}

/// See [`slots::learn`].
#[inline(always)]
pub(crate) fn learn(qp: u64) -> Option<*mut QpKnown> {
    slots::learn::<Any>(qp)
}

/// See [`slots::asked`].
#[inline(always)]
pub(crate) fn asked(qp: u64) {
    slots::asked::<Any>(qp);
}

/// See [`slots::resetting`].
#[inline(always)]
pub(crate) fn resetting(qp: u64) {
    slots::resetting::<Any>(qp);
}

/// Follows a modify that succeeded. `reset`: the QP went to RESET; `new_psn`: the send PSN was set.
#[inline(always)]
pub(crate) fn modified(qp: u64, slot: u32, reset: bool, new_psn: bool) {
    slots::modified::<Any>(qp, u64::from(slot), u64::from(reset) | u64::from(new_psn) << 1);
}

/// See [`slots::destroyed`].
#[inline(always)]
pub(crate) fn destroyed(qp: u64, known: &QpKnown) {
    slots::destroyed(qp, known);
}

/// Never: where a driver's hooks count, a QP is known by its place among the slots.
#[inline(always)]
pub(crate) fn is_left_to_kernel(_device: u64) -> bool {
    false
}
