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

use crate::{
    emit::lost,
    maps::{CallKey, NOEXIST, enabled},
    task::call_key,
};

/// Hooks that remember a call between entry and return ([`CallKey::hook`]). The compiler numbers them: two
/// with one number would take each other's calls.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Hook {
    ModifyQp,
    DestroyQp,
    DeregMr,
    DestroyCq,
    Verb,
    Write,
    Cm,
    UserDestroy,
    UserSend,
    UserRecv,
    UserComplete,
    UserPoll,
    UserPollEx,
}

/// Remembers a call. If there is no room, the program at the call's return counts the loss ([`not_entered`]).
/// If an earlier call of this thread is still remembered, its return probe did not fire, and this counts that
/// loss, of which `cause` is the kind: the kernel tracks only a limited number of returns (kretprobe
/// maxactive) and does not tell the program about a missed one. Returns whether the call is remembered.
#[inline(always)]
pub(crate) fn enter<T>(calls: &HashMap<CallKey, T>, hook: Hook, call: &T, cause: u32) -> bool {
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
