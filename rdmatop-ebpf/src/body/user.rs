//! Work requests of programs whose posts do not enter the kernel, by probes on the provider's functions.
//!
//! The kernel keeps the address of each user `struct ibv_qp` (`ib_uobject.user_handle`). By process and
//! address a probe finds the QP, and from the address user space finds the functions to probe. The layouts of
//! work requests are those that are compiled into applications (rdma-core, libibverbs/verbs.h). A post is
//! counted at its return, when it is known how much of the list the provider accepted; the caller's list
//! still exists then.

use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_smp_processor_id, bpf_loop, bpf_probe_read_user, generated,
};
use rdmatop_common::{
    counters::{OPCODES, QpSlot, USER_HITS_BITS, UserHits, loss, place::UNCOUNTED, slot_flag},
    event::flag,
    wr::{self, RECV},
};

use super::{
    calls::Calls,
    enter_or, hook, user_cqs, user_posts,
    user_work::{self, Request},
};
use crate::{
    emit::lost,
    maps::{NOEXIST, enabled},
    offsets::{OFF_QP_SRQ, OFF_QP_UOBJECT, OFF_UOBJECT_HANDLE, get, get_or_zero},
    pool, qps,
    task::{call_key, now},
    user_maps::{
        Entered, FREE_USER, USED_USER, USER_BATCHES, USER_CALLS, USER_DESTROYS, USER_HITS, USER_INDEX,
        USER_NUMBERS, USER_PLACES, USER_QPS, USER_REST, USER_SLOTS, UserCall, UserDestroy, UserKey,
    },
    words::{add, clear, fence},
};

/// How many WRs of a list are read. A longer list counts as a loss.
const WRS: u32 = 4096;
/// How many segments of a WR are read without `bpf_loop`, and how many in all.
const FEW: u32 = 4;
const SEGMENTS: u32 = 1024;
/// Size of a `struct ibv_sge`, and the offset of its length.
const SGE: u64 = 16;
const LENGTH: u64 = 8;

/// `IBV_WR_LOCAL_INV` and `IBV_WR_BIND_MW`, which have no data.
const LOCAL_INV: u32 = 7;
const BIND_MW: u32 = 8;
/// `IBV_WR_DRIVER1`, whose meaning only the provider knows. In the kernel another opcode has this number.
const DRIVER1: u32 = 11;
/// `IBV_WR_FLUSH`.
const FLUSH: u32 = 14;

/// Flags of a QP of which the programs see only the posts.
const UNKNOWN: u32 = slot_flag::NO_RNR
    | slot_flag::NO_RETRANSMITS
    | slot_flag::NO_CQES
    | slot_flag::NO_LATENCY
    | slot_flag::NO_DOORBELLS
    | slot_flag::POSTED;

pub(super) const POSTS: Calls<UserCall> = Calls {
    places: &USER_CALLS,
    number: USER_PLACES,
    rest: &USER_REST,
};

#[inline(always)]
fn process() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

#[inline(always)]
pub(super) fn hits() -> Option<*mut UserHits> {
    // SAFETY: takes no argument.
    let cpu = unsafe { bpf_get_smp_processor_id() };
    USER_HITS.get_ptr_mut(cpu & ((1 << USER_HITS_BITS) - 1))
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
    if let Ok(Some(number)) = USED_USER.pop() {
        let slot = USER_SLOTS.get_ptr(number)?;
        // SAFETY: the map checked the pointer; user space writes the word whole, and last.
        if unsafe { read_volatile(&raw const (*slot).qp) } == 0 {
            return Some(number);
        }
        // The queue has room for it, because this CPU has just popped it.
        let _ = USED_USER.push(number, 0);
    }
    // Every number on the stack has its place in all the arrays.
    pool::take(&FREE_USER)
}

/// Entry of `_ib_modify_qp` and of `ib_query_qp`, where our program learns of a QP. When user space dumps all
/// QPs over netlink, the kernel calls `ib_query_qp` for each, which shows the QPs from before attach. Only a
/// modify (`modifies`) counts a QP that finds no room as a loss: each listing would count it anew.
#[inline(always)]
pub(crate) fn seen(qp: u64, modifies: bool) -> Option<()> {
    let known = qps::learn(qp)?;
    // SAFETY: the map checked the pointer; other programs write only state, port and slot number, each whole.
    let known = unsafe { &*known };
    // SAFETY: as above.
    let place = unsafe { read_volatile(&raw const known.slot) };
    if place != UNCOUNTED || known.flags & flag::OWNER_TASK == 0 {
        return None;
    }
    if qps::is_left_to_kernel(known.device) {
        return None;
    }
    let object: u64 = get(qp, &OFF_QP_UOBJECT)?;
    let handle: u64 = get(object, &OFF_UOBJECT_HANDLE)?;
    if handle == 0 {
        return None;
    }
    let key = UserKey {
        handle,
        pid: known.owner_pid,
        reserved: 0,
    };
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
        (*user).probed_birth_ns = 0;
        (*slot).born_ns = known.born_ns;
        (*slot).owner_start_ns = known.owner_start_ns;
        (*slot).since_ns = now();
        (*slot).qpn = known.qpn;
        (*slot).device_index = known.device_index;
        (*slot).owner_pid = known.owner_pid;
        (*slot).flags = flags;
    }
    if user_work::wanted() {
        let _ = user_work::introduce(number, qp, known, handle);
    }
    let is_first = USER_INDEX.insert(&key, &number, NOEXIST).is_ok();
    // Without an entry by its address the QP's destroy would not find it.
    if !is_first || USER_NUMBERS.insert(&qp, &number, 0).is_err() {
        if is_first {
            let _ = USER_INDEX.remove(&key);
        }
        if user_work::wanted() {
            // Completions must not find the QP under a number that another QP will get.
            let _ = user_work::retire(number);
        }
        if let Some(first) = USER_INDEX.get_ptr(&key) {
            // Another CPU was first.
            if user_work::wanted() {
                // SAFETY: the map checked the pointer.
                user_work::find_by_qpn(unsafe { *first }, qp, known);
            }
        } else if modifies {
            // There is no room: the QP's counts stay unknown.
            missed();
        }
        // The queue has room for every number; the stack has not, if they come from the queue.
        let _ = USED_USER.push(number, 0);
        return None;
    }
    if user_work::wanted() {
        user_cqs::join(number, qp);
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
    if user_work::wanted() {
        let _ = user_work::retire(number);
    }
    if let Some(slot) = USER_SLOTS.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer; only this function writes the flags by now.
        unsafe {
            let qp = read_volatile(&raw const (*slot).qp);
            // If a newer QP already has the address, that QP's entry stays.
            if let Some(owner) = USER_NUMBERS.get_ptr(&qp)
                && *owner == number
            {
                let _ = USER_NUMBERS.remove(&qp);
            }
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
    if !enter_or(&USER_DESTROYS, hook::USER_DESTROY, &call, loss::MISSED) {
        // The return finds nothing, so the QP keeps its number.
        missed();
    }
    Some(())
}

/// Return of `ib_destroy_qp_user`.
#[inline(always)]
pub(crate) fn destroyed(rc: i32) -> Option<()> {
    let key = call_key(hook::USER_DESTROY);
    // SAFETY: the map checked the pointer; no other thread has this key.
    let call = unsafe { *USER_DESTROYS.get_ptr(&key)? };
    let _ = USER_DESTROYS.remove(&key);
    let number = call.number as u32;
    if rc != 0 || !is_of(number, call.qp, call.born_ns) {
        return None;
    }
    // SAFETY: the map checked the pointers.
    let key = unsafe {
        UserKey {
            handle: (*USER_QPS.get_ptr(number)?).handle,
            pid: (*USER_SLOTS.get_ptr(number)?).owner_pid,
            reserved: 0,
        }
    };
    retire(number, &key);
    Some(())
}

/// Counts a hit at the entry of a provider's function. Returns the number of the QP, `None` if this process
/// has no counted QP at the address.
#[inline(always)]
pub(super) fn hit(qp: u64) -> Option<u32> {
    if !enabled() {
        return None;
    }
    let hits = hits()?;
    // SAFETY: the map checked the pointer.
    unsafe { add(&raw mut (*hits).hits, 1) };
    let key = UserKey {
        handle: qp,
        pid: process(),
        reserved: 0,
    };
    let Some(number) = USER_INDEX.get_ptr(&key) else {
        // SAFETY: as above.
        unsafe { add(&raw mut (*hits).unmatched, 1) };
        return None;
    };
    // SAFETY: the map checked the pointer.
    Some(unsafe { *number })
}

/// Whether a thread made this call inside the earlier one, which has not returned: a function that wraps the
/// provider's calls it, or jumps to it. If both entered the same function, no program saw the return of the
/// earlier one, or a signal handler posts while it runs.
#[inline(always)]
fn is_within(call: Entered, earlier: Entered) -> bool {
    call.function != earlier.function && call.stack <= earlier.stack
}

/// Entry of a provider's `post_send` or `post_recv(qp, wr, bad_wr)`. A call inside another one takes its
/// place: the provider's own call says what was posted, and the wrapper's return then finds nothing to count.
#[inline(always)]
pub(crate) fn posting(hook: u32, qp: u64, list: u64, bad: u64, at: Entered) -> Option<()> {
    let call = UserCall {
        number: u64::from(hit(qp)?),
        list,
        bad,
        at_ns: if user_work::wanted() { now() } else { 0 },
        at,
    };
    let replace = |earlier: &UserCall| {
        if !is_within(call.at, earlier.at) {
            missed();
            if user_work::wanted() {
                user_work::unseen();
            }
        } else if user_work::wanted() && hook == hook::USER_SEND {
            user_posts::leave(earlier.number as u32);
        }
    };
    if POSTS.remember_or(hook, &call, replace) {
        if user_work::wanted() && hook == hook::USER_SEND {
            user_posts::enter(call.number as u32);
        }
        return Some(());
    }
    // The return finds nothing, as it does where the QP is not known, so the loss is counted here.
    missed();
    if user_work::wanted() {
        if hook == hook::USER_SEND {
            user_posts::doubt(call.number as u32);
        }
        user_work::unseen();
    }
    Some(())
}

/// Return of a provider's `post_send` or `post_recv`.
#[inline(always)]
pub(crate) fn posted(hook: u32, rc: i32) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let call = POSTS.recall(hook, &mut call)?;
    let known = returned(hook, rc, call);
    if user_work::wanted() && hook == hook::USER_SEND {
        if known.is_none() {
            user_posts::doubt(call.number as u32);
        }
        user_posts::leave(call.number as u32);
    }
    Some(())
}

/// Counts the work requests of a call that has returned; `None` if some could not be read.
#[inline(always)]
fn returned(hook: u32, rc: i32, call: &UserCall) -> Option<()> {
    let hits = hits()?;
    // SAFETY: the map checked the pointer.
    unsafe { add(&raw mut (*hits).hits, 1) };
    let number = call.number as u32;
    let (slot, user) = (USER_SLOTS.get_ptr_mut(number)?, USER_QPS.get_ptr_mut(number)?);
    // `u64::MAX` is no work request's address: nothing was rejected.
    let mut stop = u64::MAX;
    if rc != 0 {
        // SAFETY: the helper checks the address itself.
        let Ok(bad) = (unsafe { bpf_probe_read_user(call.bad as *const u64) }) else {
            missed();
            return None;
        };
        // A provider that names no rejected work request has accepted none.
        stop = if bad == 0 { call.list } else { bad };
    }
    let mut list = List {
        slot,
        next: call.list,
        stop,
        accepted: 0,
        rejected: 0,
        sends: u64::from(hook == hook::USER_SEND),
        unread: 0,
        number: call.number,
        at_ns: call.at_ns,
    };
    if user_work::wanted() {
        let _ = user_work::look(number);
    }
    // SAFETY: the list outlives the call.
    unsafe {
        bpf_loop(WRS, one as *mut c_void, (&raw mut list).cast::<c_void>(), 0);
    }
    if list.next != 0 || list.unread != 0 {
        // The list was too long, or a part of it could not be read.
        missed();
        if user_work::wanted() && list.next != 0 {
            user_work::unseen();
        }
    }
    let whole = list.next == 0;
    // SAFETY: the map checked the pointers.
    unsafe {
        if list.sends != 0 {
            add(&raw mut (*slot).tx_posted, list.accepted);
            if list.rejected != 0 {
                add(&raw mut (*user).tx_rejected, list.rejected);
            }
        } else {
            add(&raw mut (*slot).rx_posted, list.accepted);
            if list.rejected != 0 {
                add(&raw mut (*user).rx_rejected, list.rejected);
            }
        }
    }
    whole.then_some(())
}

/// State of a walk over a list of work requests.
struct List {
    slot: *mut QpSlot,
    /// Address of the next work request; 0 at the end.
    next: u64,
    /// Address of the first work request that was not accepted.
    stop: u64,
    accepted: u64,
    rejected: u64,
    /// 1 for sends, whose opcodes and bytes are counted.
    sends: u64,
    /// Not 0 if the length of a segment could not be read.
    unread: u64,
    /// For records: the QP's number, and when the program called.
    number: u64,
    at_ns: u64,
}

/// Visits one work request. `struct ibv_send_wr` and `struct ibv_recv_wr` both begin with id, next, segments
/// and the number of segments; in a send the opcode follows.
unsafe extern "C" fn one(_turn: u32, list: *mut List) -> i64 {
    // SAFETY: the list is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let at = (*list).next;
        if at == 0 {
            return 1;
        }
        let Ok([wr_id, next, segments, what]) = bpf_probe_read_user(at as *const [u64; 4]) else {
            return 1;
        };
        (*list).next = next;
        if at == (*list).stop {
            // The next one is rejected too. Testing `rejected` instead would not work: see `UserWork::zero`.
            (*list).stop = next;
            (*list).rejected += 1;
            return 0;
        }
        (*list).accepted += 1;
        if user_work::wanted() {
            (*list).unread |= record(list, at, wr_id, segments, what);
        } else if (*list).sends != 0 {
            let (number, opcode) = (what as u32, (what >> 32) as u32);
            let sum = sum(segments, number, opcode);
            count((*list).slot, opcode, &sum);
            (*list).unread |= sum.unread;
        }
    }
    0
}

/// The bytes of a send.
#[inline(always)]
fn sum(segments: u64, number: u32, opcode: u32) -> Segments {
    if opcode == LOCAL_INV || opcode == BIND_MW {
        Segments::default()
    } else {
        Segments::of(segments, number)
    }
}

/// Counts one work request of a list and makes a record of it; returns 0 if the lengths of all segments could
/// be read. A `struct ibv_send_wr` has its flags at offset 32, immediate data at 36 and, for a datagram, the
/// QP number of the destination at 48.
#[inline(always)]
unsafe fn record(list: *const List, at: u64, wr_id: u64, segments: u64, what: u64) -> u64 {
    let (number, opcode) = (what as u32, (what >> 32) as u32);
    let mut place = MaybeUninit::uninit();
    // SAFETY: the caller's pointer is checked; the helper checks the address itself.
    unsafe {
        let request = Request::posted(&mut place, (*list).at_ns, wr_id);
        let of;
        if (*list).sends != 0 {
            of = sum(segments, number, opcode);
            count((*list).slot, opcode, &of);
            let Ok([how, _, to]) = bpf_probe_read_user((at + 32) as *const [u64; 3]) else {
                user_posts::doubt((*list).number as u32);
                user_work::unseen();
                return 1;
            };
            request.send(opcode, how as u32, (how >> 32) as u32);
            if user_work::is_datagram((*list).number as u32) {
                request.dest_qpn = to as u32;
            }
        } else {
            of = Segments::of(segments, number);
            request.opcode = RECV;
            request.flags |= u32::from(wr::flag::RECEIVE);
        }
        request.carries(of.bytes, of.unread);
        let _ = user_work::report((*list).number as u32, &raw const *request);
        of.unread
    }
}

/// Counts opcode and bytes of a send. Several threads may do this for one QP at once, because after the
/// return they do not hold the provider's lock.
#[inline(always)]
unsafe fn count(slot: *mut QpSlot, opcode: u32, sum: &Segments) {
    let class = class(opcode);
    // SAFETY: the caller's pointer is checked; the verifier sees the index masked.
    unsafe {
        add((&raw mut (*slot).ops).cast::<u64>().add(class), 1);
        add((&raw mut (*slot).op_bytes).cast::<u64>().add(class), sum.bytes);
        add(&raw mut (*slot).tx_bytes, sum.bytes);
    }
}

/// Index of the counter for an opcode.
#[inline(always)]
pub(super) fn class(opcode: u32) -> usize {
    let class = if opcode < DRIVER1 || opcode == FLUSH {
        opcode as usize
    } else {
        OPCODES - 1
    };
    class & (OPCODES - 1)
}

/// State of a walk over the segments of a work request, or over the buffers of inline data. Both begin with
/// an address, followed by the length.
#[derive(Default)]
pub(super) struct Segments {
    /// Address of the next length.
    next: u64,
    pub(super) bytes: u64,
    /// Not 0 if a length could not be read.
    pub(super) unread: u64,
}

impl Segments {
    #[inline(always)]
    pub(super) fn of(list: u64, number: u32) -> Self {
        let mut sum = Self {
            next: list + LENGTH,
            bytes: 0,
            unread: u64::from(number > SEGMENTS),
        };
        let number = if number < SEGMENTS { number } else { SEGMENTS };
        for turn in 0..FEW {
            if turn >= number {
                break;
            }
            sum.add_next();
        }
        if number > FEW {
            // SAFETY: the sum outlives the call.
            unsafe {
                bpf_loop(
                    number - FEW,
                    segment as *mut c_void,
                    (&raw mut sum).cast::<c_void>(),
                    0,
                );
            }
        }
        sum
    }

    #[inline(always)]
    fn add_next(&mut self) {
        let mut length = 0_u32;
        // SAFETY: the helper checks the address itself, and writes zeroes where it cannot read.
        let rc = unsafe {
            generated::bpf_probe_read_user(
                (&raw mut length).cast::<c_void>(),
                size_of::<u32>() as u32,
                self.next as *const c_void,
            )
        };
        // There is no branch, because the verifier would follow both sides for each segment.
        self.bytes += u64::from(length);
        self.unread |= rc.cast_unsigned();
        self.next += SGE;
    }
}

unsafe extern "C" fn segment(_turn: u32, sum: *mut Segments) -> i64 {
    // SAFETY: the sum is on the caller's stack.
    unsafe { (*sum).add_next() };
    0
}
