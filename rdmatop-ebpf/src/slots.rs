//! Which QP is counted where: a slot is given at create, or at the first sign of a QP that was there before.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::{
    counters::{QpSlot, loss, slot_flag},
    event::{UNKNOWN_U8, UNKNOWN_U32, flag},
};

use crate::{
    body::rxe,
    emit::{lost, zeroed},
    maps::{
        FREE_SLOTS, QP_HINTS, QP_INDEX, QP_PATHS, QP_SLOTS, QPN_INDEX, QUEUE_QP, QpKnown, QpPath, QpnKey,
        USED_SLOTS, enabled,
    },
    offsets::{
        OFF_DEV_DRIVER, OFF_DEV_INDEX, OFF_PD_RES, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_PD, OFF_QP_RES,
        OFF_QP_TYPE, WANT_COUNTERS, get, member,
    },
    pool,
    task::{name_consumer, now, owner_of},
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

#[inline(always)]
fn at(number: u32) -> Option<(*mut QpPath, *mut QpSlot)> {
    // UNKNOWN_U32 is no index of the arrays.
    Some((QP_PATHS.get_ptr_mut(number)?, QP_SLOTS.get_ptr_mut(number)?))
}

#[inline(always)]
fn hinted(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    // SAFETY: the map checked the pointers.
    unsafe {
        let (path, slot) = at(read_volatile(QP_HINTS.of(qp)))?;
        if (*path).qp == qp {
            Some((path, slot))
        } else {
            None
        }
    }
}

/// A QP that is counted: its rings and its counters. One that was there before attach gets its slot now.
#[inline(always)]
pub(crate) fn find(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 1) as u32))
}

/// As [`find`], but only if it is known already.
#[inline(always)]
pub(crate) fn known(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 0) as u32))
}

/// The slot of a QP that no hint leads to. Not inlined: a hot program seldom comes here.
#[inline(never)]
fn search(qp: u64, adopting: u64) -> u64 {
    let number = if let Some(known) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        unsafe { (*known).slot }
    } else if adopting != 0 && enabled() {
        adopt(qp, u64::from(slot_flag::SINCE_ATTACH), u64::from(UNKNOWN_U32)) as u32
    } else {
        UNKNOWN_U32
    };
    if number != UNKNOWN_U32 {
        // SAFETY: inside the array.
        unsafe { write_volatile(QP_HINTS.of(qp), number) };
    }
    u64::from(number)
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

/// What is to be known of a QP, read from it.
#[inline(always)]
pub(crate) fn identify(known: &mut QpKnown, qp: u64, res: u64) {
    known.slot = UNKNOWN_U32;
    known.state = UNKNOWN_U32;
    known.device = get(qp, &OFF_QP_DEVICE).unwrap_or(0);
    known.qpn = get(qp, &OFF_QP_NUM).unwrap_or(UNKNOWN_U32);
    known.qp_type = get(qp, &OFF_QP_TYPE).unwrap_or(UNKNOWN_U32);
    let (pid, flags) = owner_of(res, &mut known.owner_comm);
    known.owner_pid = pid;
    known.owner_flags = u32::from(flags);
    if flags & flag::OWNER_KERNEL != 0 {
        // rdma_cm makes QPs for its callers and gives its own name; the PD is the caller's (__ib_alloc_pd).
        let pd = get::<u64>(qp, &OFF_QP_PD).unwrap_or(0);
        name_consumer(&mut known.owner_comm, member(pd, &OFF_PD_RES).unwrap_or(0));
    }
}

/// Whether a QP's provider has a data path that we count, and anybody wants its counts.
#[inline(always)]
fn is_counted(device: u64) -> bool {
    // An ib_qp is the head of its provider's QP: only the driver id says whose.
    WANT_COUNTERS.load() != 0 && rxe::is_readable() && get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER_RXE)
}

/// Remembers a QP, and gives it a slot when its provider's data path is one that we count. Returns its slot.
#[inline(never)]
pub(crate) fn adopt(qp: u64, flags: u64, state: u64) -> u64 {
    let mut entry = MaybeUninit::uninit();
    let entry = zeroed::<QpKnown>(&mut entry);
    identify(entry, qp, member(qp, &OFF_QP_RES).unwrap_or(0));
    entry.state = state as u32;
    if is_counted(entry.device) {
        let number = take();
        match number {
            Some(number) => {
                if let Some(path) = QP_PATHS.get_ptr_mut(number)
                    && rxe::layout(path, qp, flags as u32)
                {
                    entry.slot = number;
                } else {
                    pool::give_back(&FREE_SLOTS, number);
                }
            }
            None => lost(loss::SLOT),
        }
    }
    let mine = QP_INDEX.insert(&qp, &*entry, NOEXIST).is_ok();
    if WANT_COUNTERS.load() == 0 {
        return u64::from(UNKNOWN_U32);
    }
    if mine {
        if let Some((path, slot)) = at(entry.slot) {
            open(path, slot, qp, entry);
        }
        return u64::from(entry.slot);
    }
    // Another CPU was first, or the map is full.
    let other = QP_INDEX.get_ptr(&qp);
    if entry.slot != UNKNOWN_U32 {
        pool::give_back(&FREE_SLOTS, entry.slot);
        if other.is_none() {
            lost(loss::SLOT);
        }
    }
    match other {
        // SAFETY: the map checked the pointer.
        Some(known) => u64::from(unsafe { (*known).slot }),
        None => u64::from(UNKNOWN_U32),
    }
}

/// Writes the identity of a slot's new tenant and makes the QP findable by its number and its queues.
#[inline(always)]
fn open(path: *mut QpPath, slot: *mut QpSlot, qp: u64, entry: &QpKnown) {
    // SAFETY: the map checked the pointers; user space zeroed the slot before it freed it, and nobody else has
    // it. The address comes last: with it the slot is in use.
    let (sq, rq) = unsafe {
        (*slot).born_ns = now();
        (*slot).qpn = entry.qpn;
        (*slot).device_index = get(entry.device, &OFF_DEV_INDEX).unwrap_or(UNKNOWN_U32);
        (*slot).flags = (*path).flags;
        if (*path).flags & slot_flag::KERNEL == 0 {
            (*slot).owner_pid = entry.owner_pid;
        }
        write_volatile(&raw mut (*slot).qp, qp);
        write_volatile(&raw mut (*path).qp, qp);
        ((*path).sq, (*path).rq)
    };
    let key = QpnKey {
        device: entry.device,
        qpn: entry.qpn,
        reserved: 0,
    };
    // QP numbers come back: the newer QP has it.
    let _ = QPN_INDEX.insert(&key, &qp, 0);
    for queue in [sq, rq] {
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
    let (number, device, qpn) = unsafe { ((*known).slot, (*known).device, (*known).qpn) };
    let _ = QP_INDEX.remove(&qp);
    if WANT_COUNTERS.load() == 0 {
        return;
    }
    let Some((path, slot)) = at(number) else {
        return;
    };
    // SAFETY: the map checked the pointers.
    let (sq, rq) = unsafe {
        // No hint leads here any more: the address can come back, with a QP that has no slot.
        write_volatile(&raw mut (*path).qp, 0);
        ((*path).sq, (*path).rq)
    };
    for queue in [sq, rq] {
        if queue != 0 {
            let _ = QUEUE_QP.remove(&queue);
        }
    }
    let key = QpnKey {
        device,
        qpn,
        reserved: 0,
    };
    // A number that already belongs to the next QP stays.
    if let Some(owner) = QPN_INDEX.get_ptr(&key)
        // SAFETY: as above.
        && unsafe { *owner } == qp
    {
        let _ = QPN_INDEX.remove(&key);
    }
    // SAFETY: as above; the flags have this one writer after `open`.
    unsafe {
        let flags = &raw mut (*slot).flags;
        write_volatile(flags, read_volatile(flags) | slot_flag::DESTROYED);
    }
    // There is room for every slot.
    let _ = USED_SLOTS.push(number, 0);
}

/// After a successful modify. `state` is `UNKNOWN_U8` when it did not change.
#[inline(always)]
pub(crate) fn modified(qp: u64, state: u32, new_psn: bool) {
    if let Some(known) = QP_INDEX.get_ptr_mut(&qp) {
        if state != u32::from(UNKNOWN_U8) {
            // SAFETY: the map checked the pointer; modify calls of one QP exclude each other.
            unsafe { (*known).state = state };
        }
    } else {
        let state = if state == u32::from(UNKNOWN_U8) {
            UNKNOWN_U32
        } else {
            state
        };
        adopt(qp, u64::from(slot_flag::SINCE_ATTACH), u64::from(state));
    }
    if WANT_COUNTERS.load() == 0 {
        return;
    }
    if let Some((path, slot)) = known(qp) {
        if new_psn {
            // SAFETY: as above.
            unsafe { (*path).psn_known = 0 };
        }
        rxe::receives(path, slot);
    }
}
