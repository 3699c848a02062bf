//! Queue pairs: create, modify, destroy, asynchronous events.
//!
//! These programs slow down the calls that they observe. So they read once what never changes about a QP, and
//! an entry program remembers next to nothing: the caller still holds the attributes of a modify at the
//! return, where a program reads them in three reads at most.

use core::mem::MaybeUninit;

use super::{Hook, calls::Calls, not_entered, rxe_shared::works_in_softirqs};
use crate::{
    emit::{lost, send_for},
    identity::{self, identify},
    maps::{
        DESTROY_CALLS, DESTROY_ENTRIES, DESTROY_REST, DestroyCall, MODIFY_CALLS, MODIFY_ENTRIES, MODIFY_REST,
        ModifyCall, QP_INDEX, QpKnown,
    },
    offsets::{
        OFF_ATTR_AH_FLAGS, OFF_ATTR_DEST_QPN, OFF_ATTR_DGID, OFF_ATTR_PATH_MTU, OFF_ATTR_PORT,
        OFF_ATTR_RETRY_CNT, OFF_ATTR_RNR_RETRY, OFF_ATTR_RQ_PSN, OFF_ATTR_SGID_INDEX, OFF_ATTR_SQ_PSN,
        OFF_ATTR_STATE, OFF_ATTR_TIMEOUT, OFF_DEV_MAX_QP, OFF_EVENT_ELEMENT, OFF_EVENT_EVENT, OFF_QP_RES,
        StructBuffer, StructRead, counts, get, get_or_unknown, place_of,
    },
    record::{describe, owner},
    slots,
    task::{Entry, entry, now},
    words::{clear, copy, zeroed},
};
use rdmatop_common::{
    counters::loss,
    event::{QpRecord, UNKNOWN_U8, UNKNOWN_U32, flag, kind},
    ib::state::{ERR, RESET},
};

/// `enum ib_qp_attr_mask`, include/rdma/ib_verbs.h: the same on 5.10 to 7.2.
pub(crate) mod mask {
    pub(crate) const STATE: u32 = 1;
    pub(crate) const PORT: u32 = 1 << 5;
    pub(crate) const AV: u32 = 1 << 7;
    pub(crate) const PATH_MTU: u32 = 1 << 8;
    pub(crate) const TIMEOUT: u32 = 1 << 9;
    pub(crate) const RETRY_CNT: u32 = 1 << 10;
    pub(crate) const RNR_RETRY: u32 = 1 << 11;
    pub(crate) const RQ_PSN: u32 = 1 << 12;
    pub(crate) const SQ_PSN: u32 = 1 << 16;
    pub(crate) const DEST_QPN: u32 = 1 << 20;
}

/// `IB_AH_GRH`, include/rdma/ib_verbs.h.
pub(crate) const AH_GRH: u8 = 1;

const MODIFIES: Calls<ModifyCall> = Calls {
    entries: &MODIFY_CALLS,
    number: MODIFY_ENTRIES,
    rest: &MODIFY_REST,
};

const DESTROYS: Calls<DestroyCall> = Calls {
    entries: &DESTROY_CALLS,
    number: DESTROY_ENTRIES,
    rest: &DESTROY_REST,
};

/// `rdma_restrack_add` of a QP.
#[inline(always)]
pub(crate) fn created(qp: u64, entry: Entry<'_>) {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    identify(known, qp, entry);
    known.state = RESET as u8;
    known.flags |= flag::CREATED;
    slots::made(known, qp);
    send_for(
        false,
        || owner(known),
        #[inline(always)]
        |record: &mut QpRecord| {
            describe(record, kind::QP_CREATE, qp, known);
            record.prefix.ts_ns = known.born_ns;
            record.event = get_or_unknown(known.device, &OFF_DEV_MAX_QP);
            record.from_state = UNKNOWN_U8;
            record.to_state = RESET as u8;
        },
    );
}

/// Entry of `_ib_modify_qp(qp, attr, mask, udata)`.
#[inline(always)]
pub(crate) fn modifying(qp: u64, attr: u64, attr_mask: u32) {
    let call = ModifyCall {
        start_ns: now(),
        qp,
        attr,
        mask: u64::from(attr_mask),
    };
    MODIFIES.remember(
        Hook::ModifyQp,
        &call,
        |call| call.start_ns,
        |_| lost(loss::RETURN),
    );
    if counts() && attr_mask & mask::STATE != 0 {
        if works_in_softirqs() {
            slots::leaving(qp);
        }
        let to = get::<u32>(attr, &OFF_ATTR_STATE);
        if to == Some(RESET) || works_in_softirqs() && to == Some(ERR) {
            slots::emptying(qp, to == Some(RESET));
        }
    }
}

/// A small value such as a state, as records hold it.
#[inline(always)]
fn byte(value: u32) -> u8 {
    if value < 255 { value as u8 } else { UNKNOWN_U8 }
}

/// Returns `value` if its bit in the mask is set, else all ones, which means unknown. There is no branch,
/// because the verifier would follow each combination of outcomes.
#[inline(always)]
fn masked(value: Option<u32>, attr_mask: u32, bit: u32) -> u32 {
    let unset = ((attr_mask >> bit.trailing_zeros()) & 1).wrapping_sub(1);
    value.unwrap_or(UNKNOWN_U32) | unset
}

/// As [`masked`], for a byte.
#[inline(always)]
fn masked_byte(value: Option<u8>, attr_mask: u32, bit: u32) -> u8 {
    masked(value.map(u32::from), attr_mask, bit) as u8
}

/// The attributes at the head of `struct ib_qp_attr`: states, MTU, PSNs, QP number.
type Head<'a> = StructRead<'a, 4>;

/// Writes the attributes whose bits are set in the mask, and returns the port, 0 if it was not read. The mask
/// matters: rdma_cm modifies only the minimum RNR timer and leaves the state 0, which would look like a move
/// to RESET.
#[inline(always)]
fn attributes(record: &mut QpRecord, head: Head<'_>, attr: u64, attr_mask: u32) -> u8 {
    const TAIL: u32 = mask::PORT | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY;
    let readable = attr_mask & !head.unreadable as u32;
    record.to_state = byte(masked(head.get(&OFF_ATTR_STATE), readable, mask::STATE));
    record.path_mtu = byte(masked(head.get(&OFF_ATTR_PATH_MTU), readable, mask::PATH_MTU));
    record.dest_qpn = masked(head.get(&OFF_ATTR_DEST_QPN), readable, mask::DEST_QPN);
    record.rq_psn = masked(head.get(&OFF_ATTR_RQ_PSN), readable, mask::RQ_PSN);
    record.sq_psn = masked(head.get(&OFF_ATTR_SQ_PSN), readable, mask::SQ_PSN);
    if readable & mask::AV != 0 {
        let mut buffer = StructBuffer::<5>::uninit();
        let av = StructRead::open(&mut buffer, attr, &OFF_ATTR_DGID);
        record.sgid_index = av.get(&OFF_ATTR_SGID_INDEX).unwrap_or(UNKNOWN_U8);
        // Without a GRH (InfiniBand within one subnet) the caller does not set the GID.
        if av.get::<u8>(&OFF_ATTR_AH_FLAGS).unwrap_or(0) & AH_GRH != 0
            && let Some(gid) = av.first()
        {
            // SAFETY: at least 16 bytes were read, and both places are aligned to 8 bytes.
            unsafe { copy(gid.cast(), &raw mut record.dest_gid) };
        }
    }
    let mut port = 0;
    if readable & TAIL != 0 {
        let mut buffer = StructBuffer::<1>::uninit();
        let tail = StructRead::open(&mut buffer, attr, &OFF_ATTR_PORT);
        if attr_mask & mask::PORT != 0 {
            // port_num was a u8 until 5.13 and is a u32 since; in both the low byte is the port.
            port = tail.get(&OFF_ATTR_PORT).unwrap_or(UNKNOWN_U8);
            record.port = port;
        }
        record.timeout = masked_byte(tail.get(&OFF_ATTR_TIMEOUT), attr_mask, mask::TIMEOUT);
        record.retry_cnt = masked_byte(tail.get(&OFF_ATTR_RETRY_CNT), attr_mask, mask::RETRY_CNT);
        record.rnr_retry = masked_byte(tail.get(&OFF_ATTR_RNR_RETRY), attr_mask, mask::RNR_RETRY);
    }
    port
}

/// Return of `_ib_modify_qp`.
#[inline(always)]
pub(crate) fn modified(rc: i32) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let Some(call) = MODIFIES.recall(Hook::ModifyQp, &mut call, |_| true) else {
        not_entered(loss::STASH);
        return None;
    };
    let Some(known) = slots::learn(call.qp) else {
        lost(loss::STASH);
        return None;
    };
    stepped(call, known, rc);
    Some(())
}

/// Reports a modify that returned, and remembers the QP's new state and port. Not inlined: the frames of a
/// chain of calls share 512 bytes, and this one would leave too few for the functions that `slots::learn`
/// calls.
#[inline(never)]
fn stepped(call: &ModifyCall, known: *mut QpKnown, rc: i32) {
    let attr_mask = call.mask as u32;
    let mut buffer = StructBuffer::uninit();
    let head = StructRead::open(&mut buffer, call.attr, &OFF_ATTR_STATE);
    let mut port = 0;
    let breaking = counts() && attr_mask & mask::STATE != 0 && head.get(&OFF_ATTR_STATE) == Some(ERR);
    send_for(
        breaking,
        // SAFETY: as below.
        || owner(unsafe { &*known }),
        #[inline(always)]
        |record: &mut QpRecord| {
            // SAFETY: the map checked the pointer; only state, port and slot change, each written whole.
            describe(record, kind::QP_MODIFY, call.qp, unsafe { &*known });
            record.prefix.duration_ns = record.prefix.ts_ns - call.start_ns;
            record.prefix.rc = rc;
            record.attr_mask = attr_mask;
            port = attributes(record, head, call.attr, attr_mask);
        },
    );
    if rc != 0 {
        return;
    }
    // SAFETY: as above.
    unsafe {
        if attr_mask & mask::STATE != 0 && head.unreadable == 0 {
            (*known).state = byte(head.get(&OFF_ATTR_STATE).unwrap_or(UNKNOWN_U32));
        }
        if attr_mask & mask::PORT != 0 {
            if port == 0 {
                // The ring buffer was full, so no record was filled in, and the port was not read with it.
                port = get(call.attr, &OFF_ATTR_PORT).unwrap_or(0);
            }
            (*known).port = identity::port(u32::from(port)) as u8;
        }
        if counts() {
            let changed = attr_mask & mask::STATE != 0 && head.unreadable == 0;
            let state = u32::from((*known).state);
            slots::modified(
                call.qp,
                (*known).slot,
                changed && state == RESET,
                attr_mask & mask::SQ_PSN != 0,
                works_in_softirqs() && changed && state == ERR,
            );
        }
    }
}

/// Entry of `ib_destroy_qp_user(qp, udata)`, which frees the QP if it succeeds: so read now what is not
/// known.
#[inline(always)]
pub(crate) fn destroying(qp: u64) {
    if counts() && works_in_softirqs() {
        slots::leaving(qp);
    }
    let mut call = MaybeUninit::<DestroyCall>::uninit();
    let place = call.as_mut_ptr();
    // SAFETY: all members are written before `assume_init_ref`.
    let call = unsafe {
        (*place).start_ns = now();
        (*place).qp = qp;
        let known = &raw mut (*place).known;
        if let Some(there) = QP_INDEX.get_ptr(&qp) {
            copy(there, known);
        } else {
            clear(known);
            let res = place_of(qp, &OFF_QP_RES);
            identify(&mut *known, qp, entry(&mut StructBuffer::uninit(), res));
        }
        call.assume_init_ref()
    };
    DESTROYS.remember(
        Hook::DestroyQp,
        call,
        |call| call.start_ns,
        |_| lost(loss::RETURN),
    );
}

/// Return of `ib_destroy_qp_user`.
#[inline(always)]
pub(crate) fn destroyed(rc: i32) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let Some(call) = DESTROYS.recall(Hook::DestroyQp, &mut call, |_| true) else {
        not_entered(loss::STASH);
        return None;
    };
    if rc == 0 {
        // Only now: rxe drains its rings inside destroy, and the programs still count those WRs.
        slots::destroyed(call.qp, &call.known, call.start_ns);
    }
    send_for(
        false,
        || owner(&call.known),
        #[inline(always)]
        |record: &mut QpRecord| {
            describe(record, kind::QP_DESTROY, call.qp, &call.known);
            record.prefix.duration_ns = record.prefix.ts_ns - call.start_ns;
            record.prefix.rc = rc;
        },
    );
    Some(())
}

/// `ib_uverbs_qp_event_handler(event, context)`.
#[inline(always)]
pub(crate) fn async_event(event: u64) -> Option<()> {
    let qp = get::<u64>(event, &OFF_EVENT_ELEMENT)?;
    let what = get(event, &OFF_EVENT_EVENT).unwrap_or(UNKNOWN_U32);
    let Some(known) = slots::learn(qp) else {
        lost(loss::STASH);
        return None;
    };
    send_for(
        false,
        // SAFETY: as below.
        || owner(unsafe { &*known }),
        #[inline(always)]
        |record: &mut QpRecord| {
            // SAFETY: the map checked the pointer; only state, port and slot change, each written whole.
            describe(record, kind::QP_ASYNC, qp, unsafe { &*known });
            record.event = what;
        },
    );
    Some(())
}
