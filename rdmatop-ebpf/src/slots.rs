//! Which QP is counted where. How a provider counts is not known here: see [`Provider`].
//!
//! A slot is given at create, or at the first sign of a QP that was there before, while there are many. The last half is
//! kept for QPs that move: see `counters::place`. Such a QP is known from its birth with the place of its rings'
//! consumers then, so what is counted with its first event begins there.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::counters::{
    QpSlot, loss,
    place::{AT_REST, NONE_LEFT, UNCOUNTED},
    slot_flag,
};

use crate::{
    emit::{lost, zeroed},
    identity::identify,
    maps::{
        NEXT_TRY, QP_HINTS, QP_INDEX, QP_PATHS, QP_SLOTS, QPN_INDEX, QUEUE_SLOTS, QpKnown, QpPath, QpnKey,
        USED_SLOTS, enabled,
    },
    offsets::{OFF_QP_RES, Pane, WANT_COUNTERS, member},
    record,
    task::{entry, now},
    vacancy::{give_back, take},
};

/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;
/// What a search is for besides: 0, one that has a slot; 1, one that moves; 2, one that moves if work is on its queues.
const BUSY: u64 = 2;
/// How long no slot is looked for after none was found, ns: what is looked through costs more than all the rest of an
/// event. User space frees slots at most every few milliseconds.
const TRY_AGAIN_NS: u64 = 10_000_000;

/// What a provider whose work requests are counted tells of its QPs. Its bodies are programs of their own; this is what the
/// slots ask for.
///
/// The providers are types and not values, so that a program that serves one provider has the code of no other. Programs of
/// the control plane, which see QPs of all, use [`crate::providers::Any`].
pub(crate) trait Provider {
    /// Whether QPs of this device are this provider's and can be read.
    fn counts(device: u64) -> bool;
    /// Reads where a QP's rings are into `path`, over what the slot's last tenant left. `flags`: of `slot_flag`, to be
    /// added to. False when the QP cannot be read.
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool;
    /// Where the consumers of a QP's send and receive queue are.
    fn consumers(qp: u64) -> (u32, u32);
    /// Whether anything is on a QP's queues.
    fn has_work(qp: u64) -> bool;
    /// A modify has succeeded. `reset`: to RESET; `new_psn`: the send PSN was set.
    fn modified(path: *mut QpPath, slot: *mut QpSlot, reset: bool, new_psn: bool);
}

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
pub(crate) fn find<P: Provider>(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search::<P>(qp, 1) as u32))
}

/// As [`find`]; one without a slot gets it only if work is on its queues.
#[inline(always)]
pub(crate) fn find_busy<P: Provider>(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search::<P>(qp, BUSY) as u32))
}

/// As [`find`], but only if it has a slot already.
#[inline(always)]
pub(crate) fn known<P: Provider>(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search::<P>(qp, 0) as u32))
}

/// The slot of a QP that no hint leads to. Not inlined: a hot program seldom comes here.
#[inline(never)]
fn search<P: Provider>(qp: u64, moving: u64) -> u64 {
    let mut number = if let Some(known) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        unsafe { read_volatile(&raw const (*known).slot) }
    } else if moving != 0 && enabled() {
        adopt::<P>(qp) as u32
    } else {
        UNCOUNTED
    };
    if moving != 0
        && (number == AT_REST || number == NONE_LEFT)
        && enabled()
        && (moving != BUSY || P::has_work(qp))
    {
        number = settle::<P>(qp, 1) as u32;
    }
    if number < NONE_LEFT {
        // SAFETY: inside the array.
        unsafe { write_volatile(QP_HINTS.of(qp), number) };
    }
    u64::from(number)
}

/// Gives a QP that moves a slot, and returns its number. Where none is left this is told and counted, once until it
/// finds one. Not inlined: few events come here.
#[inline(never)]
fn settle<P: Provider>(qp: u64, moving: u64) -> u64 {
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
            record::uncounted(qp, known);
        }
        return u64::from(NONE_LEFT);
    };
    let since = if retry {
        slot_flag::SINCE_ATTACH
    } else {
        known.since as u32
    };
    if !P::layout(path, qp, since) {
        give_back(number);
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
                    give_back(number);
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

/// Remembers a QP that was there before attach, and gives it a place when its provider's data path is one that we count.
/// Returns its place.
#[inline(never)]
pub(crate) fn adopt<P: Provider>(qp: u64) -> u64 {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    let res = member(qp, &OFF_QP_RES).unwrap_or(0);
    identify(known, qp, entry(&mut Pane::uninit(), res));
    if WANT_COUNTERS.load() == 0 {
        let _ = QP_INDEX.insert(&qp, &*known, NOEXIST);
        return u64::from(UNCOUNTED);
    }
    // No slot yet: a modify has no room on its stack for all that a slot takes.
    rest::<P>(known, qp, slot_flag::SINCE_ATTACH);
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
pub(crate) fn made<P: Provider>(known: &mut QpKnown, qp: u64) {
    if WANT_COUNTERS.load() != 0 {
        place::<P>(known, qp);
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
fn rest<P: Provider>(known: &mut QpKnown, qp: u64, since: u32) {
    if !P::counts(known.device) {
        return;
    }
    known.since = u64::from(since);
    if since != 0 {
        (known.sq_base, known.rq_base) = P::consumers(qp);
    }
    known.slot = AT_REST;
}

/// Gives a QP that has just been made a place, if it is to be counted: a slot while there are many.
#[inline(always)]
fn place<P: Provider>(known: &mut QpKnown, qp: u64) {
    rest::<P>(known, qp, 0);
    if known.slot != AT_REST {
        return;
    }
    let number = take(0) as u32;
    let Some(path) = QP_PATHS.get_ptr_mut(number) else {
        return;
    };
    if P::layout(path, qp, 0) {
        known.slot = number;
    } else {
        give_back(number);
        known.slot = UNCOUNTED;
    }
}

/// Takes the slot back from a QP that did not get into the index.
#[inline(always)]
fn unplace(known: &mut QpKnown) {
    if known.slot < NONE_LEFT {
        give_back(known.slot);
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
pub(crate) fn asked<P: Provider>(qp: u64) {
    if learn::<P>(qp).is_some() {
        settle::<P>(qp, 0);
    }
}

/// What is known of a QP; one from before attach becomes known now. `None` when there is no room for it.
#[inline(always)]
pub(crate) fn learn<P: Provider>(qp: u64) -> Option<*mut QpKnown> {
    QP_INDEX.get_ptr_mut(&qp).or_else(|| {
        adopt::<P>(qp);
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
pub(crate) fn resetting<P: Provider>(qp: u64) {
    let resting = QP_INDEX
        .get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        .is_some_and(|known| unsafe { read_volatile(&raw const (*known).slot) } == AT_REST);
    let found = if resting && P::has_work(qp) {
        find::<P>(qp)
    } else {
        known::<P>(qp)
    };
    if let Some((path, _)) = found {
        // SAFETY: the map checked the pointer.
        unsafe { write_volatile(&raw mut (*path).resetting, 1) };
    }
}

/// What a successful modify of a counted QP means for its slot. `what`: bit 0 to RESET, bit 1 a new PSN. Not inlined: with
/// the registers of the caller 6.1 finds one that was never written.
#[inline(never)]
pub(crate) fn modified<P: Provider>(qp: u64, number: u64, what: u64) {
    let (reset, new_psn) = (what & 1 != 0, what & 2 != 0);
    let Some((path, slot)) = at(number as u32) else {
        return;
    };
    // SAFETY: the map checked the pointer.
    if unsafe { read_volatile(&raw const (*path).qp) } == qp {
        // Modify calls of one QP exclude each other.
        P::modified(path, slot, reset, new_psn);
    }
}
