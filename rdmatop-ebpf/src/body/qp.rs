//! Queue pairs: create, modify, destroy, asynchronous events.

use core::mem::MaybeUninit;

use super::{enter, hook, not_entered};
use crate::{
    emit::{copy, finish, send, zeroed},
    maps::{QP_CALLS, QP_INDEX, QpKnown},
    offsets::{
        OFF_ATTR_AH_FLAGS, OFF_ATTR_DEST_QPN, OFF_ATTR_DGID, OFF_ATTR_PATH_MTU, OFF_ATTR_PORT,
        OFF_ATTR_RETRY_CNT, OFF_ATTR_RNR_RETRY, OFF_ATTR_RQ_PSN, OFF_ATTR_SGID_INDEX, OFF_ATTR_SQ_PSN,
        OFF_ATTR_STATE, OFF_ATTR_TIMEOUT, OFF_EVENT_ELEMENT, OFF_EVENT_EVENT, OFF_QP_PORT, OFF_QP_RES, get,
        member, read_into,
    },
    slots::{self, identify},
    task::{call_key, device, stamp},
};
use aya_ebpf::Global;
use rdmatop_common::{
    counters::loss,
    event::{QpRecord, UNKNOWN_U8, UNKNOWN_U32, kind},
};

/// `enum ib_qp_attr_mask`, include/rdma/ib_verbs.h: the same on 5.10 to 7.2.
mod mask {
    pub(super) const STATE: u32 = 1;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// `IB_AH_GRH`, include/rdma/ib_verbs.h.
const AH_GRH: u8 = 1;

/// `IB_QPS_RESET`: what every QP is created in.
const RESET: u32 = 0;

/// Fills in what is known of a QP.
#[inline(always)]
fn describe(record: &mut QpRecord, kind: u16, qp: u64, res: u64) {
    stamp(&mut record.prefix, kind, qp);
    let device_address = if let Some(known) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer; only the state is ever changed, by this QP's calls.
        unsafe { put(record, &*known) }
    } else {
        let mut known = MaybeUninit::uninit();
        let known = zeroed::<QpKnown>(&mut known);
        identify(known, qp, res);
        put(record, known)
    };
    device(&mut record.prefix, device_address);
    record.dest_qpn = UNKNOWN_U32;
    record.rq_psn = UNKNOWN_U32;
    record.sq_psn = UNKNOWN_U32;
    record.event = UNKNOWN_U32;
    record.to_state = UNKNOWN_U8;
    record.path_mtu = UNKNOWN_U8;
    // A QP has port 0 until INIT gives it one.
    record.port = match get::<u32>(qp, &OFF_QP_PORT) {
        Some(port) if port > 0 && port < 255 => port as u8,
        _ => UNKNOWN_U8,
    };
    record.timeout = UNKNOWN_U8;
    record.retry_cnt = UNKNOWN_U8;
    record.rnr_retry = UNKNOWN_U8;
    record.sgid_index = UNKNOWN_U8;
}

/// Writes what is known; returns the device's address.
#[inline(always)]
fn put(record: &mut QpRecord, known: &QpKnown) -> u64 {
    record.prefix.owner_pid = known.owner_pid;
    record.prefix.flags |= known.owner_flags as u16;
    // SAFETY: the name is a multiple of 8 long and at one in both structs.
    unsafe { copy(&raw const known.owner_comm, &raw mut record.prefix.owner_comm) };
    record.qpn = known.qpn;
    record.qp_type = known.qp_type;
    record.slot = known.slot;
    record.from_state = if known.state < 255 {
        known.state as u8
    } else {
        UNKNOWN_U8
    };
    known.device
}

#[inline(always)]
pub(crate) fn created(qp: u64, res: u64) {
    // An address can come back: what was known under it is another QP's, whose destroy was missed.
    slots::retire(qp);
    slots::adopt(qp, 0, u64::from(RESET));
    send(|record: &mut QpRecord| {
        describe(record, kind::QP_CREATE, qp, res);
        record.from_state = UNKNOWN_U8;
        record.to_state = RESET as u8;
    });
}

#[inline(always)]
fn masked<T>(bit: u32, attr_mask: u32, attr: u64, offset: &Global<u32>) -> Option<T> {
    if attr_mask & bit == 0 {
        None
    } else {
        get(attr, offset)
    }
}

/// Entry of `_ib_modify_qp(qp, attr, mask, udata)`. `attr` is read only where the mask says it is set: rdma_cm
/// modifies just the minimum RNR timer, with a state of 0 that would read as a step to RESET.
#[inline(always)]
pub(crate) fn modifying(qp: u64, attr: u64, attr_mask: u32) {
    let mut record = MaybeUninit::uninit();
    let record = zeroed::<QpRecord>(&mut record);
    describe(record, kind::QP_MODIFY, qp, member(qp, &OFF_QP_RES).unwrap_or(0));
    record.attr_mask = attr_mask;
    if let Some(state) = masked::<u32>(mask::STATE, attr_mask, attr, &OFF_ATTR_STATE) {
        record.to_state = if state < 255 { state as u8 } else { UNKNOWN_U8 };
    }
    if let Some(port) = masked::<u32>(mask::PORT, attr_mask, attr, &OFF_ATTR_PORT) {
        // port_num was a u8 until 5.13 and is a u32 since; in both the low byte is the port.
        record.port = port as u8;
    }
    if let Some(mtu) = masked::<u32>(mask::PATH_MTU, attr_mask, attr, &OFF_ATTR_PATH_MTU) {
        record.path_mtu = mtu as u8;
    }
    record.dest_qpn = masked(mask::DEST_QPN, attr_mask, attr, &OFF_ATTR_DEST_QPN).unwrap_or(UNKNOWN_U32);
    record.rq_psn = masked(mask::RQ_PSN, attr_mask, attr, &OFF_ATTR_RQ_PSN).unwrap_or(UNKNOWN_U32);
    record.sq_psn = masked(mask::SQ_PSN, attr_mask, attr, &OFF_ATTR_SQ_PSN).unwrap_or(UNKNOWN_U32);
    record.timeout = masked(mask::TIMEOUT, attr_mask, attr, &OFF_ATTR_TIMEOUT).unwrap_or(UNKNOWN_U8);
    record.retry_cnt = masked(mask::RETRY_CNT, attr_mask, attr, &OFF_ATTR_RETRY_CNT).unwrap_or(UNKNOWN_U8);
    record.rnr_retry = masked(mask::RNR_RETRY, attr_mask, attr, &OFF_ATTR_RNR_RETRY).unwrap_or(UNKNOWN_U8);
    record.sgid_index = masked(mask::AV, attr_mask, attr, &OFF_ATTR_SGID_INDEX).unwrap_or(UNKNOWN_U8);
    // Without a GRH (InfiniBand inside a subnet) nobody sets the GID.
    if masked::<u8>(mask::AV, attr_mask, attr, &OFF_ATTR_AH_FLAGS).is_some_and(|flags| flags & AH_GRH != 0)
        && let Some(gid) = member(attr, &OFF_ATTR_DGID)
    {
        read_into(&mut record.dest_gid, gid);
    }
    enter(&QP_CALLS, hook::MODIFY_QP, record);
}

/// Entry of `ib_destroy_qp_user(qp, udata)`: the QP is freed on success, so it is read now.
#[inline(always)]
pub(crate) fn destroying(qp: u64) {
    let mut record = MaybeUninit::uninit();
    let record = zeroed::<QpRecord>(&mut record);
    describe(record, kind::QP_DESTROY, qp, member(qp, &OFF_QP_RES).unwrap_or(0));
    enter(&QP_CALLS, hook::DESTROY_QP, record);
}

/// Return of either.
#[inline(always)]
pub(crate) fn returned(hook: u32, rc: i32) -> Option<()> {
    let key = call_key(hook);
    let Some(call) = QP_CALLS.get_ptr(&key) else {
        not_entered(loss::STASH);
        return None;
    };
    // SAFETY: the map checked the pointer; no other program writes this thread's entry while the thread is inside the
    // call, and none frees it before the end of this program.
    unsafe {
        if rc == 0 {
            let qp = (*call).prefix.object;
            if hook == hook::DESTROY_QP {
                // Only now: rxe drains its rings inside destroy and still counts.
                slots::retire(qp);
            } else {
                let new_psn = (*call).attr_mask & mask::SQ_PSN != 0;
                slots::modified(qp, u32::from((*call).to_state), new_psn);
            }
        }
        finish(call, rc);
    }
    let _ = QP_CALLS.remove(&key);
    Some(())
}

/// `ib_uverbs_qp_event_handler(event, context)`.
#[inline(always)]
pub(crate) fn async_event(event: u64) -> Option<()> {
    let qp = get::<u64>(event, &OFF_EVENT_ELEMENT)?;
    let what = get(event, &OFF_EVENT_EVENT).unwrap_or(UNKNOWN_U32);
    send(|record: &mut QpRecord| {
        describe(record, kind::QP_ASYNC, qp, member(qp, &OFF_QP_RES).unwrap_or(0));
        record.event = what;
    });
    Some(())
}
