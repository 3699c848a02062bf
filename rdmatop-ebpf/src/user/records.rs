//! Records of single work requests of programs whose posts do not enter the kernel: the posts that
//! [`super::post`] and [`super::build`] count, and the completions that a program polls.
//!
//! Nothing here is read from a provider's queues. A post is reported at the return of the provider's
//! function, when it is known that the provider has accepted it. An end is a `struct ibv_wc` that the
//! provider's `poll_cq` has written (rdma-core, libibverbs/verbs.h). A request that is not signaled and
//! succeeds has no completion, and so no record of its end.

use core::{
    mem::MaybeUninit,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_probe_read_user};
use rdmatop_common::{
    counters::loss,
    event::UNKNOWN_U32,
    ib::{SIGNALED, opcode::has_imm, qp_type::UD},
    wr::{NO_OPCODE, NO_STATUS, WrFilter, count, flag, kind},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    body::{
        qp::{AH_GRH, mask},
        wr::{counted, describe, filter, left_out, record},
        wr_qps::is_wanted,
    },
    emit::lost_many,
    maps::{QpKnown, enabled},
    offsets::{
        OFF_ATTR_AH_FLAGS, OFF_ATTR_DEST_QPN, OFF_ATTR_DGID, OFF_ATTR_STATE, WANT_USER_WORK, get,
        get_or_zero, member, read_into,
    },
    share::caller,
    user::{
        cqs,
        maps::{USER_NUMBERS, USER_QPNS, USER_WORK, UserQpn, work_flag},
        sends::{forget_all, moves, remember},
    },
    words::{add, clear, copy, remove_if, zeroed},
    wr_maps::Outstanding,
};

/// Whether records of work requests are asked for. If not, the verifier removes the code that depends on it.
#[inline(always)]
pub(super) fn wanted() -> bool {
    WANT_USER_WORK.load() != 0
}

/// A work request to report.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Request {
    pub(super) ts_ns: u64,
    pub(super) kind: u32,
    pub(super) status: u32,
    pub(super) wr: Outstanding,
}

impl Request {
    #[inline(always)]
    fn of(place: &mut MaybeUninit<Self>, ts_ns: u64, wr_id: u64) -> &mut Self {
        let request = zeroed(place);
        request.ts_ns = ts_ns;
        request.wr.wr_id = wr_id;
        request.wr.flags = u32::from(flag::WR_ID);
        request.wr.dest_qpn = UNKNOWN_U32;
        request
    }

    /// A request that the calling thread has posted.
    #[inline(always)]
    pub(super) fn posted(place: &mut MaybeUninit<Self>, ts_ns: u64, wr_id: u64) -> &mut Self {
        let request = Self::of(place, ts_ns, wr_id);
        request.kind = u32::from(kind::POST);
        request.status = NO_STATUS;
        request.wr.post_ns = ts_ns;
        request.wr.flags |= u32::from(flag::THREAD);
        request.wr.tid = bpf_get_current_pid_tgid() as u32;
        request
    }

    /// A request that has ended.
    #[inline(always)]
    pub(super) fn ended(place: &mut MaybeUninit<Self>, ts_ns: u64, wr_id: u64, status: u32) -> &mut Self {
        let request = Self::of(place, ts_ns, wr_id);
        request.kind = u32::from(kind::DONE);
        request.status = status;
        request.wr.opcode = NO_OPCODE;
        request
    }
}

impl Outstanding {
    /// Sets opcode, flags and immediate data (network order) of a send.
    #[inline(always)]
    pub(super) fn send(&mut self, opcode: u32, send_flags: u32, imm: u32) {
        self.opcode = opcode;
        self.flags |= u32::from(if send_flags & SIGNALED != 0 {
            flag::SIGNALED
        } else {
            flag::SIGNALS_UNKNOWN
        });
        if has_imm(opcode) {
            self.set_imm(imm);
        }
    }

    /// Sets immediate data in network order.
    #[inline(always)]
    pub(super) fn set_imm(&mut self, imm: u32) {
        self.flags |= u32::from(flag::IMM);
        self.imm = u32::from_be(imm);
    }

    /// Sets the number of bytes, if the lengths of all segments could be read.
    #[inline(always)]
    pub(super) fn carries(&mut self, bytes: u64, unread: u64) {
        if unread == 0 {
            self.flags |= u32::from(flag::DETAILS);
            self.bytes = bytes as u32;
        }
    }
}

/// Makes a record of a work request of the QP with this number, if the trace asks for it. Not inlined, so
/// that it does not enlarge the callers' stack frames.
#[inline(never)]
pub(super) fn report(number: u32, request: *const Request) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    let filter = filter()?;
    // SAFETY: the map checked the pointers, and the caller's request is on its stack.
    unsafe {
        let known = read_volatile(&raw const (*work).flags);
        if known & work_flag::USED == 0 {
            // This is rdmatop's own QP, with which it measures the cost of a probe.
            return None;
        }
        counted(count::HAPPENED, 1);
        if known & work_flag::WANTED == 0 {
            counted(count::FILTERED, 1);
            return None;
        }
        let is_post = (*request).kind == u32::from(kind::POST);
        let is_receive = (*request).wr.flags & u32::from(flag::RECEIVE) != 0;
        let numbers = if !is_post {
            &raw mut (*work).ends
        } else if is_receive {
            &raw mut (*work).receives
        } else {
            &raw mut (*work).sends
        };
        let nth = read_volatile(numbers);
        if is_post && !is_receive && (*filter).flags & WrFilter::NO_ENDS == 0 {
            let _ = remember(number, nth, request);
        } else {
            add(numbers, 1);
        }
        if left_out(filter, nth) {
            counted(count::SAMPLED_OUT, 1);
            return None;
        }
        let unwanted = if is_post {
            WrFilter::NO_POSTS
        } else {
            WrFilter::NO_ENDS
        };
        if (*filter).flags & unwanted != 0 {
            counted(count::FILTERED, 1);
            return None;
        }
        record(
            &(*work).owner,
            (*request).kind as u16,
            (*request).ts_ns,
            |record| {
                record.object = (*work).qp;
                record.status = (*request).status;
                describe(record, &(*request).wr);
                if (*request).wr.dest_qpn == UNKNOWN_U32 {
                    copy(&raw const (*work).dest_gid, &raw mut record.dest_gid);
                }
            },
        );
    }
    Some(())
}

/// Whether each work request of the QP has a destination of its own (UD).
#[inline(always)]
pub(super) fn is_datagram(number: u32) -> bool {
    // SAFETY: the map checked the pointer.
    USER_WORK
        .get_ptr(number)
        .is_some_and(|work| unsafe { (*work).owner.qp_type == UD })
}

/// Counts a work request of which nothing is known but that it happened.
#[inline(always)]
pub(super) fn unseen() {
    unseen_many(1);
}

/// As [`unseen`], for several work requests.
#[inline(always)]
pub(super) fn unseen_many(wrs: u64) {
    counted(count::HAPPENED, wrs);
    lost_many(loss::WR_MISSED, wrs);
}

/// Writes what the records say about a QP that gets this number. No other QP has the number yet.
#[inline(always)]
pub(super) fn introduce(number: u32, qp: u64, known: &QpKnown, handle: u64) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        clear(work);
        (*work).qp = qp;
        (*work).handle = handle;
        let owner = &mut (*work).owner;
        owner.qpn = known.qpn;
        owner.qp_type = known.qp_type;
        owner.device_index = known.device_index;
        owner.pid = known.owner_pid;
        owner.flags = u32::from(known.flags & (flag::OWNER_TASK | flag::OWNER_KERNEL));
        owner.dest_qpn = UNKNOWN_U32;
        copy(&raw const known.owner_comm, &raw mut owner.comm);
        copy(&raw const known.device_name, &raw mut owner.device);
        let wanted = if is_wanted(owner) { work_flag::WANTED } else { 0 };
        write_volatile(&raw mut (*work).flags, work_flag::USED | wanted);
    }
    find_by_qpn(number, qp, known);
    Some(())
}

/// Has completions find the QP by its QP number alone until the address of the program's context is known,
/// unless a QP of another device has the same number.
#[inline(always)]
pub(super) fn find_by_qpn(number: u32, qp: u64, known: &QpKnown) {
    let key = UserQpn {
        context: 0,
        pid: known.owner_pid,
        qpn: known.qpn,
    };
    let mut found = number;
    if let Some(other) = USER_QPNS.get_ptr(&key) {
        // SAFETY: the map checked the pointers.
        unsafe {
            if USER_WORK.get_ptr(*other).is_some_and(|theirs| (*theirs).qp != qp) {
                found = u32::MAX;
            }
        }
    }
    let _ = USER_QPNS.insert(&key, &found, 0);
}

/// Forgets the QP that had a number.
#[inline(always)]
pub(super) fn retire(number: u32) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer.
    unsafe {
        forget_all(number, work);
        cqs::leave(&*work);
        for context in [0, read_volatile(&raw const (*work).context)] {
            let key = UserQpn {
                context,
                pid: (*work).owner.pid,
                qpn: (*work).owner.qpn,
            };
            remove_if(&USER_QPNS, &key, number);
        }
    }
    Some(())
}

/// Reads from the program's own `struct ibv_qp` its context and its CQs. Must run in a call of the QP's
/// process. The struct begins with context, `qp_context`, pd, `send_cq`, `recv_cq`.
#[inline(always)]
pub(super) fn look(number: u32) -> Option<()> {
    let work = USER_WORK.get_ptr_mut(number)?;
    // SAFETY: the map checked the pointer; each CPU writes whole words, and the same values.
    unsafe {
        if read_volatile(&raw const (*work).context) != 0 || (*work).flags & work_flag::USED == 0 {
            return None;
        }
        if caller() != (*work).owner.pid {
            return None;
        }
        let [context, _, _, send_cq, receive_cq] =
            bpf_probe_read_user((*work).handle as *const [u64; 5]).ok()?;
        if context == 0 {
            return None;
        }
        (*work).send_cq = send_cq;
        (*work).receive_cq = receive_cq;
        let key = UserQpn {
            context,
            pid: (*work).owner.pid,
            qpn: (*work).owner.qpn,
        };
        // The kernel reuses QP numbers: the entry of an older QP with this number is replaced.
        let _ = USER_QPNS.insert(&key, &number, 0);
        write_volatile(&raw mut (*work).context, context);
    }
    Some(())
}

/// Entry of `_ib_modify_qp(qp, attr, attr_mask, udata)`: reads which peer the QP gets. A QP gets its peer on
/// its way to RTR. A modify that fails leaves the QP without a peer, and the next try names the peer again.
/// Not inlined: the verifier adds up the frames of a program and of the functions that it calls, and those of
/// `user_modify` had no room for this one (Linux 6.1 counts 32 bytes at a time).
#[inline(never)]
pub(crate) fn modifying(qp: u64, attr: u64, attr_mask: u32) -> Option<()> {
    if !wanted() || !enabled() {
        return None;
    }
    // SAFETY: the map checked the pointer.
    let number = unsafe { *USER_NUMBERS.get_ptr(&qp)? };
    let work = USER_WORK.get_ptr_mut(number)?;
    // SAFETY: as above.
    unsafe {
        if attr_mask & mask::STATE != 0
            && let Some(to) = get::<u32>(attr, &OFF_ATTR_STATE)
        {
            moves(number, work, to);
        }
        if attr_mask & mask::DEST_QPN != 0 {
            (*work).owner.dest_qpn = get(attr, &OFF_ATTR_DEST_QPN).unwrap_or(UNKNOWN_U32);
        }
        if attr_mask & mask::AV != 0
            && get_or_zero::<u8>(attr, &OFF_ATTR_AH_FLAGS) & AH_GRH != 0
            && let Some(gid) = member(attr, &OFF_ATTR_DGID)
        {
            read_into(&mut (*work).dest_gid, gid);
        }
    }
    look(number)
}
