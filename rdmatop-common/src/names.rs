//! Names that both sides must spell alike.

/// Names of the maps. Sizes, writers and readers: rdmatop-ebpf/src/maps.rs.
pub mod map {
    /// Ring buffer of lifecycle records.
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU counts of what was lost, by [`crate::counters::loss`].
    pub const LOSSES: &str = "LOSSES";
    /// QP calls between entry and return, by thread and hook.
    pub const QP_CALLS: &str = "QP_CALLS";
    /// MR and CQ calls between entry and return, by thread and hook.
    pub const OBJECT_CALLS: &str = "OBJECT_CALLS";
    /// Verb calls between entry and return, by thread.
    pub const VERB_CALLS: &str = "VERB_CALLS";
    /// Owner of an `rdma_cm_id`, by its number.
    pub const CM_OWNERS: &str = "CM_OWNERS";
    /// One word: 1 once every program is attached. Until then nothing is counted or emitted.
    pub const CONTROL: &str = "CONTROL";
    /// Verb counters by process and verb.
    pub const VERBS: &str = "VERBS";
    /// Failed verb calls by errno.
    pub const VERB_ERRORS: &str = "VERB_ERRORS";
    /// `ib_qp *` to slot number.
    pub const QP_INDEX: &str = "QP_INDEX";
    /// The slots.
    pub const QP_SLOTS: &str = "QP_SLOTS";
    /// Free slot numbers, last in first out: user space pushes, the kernel side pops.
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
    /// Device and QP number to `ib_qp *`.
    pub const QPN_INDEX: &str = "QPN_INDEX";
    /// Provider's queue to `ib_qp *`.
    pub const QUEUE_QP: &str = "QUEUE_QP";
    /// When a doorbell was rung, by slot and WR.
    pub const STAMPS: &str = "STAMPS";
}
