//! Which number, and so which counters, a QP of a program has, from the first modify or query that shows it
//! to its destroy. Also counts hits of probes.

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::helpers::{bpf_get_smp_processor_id, bpf_probe_read_user};
use rdmatop_common::{
    counters::{USER_HITS_BITS, UserHits, loss, place::UNCOUNTED, slot_flag},
    event::flag,
};

use crate::{
    body::{Hook, enter},
    emit::lost,
    maps::{NOEXIST, enabled},
    offsets::{OFF_QP_SRQ, OFF_QP_UOBJECT, OFF_UOBJECT_HANDLE, get, get_or_zero},
    pool,
    share::caller,
    slots,
    task::{call_key, now},
    user::{
        cqs,
        maps::{
            FREE_USER, USED_USER, USER_BATCHES, USER_DESTROYS, USER_HITS, USER_INDEX, USER_NUMBERS, USER_QPS,
            USER_SLOTS, UserDestroy, UserKey,
        },
        records,
    },
    words::{add, clear, fence, remove_if},
};

/// Flags of a QP of which the programs see only the posts.
const UNKNOWN: u32 = slot_flag::NO_RNR
    | slot_flag::NO_RETRANSMITS
    | slot_flag::NO_CQES
    | slot_flag::NO_LATENCY
    | slot_flag::NO_DOORBELLS
    | slot_flag::POSTED;

#[inline(always)]
fn hits() -> Option<*mut UserHits> {
    // SAFETY: takes no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    USER_HITS.get_ptr_mut(cpu & ((1 << USER_HITS_BITS) - 1))
}

/// Counts a hit.
#[inline(always)]
pub(super) fn count_hit() {
    if let Some(hits) = hits() {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*hits).hits, 1) };
    }
}

/// Counts a hit that the programs could not count for a QP.
#[inline(always)]
pub(super) fn missed() {
    lost(loss::MISSED);
    if let Some(hits) = hits() {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*hits).missed, 1) };
    }
}

/// Takes a free number: the one retired first if user space has freed it, else one that no QP has had.
#[inline(always)]
fn take() -> Option<u32> {
    // Every number on the stack has its place in all the arrays.
    pool::reuse(&USED_USER, |number| pool::is_clean(&USER_SLOTS, number)).or_else(|| pool::take(&FREE_USER))
}

/// Entry of `_ib_modify_qp` and of `ib_query_qp`, where our program learns of a QP. When user space dumps all
/// QPs over netlink, the kernel calls `ib_query_qp` for each, which shows the QPs from before attach. Only a
/// modify (`modifies`) counts a QP that finds no room as a loss: each listing would count it anew.
#[inline(always)]
pub(crate) fn seen(qp: u64, modifies: bool) -> Option<()> {
    let known = slots::learn(qp)?;
    // SAFETY: the map checked the pointer; other programs write only state, port and slot number, each whole.
    let known = unsafe { &*known };
    // SAFETY: as above.
    let place = unsafe { read_volatile(&raw const known.slot) };
    if place != UNCOUNTED || known.flags & flag::OWNER_TASK == 0 {
        return None;
    }
    if slots::is_left_to_kernel(known.device) {
        return None;
    }
    let object: u64 = get(qp, &OFF_QP_UOBJECT)?;
    let handle: u64 = get(object, &OFF_UOBJECT_HANDLE)?;
    if handle == 0 {
        return None;
    }
    let key = UserKey::new(handle, known.owner_pid);
    if let Some(number) = USER_INDEX.get_ptr(&key) {
        // SAFETY: the map checked the pointer.
        let number = unsafe { *number };
        if is_born(number, known.born_ns) {
            return None;
        }
        // The process has freed the QP that had this handle before, and no probe saw its destroy.
        retire(number, &key);
    }
    let Some(number) = take() else {
        // No number is free: the QP's counts stay unknown.
        if modifies {
            missed();
        }
        return None;
    };
    let (slot, user) = (USER_SLOTS.get_ptr_mut(number)?, USER_QPS.get_ptr_mut(number)?);
    let mut flags = slot_flag::provider::USER | UNKNOWN;
    if known.flags & flag::CREATED == 0 {
        flags |= slot_flag::SINCE_ATTACH;
    }
    if get_or_zero::<u64>(qp, &OFF_QP_SRQ) != 0 {
        flags |= slot_flag::SRQ;
    }
    if let Some(batch) = USER_BATCHES.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer; nobody else has the number.
        unsafe { clear(batch) };
    }
    // SAFETY: the map checked the pointers; user space zeroed the slot before it freed it, and nobody else
    // has it.
    unsafe {
        (*user).handle = handle;
        (*user).tx_rejected = 0;
        (*user).rx_rejected = 0;
        (*user).hits = 0;
        (*user).probed_birth_ns = 0;
        (*slot).born_ns = known.born_ns;
        (*slot).owner_start_ns = known.owner_start_ns;
        (*slot).since_ns = now();
        (*slot).qpn = known.qpn;
        (*slot).device_index = known.device_index;
        (*slot).owner_pid = known.owner_pid;
        (*slot).flags = flags;
    }
    if records::wanted() {
        let _ = records::introduce(number, qp, known, handle);
    }
    let is_first = USER_INDEX.insert(&key, &number, NOEXIST).is_ok();
    // Without an entry by its address the QP's destroy would not find it.
    if !is_first || USER_NUMBERS.insert(&qp, &number, 0).is_err() {
        if is_first {
            let _ = USER_INDEX.remove(&key);
        }
        if records::wanted() {
            // Completions must not find the QP under a number that another QP will get.
            let _ = records::retire(number);
        }
        if let Some(first) = USER_INDEX.get_ptr(&key) {
            // Another CPU was first.
            if records::wanted() {
                // SAFETY: the map checked the pointer.
                records::find_by_qpn(unsafe { *first }, qp, known);
            }
        } else if modifies {
            // There is no room: the QP's counts stay unknown.
            missed();
        }
        // The queue has room for every number; the stack has not, if they come from the queue.
        let _ = USED_USER.push(number, 0);
        return None;
    }
    if records::wanted() {
        cqs::join(number, qp);
    }
    // SAFETY: as above; writing the address marks the slot as in use.
    unsafe { write_volatile(&raw mut (*slot).qp, qp) };
    Some(())
}

/// Whether the number belongs to the QP with this birth, or is about to: the CPU that introduces the QP
/// writes the birth before it makes the number known, and the address after that.
#[inline(always)]
fn is_born(number: u32, born_ns: u64) -> bool {
    USER_SLOTS.get_ptr(number).is_some_and(|slot| {
        // SAFETY: the map checked the pointer.
        unsafe { read_volatile(&raw const (*slot).born_ns) == born_ns }
    })
}

/// Whether the number belongs to this QP.
#[inline(always)]
fn is_of(number: u32, qp: u64, born_ns: u64) -> bool {
    USER_SLOTS.get_ptr(number).is_some_and(|slot| {
        // SAFETY: the map checked the pointer.
        unsafe { read_volatile(&raw const (*slot).qp) == qp && (*slot).born_ns == born_ns }
    })
}

/// Retires a number whose QP no longer exists. User space frees the number after it has read the slot.
#[inline(always)]
fn retire(number: u32, key: &UserKey) {
    // A modify and a query of the next QP with this handle may both come here. The map lets one of them
    // remove the entry: a number must not become free twice.
    let is_its = USER_INDEX
        .get_ptr(key)
        // SAFETY: the map checked the pointer.
        .is_some_and(|known| unsafe { *known } == number);
    if !is_its || USER_INDEX.remove(key).is_err() {
        return;
    }
    if records::wanted() {
        let _ = records::retire(number);
    }
    if let Some(slot) = USER_SLOTS.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer; only this function writes the flags by now.
        unsafe {
            let qp = read_volatile(&raw const (*slot).qp);
            // If a newer QP already has the address, that QP's entry stays.
            remove_if(&USER_NUMBERS, &qp, number);
            let flags = &raw mut (*slot).flags;
            // User space must not see the flag before the final counts.
            fence(&raw mut (*slot).born_ns);
            write_volatile(flags, read_volatile(flags) | slot_flag::DESTROYED);
        }
        // There is room for every number.
        let _ = USED_USER.push(number, 0);
    }
}

/// Entry of `ib_destroy_qp_user(qp, udata)`. By its return another QP may have the address.
#[inline(always)]
pub(crate) fn destroying(qp: u64) -> Option<()> {
    // SAFETY: the map checked the pointer.
    let number = unsafe { *USER_NUMBERS.get_ptr(&qp)? };
    // SAFETY: as above.
    let born_ns = unsafe { (*USER_SLOTS.get_ptr(number)?).born_ns };
    let call = UserDestroy {
        qp,
        born_ns,
        number: u64::from(number),
    };
    if !enter(&USER_DESTROYS, Hook::UserDestroy, &call, loss::MISSED) {
        // The return finds nothing, so the QP keeps its number.
        missed();
    }
    Some(())
}

/// Return of `ib_destroy_qp_user`.
#[inline(always)]
pub(crate) fn destroyed(rc: i32) -> Option<()> {
    let key = call_key(Hook::UserDestroy);
    // SAFETY: the map checked the pointer; no other thread has this key.
    let call = unsafe { *USER_DESTROYS.get_ptr(&key)? };
    let _ = USER_DESTROYS.remove(&key);
    let number = call.number as u32;
    if rc != 0 || !is_of(number, call.qp, call.born_ns) {
        return None;
    }
    // SAFETY: the map checked the pointers.
    let key = unsafe {
        UserKey::new(
            (*USER_QPS.get_ptr(number)?).handle,
            (*USER_SLOTS.get_ptr(number)?).owner_pid,
        )
    };
    retire(number, &key);
    Some(())
}

/// A call of a probed function.
#[derive(Clone, Copy)]
pub(crate) struct Entered {
    /// The address of the probe: the function's first instruction, or the one behind its landing pad.
    pub(crate) at: u64,
    /// The thread's stack pointer.
    pub(crate) stack: u64,
    /// What user space says of the probe: opcode or kind of data in bits 0 to 15, the offset of a pointer in
    /// bits 16 to 31 (see [`Entered::is_by`]), and that of a member from bit 32 on.
    pub(crate) cookie: u64,
}

/// The length of a landing pad (`endbr64` of x86-64), which probes are placed behind.
const LANDING_PAD: u64 = 4;

impl Entered {
    /// Whether the program came here by the pointer of its own QP or CQ at `base`, whose offset the cookie
    /// has. Which function is which is the word of the program that was there first. Of another program's
    /// call it may be false, and then counts nothing.
    #[inline(always)]
    pub(super) fn is_by(&self, base: u64) -> bool {
        let Some(named) = word(base + (self.cookie >> 16 & 0xffff)) else {
            missed();
            return false;
        };
        named == self.at || named + LANDING_PAD == self.at
    }

    /// As [`Entered::is_by`], by a pointer of the context with which a QP or CQ begins.
    #[inline(always)]
    pub(super) fn is_by_context_of(&self, object: u64) -> bool {
        let Some(context) = word(object) else {
            missed();
            return false;
        };
        self.is_by(context)
    }
}

#[inline(always)]
fn word(address: u64) -> Option<u64> {
    // SAFETY: the helper checks the address itself.
    unsafe { bpf_probe_read_user(address as *const u64) }.ok()
}

/// Counts a hit at the entry of a provider's function. Returns the number of the QP, `None` if this process
/// has no counted QP at the address, or has not come here by that QP's pointer (`is_by`). Such a hit is not
/// the QP's: the probe may be there by the word of another program.
#[inline(always)]
pub(super) fn hit(qp: u64, is_by: impl FnOnce() -> bool) -> Option<u32> {
    if !enabled() {
        return None;
    }
    count_hit();
    let key = UserKey::new(qp, caller());
    let Some(number) = USER_INDEX.get_ptr(&key) else {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*hits()?).unmatched, 1) };
        return None;
    };
    // SAFETY: the map checked the pointer.
    let number = unsafe { *number };
    if !is_by() {
        return None;
    }
    // SAFETY: as above.
    unsafe { add(&raw mut (*USER_QPS.get_ptr_mut(number)?).hits, 1) };
    Some(number)
}
