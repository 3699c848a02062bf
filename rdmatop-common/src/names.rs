//! Names that both sides must spell alike.

/// Names of the maps. Sizes, writers and readers: rdmatop-ebpf/src/maps.rs.
pub mod map {
    /// Ring buffer of lifecycle records.
    pub const EVENTS: &str = "EVENTS";
    /// Counts of what was lost, by [`crate::counters::loss`].
    pub const LOSSES: &str = "LOSSES";
    /// Modify calls between entry and return, by the low bits of the thread.
    pub const MODIFY_CALLS: &str = "MODIFY_CALLS";
    /// Those that found their place in [`MODIFY_CALLS`] taken, by thread and hook.
    pub const MODIFY_REST: &str = "MODIFY_REST";
    /// Destroy calls between entry and return, by the low bits of the thread.
    pub const DESTROY_CALLS: &str = "DESTROY_CALLS";
    /// Those that found their place in [`DESTROY_CALLS`] taken, by thread and hook.
    pub const DESTROY_REST: &str = "DESTROY_REST";
    /// MR and CQ calls between entry and return, by thread and hook.
    pub const OBJECT_CALLS: &str = "OBJECT_CALLS";
    /// Verb calls by ioctl between entry and return, by the low bits of the thread.
    pub const IOCTL_CALLS: &str = "IOCTL_CALLS";
    /// Those that found their place in [`IOCTL_CALLS`] taken, and those by `write()`, by thread and hook.
    pub const VERB_CALLS: &str = "VERB_CALLS";
    /// Owner of an `rdma_cm_id`, by its number.
    pub const CM_OWNERS: &str = "CM_OWNERS";
    /// One word: 1 once every program is attached. Until then nothing is counted or emitted.
    pub const CONTROL: &str = "CONTROL";
    /// Verb counters: an array, read through memory.
    pub const VERBS: &str = "VERBS";
    /// Process and verb to number in [`VERBS`].
    pub const VERB_INDEX: &str = "VERB_INDEX";
    /// Free numbers of [`VERBS`], as ranges.
    pub const FREE_VERBS: &str = "FREE_VERBS";
    /// Failed verb calls by errno: an array, read through memory.
    pub const VERB_ERRORS: &str = "VERB_ERRORS";
    /// Process, verb and errno to number in [`VERB_ERRORS`].
    pub const VERB_ERROR_INDEX: &str = "VERB_ERROR_INDEX";
    /// Free numbers of [`VERB_ERRORS`], as ranges.
    pub const FREE_VERB_ERRORS: &str = "FREE_VERB_ERRORS";
    /// `ib_qp *` to what is known of the QP.
    pub const QP_INDEX: &str = "QP_INDEX";
    /// The slots.
    pub const QP_SLOTS: &str = "QP_SLOTS";
    /// Slot numbers that nobody has had yet, as ranges.
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
    /// Slot numbers of destroyed QPs, the oldest first.
    pub const USED_SLOTS: &str = "USED_SLOTS";
    /// Device and QP number to `ib_qp *`.
    pub const QPN_INDEX: &str = "QPN_INDEX";
    /// Provider's queue to slot number.
    pub const QUEUE_SLOTS: &str = "QUEUE_SLOTS";
    /// Rings, cursors and doorbell times of QPs, by slot.
    pub const QP_PATHS: &str = "QP_PATHS";
}
