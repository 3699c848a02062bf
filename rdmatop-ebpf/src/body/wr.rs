//! SoftRoCE: a record for each work request that is posted, and one for each that ends.
//!
//! A user program posts into memory that it shares with the driver, so posts are found as in [`super::rxe`]: from the ring's
//! producer index, at the doorbell, or in the driver's own task if that is faster. An end shows as a CQE, or in the ring's
//! consumer index alone: for requests that are not signaled, and when RESET or destroy empties a queue. If the kernel skips a
//! program, the next visit finds what it missed.
//!
//! The doorbell runs in the poster's thread and the completer in the driver's, on two CPUs at once, and each post must be
//! reported once. So a visit claims the QP first; one that does not get the claim leaves its posts to the visit that has it,
//! or to the next.

use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_loop};
use rdmatop_common::{
    counters::loss,
    event::{COMM_LEN, DEVICE_NAME_LEN, UNKNOWN_U32},
    wr::{NO_OPCODE, NO_STATUS, WrFilter, WrRecord, count, flag, kind},
};

use super::{restrack, rxe_shared::is_rxe};
use crate::{
    cursor::advance,
    emit::lost,
    maps::QpnKey,
    offsets::{
        OFF_DEV_INDEX, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_RES, OFF_QP_TYPE, OFF_QUEUE_BUF, OFF_QUEUE_INDEX,
        OFF_QUEUE_MASK, OFF_QUEUE_SHIFT, OFF_RES_TYPE, OFF_RING_DATA, OFF_RING_PRODUCER, OFF_RXE_QP_DEST,
        OFF_RXE_QP_DGID, OFF_RXE_QP_IBQP, OFF_RXE_QP_RCQ, OFF_RXE_QP_RQ, OFF_RXE_QP_SCQ, OFF_RXE_QP_SIGNALS,
        OFF_RXE_QP_SQ, OFF_RXE_QP_SRQ, OFF_RXE_QP_STATE, OFF_RXE_QP_USER, OFF_WQE_FLAGS, OFF_WQE_IMM,
        OFF_WQE_LENGTH, OFF_WQE_OPCODE, OFF_WQE_UD_QPN, OFF_WQE_WR_ID, Pane, get, get_or_unknown,
        get_or_zero, member, read, read_into,
    },
    task::{Depth, entry, name_device, now, owner_of},
    words::{add, copy, zeroed},
    wr_maps::{
        Outstanding, WR_COUNTS, WR_EVENTS, WR_FILTER, WR_OUTSTANDING, WR_QPNS, WR_QPS, WR_QUEUES, WrKey,
        WrQp, qp_flag,
    },
};

/// `BPF_RB_NO_WAKEUP`, include/uapi/linux/bpf.h. The reader looks on its own timer: a wake-up for each record would cost more
/// than the record, and before Linux 6.4 it would let softirqs run inside the program (see `emit::wakeup`).
pub(super) const NO_WAKEUP: u64 = 1;
/// `BPF_NOEXIST`.
const NOEXIST: u64 = 1;
/// `IB_QPS_RESET`.
const RESET: u32 = 0;
/// `IB_QPT_RC`, `IB_QPT_UC`: connected to one peer. `IB_QPT_UD`.
const RC: u32 = 2;
const UC: u32 = 3;
const UD: u32 = 4;
/// `IB_SEND_SIGNALED`, and `IB_SIGNAL_ALL_WR` of a QP.
const SIGNALED: u32 = 2;
const SIGNAL_ALL: u32 = 0;
/// Opcodes with immediate data: `IB_WR_RDMA_WRITE_WITH_IMM` and `IB_WR_SEND_WITH_IMM`.
const WRITE_IMM: u32 = 1;
const SEND_IMM: u32 = 3;
/// As in [`super::rxe`]: opcodes without data, whose length field is left over from an earlier WR.
const LOCAL_INV: u32 = 7;
const BIND_MW: u32 = 8;
const KERNEL_OPCODES: u32 = 0x20;
/// What [`follow_wrs`] returns if it had no room for the QP.
const NO_ROOM: u64 = 1;
/// How often to try a claim: this takes some 200 us. A visit that reports ten WRs takes 10 us.
const TRIES: u32 = 8192;

/// Adds to one of the counts of work requests.
#[inline(always)]
pub(super) fn counted(what: u32, n: u64) {
    if let Some(count) = WR_COUNTS.get_ptr_mut(what) {
        add(count, n);
    }
}

#[inline(always)]
pub(super) fn filter() -> Option<*const WrFilter> {
    WR_FILTER.get_ptr(0)
}

/// Whether sampling leaves out the WR of this number.
#[inline(always)]
#[expect(
    clippy::manual_is_multiple_of,
    reason = "that asks for 0 once more, with each WR"
)]
pub(super) fn left_out(filter: *const WrFilter, number: u64) -> bool {
    // SAFETY: the map checked the pointer.
    let each = u64::from(unsafe { (*filter).sample });
    each > 1 && number % each != 0
}

struct Claim {
    word: *mut u64,
    got: u64,
}

/// Tries to claim, without compare-and-exchange: two CPUs that try at once may both read 2, and both try again.
unsafe extern "C" fn claim_once(_turn: u32, claim: *mut Claim) -> i64 {
    // SAFETY: the claim is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let word = (*claim).word;
        add(word, 1);
        if read_volatile(word) == 1 {
            (*claim).got = 1;
            return 1;
        }
        add(word, u64::MAX);
    }
    0
}

/// Claims a QP. Programs run with preemption off and do not nest, so a program that has the claim is running on another CPU.
#[inline(always)]
pub(super) fn claim(qp: *mut WrQp) -> bool {
    let mut claim = Claim {
        // SAFETY: the map checked the pointer.
        word: unsafe { &raw mut (*qp).claims },
        got: 0,
    };
    // SAFETY: as the helper wants it: a callback, its context, no flags.
    unsafe {
        bpf_loop(
            TRIES,
            claim_once as *mut c_void,
            (&raw mut claim).cast::<c_void>(),
            0,
        );
    }
    claim.got != 0
}

#[inline(always)]
pub(super) fn release(qp: *mut WrQp) {
    // SAFETY: the map checked the pointer.
    add(unsafe { &raw mut (*qp).claims }, u64::MAX);
}

/// Returns a followed QP, and begins to follow it if needed. A QP with another send queue at the same address is a new QP.
#[inline(always)]
fn follow(qp: u64) -> Option<*mut WrQp> {
    if let Some(known) = WR_QPS.get_ptr_mut(&qp) {
        let sq: u64 = get_or_zero(qp - u64::from(OFF_RXE_QP_IBQP.load()), &OFF_RXE_QP_SQ);
        // SAFETY: the map checked the pointer.
        if unsafe { (*known).sq } == sq {
            return Some(known);
        }
    }
    if follow_wrs(qp) == NO_ROOM {
        // What this visit would have reported is lost.
        counted(count::HAPPENED, 1);
        lost(loss::WR_MISSED);
    }
    WR_QPS.get_ptr_mut(&qp)
}

/// `rdma_restrack_add` of an object of any provider. A new QP of SoftRoCE is followed before its first work request: a QP that is
/// first seen later is followed from its consumer index on, because it may be from before the trace, and then what the driver
/// consumed while the kernel skipped all of these programs would be in no count.
#[inline(always)]
pub(crate) fn created(res: u64) -> Option<()> {
    if get::<u32>(res, &OFF_RES_TYPE)? != restrack::QP {
        return None;
    }
    let qp = res - u64::from(OFF_QP_RES.load());
    if is_rxe(get(qp, &OFF_QP_DEVICE)?) {
        follow_wrs(qp);
    }
    Some(())
}

/// Begins to follow a QP. Returns [`NO_ROOM`] if there is none. Not inlined, so that it does not enlarge the callers' stack frames.
/// Global: see `functions`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn follow_wrs(qp: u64) -> u64 {
    forget(qp);
    let rxe = qp - u64::from(OFF_RXE_QP_IBQP.load());
    let mut place = MaybeUninit::<WrQp>::uninit();
    let new = zeroed(&mut place);
    new.rxe = rxe;
    new.sq = get_or_zero(rxe, &OFF_RXE_QP_SQ);
    new.rq = get_or_zero(rxe, &OFF_RXE_QP_RQ);
    if new.sq == 0 {
        return 0;
    }
    new.ring = get_or_zero(new.sq, &OFF_QUEUE_BUF);
    new.mask = get_or_zero(new.sq, &OFF_QUEUE_MASK);
    new.shift = get_or_zero::<u32>(new.sq, &OFF_QUEUE_SHIFT) & 31;
    new.base = get_or_zero(new.sq, &OFF_QUEUE_INDEX);
    new.rq_mask = get_or_zero(new.rq, &OFF_QUEUE_MASK);
    new.rq_base = get_or_zero(new.rq, &OFF_QUEUE_INDEX);
    new.born_ns = now();
    new.device = get_or_zero(qp, &OFF_QP_DEVICE);
    new.device_index = get_or_unknown(new.device, &OFF_DEV_INDEX);
    new.qpn = get(qp, &OFF_QP_NUM).unwrap_or(UNKNOWN_U32);
    new.qp_type = get(qp, &OFF_QP_TYPE).unwrap_or(UNKNOWN_U32);
    let mut pane = Pane::uninit();
    let owner = owner_of(
        entry(&mut pane, member(qp, &OFF_QP_RES).unwrap_or(0)),
        &mut new.owner_comm,
        Depth::Name,
    );
    new.owner_pid = owner.pid;
    new.owner = u32::from(owner.flags);
    let user: u8 = get_or_zero(rxe, &OFF_RXE_QP_USER);
    if user == 0 {
        new.flags |= qp_flag::KERNEL;
    }
    if get::<u32>(rxe, &OFF_RXE_QP_SIGNALS) == Some(SIGNAL_ALL) {
        new.flags |= qp_flag::SIGNALS_ALL;
    }
    if get_or_zero::<u64>(rxe, &OFF_RXE_QP_SRQ) != 0 {
        new.flags |= qp_flag::SRQ;
    }
    let scq: u64 = get_or_zero(rxe, &OFF_RXE_QP_SCQ);
    if scq == get_or_zero(rxe, &OFF_RXE_QP_RCQ) {
        new.flags |= qp_flag::ONE_CQ;
    }
    let whose = Whose {
        pid: new.owner_pid,
        flags: new.owner,
        comm: &new.owner_comm,
        qpn: new.qpn,
        device: new.device,
    };
    if is_wanted(&whose) {
        new.flags |= qp_flag::WANTED;
    }
    let key = QpnKey {
        device: new.device,
        qpn: new.qpn,
        reserved: 0,
    };
    if WR_QPS.insert(&qp, &*new, NOEXIST).is_err() {
        // Another CPU was first, or there is no room.
        return if WR_QPS.get_ptr(&qp).is_none() { NO_ROOM } else { 0 };
    }
    // The kernel reuses QP numbers: the newer QP has it.
    let _ = WR_QPNS.insert(&key, &qp, 0);
    let _ = WR_QUEUES.insert(&new.sq, &qp, 0);
    0
}

/// Stops following a QP.
#[inline(always)]
fn forget(qp: u64) {
    let Some(known) = WR_QPS.get_ptr(&qp) else { return };
    // SAFETY: the map checked the pointer.
    let (key, sq) = unsafe {
        let key = QpnKey {
            device: (*known).device,
            qpn: (*known).qpn,
            reserved: 0,
        };
        (key, (*known).sq)
    };
    if let Some(owner) = WR_QPNS.get_ptr(&key)
        // SAFETY: as above.
        && unsafe { *owner } == qp
    {
        let _ = WR_QPNS.remove(&key);
    }
    let _ = WR_QUEUES.remove(&sq);
    let _ = WR_QPS.remove(&qp);
}

/// What the filter compares of a QP.
pub(super) struct Whose<'a> {
    /// Valid with `flag::OWNER_TASK` in the flags.
    pub(super) pid: u32,
    pub(super) flags: u32,
    pub(super) comm: &'a [u8; COMM_LEN],
    pub(super) qpn: u32,
    /// `struct ib_device *`.
    pub(super) device: u64,
}

/// Whether the filter lets records of a QP through.
#[inline(always)]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "a map's value is aligned to 8, and so is the place of the name in it"
)]
pub(super) fn is_wanted(qp: &Whose<'_>) -> bool {
    let Some(filter) = filter() else { return false };
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*filter).pid != 0 && ((*filter).pid != qp.pid || qp.flags & u32::from(flag::OWNER_TASK) == 0) {
            return false;
        }
        if (*filter).flags & WrFilter::QPN != 0 && (*filter).qpn != qp.qpn {
            return false;
        }
        if (*filter).comm[0] != 0 {
            for at in 0..(*filter).comm.len() {
                let wanted = read_volatile(&raw const (*filter).comm[at]);
                // The kernel keeps 15 bytes of a process's name; a kernel consumer's name may be longer.
                if wanted != qp.comm[at] && !(wanted == 0 && at == (*filter).comm.len() - 1) {
                    return false;
                }
                if wanted == 0 {
                    break;
                }
            }
        }
        if (*filter).device[0] != 0 {
            let mut name = [0u64; DEVICE_NAME_LEN / 8];
            name_device(&mut *(&raw mut name).cast(), qp.device);
            let wanted = (&raw const (*filter).device).cast::<u64>();
            for (word, own) in name.iter().enumerate() {
                if wanted.add(word).read_volatile() != *own {
                    return false;
                }
            }
        }
    }
    true
}

/// Makes a record of one of a QP's WRs.
#[inline(always)]
pub(super) fn send(qp: *mut WrQp, kind: u16, ts_ns: u64, fill: impl FnOnce(&mut WrRecord)) {
    let Some(mut entry) = WR_EVENTS.reserve::<WrRecord>(0) else {
        lost(loss::WR_RING);
        return;
    };
    let record = zeroed(&mut entry);
    // SAFETY: the map checked the pointer; the names are 16 bytes at a multiple of 8 in both.
    unsafe {
        record.ts_ns = ts_ns;
        record.kind = kind;
        record.object = (*qp).rxe + u64::from(OFF_RXE_QP_IBQP.load());
        record.qpn = (*qp).qpn;
        record.qp_type = (*qp).qp_type;
        record.device_index = (*qp).device_index;
        record.owner_pid = (*qp).owner_pid;
        record.flags = (*qp).owner as u16;
        record.dest_qpn = UNKNOWN_U32;
        copy(&raw const (*qp).owner_comm, &raw mut record.owner_comm);
        if (*qp).qp_type == RC || (*qp).qp_type == UC {
            let dest: u32 = get_or_zero((*qp).rxe, &OFF_RXE_QP_DEST);
            record.dest_qpn = dest;
            if let Some(gid) = member((*qp).rxe, &OFF_RXE_QP_DGID) {
                read_into(&mut record.dest_gid, gid);
            }
        }
    }
    fill(record);
    entry.submit(NO_WAKEUP);
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

/// Reports the posts since the last visit. `post_ns`: when their doorbell was rung, 0 when not known; `tid`: the thread that
/// rang it, 0 when not known.
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
        bpf_loop(
            n as u32,
            post_one as *mut c_void,
            (&raw mut walk).cast::<c_void>(),
            0,
        );
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
        if send_flags & SIGNALED != 0 || (*qp).flags & qp_flag::SIGNALS_ALL != 0 {
            flags |= u32::from(flag::SIGNALED);
        }
        let opcode = found.opcode;
        if opcode != LOCAL_INV && opcode != BIND_MW && opcode < KERNEL_OPCODES {
            found.bytes = get_or_zero(wqe, &OFF_WQE_LENGTH);
        }
        // The wr_id of a kernel consumer is an address, which is never shown.
        if (*qp).flags & qp_flag::KERNEL == 0 {
            flags |= u32::from(flag::WR_ID);
            found.wr_id = get_or_zero(wqe, &OFF_WQE_WR_ID);
        }
        if opcode == WRITE_IMM || opcode == SEND_IMM {
            flags |= u32::from(flag::IMM);
            found.imm = u32::from_be(get_or_zero::<u32>(wqe, &OFF_WQE_IMM));
        }
        found.dest_qpn = UNKNOWN_U32;
        if (*qp).qp_type == UD {
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
        // If there is no room, the record of its end has no wr_id.
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

/// Writes what is known about a WR of the send queue.
#[inline(always)]
fn describe(record: &mut WrRecord, found: &Outstanding) {
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

/// Reports that the WRs below number `to` have ended. Without a CQE (`status` is [`NO_STATUS`]) a WR that is not signaled has
/// succeeded: the driver makes a CQE for each that fails.
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
        bpf_loop(
            n as u32,
            end_one as *mut c_void,
            (&raw mut walk).cast::<c_void>(),
            0,
        );
    }
    Some(())
}

/// Reports one ended WR.
unsafe extern "C" fn end_one(_turn: u32, walk: *mut Ends) -> i64 {
    // SAFETY: as in `post_one`.
    unsafe {
        let (qp, filter, wr) = ((*walk).qp, (*walk).filter, (*walk).next);
        (*walk).next = wr + 1;
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
        let mut status = (*walk).status as u32;
        let known = found.flags & u32::from(flag::DETAILS) != 0;
        if status == NO_STATUS && known && (*walk).flags & u64::from(flag::DROPPED) == 0 {
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
        let flags = (*walk).flags as u16;
        send(qp, kind::DONE, (*walk).now, |record| {
            record.status = status;
            record.number = (wr as u32).wrapping_add(1);
            describe(record, found);
            record.flags |= flags;
        });
    }
    0
}

/// Brings the count of consumed send WRs up to date.
#[inline(always)]
pub(super) fn consumed(qp: *mut WrQp) -> u64 {
    // SAFETY: the map checked the pointer; the caller has claimed the QP. The cursor is read before the index.
    unsafe {
        let before = (*qp).consumed;
        let Some(index) = get::<u32>((*qp).sq, &OFF_QUEUE_INDEX) else {
            return before;
        };
        let now = advance(before, u64::from((*qp).base), index, (*qp).mask);
        (*qp).consumed = now;
        now
    }
}

/// When the WRs that a visit from the driver's task finds were posted: at a kernel consumer's last call. 0 for a user program,
/// whose doorbell no program has seen.
#[inline(always)]
pub(super) fn found_at(qp: *mut WrQp) -> u64 {
    // SAFETY: the map checked the pointer.
    unsafe { (*qp).bell_ns }
}

/// Entry of `rxe_post_send(qp, wr, bad_wr)`. A user program's WRs are already on the ring; this call puts a kernel consumer's
/// WRs there.
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
            let own = (pid_tgid >> 32) as u32 == (*followed).owner_pid;
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
    // SAFETY: the map checked the pointer; the words are written whole.
    unsafe {
        let flags = if (*followed).reset == 0 { 0 } else { flag::DROPPED };
        let _ = ends(followed, to, NO_STATUS, flags);
        let reset = u32::from(get::<u32>(rxe, &OFF_RXE_QP_STATE) == Some(RESET));
        (*followed).reset = reset;
        if reset != 0 {
            write_volatile(&raw mut (*followed).emptied, 1);
        }
    }
    release(followed);
    Some(())
}

/// Entry of `rxe_resp_queue_pkt(rxe_qp, skb)`: a packet for the QP. A QP that only receives is first seen here.
#[inline(always)]
pub(crate) fn arrived(rxe: u64) -> Option<()> {
    follow(rxe + u64::from(OFF_RXE_QP_IBQP.load())).map(|_| ())
}

/// Entry of `rxe_queue_cleanup(queue)`: the queue has been drained and is about to be freed. The WRs drained last, and those
/// that 6.1 leaves on it, ended without a CQE.
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
    }
    forget(qp);
    Some(())
}
