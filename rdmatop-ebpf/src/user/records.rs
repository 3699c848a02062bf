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
    wr::{NO_STATUS, WrFilter, WrRecord, count, flag, kind},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    body::{
        qp::{AH_GRH, mask},
        wr::{NO_WAKEUP, counted, filter, left_out},
        wr_qps::{QpIdentity, is_wanted},
    },
    emit::{lost, lost_many},
    maps::{QpKnown, enabled},
    offsets::{
        OFF_ATTR_AH_FLAGS, OFF_ATTR_DEST_QPN, OFF_ATTR_DGID, OFF_ATTR_STATE, WANT_USER_WORK, get,
        get_or_zero, member, read_into,
    },
    user::{
        cqs,
        maps::{USER_NUMBERS, USER_QPNS, USER_WORK, UserQpn, work_flag},
        sends::{forget_all, moves, remember},
    },
    words::{add, clear, copy, zeroed},
    wr_maps::WR_EVENTS,
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
    pub(super) wr_id: u64,
    /// For an end: when the request was posted, ns; 0 when that is not known.
    pub(super) post_ns: u64,
    pub(super) kind: u32,
    pub(super) status: u32,
    pub(super) opcode: u32,
    pub(super) bytes: u32,
    /// In the host's byte order.
    pub(super) imm: u32,
    /// Bits of `wr::flag`.
    pub(super) flags: u32,
    pub(super) tid: u32,
    /// [`UNKNOWN_U32`] for the peer that the QP is connected to.
    pub(super) dest_qpn: u32,
}

impl Request {
    /// A request that the calling thread has posted.
    #[inline(always)]
    pub(super) fn posted(place: &mut MaybeUninit<Self>, ts_ns: u64, wr_id: u64) -> &mut Self {
        let request = zeroed(place);
        request.kind = u32::from(kind::POST);
        request.status = NO_STATUS;
        request.ts_ns = ts_ns;
        request.wr_id = wr_id;
        request.flags = u32::from(flag::WR_ID | flag::THREAD);
        request.tid = bpf_get_current_pid_tgid() as u32;
        request.dest_qpn = UNKNOWN_U32;
        request
    }

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
            self.flags |= u32::from(flag::IMM);
            self.imm = u32::from_be(imm);
        }
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
        let numbers = if !is_post {
            &raw mut (*work).ends
        } else if (*request).flags & u32::from(flag::RECEIVE) != 0 {
            &raw mut (*work).receives
        } else {
            &raw mut (*work).sends
        };
        let nth = read_volatile(numbers);
        let is_receive = (*request).flags & u32::from(flag::RECEIVE) != 0;
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
        let Some(mut entry) = WR_EVENTS.reserve::<WrRecord>(0) else {
            lost(loss::WR_RING);
            return None;
        };
        let record = zeroed(&mut entry);
        record.ts_ns = (*request).ts_ns;
        record.object = (*work).qp;
        record.wr_id = (*request).wr_id;
        record.post_ns = if is_post {
            (*request).ts_ns
        } else {
            (*request).post_ns
        };
        record.kind = (*request).kind as u16;
        record.flags = (*request).flags as u16 | (*work).owner as u16;
        record.status = (*request).status;
        record.opcode = (*request).opcode;
        record.bytes = (*request).bytes;
        record.imm = (*request).imm;
        record.tid = (*request).tid;
        record.qpn = (*work).qpn;
        record.qp_type = (*work).qp_type;
        record.device_index = (*work).device_index;
        record.owner_pid = (*work).owner_pid;
        record.dest_qpn = (*request).dest_qpn;
        copy(&raw const (*work).owner_comm, &raw mut record.owner_comm);
        copy(&raw const (*work).device_name, &raw mut record.device);
        if (*request).dest_qpn == UNKNOWN_U32 {
            record.dest_qpn = (*work).dest_qpn;
            copy(&raw const (*work).dest_gid, &raw mut record.dest_gid);
        }
        entry.submit(NO_WAKEUP);
    }
    Some(())
}

/// Whether each work request of the QP has a destination of its own (UD).
#[inline(always)]
pub(super) fn is_datagram(number: u32) -> bool {
    // SAFETY: the map checked the pointer.
    USER_WORK
        .get_ptr(number)
        .is_some_and(|work| unsafe { (*work).qp_type == UD })
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
        (*work).qpn = known.qpn;
        (*work).qp_type = known.qp_type;
        (*work).device_index = known.device_index;
        (*work).owner_pid = known.owner_pid;
        (*work).owner = u32::from(known.flags & (flag::OWNER_TASK | flag::OWNER_KERNEL));
        (*work).dest_qpn = UNKNOWN_U32;
        copy(&raw const known.owner_comm, &raw mut (*work).owner_comm);
        copy(&raw const known.device_name, &raw mut (*work).device_name);
        let identity = QpIdentity {
            pid: known.owner_pid,
            flags: u32::from(known.flags),
            comm: &known.owner_comm,
            qpn: known.qpn,
            device: &known.device_name,
        };
        let wanted = if is_wanted(&identity) {
            work_flag::WANTED
        } else {
            0
        };
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
                pid: (*work).owner_pid,
                qpn: (*work).qpn,
            };
            if let Some(owner) = USER_QPNS.get_ptr(&key)
                && *owner == number
            {
                let _ = USER_QPNS.remove(&key);
            }
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
        if (bpf_get_current_pid_tgid() >> 32) as u32 != (*work).owner_pid {
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
            pid: (*work).owner_pid,
            qpn: (*work).qpn,
        };
        // The kernel reuses QP numbers: the entry of an older QP with this number is replaced.
        let _ = USER_QPNS.insert(&key, &number, 0);
        write_volatile(&raw mut (*work).context, context);
    }
    Some(())
}

/// Entry of `_ib_modify_qp(qp, attr, attr_mask, udata)`: reads which peer the QP gets. A QP gets its peer on
/// its way to RTR. A modify that fails leaves the QP without a peer, and the next try names the peer again.
#[inline(always)]
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
            (*work).dest_qpn = get(attr, &OFF_ATTR_DEST_QPN).unwrap_or(UNKNOWN_U32);
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
