//! SoftRoCE: a record for each work request that is posted, and one for each that ends.
//!
//! A user program posts into memory that it shares with the driver. So posts are found as in [`super::rxe`]:
//! by the ring's producer index, at the doorbell, or in the driver's own task if that runs first. An end
//! shows as a CQE. It shows only in the ring's consumer index if the request is not signaled, or if RESET or
//! destroy empties the queue. If the kernel skips a program, the next visit finds what that program missed.
//!
//! The doorbell runs in the poster's thread and the completer in the driver's, possibly on two CPUs at once,
//! and each post must be reported once. So a program that visits a QP first claims it. A visit that does not
//! get the claim leaves its posts to the visit that holds it, or to the next one.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use rdmatop_common::{
    counters::loss,
    event::UNKNOWN_U32,
    ib::{self, opcode},
    wr::{NO_OPCODE, NO_STATUS, WrFilter, WrRecord, count, flag, kind},
};

use super::wr_qps::{follow, forget};
use crate::{
    cursor::advance,
    emit::{NO_WAKEUP, lost},
    offsets::{
        OFF_QUEUE_BUF, OFF_QUEUE_INDEX, OFF_RING_DATA, OFF_RING_PRODUCER, OFF_RXE_QP_DEST, OFF_RXE_QP_DGID,
        OFF_RXE_QP_IBQP, OFF_RXE_QP_SQ, OFF_RXE_QP_STATE, OFF_WQE_FLAGS, OFF_WQE_IMM, OFF_WQE_LENGTH,
        OFF_WQE_OPCODE, OFF_WQE_UD_QPN, OFF_WQE_WR_ID, get, get_or_zero, member, read, read_into,
    },
    share::{WORK, is_refused},
    task::now,
    words::{self, add, copy, each, zeroed},
    wr_maps::{
        IN_RESET, Outstanding, QpOwner, WR_COUNTS, WR_CQES, WR_EVENTS, WR_FILTER, WR_OUTSTANDING, WR_QPS,
        WR_QUEUES, WrKey, WrQp, qp_flag,
    },
};

/// How often to try a claim; all tries take some 200 us. A visit that reports ten WRs takes 10 us.
const TRIES: u32 = 8192;

/// Adds to one of the counts of work requests.
#[inline(always)]
pub(crate) fn counted(what: u32, n: u64) {
    if let Some(count) = WR_COUNTS.get_ptr_mut(what) {
        add(count, n);
    }
}

#[inline(always)]
pub(crate) fn filter() -> Option<*const WrFilter> {
    WR_FILTER.get_ptr(0)
}

/// Whether sampling leaves out the WR with this number.
#[inline(always)]
#[expect(
    clippy::manual_is_multiple_of,
    reason = "that asks for 0 once more, with each WR"
)]
pub(crate) fn left_out(filter: *const WrFilter, number: u64) -> bool {
    // SAFETY: the map checked the pointer.
    let each = u64::from(unsafe { (*filter).sample });
    each > 1 && number % each != 0
}

struct Claim {
    word: *mut u64,
    got: u64,
}

/// Tries to claim once. If two CPUs try at the same moment, both may fail, and both try again.
unsafe extern "C" fn claim_once(_turn: u32, claim: *mut Claim) -> i64 {
    // SAFETY: the claim is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let word = (*claim).word;
        if words::claim(word) {
            (*claim).got = 1;
            return 1;
        }
        words::unclaim(word);
    }
    0
}

/// Claims a QP. A program runs with preemption off, and another program does not run inside it. So whoever
/// holds the claim is running on another CPU.
#[inline(always)]
pub(super) fn claim(qp: *mut WrQp) -> bool {
    let mut claim = Claim {
        // SAFETY: the map checked the pointer.
        word: unsafe { &raw mut (*qp).claims },
        got: 0,
    };
    each(TRIES, claim_once, &mut claim);
    claim.got != 0
}

#[inline(always)]
pub(super) fn release(qp: *mut WrQp) {
    // SAFETY: the map checked the pointer.
    words::release(unsafe { &raw mut (*qp).claims });
}

/// Makes a record of a WR, with what is known about its QP.
#[inline(always)]
pub(crate) fn record(qp: &QpOwner, kind: u16, ts_ns: u64, fill: impl FnOnce(&mut WrRecord)) {
    // 0 of a kernel consumer.
    if is_refused(&WR_EVENTS, WORK, size_of::<WrRecord>() as u64, || qp.pid) {
        return;
    }
    let Some(mut entry) = WR_EVENTS.reserve::<WrRecord>(0) else {
        lost(loss::WR_RING);
        return;
    };
    let record = zeroed(&mut entry);
    record.ts_ns = ts_ns;
    record.kind = kind;
    record.qpn = qp.qpn;
    record.qp_type = qp.qp_type;
    record.device_index = qp.device_index;
    record.owner_pid = qp.pid;
    record.flags = qp.flags as u16;
    record.dest_qpn = qp.dest_qpn;
    // SAFETY: the names are whole words at a multiple of 8 in both.
    unsafe {
        copy(&raw const qp.comm, &raw mut record.owner_comm);
        copy(&raw const qp.device, &raw mut record.device);
    }
    fill(record);
    // The reader looks on its own timer: a wake-up for each record would cost more than the record, and
    // before Linux 6.4 it would let softirqs run inside the program (see `emit::wakeup`).
    entry.submit(NO_WAKEUP);
}

/// Makes a record of one of a QP's WRs.
#[inline(always)]
pub(super) fn send(qp: *mut WrQp, kind: u16, ts_ns: u64, fill: impl FnOnce(&mut WrRecord)) {
    // SAFETY: the map checked the pointer.
    let (rxe, owner) = unsafe { ((*qp).rxe, &(*qp).owner) };
    record(owner, kind, ts_ns, |record| {
        record.object = rxe + u64::from(OFF_RXE_QP_IBQP.load());
        if matches!(owner.qp_type, ib::qp_type::RC | ib::qp_type::UC) {
            record.dest_qpn = get_or_zero(rxe, &OFF_RXE_QP_DEST);
            if let Some(gid) = member(rxe, &OFF_RXE_QP_DGID) {
                read_into(&mut record.dest_gid, gid);
            }
        }
        fill(record);
    });
}

/// State of a walk over new posts.
struct Posts {
    qp: *mut WrQp,
    filter: *const WrFilter,
    /// The ring's first element.
    data: u64,
    next: u64,
    post_ns: u64,
    /// When the posts were found.
    now: u64,
    tid: u64,
}

/// Reports the posts since the last visit. `post_ns`: when their doorbell was rung, 0 when not known; `tid`:
/// the thread that rang it, 0 when not known.
#[inline(always)]
pub(super) fn posts(qp: *mut WrQp, post_ns: u64, tid: u64) -> Option<()> {
    // SAFETY: the map checked the pointer; the caller has claimed the QP.
    unsafe {
        let seen = (*qp).seen;
        let producer = read::<u32>(member((*qp).ring, &OFF_RING_PRODUCER)?)?;
        let posted = advance(seen, u64::from((*qp).base), producer, (*qp).mask);
        let n = posted - seen;
        if n == 0 {
            return Some(());
        }
        counted(count::HAPPENED, n);
        (*qp).seen = posted;
        if (*qp).flags & qp_flag::WANTED == 0 {
            counted(count::FILTERED, n);
            return Some(());
        }
        let mut walk = Posts {
            qp,
            filter: filter()?,
            data: member((*qp).ring, &OFF_RING_DATA)?,
            next: seen,
            post_ns,
            now: now(),
            tid,
        };
        each(n as u32, post_one, &mut walk);
    }
    Some(())
}

/// Reports one posted WR.
unsafe extern "C" fn post_one(_turn: u32, walk: *mut Posts) -> i64 {
    // SAFETY: the walk is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let (qp, filter, wr) = ((*walk).qp, (*walk).filter, (*walk).next);
        (*walk).next = wr + 1;
        let place = (wr + u64::from((*qp).base)) & u64::from((*qp).mask);
        let wqe = (*walk).data + (place << ((*qp).shift & 31));
        let key = WrKey { qp: (*qp).rxe, wr };
        let mut found = MaybeUninit::<Outstanding>::uninit();
        let found = zeroed(&mut found);
        found.post_ns = (*walk).post_ns;
        let mut flags = u32::from(flag::DETAILS);
        found.opcode = get_or_zero(wqe, &OFF_WQE_OPCODE);
        let send_flags: u32 = get_or_zero(wqe, &OFF_WQE_FLAGS);
        if send_flags & ib::SIGNALED != 0 || (*qp).flags & qp_flag::SIGNALS_ALL != 0 {
            flags |= u32::from(flag::SIGNALED);
        }
        let opcode = found.opcode;
        if opcode::has_data(opcode) {
            found.bytes = get_or_zero(wqe, &OFF_WQE_LENGTH);
        }
        // The wr_id of a kernel consumer is an address, which rdmatop never shows.
        if (*qp).flags & qp_flag::KERNEL == 0 {
            flags |= u32::from(flag::WR_ID);
            found.wr_id = get_or_zero(wqe, &OFF_WQE_WR_ID);
        }
        if opcode::has_imm(opcode) {
            flags |= u32::from(flag::IMM);
            found.imm = u32::from_be(get_or_zero::<u32>(wqe, &OFF_WQE_IMM));
        }
        found.dest_qpn = UNKNOWN_U32;
        if (*qp).owner.qp_type == ib::qp_type::UD {
            found.dest_qpn = get_or_zero(wqe, &OFF_WQE_UD_QPN);
        }
        if (*walk).tid != 0 {
            flags |= u32::from(flag::THREAD);
            found.tid = (*walk).tid as u32;
        }
        found.flags = flags;
        if left_out(filter, wr) {
            counted(count::SAMPLED_OUT, 1);
            return 0;
        }
        // If there is no room, the record of the WR's end has no wr_id.
        let _ = WR_OUTSTANDING.insert(&key, &*found, 0);
        if (*filter).flags & WrFilter::NO_POSTS != 0 {
            counted(count::FILTERED, 1);
            return 0;
        }
        let ts_ns = if found.post_ns == 0 {
            (*walk).now
        } else {
            found.post_ns
        };
        send(qp, kind::POST, ts_ns, |record| {
            record.status = NO_STATUS;
            record.number = (wr as u32).wrapping_add(1);
            describe(record, found);
        });
    }
    0
}

/// Writes what is known about a WR.
#[inline(always)]
pub(crate) fn describe(record: &mut WrRecord, found: &Outstanding) {
    record.flags |= found.flags as u16;
    record.wr_id = found.wr_id;
    record.opcode = found.opcode;
    record.bytes = found.bytes;
    record.imm = found.imm;
    record.tid = found.tid;
    record.post_ns = found.post_ns;
    if found.dest_qpn != UNKNOWN_U32 {
        record.dest_qpn = found.dest_qpn;
    }
}

/// State of a walk over ended WRs.
struct Ends {
    qp: *mut WrQp,
    filter: *const WrFilter,
    next: u64,
    now: u64,
    /// Status of the CQE, [`NO_STATUS`] without one.
    status: u64,
    /// Bits of `wr::flag` to add.
    flags: u64,
}

/// Reports that the WRs below number `to` have ended. If a WR without a CQE (`status` is [`NO_STATUS`]) is
/// not signaled, it has succeeded, because the driver makes a CQE for each WR that fails.
#[inline(always)]
pub(super) fn ends(qp: *mut WrQp, to: u64, status: u32, flags: u16) -> Option<()> {
    // SAFETY: the map checked the pointer; the caller has claimed the QP.
    unsafe {
        let done = (*qp).done;
        if to <= done {
            return None;
        }
        let n = to - done;
        (*qp).done = to;
        counted(count::HAPPENED, n);
        if (*qp).flags & qp_flag::WANTED == 0 {
            counted(count::FILTERED, n);
            return None;
        }
        let mut walk = Ends {
            qp,
            filter: filter()?,
            next: done,
            now: now(),
            status: u64::from(status),
            flags: u64::from(flags),
        };
        each(n as u32, end_one, &mut walk);
    }
    Some(())
}

/// Reports one ended WR.
unsafe extern "C" fn end_one(_turn: u32, walk: *mut Ends) -> i64 {
    // SAFETY: as in `post_one`.
    unsafe {
        let (qp, filter, wr) = ((*walk).qp, (*walk).filter, (*walk).next);
        (*walk).next = wr + 1;
        let (kept, full) = take_kept(qp, wr);
        if left_out(filter, wr) {
            counted(count::SAMPLED_OUT, 1);
            return 0;
        }
        let key = WrKey { qp: (*qp).rxe, wr };
        let mut place = MaybeUninit::<Outstanding>::uninit();
        let found = zeroed(&mut place);
        found.opcode = NO_OPCODE;
        found.dest_qpn = UNKNOWN_U32;
        if let Some(known) = WR_OUTSTANDING.get_ptr(&key) {
            copy(known, &raw mut *found);
            let _ = WR_OUTSTANDING.remove(&key);
        }
        let (mut status, mut flags) = ((*walk).status as u32, (*walk).flags);
        if status == NO_STATUS && kept != NO_STATUS {
            (status, flags) = (kept, u64::from(full));
        }
        // This does not depend on which visit comes first after a RESET: the kernel may skip the program
        // there.
        if status == NO_STATUS
            && wr >= read_volatile(&raw const (*qp).dropped_from)
            && wr < read_volatile(&raw const (*qp).dropped_to)
        {
            flags |= u64::from(flag::DROPPED);
        }
        let known = found.flags & u32::from(flag::DETAILS) != 0;
        if status == NO_STATUS && known && flags & u64::from(flag::DROPPED) == 0 {
            if found.flags & u32::from(flag::SIGNALED) == 0 {
                status = 0;
            } else {
                counted(count::HEALED, 1);
            }
        }
        if (*filter).flags & WrFilter::NO_ENDS != 0 {
            counted(count::FILTERED, 1);
            return 0;
        }
        let flags = flags as u16;
        send(qp, kind::DONE, (*walk).now, |record| {
            record.status = status;
            record.number = (wr as u32).wrapping_add(1);
            describe(record, found);
            record.flags |= flags;
        });
    }
    0
}

/// Takes the status and the flags of a WR that a program kept while another CPU held the claim; [`NO_STATUS`]
/// if there are none. It returns no `Option`: LLVM would read the second half before it knows that there is
/// one, and the verifier of 6.1 refuses that.
#[inline(always)]
fn take_kept(qp: *mut WrQp, wr: u64) -> (u32, u32) {
    const NONE: (u32, u32) = (NO_STATUS, 0);
    // SAFETY: the map checked the pointers.
    unsafe {
        if read_volatile(&raw const (*qp).kept) == 0 {
            return NONE;
        }
        let key = WrKey { qp: (*qp).rxe, wr };
        let Some(kept) = WR_CQES.get_ptr(&key) else {
            return NONE;
        };
        let (born_ns, status, flags) = ((*kept).born_ns, (*kept).status, (*kept).flags);
        let _ = WR_CQES.remove(&key);
        if born_ns != (*qp).born_ns {
            return NONE;
        }
        add(&raw mut (*qp).kept, u64::MAX);
        (status, flags)
    }
}

/// How many send WRs the driver has consumed by now, `None` if that cannot be read. `consumed` is read before
/// the index, as `advance` demands.
#[inline(always)]
pub(super) fn consumed_now(qp: *mut WrQp) -> Option<u64> {
    // SAFETY: the map checked the pointer; the word is read whole.
    unsafe {
        let before = read_volatile(&raw const (*qp).consumed);
        let index = get::<u32>((*qp).sq, &OFF_QUEUE_INDEX)?;
        Some(advance(before, u64::from((*qp).base), index, (*qp).mask))
    }
}

/// How many receives the driver has consumed by now, `None` if that cannot be read, or the queue is shared.
#[inline(always)]
pub(super) fn taken_now(qp: *mut WrQp) -> Option<u64> {
    // SAFETY: the map checked the pointer; the word is read whole.
    unsafe {
        if (*qp).flags & qp_flag::SRQ != 0 {
            return None;
        }
        let before = read_volatile(&raw const (*qp).taken);
        let index = get::<u32>((*qp).rq, &OFF_QUEUE_INDEX)?;
        Some(advance(before, u64::from((*qp).rq_base), index, (*qp).rq_mask))
    }
}

/// Brings the count of consumed send WRs up to date.
#[inline(always)]
pub(super) fn consumed(qp: *mut WrQp) -> u64 {
    let now = consumed_now(qp);
    // SAFETY: the map checked the pointer; the caller has claimed the QP.
    unsafe {
        if let Some(now) = now {
            (*qp).consumed = now;
        }
        (*qp).consumed
    }
}

/// The post time of WRs that a visit from the driver's task finds: the time of a kernel consumer's last
/// post_send. 0 for a user program, because no program has seen the doorbell of these WRs.
#[inline(always)]
pub(super) fn found_at(qp: *mut WrQp) -> u64 {
    // SAFETY: the map checked the pointer.
    unsafe { (*qp).bell_ns }
}

/// Entry of `rxe_post_send(qp, wr, bad_wr)`. A user program's WRs are already on the ring; this call puts a
/// kernel consumer's WRs there.
#[inline(always)]
pub(crate) fn doorbell(qp: u64) -> Option<()> {
    let followed = follow(qp)?;
    let at = now();
    if !claim(followed) {
        return None;
    }
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*followed).flags & qp_flag::KERNEL != 0 {
            let _ = posts(followed, (*followed).bell_ns, 0);
            (*followed).bell_ns = at;
        } else {
            let pid_tgid = bpf_get_current_pid_tgid();
            let own = (pid_tgid >> 32) as u32 == (*followed).owner.pid;
            let _ = posts(followed, at, if own { pid_tgid & 0xffff_ffff } else { 0 });
        }
    }
    release(followed);
    Some(())
}

/// Entry of `rxe_completer(rxe_qp)`, which the driver calls again after each call that did something.
#[inline(always)]
pub(crate) fn completing(rxe: u64) -> Option<()> {
    let qp = rxe + u64::from(OFF_RXE_QP_IBQP.load());
    if WR_QPS.get_ptr(&qp).is_none() {
        // Do not follow a QP before it has something on its send queue.
        let sq: u64 = get_or_zero(rxe, &OFF_RXE_QP_SQ);
        let ring: u64 = get_or_zero(sq, &OFF_QUEUE_BUF);
        let producer = read::<u32>(member(ring, &OFF_RING_PRODUCER)?)?;
        if producer == get::<u32>(sq, &OFF_QUEUE_INDEX)? {
            return None;
        }
    }
    let followed = follow(qp)?;
    if !claim(followed) {
        return None;
    }
    let _ = posts(followed, found_at(followed), 0);
    let to = consumed(followed);
    let _ = ends(followed, to, NO_STATUS, 0);
    // `wr_moves` notes what a RESET drops. This code is for a modify at which the kernel skipped our program.
    // SAFETY: the map checked the pointer; the words are written whole.
    unsafe {
        let known = read_volatile(&raw const (*followed).dropped_to) == IN_RESET;
        if get::<u32>(rxe, &OFF_RXE_QP_STATE) == Some(ib::state::RESET) {
            if !known {
                write_volatile(&raw mut (*followed).dropped_from, to);
                write_volatile(&raw mut (*followed).dropped_to, IN_RESET);
            }
            write_volatile(&raw mut (*followed).emptied, 1);
        } else if known && read_volatile(&raw const (*followed).emptied) != 0 {
            // Wait until a visit has seen the QP in RESET: the program at the modify marks the QP before the
            // driver changes its state, and a visit may come in between.
            write_volatile(&raw mut (*followed).dropped_to, to);
        }
    }
    release(followed);
    Some(())
}

/// Entry of `rxe_resp_queue_pkt(rxe_qp, skb)`: a packet for the QP has arrived. The programs first see a QP
/// that only receives here.
#[inline(always)]
pub(crate) fn arrived(rxe: u64) -> Option<()> {
    follow(rxe + u64::from(OFF_RXE_QP_IBQP.load())).map(|_| ())
}

/// Entry of `rxe_queue_cleanup(queue)`: the driver has drained the queue and is about to free it. The WRs
/// that it drained last, and those that 6.1 leaves on the queue, have ended without a CQE.
#[inline(always)]
pub(crate) fn queue_ending(queue: u64) -> Option<()> {
    // SAFETY: the map checked the pointer.
    let qp = unsafe { *WR_QUEUES.get_ptr(&queue)? };
    let followed = WR_QPS.get_ptr_mut(&qp)?;
    if claim(followed) {
        let _ = posts(followed, found_at(followed), 0);
        // SAFETY: the map checked the pointer.
        let to = unsafe { (*followed).seen };
        let _ = ends(followed, to, NO_STATUS, flag::DROPPED);
        release(followed);
    } else {
        // How many WRs ended is not known, so count one.
        counted(count::HAPPENED, 1);
        lost(loss::WR_MISSED);
    }
    forget(qp);
    Some(())
}
