//! All providers whose work requests are counted, and which of them a QP's is.
//!
//! Each call looks the provider up: the programs that ask run seldom, and `QpKnown` has no room to store it.

use rdmatop_common::provider::COUNT;

use crate::{
    body::{rxe::Rxe, siw::Siw},
    offsets::{OFF_QP_DEVICE, OFF_SIW_QP_BASE, get_or_zero, is_known},
    slots::Provider,
};

/// A new provider adds a case to [`counts`], [`records`] and [`of_qp!`], which else takes its QPs for
/// SoftRoCE's.
const _: () = assert!(COUNT == 2, "each of rdmatop_common::provider has its cases here");

/// Whether work requests of the device's QPs are counted.
#[inline(always)]
pub(crate) fn counts(device: u64) -> bool {
    Rxe::counts(device) || Siw::counts(device)
}

/// Whether programs make records of the device's work requests (`--event wr`).
#[inline(always)]
pub(crate) fn records(device: u64) -> bool {
    Rxe::counts(device)
}

/// Whether the QP is siw's. If siw is not loaded, the verifier removes this and all code that depends on it.
#[inline(always)]
pub(crate) fn is_siw(qp: u64) -> bool {
    is_known(&OFF_SIW_QP_BASE) && Siw::counts(get_or_zero(qp, &OFF_QP_DEVICE))
}

/// Calls a function of the provider of a QP.
macro_rules! of_qp {
    ($qp:expr, $function:ident($($argument:expr),*)) => {
        if $crate::providers::is_siw($qp) {
            $crate::body::siw::Siw::$function($($argument),*)
        } else {
            $crate::body::rxe::Rxe::$function($($argument),*)
        }
    };
}
pub(crate) use of_qp;
