//! QPs of a trace, which counts nothing.
//!
//! Without `slots` the kernel loads the programs of a trace with a third less work: 58 M instructions instead
//! of 84 M for the five programs of `--trace --event qp_modify`, Linux 6.12.

use core::mem::MaybeUninit;

use crate::{
    body::rxe_shared::is_rxe,
    identity::identify,
    maps::{ANY, NOEXIST, QP_INDEX, QpKnown},
    offsets::{OFF_QP_RES, Pane, place_of},
    task::{Depth, entry},
    words::zeroed,
};

/// Remembers a QP that has just been created.
#[inline(always)]
pub(crate) fn made(known: &mut QpKnown, qp: u64) {
    // The kernel reuses addresses: an entry that is there is an older QP's, whose destroy no program saw or
    // has not returned yet.
    let _ = QP_INDEX.insert(&qp, &*known, ANY);
}

/// What the programs know about a QP; a QP from before attach is remembered now. `None` when there is no room
/// for it.
#[inline(always)]
pub(crate) fn learn(qp: u64) -> Option<*mut QpKnown> {
    QP_INDEX.get_ptr_mut(&qp).or_else(|| {
        adopt(qp);
        QP_INDEX.get_ptr_mut(&qp)
    })
}

/// Remembers a QP from before attach.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn adopt(qp: u64) -> u64 {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    let res = place_of(qp, &OFF_QP_RES);
    identify(known, qp, entry(&mut Pane::uninit(), res), Depth::Whole);
    let _ = QP_INDEX.insert(&qp, &*known, NOEXIST);
    0
}

/// Whether the hooks of a driver make events of its work requests, so that probes on programs leave them
/// alone.
#[inline(always)]
pub(crate) fn is_left_to_kernel(device: u64) -> bool {
    is_rxe(device)
}

/// Forgets a QP that was destroyed, unless a new QP already has its address.
#[inline(always)]
pub(crate) fn destroyed(qp: u64, known: &QpKnown) {
    if let Some(now) = QP_INDEX.get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        && unsafe { (*now).born_ns == known.born_ns }
    {
        let _ = QP_INDEX.remove(&qp);
    }
}
