//! Names that both sides use.

/// Names of the maps. Sizes, writers and readers: rdmatop-ebpf/src/maps.rs.
pub mod map {
    /// Ring buffer of lifecycle records.
    pub const EVENTS: &str = "EVENTS";
    /// Counts of what was lost, by [`crate::counters::loss`].
    pub const LOSSES: &str = "LOSSES";
    /// What each process put into [`EVENTS`]: [`crate::counters::Caller`].
    pub const CALLERS: &str = "CALLERS";
    /// One word: 1 once every program is attached. Until then nothing is counted or emitted.
    pub const CONTROL: &str = "CONTROL";
    /// Verb counters: an array that user space reads through mmap.
    pub const VERBS: &str = "VERBS";
    /// From process and verb to the number in [`VERBS`].
    pub const VERB_INDEX: &str = "VERB_INDEX";
    /// Free numbers of [`VERBS`], as ranges.
    pub const FREE_VERBS: &str = "FREE_VERBS";
    /// Failed verb calls by errno: an array that user space reads through mmap.
    pub const VERB_ERRORS: &str = "VERB_ERRORS";
    /// From process, verb and errno to the number in [`VERB_ERRORS`].
    pub const VERB_ERROR_INDEX: &str = "VERB_ERROR_INDEX";
    /// Free numbers of [`VERB_ERRORS`], as ranges.
    pub const FREE_VERB_ERRORS: &str = "FREE_VERB_ERRORS";
    /// From `ib_qp *` to what the kernel side knows about the QP.
    pub const QP_INDEX: &str = "QP_INDEX";
    /// The slots: counters of QPs.
    pub const QP_SLOTS: &str = "QP_SLOTS";
    /// By slot number: where the rings of the QP are.
    pub const QP_PATHS: &str = "QP_PATHS";
    /// Slot numbers that no QP has had yet, as ranges.
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
    /// Slot numbers of destroyed QPs, the oldest first.
    pub const USED_SLOTS: &str = "USED_SLOTS";
    /// From device and QP number to `ib_qp *`.
    pub const QPN_INDEX: &str = "QPN_INDEX";
    /// From a provider's queue to the slot number of its QP.
    pub const QUEUE_SLOTS: &str = "QUEUE_SLOTS";
    /// Slots of QPs that are counted by probes on their programs ("user QPs" below).
    pub const USER_SLOTS: &str = "USER_SLOTS";
    /// Further counters of user QPs, by the same number as in [`USER_SLOTS`].
    pub const USER_QPS: &str = "USER_QPS";
    /// Numbers of [`USER_SLOTS`] that no QP has had yet, as ranges.
    pub const FREE_USER: &str = "FREE_USER";
    /// From process and handle to the number of a user QP.
    pub const USER_INDEX: &str = "USER_INDEX";
    /// Hits of probes on programs, by CPU.
    pub const USER_HITS: &str = "USER_HITS";
    /// Packets and receives that the programs of SoftRoCE saw, by CPU.
    pub const RXE_SEEN: &str = "RXE_SEEN";
    /// Ring buffer of work requests, for a trace that asks for them.
    pub const WR_EVENTS: &str = "WR_EVENTS";
    /// Which work requests make records: one [`crate::wr::WrFilter`].
    pub const WR_FILTER: &str = "WR_FILTER";
    /// How many work requests were printed, lost, filtered and so on, by [`crate::wr::count`].
    pub const WR_COUNTS: &str = "WR_COUNTS";
}
