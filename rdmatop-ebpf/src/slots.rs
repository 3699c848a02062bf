//! Which QP is counted where.
//!
//! A slot is given at create, or at the first sign of a QP that was there before, while there are many. The last half is
//! kept for QPs that move: see `counters::place`. Such a QP is known from its birth with the place of its rings'
//! consumers then, so what is counted with its first event begins there.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::{
    counters::{
        QpSlot, free, loss,
        place::{AT_REST, NONE_LEFT, UNCOUNTED},
        slot_flag,
    },
    event::{UNKNOWN_U8, UNKNOWN_U32, flag},
};

use crate::{
    body::{qp, rxe},
    emit::{lost, zeroed},
    maps::{
        FREE_SLOTS, NEXT_TRY, QP_HINTS, QP_INDEX, QP_PATHS, QP_SLOTS, QPN_INDEX, QUEUE_SLOTS, QpKnown,
        QpPath, QpnKey, USED_SLOTS, enabled,
    },
    offsets::{
        EAGER_SLOTS, OFF_DEV_DRIVER, OFF_DEV_INDEX, OFF_PD_RES, OFF_QP_DEVICE, OFF_QP_NUM, OFF_QP_PD,
        OFF_QP_PORT, OFF_QP_RES, OFF_QP_TYPE, Pane, WANT_COUNTERS, Window, get, get_or_zero, member,
    },
    pool,
    task::{Entry, entry, is_kthread, name_consumer, name_device, now, owner_of, start_of},
};

/// `RDMA_DRIVER_RXE`, include/uapi/rdma/ib_user_ioctl_verbs.h.
const DRIVER_RXE: u32 = 14;
/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;
/// What a search is for besides: 0, one that has a slot; 1, one that moves; 2, one that moves if work is on its queues.
const BUSY: u64 = 2;
/// How long no slot is looked for after none was found, ns: what is looked through costs more than all the rest of an
/// event. User space frees slots at most every few milliseconds.
const TRY_AGAIN_NS: u64 = 10_000_000;

/// The number of WRs that a cursor stands for, moved on to where the ring's index is now.
///
/// A cursor is stored, never added to: two CPUs that move it at once can leave it a little behind, and the next
/// look puts that right. The cursor must be read before the index, so that the index is never behind it.
#[inline(always)]
pub(crate) fn advance(count: u64, base: u64, index: u32, mask: u32) -> u64 {
    let behind = index.wrapping_sub((count + base) as u32) & mask;
    count + u64::from(behind)
}

/// Path and counters of a slot; none of what stands for no slot is an index of the arrays.
#[inline(always)]
pub(crate) fn at(number: u32) -> Option<(*mut QpPath, *mut QpSlot)> {
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

/// A QP that is counted and moves: its rings and its counters. It gets a slot now if it has none yet.
#[inline(always)]
pub(crate) fn find(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 1) as u32))
}

/// As [`find`]; one without a slot gets it only if work is on its queues.
#[inline(always)]
pub(crate) fn find_busy(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, BUSY) as u32))
}

/// As [`find`], but only if it has a slot already.
#[inline(always)]
pub(crate) fn known(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 0) as u32))
}

/// The slot of a QP that no hint leads to. Not inlined: a hot program seldom comes here.
#[inline(never)]
fn search(qp: u64, moving: u64) -> u64 {
    let mut number = if let Some(known) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        unsafe { read_volatile(&raw const (*known).slot) }
    } else if moving != 0 && enabled() {
        adopt(qp) as u32
    } else {
        UNCOUNTED
    };
    if moving != 0
        && (number == AT_REST || number == NONE_LEFT)
        && enabled()
        && (moving != BUSY || rxe::has_work(qp))
    {
        number = settle(qp, 1) as u32;
    }
    if number < NONE_LEFT {
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

/// Takes the slot that was given up first, if it is free again and below the limit; otherwise it goes to the end of the
/// queue.
#[inline(always)]
fn reuse(limit: u32) -> Option<u32> {
    let Ok(Some(slot)) = USED_SLOTS.pop() else {
        return None;
    };
    if slot < limit && is_clean(slot) {
        return Some(slot);
    }
    // There was room for what was just popped.
    let _ = USED_SLOTS.push(slot, 0);
    None
}

/// A slot that nobody has had yet.
#[inline(always)]
fn fresh(limit: u32) -> Option<u32> {
    if limit != UNKNOWN_U32 {
        // Taken off and put back the range would fall to pieces.
        let Ok(Some(range)) = FREE_SLOTS.peek() else {
            return None;
        };
        if free::unpack(range).0 >= limit {
            return None;
        }
    }
    let number = pool::take(&FREE_SLOTS)?;
    if number < limit {
        return Some(number);
    }
    pool::give_back(&FREE_SLOTS, number);
    None
}

/// A free slot, `UNCOUNTED` for none; `moving`: of all there are. Used ones first: those in use stay at the start of the
/// array, so a sweep is short. Not inlined: at a return the verifier forgets on which of the many ways it came there.
#[inline(never)]
fn take(moving: u64) -> u64 {
    let limit = if moving != 0 {
        UNKNOWN_U32
    } else {
        EAGER_SLOTS.load()
    };
    let reused = || {
        if let Ok(Some(oldest)) = USED_SLOTS.peek()
            && oldest < limit
            && is_clean(oldest)
        {
            reuse(limit)
        } else {
            None
        }
    };
    let slot = reused().or_else(|| fresh(limit)).or_else(|| {
        // None is left that nobody has had. The order of the queue is not quite that of the sweeps.
        for _ in 0..4 {
            if moving != 0
                && let Some(slot) = reuse(limit)
            {
                return Some(slot);
            }
        }
        None
    });
    u64::from(slot.unwrap_or(UNCOUNTED))
}

/// Gives a QP that moves a slot, and returns its number. Where none is left this is told and counted, once until it
/// finds one. Not inlined: few events come here.
#[inline(never)]
fn settle(qp: u64, moving: u64) -> u64 {
    let Some(known) = QP_INDEX.get_ptr_mut(&qp) else {
        return u64::from(UNCOUNTED);
    };
    // SAFETY: the map checked the pointer; other CPUs may write the place at the same time, and nothing else.
    let (before, known) = unsafe { (read_volatile(&raw const (*known).slot), &mut *known) };
    let retry = before == NONE_LEFT;
    if before != AT_REST && !(retry && now() >= NEXT_TRY.load()) {
        return u64::from(before);
    }
    let number = take(moving) as u32;
    let Some((path, slot)) = at(number) else {
        if moving == 0 {
            return u64::from(before);
        }
        NEXT_TRY.store(now() + TRY_AGAIN_NS);
        if !retry {
            set_place(known, NONE_LEFT);
            lost(loss::SLOT);
            qp::uncounted(qp, known);
        }
        return u64::from(NONE_LEFT);
    };
    let since = if retry {
        slot_flag::SINCE_ATTACH
    } else {
        known.since as u32
    };
    if !rxe::layout(path, qp, since) {
        pool::give_back(&FREE_SLOTS, number);
        set_place(known, UNCOUNTED);
        return u64::from(UNCOUNTED);
    }
    let sq = unsafe {
        // SAFETY: the map checked the pointer, and nobody else has this slot.
        if !retry {
            (*path).sq_base = u64::from(known.sq_base);
            (*path).rq_base = u64::from(known.rq_base);
        }
        (*path).sq
    };
    introduce(path, slot, known);
    // A doorbell and a completion on two CPUs may both be the first. All is in place by now but the addresses.
    if QUEUE_SLOTS.insert(&sq, &number, NOEXIST).is_err() {
        if let Some(other) = QUEUE_SLOTS.get_ptr(&sq) {
            // SAFETY: the map checked the pointer.
            let other = unsafe { *other };
            if let Some((theirs, _)) = at(other) {
                // SAFETY: as above.
                let tenant = unsafe { read_volatile(&raw const (*theirs).qp) };
                // 0: the other CPU is about to write it.
                if tenant == 0 || tenant == qp {
                    pool::give_back(&FREE_SLOTS, number);
                    return u64::from(other);
                }
            }
        }
        // Left over from a queue at this address whose end nobody saw, or there was no room.
        let _ = QUEUE_SLOTS.insert(&sq, &number, 0);
    }
    publish(path, slot, qp, number);
    set_place(known, number);
    u64::from(number)
}

#[inline(always)]
fn set_place(known: &mut QpKnown, place: u32) {
    // SAFETY: a place of its own, read whole by others.
    unsafe { write_volatile(&raw mut known.slot, place) };
}

/// What is to be known of a QP, read from it.
#[inline(always)]
pub(crate) fn identify(known: &mut QpKnown, qp: u64, res: Entry<'_>) {
    known.slot = UNCOUNTED;
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

/// Remembers a QP that was there before attach, and gives it a place when its provider's data path is one that we count.
/// Returns its place.
#[inline(never)]
pub(crate) fn adopt(qp: u64) -> u64 {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    let res = member(qp, &OFF_QP_RES).unwrap_or(0);
    identify(known, qp, entry(&mut Pane::uninit(), res));
    if WANT_COUNTERS.load() == 0 {
        let _ = QP_INDEX.insert(&qp, &*known, NOEXIST);
        return u64::from(UNCOUNTED);
    }
    // No slot yet: a modify has no room on its stack for all that a slot takes.
    rest(known, qp, slot_flag::SINCE_ATTACH);
    if insert(known, qp) {
        return u64::from(known.slot);
    }
    // Another CPU was first, or the map is full.
    unplace(known);
    if let Some(other) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        return u64::from(unsafe { read_volatile(&raw const (*other).slot) });
    }
    // Who is not remembered is counted as lost with each event: not with a million a second.
    if known.slot != UNCOUNTED && now() >= NEXT_TRY.load() {
        NEXT_TRY.store(now() + TRY_AGAIN_NS);
        lost(loss::SLOT);
    }
    u64::from(UNCOUNTED)
}

/// Remembers a QP that has just been made.
#[inline(always)]
pub(crate) fn made(known: &mut QpKnown, qp: u64) {
    if WANT_COUNTERS.load() != 0 {
        place(known, qp);
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
        unplace(known);
        if known.slot == NONE_LEFT {
            lost(loss::SLOT);
        }
    }
}

/// Gives a QP a place without a slot, if it is to be counted.
#[inline(always)]
fn rest(known: &mut QpKnown, qp: u64, since: u32) {
    if !is_counted(known.device) {
        return;
    }
    known.since = u64::from(since);
    if since != 0 {
        (known.sq_base, known.rq_base) = rxe::consumers(qp);
    }
    known.slot = AT_REST;
}

/// Gives a QP that has just been made a place, if it is to be counted: a slot while there are many.
#[inline(always)]
fn place(known: &mut QpKnown, qp: u64) {
    rest(known, qp, 0);
    if known.slot != AT_REST {
        return;
    }
    let number = take(0) as u32;
    let Some(path) = QP_PATHS.get_ptr_mut(number) else {
        return;
    };
    if rxe::layout(path, qp, 0) {
        known.slot = number;
    } else {
        pool::give_back(&FREE_SLOTS, number);
        known.slot = UNCOUNTED;
    }
}

/// Takes the slot back from a QP that did not get into the index.
#[inline(always)]
fn unplace(known: &mut QpKnown) {
    if known.slot < NONE_LEFT {
        pool::give_back(&FREE_SLOTS, known.slot);
    }
    if known.slot != UNCOUNTED {
        known.slot = NONE_LEFT;
    }
}

/// Puts a QP into the index, makes it findable by its number, and opens its slot if it has one. Not over another.
#[inline(always)]
fn insert(known: &QpKnown, qp: u64) -> bool {
    let done = QP_INDEX.insert(&qp, known, NOEXIST).is_ok();
    if !done || WANT_COUNTERS.load() == 0 || known.slot == UNCOUNTED {
        return done;
    }
    let key = QpnKey {
        device: known.device,
        qpn: known.qpn,
        reserved: 0,
    };
    // QP numbers come back: the newer QP has it.
    let _ = QPN_INDEX.insert(&key, &qp, 0);
    if let Some((path, slot)) = at(known.slot) {
        // SAFETY: inside the array.
        unsafe { write_volatile(QP_HINTS.of(qp), known.slot) };
        introduce(path, slot, known);
        // SAFETY: the map checked the pointer.
        let sq = unsafe { (*path).sq };
        if sq != 0 {
            let _ = QUEUE_SLOTS.insert(&sq, &known.slot, 0);
        }
        publish(path, slot, qp, known.slot);
    }
    done
}

/// A QP that the kernel was asked for becomes known, and gets a slot while there are many.
#[inline(always)]
pub(crate) fn asked(qp: u64) {
    if learn(qp).is_some() {
        settle(qp, 0);
    }
}

/// What is known of a QP; one from before attach becomes known now. `None` when there is no room for it.
#[inline(always)]
pub(crate) fn learn(qp: u64) -> Option<*mut QpKnown> {
    QP_INDEX.get_ptr_mut(&qp).or_else(|| {
        adopt(qp);
        QP_INDEX.get_ptr_mut(&qp)
    })
}

/// Writes the identity of a slot's new tenant, but for its address.
#[inline(always)]
fn introduce(path: *mut QpPath, slot: *mut QpSlot, entry: &QpKnown) {
    // SAFETY: the map checked the pointers; user space zeroed the slot before it freed it, and nobody else has it.
    unsafe {
        (*slot).born_ns = entry.born_ns;
        (*slot).since_ns = now();
        (*slot).qpn = entry.qpn;
        (*slot).device_index = entry.device_index;
        (*slot).flags = (*path).flags;
        let user = (*path).flags & slot_flag::KERNEL == 0;
        (*slot).owner_pid = if user { entry.owner_pid } else { 0 };
        (*slot).owner_start_ns = if user { entry.owner_start_ns } else { 0 };
    }
}

/// Writes the address of a slot's new tenant: with it the slot is in use.
#[inline(always)]
fn publish(path: *mut QpPath, slot: *mut QpSlot, qp: u64, number: u32) {
    // SAFETY: the map checked the pointers, and nobody else has this slot.
    let rq = unsafe {
        write_volatile(&raw mut (*slot).qp, qp);
        write_volatile(&raw mut (*path).qp, qp);
        (*path).rq
    };
    if rq != 0 {
        let _ = QUEUE_SLOTS.insert(&rq, &number, 0);
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
        // As it is now: what destroy flushes may have given it a slot since the entry.
        // SAFETY: as above.
        let gone = Gone::of(qp, unsafe { &*now });
        retire(&gone);
    }
}

/// Forgets a QP. Its counters are final; user space frees the slot when it has read them.
#[inline(always)]
fn retire(gone: &Gone) {
    let qp = gone.qp;
    let _ = QP_INDEX.remove(&qp);
    if WANT_COUNTERS.load() == 0 || gone.slot == UNCOUNTED {
        return;
    }
    let key = QpnKey {
        device: gone.device,
        qpn: gone.qpn,
        reserved: 0,
    };
    // A number that already belongs to the next QP stays.
    if let Some(owner) = QPN_INDEX.get_ptr(&key)
        // SAFETY: the map checked the pointer.
        && unsafe { *owner } == qp
    {
        let _ = QPN_INDEX.remove(&key);
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
        // The queue is freed by now: at its address may be that of the next QP.
        if let Some(owner) = QUEUE_SLOTS.get_ptr(&queue)
            // SAFETY: as above.
            && unsafe { *owner } == gone.slot
        {
            let _ = QUEUE_SLOTS.remove(&queue);
        }
    }
    // SAFETY: as above; the flags have this one writer after `open`.
    unsafe {
        let flags = &raw mut (*slot).flags;
        write_volatile(flags, read_volatile(flags) | slot_flag::DESTROYED);
    }
    // There is room for every slot.
    let _ = USED_SLOTS.push(gone.slot, 0);
}

/// A QP is about to go to RESET, which empties its queues without a word: one at rest that has work on them is to be
/// counted from here on.
#[inline(always)]
pub(crate) fn resetting(qp: u64) {
    let resting = QP_INDEX
        .get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        .is_some_and(|known| unsafe { read_volatile(&raw const (*known).slot) } == AT_REST);
    let found = if resting && rxe::has_work(qp) {
        find(qp)
    } else {
        known(qp)
    };
    if let Some((path, _)) = found {
        // SAFETY: the map checked the pointer.
        unsafe { write_volatile(&raw mut (*path).resetting, 1) };
    }
}

/// What a successful modify of a counted QP means for its slot. `what`: bit 0 to RESET, bit 1 a new PSN. Not inlined: with
/// the registers of the caller 6.1 finds one that was never written.
#[inline(never)]
pub(crate) fn modified(qp: u64, number: u64, what: u64) {
    let (reset, new_psn) = (what & 1 != 0, what & 2 != 0);
    let Some((path, slot)) = at(number as u32) else {
        return;
    };
    // SAFETY: the map checked the pointer.
    if unsafe { read_volatile(&raw const (*path).qp) } == qp {
        // Modify calls of one QP exclude each other.
        rxe::modified(path, slot, reset, new_psn);
    }
}
