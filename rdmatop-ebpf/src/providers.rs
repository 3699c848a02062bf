//! All providers whose work requests are counted.

use rdmatop_common::{counters::QpSlot, provider::COUNT};

use crate::{
    body::{rxe::Rxe, siw::Siw},
    maps::QpPath,
    offsets::{OFF_QP_DEVICE, OFF_SIW_QP_BASE, get_or_zero, is_known},
    slots::Provider,
};

/// The provider of the QP's own device. Each call looks it up: the programs that use this type run seldom,
/// and `QpKnown` has no room to store it.
pub(crate) struct Any;

/// Whether the QP is siw's. If siw is not loaded, the verifier removes this and all code that depends on it.
#[inline(always)]
fn is_siw(qp: u64) -> bool {
    is_known(&OFF_SIW_QP_BASE) && Siw::counts(get_or_zero(qp, &OFF_QP_DEVICE))
}

#[inline(always)]
fn qp_of(path: *mut QpPath) -> u64 {
    // SAFETY: the map checked the pointer.
    unsafe { (*path).qp }
}

/// A new provider adds a case to `counts`, `records` and [`of!`], which else takes its QPs for SoftRoCE's.
const _: () = assert!(COUNT == 2, "each of rdmatop_common::provider has its cases here");

/// Calls a function of the provider of a QP.
macro_rules! of {
    ($qp:expr, $function:ident($($argument:expr),*)) => {
        if is_siw($qp) { Siw::$function($($argument),*) } else { Rxe::$function($($argument),*) }
    };
}

impl Provider for Any {
    #[inline(always)]
    fn counts(device: u64) -> bool {
        Rxe::counts(device) || Siw::counts(device)
    }

    #[inline(always)]
    fn records(device: u64) -> bool {
        Rxe::records(device) || Siw::records(device)
    }

    #[inline(always)]
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool {
        of!(qp, layout(path, qp, flags))
    }

    #[inline(always)]
    fn consumers(qp: u64) -> (u32, u32) {
        of!(qp, consumers(qp))
    }

    #[inline(always)]
    fn has_work(qp: u64) -> bool {
        of!(qp, has_work(qp))
    }

    #[inline(always)]
    fn peer(qp: u64, slot: *mut QpSlot) {
        of!(qp, peer(qp, slot));
    }

    #[inline(always)]
    fn modified(path: *mut QpPath, slot: *mut QpSlot, reset: bool, new_psn: bool) {
        of!(qp_of(path), modified(path, slot, reset, new_psn));
    }

    #[inline(always)]
    fn breaking(path: *mut QpPath, slot: *mut QpSlot) {
        of!(qp_of(path), breaking(path, slot));
    }

    #[inline(always)]
    fn flushed(path: *mut QpPath, slot: *mut QpSlot) {
        of!(qp_of(path), flushed(path, slot));
    }
}
