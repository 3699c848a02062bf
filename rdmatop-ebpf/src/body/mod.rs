//! The logic of each hook, independent of how it is entered.
pub(crate) mod calls;
pub(crate) mod cm;
pub(crate) mod object;
pub(crate) mod qp;
pub(crate) mod restrack;
pub(crate) mod rxe;
pub(crate) mod rxe_cq;
pub(crate) mod siw;
pub(crate) mod siw_cqe;
pub(crate) mod verbs;
pub(crate) mod write;

use aya_ebpf::maps::HashMap;
use rdmatop_common::counters::loss;

use crate::{
    emit::lost,
    maps::{CallKey, enabled},
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
}

/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;

/// Remembers a call. What finds no room makes its return count the loss ([`not_entered`]). A call of this thread that
/// is still remembered is counted here: its return probe did not fire, because the kernel keeps only so many returns in
/// flight (kretprobe maxactive) and does not tell a BPF program that it missed one.
#[inline(always)]
pub(crate) fn enter<T>(calls: &HashMap<CallKey, T>, hook: u32, call: &T) {
    enter_or(calls, hook, call, loss::RETURN);
}

/// As [`enter`]; `cause` is what a return that did not fire costs.
#[inline(always)]
pub(crate) fn enter_or<T>(calls: &HashMap<CallKey, T>, hook: u32, call: &T, cause: u32) {
    let key = call_key(hook);
    if calls.insert(&key, call, NOEXIST).is_ok() {
        return;
    }
    if calls.get_ptr(&key).is_some() {
        lost(cause);
        let _ = calls.insert(&key, call, 0);
    }
}

/// A return whose call is not remembered.
#[inline(always)]
pub(crate) fn not_entered(cause: u32) {
    if enabled() {
        lost(cause);
    }
}
