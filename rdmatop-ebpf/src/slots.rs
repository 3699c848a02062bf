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
        OFF_DEV_DRIVER, OFF_DEV_INDEX, OFF_PD_RES, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_PD, OFF_QP_PORT,
        OFF_QP_RES, OFF_QP_TYPE, Pane, WANT_COUNTERS, Window, get, get_or_zero, member,
    },
    pool,
    task::{Entry, entry, is_kthread, name_consumer, name_device, now, owner_of, start_of},
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
        adopt(qp) as u32
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

/// A free slot, `UNKNOWN_U32` for none. Used ones first: those in use stay at the start of the array, so a sweep is
/// short. Not inlined: at a return the verifier forgets on which of the many ways it came there.
#[inline(never)]
fn take() -> u64 {
    let reused = || {
        if let Ok(Some(oldest)) = USED_SLOTS.peek()
            && is_clean(oldest)
        {
            reuse()
        } else {
            None
        }
    };
    let slot = reused().or_else(|| pool::take(&FREE_SLOTS)).or_else(|| {
        // None is left that nobody has had. The order of the queue is not quite that of the sweeps.
        for _ in 0..4 {
            if let Some(slot) = reuse() {
                return Some(slot);
            }
        }
        None
    });
    u64::from(slot.unwrap_or(UNKNOWN_U32))
}

/// What is to be known of a QP, read from it.
#[inline(always)]
pub(crate) fn identify(known: &mut QpKnown, qp: u64, res: Entry<'_>) {
    known.slot = UNKNOWN_U32;
    known.state = UNKNOWN_U8;
    known.born_ns = now();
    known.device = get_or_zero(qp, &OFF_QP_DEVICE);
    known.device_index = get(known.device, &OFF_DEV_INDEX).unwrap_or(UNKNOWN_U32);
    if name_device(&mut known.device_name, known.device) {
        known.flags = flag::DEVICE;
    }
    let mut pane = Pane::<5>::uninit();
    let members = Window::open(&mut pane, qp, &OFF_QP_NUM);
    known.qpn = members.get(&OFF_QP_NUM).unwrap_or(UNKNOWN_U32);
    known.qp_type = members.get(&OFF_QP_TYPE).unwrap_or(UNKNOWN_U32);
    known.port = port(members.get(&OFF_QP_PORT).unwrap_or(0)) as u8;
    if !members.readable {
        (known.qpn, known.qp_type) = (UNKNOWN_U32, UNKNOWN_U32);
    }
    let owner = owner_of(res, &mut known.owner_comm);
    known.owner_pid = owner.pid;
    known.owner_start_ns = start_of(&owner);
    known.flags |= owner.flags;
    if owner.flags & flag::OWNER_KERNEL != 0 {
        // rdma_cm makes QPs for its callers and gives its own name; the PD is the caller's (__ib_alloc_pd).
        let pd = get::<u64>(qp, &OFF_QP_PD).unwrap_or(0);
        let mut pane = Pane::uninit();
        let entry = entry(&mut pane, member(pd, &OFF_PD_RES).unwrap_or(0));
        name_consumer(&mut known.owner_comm, entry);
    } else if is_kthread(owner.task) {
        known.flags |= flag::KTHREAD;
    }
}

/// A port number as records have it: a QP has port 0 until INIT gives it one.
#[inline(always)]
pub(crate) fn port(number: u32) -> u32 {
    // 0 wraps around.
    if number.wrapping_sub(1) < 254 {
        number
    } else {
        u32::from(UNKNOWN_U8)
    }
}

/// Whether a QP's provider has a data path that we count, and anybody wants its counts.
#[inline(always)]
fn is_counted(device: u64) -> bool {
    // An ib_qp is the head of its provider's QP: only the driver id says whose.
    WANT_COUNTERS.load() != 0 && rxe::is_readable() && get::<u32>(device, &OFF_DEV_DRIVER) == Some(DRIVER_RXE)
}

/// Remembers a QP that was there before attach, and gives it a slot when its provider's data path is one that we count.
/// Returns its slot.
#[inline(never)]
pub(crate) fn adopt(qp: u64) -> u64 {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    let res = member(qp, &OFF_QP_RES).unwrap_or(0);
    identify(known, qp, entry(&mut Pane::uninit(), res));
    if WANT_COUNTERS.load() == 0 {
        let _ = QP_INDEX.insert(&qp, &*known, NOEXIST);
        return u64::from(UNKNOWN_U32);
    }
    place(known, qp, slot_flag::SINCE_ATTACH);
    if insert(known, qp) {
        return u64::from(known.slot);
    }
    // Another CPU was first, or the map is full.
    let other = QP_INDEX.get_ptr(&qp);
    unplace(known, other.is_none());
    match other {
        // SAFETY: the map checked the pointer.
        Some(known) => u64::from(unsafe { (*known).slot }),
        None => u64::from(UNKNOWN_U32),
    }
}

/// Remembers a QP that has just been made.
#[inline(always)]
pub(crate) fn made(known: &mut QpKnown, qp: u64) {
    if WANT_COUNTERS.load() != 0 {
        place(known, qp, 0);
    }
    if insert(known, qp) {
        return;
    }
    // An address can come back: what is known under it is another QP's, whose destroy was missed or has not returned.
    if let Some(old) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        let old = unsafe { Gone::of(qp, &*old) };
        retire(&old);
        if insert(known, qp) {
            return;
        }
    }
    if WANT_COUNTERS.load() != 0 {
        unplace(known, true);
    }
}

/// Gives a QP a slot, if it is to be counted.
#[inline(always)]
fn place(known: &mut QpKnown, qp: u64, flags: u32) {
    if !is_counted(known.device) {
        return;
    }
    let number = take() as u32;
    if number == UNKNOWN_U32 {
        lost(loss::SLOT);
        return;
    }
    if let Some(path) = QP_PATHS.get_ptr_mut(number)
        && rxe::layout(path, qp, flags)
    {
        known.slot = number;
    } else {
        pool::give_back(&FREE_SLOTS, number);
    }
}

/// Takes the slot back from a QP that did not get into the index; `full`: there was no room.
#[inline(always)]
fn unplace(known: &mut QpKnown, full: bool) {
    if known.slot != UNKNOWN_U32 {
        pool::give_back(&FREE_SLOTS, known.slot);
        known.slot = UNKNOWN_U32;
        if full {
            lost(loss::SLOT);
        }
    }
}

/// Puts a QP into the index and opens its slot. Not over another.
#[inline(always)]
fn insert(known: &QpKnown, qp: u64) -> bool {
    let done = QP_INDEX.insert(&qp, known, NOEXIST).is_ok();
    if done
        && WANT_COUNTERS.load() != 0
        && let Some((path, slot)) = at(known.slot)
    {
        // SAFETY: inside the array.
        unsafe { write_volatile(QP_HINTS.of(qp), known.slot) };
        open(path, slot, qp, known);
    }
    done
}

/// What is known of a QP; one from before attach becomes known now. `None` when there is no room for it.
#[inline(always)]
pub(crate) fn learn(qp: u64) -> Option<*mut QpKnown> {
    QP_INDEX.get_ptr_mut(&qp).or_else(|| {
        adopt(qp);
        QP_INDEX.get_ptr_mut(&qp)
    })
}

/// Writes the identity of a slot's new tenant and makes the QP findable by its number and its queues.
#[inline(always)]
fn open(path: *mut QpPath, slot: *mut QpSlot, qp: u64, entry: &QpKnown) {
    // SAFETY: the map checked the pointers; user space zeroed the slot before it freed it, and nobody else has
    // it. The address comes last: with it the slot is in use.
    let (sq, rq) = unsafe {
        (*slot).born_ns = entry.born_ns;
        (*slot).qpn = entry.qpn;
        (*slot).device_index = entry.device_index;
        (*slot).flags = (*path).flags;
        if (*path).flags & slot_flag::KERNEL == 0 {
            (*slot).owner_pid = entry.owner_pid;
            (*slot).owner_start_ns = entry.owner_start_ns;
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

/// A QP that is to be forgotten.
#[derive(Clone, Copy)]
pub(crate) struct Gone {
    qp: u64,
    slot: u32,
    device: u64,
    qpn: u32,
}

impl Gone {
    #[inline(always)]
    pub(crate) fn of(qp: u64, known: &QpKnown) -> Self {
        Self {
            qp,
            slot: known.slot,
            device: known.device,
            qpn: known.qpn,
        }
    }
}

/// Forgets a QP that was destroyed, unless its address is already the next one's: then [`made`] has done so.
#[inline(always)]
pub(crate) fn destroyed(qp: u64, known: &QpKnown) {
    if let Some(now) = QP_INDEX.get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        && unsafe { (*now).born_ns == known.born_ns }
    {
        retire(&Gone::of(qp, known));
    }
}

/// Forgets a QP. Its counters are final; user space frees the slot when it has read them.
#[inline(always)]
fn retire(gone: &Gone) {
    let qp = gone.qp;
    let _ = QP_INDEX.remove(&qp);
    if WANT_COUNTERS.load() == 0 {
        return;
    }
    let Some((path, slot)) = at(gone.slot) else {
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
        device: gone.device,
        qpn: gone.qpn,
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
    let _ = USED_SLOTS.push(gone.slot, 0);
}

/// A QP is about to go to RESET.
#[inline(always)]
pub(crate) fn resetting(qp: u64) {
    if let Some((path, _)) = known(qp) {
        // SAFETY: the map checked the pointer.
        unsafe { write_volatile(&raw mut (*path).resetting, 1) };
    }
}

/// What a successful modify of a counted QP means for its slot.
#[inline(always)]
pub(crate) fn modified(qp: u64, number: u32, reset: bool, new_psn: bool) {
    if WANT_COUNTERS.load() == 0 {
        return;
    }
    let Some((path, slot)) = at(number) else { return };
    // SAFETY: the map checked the pointer.
    if unsafe { read_volatile(&raw const (*path).qp) } == qp {
        // Modify calls of one QP exclude each other.
        rxe::modified(path, slot, reset, new_psn);
    }
}
