//! Work requests that a program builds with the `ibv_wr_*` calls (rdma-core, libibverbs/verbs.h): one call
//! gives the opcode, another the data, and `ibv_wr_complete` posts all of them or none.

use core::mem::MaybeUninit;

use aya_ebpf::helpers::bpf_probe_read_user;
use rdmatop_common::{counters::OPCODES, ib::opcode::SEND_IMM};

use crate::{
    body::Hook,
    task::{call_key, now},
    user::{
        maps::{
            Building, USER_BATCHES, USER_BUILDING, USER_BUILT, USER_QPS, USER_SLOTS, USER_WORK, UserBatch,
            UserBuildingKey, work_flag,
        },
        post::{Segments, class},
        qps::{self, Entered, count_hit, missed},
        records::{self, Request, look, report, unseen},
        sends::{self, doubt},
    },
    words::{add, clear, each, zeroed},
};

/// How a call gives data: the cookie with which user space attaches the probe.
mod data {
    pub(super) const SGE: u64 = 0;
    pub(super) const INLINE: u64 = 1;
}

/// As [`qps::hit`], by a pointer of the `struct ibv_qp_ex` itself.
#[inline(always)]
fn hit(qp: u64, at: &Entered) -> Option<u32> {
    qps::hit(qp, || at.is_by(qp))
}

/// Entry of `wr_send(qp)` and the other functions that begin a work request. The cookie has the opcode and
/// the offset of `wr_id` in a `struct ibv_qp_ex`.
#[inline(always)]
pub(crate) fn begun(qp: u64, at: &Entered, second: u64, fourth: u64) -> Option<()> {
    let number = hit(qp, at)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let opcode = (at.cookie & 0xffff) as u32;
    let class = class(opcode);
    if records::wanted() {
        // `wr_send_imm(qp, imm)`, `wr_rdma_write_imm(qp, rkey, remote_addr, imm)`.
        let imm = if opcode == SEND_IMM { second } else { fourth };
        let _ = begin(number, qp, at.cookie >> 32, opcode, imm as u32);
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
pub(crate) fn given(qp: u64, at: &Entered, second: u64, third: u64, fourth: u64) -> Option<()> {
    let number = hit(qp, at)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let mut unread = 0;
    let bytes = match at.cookie & 0xffff {
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
    if records::wanted() {
        let _ = grow(number, bytes, unread);
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
pub(crate) fn aborted(qp: u64, at: &Entered) -> Option<()> {
    let number = hit(qp, at)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        if records::wanted() {
            forget(number, first(number, (*batch).wrs), (*batch).wrs);
        }
        clear(batch);
    }
    Some(())
}

/// Entry of `wr_complete(qp)`. At the entry the thread still holds the QP's lock; by the return another
/// thread may have begun the next batch.
#[inline(always)]
pub(crate) fn completing(qp: u64, at: &Entered) -> Option<()> {
    let number = hit(qp, at)?;
    let batch = USER_BATCHES.get_ptr_mut(number)?;
    let key = call_key(Hook::UserComplete);
    // SAFETY: the map checked the pointer.
    unsafe {
        if (*batch).wrs == 0 {
            return None;
        }
        (*batch).number = u64::from(number);
        (*batch).stack = at.stack;
        if records::wanted() {
            (*batch).first = first(number, (*batch).wrs);
            (*batch).at_ns = now();
        }
        // No probe saw the return of this thread's previous call, if that is still there.
        if let Some(earlier) = USER_BUILT.get_ptr(&key) {
            missed();
            if records::wanted() {
                records::unseen_many((*earlier).wrs);
                forget((*earlier).number as u32, (*earlier).first, (*earlier).wrs);
                sends::doubt((*earlier).number as u32);
            }
        }
        let has_room = USER_BUILT.insert(&key, &*batch, 0).is_ok();
        if !has_room {
            // The return finds nothing, so the loss is counted here.
            missed();
        }
        if records::wanted() {
            if has_room {
                sends::enter(number);
            } else {
                sends::doubt(number);
                records::unseen_many((*batch).wrs);
                forget(number, (*batch).first, (*batch).wrs);
            }
        }
        clear(batch);
    }
    Some(())
}

/// Return of `wr_complete`, which was entered with this stack pointer.
#[inline(always)]
pub(crate) fn completed(rc: i32, stack: u64) -> Option<()> {
    let key = call_key(Hook::UserComplete);
    let built = USER_BUILT.get_ptr(&key)?;
    // SAFETY: the map checked the pointer; no other thread has this key.
    let built = unsafe { &*built };
    if built.stack != stack {
        return None;
    }
    count_hit();
    let _ = post(built, rc);
    if records::wanted() {
        end_batch(built.number as u32, built.first, built.wrs, built.at_ns, rc == 0);
        sends::leave(built.number as u32);
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

/// The key of a work request that is being built.
#[inline(always)]
fn building(number: u32, nth: u64) -> UserBuildingKey {
    UserBuildingKey {
        number,
        nth: nth as u32,
    }
}

/// Remembers a work request that a program begins to build. `at`: the offset of `wr_id`, followed by
/// `wr_flags`, in a `struct ibv_qp_ex`.
#[inline(always)]
fn begin(number: u32, qp: u64, at: u64, opcode: u32, imm: u32) -> Option<()> {
    let _ = look(number);
    let work = USER_WORK.get_ptr_mut(number)?;
    let mut place = MaybeUninit::<Building>::uninit();
    let new = zeroed(&mut place);
    // SAFETY: the helper checks the address itself.
    let head = unsafe { bpf_probe_read_user((qp + at) as *const [u64; 2]) };
    let [wr_id, flags] = head.unwrap_or([0; 2]);
    new.wr_id = wr_id;
    new.send_flags = flags as u32;
    new.opcode = opcode;
    new.imm = imm;
    new.unread = u64::from(head.is_err());
    // SAFETY: the map checked the pointer; the program holds the QP's lock, so these words have one writer.
    unsafe {
        let nth = (*work).built;
        (*work).built = nth + 1;
        // If there is no room, `of_batch` counts the record as lost.
        let _ = USER_BUILDING.insert(&building(number, nth), &*new, 0);
    }
    Some(())
}

/// The number of the first of the last `wrs` requests that a program has built.
#[inline(always)]
fn first(number: u32, wrs: u64) -> u64 {
    // SAFETY: the map checked the pointer; one writer, as in `begin`.
    let built = USER_WORK
        .get_ptr(number)
        .map_or(0, |work| unsafe { (*work).built });
    built.wrapping_sub(wrs)
}

/// Adds data to the work request that a program builds.
#[inline(always)]
fn grow(number: u32, bytes: u64, unread: u64) -> Option<()> {
    let work = USER_WORK.get_ptr(number)?;
    // SAFETY: the map checked the pointer; one writer, as in `begin`.
    unsafe {
        let built = USER_BUILDING.get_ptr_mut(&building(number, (*work).built.wrapping_sub(1)))?;
        (*built).bytes += bytes;
        (*built).unread |= unread;
    }
    Some(())
}

/// State of a walk over the work requests of a batch.
struct Batch {
    number: u64,
    next: u64,
    ts_ns: u64,
    /// 0: the provider did not accept the batch, so its requests are only forgotten.
    accepted: u64,
}

/// Reports the `n` requests of a batch from number `first` on, or only forgets them if not accepted.
#[inline(always)]
fn end_batch(number: u32, first: u64, n: u64, ts_ns: u64, accepted: bool) {
    let mut batch = Batch {
        number: u64::from(number),
        next: first,
        ts_ns,
        accepted: u64::from(accepted),
    };
    each(n as u32, of_batch, &mut batch);
}

/// Forgets the requests of a batch whose end no program will see.
#[inline(always)]
fn forget(number: u32, first: u64, n: u64) {
    end_batch(number, first, n, 0, false);
}

unsafe extern "C" fn of_batch(_turn: u32, batch: *mut Batch) -> i64 {
    // SAFETY: the batch is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let number = (*batch).number as u32;
        let key = building(number, (*batch).next);
        (*batch).next += 1;
        let built = USER_BUILDING.get_ptr(&key);
        if (*batch).accepted != 0 {
            let mut place = MaybeUninit::uninit();
            if let Some(built) = built {
                let request = Request::posted(&mut place, (*batch).ts_ns, (*built).wr_id);
                request
                    .wr
                    .send((*built).opcode, (*built).send_flags, (*built).imm);
                request.wr.carries((*built).bytes, (*built).unread);
                let _ = report(number, &raw const *request);
            } else if USER_WORK
                .get_ptr(number)
                .is_some_and(|work| (*work).flags & work_flag::USED != 0)
            {
                doubt(number);
                unseen();
            }
        }
        let _ = USER_BUILDING.remove(&key);
    }
    0
}
