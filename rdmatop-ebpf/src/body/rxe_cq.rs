//! SoftRoCE: completions, from `rxe_cq_post(cq, cqe, solicited)`.

use rdmatop_common::counters::{WC_STATUSES, slot_flag};

use crate::{
    body::rxe,
    maps::{QPN_INDEX, QpnKey},
    offsets::{
        OFF_CQ_DEVICE, OFF_RXE_CQ_IBCQ, OFF_RXE_CQ_USER, OFF_WC_BYTE_LEN, OFF_WC_OPCODE, OFF_WC_QP,
        OFF_WC_STATUS, get, member, read,
    },
    slots::find,
    task::now,
    words::add,
};

/// `IB_WC_RECV`: opcodes from here on are receives, include/uapi/rdma/ib_user_verbs.h.
const RECV: u32 = 128;

/// The fields of a CQE.
struct Completion {
    qp: u64,
    status: u32,
    opcode: u32,
    bytes: u32,
}

/// The head of `struct ib_uverbs_wc` (uAPI, the same on every kernel), which a user program's CQ holds.
type UserWc = [u32; 8];

/// Counts a successful receive, also if its QP is not known: the driver has just counted it in `rdma_recvs`.
#[inline(always)]
fn see(status: u32, opcode: u32) {
    if status == 0
        && opcode >= RECV
        && let Some(seen) = rxe::seen()
    {
        // SAFETY: the map checked the pointer.
        add(unsafe { &raw mut (*seen).receives }, 1);
    }
}

#[inline(always)]
fn completion(cq: u64, cqe: u64) -> Option<Completion> {
    if get::<u8>(cq, &OFF_RXE_CQ_USER)? != 0 {
        let wc = read::<UserWc>(cqe)?;
        see(wc[2], wc[3]);
        let ib_cq = member(cq, &OFF_RXE_CQ_IBCQ)?;
        let key = QpnKey {
            device: get(ib_cq, &OFF_CQ_DEVICE)?,
            qpn: wc[7],
            reserved: 0,
        };
        Some(Completion {
            // SAFETY: the map checked the pointer.
            qp: unsafe { *QPN_INDEX.get_ptr(&key)? },
            status: wc[2],
            opcode: wc[3],
            bytes: wc[5],
        })
    } else {
        let (status, opcode) = (get(cqe, &OFF_WC_STATUS)?, get(cqe, &OFF_WC_OPCODE)?);
        see(status, opcode);
        Some(Completion {
            qp: get(cqe, &OFF_WC_QP)?,
            status,
            opcode,
            bytes: get(cqe, &OFF_WC_BYTE_LEN)?,
        })
    }
}

/// Counts a CQE, or that the CQ had no room for it. The tasks of a QP's two queues can complete WRs at the
/// same time, so the words that both write are changed by atomic adds.
#[inline(always)]
pub(crate) fn posted(cq: u64, cqe: u64, overflow: bool) -> Option<()> {
    let done = completion(cq, cqe)?;
    let (path, slot) = find::<rxe::Rxe>(done.qp)?;
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
            rxe::failed(path, slot, done.status == rxe::FLUSHED);
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
