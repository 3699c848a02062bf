//! Completions that a program takes from a `struct ibv_cq_ex` by `ibv_start_poll` and `ibv_next_poll`
//! (rdma-core, libibverbs/verbs.h). At their return the CQ holds `wr_id` and status of one completion. QP
//! number and opcode come only from other functions of the provider: a probe cannot call them, and a program
//! need not.
//!
//! So the QP of a completion is known only if the CQ can have completions of no other QP, and whether it is
//! of a send or a receive only if the CQ is for one of both. The programs learn both from the kernel's QPs,
//! and the kernel's count of the users of a CQ (`ib_cq.usecnt`) makes it certain. If it differs from the
//! number of QPs that are known here, something else uses the CQ too, such as a QP without a number here, or
//! a shared receive queue of XRC. A QP that was destroyed may have left completions behind.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::bpf_probe_read_user;
use rdmatop_common::{
    event::UNKNOWN_U32,
    ib::RECV,
    wr::{NO_OPCODE, WrFilter, count, flag, kind},
};

use crate::{
    body::{
        Hook,
        wr::{counted, describe, filter, left_out, record},
    },
    maps::{NOEXIST, enabled},
    offsets::{
        OFF_CQ_ID, OFF_CQ_UOBJECT, OFF_CQ_USECNT, OFF_QP_RECV_CQ, OFF_QP_SEND_CQ, OFF_UOBJECT_HANDLE, get,
        member, read,
    },
    share::caller,
    task::now,
    user::{
        maps::{USER_CQS, USER_WORK, UserCq, UserKey, UserPoll, UserWork, work_flag},
        poll::{begin_poll, end_poll},
        qps::{Entered, count_hit},
        records::{Request, report, unseen, wanted},
        sends::{doubt, recall},
    },
    words::{add, copy, halves, zeroed},
};

/// Notes which CQs the QP with this number has.
#[inline(always)]
pub(super) fn join(number: u32, qp: u64) {
    let send = get::<u64>(qp, &OFF_QP_SEND_CQ).unwrap_or(0);
    let receive = get::<u64>(qp, &OFF_QP_RECV_CQ).unwrap_or(0);
    let _ = join_one(number, send, 1);
    let _ = join_one(number, receive, 0);
}

/// Not inlined: the function is called twice, and its frame holds a whole entry.
#[inline(never)]
fn join_one(number: u32, cq: u64, is_send: u32) -> Option<()> {
    if cq == 0 {
        return None;
    }
    let work = USER_WORK.get_ptr_mut(number)?;
    let object: u64 = get(cq, &OFF_CQ_UOBJECT)?;
    let handle: u64 = get(object, &OFF_UOBJECT_HANDLE)?;
    let (usecnt_at, id_at) = (member(cq, &OFF_CQ_USECNT)?, member(cq, &OFF_CQ_ID)?);
    let id: u32 = read(id_at)?;
    if handle == 0 {
        return None;
    }
    // SAFETY: the map checked the pointers; words are written whole.
    unsafe {
        let key = UserKey::new(handle, (*work).owner.pid);
        if let Some(older) = USER_CQS.get_ptr(&key)
            && ((*older).id != id || (*older).id_at != id_at)
        {
            // The program had another CQ at this address before.
            let _ = USER_CQS.remove(&key);
        }
        if USER_CQS.get_ptr(&key).is_none() {
            let mut place = MaybeUninit::<UserCq>::uninit();
            let new = zeroed(&mut place);
            new.usecnt_at = usecnt_at;
            new.id_at = id_at;
            new.id = id;
            copy(&raw const (*work).owner, &raw mut new.owner);
            new.owner.qpn = UNKNOWN_U32;
            new.owner.qp_type = UNKNOWN_U32;
            new.owner.dest_qpn = UNKNOWN_U32;
            // If another CPU was first, its entry stays.
            let _ = USER_CQS.insert(&key, &*new, NOEXIST);
        }
        let entry = USER_CQS.get_ptr_mut(&key)?;
        if (*work).flags & work_flag::WANTED != 0 {
            write_volatile(&raw mut (*entry).flags, work_flag::WANTED);
        }
        if is_send != 0 {
            (*work).send_cq = handle;
            write_volatile(&raw mut (*entry).sender, number);
            add(&raw mut (*entry).sends, 1);
        } else {
            (*work).receive_cq = handle;
            write_volatile(&raw mut (*entry).receiver, number);
            add(&raw mut (*entry).receives, 1);
        }
    }
    Some(())
}

/// A QP is destroyed: from now on it is not known which QP a completion of its CQs is for.
#[inline(always)]
pub(super) fn leave(work: &UserWork) {
    for cq in [work.send_cq, work.receive_cq] {
        if let Some(entry) = USER_CQS.get_ptr_mut(&UserKey::new(cq, work.owner.pid)) {
            // SAFETY: the map checked the pointer.
            unsafe { add(&raw mut (*entry).gone, 1) };
        }
    }
}

/// Entry of a provider's `start_poll(cq, attr)` and `next_poll(cq)`. The cookie has the offset of `comp_mask`
/// in a `struct ibv_cq_ex`, followed by `status` and `wr_id`.
#[inline(always)]
pub(crate) fn polling(cq: u64, at: &Entered) -> Option<()> {
    if !wanted() || !enabled() {
        return None;
    }
    count_hit();
    if at.is_by(cq) {
        let call = UserPoll {
            cq,
            wc: cq + (at.cookie >> 32),
            stack: at.stack,
        };
        begin_poll(Hook::UserPollEx, &call);
    }
    Some(())
}

/// Return of either function: 0 if there is a completion.
#[inline(always)]
pub(crate) fn polled(rc: i32, stack: u64) -> Option<()> {
    let UserPoll { cq, wc, .. } = end_poll(Hook::UserPollEx, stack)?;
    if rc == 0 && took(cq, wc).is_none() {
        unseen();
    }
    Some(())
}

/// Reports one completion that the program took; `None` if it is not known whether the trace asks for it.
#[inline(always)]
fn took(cq: u64, at: u64) -> Option<()> {
    // SAFETY: the helper checks the address itself.
    let [outcome, wr_id] = unsafe { bpf_probe_read_user(at as *const [u64; 2]) }.ok()?;
    let entry = USER_CQS.get_ptr_mut(&UserKey::new(cq, caller()))?;
    let mut place = MaybeUninit::<Request>::uninit();
    let request = Request::ended(&mut place, now(), wr_id, halves(outcome).1);
    // SAFETY: the map checked the pointer; each word is read whole.
    let (sends, receives, is_whole, sender, receiver) = unsafe {
        let sends = read_volatile(&raw const (*entry).sends);
        let receives = read_volatile(&raw const (*entry).receives);
        let is_it = read::<u32>((*entry).id_at)? == (*entry).id;
        let users = u64::from(read::<u32>((*entry).usecnt_at)?);
        let gone = read_volatile(&raw const (*entry).gone);
        let is_whole = is_it && gone == 0 && users == sends + receives;
        let sender = read_volatile(&raw const (*entry).sender);
        (
            sends,
            receives,
            is_whole,
            sender,
            read_volatile(&raw const (*entry).receiver),
        )
    };
    if is_whole && sends == 0 {
        request.wr.flags |= u32::from(flag::RECEIVE);
        request.wr.opcode = RECV;
    }
    let number = match (sends, receives) {
        (1, 0) => sender,
        (0, 1) => receiver,
        (1, 1) if sender == receiver => sender,
        _ => u32::MAX,
    };
    if !is_whole || number == u32::MAX {
        return report_of_cq(entry, &raw const *request);
    }
    if receives == 0 {
        let _ = recall(number, &raw mut *request, NO_OPCODE);
    } else if sends != 0 {
        // The completion may be that of a send.
        doubt(number);
    }
    let _ = report(number, &raw const *request);
    Some(())
}

/// Makes a record of a completion whose QP is not known, if the trace asks for it. `None` if that is not
/// known. Not inlined, as `report`.
#[inline(never)]
fn report_of_cq(entry: *mut UserCq, request: *const Request) -> Option<()> {
    let filter = filter()?;
    // SAFETY: the entry and the filter are from maps, and the request is on the caller's stack.
    unsafe {
        let is_wanted = read_volatile(&raw const (*entry).flags) & work_flag::WANTED != 0;
        if is_wanted && (*filter).flags & WrFilter::QPN != 0 {
            return None;
        }
        counted(count::HAPPENED, 1);
        if !is_wanted || (*filter).flags & WrFilter::NO_ENDS != 0 {
            counted(count::FILTERED, 1);
            return Some(());
        }
        let ends = &raw mut (*entry).ends;
        let nth = read_volatile(ends);
        add(ends, 1);
        if left_out(filter, nth) {
            counted(count::SAMPLED_OUT, 1);
            return Some(());
        }
        record(&(*entry).owner, kind::DONE, (*request).ts_ns, |record| {
            record.status = (*request).status;
            describe(record, &(*request).wr);
        });
    }
    Some(())
}
