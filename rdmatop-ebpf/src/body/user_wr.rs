//! Work requests that a program builds with the `ibv_wr_*` calls (rdma-core, libibverbs/verbs.h): one call gives the opcode,
//! another the data, and `ibv_wr_complete` posts all of them or none.

use rdmatop_common::counters::OPCODES;

use super::{
    hook,
    user::{Segments, class, hit, hits, missed},
};
use crate::{
    task::call_key,
    user_maps::{USER_BATCHES, USER_BUILT, USER_QPS, USER_SLOTS, UserBatch},
    words::{add, clear},
};

/// `BPF_NOEXIST`, include/uapi/linux/bpf.h.
const NOEXIST: u64 = 1;

/// How a call gives data: the cookies that rdmatop attaches probes with.
mod data {
    pub(super) const SGE: u64 = 0;
    pub(super) const INLINE: u64 = 1;
}

/// Entry of `wr_send(qp)` and the other functions that begin a work request.
#[inline(always)]
pub(crate) fn begun(qp: u64, opcode: u64) -> Option<()> {
    let batch = USER_BATCHES.get_ptr_mut(hit(qp)?)?;
    let class = class(opcode as u32);
    // SAFETY: the map checked the pointer; the verifier sees the index masked.
    unsafe {
        (*batch).wrs += 1;
        (*batch).last = class as u64;
        *(&raw mut (*batch).ops).cast::<u64>().add(class) += 1;
    }
    Some(())
}

/// Entry of `wr_set_sge(qp, lkey, addr, length)`, `wr_set_inline_data(qp, addr, length)`, and of the functions that take
/// `(qp, number, list)`.
#[inline(always)]
pub(crate) fn given(qp: u64, how: u64, second: u64, third: u64, fourth: u64) -> Option<()> {
    let batch = USER_BATCHES.get_ptr_mut(hit(qp)?)?;
    let bytes = match how {
        data::SGE => fourth & 0xffff_ffff,
        data::INLINE => third,
        _ => {
            let number = if second < u64::from(u32::MAX) {
                second as u32
            } else {
                u32::MAX
            };
            let sum = Segments::of(third, number);
            if sum.unread != 0 {
                missed();
            }
            sum.bytes
        }
    };
    // SAFETY: as above.
    unsafe {
        let class = (*batch).last as usize & (OPCODES - 1);
        *(&raw mut (*batch).op_bytes).cast::<u64>().add(class) += bytes;
    }
    Some(())
}

/// Entry of `wr_abort(qp)`.
#[inline(always)]
pub(crate) fn aborted(qp: u64) -> Option<()> {
    let batch = USER_BATCHES.get_ptr_mut(hit(qp)?)?;
    // SAFETY: the map checked the pointer.
    unsafe { clear(batch) };
    Some(())
}

/// Entry of `wr_complete(qp)`. Here the thread still holds the QP's lock; before the return another thread may build the next
/// batch.
#[inline(always)]
pub(crate) fn completing(qp: u64) -> Option<()> {
    let number = hit(qp)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let key = call_key(hook::USER_COMPLETE);
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*batch).wrs == 0 {
            return None;
        }
        (*batch).number = u64::from(number);
        if USER_BUILT.insert(&key, &*batch, NOEXIST).is_err() {
            // No room, or no probe saw the return of this thread's previous call.
            missed();
            let _ = USER_BUILT.insert(&key, &*batch, 0);
        }
        clear(batch);
    }
    Some(())
}

/// Return of `wr_complete`.
#[inline(always)]
pub(crate) fn completed(rc: i32) -> Option<()> {
    let key = call_key(hook::USER_COMPLETE);
    let built = USER_BUILT.get_ptr(&key)?;
    if let Some(hits) = hits() {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*hits).hits, 1) };
    }
    // SAFETY: the map checked the pointer; no other thread has this key.
    let _ = post(unsafe { &*built }, rc);
    let _ = USER_BUILT.remove(&key);
    Some(())
}

/// Counts a batch, once it is known whether the provider accepted it as a whole or not at all.
#[inline(always)]
fn post(built: &UserBatch, rc: i32) -> Option<()> {
    let number = built.number as u32;
    let (slot, user) = (USER_SLOTS.get_ptr_mut(number)?, USER_QPS.get_ptr_mut(number)?);
    if rc != 0 {
        // SAFETY: the map checked the pointer.
        unsafe { add(&raw mut (*user).tx_rejected, built.wrs) };
        return None;
    }
    let mut bytes = 0;
    for class in 0..OPCODES {
        if built.ops[class] == 0 {
            continue;
        }
        bytes += built.op_bytes[class];
        // SAFETY: the map checked the pointer; the index is in range.
        unsafe {
            add((&raw mut (*slot).ops).cast::<u64>().add(class), built.ops[class]);
            add(
                (&raw mut (*slot).op_bytes).cast::<u64>().add(class),
                built.op_bytes[class],
            );
        }
    }
    // SAFETY: as above.
    unsafe {
        add(&raw mut (*slot).tx_bytes, bytes);
        add(&raw mut (*slot).tx_posted, built.wrs);
    }
    Some(())
}
