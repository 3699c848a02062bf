//! Sends of programs whose ends no program of ours has seen yet. They give the record of an end the time of
//! its post, and the kind and bytes of the request, which a completion does not name.
//!
//! A completion names its request only by `wr_id`, which need not be unique. The order tells which request it
//! is, because a send queue finishes in order. That is certain only if all of the following holds. If it does
//! not, the records of the QP's ends have nothing from their posts until the QP goes through RESET:
//!
//! * A program of ours has seen every post since the QP's send queue was last empty, so the QP's functions
//!   were probed before that (`UserQp::probed_ns`).
//! * One thread posts. If two threads post, the order of their requests in the queue is not known.
//! * One thread polls. If two threads poll, their completions may reach this code in another order.
//! * No completion contradicts the order. These do: a completion without a post, one of another kind than its
//!   post, and one behind a request that asked for a completion and has none.
//!
//! A QP may complete each request, also those that do not ask for it, and the kernel does not record whether
//! it does. So if two requests have the same `wr_id`, and the first does not ask for a completion, it is not
//! certain which of them a completion is for, unless earlier completions have shown what the QP does.
//!
//! The poster writes `sends`; the poller writes `ended` and `signals`. A request can end before the call that
//! posts it returns: then the poller leaves a note (`early`), and the poster does not remember that post.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::bpf_get_current_pid_tgid;
use rdmatop_common::{
    ib::{qp_type::DRIVER, state},
    wr::{NO_OPCODE, flag},
};

use crate::{
    task::now,
    user::{
        maps::{USER_QPS, USER_SLOTS, USER_WORK, UserWork, follow, signals},
        records::Request,
    },
    words::{add, add_in_order, copy, each, fence, zeroed},
    wr_maps::{Outstanding, WR_OUTSTANDING, WrKey},
};

/// How many posts of a QP are remembered.
const DEPTH: u64 = 4096;
/// -1: `add` gives one back with it.
const BACK: u64 = u64::MAX;
/// The `IBV_WC_*` of a successful request by its `IBV_WR_*`, four bits each.
const COMPLETES_AS: u64 = 0x0705_6432_0011;
/// Number of request kinds in [`COMPLETES_AS`].
const KINDS: u32 = 11;

/// The key of a post: the QP's number. SoftRoCE's posts are in this table by address, which is never so
/// small.
#[inline(always)]
fn key(number: u32, nth: u64) -> WrKey {
    WrKey {
        qp: u64::from(number),
        wr: nth,
    }
}

/// A modify moves a QP to state `to`. Until RTS its send queue is empty. The connection manager of iWARP
/// makes that last step without a modify, so `begun_ns` is the time of the last modify before the first post.
#[inline(always)]
pub(super) unsafe fn moves(number: u32, work: *mut UserWork, to: u32) {
    // SAFETY: the caller has the pointer from the map; nobody posts to a QP while it is in these states.
    unsafe {
        if to > state::RTS || (to == state::RTS && (*work).is_empty == 0) {
            return;
        }
        (*work).is_empty = u32::from(to < state::RTS);
        if to == state::RESET || (*work).follow == follow::NOT_BEGUN {
            forget_all(number, work);
            (*work).ended = (*work).sends;
            (*work).early = 0;
            (*work).signals = signals::UNKNOWN;
            (*work).poster = 0;
            (*work).poller = 0;
            // No call is in flight now: one that still counts is one whose return no program saw.
            write_volatile(&raw mut (*work).flying, 0);
            let next = if to == state::RESET {
                follow::NOT_BEGUN
            } else {
                follow::FOLLOWED
            };
            write_volatile(&raw mut (*work).follow, next);
        }
        if (*work).poster == 0 {
            write_volatile(&raw mut (*work).begun_ns, now());
        }
    }
}

/// Whether posts of the QP are to be remembered.
#[inline(always)]
unsafe fn follows(work: *const UserWork) -> bool {
    // SAFETY: the caller's pointer is that of the map.
    unsafe { read_volatile(&raw const (*work).follow) == follow::FOLLOWED }
}

#[inline(always)]
unsafe fn is_unsure(work: *mut UserWork) {
    // SAFETY: as above.
    unsafe {
        if follows(work) {
            write_volatile(&raw mut (*work).follow, follow::UNSURE);
        }
    }
}

/// Notes that a request of the QP was not seen, or not understood.
#[inline(always)]
pub(super) fn doubt(number: u32) {
    if let Some(work) = USER_WORK.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer.
        unsafe { is_unsure(work) };
    }
}

/// A thread enters a function that posts.
#[inline(always)]
pub(super) fn enter(number: u32) {
    let Some(work) = USER_WORK.get_ptr_mut(number) else {
        return;
    };
    let thread = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the map checked the pointer.
    unsafe {
        let poster = read_volatile(&raw const (*work).poster);
        // A call in flight is that of another thread, or no program saw its return.
        if (poster != 0 && poster != thread) || read_volatile(&raw const (*work).flying) != 0 {
            is_unsure(work);
        }
        write_volatile(&raw mut (*work).poster, thread);
        add(&raw mut (*work).flying, 1);
    }
}

/// A call of a function that posts has returned.
#[inline(always)]
pub(super) fn leave(number: u32) {
    if let Some(work) = USER_WORK.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer.
        unsafe {
            if read_volatile(&raw const (*work).flying) != 0 {
                add(&raw mut (*work).flying, BACK);
            }
        }
    }
}

/// Counts the send that a program has posted as the `nth` on a QP, and remembers it. Not inlined, so that it
/// does not enlarge the caller's stack frame.
#[inline(never)]
pub(super) fn remember(number: u32, nth: u64, request: *const Request) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer, and the caller's pointer is to a request.
    unsafe {
        let sends = &raw mut (*work).sends;
        if !follows(work) {
            add(sends, 1);
            if read_volatile(&raw const (*work).follow) == follow::UNSURE {
                forget_all(number, work);
                write_volatile(&raw mut (*work).follow, follow::FORGOTTEN);
            }
            return None;
        }
        let post = &(*request).wr;
        let is_deep = nth.wrapping_sub(read_volatile(&raw const (*work).ended)) >= DEPTH;
        if is_deep || WR_OUTSTANDING.insert(&key(number, nth), post, 0).is_err() {
            is_unsure(work);
        }
        add_in_order(sends, 1);
        let early = &raw mut (*work).early;
        if read_volatile(early) != 0 && read_volatile(&raw const (*work).early_id) == post.wr_id {
            if post.flags & u32::from(flag::SIGNALED) == 0 {
                is_unsure(work);
            }
            let _ = WR_OUTSTANDING.remove(&key(number, nth));
            add(early, BACK);
        }
    }
    Some(())
}

/// State of a search for the post of an end.
struct Search {
    number: u64,
    wr_id: u64,
    next: u64,
    /// Two posts with this `wr_id`, as 1 more than their number, 0 for none: the one found, and the first
    /// that asks for no completion.
    found: u64,
    unasked: u64,
    /// Bits of [`mode`].
    mode: u64,
    /// Bits of [`passed`].
    passed: u64,
}

mod mode {
    /// The QP finishes in any order.
    pub(super) const ANY: u64 = 1;
    /// Each request makes a completion.
    pub(super) const ALL: u64 = 2;
    /// Only requests that ask for a completion make one, and the end to find is a success.
    pub(super) const ASKED: u64 = 4;
}

mod passed {
    /// The requests before the one found include some that ask for no completion, and some that ask for one.
    pub(super) const UNASKED: u64 = 1;
    pub(super) const ASKED: u64 = 2;
    /// More than one request could be meant.
    pub(super) const SEVERAL: u64 = 4;
}

unsafe extern "C" fn search(_turn: u32, search: *mut Search) -> i64 {
    // SAFETY: the search is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let at = (*search).next;
        (*search).next = at + 1;
        let Some(post) = WR_OUTSTANDING.get_ptr(&key((*search).number as u32, at)) else {
            return 0;
        };
        let asks = (*post).flags & u32::from(flag::SIGNALED) != 0;
        let is_it = (*post).wr_id == (*search).wr_id;
        if (*search).mode & mode::ANY != 0 {
            if is_it && (*search).found != 0 {
                (*search).passed |= passed::SEVERAL;
            } else if is_it {
                (*search).found = at + 1;
            }
            return 0;
        }
        if is_it && (asks || (*search).mode & mode::ALL != 0) {
            (*search).found = at + 1;
            return 1;
        }
        if is_it && (*search).mode & mode::ASKED == 0 {
            if (*search).unasked == 0 {
                (*search).unasked = at + 1;
            } else {
                (*search).passed |= passed::SEVERAL;
            }
        } else if (*search).unasked == 0 {
            (*search).passed |= if asks { passed::ASKED } else { passed::UNASKED };
        }
    }
    0
}

/// Finds the post of an end. Returns 1 more than its number, 0 if there is none, and `None` if it is
/// uncertain.
#[inline(always)]
unsafe fn find(work: *mut UserWork, number: u32, request: *const Request, to: u64) -> Option<u64> {
    // SAFETY: the caller's pointers are those of the map and to a request.
    unsafe {
        let from = read_volatile(&raw const (*work).ended);
        let failed = (*request).status != 0;
        let known = (*work).signals;
        let zero = read_volatile(&raw const (*work).zero);
        let mut found = Search {
            number: u64::from(number),
            wr_id: (*request).wr.wr_id,
            next: from,
            found: zero,
            unasked: zero,
            mode: match known {
                _ if (*work).owner.qp_type == DRIVER => mode::ANY,
                signals::ALL => mode::ALL,
                signals::ASKED if !failed => mode::ASKED,
                _ => 0,
            },
            passed: zero,
        };
        each(to.wrapping_sub(from).min(DEPTH) as u32, search, &mut found);
        if found.found == 0 && found.unasked == 0 {
            return Some(0);
        }
        let several = found.passed & passed::SEVERAL != 0;
        if found.mode == mode::ANY {
            return (!several).then_some(found.found);
        }
        // A request before the one found has asked for a completion, and has none.
        if found.passed & passed::ASKED != 0 || (found.mode == mode::ALL && found.passed != 0) {
            return None;
        }
        if found.unasked != 0 {
            // Two requests may be meant: one that asks for no completion, or a later one that asks. If none
            // asks, and the completion is a success, it is the first of them.
            if found.found != 0 || (failed && several) {
                return None;
            }
            found.found = found.unasked;
            (*work).signals = signals::ALL;
        } else if !failed && found.passed & passed::UNASKED != 0 {
            (*work).signals = signals::ASKED;
        }
        if failed {
            // The driver flushes all requests after a failed one, and each of them makes a completion.
            (*work).signals = signals::ALL;
        }
        Some(found.found)
    }
}

/// Whether a successful completion can be that of a request of this kind. A completion without an opcode
/// (`ibv_start_poll`) may be that of any request.
#[inline(always)]
fn fits(request: u32, completion: u32) -> bool {
    completion == NO_OPCODE || (request < KINDS && (COMPLETES_AS >> (request * 4) & 15) as u32 == completion)
}

/// Adds to the end of a send what its post says, if it is certain which post that is. `completion`: the
/// opcode of the completion. Not inlined, as [`remember`].
#[inline(never)]
pub(super) fn recall(number: u32, request: *mut Request, completion: u32) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    let (user, slot) = (USER_QPS.get_ptr(number)?, USER_SLOTS.get_ptr(number)?);
    let thread = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the map checked the pointers, and the caller's pointer is to a request.
    unsafe {
        if !follows(work) {
            return None;
        }
        let poller = read_volatile(&raw const (*work).poller);
        if poller != 0 && poller != thread {
            is_unsure(work);
            return None;
        }
        write_volatile(&raw mut (*work).poller, thread);
        // User space writes `probed_birth_ns` last, after `probed_ns`.
        let is_probed = read_volatile(&raw const (*user).probed_birth_ns) == (*slot).born_ns;
        fence(&raw mut (*work).zero);
        if is_probed && read_volatile(&raw const (*user).probed_ns) >= (*work).begun_ns {
            is_unsure(work);
            return None;
        }
        let to = read_volatile(&raw const (*work).sends);
        // Then read what the poster wrote before it changed `sends`.
        fence(&raw mut (*work).zero);
        let Some(place) = find(work, number, request, to) else {
            is_unsure(work);
            return None;
        };
        if place == 0 {
            not_found(work, (*request).wr.wr_id, to);
            return None;
        }
        let at = key(number, place - 1);
        let mut copied = MaybeUninit::<Outstanding>::uninit();
        let post = zeroed(&mut copied);
        copy(WR_OUTSTANDING.get_ptr(&at)?, &raw mut *post);
        if (*request).status == 0 && !fits(post.opcode, completion) && (*work).owner.qp_type != DRIVER {
            is_unsure(work);
            return None;
        }
        if (*work).owner.qp_type == DRIVER {
            let _ = WR_OUTSTANDING.remove(&at);
            pass_ended(number, work, to);
        } else {
            let from = (*work).ended;
            write_volatile(&raw mut (*work).ended, place);
            forget(number, from, place);
        }
        if !is_probed || !follows(work) {
            return None;
        }
        // The end has no thread: the one that posted the request may not be the one that polls.
        let keeps = flag::WR_ID | flag::DETAILS | flag::IMM | flag::SIGNALED | flag::SIGNALS_UNKNOWN;
        post.flags = (*request).wr.flags | post.flags & u32::from(keeps);
        post.tid = 0;
        copy(post, &raw mut (*request).wr);
    }
    Some(())
}

/// Handles an end for which no post was found: its post is that of a call in flight, or no program saw it.
/// `to`: how many posts had been remembered when the search began.
#[inline(always)]
unsafe fn not_found(work: *mut UserWork, wr_id: u64, to: u64) {
    // SAFETY: the caller's pointer is that of the map.
    unsafe {
        let early = read_volatile(&raw const (*work).early);
        if read_volatile(&raw const (*work).flying) == 0 || (early != 0 && (*work).early_id != wr_id) {
            return is_unsure(work);
        }
        write_volatile(&raw mut (*work).early_id, wr_id);
        add_in_order(&raw mut (*work).early, 1);
        // The post has come meanwhile, and the poster may have looked for the note before it was there.
        if read_volatile(&raw const (*work).sends) != to {
            is_unsure(work);
        }
    }
}

/// State of a walk over posts.
struct Walk {
    number: u64,
    next: u64,
}

/// Walks over `n` posts from number `from` on, as long as `visit` returns 0; returns the next one.
#[inline(always)]
fn walk(number: u32, from: u64, n: u64, visit: unsafe extern "C" fn(u32, *mut Walk) -> i64) -> u64 {
    let mut walk = Walk {
        number: u64::from(number),
        next: from,
    };
    each(n.min(DEPTH) as u32, visit, &mut walk);
    walk.next
}

unsafe extern "C" fn forget_one(_turn: u32, walk: *mut Walk) -> i64 {
    // SAFETY: as in `search`.
    unsafe {
        let at = (*walk).next;
        (*walk).next = at + 1;
        let _ = WR_OUTSTANDING.remove(&key((*walk).number as u32, at));
    }
    0
}

unsafe extern "C" fn pass_one(_turn: u32, walk: *mut Walk) -> i64 {
    // SAFETY: as in `search`.
    unsafe {
        if WR_OUTSTANDING
            .get_ptr(&key((*walk).number as u32, (*walk).next))
            .is_some()
        {
            return 1;
        }
        (*walk).next += 1;
    }
    0
}

#[inline(always)]
fn forget(number: u32, from: u64, to: u64) {
    let _ = walk(number, from, to.wrapping_sub(from), forget_one);
}

/// Moves `ended`, where the remembered posts begin, to the first post that has not ended.
#[inline(always)]
unsafe fn pass_ended(number: u32, work: *mut UserWork, to: u64) {
    // SAFETY: the caller's pointer is that of the map.
    unsafe {
        let from = (*work).ended;
        let front = walk(number, from, to.wrapping_sub(from), pass_one);
        write_volatile(&raw mut (*work).ended, front);
    }
}

/// Forgets all posts of a QP.
#[inline(always)]
pub(super) unsafe fn forget_all(number: u32, work: *const UserWork) {
    // SAFETY: the caller's pointer is that of the map.
    let (from, to) = unsafe {
        (
            read_volatile(&raw const (*work).ended),
            read_volatile(&raw const (*work).sends),
        )
    };
    forget(number, from, to);
}
