//! SoftRoCE before Linux 6.4: CQEs of a flush that no program saw.
//!
//! A modify to ERR raises a softirq, which flushes the QP's queues. If an interrupt comes while one of our
//! programs runs, the softirq runs inside that program, where the kernel skips all our other programs, and no
//! counter of the driver has these CQEs. But the consumer indices move. So the entry program of the modify
//! notes them ([`mark`]), and later programs compare them with the counted CQEs ([`count_unseen`]).

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::{
    counters::{QpSlot, slot_flag},
    ib::FLUSHED,
};

use crate::{
    body::rxe::{Rxe, elements},
    cursor::advance,
    maps::QpPath,
    offsets::{OFF_WQE_STATUS, get},
    slots::{NOT_IN_ERR, Provider},
    words::{add, raise},
};

/// Counts the CQEs that no program saw. Each flushed send WR has one CQE, signaled or not, and each receive
/// has one, flushed or not. Whether the CQ had room for them is not known: this counts all of them as placed.
#[inline(always)]
pub(super) fn count_unseen(path: *mut QpPath, slot: *mut QpSlot) {
    // SAFETY: the map checked both pointers; counts with several writers are changed by atomic adds.
    unsafe {
        let before = (*path).flushed_at;
        // While a queue is not empty, a flush may be under way, and the WR consumed last may have no CQE yet.
        // (If that WR is also the last of the queue, and another CPU is flushing it at this very moment, its
        // CQE counts twice.)
        if before == NOT_IN_ERR || Rxe::has_work((*path).qp) {
            return;
        }
        let ends_before = (*path).flushed_ends;
        mark(path, slot);
        let now = (*path).flushed_at;
        let counted = (*path).flushed_ends - ends_before;
        let consumed = u64::from((now as u32).wrapping_sub(before as u32) & (*path).sq_mask);
        let receives = u64::from(receive_half(now).wrapping_sub(receive_half(before)) & (*path).rq_mask);
        if consumed + receives <= counted {
            return;
        }
        let sends = consumed - unflushed(path, before as u32, consumed);
        if sends + receives <= counted {
            return;
        }
        let uncounted = sends + receives - counted;
        (*path).flushed_ends += uncounted;
        add(&raw mut (*slot).cqes, uncounted);
        add(
            (&raw mut (*slot).wc).cast::<u64>().add(FLUSHED as usize),
            uncounted,
        );
        let done = advance(
            read_volatile(&raw const (*path).done),
            (*path).sq_base,
            now as u32,
            (*path).sq_mask,
        );
        if done - sends < (*path).failed {
            write_volatile(&raw mut (*path).failed, done - sends);
        }
        raise(&raw mut (*slot).tx_done, done);
    }
}

/// Remembers the consumer indices of a QP, and how many WRs have ended with a CQE that [`count_unseen`]
/// expects. Not inlined: the entry program of a modify has too little stack left.
#[inline(never)]
pub(super) fn mark(path: *mut QpPath, slot: *mut QpSlot) {
    // SAFETY: the map checked both pointers. Only programs at modify and destroy calls of the QP come here,
    // and the kernel runs these calls one at a time.
    unsafe {
        // Read the counts before the indices, and the successes last. Otherwise a CQE that another CPU counts
        // meanwhile would look like one that nobody has counted.
        let received = if (*path).flags & slot_flag::SRQ == 0 {
            read_volatile(&raw const (*slot).rx_done)
        } else {
            0
        };
        let placed = read_volatile(&raw const (*slot).cqes) + read_volatile(&raw const (*slot).cq_overflows);
        let succeeded = read_volatile((&raw const (*slot).wc).cast::<u64>());
        (*path).flushed_ends = (placed - succeeded).wrapping_add(received);
        let (sq, rq) = Rxe::consumers((*path).qp);
        write_volatile(
            &raw mut (*path).flushed_at,
            u64::from(sq) | u64::from(rq) << u32::BITS,
        );
    }
}

/// The consumer index of the receive queue in [`QpPath::flushed_at`].
#[inline(always)]
fn receive_half(both: u64) -> u32 {
    (both >> u32::BITS) as u32
}

/// How many of the `consumed` send WRs from index `from` on were not flushed. The flushed ones come last, so
/// a binary search finds the first of them; a ring has at most 2^20 elements (`RXE_MAX_QP_WR`).
#[inline(always)]
unsafe fn unflushed(path: *mut QpPath, from: u32, consumed: u64) -> u64 {
    // SAFETY: the caller's pointer is checked.
    unsafe {
        let data = elements(path).unwrap_or(0);
        let (mut low, mut high) = (0, consumed);
        for _ in 0..=20 {
            let middle = u64::midpoint(low, high);
            let index = middle.wrapping_add(u64::from(from)) & u64::from((*path).sq_mask);
            let status = get::<u32>(data + (index << ((*path).sq_shift & 31)), &OFF_WQE_STATUS);
            if low < high {
                if status == Some(FLUSHED) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
        }
        low
    }
}
