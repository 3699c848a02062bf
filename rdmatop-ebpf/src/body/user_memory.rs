//! Samples of a QP's struct in its program, for `--uprobes-memory`: user space looks in them for a word that counts posts.
//!
//! A sample is taken at the return of a post, by the thread that posted: what the provider has counted and what the probes have
//! counted agree then, unless another thread is inside a post of the same QP. So calls are counted at their entry and at their return:
//! a sample is of use only when this call is the only one, before and after the copy. A thread that enters meanwhile shows, because its
//! entry is counted before the provider's function runs.

use core::{
    ffi::c_void,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user, generated};
use rdmatop_common::counters::{QpSlot, USER_WORDS, UserQp, UserSample, user_word};

use super::qp::mask;
use crate::{
    offsets::{OFF_ATTR_STATE, WANT_USER_MEMORY, get},
    user_maps::{USER_NUMBERS, USER_QPS, USER_SAMPLES, USER_SLOTS},
    words::add,
};

/// `IB_QPS_RESET`.
const RESET: u32 = 0;
/// Offset of `qp_num` in a `struct ibv_qp`.
const QP_NUM: u64 = 52;
/// Words that are read at a time. Behind the struct there may be no memory, and a read that cannot be done gives nothing.
const CHUNK: usize = 64;

#[inline(always)]
pub(super) fn wanted() -> bool {
    WANT_USER_MEMORY.load() != 0
}

/// A new QP has the number: nobody has asked for anything.
#[inline(always)]
pub(super) unsafe fn begin(user: *mut UserQp) {
    // SAFETY: the caller's pointer is that of the map; nobody else has the number.
    unsafe {
        (*user).entered = 0;
        (*user).left = 0;
        (*user).ask = 0;
        (*user).resets = 0;
        (*user).word_at = 0;
        (*user).last_word = 0;
    }
}

/// A thread begins to post.
#[inline(always)]
pub(super) fn enter(number: u32) {
    if let Some(user) = USER_QPS.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*user).entered, 1) };
    }
}

/// It has posted nothing.
#[inline(always)]
pub(super) fn gone(number: u32) {
    if let Some(user) = USER_QPS.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*user).left, 1) };
    }
}

/// It has posted, and what it posted is counted.
#[inline(always)]
pub(super) fn leave(number: u32) {
    if let Some(user) = USER_QPS.get_ptr_mut(number) {
        // SAFETY: the map checked the pointer.
        unsafe {
            if read_volatile(&raw const (*user).ask) != 0 {
                sample(number);
            }
            add(&raw mut (*user).left, 1);
        }
    }
}

/// Takes the sample that user space wants. Not inlined, because two programs call it and few calls need it.
#[inline(never)]
fn sample(number: u32) {
    let (Some(user), Some(slot)) = (USER_QPS.get_ptr_mut(number), USER_SLOTS.get_ptr(number)) else {
        return;
    };
    // SAFETY: the map checked the pointers, here and in the function.
    let _ = unsafe { take(number, user, slot) };
}

#[inline(always)]
unsafe fn take(number: u32, user: *mut UserQp, slot: *const QpSlot) -> Option<()> {
    // SAFETY: the caller's pointers are those of the maps, and the map checks that of the sample; of the threads inside a post only
    // the one that is alone writes it.
    unsafe {
        let ask = read_volatile(&raw const (*user).ask) as u32;
        let sample = USER_SAMPLES.get_ptr_mut(ask.wrapping_sub(1))?;
        let entered = read_volatile(&raw const (*user).entered);
        if entered.wrapping_sub(read_volatile(&raw const (*user).left)) != 1 {
            return None;
        }
        let count = read_volatile(&raw const (*slot).tx_posted);
        let words_read = copy((*user).handle, sample);
        if read_volatile(&raw const (*user).entered) != entered || words_read == 0 {
            return None;
        }
        write_volatile(&raw mut (*sample).number, u64::from(number));
        write_volatile(&raw mut (*sample).born_ns, (*slot).born_ns);
        write_volatile(&raw mut (*sample).count, count);
        write_volatile(&raw mut (*sample).words_read, words_read);
        write_volatile(&raw mut (*user).ask, 0);
        // The add is a barrier: user space reads this word first.
        add(&raw mut (*sample).done, 1);
    }
    Some(())
}

/// Copies the words from the program; returns how many could be read.
#[inline(always)]
unsafe fn copy(from: u64, sample: *mut UserSample) -> u64 {
    for chunk in 0..USER_WORDS / CHUNK {
        // SAFETY: inside the sample; the helper checks the program's address itself.
        let rc = unsafe {
            let to = (&raw mut (*sample).words).cast::<u32>().add(chunk * CHUNK);
            let at = from + (chunk * CHUNK * size_of::<u32>()) as u64;
            let bytes = (CHUNK * size_of::<u32>()) as u32;
            generated::bpf_probe_read_user(to.cast::<c_void>(), bytes, at as *const c_void)
        };
        if rc != 0 {
            return (chunk * CHUNK) as u64;
        }
    }
    USER_WORDS as u64
}

/// Entry of `_ib_modify_qp`. At RESET a provider sets its counts back, after this call.
#[inline(always)]
pub(crate) fn modifying(qp: u64, attr: u64, attr_mask: u32) -> Option<()> {
    if !wanted() || attr_mask & mask::STATE == 0 || get::<u32>(attr, &OFF_ATTR_STATE)? != RESET {
        return None;
    }
    // SAFETY: the map checked the pointers.
    unsafe {
        let user = USER_QPS.get_ptr_mut(*USER_NUMBERS.get_ptr(&qp)?)?;
        add(&raw mut (*user).resets, 1);
    }
    Some(())
}

/// Entry of `ib_destroy_qp_user`: the provider frees its struct after this call, and the program posts no more. Another process
/// (after fork(2)) has a copy, and one that has been killed has no memory any more, so the number of the QP has to be there.
#[inline(always)]
pub(super) fn destroying(number: u32) -> Option<()> {
    if !wanted() {
        return None;
    }
    let (user, slot) = (USER_QPS.get_ptr_mut(number)?, USER_SLOTS.get_ptr(number)?);
    // SAFETY: the map checked the pointers; the helper checks addresses of the program itself.
    unsafe {
        let at = read_volatile(&raw const (*user).word_at);
        if at == 0 || (bpf_get_current_pid_tgid() >> 32) as u32 != (*slot).owner_pid {
            return None;
        }
        let qpn = bpf_probe_read_user(((*user).handle + QP_NUM) as *const u32).ok()?;
        if qpn != (*slot).qpn {
            return None;
        }
        let word = bpf_probe_read_user(at as *const u32).ok()?;
        write_volatile(&raw mut (*user).last_word, u64::from(word) | user_word::IS_READ);
    }
    Some(())
}
