//! Every map: its type, its size, its writers and its readers. docs/identity.md says for each key why no two
//! objects share it.
//!
//! User space reads and writes the mmapped maps without a system call. Once counting has begun it makes
//! system calls on the others only to make room in a full one, and to switch counting off: while bpf(2)
//! works on a map, the kernel skips every kprobe program on that CPU (`bpf_disable_instrumentation`,
//! kernel/bpf/syscall.c), and if the calling task is preempted there, it skips them until that task runs
//! again.
//!
//! No map grows. The loader sets the sizes of those that hold QPs.

use core::{
    cell::UnsafeCell,
    ptr::{read_volatile, write_volatile},
};

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, Queue, RingBuf, Stack},
};
use rdmatop_common::{
    counters::{
        CALLERS as PLACES, Caller, QpSlot, RXE_SEEN_BITS, RxeSeen, STAMPS_PER_QP, Unread, VERB_ENTRIES,
        VERB_ERROR_ENTRIES, VerbEntry, VerbErrorEntry, VerbErrorKey, VerbKey, free, loss,
    },
    event::{COMM_LEN, DEVICE_NAME_LEN, ObjectRecord},
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// `BPF_F_MMAPABLE`, include/uapi/linux/bpf.h.
pub(crate) const MMAPABLE: u32 = 1 << 10;
/// `BPF_F_NO_PREALLOC`: an entry takes memory only while it is in use. Before Linux 6.1 the kernel warns
/// about tracing programs that use such tables, and refuses them on a real-time kernel
/// (`check_map_prog_compatibility`, kernel/bpf/verifier.c): there the loader removes this flag.
pub(crate) const NO_PREALLOC: u32 = 1;
/// An insert fails where the map has an entry with this key: `BPF_NOEXIST`, include/uapi/linux/bpf.h.
pub(crate) const NOEXIST: u64 = 1;
/// An insert replaces the value of an entry with this key: `BPF_ANY`.
pub(crate) const ANY: u64 = 0;
/// For a map whose size the loader sets (`loader/session/sizes.rs` of rdmatop).
const SET_AT_LOAD: u32 = 1;

/// Lifecycle records. The kernel side writes them, user space reads them.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Counts of losses by cause, then `loss::REFUSED`. The kernel side adds; user space reads through mmap.
#[map]
pub(crate) static LOSSES: Array<u64> = Array::with_max_entries(loss::REFUSED + 1, MMAPABLE);

/// What each process put into `EVENTS` and `WR_EVENTS`, by a hash of its PID: see share.rs. The kernel side
/// writes; user space reads through mmap and frees the places of processes that are quiet.
#[map]
pub(crate) static CALLERS: Array<Caller> = Array::with_max_entries(PLACES + 1, MMAPABLE);

/// What all processes of a user put into a ring buffer, by the real user ID and, in the upper half, which
/// ring buffer: see share.rs. Of a user who finds no room here only the processes have shares.
#[map]
pub(crate) static USERS: HashMap<u64, Unread> = HashMap::with_max_entries(2048, 0);

/// What the programs of SoftRoCE saw, by the low bits of the CPU number. User space reads it through mmap.
#[map]
pub(crate) static RXE_SEEN: Array<RxeSeen> = Array::with_max_entries(1 << RXE_SEEN_BITS, MMAPABLE);

/// Word 0: 1 once all programs are attached. User space writes it, programs read it.
#[map]
pub(crate) static CONTROL: Array<u32> = Array::with_max_entries(1, 0);

/// Modify calls between entry and return: see body/calls.
#[map]
pub(crate) static MODIFY_CALLS: Array<CallEntry<ModifyCall>> = Array::with_max_entries(MODIFY_ENTRIES, 0);

/// Number of entries in [`MODIFY_CALLS`], a power of two.
pub(crate) const MODIFY_ENTRIES: u32 = 512;

/// Modify calls that found their entry taken. A thread is in one call of a hook at a time: where the function
/// is called again inside itself, the outer call is lost (docs/identity.md). TIDs are those of the initial
/// namespace. The same holds for every map with this key.
#[map]
pub(crate) static MODIFY_REST: HashMap<CallKey, ModifyCall> = HashMap::with_max_entries(256, 0);

/// Destroy calls between entry and return.
#[map]
pub(crate) static DESTROY_CALLS: Array<CallEntry<DestroyCall>> = Array::with_max_entries(DESTROY_ENTRIES, 0);

/// Number of entries in [`DESTROY_CALLS`], a power of two.
pub(crate) const DESTROY_ENTRIES: u32 = 256;

/// Destroy calls that found their entry taken.
#[map]
pub(crate) static DESTROY_REST: HashMap<CallKey, DestroyCall> = HashMap::with_max_entries(128, 0);

/// MR and CQ destroys between entry and return.
#[map]
pub(crate) static OBJECT_CALLS: HashMap<CallKey, ObjectRecord> = HashMap::with_max_entries(256, 0);

/// Calls of verbs, by ioctl and `write()`, between entry and return: see body/calls.
#[map]
pub(crate) static VERB_CALLS: Array<CallEntry<VerbCall>> = Array::with_max_entries(VERB_CALL_ENTRIES, 0);

/// Number of entries in [`VERB_CALLS`], a power of two.
pub(crate) const VERB_CALL_ENTRIES: u32 = 1024;

/// Calls that found their entry taken, and all calls of rdma_cm (body/write).
#[map]
pub(crate) static VERB_REST: HashMap<CallKey, VerbCall> = HashMap::with_max_entries(512, 0);

/// Verb counters. The kernel side writes them; user space reads them through mmap. There is one counter for
/// all CPUs, changed by atomic adds, because a process rarely calls the same verb on two CPUs at once.
#[map]
pub(crate) static VERBS: Array<VerbEntry> = Array::with_max_entries(VERB_ENTRIES, MMAPABLE);

/// The place in `VERBS` of each pair of process and verb, for all devices together. A later process with the
/// same PID continues the counts. The kernel side writes and reads; user space removes the entries of ended
/// processes when room becomes scarce.
#[map]
pub(crate) static VERB_INDEX: HashMap<VerbKey, u32> = HashMap::with_max_entries(VERB_ENTRIES, NO_PREALLOC);

/// Free places of `VERBS`, as ranges, each of which may be a single number. User space fills it at load.
#[map]
pub(crate) static FREE_VERBS: Stack<u64> = Stack::with_max_entries(VERB_ENTRIES, 0);

/// Failed verb calls by errno: the same as `VERBS`, with the errno in the key.
#[map]
pub(crate) static VERB_ERRORS: Array<VerbErrorEntry> = Array::with_max_entries(VERB_ERROR_ENTRIES, MMAPABLE);

/// The place in `VERB_ERRORS` of each process, verb and errno.
#[map]
pub(crate) static VERB_ERROR_INDEX: HashMap<VerbErrorKey, u32> =
    HashMap::with_max_entries(VERB_ERROR_ENTRIES, NO_PREALLOC);

/// Free places of `VERB_ERRORS`, as `FREE_VERBS` has those of `VERBS`.
#[map]
pub(crate) static FREE_VERB_ERRORS: Stack<u64> = Stack::with_max_entries(VERB_ERROR_ENTRIES, 0);

/// What the programs know about a QP, by its address. Only one QP of all devices has an address at a time:
/// the entry goes when the QP is destroyed, and the value has the time at which a program first saw the QP.
/// Programs write it at create, modify, destroy and query, and with the QP's first work request.
#[map]
pub(crate) static QP_INDEX: HashMap<u64, QpKnown> = HashMap::with_max_entries(SET_AT_LOAD, NO_PREALLOC);

/// A value in `.bss`, whose address a program knows without a look-up.
pub(crate) struct Shared<T>(UnsafeCell<T>);

// SAFETY: programs read and write whole words, and a value that is a little old, or another's, does no harm:
// every reader of an array checks what it has read.
unsafe impl<T> Sync for Shared<T> {}

/// The slot where a program last found a QP, by the top bits of a hash of the QP's address: a look-up here
/// takes a few instructions, one in a hash table more than a hundred. `QpPath::qp` says whether the hint
/// still holds.
static QP_HINTS: Shared<[u32; 1 << HINT_BITS]> = Shared(UnsafeCell::new([0; 1 << HINT_BITS]));

/// Log2 of the number of hints.
const HINT_BITS: u32 = 14;

/// The hint for a QP. Addresses from one slab differ in their middle bits; the multiplication moves those to
/// the top.
#[inline(always)]
pub(crate) fn hint_of(qp: u64) -> *mut u32 {
    let place = qp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - HINT_BITS);
    // SAFETY: the shift leaves `HINT_BITS` bits, so the place is inside the array.
    unsafe { QP_HINTS.0.get().cast::<u32>().add(place as usize) }
}

/// Calls of soft iWARP that complete a WR, by a hash of their stack: see body/siw_cqe.
static CQE_CALLS: Shared<[[u64; 2]; 1 << CQE_PLACE_BITS]> =
    Shared(UnsafeCell::new([[0; 2]; 1 << CQE_PLACE_BITS]));

/// Log2 of the number of places in [`CQE_CALLS`].
pub(crate) const CQE_PLACE_BITS: u32 = 10;

/// The place of [`CQE_CALLS`] with this number, which has [`CQE_PLACE_BITS`] bits.
#[inline(always)]
pub(crate) fn cqe_call(number: u64) -> *mut [u64; 2] {
    let number = number as usize & ((1 << CQE_PLACE_BITS) - 1);
    // SAFETY: the mask keeps the number inside the array.
    unsafe { CQE_CALLS.0.get().cast::<[u64; 2]>().add(number) }
}

/// Counters of QPs. The data path writes; user space reads them through mmap and zeroes a slot before it
/// frees it.
#[map]
pub(crate) static QP_SLOTS: Array<QpSlot> = Array::with_max_entries(SET_AT_LOAD, MMAPABLE);

/// By slot number: where the rings of the QP are, and how far the programs have counted.
#[map]
pub(crate) static QP_PATHS: Array<QpPath> = Array::with_max_entries(SET_AT_LOAD, 0);

/// Slots that no QP has had yet, as ranges. User space fills it at load.
#[map]
pub(crate) static FREE_SLOTS: Stack<u64> = Stack::with_max_entries(free::STACK, 0);

/// Slots of destroyed QPs, the oldest first. One is free again once user space has read and zeroed it. Slots
/// that were taken and not used are here too.
#[map]
pub(crate) static USED_SLOTS: Queue<u32> = Queue::with_max_entries(SET_AT_LOAD, 0);

/// QP address by device address and QP number: a user CQE holds only the number, and each device numbers its
/// QPs by itself. Written with `QP_INDEX`.
#[map]
pub(crate) static QPN_INDEX: HashMap<QpnKey, u64> = HashMap::with_max_entries(SET_AT_LOAD, NO_PREALLOC);

/// Slot number by the address of either queue of the QP. Programs write it when the QP gets its slot, and
/// read and remove it when the driver frees the queue; if no program sees that, when the QP is destroyed. The
/// map also decides when two CPUs give the same QP a slot: the CPU that inserts the send queue first wins.
#[map]
pub(crate) static QUEUE_SLOTS: HashMap<u64, u32> = HashMap::with_max_entries(SET_AT_LOAD, NO_PREALLOC);

/// Time in ns before which no program looks for a slot. A program that finds none sets it, because a QP
/// without a slot would otherwise make a program search with each event.
pub(crate) static NEXT_TRY: Word = Word::zero();

/// 1 while the ring buffer holds a record for which the reader has not been woken: see emit.rs. A race can
/// only cause an extra wake-up, or a missing one, and the reader looks once a second anyway.
pub(crate) static PENDING_WAKEUP: Word = Word::zero();

/// A word that every program may write.
pub(crate) type Word = Shared<u64>;

impl Word {
    const fn zero() -> Self {
        Self(UnsafeCell::new(0))
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> u64 {
        // SAFETY: see the `Sync` of this type.
        unsafe { read_volatile(self.0.get()) }
    }

    #[inline(always)]
    pub(crate) fn store(&self, value: u64) {
        // SAFETY: see the `Sync` of this type.
        unsafe { write_volatile(self.0.get(), value) };
    }
}

/// Key of a call in flight: the thread and the hook. One thread can be in modify and destroy at once, because
/// destroy can drain the QP.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct CallKey {
    pub(crate) tid: u32,
    pub(crate) hook: u32,
}

/// An entry that holds a call in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct CallEntry<T> {
    /// 1 while a call holds the entry; more while other calls try to claim it.
    pub(crate) claims: u64,
    /// Hook and thread of the call that holds the entry; 0 when no call does.
    pub(crate) caller: u64,
    pub(crate) call: T,
}

/// A modify in flight.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ModifyCall {
    pub(crate) start_ns: u64,
    /// `struct ib_qp *`, still valid at return.
    pub(crate) qp: u64,
    /// `struct ib_qp_attr *` of the caller, still valid at return.
    pub(crate) attr: u64,
    pub(crate) mask: u64,
}

/// A destroy in flight. At return the QP no longer exists, and another may have its address.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct DestroyCall {
    pub(crate) start_ns: u64,
    pub(crate) qp: u64,
    pub(crate) known: QpKnown,
}

/// A call of a verb or of rdma_cm in flight.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct VerbCall {
    pub(crate) start_ns: u64,
    /// `struct ib_uverbs_file *`
    pub(crate) file: u64,
    /// `struct ib_uverbs_ioctl_hdr *`, the kernel's copy on the stack of the caller, still valid at return.
    pub(crate) header: u64,
    /// In the user's memory: `struct ib_uverbs_attr *`, or the buffer of `write()`.
    pub(crate) attrs: u64,
}

/// What the programs know about a QP of any provider. They read once what never changes about a QP, so that
/// an event costs few reads. A program fills this in on its stack: with 8 bytes more, Linux 6.1 refuses the
/// deepest chain of calls that contains such a program's frame.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpKnown {
    /// Number in `QP_SLOTS`, or one of `counters::place`.
    pub(crate) slot: u32,
    /// Bits of `event::flag`: those about owner and device, and `CREATED`.
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
    /// The process that created the QP. Valid with `flag::OWNER_TASK`.
    pub(crate) owner_pid: u32,
    /// `ib_device.index`, `UNKNOWN_U32` when not known.
    pub(crate) device_index: u32,
    /// The owner's name when the QP was first seen.
    pub(crate) owner_comm: [u8; COMM_LEN],
    /// When a program first saw the QP, ns: distinguishes the QP from the next one at its address.
    pub(crate) born_ns: u64,
    /// When its owner process was started, 0 when not known: distinguishes the owner from the next process
    /// with that PID.
    pub(crate) owner_start_ns: u64,
    /// The consumer indices of the QP's queues at `born_ns`, 0 for a new QP. The counts begin there, however
    /// late the QP gets a slot.
    pub(crate) sq_base: u32,
    pub(crate) rq_base: u32,
    /// `slot_flag::SINCE_ATTACH` for a QP from before attach, else 0. A whole word, so that the struct is
    /// copied by words.
    pub(crate) since: u64,
    /// The device's name when the QP was first seen; `device_index` identifies a device that has been renamed
    /// since.
    pub(crate) device_name: [u8; DEVICE_NAME_LEN],
}

/// The data path of a counted QP. The counts are in the slot; index in the provider's ring = (count + base) &
/// mask.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpPath {
    /// `struct ib_qp *`, 0 for none.
    pub(crate) qp: u64,
    /// Where the send and the receive queue are in the memory that the user program shares. SoftRoCE: the
    /// address of the producer index in `struct rxe_queue_buf`; siw: that of the first element. A QP's queues
    /// are never resized.
    pub(crate) sq_ring: u64,
    pub(crate) rq_ring: u64,
    /// `struct rxe_queue *` of the two (siw: the queues themselves), 0 for none.
    pub(crate) sq: u64,
    pub(crate) rq: u64,
    pub(crate) sq_mask: u32,
    pub(crate) rq_mask: u32,
    /// Log2 of the size of a send queue element.
    pub(crate) sq_shift: u32,
    /// The bits of `slot_flag` that name the provider and say which counts are not known.
    pub(crate) flags: u32,
    pub(crate) sq_base: u64,
    pub(crate) rq_base: u64,
    /// Send WRs that the driver has consumed, as far as the programs have seen. `QpSlot::tx_done` may be
    /// ahead of it by WRs that the driver is flushing: see `failed` in body/rxe.
    pub(crate) done: u64,
    /// The first send WR that failed since the QP last went to RTS: the driver flushes or drops this one and
    /// all later ones. All ones for none.
    pub(crate) failed: u64,
    /// Receive WRs that the driver has consumed, as far as the programs have seen.
    pub(crate) taken: u64,
    /// 1 during a modify to RESET.
    pub(crate) resetting: u64,
    /// The consumer indices of the send queue (low half) and the receive queue (high half) when the QP was
    /// about to go to ERR, or when a program last compared them with the CQEs since then. All ones for a QP
    /// that is not in ERR.
    pub(crate) flushed_at: u64,
    /// How many WRs had ended with a CQE at `flushed_at`, not counting sends that succeeded.
    pub(crate) flushed_ends: u64,
    /// Send WRs whose opcode and length have been read.
    pub(crate) walked: u64,
    /// Send WRs whose doorbell a program has seen.
    pub(crate) rung: u64,
    /// Time of the doorbell for the WR that finished last, 0 = not known.
    pub(crate) carry_ns: u64,
    /// When the driver was last about to place the CQE of a send WR, ns. 0: it has placed none since a
    /// program last took times of finished WRs.
    pub(crate) cqe_ns: u64,
    /// `expires` of the RNR timer in the last wait that was counted.
    pub(crate) rnr_expires: u64,
    /// `expires` of the RNR timer when a packet was last sent again after a wait: the requester writes it,
    /// the completer reads it.
    pub(crate) rnr_resent: u64,
    /// The lowest PSN that no request has used yet.
    pub(crate) fresh_psn: u32,
    /// 1 when `fresh_psn` is valid.
    pub(crate) psn_known: u32,
    /// When the doorbells were rung, by WR number. The doorbell writes, the completer reads. No program
    /// clears a stamp, because it carries the lap that it belongs to (see `stamp` in body/rxe).
    pub(crate) stamps: [u64; STAMPS_PER_QP],
}

/// A QP number on a device.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct QpnKey {
    device: u64,
    qpn: u32,
    reserved: u32,
}

impl QpnKey {
    #[inline(always)]
    pub(crate) const fn new(device: u64, qpn: u32) -> Self {
        Self {
            device,
            qpn,
            reserved: 0,
        }
    }
}

/// Whether user space has switched counting on.
#[inline(always)]
pub(crate) fn enabled() -> bool {
    CONTROL.get(0).is_some_and(|word| *word == 1)
}
