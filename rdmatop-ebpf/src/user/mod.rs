//! Work requests of programs whose posts do not enter the kernel, by probes on the provider's functions.
//!
//! The kernel keeps the address of each user `struct ibv_qp` (`ib_uobject.user_handle`). By process and
//! address a probe finds the QP, and from the address user space finds the functions to probe. The layouts of
//! work requests are those that are compiled into applications (rdma-core, libibverbs/verbs.h). A post is
//! counted at its return, when it is known how much of the list the provider accepted; the caller's list
//! still exists then.
pub(crate) mod build;
pub(crate) mod cqs;
pub(crate) mod maps;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod qps;
pub(crate) mod records;
mod sends;

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use rdmatop_common::counters::{USER_HITS_BITS, UserHits, loss};

use crate::{emit::lost, user::maps::USER_HITS, words::add};

#[inline(always)]
pub(super) fn hits() -> Option<*mut UserHits> {
    // SAFETY: takes no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    USER_HITS.get_ptr_mut(cpu & ((1 << USER_HITS_BITS) - 1))
}

/// Counts a hit that the programs could not count for a QP.
#[inline(always)]
pub(super) fn missed() {
    lost(loss::MISSED);
    if let Some(hits) = hits() {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*hits).missed, 1) };
    }
}
