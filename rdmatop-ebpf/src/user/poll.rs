//! Calls of a provider's `poll_cq`.

use core::{mem::MaybeUninit, ptr::read_volatile};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user};
use rdmatop_common::{
    ib::{RECV, WITH_IMM, qp_type::UD},
    wr::flag,
};

use crate::{
    body::Hook,
    maps::enabled,
    task::{call_key, now},
    user::{
        maps::{USER_POLLS, USER_QPNS, USER_WORK, UserPoll, UserQpn},
        qps::{Entered, count_hit},
        records::{Request, look, report, unseen, wanted},
        sends::{doubt, recall},
    },
    words::{each, halves},
};

/// Bytes from one completion to the next in the array that `poll_cq` fills: `sizeof(struct ibv_wc)`.
const WC: u64 = 48;

/// The most completions that one call may return; a higher result is ignored.
const COMPLETIONS: i32 = 1 << 16;

/// `IBV_WR_*` for each `IBV_WC_*` of a send that stands for only one kind of request, four bits each: RDMA
/// READ, compare and swap, fetch and add, bind, invalidate. `IBV_WC_SEND` and `IBV_WC_RDMA_WRITE` stand for
/// several.
const FIRST_KNOWN: u32 = 2;
const LAST_KNOWN: u32 = 6;
const REQUEST_OF: u64 = 0x0786_5400;

/// Entry of a provider's `poll_cq(cq, num_entries, wc)`.
#[inline(always)]
pub(crate) fn polling(cq: u64, wc: u64, at: &Entered) -> Option<()> {
    if !wanted() || !enabled() {
        return None;
    }
    count_hit();
    if at.is_by_context_of(cq) {
        begin_poll(
            Hook::UserPoll,
            &UserPoll {
                cq,
                wc,
                stack: at.stack,
            },
        );
    }
    Some(())
}

/// Remembers a call that polls. It replaces an earlier one of this thread whose return no program saw, or
/// inside which the thread polls. If that is of another CQ, its completions are not seen; of the same CQ, the
/// earlier one may be a `start_poll` that calls `next_poll`.
#[inline(always)]
pub(super) fn begin_poll(hook: Hook, call: &UserPoll) {
    let key = call_key(hook);
    let replaces = USER_POLLS.get_ptr(&key).is_some_and(|earlier| {
        // SAFETY: the map checked the pointer; no other thread has this key.
        unsafe { (*earlier).cq != call.cq }
    });
    if USER_POLLS.insert(&key, call, 0).is_err() || replaces {
        unseen();
    }
}

/// State of a walk over completions.
struct Polled {
    next: u64,
    context: u64,
    cq: u64,
    ts_ns: u64,
    pid: u64,
}

/// Forgets and returns the call that polls and was entered with this stack pointer.
#[inline(always)]
pub(super) fn end_poll(hook: Hook, stack: u64) -> Option<UserPoll> {
    let key = call_key(hook);
    // SAFETY: the map checked the pointer; no other thread has this key.
    let call = unsafe { *USER_POLLS.get_ptr(&key)? };
    if call.stack != stack {
        return None;
    }
    let _ = USER_POLLS.remove(&key);
    count_hit();
    Some(call)
}

/// Return of a provider's `poll_cq`. `rc` is the number of completions that it has written.
#[inline(always)]
pub(crate) fn polled(rc: i32, stack: u64) -> Option<()> {
    let UserPoll { cq, wc, .. } = end_poll(Hook::UserPoll, stack)?;
    if rc <= 0 || rc > COMPLETIONS {
        return None;
    }
    let mut polled = Polled {
        next: wc,
        // A `struct ibv_cq` begins with its context.
        // SAFETY: the helper checks the address itself.
        context: unsafe { bpf_probe_read_user(cq as *const u64) }.unwrap_or(0),
        cq,
        ts_ns: now(),
        pid: bpf_get_current_pid_tgid() >> 32,
    };
    each(rc.cast_unsigned(), completion, &mut polled);
    Some(())
}

/// Returns the number of the QP that a completion is for.
#[inline(always)]
fn of_completion(polled: &Polled, qpn: u32) -> Option<u32> {
    let mut key = UserQpn {
        context: polled.context,
        pid: polled.pid as u32,
        qpn,
    };
    if let Some(number) = USER_QPNS.get_ptr(&key) {
        // SAFETY: the map checked the pointer.
        return Some(unsafe { *number });
    }
    // No call of the QP's process has shown the context of the QP so far.
    key.context = 0;
    // SAFETY: as above.
    let number = unsafe { *USER_QPNS.get_ptr(&key)? };
    let _ = look(number);
    let work = USER_WORK.get_ptr(number)?;
    // SAFETY: as above.
    (unsafe { read_volatile(&raw const (*work).context) } == polled.context).then_some(number)
}

/// Reports one completion. A `struct ibv_wc` has `wr_id`, status, opcode, `vendor_err`, `byte_len`, imm,
/// `qp_num`, `src_qp`, `wc_flags`.
unsafe extern "C" fn completion(_turn: u32, polled: *mut Polled) -> i64 {
    // SAFETY: the walk is on the caller's stack; the verifier follows its pointers.
    unsafe {
        let at = (*polled).next;
        (*polled).next = at + WC;
        let Ok([wr_id, outcome, length, number, source]) = bpf_probe_read_user(at as *const [u64; 5]) else {
            unseen();
            return 0;
        };
        let (status, opcode) = halves(outcome);
        let (_, bytes) = halves(length);
        let (imm, qpn) = halves(number);
        let (source, wc_flags) = halves(source);
        let Some(number) = of_completion(&*polled, qpn) else {
            // It is not known whether the trace asks for this QP.
            unseen();
            return 0;
        };
        let Some(work) = USER_WORK.get_ptr(number) else {
            return 0;
        };
        let mut place = MaybeUninit::<Request>::uninit();
        let request = Request::ended(&mut place, (*polled).ts_ns, wr_id, status);
        let of_receives = if status == 0 {
            opcode >= RECV
        } else {
            // A failed completion has no opcode. It is of the receive queue for certain only if that has its
            // own CQ.
            (*work).send_cq != (*work).receive_cq && (*work).receive_cq == (*polled).cq
        };
        if of_receives {
            request.wr.flags |= u32::from(flag::RECEIVE);
            request.wr.opcode = RECV;
        }
        if status == 0 && of_receives {
            request.wr.opcode = opcode;
            request.wr.carries(u64::from(bytes), 0);
            if wc_flags & WITH_IMM != 0 {
                request.wr.set_imm(imm);
            }
            if (*work).owner.qp_type == UD {
                request.wr.dest_qpn = source;
            }
        } else if status == 0 && (FIRST_KNOWN..=LAST_KNOWN).contains(&opcode) {
            request.wr.opcode = (REQUEST_OF >> (opcode * 4) & 15) as u32;
        }
        if !of_receives {
            if status == 0 || (*work).send_cq != (*work).receive_cq {
                let _ = recall(number, &raw mut *request, opcode);
            } else {
                // A failed completion from a CQ that both queues share may be that of a receive.
                doubt(number);
            }
        }
        let _ = report(number, &raw const *request);
    }
    0
}
