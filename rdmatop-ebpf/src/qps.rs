//! What the programs of the control plane know about QPs, of all providers: see `slots`.

use crate::{body::rxe_shared::is_rxe, maps::QpKnown, offsets::counts, providers::Any, slots};

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

/// See [`slots::emptying`].
#[inline(always)]
pub(crate) fn emptying(qp: u64, reset: bool) {
    slots::emptying::<Any>(qp, reset);
}

/// See [`slots::leaving`].
#[inline(always)]
pub(crate) fn leaving(qp: u64) {
    slots::leaving::<Any>(qp);
}

/// Follows a modify that succeeded. `reset`: the QP went to RESET; `new_psn`: the send PSN was set; `broken`:
/// it went to ERR.
#[inline(always)]
pub(crate) fn modified(qp: u64, slot: u32, reset: bool, new_psn: bool, broken: bool) {
    let what = u64::from(reset) | u64::from(new_psn) << 1 | u64::from(broken) << 2;
    slots::modified::<Any>(qp, u64::from(slot), what);
}

/// See [`slots::destroyed`].
#[inline(always)]
pub(crate) fn destroyed(qp: u64, known: &QpKnown, start_ns: u64) {
    slots::destroyed(qp, known, start_ns);
}

/// Whether the programs of SoftRoCE make events of the QP's work requests, so that probes on user programs
/// must not. Where SoftRoCE's programs also count, the QP's place among the slots shows that.
#[inline(always)]
pub(crate) fn is_left_to_kernel(device: u64) -> bool {
    !counts() && is_rxe(device)
}
