//! Work requests that a program builds with the `ibv_wr_*` calls (rdma-core, libibverbs/verbs.h): one call
//! gives the opcode, another the data, and `ibv_wr_complete` posts all of them or none.

use rdmatop_common::counters::OPCODES;

use super::{
    hook,
    user::{Segments, class, hit, hits, missed},
    user_posts, user_work,
};
use crate::{
    task::{call_key, now},
    user_maps::{USER_BATCHES, USER_BUILT, USER_QPS, USER_SLOTS, UserBatch},
    words::{add, clear},
};

/// How a call gives data: the cookie with which user space attaches the probe.
mod data {
    pub(super) const SGE: u64 = 0;
    pub(super) const INLINE: u64 = 1;
}

/// `IBV_WR_SEND_WITH_IMM`: `wr_send_imm(qp, imm)` has the immediate data in its second argument, and
/// `wr_rdma_write_imm(qp, rkey, remote_addr, imm)` in its fourth.
const SEND_IMM: u32 = 3;

/// Entry of `wr_send(qp)` and the other functions that begin a work request. The lower half of the cookie is
/// the opcode, the upper half the offset of `wr_id` in a `struct ibv_qp_ex`.
#[inline(always)]
pub(crate) fn begun(qp: u64, cookie: u64, second: u64, fourth: u64) -> Option<()> {
    let number = hit(qp)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let opcode = cookie as u32;
    let class = class(opcode);
    if user_work::wanted() {
        let imm = if opcode == SEND_IMM { second } else { fourth };
        let _ = user_work::begin(number, qp, cookie >> 32, opcode, imm as u32);
    }
    // SAFETY: the map checked the pointer; the verifier sees the index masked.
    unsafe {
        (*batch).wrs += 1;
        (*batch).last = class as u64;
        *(&raw mut (*batch).ops).cast::<u64>().add(class) += 1;
    }
    Some(())
}

/// Entry of `wr_set_sge(qp, lkey, addr, length)`, `wr_set_inline_data(qp, addr, length)`, and of the
/// functions that take `(qp, number, list)`.
#[inline(always)]
pub(crate) fn given(qp: u64, how: u64, second: u64, third: u64, fourth: u64) -> Option<()> {
    let number = hit(qp)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let mut unread = 0;
    let bytes = match how {
        data::SGE => fourth & 0xffff_ffff,
        data::INLINE => third,
        _ => {
            let pieces = if second < u64::from(u32::MAX) {
                second as u32
            } else {
                u32::MAX
            };
            let sum = Segments::of(third, pieces);
            if sum.unread != 0 {
                missed();
            }
            unread = sum.unread;
            sum.bytes
        }
    };
    if user_work::wanted() {
        let _ = user_work::grow(number, bytes, unread);
    }
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
    let number = hit(qp)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        if user_work::wanted() {
            let wrs = (*batch).wrs;
            user_work::batch(number, user_work::first(number, wrs), wrs, 0, false);
        }
        clear(batch);
    }
    Some(())
}

/// Entry of `wr_complete(qp)`. At the entry the thread still holds the QP's lock; by the return another
/// thread may have begun the next batch.
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
        if user_work::wanted() {
            (*batch).first = user_work::first(number, (*batch).wrs);
            (*batch).at_ns = now();
        }
        // No probe saw the return of this thread's previous call, if that is still there.
        if let Some(earlier) = USER_BUILT.get_ptr(&key) {
            missed();
            if user_work::wanted() {
                user_work::unseen_many((*earlier).wrs);
                user_work::forget((*earlier).number as u32, (*earlier).first, (*earlier).wrs);
                user_posts::doubt((*earlier).number as u32);
            }
        }
        let has_room = USER_BUILT.insert(&key, &*batch, 0).is_ok();
        if !has_room {
            // The return finds nothing, so the loss is counted here.
            missed();
        }
        if user_work::wanted() {
            if has_room {
                user_posts::enter(number);
            } else {
                user_posts::doubt(number);
                user_work::unseen_many((*batch).wrs);
                user_work::forget(number, (*batch).first, (*batch).wrs);
            }
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
    let built = unsafe { &*built };
    let _ = post(built, rc);
    if user_work::wanted() {
        user_work::batch(built.number as u32, built.first, built.wrs, built.at_ns, rc == 0);
        user_posts::leave(built.number as u32);
    }
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
