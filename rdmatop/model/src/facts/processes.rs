//! Processes and kernel consumers.

use std::{net::SocketAddr, sync::Arc};

use serde::{Serialize, Serializer};

use super::{Bound, DevxObjects, History, NamedCounter, Traffic};
use crate::{
    input::{GpuPlace, LimitReached, LockedMemory},
    value::{Counter, Shared, Source},
};

/// A process, or a kernel consumer.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ProcessRow {
    /// Unique in this run: a reused pid is another process.
    pub uid: u64,
    /// Process id; `None` for kernel consumers and for orphans whose owner is unknown.
    pub pid: Option<u32>,
    /// Process id of its parent.
    pub ppid: Option<u32>,
    /// A kernel consumer; `comm` is its name in brackets.
    pub kernel: bool,
    /// The process has ended while objects or counters of it remain.
    pub exited: bool,
    /// Its name, as the kernel has it.
    pub comm: Arc<str>,
    /// Command line.
    pub cmdline: Option<Arc<str>>,
    /// User name, or number as text.
    pub user: Option<Arc<str>>,
    /// Cgroup path.
    pub cgroup: Option<Arc<str>>,
    /// Container, pod or job; a `?` at its end marks a claimed one.
    pub workload: Option<Arc<str>>,
    /// A user may have made the cgroup that names the workload, so the name may be false: nothing is summed
    /// or concluded by it.
    pub workload_claimed: bool,
    /// Devices on which it has QPs; for a process that has ended also those on which it had QPs.
    pub devices: Vec<Arc<str>>,
    /// QPs now.
    pub qps: u64,
    /// The objects that it made past the kernel (DEVX), by device; `None` if that is not known.
    pub devx: Option<Shared<DevxObjects>>,
    /// MR bytes now; `None` when unknown.
    pub mr_bytes: Option<u64>,
    /// Bytes of all registrations that were seen, including those that ended since.
    #[serde(skip)]
    pub mr_registered: u64,
    /// What its QPs move.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Verb calls that failed, probes by libraries not counted.
    pub verb_errors: Option<Counter>,
    /// Counters of the NIC that its QPs are bound to.
    pub hw_counters: Vec<CounterGroup>,
    /// What it moves by TCP although it could use RDMA; `None`: nothing of note.
    pub tcp: Option<TcpTraffic>,
    /// How busy the links of its job were, and whether the job waits for them; `None` if that is not known.
    /// It is concluded from all rows, so a filter does not change it.
    pub bound: Option<Bound>,
    /// The part of the packets of its ports that PSNs explain, where its bytes are known by them (source
    /// `psn`): of several ports, and of Tx and Rx, the least.
    pub psn_explains: Option<f64>,
    /// What it moved in the last seconds; `None` if that is not known.
    #[serde(skip)]
    pub recent: Option<Recent>,
    /// The limit of its RDMA cgroup that is reached; `None` if none is, or if that is not known.
    #[serde(skip)]
    pub limited: Option<Arc<LimitReached>>,
    /// How much memory it may lock, as looked up when its registrations last failed for lack of memory;
    /// `None` if it was not looked up.
    #[serde(skip)]
    pub locked: Option<Arc<LockedMemory>>,
    /// Its mappings of memory when they were last listed; `None`: not known.
    #[serde(skip)]
    pub mappings: Option<Mappings>,
    /// Why it may have queue pairs that the kernel does not list, on a device whose driver has such (mlx5);
    /// `None`: it has none, as far as can be known.
    #[serde(skip)]
    pub unlisted: Option<Unlisted>,
    /// Libraries of interest.
    pub libraries: Option<Shared<String>>,
    /// RDMA-relevant environment.
    pub environ: Option<Shared<(String, String)>>,
    /// The GPUs on which it computes, as the library of their driver lists them; `None` if that is not known.
    #[serde(serialize_with = "addresses")]
    pub gpus: Option<Arc<[Arc<GpuPlace>]>>,
    /// How many memory regions it has registered, where it is known of each that it is none of a GPU's
    /// memory; `None` if that is not known.
    #[serde(skip)]
    pub host_regions: Option<u64>,
    /// Whether it can see `/dev/infiniband/uverbs*`, without which libraries find no RDMA device.
    #[serde(skip)]
    pub verbs_files: Option<bool>,
    /// Tx and Rx bytes/s (or WRs/s).
    #[serde(skip)]
    pub history: Arc<History>,
}

impl ProcessRow {
    /// Its container, pod or job, unless a user may have made that up.
    pub fn job(&self) -> Option<&Arc<str>> {
        self.workload.as_ref().filter(|_| !self.workload_claimed)
    }

    /// Takes over what it made past the kernel. A device on which it has queue pairs of its own making is one
    /// of its devices.
    pub(crate) fn is_of_devx(&mut self, objects: Option<Vec<DevxObjects>>) {
        let used = objects.iter().flatten().filter(|objects| objects.carriers() > 0);
        let new = used.filter_map(|objects| objects.device.clone());
        let new: Vec<_> = new.filter(|device| !self.devices.contains(device)).collect();
        self.devices.extend(new);
        self.devx = objects.map(Shared::from);
    }

    /// What is there of what it made past the kernel, in words; `None` if nothing of the kind is known.
    pub fn devx_words(&self) -> Option<String> {
        let words: Vec<String> = self.devx.iter().flatten().map(DevxObjects::words).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    /// The objects past the kernel through which it can move data, by device.
    pub fn unlisted_qps(&self) -> impl Iterator<Item = &DevxObjects> {
        let living = self.devx.iter().filter(|_| !self.exited).flatten();
        living.filter(|objects| objects.carriers() > 0)
    }
}

/// Why a process may have queue pairs that the kernel does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlisted {
    /// It has made objects past the kernel (`devx_obj_create`).
    Made,
    /// It ran before rdmatop saw each call, and has a library mapped that makes some.
    Library,
    /// It ran before rdmatop saw each call, and it is not known what it had mapped then.
    Unknown,
}

/// Mappings of memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappings {
    /// How many it had.
    pub count: u64,
    /// How many it may have; `None`: not known.
    pub limit: Option<u64>,
    /// `CLOCK_MONOTONIC` when they were listed, ns.
    pub read_ns: u64,
}

/// GPUs by their addresses.
#[expect(clippy::ref_option, reason = "serde calls it with the field")]
fn addresses<S: Serializer>(gpus: &Option<Arc<[Arc<GpuPlace>]>>, to: S) -> Result<S::Ok, S::Error> {
    match gpus {
        Some(gpus) => to.collect_seq(gpus.iter().map(|gpu| &gpu.address)),
        None => to.serialize_none(),
    }
}

/// A counter of the NIC, and what it has counted of the QPs that are bound to it.
#[derive(Clone, Debug, Serialize)]
pub struct CounterGroup {
    /// Device name.
    pub device: Arc<str>,
    /// Port number.
    pub port: u32,
    /// The counter's number on the device.
    pub id: u32,
    /// How the QPs were bound: `auto pid`, `auto type,pid`, `manual`.
    pub mode: Arc<str>,
    /// Numbers of its QPs.
    pub qps: Arc<[u32]>,
    /// What it has counted, by the driver's names.
    pub counters: Vec<NamedCounter>,
}

/// Averages of what a process moved, or what passed a port, in the last seconds: bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recent {
    /// How long that was, ns.
    pub ns: u64,
    /// The bytes that were sent.
    pub tx: Option<f64>,
    /// The bytes that were received.
    pub rx: Option<f64>,
    /// These are all bytes that moved. Otherwise they are lower bounds: some QPs are not counted, or a peer
    /// may have read and written, which no work request on this host shows.
    pub whole: bool,
    /// What counted it.
    pub source: Source,
}

/// What a process with an RDMA-capable library moves by TCP, between ports that a library chose.
#[derive(Clone, Debug, Serialize)]
pub struct TcpTraffic {
    /// Bytes that peers acknowledged since the connections were first seen.
    pub tx_bytes: Counter,
    /// Bytes received since then.
    pub rx_bytes: Counter,
    /// Connections that are open.
    pub connections: u32,
    /// The other end of the connection that moves most.
    pub busiest: Option<SocketAddr>,
}
