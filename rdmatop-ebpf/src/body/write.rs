//! Calls by `write()`: commands of verbs (current rdma-core sends only doorbells this way) and of rdma_cm.
//!
//! Entry programs remember a call even while counting is off. So a doorbell or a wait for an event that is
//! under way when counting begins counts as a whole call and not as a loss.

use core::mem::MaybeUninit;

use super::{
    Hook, not_entered,
    verbs::{CALLS, count, of_command, record_failure},
};
use crate::{
    maps::{VERB_REST, VerbCall, enabled},
    offsets::counts,
    task::{call_key, now},
};
use aya_ebpf::helpers::bpf_probe_read_user;
use rdmatop_common::{counters::loss, verb};

/// `AF_IB`, include/linux/socket.h.
const AF_IB: u16 = 27;
/// Where the address family is in the buffer of a bind: `struct rdma_ucm_cmd_hdr` (8 bytes), then `id`,
/// `addr_size` and `reserved` of `struct rdma_ucm_bind` (include/uapi/rdma/rdma_user_cm.h).
const BIND_FAMILY: u64 = 16;

/// Stands for the command of a call whose buffer cannot be read: no command has this number.
const UNREADABLE: u32 = 0xff;

/// Reads a word of the user's memory.
#[inline(always)]
fn word(address: u64) -> Option<u32> {
    // SAFETY: the helper checks the user address and fails on a bad one.
    unsafe { bpf_probe_read_user(address as *const u32) }.ok()
}

/// A call that begins now.
#[inline(always)]
fn begun(buffer: u64) -> VerbCall {
    VerbCall {
        start_ns: now(),
        file: 0,
        header: 0,
        attrs: buffer,
    }
}

/// Entry of `ib_uverbs_write(file, buf, count, pos)`. If an earlier call of this thread is still remembered,
/// its return probe did not fire.
#[inline(always)]
pub(crate) fn entered(buffer: u64) -> Option<()> {
    CALLS.remember(
        Hook::Write,
        &begun(buffer),
        |call| call.start_ns,
        |_| not_entered(loss::MISSED),
    );
    Some(())
}

/// Return of `ib_uverbs_write`: the number of bytes written, or a negative errno. The command is the first
/// word of the user's buffer. Read it here and not at the entry, because by now the kernel has paged the
/// buffer in.
#[inline(always)]
pub(crate) fn returned(rc: i32) -> Option<()> {
    let mut call = MaybeUninit::uninit();
    let Some(call) = CALLS.recall(Hook::Write, &mut call, |_| true) else {
        not_entered(loss::MISSED);
        return None;
    };
    let command = |buffer| of_command(word(buffer).unwrap_or(UNREADABLE));
    finish(rc, call.start_ns, call.attrs, command)
}

/// Counts a call that has returned, and makes the record of one that failed.
#[inline(always)]
fn finish(rc: i32, start_ns: u64, buffer: u64, verb: impl FnOnce(u64) -> u32) -> Option<()> {
    if !enabled() || (rc >= 0 && !counts()) {
        return None;
    }
    let took = now() - start_ns;
    let verb = verb(buffer);
    if rc < 0 {
        record_failure(verb, rc, took, 0);
    }
    count(verb, rc, (verb != verb::CM_GET_EVENT).then_some(took))
}

/// Entry of `ucma_write(file, buf, len, pos)`, as [`entered`]. The call has no entry in the array: threads
/// that wait for an event would hold as many entries for as long as they wait, and verbs need them.
#[inline(always)]
pub(crate) fn cm_entered(buffer: u64) -> Option<()> {
    let key = call_key(Hook::Cm);
    if VERB_REST.get_ptr(&key).is_some() {
        not_entered(loss::MISSED);
    }
    // If there is no room, the return counts the loss.
    let _ = VERB_REST.insert(&key, &begun(buffer), 0);
    Some(())
}

/// Return of `ucma_write`, as [`returned`].
#[inline(always)]
pub(crate) fn cm_returned(rc: i32) -> Option<()> {
    let key = call_key(Hook::Cm);
    let Some(call) = VERB_REST.get_ptr(&key) else {
        not_entered(loss::MISSED);
        return None;
    };
    // SAFETY: the map checked the pointer; no other thread has this key.
    let (start_ns, buffer) = unsafe { ((*call).start_ns, (*call).attrs) };
    let _ = VERB_REST.remove(&key);
    // librdmacm binds to an InfiniBand address once, to learn whether the machine supports it. That bind gets
    // a verb number of its own, so that its failure can be told from other failures.
    let command = |buffer| match verb::cm(word(buffer).unwrap_or(UNREADABLE)) {
        verb::CM_BIND if word(buffer + BIND_FAMILY).is_some_and(|word| word as u16 == AF_IB) => {
            verb::CM_BIND | verb::AF_IB
        }
        verb => verb,
    };
    finish(rc, start_ns, buffer, command)
}
