//! Maps of QPs that probes on their programs count. The loader makes them only if the user asked for such
//! probes.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, Queue, Stack},
};
use rdmatop_common::counters::{OPCODES, QpSlot, USER_HITS_BITS, USER_QPS as QPS, UserHits, UserQp, free};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{
    maps::{CallEntry, CallKey, MMAPABLE, NO_PREALLOC},
    wr_maps::QpOwner,
};

/// Counters, as `QP_SLOTS`. The kernel side writes, user space reads through mmap and zeroes a slot before it
/// frees it.
#[map]
pub(crate) static USER_SLOTS: Array<QpSlot> = Array::with_max_entries(QPS, MMAPABLE);

/// More counters of the QP with the same number. Written, read and freed together with the slot.
#[map]
pub(crate) static USER_QPS: Array<UserQp> = Array::with_max_entries(QPS, MMAPABLE);

/// Numbers of `USER_SLOTS` that no QP has had yet, as ranges. User space fills it at load.
#[map]
pub(crate) static FREE_USER: Stack<u64> = Stack::with_max_entries(free::STACK, 0);

/// Numbers of destroyed QPs, the oldest first. A number is free again once user space has read and zeroed its
/// slot. Numbers that were taken and not used are here too.
#[map]
pub(crate) static USED_USER: Queue<u32> = Queue::with_max_entries(QPS, 0);

/// Work requests that a program is building with the `ibv_wr_*` calls, by number of the QP.
#[map]
pub(crate) static USER_BATCHES: Array<UserBatch> = Array::with_max_entries(QPS, 0);

/// Batches whose `ibv_wr_complete` has not returned yet.
#[map]
pub(crate) static USER_BUILT: HashMap<CallKey, UserBatch> = HashMap::with_max_entries(1024, 0);

/// Number of a QP by process and handle, which a probe knows. Written at modify, query and destroy.
#[map]
pub(crate) static USER_INDEX: HashMap<UserKey, u32> = HashMap::with_max_entries(QPS, NO_PREALLOC);

/// Number of a QP by the kernel's `struct ib_qp *`. Written together with `USER_INDEX`.
#[map]
pub(crate) static USER_NUMBERS: HashMap<u64, u32> = HashMap::with_max_entries(QPS, NO_PREALLOC);

/// Hits by the low bits of the CPU number: if all CPUs shared one word, each post would have to fetch it from
/// another CPU. User space reads the hits through mmap.
#[map]
pub(crate) static USER_HITS: Array<UserHits> = Array::with_max_entries(1 << USER_HITS_BITS, MMAPABLE);

/// Posts between entry and return: see body/calls.
#[map]
pub(crate) static USER_CALLS: Array<CallEntry<UserCall>> = Array::with_max_entries(USER_ENTRIES, 0);

/// Number of entries in [`USER_CALLS`], a power of two.
pub(crate) const USER_ENTRIES: u32 = 4096;

/// Posts that found their entry taken.
#[map]
pub(crate) static USER_REST: HashMap<CallKey, UserCall> = HashMap::with_max_entries(1024, 0);

/// Destroys between entry and return.
#[map]
pub(crate) static USER_DESTROYS: HashMap<CallKey, UserDestroy> = HashMap::with_max_entries(1024, 0);

/// What the records say about a QP whose work requests they are of, by number of the QP.
#[map]
pub(crate) static USER_WORK: Array<UserWork> = Array::with_max_entries(QPS, 0);

/// Number of a QP by what a completion names.
#[map]
pub(crate) static USER_QPNS: HashMap<UserQpn, u32> = HashMap::with_max_entries(2 * QPS, NO_PREALLOC);

/// Work requests that programs are building with the `ibv_wr_*` calls, or have not posted yet.
#[map]
pub(crate) static USER_BUILDING: HashMap<UserBuildingKey, Building> =
    HashMap::with_max_entries(65_536, NO_PREALLOC);

/// Calls of `poll_cq`, `start_poll` and `next_poll` between entry and return.
#[map]
pub(crate) static USER_POLLS: HashMap<CallKey, UserPoll> = HashMap::with_max_entries(4096, 0);

/// CQs of followed QPs. Written when a program finds a QP and when the QP is destroyed. No program sees the
/// end of a CQ, so a full map drops the entry used longest ago.
#[map]
pub(crate) static USER_CQS: LruHashMap<UserKey, UserCq> = LruHashMap::with_max_entries(QPS, 0);

/// A CQ whose completions a program may take by `ibv_start_poll`, which does not say which QP they are for.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UserCq {
    /// Addresses of two members of the kernel's `struct ib_cq`: the number of its users, and `res.id`, by
    /// which it differs from a later CQ at its address.
    pub(crate) usecnt_at: u64,
    pub(crate) id_at: u64,
    /// How many QPs have used the CQ for sends, and for receives.
    pub(crate) sends: u64,
    pub(crate) receives: u64,
    /// How many of these uses have ended. Completions of the ended ones may still be in the CQ.
    pub(crate) gone: u64,
    /// Number of completions whose QP is not known, for sampling.
    pub(crate) ends: u64,
    pub(crate) id: u32,
    /// Numbers of the QPs that joined the CQ last.
    pub(crate) sender: u32,
    pub(crate) receiver: u32,
    /// `work_flag::WANTED` if the filter lets records of one of its QPs through.
    pub(crate) flags: u32,
    /// What is known of all its QPs.
    pub(crate) owner: QpOwner,
}

/// A QP whose work requests make records.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UserWork {
    /// `struct ib_qp *`.
    pub(crate) qp: u64,
    /// The program's `struct ibv_qp *`.
    pub(crate) handle: u64,
    /// From that struct: its `struct ibv_context *` and its CQs. Zero until a call of the process was seen;
    /// the CQs may come from the kernel before that.
    pub(crate) context: u64,
    pub(crate) send_cq: u64,
    pub(crate) receive_cq: u64,
    /// How many sends, receives and completions were seen, for sampling.
    pub(crate) sends: u64,
    pub(crate) receives: u64,
    pub(crate) ends: u64,
    /// All sends below this number have ended. See user/sends.rs, also for the members up to `early_id`.
    pub(crate) ended: u64,
    /// When the QP last changed its state before anything could be posted, ns. Not valid in
    /// [`follow::NOT_BEGUN`].
    pub(crate) begun_ns: u64,
    /// Calls that post and have not returned yet.
    pub(crate) flying: u64,
    /// How many requests with the `wr_id` `early_id` have ended before the call that posts them returned.
    pub(crate) early: u64,
    pub(crate) early_id: u64,
    /// How many requests the program has begun with the `ibv_wr_*` calls.
    pub(crate) built: u64,
    /// Always 0, but the verifier does not know that. Before Linux 6.7 it follows only one turn of a callback
    /// of `bpf_loop` (until commit ab5cfac139ab), and removes as dead what only a later turn can reach. So a
    /// value that a callback both changes and tests must not begin as a constant.
    pub(crate) zero: u64,
    /// Bits of [`work_flag`].
    pub(crate) flags: u32,
    /// The threads that post and poll, 0 while none has.
    pub(crate) poster: u32,
    pub(crate) poller: u32,
    /// One of [`follow`].
    pub(crate) follow: u32,
    /// 1 after a modify to a state in which nothing can be posted to the send queue.
    pub(crate) is_empty: u32,
    /// One of [`signals`].
    pub(crate) signals: u32,
    pub(crate) dest_gid: [u8; 16],
    pub(crate) owner: QpOwner,
}

/// Bits of [`UserWork::flags`].
pub(crate) mod work_flag {
    /// A QP has the number.
    pub(crate) const USED: u32 = 1;
    /// The filter lets records of this QP through.
    pub(crate) const WANTED: u32 = 2;
}

/// Whether it is known which of a QP's requests a completion is for. `user/sends.rs` makes all steps:
///
/// ```text
///  number given, RESET        modify, queue empty         post or end that is        next post
/// ---------------> NOT_BEGUN ---------------> FOLLOWED ----------------> UNSURE ---------------> FORGOTTEN
///                      ^                         |   missing or ambiguous   |                        |
///                      +-------------------------+---------- RESET ---------+------------------------+
/// ```
pub(crate) mod follow {
    pub(crate) const NOT_BEGUN: u32 = 0;
    /// The QP's posts since its queue was last empty are in the map.
    pub(crate) const FOLLOWED: u32 = 1;
    /// They are still there, but not used.
    pub(crate) const UNSURE: u32 = 2;
    /// They have been removed.
    pub(crate) const FORGOTTEN: u32 = 3;
}

/// Which sends of a QP make completions when they succeed.
pub(crate) mod signals {
    pub(crate) const UNKNOWN: u32 = 0;
    pub(crate) const ALL: u32 = 1;
    /// Only those that ask for a completion.
    pub(crate) const ASKED: u32 = 2;
}

/// A QP as a completion names it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UserQpn {
    /// The program's `struct ibv_context *`, 0 in the key of a QP whose context is not known.
    pub(crate) context: u64,
    /// Process.
    pub(crate) pid: u32,
    pub(crate) qpn: u32,
}

/// Key of a request that is being built: the QP's number, and how many the program had begun before.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UserBuildingKey {
    pub(crate) number: u32,
    pub(crate) nth: u32,
}

/// A work request that is being built.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Building {
    pub(crate) wr_id: u64,
    pub(crate) bytes: u64,
    /// Not 0 if a part of the request could not be read.
    pub(crate) unread: u64,
    /// Network order.
    pub(crate) imm: u32,
    pub(crate) opcode: u32,
    /// `IBV_SEND_*`.
    pub(crate) send_flags: u32,
    pub(crate) reserved: u32,
}

/// A call of `poll_cq`, `start_poll` or `next_poll` in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UserPoll {
    /// The program's `struct ibv_cq *`.
    pub(crate) cq: u64,
    /// Where the provider writes completions. For `start_poll` and `next_poll`: the address in the CQ at
    /// which they put status and `wr_id` of one completion.
    pub(crate) wc: u64,
    /// As [`UserCall::stack`].
    pub(crate) stack: u64,
}

/// A QP as a probe on a program sees it.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct UserKey {
    /// `struct ibv_qp *` of the program.
    handle: u64,
    /// Process.
    pid: u32,
    reserved: u32,
}

impl UserKey {
    #[inline(always)]
    pub(crate) const fn new(handle: u64, pid: u32) -> Self {
        Self {
            handle,
            pid,
            reserved: 0,
        }
    }
}

/// A post in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UserCall {
    /// Number of the QP.
    pub(crate) number: u64,
    /// The program's list of work requests.
    pub(crate) list: u64,
    /// Where the provider writes the address of the first work request that it did not accept.
    pub(crate) bad: u64,
    /// When the program called, ns; 0 if no records are made.
    pub(crate) at_ns: u64,
    /// The thread's stack pointer at the entry, by which the call's return is told from that of a probed
    /// function that it calls.
    pub(crate) stack: u64,
}

/// Work requests between `ibv_wr_start` and `ibv_wr_complete`. The program holds the QP's lock meanwhile, so
/// this has one writer.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UserBatch {
    /// Number of the QP.
    pub(crate) number: u64,
    /// How many work requests.
    pub(crate) wrs: u64,
    /// Opcode class of the last work request, to which the next data belongs.
    pub(crate) last: u64,
    /// Counts by opcode, as in the slot.
    pub(crate) ops: [u64; OPCODES],
    pub(crate) op_bytes: [u64; OPCODES],
    /// For records: number of the first request in [`USER_BUILDING`], and when the program called
    /// `ibv_wr_complete`.
    pub(crate) first: u64,
    pub(crate) at_ns: u64,
    /// As [`UserCall::stack`], of the call of `ibv_wr_complete`.
    pub(crate) stack: u64,
}

/// A destroy in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct UserDestroy {
    pub(crate) qp: u64,
    pub(crate) born_ns: u64,
    pub(crate) number: u64,
}
