//! Calls of a provider's `post_send` and `post_recv`.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::helpers::{bpf_probe_read_user, generated};
use rdmatop_common::{
    counters::{OPCODES, QpSlot},
    ib::{RECV, opcode::has_data},
    wr,
};

use crate::{
    body::{Hook, calls::Calls},
    task::now,
    user::{
        maps::{USER_CALLS, USER_ENTRIES, USER_QPS, USER_REST, USER_SLOTS, UserCall},
        qps::{Entered, count_hit, hit, missed},
        records::{self, Request},
        sends,
    },
    words::{add, each},
};

/// How many WRs of a list are read. A longer list counts as a loss.
const WRS: u32 = 4096;

/// How many segments of a WR are read without `bpf_loop`, and how many in all.
const FEW: u32 = 4;
const SEGMENTS: u32 = 1024;

/// Size of a `struct ibv_sge`, and the offset of its length.
const SGE: u64 = 16;
const LENGTH: u64 = 8;

/// `IBV_WR_DRIVER1`, whose meaning only the provider knows. In the kernel another opcode has this number.
const DRIVER1: u32 = 11;

/// The opcode `IBV_WR_FLUSH`, which is above `DRIVER1` and has a counter of its own.
const FLUSH: u32 = 14;

const POSTS: Calls<UserCall> = Calls {
    entries: &USER_CALLS,
    number: USER_ENTRIES,
    rest: &USER_REST,
};

/// Entry of a provider's `post_send` or `post_recv(qp, wr, bad_wr)`. Of a program's own function that calls
/// the provider's only the former is what its context names.
#[inline(always)]
pub(crate) fn posting(hook: Hook, qp: u64, list: u64, bad: u64, at: &Entered) -> Option<()> {
    let number = hit(qp, || at.is_by_context_of(qp))?;
    let call = UserCall {
        number: u64::from(number),
        list,
        bad,
        at_ns: if records::wanted() { now() } else { 0 },
        stack: at.stack,
    };
    // No program saw the return of the earlier call, or the thread posts to another QP inside it.
    let replace = |earlier: &UserCall| {
        missed();
        if records::wanted() {
            if hook == Hook::UserSend {
                sends::doubt(earlier.number as u32);
            }
            records::unseen();
        }
    };
    if POSTS.remember(hook, &call, |call| call.at_ns, replace) {
        if records::wanted() && hook == Hook::UserSend {
            sends::enter(call.number as u32);
        }
        return Some(());
    }
    // The return finds nothing, as it does where the QP is not known, so the loss is counted here.
    missed();
    if records::wanted() {
        if hook == Hook::UserSend {
            sends::doubt(call.number as u32);
        }
        records::unseen();
    }
    Some(())
}

/// Return of a provider's `post_send` or `post_recv`, which was entered with this stack pointer.
#[inline(always)]
pub(crate) fn posted(hook: Hook, rc: i32, stack: u64) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let call = POSTS.recall(hook, &mut call, |call| call.stack == stack)?;
    let known = returned(hook, rc, call);
    if records::wanted() && hook == Hook::UserSend {
        if known.is_none() {
            sends::doubt(call.number as u32);
        }
        sends::leave(call.number as u32);
    }
    Some(())
}

/// Counts the work requests of a call that has returned; `None` if some could not be read.
#[inline(always)]
fn returned(hook: Hook, rc: i32, call: &UserCall) -> Option<()> {
    count_hit();
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
        sends: u64::from(hook == Hook::UserSend),
        unread: 0,
        number: call.number,
        at_ns: call.at_ns,
    };
    if records::wanted() {
        let _ = records::look(number);
    }
    each(WRS, one, &mut list);
    if list.next != 0 || list.unread != 0 {
        // The list was too long, or a part of it could not be read.
        missed();
        if records::wanted() && list.next != 0 {
            records::unseen();
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
        if records::wanted() {
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

/// Adds up the lengths of a send's segments.
#[inline(always)]
fn sum(segments: u64, number: u32, opcode: u32) -> Segments {
    if has_data(opcode) {
        Segments::of(segments, number)
    } else {
        Segments::default()
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
                sends::doubt((*list).number as u32);
                records::unseen();
                return 1;
            };
            request.wr.send(opcode, how as u32, (how >> 32) as u32);
            if records::is_datagram((*list).number as u32) {
                request.wr.dest_qpn = to as u32;
            }
        } else {
            of = Segments::of(segments, number);
            request.wr.opcode = RECV;
            request.wr.flags |= u32::from(wr::flag::RECEIVE);
        }
        request.wr.carries(of.bytes, of.unread);
        let _ = records::report((*list).number as u32, &raw const *request);
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
            each(number - FEW, segment, &mut sum);
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
