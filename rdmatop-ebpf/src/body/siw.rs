//! Soft iWARP (siw): work requests, from the indices of its queues.
//!
//! A user program writes elements into queues that it shares with the driver and marks each valid; `write()`
//! of POST_SEND only wakes the driver. siw has no producer index: the posted WRs are the valid elements from
//! the consumer index on. The driver takes one element at a time, in `siw_activate_tx`, where it holds the
//! QP's `sq_lock` and sends no WR, so reads at the entry of that function are free of races. By then each
//! taken element has been sent and is finished, unless it is an RDMA READ, which waits for its response in
//! the outbound read queue (`orq`).
//!
//! The elements are the driver's uAPI (include/uapi/rdma/siw-abi.h) and so the same on every kernel. The
//! driver's own structs are not: their offsets come from BTF.

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::counters::{OPCODES, QpSlot, loss, slot_flag};

use crate::{
    body::siw_cqe::{Call, Cqe},
    cursor::advance,
    emit::{lost, lost_many},
    maps::{QUEUE_SLOTS, QpPath, enabled},
    offsets::{
        OFF_DEV_DRIVER, OFF_QP_RES, OFF_RES_USER, OFF_SIW_ORQ_GET, OFF_SIW_ORQ_PUT, OFF_SIW_QP_BASE,
        OFF_SIW_QP_REF, OFF_SIW_RCQ, OFF_SIW_RECVQ, OFF_SIW_RQ_GET, OFF_SIW_RQ_SIZE, OFF_SIW_RX_WQE,
        OFF_SIW_SCQ, OFF_SIW_SENDQ, OFF_SIW_SQ_GET, OFF_SIW_SQ_SIZE, OFF_SIW_SRQ, OFF_SIW_TX_WQE,
        OFF_SIW_WQE_SQE, OFF_SIW_WQE_STATUS, get, get_or_zero, is_known, member, read_or_zero,
    },
    slots::{Provider, find, find_busy, known},
    words::{add, each, raise},
};

/// The provider soft iWARP.
pub(crate) struct Siw;

/// `RDMA_DRIVER_SIW`, include/uapi/rdma/ib_user_ioctl_verbs.h.
const DRIVER: u32 = 18;

/// Sizes of `struct siw_sqe` and `siw_rqe`.
const SQE: u64 = 120;
const RQE: u64 = 112;
/// Offset in both of the flags (u16), the number of segments (u8) and the opcode (u8).
const HEAD: u64 = 8;
/// `SIW_WQE_VALID`, a bit of the flags.
const VALID: u32 = 1;
/// Offset in an SQE of the first segment's length, and the distance to the next one.
const LENGTH: u64 = 24 + 8;
const SEGMENT: u64 = 16;
/// `SIW_MAX_SGE`.
const SEGMENTS: u32 = 6;
/// `IB_EVENT_CQ_ERR`, include/rdma/ib_verbs.h.
const CQ_ERR: u32 = 0;

/// `enum siw_opcode`.
const READ: u32 = 1;
const READ_LOCAL_INV: u32 = 2;
const READ_RESPONSE: u32 = 9;
/// `IB_WR_*` for each `enum siw_opcode` from `SIW_OP_WRITE` = 0 to `SIW_OP_REG_MR` = 11, four bits each; 15
/// stands for all other opcodes.
const OPCODE_OF: u64 = 0xf7ff_5693_2b40;
/// `SIW_OP_INVAL_STAG`, the first opcode without data; the opcodes of all WRs with data are lower.
const LOCAL: u32 = 10;

/// `enum siw_wr_state`.
const IDLE: u32 = 0;
const QUEUED: u32 = 1;

/// Mask of the driver's indices, which use the whole range of a u32.
const ENDLESS: u32 = u32::MAX;

/// The `siw_qp` around an `ib_qp`.
#[inline(always)]
fn siw_qp(qp: u64) -> u64 {
    qp - u64::from(OFF_SIW_QP_BASE.load())
}

/// The `ib_qp` inside a `siw_qp`.
#[inline(always)]
fn ib_qp(siw_qp: u64) -> u64 {
    siw_qp + u64::from(OFF_SIW_QP_BASE.load())
}

/// Flags, number of segments and opcode of an element.
#[inline(always)]
fn head(element: u64) -> u32 {
    read_or_zero(element + HEAD)
}

#[inline(always)]
fn opcode(head: u32) -> u32 {
    head >> 24
}

impl Provider for Siw {
    #[inline(always)]
    fn counts(device: u64) -> bool {
        is_known(&OFF_SIW_QP_BASE) && get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER)
    }

    #[inline(always)]
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool {
        let siw = siw_qp(qp);
        let size: u32 = get_or_zero(siw, &OFF_SIW_SQ_SIZE);
        let receives: u32 = get_or_zero(siw, &OFF_SIW_RQ_SIZE);
        // The driver rounds both sizes up to powers of two.
        if size == 0 || size & size.wrapping_sub(1) != 0 || receives & receives.wrapping_sub(1) != 0 {
            return false;
        }
        // siw sees no retransmissions, which TCP does. It has no waits: a missing receive ends the
        // connection.
        let mut flags = flags
            | slot_flag::provider::SIW
            | slot_flag::NO_RETRANSMITS
            | slot_flag::NO_RNR
            | slot_flag::NO_LATENCY;
        if get::<u8>(member(qp, &OFF_QP_RES).unwrap_or(0), &OFF_RES_USER) == Some(0) {
            flags |= slot_flag::KERNEL;
        }
        if get_or_zero::<u64>(siw, &OFF_SIW_SRQ) != 0 {
            flags |= slot_flag::SRQ;
        }
        let sendq: u64 = get_or_zero(siw, &OFF_SIW_SENDQ);
        let recvq: u64 = get_or_zero(siw, &OFF_SIW_RECVQ);
        // SAFETY: the map checked the pointer, and nobody else has this slot.
        unsafe {
            (*path).flags = flags;
            (*path).sq = sendq;
            (*path).rq = recvq;
            (*path).sq_ring = sendq;
            (*path).rq_ring = recvq;
            (*path).sq_mask = size - 1;
            (*path).rq_mask = receives.wrapping_sub(1);
            (*path).sq_base = u64::from(get_or_zero::<u32>(siw, &OFF_SIW_SQ_GET));
            (*path).rq_base = u64::from(get_or_zero::<u32>(siw, &OFF_SIW_RQ_GET));
            for word in [
                &raw mut (*path).walked,
                &raw mut (*path).done,
                &raw mut (*path).taken,
                &raw mut (*path).resetting,
            ] {
                write_volatile(word, 0);
            }
        }
        true
    }

    #[inline(always)]
    fn consumers(qp: u64) -> (u32, u32) {
        let siw = siw_qp(qp);
        (
            get_or_zero(siw, &OFF_SIW_SQ_GET),
            get_or_zero(siw, &OFF_SIW_RQ_GET),
        )
    }

    #[inline(always)]
    fn has_work(qp: u64) -> bool {
        let siw = siw_qp(qp);
        let size: u32 = get_or_zero(siw, &OFF_SIW_SQ_SIZE);
        let next: u32 = get_or_zero(siw, &OFF_SIW_SQ_GET);
        let place = u64::from(next & size.wrapping_sub(1)) * SQE;
        let sendq: u64 = get_or_zero(siw, &OFF_SIW_SENDQ);
        let orq: u32 = get_or_zero::<u32>(siw, &OFF_SIW_ORQ_PUT);
        let posted = sendq != 0 && head(sendq + place) & VALID != 0;
        posted || orq != get_or_zero(siw, &OFF_SIW_ORQ_GET)
    }
}

/// How many WRs the driver has taken off the send queue.
#[inline(always)]
unsafe fn taken(path: *mut QpPath, siw: u64) -> u64 {
    // SAFETY: the caller's pointer is checked; the word is a cursor, see `advance`.
    unsafe {
        let before = read_volatile(&raw const (*path).done);
        let taken = advance(
            before,
            (*path).sq_base,
            get_or_zero(siw, &OFF_SIW_SQ_GET),
            ENDLESS,
        );
        if taken != before {
            write_volatile(&raw mut (*path).done, taken);
        }
        taken
    }
}

/// How many READs wait for their responses.
#[inline(always)]
fn reads(siw: u64) -> u64 {
    let put: u32 = get_or_zero(siw, &OFF_SIW_ORQ_PUT);
    let got: u32 = get_or_zero(siw, &OFF_SIW_ORQ_GET);
    u64::from(put.wrapping_sub(got))
}

/// Raises `tx_done`: all taken WRs are finished but at most `unfinished`.
#[inline(always)]
unsafe fn finished(slot: *mut QpSlot, taken: u64, unfinished: u64) {
    // READs from before the QP was counted can be waiting, and be more than the WRs taken since.
    let done = taken.saturating_sub(unfinished);
    // SAFETY: the caller's pointer is checked.
    unsafe { raise(&raw mut (*slot).tx_done, done) };
}

/// A walk over valid elements of a queue.
struct Walk {
    slot: *mut QpSlot,
    /// The first element.
    queue: u64,
    /// Size of an element.
    size: u64,
    base: u64,
    mask: u64,
    next: u64,
    /// 1 to count opcodes and bytes, 0 only to find the end.
    counts: u64,
}

impl Walk {
    /// Over the send queue, from number `next` on.
    #[inline(always)]
    unsafe fn sends(path: *mut QpPath, slot: *mut QpSlot, next: u64, counts: u64) -> Self {
        // SAFETY: the caller's pointer is checked.
        unsafe {
            Self {
                slot,
                queue: (*path).sq_ring,
                size: SQE,
                base: (*path).sq_base,
                mask: u64::from((*path).sq_mask),
                next,
                counts,
            }
        }
    }

    /// Walks over the valid elements, and returns the number of the first that is not valid. The driver has
    /// taken all elements below `taken`.
    #[inline(always)]
    fn end(mut self, taken: u64) -> u64 {
        let ahead = self.next.saturating_sub(taken);
        let turns = (self.mask + 1).saturating_sub(ahead) as u32;
        each(turns, walk_one, &mut self);
        self.next
    }
}

/// Visits one element of a walk, which ends at the first that is not valid.
unsafe extern "C" fn walk_one(_turn: u32, walk: *mut Walk) -> i64 {
    // SAFETY: the walk is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let element = (*walk).queue + (((*walk).next + (*walk).base) & (*walk).mask) * (*walk).size;
        let head = head(element);
        if head & VALID == 0 {
            return 1;
        }
        (*walk).next += 1;
        if (*walk).counts != 0 {
            count((*walk).slot, element, head);
        }
    }
    0
}

/// Counts the opcode and the bytes of a WR. The caller must be a program that runs with `sq_lock` held, or
/// when the driver sends no more.
#[inline(always)]
unsafe fn count(slot: *mut QpSlot, sqe: u64, head: u32) {
    let opcode = opcode(head);
    let segments = (head >> 16) & 0xff;
    let mut bytes = 0;
    if opcode < LOCAL {
        for segment in 0..SEGMENTS {
            if segment >= segments {
                break;
            }
            bytes += u64::from(read_or_zero::<u32>(sqe + LENGTH + u64::from(segment) * SEGMENT));
        }
    }
    let class = if opcode < 12 {
        (OPCODE_OF >> (opcode * 4)) as usize
    } else {
        OPCODES - 1
    } & (OPCODES - 1);
    // SAFETY: the caller's pointer is checked; the verifier sees the index masked.
    unsafe {
        *(&raw mut (*slot).ops).cast::<u64>().add(class) += 1;
        *(&raw mut (*slot).op_bytes).cast::<u64>().add(class) += bytes;
        (*slot).tx_bytes += bytes;
    }
}

/// Counts the WRs on the send queue that have not been counted. The caller must be a program that runs with
/// `sq_lock` held, or when the driver sends no more.
#[inline(always)]
unsafe fn posted(path: *mut QpPath, slot: *mut QpSlot, siw: u64, taken: u64) {
    // SAFETY: the caller's pointers are checked.
    unsafe {
        let mut next = (*path).walked;
        if next < taken {
            // Some WRs were posted after the last visit and taken before this one. The driver keeps a copy of
            // the WR that it took last, so only that one can be counted with its opcode.
            if taken - next > 1 {
                lost_many(loss::WALK, taken - next - 1);
            }
            let copy = siw + u64::from(OFF_SIW_TX_WQE.load()) + u64::from(OFF_SIW_WQE_SQE.load());
            count(slot, copy, head(copy));
            next = taken;
        }
        let end = Walk::sends(path, slot, next, 1).end(taken);
        (*path).walked = end;
        raise(&raw mut (*slot).tx_posted, end);
    }
}

/// Entry of `siw_post_send(ib_qp, wr, bad_wr)`. The WRs of a user program are already on the queue. This call
/// puts those of a kernel consumer there, and they are counted when the driver takes one. While the driver is
/// sending a WR, which takes long if the receiver is slow, it takes no other one. So this looks for waiting
/// WRs too, and they show as posted.
#[inline(always)]
pub(crate) fn doorbell(qp: u64) -> Option<()> {
    let (path, slot) = find(qp)?;
    // SAFETY: the map checked both pointers. Each word that is stored is a cursor, see `advance`.
    unsafe {
        add(&raw mut (*slot).doorbells, 1);
        if (*path).flags & slot_flag::KERNEL != 0 {
            return None;
        }
        let taken = taken(path, siw_qp(qp));
        let before = read_volatile(&raw const (*slot).tx_posted);
        let next = if before > taken { before } else { taken };
        let end = Walk::sends(path, slot, next, 0).end(taken);
        raise(&raw mut (*slot).tx_posted, end);
    }
    Some(())
}

/// Entry of `siw_activate_tx(siw_qp)`: no WR is being sent, and the driver holds `sq_lock`. The driver also
/// calls it for a READ by the peer, even for a QP that has never moved.
#[inline(always)]
pub(crate) fn activating(siw: u64) -> Option<()> {
    let (path, slot) = find_busy(ib_qp(siw))?;
    // SAFETY: the map checked both pointers.
    unsafe {
        let taken = taken(path, siw);
        posted(path, slot, siw, taken);
        finished(slot, taken, reads(siw));
    }
    Some(())
}

/// How many taken WRs are unfinished when the response to a READ is complete and that READ is still in the
/// `orq`: the other READs in the `orq`, and the WR that is being sent, unless it is one of these READs. A
/// READ that is only queued may or may not be in the `orq`; this assumes that it is not. A later visit, at
/// the latest when that READ finishes, corrects the count.
#[inline(always)]
fn beside_this_read(siw: u64) -> u64 {
    let wqe = siw + u64::from(OFF_SIW_TX_WQE.load());
    let state: u32 = get_or_zero(wqe, &OFF_SIW_WQE_STATUS);
    let opcode = opcode(head(wqe + u64::from(OFF_SIW_WQE_SQE.load())));
    let waits = (opcode == READ || opcode == READ_LOCAL_INV) && state != QUEUED;
    let under_way = state != IDLE && opcode != READ_RESPONSE && !waits;
    reads(siw).saturating_sub(1) + u64::from(under_way)
}

/// Entry of `siw_wqe_put_mem(siw_wqe, opcode)`: the response to a READ is complete, with a CQE or without.
#[inline(always)]
pub(crate) fn read_ending(wqe: u64, opcode: u32) -> Option<()> {
    if opcode != READ && opcode != READ_LOCAL_INV {
        return None;
    }
    // For a siw_wqe of the sending side this address is not that of a QP, so the lookup below fails.
    let siw = wqe - u64::from(OFF_SIW_RX_WQE.load());
    let (path, slot) = known(ib_qp(siw))?;
    // SAFETY: the map checked both pointers.
    unsafe { finished(slot, taken(path, siw), beside_this_read(siw)) };
    Some(())
}

/// Entry of `siw_sqe_complete(siw_qp, siw_sqe, bytes, status)`, for a WR that is signaled, has failed or is
/// flushed. `stack`: the stack pointer.
#[inline(always)]
pub(crate) fn sent(siw: u64, sqe: u64, status: u32, stack: u64) -> Option<()> {
    let cq: u64 = get(siw, &OFF_SIW_SCQ)?;
    if cq == 0 {
        return None;
    }
    let call = Call::begin(stack);
    let (path, slot) = find(ib_qp(siw))?;
    // SAFETY: the map checked both pointers.
    unsafe {
        call.counted(slot, &Cqe::of_send(ib_qp(siw), status));
        let taken = taken(path, siw);
        let sending = siw + u64::from(OFF_SIW_TX_WQE.load()) + u64::from(OFF_SIW_WQE_SQE.load());
        let place = sqe.wrapping_sub((*path).sq_ring);
        if sqe == sending {
            finished(slot, taken, reads(siw));
        } else if place < (u64::from((*path).sq_mask) + 1) * SQE {
            // The driver flushes the WR on the queue, and takes it off after this call. It sends no more.
            posted(path, slot, siw, taken);
            finished(slot, taken + 1, 0);
        } else if matches!(opcode(head(sqe)), READ | READ_LOCAL_INV) {
            finished(slot, taken, beside_this_read(siw));
        }
        // In all other cases a kernel consumer has posted the WR to a broken QP (`ib_drain_sq`): the WR is on
        // no queue, and ends with this CQE.
    }
    Some(())
}

/// Entry of `siw_rqe_complete(siw_qp, siw_rqe, bytes, stag, status)`. `stack`: the stack pointer.
#[inline(always)]
pub(crate) fn received(siw: u64, bytes: u32, status: u32, stack: u64) -> Option<()> {
    let cq: u64 = get(siw, &OFF_SIW_RCQ)?;
    if cq == 0 {
        return None;
    }
    let call = Call::begin(stack);
    let (path, slot) = find(ib_qp(siw))?;
    // SAFETY: the map checked both pointers.
    unsafe {
        call.counted(slot, &Cqe::of_receive(ib_qp(siw), status, bytes));
        receives(path, slot, siw);
    }
    Some(())
}

/// Entry of `siw_cq_event(siw_cq, event)`, which the driver calls only when it finds no room for a CQE.
#[inline(always)]
pub(crate) fn no_room(cq: u64, event: u32, stack: u64) -> Option<()> {
    if event != CQ_ERR || !enabled() {
        return None;
    }
    let Some(cqe) = Call::last(stack) else {
        lost(loss::MISSED);
        return None;
    };
    if cqe.qp == 0 {
        // The QP is not counted, which is reported elsewhere.
        return None;
    }
    let siw = siw_qp(cqe.qp);
    let of_this_cq = get(siw, &OFF_SIW_SCQ) == Some(cq) || get(siw, &OFF_SIW_RCQ) == Some(cq);
    match known(cqe.qp) {
        // SAFETY: the map checked the pointer.
        Some((_, slot)) if of_this_cq => unsafe { cqe.not_placed(slot) },
        _ => lost(loss::MISSED),
    }
    Some(())
}

/// Brings the count of posted receives up to date: user programs post them without entering the kernel.
#[inline(always)]
unsafe fn receives(path: *mut QpPath, slot: *mut QpSlot, siw: u64) {
    // SAFETY: the caller's pointers are checked.
    unsafe {
        if (*path).rq_ring == 0 || (*path).flags & slot_flag::SRQ != 0 {
            return;
        }
        let before = read_volatile(&raw const (*path).taken);
        let taken = advance(
            before,
            (*path).rq_base,
            get_or_zero(siw, &OFF_SIW_RQ_GET),
            ENDLESS,
        );
        write_volatile(&raw mut (*path).taken, taken);
        let known = read_volatile(&raw const (*slot).rx_posted);
        let walk = Walk {
            slot,
            queue: (*path).rq_ring,
            size: RQE,
            base: (*path).rq_base,
            mask: u64::from((*path).rq_mask),
            next: if known > taken { known } else { taken },
            counts: 0,
        };
        let end = walk.end(taken);
        raise(&raw mut (*slot).rx_posted, end);
    }
}

/// Entry of `siw_free_qp(kref)`, the last step of destroy: the driver frees the queues with the WRs on them.
#[inline(always)]
pub(crate) fn ending(kref: u64) -> Option<()> {
    let siw = kref - u64::from(OFF_SIW_QP_REF.load());
    let (path, slot) = known(ib_qp(siw))?;
    // SAFETY: the map checked both pointers.
    unsafe {
        posted(path, slot, siw, taken(path, siw));
        write_volatile(&raw mut (*slot).tx_done, (*slot).tx_posted);
        receives(path, slot, siw);
        // Remove the entries now: when destroy has returned, newer queues may have the addresses. The keys
        // stay where they are, because copies of them would take stack.
        let _ = QUEUE_SLOTS.remove(&(*path).sq);
        let _ = QUEUE_SLOTS.remove(&(*path).rq);
    }
    Some(())
}
