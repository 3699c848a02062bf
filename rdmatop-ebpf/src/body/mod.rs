//! The logic of each hook, independent of how it is entered.
pub(crate) mod calls;
pub(crate) mod cm;
mod devx;
pub(crate) mod object;
pub(crate) mod qp;
pub(crate) mod restrack;
pub(crate) mod rxe;
pub(crate) mod rxe_cq;
mod rxe_flush;
pub(crate) mod rxe_shared;
pub(crate) mod siw;
pub(crate) mod siw_cqe;
pub(crate) mod verbs;
pub(crate) mod wr;
pub(crate) mod wr_cqe;
pub(crate) mod wr_moves;
pub(crate) mod wr_qps;
pub(crate) mod write;

use aya_ebpf::maps::HashMap;
use rdmatop_common::counters::loss;

use crate::{
    emit::lost,
    maps::{CallKey, NOEXIST, enabled},
    task::call_key,
};

/// Hooks that remember a call between entry and return ([`CallKey::hook`]).
pub(crate) mod hook {
    pub(crate) const MODIFY_QP: u32 = 1;
    pub(crate) const DESTROY_QP: u32 = 2;
    pub(crate) const DEREG_MR: u32 = 3;
    pub(crate) const DESTROY_CQ: u32 = 4;
    pub(crate) const VERB: u32 = 5;
    pub(crate) const WRITE: u32 = 6;
    pub(crate) const CM: u32 = 7;
    pub(crate) const USER_DESTROY: u32 = 8;
    pub(crate) const USER_SEND: u32 = 9;
    pub(crate) const USER_RECV: u32 = 10;
    pub(crate) const USER_COMPLETE: u32 = 11;
    pub(crate) const USER_POLL: u32 = 12;
    pub(crate) const USER_POLL_EX: u32 = 13;
}

/// Remembers a call. If there is no room, the program at the call's return counts the loss ([`not_entered`]).
/// If an earlier call of this thread is still remembered, its return probe did not fire, and this counts that
/// loss: the kernel tracks only a limited number of returns (kretprobe maxactive) and does not tell the
/// program about a missed one.
#[inline(always)]
pub(crate) fn enter<T>(calls: &HashMap<CallKey, T>, hook: u32, call: &T) {
    enter_or(calls, hook, call, loss::RETURN);
}

/// As [`enter`]; `cause` is the loss to count for a return probe that did not fire. Returns whether the call
/// is remembered.
#[inline(always)]
pub(crate) fn enter_or<T>(calls: &HashMap<CallKey, T>, hook: u32, call: &T, cause: u32) -> bool {
    let key = call_key(hook);
    if calls.insert(&key, call, NOEXIST).is_ok() {
        return true;
    }
    if calls.get_ptr(&key).is_some() {
        lost(cause);
        return calls.insert(&key, call, 0).is_ok();
    }
    false
}

/// Counts a return whose call is not remembered.
#[inline(always)]
pub(crate) fn not_entered(cause: u32) {
    if enabled() {
        lost(cause);
    }
}
