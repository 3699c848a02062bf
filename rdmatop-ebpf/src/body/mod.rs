//! The logic of each hook, independent of how it is entered.
pub(crate) mod cm;
pub(crate) mod object;
pub(crate) mod qp;
pub(crate) mod restrack;
pub(crate) mod verbs;

use aya_ebpf::maps::HashMap;
use rdmatop_common::counters::loss;

use crate::{emit::lost, maps::CallKey, task::call_key};

/// Hooks that remember a call between entry and return ([`CallKey::hook`]).
pub(crate) mod hook {
    pub(crate) const MODIFY_QP: u32 = 1;
    pub(crate) const DESTROY_QP: u32 = 2;
    pub(crate) const DEREG_MR: u32 = 3;
    pub(crate) const DESTROY_CQ: u32 = 4;
    pub(crate) const VERB: u32 = 5;
}

/// Remembers a call. A full map is counted: that call's return will make no record.
#[inline(always)]
pub(crate) fn enter<T>(calls: &HashMap<CallKey, T>, hook: u32, call: &T) {
    if calls.insert(&call_key(hook), call, 0).is_err() {
        lost(loss::STASH);
    }
}
