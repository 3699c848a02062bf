//! Which slot counts which QP. [`Provider`] hides how a provider's work requests are counted.
//!
//! While many slots are free, a QP gets one when it is created, or when a program first sees it if it is
//! older. The last half of the slots is kept for QPs that move: see `counters::place`. For a QP without a
//! slot the programs remember the consumer indices that its queues had when they first saw it, and its counts
//! begin there.
//!
//! Functions with `no_mangle` and `extern "C"` are global. The verifier follows a call to a static function
//! from each of its call sites, in each state that a program can have there, which was up to 61,000
//! instructions and 18 MB of its memory for one program (measured on Linux 6.12 and 7.2; 7.2 charges this
//! memory to rdmatop's cgroup, 6.12 does not). It checks a global function once for each program that has
//! it, for any arguments, and a caller may assume nothing about its result. So these functions take and
//! return integers only. Both attributes also keep the compiler from removing an argument that has the same
//! value in all calls; BTF would still describe that argument.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use rdmatop_common::{
    counters::{
        QpSlot, loss,
        place::{AT_REST, NONE_LEFT, UNCOUNTED},
        slot_flag,
    },
    event::flag,
};

use crate::{
    emit::lost,
    identity::identify,
    maps::{
        ANY, NEXT_TRY, NOEXIST, QP_INDEX, QP_PATHS, QP_SLOTS, QPN_INDEX, QUEUE_SLOTS, QpKnown, QpPath,
        QpnKey, USED_SLOTS, enabled, hint_of,
    },
    offsets::{OFF_QP_RES, StructBuffer, counts, place_of},
    pool::{give_back_slot, take_slot},
    providers::{self, of_qp},
    record,
    task::{entry, now},
    words::{fence, remove_if, zeroed},
};

/// Value of `moving` for [`search`]: the QP gets a slot only if work is on its queues. With 1 the QP gets a
/// slot in any case, with 0 it gets none.
const BUSY: u64 = 2;
/// [`QpPath::flushed_at`] of a QP that is not in ERR. No ring has such indices.
pub(crate) const NOT_IN_ERR: u64 = u64::MAX;
/// For how long no program looks for a slot after one program found none, ns: the search costs more than the
/// rest of an event, and user space frees slots at most every few milliseconds.
const TRY_AGAIN_NS: u64 = 10_000_000;

/// What the slots need to know about the QPs of a provider whose work requests are counted. The programs that
/// count are in `body`.
///
/// This module sees the QPs of all providers: by [`of_qp!`] it asks the QP's own one.
pub(crate) trait Provider {
    /// Whether the device is this provider's and its QPs can be read.
    fn counts(device: u64) -> bool;
    /// Writes into `path` where a QP's rings are, over the values of the slot's last QP. `flags`: bits of
    /// `slot_flag`, to which the provider adds its own. False when the QP cannot be read.
    fn layout(path: *mut QpPath, qp: u64, flags: u32) -> bool;
    /// The consumer indices of a QP's send and receive queue.
    fn consumers(qp: u64) -> (u32, u32);
    /// Whether anything is on a QP's queues.
    fn has_work(qp: u64) -> bool;
    /// Reads the address of the QP's peer, if the driver keeps it and the QP is connected.
    fn peer(_qp: u64, _slot: *mut QpSlot) {}
    /// Updates a slot after a modify that succeeded. `reset`: the QP went to RESET; `new_psn`: the send PSN
    /// was set.
    fn modified(_path: *mut QpPath, _slot: *mut QpSlot, _reset: bool, _new_psn: bool) {}
    /// The QP is about to go to ERR. Called only where rxe works in softirqs, as is [`Self::flushed`].
    fn breaking(_path: *mut QpPath, _slot: *mut QpSlot) {}
    /// Counts the CQEs of WRs that were flushed since [`Self::breaking`] and that no program has seen: the
    /// flush ran in a softirq inside a program of ours, where the kernel skips every other program. Called
    /// when that modify has returned and before the QP's next modify or destroy.
    fn flushed(_path: *mut QpPath, _slot: *mut QpSlot) {}
}

/// Path and counters of a slot. `None` for [`UNCOUNTED`], [`AT_REST`] and [`NONE_LEFT`].
#[inline(always)]
pub(crate) fn at(number: u32) -> Option<(*mut QpPath, *mut QpSlot)> {
    Some((QP_PATHS.get_ptr_mut(number)?, QP_SLOTS.get_ptr_mut(number)?))
}

#[inline(always)]
fn hinted(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    // SAFETY: the map checked the pointers.
    unsafe {
        let (path, slot) = at(read_volatile(hint_of(qp)))?;
        if (*path).qp == qp {
            Some((path, slot))
        } else {
            None
        }
    }
}

/// Rings and counters of a QP that moves. The QP gets a slot now if it has none yet.
#[inline(always)]
pub(crate) fn find(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 1) as u32))
}

/// As [`find`], but a QP without a slot gets one only if work is on its queues.
#[inline(always)]
pub(crate) fn find_busy(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, BUSY) as u32))
}

/// As [`find`], but only for a QP that already has a slot.
#[inline(always)]
pub(crate) fn known(qp: u64) -> Option<(*mut QpPath, *mut QpSlot)> {
    hinted(qp).or_else(|| at(search(qp, 0) as u32))
}

/// Finds the slot number of a QP without a valid hint. `moving` is 1 for [`find`], [`BUSY`] for [`find_busy`]
/// and 0 for [`known`]. In a trace the loader leaves out what this function and [`settle`] do: see `SLOTS` in
/// the loader's `load/mod.rs`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn search(qp: u64, moving: u64) -> u64 {
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
        && (moving != BUSY || of_qp!(qp, has_work(qp)))
    {
        number = settle(qp, 1) as u32;
    }
    if number < NONE_LEFT {
        // SAFETY: the place of a QP's hint is always inside the array.
        unsafe { write_volatile(hint_of(qp), number) };
    }
    u64::from(number)
}

/// Gives a QP a slot and returns its number. If a QP that moves finds no free slot, this sends a record and
/// counts one loss; it does not repeat them until the QP has found a slot.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn settle(qp: u64, moving: u64) -> u64 {
    let Some(known) = QP_INDEX.get_ptr_mut(&qp) else {
        return u64::from(UNCOUNTED);
    };
    // SAFETY: the map checked the pointer; other CPUs may write only the slot number at the same time.
    let (before, known) = unsafe { (read_volatile(&raw const (*known).slot), &mut *known) };
    let retry = before == NONE_LEFT;
    if before != AT_REST && !(retry && now() >= NEXT_TRY.load()) {
        return u64::from(before);
    }
    let number = take_slot(moving) as u32;
    let Some((path, slot)) = at(number) else {
        return left_out(qp, known, before, moving);
    };
    let since = if retry {
        slot_flag::SINCE_ATTACH
    } else {
        known.since as u32
    };
    if !of_qp!(qp, layout(path, qp, since)) {
        give_back_slot(number);
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
    // A doorbell and a completion on two CPUs may both be the QP's first event. At this point the slot has
    // all that the other CPU needs.
    if QUEUE_SLOTS.insert(&sq, &number, NOEXIST).is_err() {
        if let Some(other) = QUEUE_SLOTS.get_ptr(&sq) {
            // SAFETY: the map checked the pointer.
            let other = unsafe { *other };
            // The birth in the slot says whether it is this QP's: it was written before the entry was made.
            // The QP's address would not say it: that is 0 both while the other CPU publishes this QP and
            // while it retires an earlier one, whose entry it has yet to remove.
            // An entry with the number that this CPU has just taken is left from the slot's earlier QP.
            if other != number
                && let Some((_, theirs)) = at(other)
                // SAFETY: as above.
                && unsafe { read_volatile(&raw const (*theirs).born_ns) } == known.born_ns
            {
                give_back_slot(number);
                // A CPU that found no slot may have written over the place.
                set_place(known, other);
                return u64::from(other);
            }
        }
        // Either no program saw the end of an earlier queue at this address, and its entry is left, or the
        // map was full before.
        if QUEUE_SLOTS.insert(&sq, &number, ANY).is_err() {
            // Without the entry the end of the queue would not be counted, and another CPU could give the QP
            // a second slot.
            give_back_slot(number);
            return left_out(qp, known, before, moving);
        }
    }
    // From here on the slot does not go back to another QP, which would show this one's peer.
    of_qp!(qp, peer(qp, slot));
    publish(path, slot, qp, number);
    set_place(known, number);
    u64::from(number)
}

/// Returns the place of a QP that gets no slot. If it moves, this sends a record and counts one loss, unless
/// the QP had been left out before. Not inlined, because it is called twice.
#[inline(never)]
fn left_out(qp: u64, known: &mut QpKnown, before: u32, moving: u64) -> u64 {
    // SAFETY: the word is aligned and read whole.
    let place = unsafe { read_volatile(&raw const known.slot) };
    // Another CPU may have given the QP the last slot meanwhile.
    if moving == 0 || place != before {
        return u64::from(place);
    }
    if before != NONE_LEFT {
        set_place(known, NONE_LEFT);
        lost(loss::SLOT);
        record::uncounted(qp, known);
    }
    NEXT_TRY.store(now() + TRY_AGAIN_NS);
    u64::from(NONE_LEFT)
}

#[inline(always)]
fn set_place(known: &mut QpKnown, place: u32) {
    // SAFETY: this is one aligned word, which other CPUs read as a whole.
    unsafe { write_volatile(&raw mut known.slot, place) };
}

/// Remembers a QP from before attach, and marks it as at rest if its provider's work requests are counted.
/// Returns its slot number or one of `counters::place`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn adopt(qp: u64) -> u64 {
    let mut known = MaybeUninit::uninit();
    let known = zeroed::<QpKnown>(&mut known);
    let res = place_of(qp, &OFF_QP_RES);
    identify(known, qp, entry(&mut StructBuffer::uninit(), res));
    // A QP gets no slot here: when a modify calls this, too little stack is left to set one up.
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
    if known.slot != UNCOUNTED {
        lost(loss::REFUSED);
        // Each event of a QP that is not remembered comes here, up to a million times a second. So count a
        // loss at most every 10 ms.
        if now() >= NEXT_TRY.load() {
            NEXT_TRY.store(now() + TRY_AGAIN_NS);
            lost(loss::PLACE);
        }
    }
    u64::from(UNCOUNTED)
}

/// Remembers a QP that has just been created.
#[inline(always)]
pub(crate) fn made(known: &mut QpKnown, qp: u64) {
    place(known, qp);
    if insert(known, qp) {
        return;
    }
    // The kernel reuses addresses: the entry is that of an older QP. Either no program saw its destroy, or
    // the destroy has not returned yet.
    if let Some(old) = QP_INDEX.get_ptr(&qp) {
        // SAFETY: the map checked the pointer.
        let old = unsafe { Identity::of(qp, &*old) };
        retire(&old);
    }
    // Also where the destroy has removed the entry meanwhile.
    if insert(known, qp) {
        return;
    }
    unplace(known);
    if known.slot == NONE_LEFT {
        lost(loss::REFUSED);
        lost(loss::PLACE);
    }
}

/// Marks a QP as at rest if its provider's work requests are counted.
#[inline(always)]
fn rest(known: &mut QpKnown, qp: u64, since: u32) {
    if !counts() || !providers::counts(known.device) {
        return;
    }
    known.since = u64::from(since);
    if since != 0 {
        (known.sq_base, known.rq_base) = of_qp!(qp, consumers(qp));
    }
    known.slot = AT_REST;
}

/// Prepares a QP that has just been created for counting, if its provider's work requests are counted. The QP
/// gets a slot now if one below `EAGER_SLOTS` is free.
#[inline(always)]
fn place(known: &mut QpKnown, qp: u64) {
    rest(known, qp, 0);
    if known.slot != AT_REST {
        return;
    }
    let number = take_slot(0) as u32;
    let Some((path, _)) = at(number) else {
        return;
    };
    if of_qp!(qp, layout(path, qp, 0)) {
        known.slot = number;
    } else {
        give_back_slot(number);
        known.slot = UNCOUNTED;
    }
}

/// Takes the slot back from a QP that did not get into the index.
#[inline(always)]
fn unplace(known: &mut QpKnown) {
    if known.slot < NONE_LEFT {
        give_back_slot(known.slot);
    }
    if known.slot != UNCOUNTED {
        known.slot = NONE_LEFT;
    }
}

/// Puts a QP into the indices by address and by number, and opens its slot if it has one. False if another QP
/// has the address, or there is no room.
#[inline(always)]
fn insert(known: &QpKnown, qp: u64) -> bool {
    let key = QpnKey::new(known.device, known.qpn);
    let counted = known.slot != UNCOUNTED;
    // Without this entry no program would find the QP of a user program's CQE, so it comes first. The kernel
    // reuses QP numbers: the entry of an older QP with this number is replaced.
    if counted && QPN_INDEX.insert(&key, &qp, ANY).is_err() {
        return false;
    }
    if QP_INDEX.insert(&qp, known, NOEXIST).is_err() {
        // If the QP is there, another CPU was first, and the entry by number is its entry too.
        if counted && QP_INDEX.get_ptr(&qp).is_none() {
            let _ = QPN_INDEX.remove(&key);
            // Another CPU may have inserted the QP between the two lines above.
            if QP_INDEX.get_ptr(&qp).is_some() {
                let _ = QPN_INDEX.insert(&key, &qp, ANY);
            }
        }
        return false;
    }
    if !counted {
        return true;
    }
    if let Some((path, slot)) = at(known.slot) {
        introduce(path, slot, known);
        // SAFETY: the map checked the pointer.
        let sq = unsafe { (*path).sq };
        if sq != 0 {
            point(sq, known.slot);
        }
        publish(path, slot, qp, known.slot);
    }
    true
}

/// Entry of `ib_query_qp(qp, ...)`, which the kernel calls for each QP when user space lists QPs: remembers a
/// QP from before attach. The QP gets a slot now if many are free, else when it moves.
#[inline(always)]
pub(crate) fn asked(qp: u64) {
    if learn(qp).is_some() {
        settle(qp, 0);
    }
}

/// Returns what the programs know about a QP, and first remembers a QP from before attach. `None` if the map
/// has no room for it.
#[inline(always)]
pub(crate) fn learn(qp: u64) -> Option<*mut QpKnown> {
    QP_INDEX.get_ptr_mut(&qp).or_else(|| {
        adopt(qp);
        QP_INDEX.get_ptr_mut(&qp)
    })
}

/// Writes the identity of a slot's new QP, except its address.
#[inline(always)]
fn introduce(path: *mut QpPath, slot: *mut QpSlot, entry: &QpKnown) {
    // SAFETY: the map checked the pointers; user space zeroed the slot before it freed it, and nobody else
    // has it.
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

/// Writes the address of a slot's new QP, which marks the slot as in use.
#[inline(always)]
fn publish(path: *mut QpPath, slot: *mut QpSlot, qp: u64, number: u32) {
    // SAFETY: the map checked the pointers, and nobody else has this slot.
    let rq = unsafe {
        fence(&raw mut (*slot).born_ns);
        write_volatile(&raw mut (*slot).qp, qp);
        write_volatile(&raw mut (*path).qp, qp);
        // The place of a QP's hint is always inside the array.
        write_volatile(hint_of(qp), number);
        (*path).rq
    };
    if rq != 0 {
        point(rq, number);
    }
}

/// Makes a queue's entry in `QUEUE_SLOTS`. Without it the WRs that the driver ends with the queue are not
/// counted, so a failure is a loss.
#[inline(always)]
fn point(queue: u64, number: u32) {
    if QUEUE_SLOTS.insert(&queue, &number, ANY).is_err() {
        lost(loss::PLACE);
    }
}

/// The keys and values under which the indices have a QP: what is needed to remove it from them.
#[derive(Clone, Copy)]
pub(crate) struct Identity {
    qp: u64,
    born_ns: u64,
    slot: u32,
    device: u64,
    qpn: u32,
}

impl Identity {
    #[inline(always)]
    pub(crate) fn of(qp: u64, known: &QpKnown) -> Self {
        Self {
            qp,
            born_ns: known.born_ns,
            slot: known.slot,
            device: known.device,
            qpn: known.qpn,
        }
    }
}

/// Forgets a QP that was destroyed, unless a new QP already has its address: then [`made`] has forgotten it.
/// `known`: what the programs knew about the QP at the entry of destroy; `start_ns`: when that was.
#[inline(always)]
pub(crate) fn destroyed(qp: u64, known: &QpKnown, start_ns: u64) {
    let Some(now) = QP_INDEX.get_ptr(&qp) else {
        return;
    };
    // SAFETY: the map checked the pointer; other programs write only state, port and slot number, each whole.
    let now = unsafe { &*now };
    // The QP was unknown at the entry, so its birth there was made up. A WR that destroy flushed has then
    // made the entry, with a birth of its own. The entry of a new QP at the address would have `CREATED`.
    let met_inside = known.born_ns >= start_ns && now.born_ns >= start_ns && now.flags & flag::CREATED == 0;
    if now.born_ns == known.born_ns || met_inside {
        // Use the entry as it is now, not as it was at the entry of destroy: a WR that destroy flushed may
        // have given the QP a slot meanwhile.
        let identity = Identity::of(qp, now);
        retire(&identity);
    }
}

/// Forgets a QP. Its counters are final; user space frees the slot after reading them.
#[inline(always)]
fn retire(identity: &Identity) {
    let qp = identity.qp;
    // If a destroy and the creation of the next QP at its address both come here, the map lets one of them
    // remove the entry. A slot must not become free twice.
    if QP_INDEX.remove(&qp).is_err() || !counts() || identity.slot == UNCOUNTED {
        return;
    }
    let key = QpnKey::new(identity.device, identity.qpn);
    // If a newer QP already has the number, that QP's entry stays.
    remove_if(&QPN_INDEX, &key, qp);
    // A CPU that found no slot may have written over the place of a QP to which another CPU had just given
    // one. The hint has the number then, unless that of another QP replaced it. SAFETY: the place of a QP's
    // hint is always inside the array.
    let hint = unsafe { read_volatile(hint_of(qp)) };
    let number = if identity.slot < NONE_LEFT {
        identity.slot
    } else {
        hint
    };
    let Some((path, slot)) = at(number) else {
        return;
    };
    // The next QP at the address may have a slot already: the birth tells whose it is.
    // SAFETY: the map checked the pointers.
    let is_its = unsafe {
        read_volatile(&raw const (*path).qp) == qp
            && read_volatile(&raw const (*slot).born_ns) == identity.born_ns
    };
    if !is_its {
        return;
    }
    // SAFETY: the map checked the pointers.
    let (sq, rq) = unsafe {
        // This invalidates the hint, because a new QP without a slot may get the same address.
        write_volatile(&raw mut (*path).qp, 0);
        ((*path).sq, (*path).rq)
    };
    for queue in [sq, rq] {
        // The entry is left only if no program saw the end of the queue. The driver has freed the queue by
        // now, so a newer QP's queue may have its address: its entry stays.
        remove_if(&QUEUE_SLOTS, &queue, number);
    }
    // SAFETY: as above; after `introduce` only this function writes the flags.
    unsafe {
        let flags = &raw mut (*slot).flags;
        // User space must not see the flag before the final counts.
        fence(&raw mut (*slot).born_ns);
        write_volatile(flags, read_volatile(flags) | slot_flag::DESTROYED);
    }
    // The queue has room for every slot.
    let _ = USED_SLOTS.push(number, 0);
}

/// A QP is about to go to RESET, which empties its queues without CQEs, or to ERR, which flushes them
/// ([`Provider::breaking`]). If it is at rest and has work on its queues, it gets a slot now.
#[inline(always)]
pub(crate) fn emptying(qp: u64, reset: bool) {
    let resting = QP_INDEX
        .get_ptr(&qp)
        // SAFETY: the map checked the pointer.
        .is_some_and(|known| unsafe { read_volatile(&raw const (*known).slot) } == AT_REST);
    let found = if resting && of_qp!(qp, has_work(qp)) {
        find(qp)
    } else {
        known(qp)
    };
    let Some((path, slot)) = found else {
        return;
    };
    if reset {
        // SAFETY: the map checked the pointer.
        unsafe { write_volatile(&raw mut (*path).resetting, 1) };
    } else {
        of_qp!(qp, breaking(path, slot));
    }
}

/// A QP is about to be modified or destroyed; its queues may then be emptied without CQEs, so count the
/// flushed WRs now ([`Provider::flushed`]). Not inlined, to save stack in the entry program of a modify.
#[inline(never)]
pub(crate) fn leaving(qp: u64) {
    let Some(known) = QP_INDEX.get_ptr(&qp) else {
        return;
    };
    // SAFETY: the map checked the pointers.
    unsafe {
        if let Some((path, slot)) = at(read_volatile(&raw const (*known).slot))
            && (*path).qp == qp
        {
            of_qp!(qp, flushed(path, slot));
            (*path).flushed_at = NOT_IN_ERR;
        }
    }
}

/// Updates the slot of a QP after a successful modify. `reset`: it went to RESET; `new_psn`: the send PSN was
/// set; `broken`: it went to ERR. Not inlined: otherwise the verifier of 6.1 finds a register that was never
/// written.
#[inline(never)]
pub(crate) fn modified(qp: u64, number: u32, reset: bool, new_psn: bool, broken: bool) {
    let Some((path, slot)) = at(number) else {
        return;
    };
    // SAFETY: the map checked the pointer.
    if unsafe { read_volatile(&raw const (*path).qp) } == qp {
        // The kernel lets only one modify of a QP run at a time.
        if broken {
            of_qp!(qp, flushed(path, slot));
        }
        of_qp!(qp, modified(path, slot, reset, new_psn));
    }
}

/// Whether programs in the kernel make records of a device's work requests and probes on user programs must
/// not. Where the former also count, the QP's place among the slots shows that.
#[inline(always)]
pub(crate) fn is_left_to_kernel(device: u64) -> bool {
    !counts() && providers::records(device)
}
