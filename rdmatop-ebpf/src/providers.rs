//! All providers whose work requests are counted. A new provider adds a line to `counts`, `records` and
//! [`of!`].

use rdmatop_common::counters::QpSlot;

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

impl Provider for Any {
    #[inline(always)]
    fn counts(device: u64) -> bool {
        Rxe::counts(device) || Siw::counts(device)
    }

    #[inline(always)]
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool {
        if is_siw(qp) {
            Siw::layout(path, qp, flags)
        } else {
            Rxe::layout(path, qp, flags)
        }
    }

    #[inline(always)]
    fn consumers(qp: u64) -> (u32, u32) {
        if is_siw(qp) {
            Siw::consumers(qp)
        } else {
            Rxe::consumers(qp)
        }
    }

    #[inline(always)]
    fn has_work(qp: u64) -> bool {
        if is_siw(qp) {
            Siw::has_work(qp)
        } else {
            Rxe::has_work(qp)
        }
    }

    #[inline(always)]
    fn peer(qp: u64, slot: *mut QpSlot) {
        if !is_siw(qp) {
            Rxe::peer(qp, slot);
        }
    }

    #[inline(always)]
    fn modified(path: *mut QpPath, slot: *mut QpSlot, reset: bool, new_psn: bool) {
        // SAFETY: the map checked the pointer.
        if is_siw(unsafe { (*path).qp }) {
            Siw::modified(path, slot, reset, new_psn);
        } else {
            Rxe::modified(path, slot, reset, new_psn);
        }
    }

    #[inline(always)]
    fn breaking(path: *mut QpPath, slot: *mut QpSlot) {
        // SAFETY: the map checked the pointer.
        if !is_siw(unsafe { (*path).qp }) {
            Rxe::breaking(path, slot);
        }
    }

    #[inline(always)]
    fn flushed(path: *mut QpPath, slot: *mut QpSlot) {
        // SAFETY: the map checked the pointer.
        if !is_siw(unsafe { (*path).qp }) {
            Rxe::flushed(path, slot);
        }
    }
}
