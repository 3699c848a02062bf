//! SoftRoCE: completions, from `rxe_cq_post(cq, cqe, solicited)`.

use rdmatop_common::{
    counters::{WC_STATUSES, slot_flag},
    ib::{FLUSHED, RECV},
};

use crate::{
    body::{rxe, rxe_shared::Cqe},
    maps::QPN_INDEX,
    slots::find,
    task::now,
    words::add,
};

/// Counts a CQE, or that the CQ had no room for it. The tasks of a QP's two queues can complete WRs at the
/// same time, so the words that both write are changed by atomic adds.
#[inline(always)]
pub(crate) fn posted(cq: u64, cqe: u64, overflow: bool) -> Option<()> {
    let done = Cqe::read(cq, cqe, &QPN_INDEX)?;
    // Count a receive also if its QP is not known: the driver has just counted it in `rdma_recvs`.
    if done.status == 0
        && done.opcode >= RECV
        && let Some(seen) = rxe::seen()
    {
        // SAFETY: the map checked the pointer.
        add(unsafe { &raw mut (*seen).receives }, 1);
    }
    if done.qp == 0 {
        return None;
    }
    let (path, slot) = find(done.qp)?;
    // SAFETY: the map checked both pointers; the verifier sees the index masked.
    unsafe {
        if overflow {
            add(&raw mut (*slot).cq_overflows, 1);
        } else {
            add(&raw mut (*slot).cqes, 1);
            let last = WC_STATUSES as u32 - 1;
            let class = if done.status < last { done.status } else { last };
            if class < WC_STATUSES as u32 {
                add((&raw mut (*slot).wc).cast::<u64>().add(class as usize), 1);
            }
        }
        if done.opcode < RECV {
            (*path).cqe_ns = now();
        }
        if done.status != 0 {
            rxe::failed(path, slot, done.status == FLUSHED);
        } else if done.opcode >= RECV && !overflow {
            add(&raw mut (*slot).rx_done, 1);
            add(&raw mut (*slot).rx_bytes, u64::from(done.bytes));
        }
        // A CQE with an error does not say whether it consumes a receive, so do this for all of them too.
        if (done.status != 0 || done.opcode >= RECV) && (*path).flags & slot_flag::SRQ == 0 {
            rxe::receives(path, slot);
        }
    }
    Some(())
}
