//! A number and where it came from.

use serde::Serialize;

/// Where a value was learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Counted or seen by our eBPF programs: exact since attach.
    Ebpf,
    /// RDMA netlink (nldev).
    Netlink,
    /// A file under /sys.
    Sysfs,
    /// A file under /proc.
    Proc,
    /// Derived, not counted (for example packets from the movement of a PSN).
    Est,
}

/// A count that only grows, and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Counter {
    /// Count since creation or since attach, in the counter's own unit.
    pub total: u64,
    /// Per second over the last interval; `None` without an honest interval (first sample, reset, re-add).
    pub rate: Option<f64>,
    /// Where it came from.
    pub source: Source,
}
