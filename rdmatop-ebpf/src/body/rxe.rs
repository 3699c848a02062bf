//! SoftRoCE: work requests, from the indices of its rings.
//!
//! User programs post and poll through memory that they share with the driver. Only doorbells and the
//! driver's own tasks run in the kernel. So these programs do not count calls; they read how far the indices
//! of the rings have moved. One task per QP runs the completer, and only the completer consumes the send
//! queue, so reads at its entry are free of races. The driver calls the completer again after each call that
//! did something, so its entry shows what the previous call finished. A return probe, which would cost three
//! times as much, is not needed.

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{Global, helpers::generated::bpf_get_smp_processor_id};
use rdmatop_common::{
    counters::{OPCODES, QpSlot, RXE_SEEN_BITS, RxeSeen, STAMPS_PER_QP, bucket, loss, slot_flag},
    ib::{opcode, qp_type, state},
};

use crate::{
    body::{
        rxe_flush,
        rxe_shared::{is_rxe, works_in_softirqs},
    },
    cursor::advance,
    emit::{lost, lost_many},
    maps::{QUEUE_SLOTS, QpPath, RXE_SEEN},
    offsets::{
        OFF_PKT_OPCODE, OFF_PKT_PSN, OFF_PKT_WQE, OFF_QP_TYPE, OFF_QUEUE_BUF, OFF_QUEUE_INDEX,
        OFF_QUEUE_MASK, OFF_QUEUE_SHIFT, OFF_RING_DATA, OFF_RING_PRODUCER, OFF_RXE_QP_DGID, OFF_RXE_QP_IBQP,
        OFF_RXE_QP_MTU, OFF_RXE_QP_RNR_EXPIRES, OFF_RXE_QP_RNR_PENDING, OFF_RXE_QP_RQ, OFF_RXE_QP_SQ,
        OFF_RXE_QP_SRQ, OFF_RXE_QP_STATE, OFF_RXE_QP_USER, OFF_WQE_LENGTH, OFF_WQE_OPCODE, OFF_WQE_RESID,
        OFF_WQE_STATUS, get, get_or_zero, is_known, member, read, read_into,
    },
    slots::{NOT_IN_ERR, Provider, at, find, find_busy},
    task::now,
    words::{add, each, raise},
};

/// [`QpPath::failed`] of a QP without a failed WR.
const NONE_FAILED: u64 = u64::MAX;
/// [`QpPath::rnr_expires`] of a QP whose timer no program has read yet, and of a QP that was waiting when a
/// program first read its timer. No timer expires that late.
const UNSEEN: u64 = u64::MAX;
const WAITING: u64 = u64::MAX - 1;
/// Number of low bits of a stamp that are for the lap, and the mask of the times that fit into the others.
const LAP_BITS: u32 = 12;
const TIME: u64 = u64::MAX >> LAP_BITS;

/// The provider SoftRoCE.
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

/// Where the producer index of a `struct rxe_queue` is, 0 when not known.
#[inline(always)]
fn producer_of(queue: u64) -> u64 {
    member(get_or_zero(queue, &OFF_QUEUE_BUF), &OFF_RING_PRODUCER).unwrap_or(0)
}

/// Where the first element of a send queue is, `None` when not known.
#[inline(always)]
pub(super) unsafe fn elements(path: *mut QpPath) -> Option<u64> {
    // SAFETY: the caller's pointer is checked.
    let producer = unsafe { (*path).sq_ring };
    Some(member(producer, &OFF_RING_DATA)? - u64::from(OFF_RING_PRODUCER.load()))
}

impl Provider for Rxe {
    #[inline(always)]
    fn counts(device: u64) -> bool {
        is_rxe(device)
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
            (*path).sq_ring = producer_of(sq);
            (*path).rq_ring = producer_of(rq);
            (*path).sq_mask = get_or_zero(sq, &OFF_QUEUE_MASK);
            (*path).rq_mask = get_or_zero(rq, &OFF_QUEUE_MASK);
            (*path).sq_shift = get_or_zero(sq, &OFF_QUEUE_SHIFT);
            // Counting begins at the consumer index: outstanding WRs have still to finish.
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
            (*path).flushed_at = NOT_IN_ERR;
            (*path).psn_known = 0;
            // The timer of a new QP has never run. The timer of an older QP is not read here, because the
            // programs that come here use all 512 bytes of stack that a program and its functions have. For
            // the same reason this reads the flags back from the map.
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
            let consumer: u32 = get_or_zero(queue, &OFF_QUEUE_INDEX);
            read(producer_of(queue)).unwrap_or(consumer) != consumer
        };
        waits(&OFF_RXE_QP_SQ) || waits(&OFF_RXE_QP_RQ)
    }

    /// RESET leaves the address of the last peer in the QP. So it is the peer's only from RTR on, and in ERR
    /// it is not known whether the QP has been in RTR since.
    #[inline(always)]
    fn peer(qp: u64, slot: *mut QpSlot) {
        let rxe = rxe_qp(qp);
        let is_connected = matches!(get(qp, &OFF_QP_TYPE), Some(qp_type::RC | qp_type::UC))
            && matches!(get(rxe, &OFF_RXE_QP_STATE), Some(state::RTR..state::ERR));
        if is_connected && let Some(gid) = member(rxe, &OFF_RXE_QP_DGID) {
            // SAFETY: the map checked the pointer, and nobody else has this slot.
            read_into(unsafe { &mut (*slot).dest_gid }, gid);
        }
    }

    /// RESET empties both queues without CQEs, after a last call of the completer, whose program sees which
    /// WRs have succeeded. A new send PSN means that the QP goes to RTS and its queues start afresh.
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

    #[inline(always)]
    fn breaking(path: *mut QpPath, slot: *mut QpSlot) {
        rxe_flush::mark(path, slot);
    }

    #[inline(always)]
    fn flushed(path: *mut QpPath, slot: *mut QpSlot) {
        rxe_flush::count_unseen(path, slot);
    }
}

/// What the programs saw on this CPU. Only before Linux 6.4: there the driver works in softirqs, where the
/// kernel skips programs without counting that, and user space compares these counts with the driver's own.
#[inline(always)]
pub(super) fn seen() -> Option<*mut RxeSeen> {
    if !works_in_softirqs() {
        return None;
    }
    // SAFETY: takes no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    RXE_SEEN.get_ptr_mut(cpu & ((1 << RXE_SEEN_BITS) - 1))
}

/// Packs a time and the lap of its WR, which is added to the low bits. The stamp of an earlier lap does not
/// match, so no program has to clear stamps, and a stamp of the slot's last QP is too old to be used. 52 bits
/// of nanoseconds are 52 days; differences are taken modulo that.
#[inline(always)]
fn stamp(wr: u64, ns: u64) -> u64 {
    (ns << LAP_BITS).wrapping_add(wr / STAMPS_PER_QP as u64)
}

/// Returns the time of a stamp, `None` if the stamp belongs to another lap than the WR.
#[inline(always)]
fn stamped(wr: u64, stamp: u64) -> Option<u64> {
    let time = stamp.wrapping_sub(wr / STAMPS_PER_QP as u64);
    (time & !(TIME << LAP_BITS) == 0).then_some(time >> LAP_BITS)
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

/// Entry of `rxe_post_send(qp, wr, bad_wr)`. The WRs of a user program are already on the ring. This call
/// puts those of a kernel consumer there: the stamp is written ahead of them, and the completer counts them.
#[inline(always)]
pub(crate) fn doorbell(qp: u64) -> Option<()> {
    let (path, slot) = find(qp)?;
    // SAFETY: the map checked both pointers. Words with several writers are cursors, see `advance`.
    unsafe {
        add(&raw mut (*slot).doorbells, 1);
        // Call this first: the compiler would have to save over the call what is read below.
        let now = now();
        let before = read_volatile(&raw const (*path).rung);
        let producer = read::<u32>((*path).sq_ring)?;
        let rung = advance(before, (*path).sq_base, producer, (*path).sq_mask);
        // The driver's worker may have been faster than this probe: WRs that have finished need no stamp.
        let done = read_volatile(&raw const (*slot).tx_done);
        let mut first = if done > before { done } else { before };
        if (*path).flags & slot_flag::KERNEL != 0 {
            first = rung;
        }
        *stamp_of(path, first) = stamp(first, now);
        write_volatile(&raw mut (*path).rung, rung);
        if (*slot).tx_posted < rung {
            (*slot).tx_posted = rung;
        }
    }
    Some(())
}

/// Entry of `rxe_completer(rxe_qp)`. The driver also calls it at RESET and destroy, even for a QP that never
/// moved.
#[inline(always)]
pub(crate) fn completing(rxe_qp: u64) -> Option<()> {
    let (path, slot) = find_busy(ib_qp(rxe_qp))?;
    waited(path, slot, rxe_qp);
    sends(path, slot)
}

/// Counts a wait for a receiver without buffers that has ended since the last visit. Called only from the
/// QP's serial task, or after that task has ended.
///
/// The timer (`rnr_nak_timer`) fires in a softirq, and the kernel skips our program there whenever the
/// softirq interrupts another one. But the timer's `expires` remains. Only the completer starts the timer,
/// for a NAK, and at the entry of that call the previous wait is over. Each wait ends at another time, later
/// than the one before, because it begins after the timer has fired and lasts at least a jiffy
/// (`rnrnak_jiffies`). A NAK while the timer is pending postpones the end. Before Linux 6.4 the completer's
/// task runs in softirqs too, so the kernel may skip that entry, the only one in a wait. Then [`resent`] has
/// noted the end, when the packet was sent again.
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
            // A wait that is over ended before the QP was known; a wait under way is still to be counted.
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

/// Notes the end of a wait. Called when a request is sent again, because the request that made the QP wait is
/// sent again after the wait. Runs only in the requester's task.
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

/// Brings the counts of a send queue up to date. Called only from the QP's serial task, or after its end.
#[inline(always)]
fn sends(path: *mut QpPath, slot: *mut QpSlot) -> Option<()> {
    // SAFETY: the map checked both pointers.
    unsafe {
        let (base, mask) = ((*path).sq_base, (*path).sq_mask);
        let done_before = read_volatile(&raw const (*path).done);
        // A doorbell on another CPU may have stored an older count over that of the last visit. If that lags
        // by a whole ring, the index does not correct it. `walked` is the count of the last visit.
        let told = read_volatile(&raw const (*slot).tx_posted);
        let walked = (*path).walked;
        let posted_before = if walked > told { walked } else { told };
        let consumer = get::<u32>((*path).sq, &OFF_QUEUE_INDEX)?;
        let producer = read::<u32>((*path).sq_ring)?;
        let posted = advance(posted_before, base, producer, mask);
        // Read the count again: a doorbell may have raised it meanwhile.
        raise(&raw mut (*slot).tx_posted, posted);
        if (*path).walked != posted {
            walk(path, slot, posted);
        }
        let done = advance(done_before, base, consumer, mask);
        if done != done_before {
            // During RESET the task runs once more (6.12). Only while a modify to RESET is under way is the
            // state worth a read.
            if read_volatile(&raw const (*path).resetting) != 0
                && get::<u32>(rxe_qp((*path).qp), &OFF_RXE_QP_STATE) == Some(state::RESET)
                && done_before < (*path).failed
            {
                write_volatile(&raw mut (*path).failed, done_before);
            }
            finished(path, slot, done_before, done);
            write_volatile(&raw mut (*path).done, done);
            raise(&raw mut (*slot).tx_done, done);
        }
    }
    Some(())
}

/// State of a walk over new WRs.
struct Walk {
    slot: *mut QpSlot,
    /// The ring's first element.
    data: u64,
    base: u64,
    mask: u64,
    shift: u32,
    next: u64,
}

/// Reads opcode and length of the WRs posted since the last visit. The driver consumes none of them before
/// this visit ends, so the elements still hold these WRs.
#[inline(always)]
unsafe fn walk(path: *mut QpPath, slot: *mut QpSlot, posted: u64) {
    // SAFETY: the caller's pointers are checked.
    unsafe {
        let mask = u64::from((*path).sq_mask);
        let mut walk = Walk {
            slot,
            data: elements(path).unwrap_or(0),
            base: (*path).sq_base,
            mask,
            shift: (*path).sq_shift & 31,
            next: (*path).walked,
        };
        if posted - walk.next > mask {
            // The program missed more WRs than the ring holds: newer ones have overwritten the oldest.
            lost_many(loss::WALK, posted - walk.next - mask);
            walk.next = posted - mask;
        }
        let count = (posted - walk.next) as u32;
        each(count, walk_one, &mut walk);
        (*path).walked = posted;
    }
}

/// Counts one WR of a walk. A callback, because the verifier checks a callback once and not once per turn.
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
        let bytes = if opcode::has_data(opcode) {
            u64::from(length)
        } else {
            0
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

/// State of the walk over finished WRs that takes their times.
struct Times {
    slot: *mut QpSlot,
    path: *mut QpPath,
    kernel: u64,
    rung: u64,
    now: u64,
    /// When the WRs finished, ns: the time of the last CQE, which the driver has placed before it calls the
    /// completer again, or `now` if there was no CQE.
    end: u64,
    /// For how long this QP has had the slot, ns.
    age: u64,
    carry_ns: u64,
    wr: u64,
}

/// Takes the times of the WRs that succeeded since the last visit. How long a flushed WR was on the queue
/// only says when the QP broke, and nothing about latency.
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
        each((to - from) as u32, time_one, &mut times);
        (*path).carry_ns = times.carry_ns;
        write_volatile(&raw mut (*path).cqe_ns, 0);
    }
}

/// Takes the time of one finished WR.
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
        // Use the stamp only if it is of this lap, and not from the slot's last QP.
        if let Some(ns) = stamped(wr, *stamp_of((*times).path, wr))
            && ((*times).now.wrapping_sub(ns) & TIME) <= (*times).age
        {
            (*times).carry_ns = ns;
        } else if (*times).rung > wr + STAMPS_PER_QP as u64 {
            // A later doorbell has overwritten the stamp.
            lost(loss::STAMP);
            (*times).carry_ns = 0;
            return 0;
        }
        // A WR without a stamp was posted by the same doorbell as the WR before it.
        if (*times).carry_ns == 0 {
            (*slot).latency_early += 1;
            return 0;
        }
        let longest = (*times).now.wrapping_sub((*times).carry_ns) & TIME;
        let took = (*times).end.wrapping_sub((*times).carry_ns) & TIME;
        // Of a WR that was posted after that CQE, and finished without one, the time is negative and wraps.
        let took = if took > longest { longest } else { took };
        (*slot).latency_sum_ns += took;
        if (*slot).latency_max_ns < took {
            (*slot).latency_max_ns = took;
        }
        *(&raw mut (*slot).latency).cast::<u64>().add(bucket(took) & 31) += 1;
    }
    0
}

/// Brings the count of posted receives up to date. The program posts receives without entering the kernel,
/// and can post the next one as soon as the driver has consumed one, before the driver places the CQE. So the
/// producer index can go round the ring between two visits. The consumer index cannot, and the producer is
/// ahead of it by less than the ring.
#[inline(always)]
pub(crate) fn receives(path: *mut QpPath, slot: *mut QpSlot) -> Option<()> {
    // SAFETY: the map checked both pointers; the counts are cursors, see `advance`.
    unsafe {
        let (base, mask) = ((*path).rq_base, (*path).rq_mask);
        let before = read_volatile(&raw const (*slot).rx_posted);
        let taken = read_volatile(&raw const (*path).taken);
        let consumer = get::<u32>((*path).rq, &OFF_QUEUE_INDEX)?;
        let producer = read::<u32>((*path).rq_ring)?;
        let mut taken = advance(taken, base, consumer, mask);
        let mut posted = taken + u64::from(producer.wrapping_sub(consumer) & mask);
        if posted < before {
            // The consumer index has gone round once: in a flush the driver places a WR's CQE before it
            // consumes the WR (6.12), and it drains a whole ring at once.
            let round = u64::from(mask) + 1;
            (taken, posted) = (taken + round, posted + round);
        }
        write_volatile(&raw mut (*path).taken, taken);
        write_volatile(&raw mut (*slot).rx_posted, posted);
    }
    Some(())
}

/// Handles a CQE with an error. rxe does not say which of the two queues the CQE is for. The driver flushes
/// all WRs of a broken QP in one call, and may not call the completer again before destroy; so this reads the
/// consumer index. It only reads `done`, because the responder's task flushes the receives while the
/// completer's task flushes the sends.
///
/// `flushed`: the driver may not have consumed this CQE's own WR yet, but this counts the WR as done: if a
/// QP's receives are flushed, so are its sends. (6.12 posts the CQE before it consumes the WR, 6.1 after
/// that: hence the limit `tx_posted`.)
#[inline(always)]
pub(crate) fn failed(path: *mut QpPath, slot: *mut QpSlot, flushed: bool) -> Option<()> {
    // SAFETY: the map checked both pointers; `tx_done` only grows, and the later of two CQEs says more.
    unsafe {
        let (base, mask) = ((*path).sq_base, (*path).sq_mask);
        let before = read_volatile(&raw const (*path).done);
        let consumer = get::<u32>((*path).sq, &OFF_QUEUE_INDEX)?;
        let done = advance(before, base, consumer, mask);
        // The WR consumed last. The CQE is for this WR if it is for the send queue and not from a flush on
        // 6.12.
        let last = u64::from(consumer.wrapping_sub(1) & mask) << ((*path).sq_shift & 31);
        let last = elements(path)? + last;
        let own = done != 0 && get::<u32>(last, &OFF_WQE_STATUS).unwrap_or(0) != 0;
        let first = done - u64::from(own);
        if first < read_volatile(&raw const (*path).failed) {
            write_volatile(&raw mut (*path).failed, first);
        }
        let done = done + u64::from(flushed && done < read_volatile(&raw const (*slot).tx_posted));
        raise(&raw mut (*slot).tx_done, done);
    }
    Some(())
}

/// Entry of `rxe_queue_cleanup(queue)`: the queue has been drained and is about to be freed.
#[inline(always)]
pub(crate) fn queue_ending(queue: u64) -> Option<()> {
    // SAFETY: the map checked the pointer.
    let number = unsafe { *QUEUE_SLOTS.get_ptr(&queue)? };
    // Remove the entry now: when destroy has returned, a newer QP's queue may have the address.
    let _ = QUEUE_SLOTS.remove(&queue);
    let (path, slot) = at(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*path).sq == queue {
            // The driver has emptied the queue without CQEs, as RESET does.
            let done = (*path).done;
            if done < (*path).failed {
                (*path).failed = done;
            }
            waited(path, slot, rxe_qp((*path).qp));
            sends(path, slot)?;
            // 6.1 does not even move the consumer index: it frees the queue with the WRs on it. They are gone
            // too.
            (*slot).tx_done = (*slot).tx_posted;
            Some(())
        } else if (*path).rq == queue {
            receives(path, slot)
        } else {
            // The entry is left from an earlier QP: the ring of its queue says nothing about this QP.
            None
        }
    }
}

/// BTH opcodes that are requests of the RC transport (IBA vol. 1, table 38), as bits; the upper three bits of
/// an opcode are the transport. A table and not comparisons, because the verifier would follow each range of
/// opcodes separately.
const REQUESTS: u32 = 0x1fff | 1 << 19 | 1 << 20 | 1 << 22 | 1 << 23 | 1 << 28 | 1 << 29;

#[inline(always)]
fn is_request(opcode: u8) -> bool {
    opcode < 32 && (REQUESTS >> opcode) & 1 != 0
}

const READ_REQUEST: u8 = 12;

/// Entry of `rxe_xmit_packet(rxe_qp, pkt, skb)`. A request with a PSN below the next unused one is sent
/// again.
#[inline(always)]
pub(crate) fn transmitting(rxe: u64, pkt: u64) -> Option<()> {
    if let Some(seen) = seen() {
        // SAFETY: the map checked the pointer.
        add(unsafe { &raw mut (*seen).packets }, 1);
    }
    let opcode = get::<u8>(pkt, &OFF_PKT_OPCODE)?;
    if !is_request(opcode) {
        return None;
    }
    let psn = get::<u32>(pkt, &OFF_PKT_PSN)? & 0x00ff_ffff;
    let (path, slot) = find(ib_qp(rxe))?;
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
            // A READ uses one PSN for each packet of its response. The driver's own PSN cannot tell that: 6.1
            // advances it by that number before it sends the packet, and 6.12 after.
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
