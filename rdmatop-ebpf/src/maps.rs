//! Every map: type, size, who writes, who reads.
//!
//! User space reads and writes the mmapped ones without a system call, and makes none on the others once counting has
//! begun: while bpf(2) works on a map the kernel skips every kprobe program on that CPU (`bpf_disable_instrumentation`,
//! kernel/bpf/syscall.c), and a task that is preempted inside keeps them off for as long as it does not run.

use core::{
    cell::UnsafeCell,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, Queue, RingBuf, Stack},
};
use rdmatop_common::{
    counters::{
        DEFAULT_SLOTS, KNOWN_QPS, QpSlot, STAMPS_PER_QP, VERB_ENTRIES, VERB_ERROR_ENTRIES, VerbEntry,
        VerbErrorEntry, VerbErrorKey, VerbKey, free, loss,
    },
    event::{COMM_LEN, DEVICE_NAME_LEN, ObjectRecord},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `BPF_F_MMAPABLE`, include/uapi/linux/bpf.h.
const MMAPABLE: u32 = 1 << 10;

/// Lifecycle records. Kernel writes, the ring source reads. User space sets the size at load.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// What was lost, by cause. Kernel adds, user space reads through mmap.
#[map]
pub(crate) static LOSSES: Array<u64> = Array::with_max_entries(loss::COUNT, MMAPABLE);

/// Word 0: 1 once all programs are attached. User space writes, every program reads first.
#[map]
pub(crate) static CONTROL: Array<u32> = Array::with_max_entries(1, 0);

/// Modify calls between entry and return: see body/calls.
#[map]
pub(crate) static MODIFY_CALLS: Array<Place<ModifyCall>> = Array::with_max_entries(MODIFY_PLACES, 0);

/// Number of places in [`MODIFY_CALLS`], a power of two.
pub(crate) const MODIFY_PLACES: u32 = 4096;

/// Those that found their place taken.
#[map]
pub(crate) static MODIFY_REST: HashMap<CallKey, ModifyCall> = HashMap::with_max_entries(1024, 0);

/// Destroy calls between entry and return.
#[map]
pub(crate) static DESTROY_CALLS: Array<Place<DestroyCall>> = Array::with_max_entries(DESTROY_PLACES, 0);

/// Number of places in [`DESTROY_CALLS`], a power of two.
pub(crate) const DESTROY_PLACES: u32 = 1024;

/// Those that found their place taken.
#[map]
pub(crate) static DESTROY_REST: HashMap<CallKey, DestroyCall> = HashMap::with_max_entries(1024, 0);

/// MR and CQ destroys between entry and return.
#[map]
pub(crate) static OBJECT_CALLS: HashMap<CallKey, ObjectRecord> = HashMap::with_max_entries(4096, 0);

/// Verb calls by ioctl between entry and return: see body/calls.
#[map]
pub(crate) static IOCTL_CALLS: Array<Place<VerbCall>> = Array::with_max_entries(IOCTL_PLACES, 0);

/// Number of places in [`IOCTL_CALLS`], a power of two.
pub(crate) const IOCTL_PLACES: u32 = 4096;

/// Verb calls that found their place taken, and those by `write()` of rdma_cm.
#[map]
pub(crate) static VERB_CALLS: HashMap<CallKey, VerbCall> = HashMap::with_max_entries(8192, 0);

/// `write()` calls of verbs between entry and return, by the low bits of the thread: every doorbell passes here, and a
/// place that is known costs a tenth of a hash. Who finds it taken goes to `VERB_CALLS`.
#[map]
pub(crate) static WRITE_CALLS: Array<WriteCall> = Array::with_max_entries(WRITE_PLACES, 0);

/// Number of places for [`WRITE_CALLS`], a power of two.
pub(crate) const WRITE_PLACES: u32 = 4096;

/// Verb counters. Kernel writes, user space reads through mmap. Shared between CPUs with atomic adds: one process
/// rarely makes one verb on two CPUs at once.
#[map]
pub(crate) static VERBS: Array<VerbEntry> = Array::with_max_entries(VERB_ENTRIES, MMAPABLE);

/// Where in `VERBS`. Kernel writes and reads; user space removes those of ended processes when room becomes scarce.
#[map]
pub(crate) static VERB_INDEX: HashMap<VerbKey, u32> = HashMap::with_max_entries(VERB_ENTRIES, 0);

/// Numbers in `VERBS` that nobody has, as ranges. User space fills it at load.
#[map]
pub(crate) static FREE_VERBS: Stack<u64> = Stack::with_max_entries(free::STACK, 0);

/// Failed verb calls by errno, as `VERBS`.
#[map]
pub(crate) static VERB_ERRORS: Array<VerbErrorEntry> = Array::with_max_entries(VERB_ERROR_ENTRIES, MMAPABLE);

/// As `VERB_INDEX`.
#[map]
pub(crate) static VERB_ERROR_INDEX: HashMap<VerbErrorKey, u32> =
    HashMap::with_max_entries(VERB_ERROR_ENTRIES, 0);

/// As `FREE_VERBS`.
#[map]
pub(crate) static FREE_VERB_ERRORS: Stack<u64> = Stack::with_max_entries(free::STACK, 0);

/// Owner of an rdma_cm id by its number. Ids are never told to be gone here, so the oldest give way.
#[map]
pub(crate) static CM_OWNERS: LruHashMap<u32, CmOwner> = LruHashMap::with_max_entries(4096, 0);

/// What is known of a QP by its address. Written at create, modify and destroy, and with the first work request.
#[map]
pub(crate) static QP_INDEX: HashMap<u64, QpKnown> =
    HashMap::with_max_entries(KNOWN_QPS, 1 /* BPF_F_NO_PREALLOC */);

/// Where the rings of a counted QP are, and how far its counts are; by slot.
#[map]
pub(crate) static QP_PATHS: Array<QpPath> = Array::with_max_entries(DEFAULT_SLOTS, 0);

/// Slot in which a QP was seen last, by the top bits of a hash of its address: this is a few instructions where a hash
/// table's look-up is more than a hundred. `QpPath::qp` says whether it still is. Not a map of ours but `.bss`, whose
/// address a program knows without a look-up.
pub(crate) static QP_HINTS: Hints = Hints(UnsafeCell::new([0; 1 << HINT_BITS]));

/// See [`QP_HINTS`].
pub(crate) struct Hints(UnsafeCell<[u32; 1 << HINT_BITS]>);

// SAFETY: words that are read and written whole, and that nobody trusts.
unsafe impl Sync for Hints {}

impl Hints {
    /// Where the hint about a QP is. Addresses of a slab differ in their middle bits: multiplying brings those to the
    /// top.
    #[inline(always)]
    pub(crate) fn of(&self, qp: u64) -> *mut u32 {
        let place = qp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HINT_BITS);
        // SAFETY: that many bits are left.
        unsafe { self.0.get().cast::<u32>().add(place as usize) }
    }
}

/// Log2 of the number of hints.
pub(crate) const HINT_BITS: u32 = 14;

/// Calls of soft iWARP that complete a WR, by a hash of their stack: see body/siw_cqe. Of `.bss`, as [`QP_HINTS`].
pub(crate) static CQE_CALLS: CqeCalls = CqeCalls(UnsafeCell::new([[0; 2]; 1 << CQE_PLACE_BITS]));

/// See [`CQE_CALLS`].
pub(crate) struct CqeCalls(UnsafeCell<[[u64; 2]; 1 << CQE_PLACE_BITS]>);

// SAFETY: words that are read and written whole; what is read is checked.
unsafe impl Sync for CqeCalls {}

impl CqeCalls {
    /// The place of a number of [`CQE_PLACE_BITS`] bits.
    #[inline(always)]
    pub(crate) fn at(&self, number: u64) -> *mut [u64; 2] {
        let number = number as usize & ((1 << CQE_PLACE_BITS) - 1);
        // SAFETY: inside the array.
        unsafe { self.0.get().cast::<[u64; 2]>().add(number) }
    }
}

/// Log2 of the number of places in [`CQE_CALLS`].
pub(crate) const CQE_PLACE_BITS: u32 = 10;

/// Counters. The data path writes, user space reads through mmap and zeroes a slot before it frees it.
#[map]
pub(crate) static QP_SLOTS: Array<QpSlot> = Array::with_max_entries(DEFAULT_SLOTS, MMAPABLE);

/// Slots that nobody has had yet, as ranges. User space fills it at load.
#[map]
pub(crate) static FREE_SLOTS: Stack<u64> = Stack::with_max_entries(free::STACK, 0);

/// Slots of destroyed QPs, the oldest first. One is free again once user space has read and zeroed it.
#[map]
pub(crate) static USED_SLOTS: Queue<u32> = Queue::with_max_entries(DEFAULT_SLOTS, 0);

/// QP address by device address and QP number: a user CQE holds only the number. Written at create and destroy.
#[map]
pub(crate) static QPN_INDEX: HashMap<QpnKey, u64> =
    HashMap::with_max_entries(KNOWN_QPS, 1 /* BPF_F_NO_PREALLOC */);

/// Slot of a QP by the address of either of its queues. Written with the slot and at destroy, read once when a queue is
/// freed. Also what decides between CPUs that give the same QP a slot: the first to enter the send queue.
#[map]
pub(crate) static QUEUE_SLOTS: HashMap<u64, u32> =
    HashMap::with_max_entries(2 * DEFAULT_SLOTS, 1 /* BPF_F_NO_PREALLOC */);

/// No slot is looked for before this time, ns: none was left a moment ago, and who finds none asks with each event.
pub(crate) static NEXT_TRY: Word = Word(UnsafeCell::new(0));

/// A word that every program may write. Of `.bss`, as [`QP_HINTS`].
pub(crate) struct Word(UnsafeCell<u64>);

// SAFETY: read and written whole; it may be a little old.
unsafe impl Sync for Word {}

impl Word {
    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        // SAFETY: see above.
        unsafe { read_volatile(self.0.get()) }
    }

    #[inline(always)]
    pub(crate) fn store(&self, value: u64) {
        // SAFETY: see above.
        unsafe { write_volatile(self.0.get(), value) };
    }
}

/// A call in flight: the thread and the hook (one thread can be in modify and destroy at once, through a
/// destroy that drains).
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CallKey {
    pub(crate) tid: u32,
    pub(crate) hook: u32,
}

/// Where a call in flight is remembered.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Place<T> {
    /// 1 while somebody has it, more while others try.
    pub(crate) claims: u64,
    /// Hook and thread; 0 is none.
    pub(crate) who: u64,
    pub(crate) call: T,
}

/// A modify in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ModifyCall {
    pub(crate) start_ns: u64,
    /// `struct ib_qp *`: alive at return.
    pub(crate) qp: u64,
    /// `struct ib_qp_attr *` of the caller: so is this.
    pub(crate) attr: u64,
    pub(crate) mask: u64,
}

/// A destroy in flight. At return the QP is gone, and another may have its address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DestroyCall {
    pub(crate) start_ns: u64,
    pub(crate) qp: u64,
    pub(crate) known: QpKnown,
}

/// A verb call in flight.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VerbCall {
    pub(crate) start_ns: u64,
    /// `struct ib_uverbs_file *`
    pub(crate) file: u64,
    /// `struct ib_uverbs_ioctl_hdr *`, the kernel's copy: on the stack of the caller, so still there at return.
    pub(crate) header: u64,
    /// `struct ib_uverbs_attr *` of the user.
    pub(crate) attrs: u64,
}

/// A write() in flight.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct WriteCall {
    pub(crate) start_ns: u64,
    /// The user's buffer.
    pub(crate) buffer: u64,
    /// Whose; 0 is nobody's.
    pub(crate) tid: u32,
    pub(crate) reserved: u32,
}

/// What is known of a QP, of any provider. What never changes is read once, so that an event costs few reads. It lies on
/// the stack while it is filled in: 8 bytes more, and Linux 6.1 refuses the deepest of the calls that do so.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpKnown {
    /// Number in `QP_SLOTS`, or one of `counters::place`.
    pub(crate) slot: u32,
    /// Bits of `event::flag`: about owner and device, `KTHREAD` when the owner is one, and `CREATED`.
    pub(crate) flags: u16,
    /// `IB_QPS_*`, `UNKNOWN_U8` when not known.
    pub(crate) state: u8,
    /// `ib_qp.port`, `UNKNOWN_U8` while it has none.
    pub(crate) port: u8,
    /// `struct ib_device *`.
    pub(crate) device: u64,
    /// `ib_qp.qp_num`.
    pub(crate) qpn: u32,
    /// `ib_qp.qp_type`.
    pub(crate) qp_type: u32,
    /// Process that made it, with `flag::OWNER_TASK`.
    pub(crate) owner_pid: u32,
    /// `ib_device.index`, `UNKNOWN_U32` when not known.
    pub(crate) device_index: u32,
    /// The owner's name when the QP was first seen.
    pub(crate) owner_comm: [u8; COMM_LEN],
    /// When it was first seen: tells it from the next one at its address.
    pub(crate) born_ns: u64,
    /// When its owner was started, 0 when not known: tells it from the next process of that number.
    pub(crate) owner_start_ns: u64,
    /// Where its rings' consumers were then: a new QP's are at 0. Counts begin there, however late the slot comes.
    pub(crate) sq_base: u32,
    pub(crate) rq_base: u32,
    /// `slot_flag::SINCE_ATTACH` of one that was there before. A word, so that all is copied by words.
    pub(crate) since: u64,
    /// The device's name when the QP was first seen: a device that was renamed since is known by its index.
    pub(crate) device_name: [u8; DEVICE_NAME_LEN],
}

/// The data path of a counted QP. Counts are the slot's; index = (count + base) & mask in the provider's ring.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpPath {
    /// `struct ib_qp *`, 0 for none.
    pub(crate) qp: u64,
    /// `struct rxe_queue_buf *` of the send and the receive queue: a QP's queues are never resized.
    pub(crate) sq_ring: u64,
    pub(crate) rq_ring: u64,
    /// `struct rxe_queue *` of the two, 0 for none.
    pub(crate) sq: u64,
    pub(crate) rq: u64,
    pub(crate) sq_mask: u32,
    pub(crate) rq_mask: u32,
    /// Log2 of the size of a send queue element.
    pub(crate) sq_shift: u32,
    /// Bits of `slot_flag`.
    pub(crate) flags: u32,
    pub(crate) sq_base: u64,
    pub(crate) rq_base: u64,
    /// Send WRs that the completer has been seen to consume. `QpSlot::tx_done` may be ahead of it, by WRs that are
    /// flushed: see `failed` in body/rxe.
    pub(crate) done: u64,
    /// The first send WR that did not finish well, in this life of the QP (until it goes to RTS again): from it on all
    /// are flushed or dropped. All ones for none.
    pub(crate) failed: u64,
    /// Receive WRs that the responder has been seen to consume.
    pub(crate) taken: u64,
    /// 1 while a modify to RESET is on its way.
    pub(crate) resetting: u64,
    /// Send WRs whose opcode and length have been read.
    pub(crate) walked: u64,
    /// Send WRs whose doorbell has been seen.
    pub(crate) rung: u64,
    /// Time of the doorbell of the WR that finished last, 0 = not known.
    pub(crate) carry_ns: u64,
    /// When the last CQE of a send WR was about to be placed, 0 = none since the completer was last entered.
    pub(crate) cqe_ns: u64,
    /// `expires` of the RNR timer's last wait that is counted.
    pub(crate) rnr_expires: u64,
    /// The same, as a packet that was sent again found it: the requester writes it, the completer reads it.
    pub(crate) rnr_resent: u64,
    /// The PSN that no request has used yet.
    pub(crate) fresh_psn: u32,
    /// 1 when `fresh_psn` means something.
    pub(crate) psn_known: u32,
    /// When the doorbells were rung, by WR number. The doorbell writes, the completer reads. Nothing is ever cleared:
    /// a stamp carries the lap it belongs to (see `stamp` in body/rxe).
    pub(crate) stamps: [u64; STAMPS_PER_QP],
}

/// A QP number on a device.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpnKey {
    pub(crate) device: u64,
    pub(crate) qpn: u32,
    pub(crate) reserved: u32,
}

/// Owner of an rdma_cm id.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CmOwner {
    pub(crate) pid: u32,
    pub(crate) flags: u32,
    /// A word, so that the names are aligned and copied by words.
    pub(crate) device_index: u64,
    pub(crate) comm: [u8; COMM_LEN],
    pub(crate) device: [u8; DEVICE_NAME_LEN],
}

/// Whether user space has switched counting on.
#[inline(always)]
pub(crate) fn enabled() -> bool {
    CONTROL.get(0).is_some_and(|word| *word == 1)
}
