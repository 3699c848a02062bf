//! Names that both sides must spell alike.

/// Names of the maps. Sizes, writers and readers: rdmatop-ebpf/src/maps.rs.
pub mod map {
    /// Ring buffer of lifecycle records.
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU counts of what was lost, by [`crate::counters::loss`].
    pub const LOSSES: &str = "LOSSES";
    /// Calls between entry and return, by thread and hook.
    pub const CALLS: &str = "CALLS";
    /// Verb counters by process and verb.
    pub const VERBS: &str = "VERBS";
    /// Failed verb calls by errno.
    pub const VERB_ERRORS: &str = "VERB_ERRORS";
    /// `ib_qp *` to slot number.
    pub const QP_INDEX: &str = "QP_INDEX";
    /// The slots.
    pub const QP_SLOTS: &str = "QP_SLOTS";
    /// Free slot numbers: user space pushes, the kernel side pops.
    pub const FREE_SLOTS: &str = "FREE_SLOTS";
}

/// Counting starts when this global is 1 in the `CONTROL` array: after every program is attached.
pub const ENABLED: &str = "CONTROL";
