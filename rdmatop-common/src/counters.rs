//! Counters that live in maps: written by the kernel side on the hot path, swept by user space.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Log2 buckets of a histogram: bucket `i` counts values in `[2^i, 2^(i+1))` ns, bucket 0 also 0 and 1 ns,
/// the last bucket everything above (2^31 ns = 2.1 s).
pub const HIST_BUCKETS: usize = 32;
/// Work-request opcodes counted apart: `IB_WR_*` 0 to 14 as they are, 15 for every other one.
pub const OPCODES: usize = 16;
/// Completion statuses counted apart: `IB_WC_*` 0 to 22 as they are, 23 for every other one.
pub const WC_STATUSES: usize = 24;
/// Doorbells remembered per QP, in WRs: a WR that is this far behind the newest has no latency ([`loss::STAMP`]).
pub const STAMPS_PER_QP: usize = 256;
/// QPs that can have moved data and still be there (default size of the slot array). See [`place`].
pub const DEFAULT_SLOTS: u32 = 16_384;
/// QPs that are known at one time, at rest or not.
pub const KNOWN_QPS: u32 = 131_072;
/// Pairs of process and verb that can be counted at one time.
pub const VERB_ENTRIES: u32 = 8192;
/// Triples of process, verb and errno that can be counted at one time.
pub const VERB_ERROR_ENTRIES: u32 = 4096;

/// Numbers of an array that nobody has, as ranges: the free list of each array is a stack of these.
///
/// A CPU takes the top range off, takes its first number, and puts the rest back. Meanwhile another CPU finds the
/// range below, so there are [`free::RANGES`] from the start. A queue or stack map is the only thing that a program
/// can take from atomically on Linux 5.10, whose verifier knows no compare-and-exchange.
pub mod free {
    /// Ranges that a new array's numbers are divided into.
    pub const RANGES: u32 = 16;
    /// Elements of a stack of ranges, single numbers that were given back included.
    pub const STACK: u32 = 1024;

    /// A range, first number included, last not.
    pub const fn pack(first: u32, end: u32) -> u64 {
        (first as u64) << 32 | end as u64
    }

    /// The two numbers of a range.
    pub const fn unpack(range: u64) -> (u32, u32) {
        ((range >> 32) as u32, (range & 0xffff_ffff) as u32)
    }
}

/// What stands where a slot's number does for a QP without one.
///
/// A QP gets a slot when it is made (or found) as long as [`place::eager`] ones last. The others get one when they move:
/// the rest of the array is kept for them, because a QP at rest needs none.
pub mod place {
    /// Nothing of the QP is counted: its provider's posts do not pass the kernel.
    pub const UNCOUNTED: u32 = u32::MAX;
    /// The QP gets its slot with the first thing to count. Until then all its counts are 0.
    pub const AT_REST: u32 = u32::MAX - 1;
    /// The QP moved and found no slot: its counts are not known. It tries again whenever it moves.
    pub const NONE_LEFT: u32 = u32::MAX - 2;

    /// Slots below this number go to QPs that have not moved.
    pub const fn eager(slots: u32) -> u32 {
        slots / 2
    }
}

/// Bits of [`QpSlot::flags`].
pub mod slot_flag {
    /// The QP was there before it was counted, because the programs were not attached yet or because no slot was free:
    /// totals count from then on.
    pub const SINCE_ATTACH: u32 = 1;
    /// Owned by a kernel consumer.
    pub const KERNEL: u32 = 2;
    /// `ib_destroy_qp_user` has returned 0: the counters are final and user space may free the slot.
    pub const DESTROYED: u32 = 4;
    /// Receives come from a shared receive queue: [`super::QpSlot::rx_posted`] is not known per QP.
    pub const SRQ: u32 = 8;
    /// The kernel's BTF does not tell of the RNR timer: [`super::QpSlot::rnr_waits`] is not known.
    pub const NO_RNR: u32 = 16;
    /// Nothing says what was sent again: [`super::QpSlot::retransmits`] is not known.
    pub const NO_RETRANSMITS: u32 = 32;
    /// CQEs are not seen: completions, their statuses, and receives with their bytes are not known.
    pub const NO_CQES: u32 = 64;
    /// Posts are not timed: how long a WR took is not known.
    pub const NO_LATENCY: u32 = 128;
    /// Calls of post_send are not seen: [`super::QpSlot::doorbells`] is not known.
    pub const NO_DOORBELLS: u32 = 256;
    /// All that say that something is not known, but for [`SRQ`].
    pub const UNKNOWN: u32 = NO_RNR | NO_RETRANSMITS | NO_CQES | NO_LATENCY | NO_DOORBELLS;

    /// Which provider counts the QP: the top byte of the flags. User space knows by it which programs the counts come from.
    pub mod provider {
        /// rdma_rxe.
        pub const RXE: u32 = 1 << 24;
        /// siw.
        pub const SIW: u32 = 2 << 24;
        /// The bits of a provider.
        pub const MASK: u32 = 0xff << 24;
    }
}

/// Counters of one QP. Totals since creation, or since attach ([`slot_flag::SINCE_ATTACH`]: WRs that were on the
/// queues at that moment count as posted, so that posted minus done is always what is outstanding).
///
/// The array of these is mmapped by user space: reading ten thousand idle QPs costs no system call.
/// Each field has one writing context, or is written with an atomic add (see rdmatop-ebpf).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpSlot {
    /// `struct ib_qp *`; 0 = the slot is free.
    pub qp: u64,
    /// `bpf_ktime_get_ns()` when the kernel side first saw the QP: at its creation unless
    /// [`slot_flag::SINCE_ATTACH`]. The same as in the QP's records ([`crate::event::QpRecord::born_ns`]).
    pub born_ns: u64,
    /// When the owner was started, `task_struct.start_boottime` in ns; 0 when not known.
    pub owner_start_ns: u64,
    /// `bpf_ktime_get_ns()` when the slot was taken.
    pub since_ns: u64,
    /// `ib_qp.qp_num`.
    pub qpn: u32,
    /// `ib_device.index`.
    pub device_index: u32,
    /// Owner process at creation, 0 for kernel consumers.
    pub owner_pid: u32,
    /// Bits of [`slot_flag`].
    pub flags: u32,
    /// Entries of the provider's `post_send`: one a doorbell for user QPs.
    pub doorbells: u64,
    /// Send WRs posted (producer index moves).
    pub tx_posted: u64,
    /// Send WRs finished, signalled or not (consumer index moves).
    pub tx_done: u64,
    /// Bytes of send-side WRs posted (for RDMA READ: bytes asked for). Read from the queue when the provider
    /// next looks at it, a moment after `tx_posted`.
    pub tx_bytes: u64,
    /// Receive WRs posted, as of the last receive completion or modify: the program posts them without the
    /// kernel. Not known with [`slot_flag::SRQ`].
    pub rx_posted: u64,
    /// Receive completions without error.
    pub rx_done: u64,
    /// Bytes of receive completions, UD with the 40 byte GRH that the kernel counts in.
    pub rx_bytes: u64,
    /// CQEs written for this QP, errors included.
    pub cqes: u64,
    /// Request packets sent with a PSN that had been sent before.
    pub retransmits: u64,
    /// Waits for a receiver without buffers that are over: ends of the RNR NAK timer. A NAK that comes during a wait
    /// makes it longer. Not known with [`slot_flag::NO_RNR`].
    pub rnr_waits: u64,
    /// CQEs that the provider could not place: the CQ was full.
    pub cq_overflows: u64,
    /// WRs without latency: they had finished before their doorbell was seen.
    pub latency_early: u64,
    /// Largest post-to-completion time, ns.
    pub latency_max_ns: u64,
    /// Sum of the post-to-completion times, ns.
    pub latency_sum_ns: u64,
    /// Send WRs by opcode, counted with `tx_bytes`: what was posted, whatever became of it.
    pub ops: [u64; OPCODES],
    /// Bytes of the send WRs by opcode.
    pub op_bytes: [u64; OPCODES],
    /// CQEs by status.
    pub wc: [u64; WC_STATUSES],
    /// Post-to-completion times.
    pub latency: [u64; HIST_BUCKETS],
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
    /// Durations.
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

/// An entry of the array of verb counters. `key.pid` 0: nobody's.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbEntry {
    /// Whose. Written before the entry can be found, never changed while it can.
    pub key: VerbKey,
    /// What.
    pub stats: VerbStats,
}

/// An entry of the array of failures by errno. `key.pid` 0: nobody's.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VerbErrorEntry {
    /// Whose. Written before the entry can be found, never changed while it can.
    pub key: VerbErrorKey,
    /// Failures.
    pub count: u64,
}

/// Index into the array of losses.
pub mod loss {
    /// A lifecycle record found no room in the ring buffer.
    pub const RING: u32 = 0;
    /// A call was not remembered at its entry, so that its return made no record: there was no room, or the kernel
    /// skipped the program. Or the kernel skipped a program that makes its record at once. Of a call that was under
    /// way when counting began, only the return is seen: it counts here too.
    pub const STASH: u32 = 1;
    /// A QP that moved found no free counter slot, or could not be remembered at all: it is not counted. Once for each
    /// time that it begins to be without.
    pub const SLOT: u32 = 2;
    /// A process and verb found no room in the verb map.
    pub const VERB: u32 = 3;
    /// A send queue is deeper than the walk is allowed to be: WRs counted, bytes and opcodes not.
    pub const WALK: u32 = 4;
    /// A post-to-completion stamp found no room.
    pub const STAMP: u32 = 5;
    /// A return probe did not fire (the kernel had no free return instance) or was skipped: that call made no record.
    /// The kernel counts these from 6.7 on; before, one is seen when the same thread enters the same function again.
    pub const RETURN: u32 = 6;
    /// The kernel skipped a program that counts: one of the data path or of the verbs. It does where a program is
    /// running on that CPU already. Counts of completions, retransmissions, doorbells and verb calls may be short by
    /// as many; what is a ring's index is not. Linux counts skips of kprobes from 6.7 on. Or it is not known of which QP a
    /// CQE of soft iWARP was that found no room: it is then counted as a completion.
    pub const MISSED: u32 = 7;
    /// Number of causes.
    pub const COUNT: u32 = 8;
    /// A word for each, stable: JSON's `where`.
    pub const NAMES: [&str; COUNT as usize] = [
        "ring", "stash", "slot", "verb", "walk", "stamp", "return", "missed",
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
        assert_eq!(size_of::<VerbEntry>(), 8 + size_of::<VerbStats>());
        assert_eq!(size_of::<VerbErrorEntry>(), 24);
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
