//! Which QP is counted where: a slot is given at create, or at the first sign of a QP that was there before.

use core::ptr::{read_volatile, write_volatile};

use rdmatop_common::{
    counters::{QpSlot, loss, slot_flag},
    event::{UNKNOWN_U8, UNKNOWN_U32},
};
use zerocopy::FromZeros as _;

use crate::{
    body::rxe,
    emit::lost,
    maps::{FREE_SLOTS, QP_INDEX, QP_SLOTS, QPN_INDEX, QUEUE_QP, QpEntry, QpnKey, USED_SLOTS, enabled},
    offsets::{
        OFF_DEV_DRIVER, OFF_DEV_INDEX, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_RES, OFF_RES_TASK, OFF_TASK_TGID,
        get, member,
    },
    pool,
    task::now,
};

/// `RDMA_DRIVER_RXE`, include/uapi/rdma/ib_user_ioctl_verbs.h.
const DRIVER_RXE: u32 = 14;
/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;

/// The number of WRs that a cursor stands for, moved on to where the ring's index is now.
///
/// A cursor is stored, never added to: two CPUs that move it at once can leave it a little behind, and the next
/// look puts that right. The cursor must be read before the index, so that the index is never behind it.
#[inline(always)]
pub(crate) fn advance(count: u64, base: u64, index: u32, mask: u32) -> u64 {
    let behind = index.wrapping_sub((count + base) as u32) & mask;
    count + u64::from(behind)
}

/// A QP that is counted, and its counters. One that was there before attach gets its slot now.
#[inline(always)]
pub(crate) fn find(qp: u64) -> Option<(*mut QpEntry, *mut QpSlot)> {
    let entry = if let Some(entry) = QP_INDEX.get_ptr_mut(&qp) {
        entry
    } else {
        if !enabled() {
            return None;
        }
        adopt(qp, slot_flag::SINCE_ATTACH, UNKNOWN_U32)?
    };
    Some((entry, of(entry)?))
}

/// A QP's counters; `None` when it has none.
#[inline(always)]
pub(crate) fn of(entry: *mut QpEntry) -> Option<*mut QpSlot> {
    // SAFETY: the map checked the pointer. UNKNOWN_U32 is no index of the array.
    QP_SLOTS.get_ptr_mut(unsafe { (*entry).slot })
}

/// Whether user space has read and zeroed a slot.
#[inline(always)]
fn is_clean(slot: u32) -> bool {
    // SAFETY: the map checked the pointer; user space writes the word whole, and last.
    QP_SLOTS
        .get_ptr(slot)
        .is_some_and(|slot| unsafe { read_volatile(&raw const (*slot).qp) == 0 })
}

/// Takes the slot that was given up first, if it is free again; otherwise it goes to the end of the queue.
#[inline(always)]
fn reuse() -> Option<u32> {
    let Ok(Some(slot)) = USED_SLOTS.pop() else {
        return None;
    };
    if is_clean(slot) {
        return Some(slot);
    }
    // There was room for what was just popped.
    let _ = USED_SLOTS.push(slot, 0);
    None
}

/// A free slot. Used ones first: those in use stay at the start of the array, so a sweep is short.
#[inline(always)]
fn take() -> Option<u32> {
    if let Ok(Some(oldest)) = USED_SLOTS.peek()
        && is_clean(oldest)
        && let Some(slot) = reuse()
    {
        return Some(slot);
    }
    pool::take(&FREE_SLOTS).or_else(|| {
        // None is left that nobody has had. The order of the queue is not quite that of the sweeps.
        for _ in 0..4 {
            if let Some(slot) = reuse() {
                return Some(slot);
            }
        }
        None
    })
}

/// Remembers a QP, and gives it a slot when its provider's data path is one that we count.
#[inline(always)]
pub(crate) fn adopt(qp: u64, flags: u32, state: u32) -> Option<*mut QpEntry> {
    let device = get::<u64>(qp, &OFF_QP_DEVICE).unwrap_or(0);
    let mut entry = QpEntry::new_zeroed();
    entry.slot = UNKNOWN_U32;
    entry.state = state;
    entry.device = device;
    entry.flags = flags;
    // An ib_qp is the head of its provider's QP: only the driver id says whose.
    let counted = get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER_RXE) && rxe::layout(&mut entry, qp);
    if counted {
        match take() {
            Some(slot) => entry.slot = slot,
            None => lost(loss::SLOT),
        }
    }
    if QP_INDEX.insert(&qp, &entry, NOEXIST).is_err() {
        // Another CPU was first, or the map is full.
        let known = QP_INDEX.get_ptr_mut(&qp);
        if entry.slot != UNKNOWN_U32 {
            pool::give_back(&FREE_SLOTS, entry.slot);
            if known.is_none() {
                lost(loss::SLOT);
            }
        }
        return known;
    }
    if let Some(slot) = QP_SLOTS.get_ptr_mut(entry.slot) {
        open(slot, qp, &entry);
    }
    QP_INDEX.get_ptr_mut(&qp)
}

/// Writes the identity of a slot's new tenant and makes the QP findable by its number and its queues.
#[inline(always)]
fn open(slot: *mut QpSlot, qp: u64, entry: &QpEntry) {
    let qpn = get::<u32>(qp, &OFF_QP_NUM).unwrap_or(UNKNOWN_U32);
    let kernel = entry.flags & slot_flag::KERNEL != 0;
    let task = get::<u64>(member(qp, &OFF_QP_RES).unwrap_or(0), &OFF_RES_TASK).unwrap_or(0);
    let owner = if kernel {
        0
    } else {
        get::<u32>(task, &OFF_TASK_TGID).unwrap_or(0)
    };
    // SAFETY: the map checked the pointer; user space zeroed the slot before it freed it, and nobody else has
    // it. The address comes last: with it the slot is in use.
    unsafe {
        (*slot).born_ns = now();
        (*slot).qpn = qpn;
        (*slot).device_index = get(entry.device, &OFF_DEV_INDEX).unwrap_or(UNKNOWN_U32);
        (*slot).owner_pid = owner;
        (*slot).flags = entry.flags;
        write_volatile(&raw mut (*slot).qp, qp);
    }
    let key = QpnKey {
        device: entry.device,
        qpn,
        reserved: 0,
    };
    // QP numbers come back: the newer QP has it.
    let _ = QPN_INDEX.insert(&key, &qp, 0);
    for queue in [entry.sq, entry.rq] {
        if queue != 0 {
            let _ = QUEUE_QP.insert(&queue, &qp, 0);
        }
    }
}

/// Forgets a QP. Its counters are final; user space frees the slot when it has read them.
#[inline(always)]
pub(crate) fn retire(qp: u64) {
    let Some(known) = QP_INDEX.get_ptr(&qp) else {
        return;
    };
    // SAFETY: the map checked the pointer.
    let (number, device, sq, rq) = unsafe { ((*known).slot, (*known).device, (*known).sq, (*known).rq) };
    let _ = QP_INDEX.remove(&qp);
    let Some(slot) = QP_SLOTS.get_ptr_mut(number) else {
        return;
    };
    for queue in [sq, rq] {
        if queue != 0 {
            let _ = QUEUE_QP.remove(&queue);
        }
    }
    // SAFETY: the map checked the pointer; the flags have this one writer after `open`.
    let (key, flags) = unsafe {
        let key = QpnKey {
            device,
            qpn: (*slot).qpn,
            reserved: 0,
        };
        (key, &raw mut (*slot).flags)
    };
    // A number that already belongs to the next QP stays.
    if let Some(owner) = QPN_INDEX.get_ptr(&key)
        // SAFETY: as above.
        && unsafe { *owner } == qp
    {
        let _ = QPN_INDEX.remove(&key);
    }
    // SAFETY: as above.
    unsafe { write_volatile(flags, read_volatile(flags) | slot_flag::DESTROYED) };
    // There is room for every slot.
    let _ = USED_SLOTS.push(number, 0);
}

/// After a successful modify. `state` is `UNKNOWN_U8` when it did not change.
#[inline(always)]
pub(crate) fn modified(qp: u64, state: u32, new_psn: bool) {
    let entry = match QP_INDEX.get_ptr_mut(&qp) {
        Some(entry) => entry,
        None => match adopt(qp, slot_flag::SINCE_ATTACH, UNKNOWN_U32) {
            Some(entry) => entry,
            None => return,
        },
    };
    // SAFETY: the map checked the pointer; modify calls of one QP exclude each other.
    unsafe {
        if state != u32::from(UNKNOWN_U8) {
            (*entry).state = state;
        }
        if new_psn {
            (*entry).psn_known = 0;
        }
    }
    if let Some(slot) = of(entry) {
        rxe::receives(entry, slot);
    }
}
