//! SoftRoCE: which QPs the programs of [`super::wr`] follow, and whether the filter lets the records of a QP
//! through.

use core::{mem::MaybeUninit, ptr::read_volatile};

use rdmatop_common::{
    counters::loss,
    event::{DEVICE_NAME_LEN, UNKNOWN_U32},
    wr::{WrFilter, count, flag},
};

use super::{
    restrack,
    rxe_shared::is_rxe,
    wr::{counted, filter},
};
use crate::{
    emit::lost,
    maps::{NOEXIST, QpnKey},
    offsets::{
        OFF_DEV_INDEX, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_RES, OFF_QP_TYPE, OFF_QUEUE_BUF, OFF_QUEUE_INDEX,
        OFF_QUEUE_MASK, OFF_QUEUE_SHIFT, OFF_RES_TYPE, OFF_RXE_QP_IBQP, OFF_RXE_QP_RCQ, OFF_RXE_QP_RQ,
        OFF_RXE_QP_SCQ, OFF_RXE_QP_SIGNALS, OFF_RXE_QP_SQ, OFF_RXE_QP_SRQ, OFF_RXE_QP_USER, StructBuffer,
        get, get_or_unknown, get_or_zero, place_of,
    },
    task::{entry, name_device, now, owner_of},
    words::{remove_if, zeroed},
    wr_maps::{QpOwner, WR_QPNS, WR_QPS, WR_QUEUES, WrQp, qp_flag},
};

/// `IB_SIGNAL_ALL_WR` of a QP.
const SIGNAL_ALL: u32 = 0;
/// [`follow_wrs`] returns this if there was no room for the QP.
const NO_ROOM: u64 = 1;

/// Returns the entry of a QP, and begins to follow the QP if it has none. A QP whose send queue has another
/// address than the entry says is a new QP.
#[inline(always)]
pub(super) fn follow(qp: u64) -> Option<*mut WrQp> {
    if let Some(known) = WR_QPS.get_ptr_mut(&qp) {
        let sq: u64 = get_or_zero(qp - u64::from(OFF_RXE_QP_IBQP.load()), &OFF_RXE_QP_SQ);
        // SAFETY: the map checked the pointer.
        if unsafe { (*known).sq } == sq {
            return Some(known);
        }
    }
    if follow_wrs(qp, 0) == NO_ROOM {
        // This visit cannot report what it would have found.
        counted(count::HAPPENED, 1);
        lost(loss::WR_MISSED);
    }
    WR_QPS.get_ptr_mut(&qp)
}

/// Entry of `rdma_restrack_add(res)`, for an object of any provider. Begins to follow a new QP of SoftRoCE
/// before its first work request. If only [`follow`] did that, it would begin at the consumer index of the
/// QP, because a QP that it first sees at work may be from before the trace. Then WRs that the driver had
/// consumed while the kernel skipped our programs would be in no count.
#[inline(always)]
pub(crate) fn created(res: u64) -> Option<()> {
    if get::<u32>(res, &OFF_RES_TYPE)? != restrack::QP {
        return None;
    }
    let qp = res - u64::from(OFF_QP_RES.load());
    if is_rxe(get(qp, &OFF_QP_DEVICE)?) {
        follow_wrs(qp, 1);
    }
    Some(())
}

/// Begins to follow a QP, unless another CPU has just begun to. `is_new`: 1 if the QP has just been created,
/// else 0. Returns [`NO_ROOM`] if a map has no room, else 0. Not inlined, so that it does not enlarge the
/// callers' stack frames. Global: see `slots`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn follow_wrs(qp: u64, is_new: u64) -> u64 {
    let rxe = qp - u64::from(OFF_RXE_QP_IBQP.load());
    let mut place = MaybeUninit::<WrQp>::uninit();
    let new = zeroed(&mut place);
    new.rxe = rxe;
    new.sq = get_or_zero(rxe, &OFF_RXE_QP_SQ);
    // Only an entry of an earlier QP is removed. One of this QP is that of another CPU, which may hold its
    // claim: the release would then write into the memory of another entry, and nobody could claim that one.
    if is_new != 0 || is_of_an_earlier_one(qp, new.sq) {
        forget(qp);
    }
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
    new.owner.device_index = get_or_unknown(new.device, &OFF_DEV_INDEX);
    name_device(&mut new.owner.device, new.device);
    new.owner.qpn = get(qp, &OFF_QP_NUM).unwrap_or(UNKNOWN_U32);
    new.owner.qp_type = get(qp, &OFF_QP_TYPE).unwrap_or(UNKNOWN_U32);
    new.owner.dest_qpn = UNKNOWN_U32;
    let mut buffer = StructBuffer::uninit();
    let res = entry(&mut buffer, place_of(qp, &OFF_QP_RES));
    let owner = owner_of(res, &mut new.owner.comm);
    new.owner.pid = owner.pid;
    new.owner.flags = u32::from(owner.flags);
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
    if is_wanted(&new.owner) {
        new.flags |= qp_flag::WANTED;
    }
    let key = QpnKey::new(new.device, new.owner.qpn);
    // Without one of the first two, no program would find the QP of a CQE, or that of a queue that ends. The
    // kernel reuses QP numbers: the entry of an older QP with this number is replaced.
    let has_room = WR_QPNS.insert(&key, &qp, 0).is_ok()
        && WR_QUEUES.insert(&new.sq, &qp, 0).is_ok()
        && WR_QPS.insert(&qp, &*new, NOEXIST).is_ok();
    // If the QP is there, another CPU was first, and the first two are its entries too.
    if has_room || WR_QPS.get_ptr(&qp).is_some() {
        return 0;
    }
    let _ = WR_QPNS.remove(&key);
    let _ = WR_QUEUES.remove(&new.sq);
    // Another CPU may have inserted the QP between the check and these two lines.
    if WR_QPS.get_ptr(&qp).is_some() {
        let _ = WR_QPNS.insert(&key, &qp, 0);
        let _ = WR_QUEUES.insert(&new.sq, &qp, 0);
        return 0;
    }
    NO_ROOM
}

/// Whether the QP's entry is that of an earlier QP at its address: it has another send queue.
#[inline(always)]
fn is_of_an_earlier_one(qp: u64, sq: u64) -> bool {
    WR_QPS
        .get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        .is_some_and(|known| unsafe { (*known).sq } != sq)
}

/// Stops following a QP.
#[inline(always)]
pub(super) fn forget(qp: u64) {
    let Some(known) = WR_QPS.get_ptr(&qp) else { return };
    // SAFETY: the map checked the pointer.
    let (key, sq) = unsafe {
        let key = QpnKey::new((*known).device, (*known).owner.qpn);
        (key, (*known).sq)
    };
    remove_if(&WR_QPNS, &key, qp);
    // The kernel reuses addresses too: another QP may have its queue there if no program saw this one's end.
    remove_if(&WR_QUEUES, &sq, qp);
    let _ = WR_QPS.remove(&qp);
}

/// Whether the filter lets records of a QP through.
#[inline(always)]
#[expect(
    clippy::cast_ptr_alignment,
    reason = "a map's value is aligned to 8, and so is the place of the name in it and in what is known of the QP"
)]
pub(crate) fn is_wanted(qp: &QpOwner) -> bool {
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
                // The kernel keeps 15 bytes of a process's name; the name of a kernel consumer may be longer.
                if wanted != qp.comm[at] && !(wanted == 0 && at == (*filter).comm.len() - 1) {
                    return false;
                }
                if wanted == 0 {
                    break;
                }
            }
        }
        if (*filter).device[0] != 0 {
            let wanted = (&raw const (*filter).device).cast::<u64>();
            let own = (&raw const qp.device).cast::<u64>();
            for word in 0..DEVICE_NAME_LEN / 8 {
                if wanted.add(word).read_volatile() != own.add(word).read() {
                    return false;
                }
            }
        }
    }
    true
}
