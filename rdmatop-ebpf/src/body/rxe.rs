//! SoftRoCE: work requests, from the indices of its rings.
//!
//! User programs post and poll through memory that they share with the driver. What enters the kernel is a
//! doorbell, and the driver's own tasks. So nothing is counted call by call: counts are distances that the
//! rings' indices have moved. The completer's task is serial per QP, and it alone consumes a send queue: what
//! is read at its entry is free of races. It is called again after each call that did something, so an entry
//! sees what the call before has finished; no return probe is needed, which would cost three times as much.

use core::{
    ffi::c_void,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{Global, helpers::bpf_loop};
use rdmatop_common::counters::{OPCODES, QpSlot, STAMPS_PER_QP, bucket, loss, slot_flag};

use crate::{
    emit::{lost, lost_many},
    maps::{QUEUE_SLOTS, QpPath},
    offsets::{
        OFF_DEV_DRIVER, OFF_PKT_OPCODE, OFF_PKT_PSN, OFF_PKT_WQE, OFF_QUEUE_BUF, OFF_QUEUE_INDEX,
        OFF_QUEUE_MASK, OFF_QUEUE_SHIFT, OFF_RING_DATA, OFF_RING_PRODUCER, OFF_RXE_QP_IBQP, OFF_RXE_QP_MTU,
        OFF_RXE_QP_RNR_EXPIRES, OFF_RXE_QP_RNR_PENDING, OFF_RXE_QP_RQ, OFF_RXE_QP_SQ, OFF_RXE_QP_SRQ,
        OFF_RXE_QP_STATE, OFF_RXE_QP_USER, OFF_WQE_LENGTH, OFF_WQE_OPCODE, OFF_WQE_RESID, OFF_WQE_STATUS,
        get, get_or_zero, is_known, member, read,
    },
    pool::add,
    slots::{Provider, advance, at, find, find_busy},
    task::now,
};

/// Opcodes without data, whose length field is left over from the slot's last tenant: `IB_WR_LOCAL_INV` and
/// `IB_WR_BIND_MW`, include/uapi/rdma/ib_user_verbs.h; kernel-only ones begin at `IB_WR_REG_MR` = 0x20.
const LOCAL_INV: u32 = 7;
const BIND_MW: u32 = 8;
const KERNEL_OPCODES: u32 = 0x20;
/// `RDMA_DRIVER_RXE`, include/uapi/rdma/ib_user_ioctl_verbs.h.
const DRIVER: u32 = 14;
/// `IB_QPS_RESET`.
const RESET: u32 = 0;
/// [`QpPath::failed`] of a QP all of whose WRs have finished well.
const NONE_FAILED: u64 = u64::MAX;
/// [`QpPath::rnr_expires`] of a QP whose timer has not been looked at, and of one that waits: no timer runs for so long.
const UNSEEN: u64 = u64::MAX;
const WAITING: u64 = u64::MAX - 1;
/// Bits of a stamp that hold the time; above them is the lap.
const TIME_BITS: u32 = 52;
const TIME: u64 = (1 << TIME_BITS) - 1;

/// SoftRoCE, as the slots see it.
pub(crate) struct Rxe;

/// The `rxe_qp` around an `ib_qp`.
#[inline(always)]
fn rxe_qp(qp: u64) -> u64 {
    qp - u64::from(OFF_RXE_QP_IBQP.load())
}

/// The `ib_qp` inside an `rxe_qp`.
#[inline(always)]
fn ib_qp(rxe_qp: u64) -> u64 {
    rxe_qp + u64::from(OFF_RXE_QP_IBQP.load())
}

impl Provider for Rxe {
    #[inline(always)]
    fn counts(device: u64) -> bool {
        // An ib_qp is the head of its provider's QP: only the driver id says whose.
        is_known(&OFF_RXE_QP_IBQP) && get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER)
    }

    #[inline(always)]
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool {
        let rxe = rxe_qp(qp);
        let Some(user) = get::<u8>(rxe, &OFF_RXE_QP_USER) else {
            return false;
        };
        let mut flags = flags | slot_flag::provider::RXE;
        if user == 0 {
            flags |= slot_flag::KERNEL;
        }
        flags |= if get_or_zero::<u64>(rxe, &OFF_RXE_QP_SRQ) == 0 {
            0
        } else {
            slot_flag::SRQ
        };
        if !is_known(&OFF_RXE_QP_RNR_EXPIRES) || !is_known(&OFF_RXE_QP_RNR_PENDING) {
            flags |= slot_flag::NO_RNR;
        }
        let sq: u64 = get_or_zero(rxe, &OFF_RXE_QP_SQ);
        let rq: u64 = get_or_zero(rxe, &OFF_RXE_QP_RQ);
        // SAFETY: the map checked the pointer, and nobody else has this slot.
        unsafe {
            (*path).flags = flags;
            (*path).sq = sq;
            (*path).rq = rq;
            (*path).sq_ring = get_or_zero(sq, &OFF_QUEUE_BUF);
            (*path).rq_ring = get_or_zero(rq, &OFF_QUEUE_BUF);
            (*path).sq_mask = get_or_zero(sq, &OFF_QUEUE_MASK);
            (*path).rq_mask = get_or_zero(rq, &OFF_QUEUE_MASK);
            (*path).sq_shift = get_or_zero(sq, &OFF_QUEUE_SHIFT);
            // Counting begins at the consumer: what is outstanding now is still to finish.
            (*path).sq_base = u64::from(get_or_zero::<u32>(sq, &OFF_QUEUE_INDEX));
            (*path).rq_base = u64::from(get_or_zero::<u32>(rq, &OFF_QUEUE_INDEX));
            for word in [
                &raw mut (*path).walked,
                &raw mut (*path).rung,
                &raw mut (*path).done,
                &raw mut (*path).taken,
                &raw mut (*path).resetting,
                &raw mut (*path).carry_ns,
                &raw mut (*path).cqe_ns,
            ] {
                write_volatile(word, 0);
            }
            (*path).failed = NONE_FAILED;
            (*path).psn_known = 0;
            // A new QP's timer has never run. Another's is not looked at here: of the 512 bytes of stack that a program and what
            // it calls have, one that comes here uses all. For the same reason the flags are read back.
            let last_wait = if read_volatile(&raw const (*path).flags) & slot_flag::SINCE_ATTACH == 0 {
                0
            } else {
                UNSEEN
            };
            (*path).rnr_expires = last_wait;
            (*path).rnr_resent = last_wait;
        }
        true
    }

    #[inline(always)]
    fn consumers(qp: u64) -> (u32, u32) {
        let rxe = rxe_qp(qp);
        let of = |queue: &Global<u32>| get_or_zero(get_or_zero(rxe, queue), &OFF_QUEUE_INDEX);
        (of(&OFF_RXE_QP_SQ), of(&OFF_RXE_QP_RQ))
    }

    #[inline(always)]
    fn has_work(qp: u64) -> bool {
        let rxe = rxe_qp(qp);
        let waits = |queue: &Global<u32>| {
            let queue: u64 = get_or_zero(rxe, queue);
            let ring: u64 = get_or_zero(queue, &OFF_QUEUE_BUF);
            let consumer: u32 = get_or_zero(queue, &OFF_QUEUE_INDEX);
            member(ring, &OFF_RING_PRODUCER)
                .and_then(read::<u32>)
                .unwrap_or(consumer)
                != consumer
        };
        waits(&OFF_RXE_QP_SQ) || waits(&OFF_RXE_QP_RQ)
    }

    /// RESET empties both queues without CQEs, after a last call of the completer
    /// that saw what had finished well. A new send PSN takes a QP to RTS and begins a new life of its
    /// queues.
    #[inline(always)]
    fn modified(path: *mut QpPath, slot: *mut QpSlot, reset: bool, new_psn: bool) {
        // SAFETY: the map checked both pointers. No task of the QP works on its queues in RESET.
        unsafe {
            write_volatile(&raw mut (*path).resetting, 0);
            if reset && let Some(consumer) = get::<u32>((*path).sq, &OFF_QUEUE_INDEX) {
                let done = advance((*path).done, (*path).sq_base, consumer, (*path).sq_mask);
                write_volatile(&raw mut (*path).done, done);
                write_volatile(&raw mut (*slot).tx_done, done);
            }
            if new_psn {
                (*path).psn_known = 0;
                write_volatile(&raw mut (*path).failed, NONE_FAILED);
            }
        }
        receives(path, slot);
    }
}

/// A time with the lap of the WR it belongs to. A stamp that is left over from an earlier lap does not match,
/// so none is ever cleared; one from the slot's last tenant is too old. 52 bits of nanoseconds are 52 days; differences are taken modulo that.
#[inline(always)]
fn stamp(wr: u64, ns: u64) -> u64 {
    (wr / STAMPS_PER_QP as u64) << TIME_BITS | (ns & TIME)
}

#[inline(always)]
unsafe fn stamp_of(path: *mut QpPath, wr: u64) -> *mut u64 {
    // SAFETY: the caller's pointer is checked; the mask keeps the index inside.
    unsafe {
        (&raw mut (*path).stamps)
            .cast::<u64>()
            .add(wr as usize & (STAMPS_PER_QP - 1))
    }
}

/// Entry of `rxe_post_send(qp, wr, bad_wr)`. A user program's WRs are on the ring by now, a kernel consumer's
/// are put there by this call: their doorbell is stamped ahead, and the completer counts them.
#[inline(always)]
pub(crate) fn doorbell(qp: u64) -> Option<()> {
    let (path, slot) = find::<Rxe>(qp)?;
    // SAFETY: the map checked both pointers. Words with several writers are cursors, see `advance`.
    unsafe {
        add(&raw mut (*slot).doorbells, 1);
        let before = read_volatile(&raw const (*path).rung);
        let producer = read::<u32>(member((*path).sq_ring, &OFF_RING_PRODUCER)?)?;
        let rung = advance(before, (*path).sq_base, producer, (*path).sq_mask);
        let first = if (*path).flags & slot_flag::KERNEL != 0 {
            rung
        } else {
            // The worker may have been faster than this probe: what is done needs no stamp.
            let done = read_volatile(&raw const (*slot).tx_done);
            if done > before { done } else { before }
        };
        *stamp_of(path, first) = stamp(first, now());
        write_volatile(&raw mut (*path).rung, rung);
        if (*slot).tx_posted < rung {
            (*slot).tx_posted = rung;
        }
    }
    Some(())
}

/// Entry of `rxe_completer(rxe_qp)`. The driver enters it at RESET and destroy too, of a QP that never moved.
#[inline(always)]
pub(crate) fn completing(rxe_qp: u64) -> Option<()> {
    let (path, slot) = find_busy::<Rxe>(ib_qp(rxe_qp))?;
    waited(path, slot, rxe_qp);
    sends(path, slot)
}

/// Counts the wait for a receiver without buffers that is over since the last visit. Only from the QP's serial task, or
/// when that has ended.
///
/// The timer itself (`rnr_nak_timer`) runs in a softirq: a program there is skipped whenever that softirq interrupts
/// another one of ours. What it leaves behind is not: the completer alone starts the timer, for a NAK, in a call whose
/// entry finds the wait before over. Each wait has an end of its own, later than the one before, because it begins when
/// the timer has run and lasts a jiffy or longer (`rnrnak_jiffies`). A NAK that comes while the timer is pending puts that
/// end off. Before Linux 6.4 the completer's task is in softirqs too, and that entry may be the only one in a wait: then
/// the packet that was sent again has seen the end ([`resent`]).
#[inline(always)]
fn waited(path: *mut QpPath, slot: *mut QpSlot, rxe_qp: u64) -> Option<()> {
    // SAFETY: the map checked both pointers.
    unsafe {
        let counted = (*path).rnr_expires;
        let expires = get::<u64>(rxe_qp, &OFF_RXE_QP_RNR_EXPIRES)?;
        if expires == counted {
            return None;
        }
        let waits = get::<u64>(rxe_qp, &OFF_RXE_QP_RNR_PENDING)? != 0;
        if counted == UNSEEN {
            // What is over was over before this QP was known, and what is under way is still to be counted.
            let last = if waits { WAITING } else { expires };
            (*path).rnr_expires = last;
            write_volatile(&raw mut (*path).rnr_resent, last);
            return None;
        }
        if waits {
            return None;
        }
        let between = read_volatile(&raw const (*path).rnr_resent);
        let skipped = between != expires && between.wrapping_sub(counted).cast_signed() > 0;
        (*path).rnr_expires = expires;
        (*slot).rnr_waits += 1 + u64::from(skipped);
    }
    Some(())
}

/// A request is sent again, as the one is that made the QP wait. Only from the requester's task.
#[inline(always)]
fn resent(path: *mut QpPath, rxe_qp: u64) -> Option<()> {
    // SAFETY: the map checked the pointer; the completer reads the word whole.
    unsafe {
        let known = read_volatile(&raw const (*path).rnr_resent);
        let expires = get::<u64>(rxe_qp, &OFF_RXE_QP_RNR_EXPIRES)?;
        if expires != known && known != UNSEEN && get::<u64>(rxe_qp, &OFF_RXE_QP_RNR_PENDING)? == 0 {
            write_volatile(&raw mut (*path).rnr_resent, expires);
        }
    }
    Some(())
}

/// Brings a send queue's counts up to date. Only from the QP's serial task, or when that has ended.
#[inline(always)]
fn sends(path: *mut QpPath, slot: *mut QpSlot) -> Option<()> {
    // SAFETY: the map checked both pointers.
    unsafe {
        let (base, mask) = ((*path).sq_base, (*path).sq_mask);
        let done_before = read_volatile(&raw const (*path).done);
        let posted_before = read_volatile(&raw const (*slot).tx_posted);
        let consumer = get::<u32>((*path).sq, &OFF_QUEUE_INDEX)?;
        let producer = read::<u32>(member((*path).sq_ring, &OFF_RING_PRODUCER)?)?;
        let posted = advance(posted_before, base, producer, mask);
        if posted != posted_before {
            (*slot).tx_posted = posted;
        }
        if (*path).walked != posted {
            walk(path, slot, posted);
        }
        let done = advance(done_before, base, consumer, mask);
        if done != done_before {
            // RESET lets the task run once more (6.12) before it returns. The state is read only then: it costs.
            if read_volatile(&raw const (*path).resetting) != 0
                && get::<u32>(rxe_qp((*path).qp), &OFF_RXE_QP_STATE) == Some(RESET)
                && done_before < (*path).failed
            {
                write_volatile(&raw mut (*path).failed, done_before);
            }
            finished(path, slot, done_before, done);
            write_volatile(&raw mut (*path).done, done);
            if done > read_volatile(&raw const (*slot).tx_done) {
                write_volatile(&raw mut (*slot).tx_done, done);
            }
        }
    }
    Some(())
}

/// What the walk over new WRs carries from one to the next.
struct Walk {
    slot: *mut QpSlot,
    /// The ring's first element.
    data: u64,
    base: u64,
    mask: u64,
    shift: u32,
    next: u64,
}

/// Reads opcode and length of the WRs that were posted since the last visit. None of them has been consumed
/// before this visit's end, so no slot holds another WR yet.
#[inline(always)]
unsafe fn walk(path: *mut QpPath, slot: *mut QpSlot, posted: u64) {
    // SAFETY: the caller's pointers are checked.
    unsafe {
        let mask = u64::from((*path).sq_mask);
        let mut walk = Walk {
            slot,
            data: member((*path).sq_ring, &OFF_RING_DATA).unwrap_or(0),
            base: (*path).sq_base,
            mask,
            shift: (*path).sq_shift & 31,
            next: (*path).walked,
        };
        if posted - walk.next > mask {
            // More than the ring holds: the oldest are overwritten.
            lost_many(loss::WALK, posted - walk.next - mask);
            walk.next = posted - mask;
        }
        let count = (posted - walk.next) as u32;
        bpf_loop(
            count,
            walk_one as *mut c_void,
            (&raw mut walk).cast::<c_void>(),
            0,
        );
        (*path).walked = posted;
    }
}

/// One WR of a walk. A callback, because the verifier looks at it once and not once a turn.
unsafe extern "C" fn walk_one(_turn: u32, walk: *mut Walk) -> i64 {
    // SAFETY: the walk is on the caller's stack; the verifier follows its pointers and sees the index masked.
    unsafe {
        let slot = (*walk).slot;
        let wqe = (*walk).data + ((((*walk).next + (*walk).base) & (*walk).mask) << ((*walk).shift & 31));
        (*walk).next += 1;
        let opcode = get::<u32>(wqe, &OFF_WQE_OPCODE);
        let length = get::<u32>(wqe, &OFF_WQE_LENGTH);
        let (Some(opcode), Some(length)) = (opcode, length) else {
            lost(loss::WALK);
            return 0;
        };
        let bytes = if opcode == LOCAL_INV || opcode == BIND_MW || opcode >= KERNEL_OPCODES {
            0
        } else {
            u64::from(length)
        };
        let class = if opcode < OPCODES as u32 {
            opcode as usize
        } else {
            OPCODES - 1
        } & (OPCODES - 1);
        *(&raw mut (*slot).ops).cast::<u64>().add(class) += 1;
        *(&raw mut (*slot).op_bytes).cast::<u64>().add(class) += bytes;
        (*slot).tx_bytes += bytes;
    }
    0
}

/// What taking the times carries from one WR to the next.
struct Times {
    slot: *mut QpSlot,
    path: *mut QpPath,
    kernel: u64,
    rung: u64,
    now: u64,
    /// When the WRs were done: at the CQE that the program waits for, which the completer's next entry finds already
    /// placed; now where there was none.
    end: u64,
    /// For how long the slot has had this tenant.
    age: u64,
    carry_ns: u64,
    wr: u64,
}

/// Takes the times of the WRs that finished since the last visit: of those that finished well. How long one was on the
/// queue that was flushed says when the QP broke, and nothing of requests.
#[inline(always)]
unsafe fn finished(path: *mut QpPath, slot: *mut QpSlot, from: u64, to: u64) {
    // SAFETY: the caller's pointers are checked.
    unsafe {
        let failed = read_volatile(&raw const (*path).failed);
        let to = if to < failed { to } else { failed };
        if to <= from {
            return;
        }
        let now = now();
        let cqe_ns = read_volatile(&raw const (*path).cqe_ns);
        let mut times = Times {
            slot,
            path,
            kernel: u64::from((*path).flags & slot_flag::KERNEL),
            rung: read_volatile(&raw const (*path).rung),
            now,
            end: if cqe_ns == 0 { now } else { cqe_ns },
            age: now - (*slot).since_ns,
            carry_ns: (*path).carry_ns,
            wr: from,
        };
        bpf_loop(
            (to - from) as u32,
            time_one as *mut c_void,
            (&raw mut times).cast::<c_void>(),
            0,
        );
        (*path).carry_ns = times.carry_ns;
        write_volatile(&raw mut (*path).cqe_ns, 0);
    }
}

/// One finished WR.
unsafe extern "C" fn time_one(_turn: u32, times: *mut Times) -> i64 {
    // SAFETY: as in `walk_one`.
    unsafe {
        let slot = (*times).slot;
        let wr = (*times).wr;
        (*times).wr = wr + 1;
        if (*times).kernel == 0 && wr >= (*times).rung {
            (*slot).latency_early += 1;
            (*times).carry_ns = 0;
            return 0;
        }
        let value = *stamp_of((*times).path, wr);
        // Of this lap, and not from the slot's last tenant.
        let own = value >> TIME_BITS == stamp(wr, 0) >> TIME_BITS
            && ((*times).now.wrapping_sub(value) & TIME) <= (*times).age;
        if own {
            (*times).carry_ns = value & TIME;
        } else if (*times).rung > wr + STAMPS_PER_QP as u64 {
            // Its place has been taken by a later doorbell.
            lost(loss::STAMP);
            (*times).carry_ns = 0;
            return 0;
        }
        // Without a stamp of its own it was posted by the same doorbell as the one before it.
        if (*times).carry_ns == 0 {
            (*slot).latency_early += 1;
            return 0;
        }
        let longest = (*times).now.wrapping_sub((*times).carry_ns) & TIME;
        let took = (*times).end.wrapping_sub((*times).carry_ns) & TIME;
        // Posted and done without a CQE after that CQE: the difference has wrapped.
        let took = if took > longest { longest } else { took };
        (*slot).latency_sum_ns += took;
        if (*slot).latency_max_ns < took {
            (*slot).latency_max_ns = took;
        }
        *(&raw mut (*slot).latency).cast::<u64>().add(bucket(took) & 31) += 1;
    }
    0
}

/// Brings the count of posted receives up to date. The program posts them without the kernel, and as soon as one is
/// consumed, which is before its CQE is placed: so the producer can go round the ring between two looks. The consumer
/// cannot, and what lies between the two is less than the ring.
#[inline(always)]
pub(crate) fn receives(path: *mut QpPath, slot: *mut QpSlot) -> Option<()> {
    // SAFETY: the map checked both pointers; the counts are cursors, see `advance`.
    unsafe {
        let (base, mask) = ((*path).rq_base, (*path).rq_mask);
        let before = read_volatile(&raw const (*slot).rx_posted);
        let taken = read_volatile(&raw const (*path).taken);
        let consumer = get::<u32>((*path).rq, &OFF_QUEUE_INDEX)?;
        let producer = read::<u32>(member((*path).rq_ring, &OFF_RING_PRODUCER)?)?;
        let mut taken = advance(taken, base, consumer, mask);
        let mut posted = taken + u64::from(producer.wrapping_sub(consumer) & mask);
        if posted < before {
            // A flush tells of a WR before it consumes it (6.12), and a drain consumes a whole ring at once: once round.
            let round = u64::from(mask) + 1;
            (taken, posted) = (taken + round, posted + round);
        }
        write_volatile(&raw mut (*path).taken, taken);
        write_volatile(&raw mut (*slot).rx_posted, posted);
    }
    Some(())
}

/// A CQE with an error, of either queue: rxe does not say of which. The flush of a broken QP finishes all its WRs in one
/// call, after which the completer may not be entered again before destroy: so the consumer is read here. It is read
/// only: the responder's task flushes the receives while the completer's flushes the sends.
///
/// `flushed`: this CQE's own WR may not have been consumed yet, and is as good as done: of a QP whose receives are
/// flushed the sends are too (6.12 posts the CQE first, 6.1 last: hence the producer's bound).
#[inline(always)]
pub(crate) fn failed(path: *mut QpPath, slot: *mut QpSlot, flushed: bool) -> Option<()> {
    // SAFETY: the map checked both pointers; `tx_done` only grows, and the later of two CQEs says more.
    unsafe {
        let (base, mask) = ((*path).sq_base, (*path).sq_mask);
        let before = read_volatile(&raw const (*path).done);
        let consumer = get::<u32>((*path).sq, &OFF_QUEUE_INDEX)?;
        let done = advance(before, base, consumer, mask);
        // The WR consumed last: this CQE's, when it is of the send queue and not of a flush on 6.12.
        let last = u64::from(consumer.wrapping_sub(1) & mask) << ((*path).sq_shift & 31);
        let last = member((*path).sq_ring, &OFF_RING_DATA)? + last;
        let own = done != 0 && get::<u32>(last, &OFF_WQE_STATUS).unwrap_or(0) != 0;
        let first = done - u64::from(own);
        if first < read_volatile(&raw const (*path).failed) {
            write_volatile(&raw mut (*path).failed, first);
        }
        let done = done + u64::from(flushed && done < read_volatile(&raw const (*slot).tx_posted));
        if done > read_volatile(&raw const (*slot).tx_done) {
            write_volatile(&raw mut (*slot).tx_done, done);
        }
    }
    Some(())
}

/// Entry of `rxe_queue_cleanup(queue)`: the queue has been drained and is about to be freed.
#[inline(always)]
pub(crate) fn queue_ending(queue: u64) -> Option<()> {
    // SAFETY: the map checked the pointer.
    let number = unsafe { *QUEUE_SLOTS.get_ptr(&queue)? };
    let (path, slot) = at(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*path).sq == queue {
            // Emptied without CQEs, as by RESET.
            let done = (*path).done;
            if done < (*path).failed {
                (*path).failed = done;
            }
            waited(path, slot, rxe_qp((*path).qp));
            sends(path, slot)?;
            // 6.1 does not even move the consumer, and frees the queue with what is on it: nothing of it is left either.
            (*slot).tx_done = (*slot).tx_posted;
            Some(())
        } else {
            receives(path, slot)
        }
    }
}

/// BTH opcodes that are requests of the RC transport (IBA vol. 1, table 38), as bits; the upper three bits of an opcode
/// are the transport. A table and not comparisons: the verifier would follow each range of opcodes on its own.
const REQUESTS: u32 = 0x1fff | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 28 | 1 << 29;

#[inline(always)]
fn is_request(opcode: u8) -> bool {
    opcode < 32 && (REQUESTS >> opcode) & 1 != 0
}

const READ_REQUEST: u8 = 12;

/// Entry of `rxe_xmit_packet(rxe_qp, pkt, skb)`: a request whose PSN is behind the next fresh one was sent before.
#[inline(always)]
pub(crate) fn transmitting(rxe: u64, pkt: u64) -> Option<()> {
    let opcode = get::<u8>(pkt, &OFF_PKT_OPCODE)?;
    if !is_request(opcode) {
        return None;
    }
    let psn = get::<u32>(pkt, &OFF_PKT_PSN)? & 0x00ff_ffff;
    let (path, slot) = find::<Rxe>(ib_qp(rxe))?;
    // SAFETY: the map checked both pointers; requests of one QP are sent by its one serial task.
    unsafe {
        let ahead = psn.wrapping_sub((*path).fresh_psn) & 0x00ff_ffff;
        if (*path).psn_known != 0 && ahead >= 0x0080_0000 {
            (*slot).retransmits += 1;
            resent(path, rxe);
            return Some(());
        }
        let mut packets = 1;
        if opcode == READ_REQUEST {
            // A READ uses a PSN for each packet of its answer. The driver moves its own PSN on by that many before the
            // packet is sent (6.1) or after (6.12), so it is of no use here.
            let resid = get::<u32>(get::<u64>(pkt, &OFF_PKT_WQE)?, &OFF_WQE_RESID)?;
            let mtu = get::<u32>(rxe, &OFF_RXE_QP_MTU)?;
            if mtu != 0 && resid > mtu {
                packets = resid.div_ceil(mtu);
            }
        }
        (*path).fresh_psn = psn.wrapping_add(packets) & 0x00ff_ffff;
        (*path).psn_known = 1;
    }
    Some(())
}
