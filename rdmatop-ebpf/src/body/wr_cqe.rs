//! SoftRoCE: ends of work requests that have a completion, from `rxe_cq_post(cq, cqe, solicited)`.

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::{
    counters::loss,
    ib::{RECV, WITH_IMM, qp_type::UD},
    wr::{NO_STATUS, WrFilter, count, flag, kind},
};

use crate::{
    body::{
        rxe_shared::{Cqe, is_full},
        wr::{
            claim, consumed, consumed_now, counted, ends, filter, found_at, left_out, posts, release, send,
            taken_now,
        },
    },
    emit::{lost, lost_many},
    offsets::{OFF_RING_DATA, OFF_RXE_QP_SCQ, OFF_WQE_WR_ID, get_or_zero, member},
    task::now,
    words::add,
    wr_maps::{Kept, WR_CQES, WR_OUTSTANDING, WR_QPNS, WR_QPS, WrKey, WrQp, qp_flag},
};

/// Entry of `rxe_cq_post(cq, cqe, solicited)`, which is about to place a CQE.
#[inline(always)]
pub(crate) fn posted(cq: u64, cqe: u64) -> Option<()> {
    let said = Cqe::read(cq, cqe, &WR_QPNS)?;
    let Some(followed) = WR_QPS.get_ptr_mut(&said.qp) else {
        // Either no program saw the QP's first packet, or there was no room for the QP. Whether the trace
        // asks for its WRs is not known.
        counted(count::HAPPENED, 1);
        lost(loss::WR_MISSED);
        return None;
    };
    let full = if is_full(cq) { flag::CQ_FULL } else { 0 };
    if is_receive(followed, cq, &said) {
        received(followed, &said, full)
    } else {
        sent(followed, said.status, full)
    }
}

/// Whether a CQE is of the receive queue. A CQE with an error does not say so: its opcode is 0. If both
/// queues complete to one CQ, the CQE is taken to be of the send queue if the next send to end has the same
/// `wr_id`. If a receive has that `wr_id` too, the two may be reported in the wrong order, but the number of
/// each is right.
#[inline(always)]
fn is_receive(qp: *mut WrQp, cq: u64, said: &Cqe) -> bool {
    if said.status == 0 {
        return said.opcode >= RECV;
    }
    // SAFETY: the map checked the pointers; another CPU may meanwhile write only what belongs to posts.
    unsafe {
        if (*qp).flags & qp_flag::ONE_CQ == 0 {
            return get_or_zero::<u64>((*qp).rxe, &OFF_RXE_QP_SCQ) != cq;
        }
        let next = next_end(qp);
        if next >= read_volatile(&raw const (*qp).seen) {
            return true;
        }
        // The programs do not record the wr_id of a kernel consumer.
        if (*qp).flags & qp_flag::KERNEL != 0 {
            return false;
        }
        let key = WrKey {
            qp: (*qp).rxe,
            wr: next,
        };
        if let Some(known) = WR_OUTSTANDING.get_ptr(&key) {
            return (*known).wr_id != said.wr_id;
        }
        let place = (next + u64::from((*qp).base)) & u64::from((*qp).mask);
        let data = member((*qp).ring, &OFF_RING_DATA).unwrap_or(0);
        let wqe = data + (place << ((*qp).shift & 31));
        get_or_zero::<u64>(wqe, &OFF_WQE_WR_ID) != said.wr_id
    }
}

/// The number of the send WR that the next CQE of the send queue is for.
#[inline(always)]
fn next_end(qp: *mut WrQp) -> u64 {
    // SAFETY: the map checked the pointer; the word is read whole.
    let done = unsafe { read_volatile(&raw const (*qp).done) };
    let consumed = consumed_now(qp).unwrap_or(done);
    let next = if done < consumed { consumed - 1 } else { done };
    next + u64::from(is_kept(qp, next))
}

/// Whether the CQE of a WR has been kept (see [`keep`]).
#[inline(always)]
fn is_kept(qp: *mut WrQp, wr: u64) -> bool {
    // SAFETY: the map checked the pointers.
    unsafe {
        read_volatile(&raw const (*qp).kept) != 0
            && WR_CQES
                .get_ptr(&WrKey { qp: (*qp).rxe, wr })
                .is_some_and(|kept| (*kept).born_ns == (*qp).born_ns)
    }
}

/// Keeps what a CQE says, because another CPU reports the posts of this QP and holds the claim; a hypervisor
/// may have preempted that CPU. The driver's next visit reports the end. Only the driver's task for the QP,
/// which also moves the consumer index, calls this.
#[inline(never)]
fn keep(qp: *mut WrQp, status: u32, full: u16) {
    // SAFETY: the map checked the pointers; the words are read whole.
    unsafe {
        // Ends of a QP that the filter leaves out are only counted, by the index. Nothing would take the CQE.
        if (*qp).flags & qp_flag::WANTED == 0 {
            return;
        }
        let key = WrKey {
            qp: (*qp).rxe,
            wr: next_end(qp),
        };
        let kept = Kept {
            born_ns: (*qp).born_ns,
            status,
            flags: u32::from(full),
        };
        if WR_CQES.insert(&key, &kept, 0).is_ok() {
            add(&raw mut (*qp).kept, 1);
        } else {
            // The next visit reports the end without a status, and counts it as `HEALED`. User space takes
            // those from what the kernel skipped, although it skipped nothing here: so count a loss here.
            counted(count::HAPPENED, 1);
            lost(loss::WR_MISSED);
        }
    }
}

/// Reports the end of the request that a CQE is for. That is the request consumed last. In a flush on 6.12
/// the driver posts the CQE before it consumes the request, so there it is the next one. Requests before it
/// that are not signaled have ended too.
#[inline(always)]
fn sent(qp: *mut WrQp, status: u32, full: u16) -> Option<()> {
    if !claim(qp) {
        keep(qp, status, full);
        return None;
    }
    let _ = posts(qp, found_at(qp), 0);
    let to = consumed(qp);
    // SAFETY: the map checked the pointer.
    let (done, seen) = unsafe { ((*qp).done, (*qp).seen) };
    let mut last = done + 1;
    if done < to {
        // If the CQE of the request consumed last has been kept, this CQE is that of the next request.
        let next = u64::from(is_kept(qp, to - 1));
        let _ = ends(qp, to - 1 + next, NO_STATUS, 0);
        last = to + next;
    }
    if last <= seen {
        let _ = ends(qp, last, status, full);
    }
    release(qp);
    Some(())
}

/// Reports the end of a receive. The receives of a QP end one after the other, so the queue's index shows for
/// how many of them the kernel skipped this program. For a shared receive queue it does not.
#[inline(always)]
fn received(qp: *mut WrQp, said: &Cqe, full: u16) -> Option<()> {
    // SAFETY: the map checked the pointers; only this task writes these words.
    unsafe {
        let mut number = (*qp).received;
        let mut missing = 0;
        if let Some(taken) = taken_now(qp) {
            (*qp).taken = taken;
            if read_volatile(&raw const (*qp).emptied) != 0 {
                write_volatile(&raw mut (*qp).emptied, 0);
                number = if taken > 0 { taken - 1 } else { 0 };
            } else if taken > number + 1 {
                missing = taken - number - 1;
            }
        }
        number += missing;
        (*qp).received = number + 1;
        counted(count::HAPPENED, missing + 1);
        if (*qp).flags & qp_flag::WANTED == 0 {
            counted(count::FILTERED, missing + 1);
            return None;
        }
        if missing != 0 {
            counted(count::INDEXED, missing);
            lost_many(loss::WR_MISSED, missing);
        }
        let filter = filter()?;
        if left_out(filter, number) {
            counted(count::SAMPLED_OUT, 1);
            return None;
        }
        if (*filter).flags & WrFilter::NO_ENDS != 0 {
            counted(count::FILTERED, 1);
            return None;
        }
        send(qp, kind::DONE, now(), |record| {
            record.flags |= flag::RECEIVE | full;
            record.status = said.status;
            record.opcode = RECV;
            if (*qp).flags & qp_flag::KERNEL == 0 {
                record.flags |= flag::WR_ID;
                record.wr_id = said.wr_id;
            }
            if said.status == 0 {
                record.flags |= flag::DETAILS;
                record.opcode = said.opcode;
                record.bytes = said.bytes;
                if said.flags & WITH_IMM != 0 {
                    record.flags |= flag::IMM;
                    record.imm = u32::from_be(said.imm);
                }
                if (*qp).owner.qp_type == UD && (*qp).flags & qp_flag::KERNEL == 0 {
                    record.dest_qpn = said.src_qp;
                }
            }
        });
    }
    Some(())
}
