//! Counters in maps: the kernel side writes them on the hot path, user space sweeps them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::event::COMM_LEN;

/// Log2 buckets of a histogram: bucket `i` counts values in `[2^i, 2^(i+1))` ns, bucket 0 also 0 and 1 ns,
/// the last bucket everything above (2^31 ns = 2.1 s).
pub const HIST_BUCKETS: usize = 32;
/// Counters of work requests by opcode: index 0 to 14 is `IB_WR_*`, index 15 counts all other opcodes.
pub const OPCODES: usize = 16;
/// Counters of completions by status: index 0 to 22 is `IB_WC_*`, index 23 counts all other statuses.
pub const WC_STATUSES: usize = 24;
/// Doorbell times kept per QP, by WR number modulo this. A WR that is so far behind the newest one has no
/// latency ([`loss::STAMP`]).
pub const STAMPS_PER_QP: usize = 256;
/// How many pairs of process and verb can be counted at one time.
pub const VERB_ENTRIES: u32 = 4096;
/// How many triples of process, verb and errno can be counted at one time.
pub const VERB_ERROR_ENTRIES: u32 = 4096;

/// Ranges of free numbers of an array: the free list of each array is a stack of such ranges.
///
/// A CPU pops the top range, takes its first number and pushes the rest back. A CPU that takes a number
/// meanwhile pops the range below, so the numbers of a new array are divided into several ranges
/// ([`free::ranges`]). The verifier of Linux 5.10 knows no compare-and-exchange: there a program can take
/// something atomically only from a queue or stack map.
pub mod free {
    /// How many ranges the numbers are divided into, at most.
    const RANGES: u32 = 16;
    /// Capacity of a stack of ranges, including single numbers that are given back.
    pub const STACK: u32 = 1024;

    /// Packs the range `first..end`.
    pub const fn pack(first: u32, end: u32) -> u64 {
        (first as u64) << 32 | end as u64
    }

    /// The ranges that the numbers below `count` are divided into.
    pub fn ranges(count: u32) -> impl Iterator<Item = (u32, u32)> {
        let step = count.div_ceil(RANGES).max(1);
        (0..count)
            .step_by(step as usize)
            .map(move |first| (first, count.min(first + step)))
    }

    /// Unpacks a range: its first number, and the number after its last.
    pub const fn unpack(range: u64) -> (u32, u32) {
        ((range >> 32) as u32, (range & 0xffff_ffff) as u32)
    }
}

/// Values that stand for a slot number where a QP has no slot.
///
/// A QP gets a slot when it is created (or found) as long as slots below [`place::eager`] are free. Later QPs
/// get one when they move, that is, when they post, send or complete something: the rest of the array is kept
/// for them, because a QP at rest needs no slot.
pub mod place {
    /// The QP is not counted: its provider's posts do not enter the kernel.
    pub const UNCOUNTED: u32 = u32::MAX;
    /// The QP gets a slot when there is something to count. Until then all its counts are 0.
    pub const AT_REST: u32 = u32::MAX - 1;
    /// The QP moved and no slot was free: its counts are not known. The programs try again whenever it moves.
    pub const NONE_LEFT: u32 = u32::MAX - 2;

    /// A QP that has not moved may only get a slot below this number.
    pub const fn eager(slots: u32) -> u32 {
        slots / 2
    }
}

/// Bits of [`QpSlot::flags`].
pub mod slot_flag {
    /// The QP existed before it was counted, because the programs were not yet attached or no slot was free:
    /// its totals start when counting started.
    pub const SINCE_ATTACH: u32 = 1;
    /// Owned by a kernel consumer.
    pub const KERNEL: u32 = 2;
    /// `ib_destroy_qp_user` has returned 0: the counters are final and user space may free the slot.
    pub const DESTROYED: u32 = 4;
    /// Receives come from a shared receive queue: [`super::QpSlot::rx_posted`] is not known per QP.
    pub const SRQ: u32 = 8;
    /// The kernel's BTF does not describe the RNR timer, or the provider has none:
    /// [`super::QpSlot::rnr_waits`] is not known.
    pub const NO_RNR: u32 = 16;
    /// No program sees retransmissions: [`super::QpSlot::retransmits`] is not known.
    pub const NO_RETRANSMITS: u32 = 32;
    /// No program sees CQEs: completions, their statuses, and receives with their bytes are not known.
    pub const NO_CQES: u32 = 64;
    /// No program times the posts: how long a WR took is not known.
    pub const NO_LATENCY: u32 = 128;
    /// No program sees calls of post_send: [`super::QpSlot::doorbells`] is not known.
    pub const NO_DOORBELLS: u32 = 256;
    /// Sends can be posted through a function without a probe: what was sent is not known.
    pub const NO_SENDS: u32 = 512;
    /// Probes on the program count its posts ([`provider::USER`]): accepted WRs are known, finished ones are
    /// not.
    pub const POSTED: u32 = 1024;
    /// The QP was made while rdmatop ran, and it may have posted before its functions were probed, which is
    /// in no count: so the sums of its process lack these posts. The kernel side never sets this flag.
    pub const LATE: u32 = 2048;
    /// All flags that say that something is not known, except [`SRQ`] and [`LATE`]; [`POSTED`] is among them.
    pub const UNKNOWN: u32 =
        NO_RNR | NO_RETRANSMITS | NO_CQES | NO_LATENCY | NO_DOORBELLS | NO_SENDS | POSTED;

    /// Which provider's programs count the QP: the top byte of the flags.
    pub mod provider {
        /// rdma_rxe.
        pub const RXE: u32 = 1 << 24;
        /// siw.
        pub const SIW: u32 = 2 << 24;
        /// Any provider, by probes on the functions of its library in the program's memory.
        pub const USER: u32 = 3 << 24;
        /// Mask of the provider.
        pub const MASK: u32 = 0xff << 24;
    }
}

/// Counters of one QP: totals since its creation, or since attach ([`slot_flag::SINCE_ATTACH`]). WRs that
/// were on the queues at attach count as posted, so posted minus done is always the number of outstanding
/// WRs.
///
/// User space mmaps the array of slots: reading ten thousand idle QPs costs no system call. Each field is
/// either written from a single context or changed by an atomic add (see rdmatop-ebpf).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpSlot {
    /// `struct ib_qp *`; 0 = the slot is free.
    pub qp: u64,
    /// `bpf_ktime_get_ns()` when the kernel side first saw the QP: at its creation unless
    /// [`slot_flag::SINCE_ATTACH`]. The same as in the QP's records ([`crate::event::QpRecord::born_ns`]).
    pub born_ns: u64,
    /// Start time of the owner process, `task_struct.start_boottime` in ns; 0 when not known.
    pub owner_start_ns: u64,
    /// `bpf_ktime_get_ns()` when the QP got the slot.
    pub since_ns: u64,
    /// GID of the peer's port when the QP got the slot; all zero when not known, or not connected (RC, UC). A
    /// later modify is in a record.
    pub dest_gid: [u8; 16],
    /// `ib_qp.qp_num`.
    pub qpn: u32,
    /// `ib_device.index`.
    pub device_index: u32,
    /// Owner process at creation, 0 for kernel consumers.
    pub owner_pid: u32,
    /// Bits of [`slot_flag`].
    pub flags: u32,
    /// Calls of the provider's `post_send`: one per doorbell for user QPs.
    pub doorbells: u64,
    /// Send WRs posted (from the producer index).
    pub tx_posted: u64,
    /// Send WRs finished, signaled or not (from the consumer index).
    pub tx_done: u64,
    /// Bytes of send WRs posted (for RDMA READ: bytes requested). The kernel side reads them from the queue
    /// when the provider next works on it, a moment after `tx_posted`.
    pub tx_bytes: u64,
    /// Receive WRs posted, as of the last receive completion or modify: the program posts them without
    /// entering the kernel. Not known with [`slot_flag::SRQ`].
    pub rx_posted: u64,
    /// Receive completions without error.
    pub rx_done: u64,
    /// Bytes of receive completions; for UD they include the GRH of 40 bytes, as the kernel counts it.
    pub rx_bytes: u64,
    /// CQEs written for this QP, errors included.
    pub cqes: u64,
    /// Request packets sent with a PSN that had been sent before.
    pub retransmits: u64,
    /// Waits for a receiver without buffers that have ended: expiries of the RNR NAK timer. A NAK that
    /// arrives during a wait prolongs that wait. Not known with [`slot_flag::NO_RNR`].
    pub rnr_waits: u64,
    /// CQEs that the provider could not place because the CQ was full.
    pub cq_overflows: u64,
    /// WRs without a latency, because they finished before a program saw their doorbell.
    pub latency_early: u64,
    /// Largest post-to-completion time, ns.
    pub latency_max_ns: u64,
    /// Sum of the post-to-completion times, ns.
    pub latency_sum_ns: u64,
    /// Posted send WRs by opcode, counted with `tx_bytes`, whether they succeed or not.
    pub ops: [u64; OPCODES],
    /// Bytes of the send WRs by opcode.
    pub op_bytes: [u64; OPCODES],
    /// CQEs by status.
    pub wc: [u64; WC_STATUSES],
    /// Histogram of the post-to-completion times.
    pub latency: [u64; HIST_BUCKETS],
}

/// Log2 of the number of [`UserHits`], which CPUs share.
pub const USER_HITS_BITS: u32 = 6;
/// How many QPs can be counted by probes on their programs at one time.
pub const USER_QPS: u32 = 4096;

/// Counters beside the slot of a QP that probes on its program count.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UserQp {
    /// The program's `struct ibv_qp *`, as the program passed it to the kernel.
    pub handle: u64,
    /// Send WRs that the provider did not accept.
    pub tx_rejected: u64,
    /// Receive WRs that the provider did not accept.
    pub rx_rejected: u64,
    /// Calls of the QP's process that hit a probe with this QP, by a pointer of the QP or its context. They
    /// need not have posted anything.
    pub hits: u64,
    /// The time since when all functions that the QP's program posts with have been probed, `CLOCK_MONOTONIC`
    /// in ns. User space writes it; it is valid only for the QP with the birth `probed_birth_ns`.
    pub probed_ns: u64,
    /// [`QpSlot::born_ns`] of the QP that `probed_ns` is about. User space writes it after `probed_ns`.
    pub probed_birth_ns: u64,
}

/// How often probes on programs were hit, on the CPUs that share this element.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UserHits {
    /// Hits at entries and returns.
    pub hits: u64,
    /// Entries with a QP that the kernel side does not know for the process, for example after fork(2): no QP
    /// counts them.
    pub unmatched: u64,
    /// Calls that a program could not fully read, or not remember: their WRs are missing.
    pub missed: u64,
    /// Fills a cache line.
    pub reserved: [u64; 5],
}

/// Log2 of the number of [`RxeSeen`], which CPUs share.
pub const RXE_SEEN_BITS: u32 = 6;

/// What the programs of SoftRoCE saw, on the CPUs that share this element. The model compares it with the
/// driver's own counters, which shows what the kernel skipped on kernels that do not count that.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RxeSeen {
    /// Packets at the entry of `rxe_xmit_packet`: those that the driver then sends are its `sent_pkts`.
    pub packets: u64,
    /// Successful completions of receives at the entry of `rxe_cq_post`: the driver's `rdma_recvs`.
    pub receives: u64,
    /// Fills a cache line.
    pub reserved: [u64; 6],
}

/// Key of the per-process verb counters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VerbKey {
    /// Thread group id.
    pub pid: u32,
    /// Encoded as in [`crate::verb`].
    pub verb: u32,
}

/// Calls of one verb by one process.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbStats {
    /// Calls that returned.
    pub calls: u64,
    /// Calls that returned a negative errno.
    pub errors: u64,
    /// Sum of the durations, ns.
    pub ns: u64,
    /// Longest call, ns.
    pub max_ns: u64,
    /// Histogram of the durations.
    pub hist: [u64; HIST_BUCKETS],
}

/// Key of the count of failed verb calls by errno.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct VerbErrorKey {
    /// Thread group id.
    pub pid: u32,
    /// Encoded as in [`crate::verb`].
    pub verb: u32,
    /// Positive errno.
    pub errno: u32,
    /// Zero.
    pub reserved: u32,
}

/// How many failed calls of one process become events in a second: see [`Caller`].
pub const FAILURES_A_SECOND: u64 = 1000;
/// Places for processes in the array of [`Caller`]s.
pub const CALLERS: u32 = 1024;
/// How many places, side by side, a process may use: its PID hashes to the first of them.
pub const CALLER_WAYS: u32 = 4;

/// What one process has put into the ring buffers of lifecycle records and of work requests. With it a
/// program keeps room for the others. The last element, beyond [`CALLERS`], is shared by all processes that
/// find no place.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Caller {
    /// 1 while a process holds the place; more while other processes try to claim it.
    pub claims: u64,
    /// Thread group id; 0 if no process holds the place, or if user space is about to free it.
    pub pid: u32,
    /// One more than the real user id of the process, in the initial user namespace, when it last made a
    /// record by itself; 0 if it has made none.
    pub user: u32,
    /// Name of the thread that took the place, or of the first thread of the process that used it. Empty if
    /// only other processes did so, about objects of this one.
    pub comm: [u8; COMM_LEN],
    /// When a program last used the place, ns.
    pub used_ns: u64,
    /// When the second began in which `failures` calls failed, ns.
    pub second_ns: u64,
    /// Failures in the second that begins at `second_ns`.
    pub failures: u64,
    /// Failed calls that made no event, since the process got the place, because [`FAILURES_A_SECOND`] others
    /// made one in the same second.
    pub over_budget: u64,
    /// Its records in the ring buffer of lifecycle records.
    pub unread: Unread,
    /// Those in the ring buffer of work requests.
    pub unread_work: Unread,
    /// Records that the programs refused since the process got the place, because its records, or those of
    /// all processes of the user, would have taken more than a quarter of what was free.
    pub refused: u64,
}

/// What one process, or all of one user, have in a ring buffer. Used only while less than a quarter of it
/// is free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Unread {
    /// The position in the ring buffer from which on `bytes` counts.
    pub from: u64,
    /// Bytes since `from`.
    pub bytes: u64,
}

/// An entry of the array of verb counters. `key.pid` 0: the entry is free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbEntry {
    /// Process and verb. Written before the index has the entry's number, and not changed as long as it has.
    pub key: VerbKey,
    /// The counters of the key's calls.
    pub stats: VerbStats,
}

/// An entry of the array of failures by errno. `key.pid` 0: the entry is free.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbErrorEntry {
    /// Process, verb and errno. Written before the index has the entry's number, and not changed as long as
    /// it has.
    pub key: VerbErrorKey,
    /// Number of failures.
    pub count: u64,
}

/// Index into the array of losses.
pub mod loss {
    /// A lifecycle record found no room in the ring buffer, or its process or user had taken its share of one
    /// that was nearly full ([`super::Caller::refused`]).
    pub const RING: u32 = 0;
    /// The record of a call is missing. Either the programs found no room to remember the call or its QP, or
    /// the kernel skipped the entry program or a program that makes its record at once. A call that was under
    /// way when counting began counts here too, because the programs see only its return.
    pub const STASH: u32 = 1;
    /// A QP moved and found no free counter slot: it is not counted until it finds one. Counted once per QP,
    /// not with each event.
    pub const SLOT: u32 = 2;
    /// A process and verb found no room in the verb map.
    pub const VERB: u32 = 3;
    /// A send WR was counted without opcode and bytes: its queue element was overwritten before a program
    /// looked, or could not be read.
    pub const WALK: u32 = 4;
    /// A WR has no latency: a later doorbell has overwritten its time ([`super::STAMPS_PER_QP`]).
    pub const STAMP: u32 = 5;
    /// The kernel had no free return instance, so a return probe did not fire, or it skipped the return
    /// program: that call made no record. The kernel counts these from 6.7 on; before, a program notices one
    /// only when the same thread enters the same function again.
    pub const RETURN: u32 = 6;
    /// The kernel skipped a program that counts, on the data path or for verbs, because a program was already
    /// running on that CPU. Counts of completions, retransmissions, doorbells and verb calls may be too low
    /// by as many; counts that come from ring indices are not. Linux counts skips of kprobes from 6.7 on.
    /// Before 6.4, where SoftRoCE works in softirqs and skips are likely, the model adds what the driver has
    /// counted and no program saw ([`super::RxeSeen`]).
    ///
    /// Also counted here: a call that a probe on a program could not read or remember, and a CQE of soft
    /// iWARP that found no room and whose QP is not known; it stays counted as a completion.
    pub const MISSED: u32 = 7;
    /// A record of a work request found no room in its ring buffer, or was refused as those of [`RING`] are.
    pub const WR_RING: u32 = 8;
    /// The post or the end of a work request was not seen: the kernel skipped a program, or there was no room
    /// to remember the QP or the CQE.
    pub const WR_MISSED: u32 = 9;
    /// A QP found no room in the tables of QPs: it is not counted until it does. Counted at the QP's
    /// creation, and later at its events, at most once every 10 ms.
    pub const PLACE: u32 = 10;
    /// Number of causes.
    pub const COUNT: u32 = 11;
    /// Not a cause but the element after the causes: how often a QP whose work requests are counted found no
    /// room in the tables of QPs, counted at each of its events. As long as it does not change, the tables
    /// have every QP that the kernel has listed.
    pub const REFUSED: u32 = COUNT;
    /// A stable name for each cause: `where` in JSON.
    #[rustfmt::skip] // names, as many as a line has room for
    pub const NAMES: [&str; COUNT as usize] = [
        "ring", "stash", "slot", "verb", "walk", "stamp", "return", "missed", "wr_ring", "wr_missed", "place",
    ];
}

/// The bucket that `value` ns belongs to.
pub const fn bucket(value: u64) -> usize {
    let log2 = 63 - (value | 1).leading_zeros() as usize;
    if log2 < HIST_BUCKETS {
        log2
    } else {
        HIST_BUCKETS - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_comes_back_as_it_went() {
        assert_eq!(free::unpack(free::pack(7, u32::MAX)), (7, u32::MAX));
    }

    #[test]
    fn the_ranges_hold_each_number_once_and_the_stack_holds_them_all() {
        for count in [1, 2, 15, 16, 17, 63, 64, 65, 100, 4096, 16_384, 1 << 20] {
            let mut next = 0;
            let mut ranges = 0;
            for (first, end) in free::ranges(count) {
                assert!(
                    first == next && first < end,
                    "{count}: {first}..{end} after {next}"
                );
                (next, ranges) = (end, ranges + 1);
            }
            assert_eq!(next, count);
            assert!(ranges <= free::STACK / 2, "{ranges}");
        }
    }

    #[test]
    fn entries_are_whole_words() {
        assert_eq!(size_of::<VerbEntry>(), 8 + size_of::<VerbStats>());
        assert_eq!(size_of::<VerbErrorEntry>(), 24);
        assert_eq!(size_of::<Caller>(), 104);
    }

    #[test]
    fn buckets_are_powers_of_two() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(1), 0);
        assert_eq!(bucket(2), 1);
        assert_eq!(bucket(1023), 9);
        assert_eq!(bucket(1024), 10);
        assert_eq!(bucket(u64::MAX), HIST_BUCKETS - 1);
    }
}
