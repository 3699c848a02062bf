//! Processes: what /proc says of them, their limits, their TCP connections, the devices that they have open.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::Serialize;

use super::ReadAt;
use crate::cause::Cause;

/// A limit of a process's RDMA cgroup, or of a cgroup above it, that is used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReached {
    /// Process id.
    pub pid: u32,
    /// Cgroup that has the limit, safe to print.
    pub cgroup: String,
    /// Device, safe to print.
    pub device: String,
    /// `hca_handle` or `hca_object`.
    pub resource: String,
    /// How many the cgroup may have; it has as many.
    pub max: u64,
}

/// How much memory a process may lock. It is looked up when registrations of memory fail for lack of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedMemory {
    /// Process id.
    pub pid: u32,
    /// The soft limit of locked memory, bytes; `None`: unlimited.
    pub limit: Option<u64>,
    /// Whether it has `CAP_IPC_LOCK`, which lifts the limit; `None` if not known.
    pub exempt: Option<bool>,
    /// Memory that drivers hold pinned for it (`VmPin`), bytes; `None` if not known.
    pub pinned: Option<u64>,
}

/// How many mappings of memory processes have, and how many one may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingsSample {
    /// `vm.max_map_count`, which counts for each process of the machine; `None`: not readable.
    pub limit: Option<u64>,
    /// The processes whose mappings were listed since the last sample.
    pub processes: Vec<MappingCount>,
}

/// Mappings of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingCount {
    /// Process id.
    pub pid: u32,
    /// When the process started, clock ticks since boot: another process may have its PID by now.
    pub start_ticks: u64,
    /// How many there are; `None`: the list was not readable, or not to its end.
    pub count: Option<u64>,
    /// `CLOCK_MONOTONIC` when they were listed, ns.
    pub read_ns: u64,
}

/// One reading of TCP connections.
#[derive(Clone, Debug)]
pub struct TcpSample {
    /// The time of the reading.
    pub at: ReadAt,
    /// The time of the reading before.
    pub before: Option<ReadAt>,
    /// Processes that moved much between ports that a library chose, and that have a library mapped which
    /// could use RDMA.
    pub processes: Vec<TcpTotals>,
    /// Why the processes of some connections are unknown; `None`: all that are readable were searched.
    pub cut: Option<Box<Cause>>,
}

/// What a process moved by TCP while it was known to have the connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpTotals {
    /// Process id.
    pub pid: u32,
    /// When the process started, clock ticks since boot: another process may have its PID by now.
    pub start_ticks: u64,
    /// Bytes that its peers acknowledged, and bytes received.
    pub moved: [u64; 2],
    /// Of these since the reading before.
    pub lately: [u64; 2],
    /// Connections that are open.
    pub connections: u32,
    /// The other end of the connection that moves most.
    pub busiest: Option<SocketAddr>,
}

/// Which processes have devices open, by their descriptors of `/dev/infiniband/uverbs*`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenersSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// The processes that were found, by PID.
    pub found: Vec<Opener>,
    /// How many descriptors of its file are open, by device, safe to print.
    pub files: BTreeMap<String, u64>,
    /// The open files of some processes were not readable.
    pub hidden: bool,
    /// The search stopped at its limit, so processes may be missing.
    pub cut: bool,
}

/// A process that has a device open. Of a port that moves unexplained data JSON has it as a candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Opener {
    /// Device, safe to print.
    #[serde(skip)]
    pub device: String,
    /// Process id.
    pub pid: u32,
    /// Its real user, with whose other processes it shares places; `u32::MAX` where that was not asked for.
    #[serde(skip)]
    pub user: Option<u32>,
    /// Its name, safe to print; `None` if it ended meanwhile.
    pub comm: Option<String>,
    /// Container, pod or job, safe to print; a `?` at its end marks a claimed one.
    pub workload: Option<String>,
    /// Libraries of interest that are mapped, safe to print; `None` if not readable.
    pub libraries: Option<Vec<String>>,
}

/// What /proc says about a process, read once when it is first seen.
#[derive(Clone, Debug, Default)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot as the kernel counts them: two processes that had the same pid
    /// differ in it.
    pub start_ticks: u64,
    /// `CLOCK_MONOTONIC` when it started, ns; never later than it did. 0: not known.
    pub born_ns: u64,
    /// `CLOCK_MONOTONIC` before the rest was read, ns.
    pub read_ns: u64,
    /// Raw comm.
    pub comm: Option<String>,
    /// Raw command line, arguments joined by spaces.
    pub cmdline: Option<String>,
    /// User id.
    pub uid: Option<u32>,
    /// User name.
    pub user: Option<String>,
    /// Cgroup path.
    pub cgroup: Option<String>,
    /// Container, pod or job that the cgroup names, for display.
    pub workload: Option<String>,
    /// A user may have made the cgroup that names the workload.
    pub workload_claimed: bool,
    /// Parent process.
    pub ppid: Option<u32>,
    /// Libraries of interest that are mapped (`libnccl`, `libfabric`, ...), when read.
    pub libraries: Option<Vec<String>>,
    /// RDMA-relevant environment, when read.
    pub environ: Option<Vec<(String, String)>>,
    /// Whether the process can see `/dev/infiniband/uverbs*`, when read.
    pub verbs_files: Option<bool>,
}
