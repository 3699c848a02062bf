//! What views show: immutable, complete, cheap to share.
//!
//! Field names are the JSON schema (version 1, docs/json.md). `None` means unknown and is written as null. All text
//! is safe to print.

use std::{net::SocketAddr, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{
    cause::Cause,
    findings::Finding,
    ib::{Gid, PhysState, PortState, QpState, QpType, WcStatus, WrOpcode},
    input::{
        EbpfState, HostFacts, HwCountersReport, LimitReached, PcieLink, ProbeVerdict, Skipped, UprobesReport,
    },
    judgement::{AllUnexplained, Bound, Judgement, QpsWritten, Quantity},
    value::{Counter, Shared, Source},
    watched::Picture,
};

/// Version of the JSON objects.
pub const SCHEMA: u32 = 1;
/// Points kept of each history of ports and processes.
pub const HISTORY: usize = 300;
/// Points kept of each history of QPs: there may be ten thousand of them.
pub const QP_HISTORY: usize = 60;

/// Everything at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// [`SCHEMA`].
    pub schema: u32,
    /// `CLOCK_REALTIME`, ns since the epoch.
    pub time: u64,
    /// `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// Distance to the snapshot before, ns; `None` for the first.
    pub interval_ns: Option<u64>,
    /// Host.
    pub host: HostFacts,
    /// State of rdmatop itself.
    pub health: Health,
    /// Totals, stuck QPs, what cannot be observed. [`Snapshot::judged`] makes it.
    pub judgement: Judgement,
    /// What is wrong, the worst first, then the oldest.
    pub findings: Shared<Finding>,
    /// Ports that move data which no queue pair explains: concluded from all rows, so a filter makes none. JSON has them in
    /// `judgement`.
    pub unexplained: AllUnexplained,
    /// Devices, natural order of their names.
    pub devices: Vec<DeviceRow>,
    /// Ports, in the order of devices.
    pub ports: Vec<PortRow>,
    /// Processes and kernel consumers that have or had RDMA objects or made verb calls.
    pub processes: Vec<ProcessRow>,
    /// QPs. A row in which nothing changed is the same `Arc` as in the snapshot before.
    pub qps: Vec<Arc<QpRow>>,
    /// Verb calls by process.
    pub verbs: Vec<VerbRow>,
    /// The QP whose work requests the view asked for. JSON does not have it.
    pub watched: Option<Arc<Picture>>,
}

impl Serialize for Snapshot {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            schema,
            time,
            mono_ns,
            interval_ns,
            host,
            health,
            judgement,
            findings,
            unexplained: _,
            devices,
            ports,
            processes,
            qps: _,
            verbs,
            watched: _,
        } = self;
        let mut object = serializer.serialize_struct("Snapshot", 13)?;
        object.serialize_field("schema", schema)?;
        object.serialize_field("time", time)?;
        object.serialize_field("mono_ns", mono_ns)?;
        object.serialize_field("interval_ns", interval_ns)?;
        object.serialize_field("host", host)?;
        object.serialize_field("health", health)?;
        object.serialize_field("judgement", judgement)?;
        object.serialize_field("findings", findings)?;
        object.serialize_field("devices", devices)?;
        object.serialize_field("ports", ports)?;
        object.serialize_field("processes", processes)?;
        // With what is unknown of each, which only the rest of the snapshot tells.
        object.serialize_field("qps", &QpsWritten(self))?;
        object.serialize_field("verbs", verbs)?;
        object.end()
    }
}

/// State of rdmatop itself.
#[derive(Clone, Debug, Serialize)]
pub struct Health {
    /// eBPF programs.
    pub ebpf: EbpfState,
    /// Records lost since start, all causes that lose records.
    pub lost_events: u64,
    /// Losses by cause; only causes that happened.
    pub losses: Vec<Loss>,
    /// Programs that the kernel skipped since start; `None` where it does not count that.
    pub skipped: Option<Shared<Skipped>>,
    /// Probes on programs whose posts bypass the kernel; `None` without `--uprobes`.
    pub uprobes: Option<Arc<UprobesReport>>,
    /// What `--hw-counters` has changed; `None` without it.
    pub hw_counters: Option<Arc<HwCountersReport>>,
    /// Lifecycle records seen since start.
    pub events: u64,
    /// What became of work requests, where a trace asks for them.
    #[serde(skip)]
    pub work: Option<WorkRequests>,
    /// Verdicts.
    pub probes: Shared<ProbeVerdict>,
    /// eBPF is on and records report everything that happens to QPs, so no dump is needed.
    #[serde(skip)]
    pub follows_qps: bool,
    /// What is missing, why, the remedy.
    pub notes: Shared<Cause>,
    /// Reads that failed in this interval.
    pub errors: Vec<Cause>,
    /// Own CPU, fraction of a core.
    pub self_cpu: Option<f64>,
    /// Own resident memory, bytes.
    pub self_rss: Option<u64>,
}

impl Health {
    /// Whether some counters miss something.
    pub fn counts_are_short(&self) -> bool {
        self.losses.iter().any(|loss| !loss.records)
    }
}

/// What became of posts and ends of work requests since start: the others made an event, or are among the losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkRequests {
    /// Posts and ends on the QPs that are followed.
    pub happened: u64,
    /// Of these, not asked for.
    pub filtered: u64,
    /// Of these, left out by sampling.
    pub sampled_out: u64,
}

/// A cause of loss and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// Stable word: `ring`, `stash`, `slot`, `verb`, `walk`, `stamp`, `return`, `missed`,
    /// `wr_ring`, `wr_missed`, `place`, `decode`, `channel`.
    #[serde(rename = "where")]
    pub at: &'static str,
    /// How often since start.
    pub count: u64,
    /// Whether it loses records, and so events; otherwise it loses counts.
    pub records: bool,
}

/// Whether a device is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// The kernel lists it.
    Registered,
    /// It is being removed, and a process has it open: the kernel no longer lists it, its QPs go on.
    Removing,
}

/// A device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceRow {
    /// Unique in this run: a re-added device is another one.
    pub uid: u64,
    /// Kernel index; `None` for a device that was being removed when it was first seen.
    pub index: Option<u32>,
    /// Name.
    pub name: Arc<str>,
    /// Whether it is being removed; `None` when no reading has listed it.
    pub state: Option<DeviceState>,
    /// Node GUID, 16 hex digits in groups of four.
    pub node_guid: Option<String>,
    /// Driver.
    pub driver: Option<Arc<str>>,
    /// Firmware.
    pub fw_version: Option<Arc<str>>,
    /// PCI address.
    pub pci: Option<Arc<str>>,
    /// NUMA node.
    pub numa_node: Option<i32>,
    /// PCI Express link: negotiated, and what the device is capable of.
    #[serde(skip)]
    pub pcie: Option<[PcieLink; 2]>,
    /// QPs.
    pub qps: Option<u64>,
    /// CQs.
    pub cqs: Option<u64>,
    /// MRs.
    pub mrs: Option<u64>,
    /// PDs.
    pub pds: Option<u64>,
    /// rdma_cm ids.
    pub cm_ids: Option<u64>,
    /// User contexts.
    pub ctxs: Option<u64>,
    /// SRQs.
    pub srqs: Option<u64>,
    /// Errors that its driver logged since rdmatop began; `None` where the kernel's log cannot be read.
    pub driver_errors: Option<u64>,
    /// The last of them.
    pub driver_error: Option<Arc<str>>,
    /// When rdmatop read that one, `CLOCK_MONOTONIC`, ns.
    #[serde(skip)]
    pub driver_error_ns: Option<u64>,
    /// Programs of ours count work requests of its driver, where they are attached.
    #[serde(skip)]
    pub followed: bool,
    /// How the programs that count its work requests are attached, `kprobe` or `fentry`; `None` when none are.
    pub datapath: Option<Arc<str>>,
    /// What programs cannot see of its driver's work requests, and why.
    #[serde(skip)]
    pub hidden: &'static [Hidden],
}

impl DeviceRow {
    /// Whether processes may use it through queue pairs that the kernel does not list. Of the drivers in Linux only mlx5's lets a
    /// library make them past ib_core (DEVX). An unknown driver may be that one.
    pub fn may_hide_qps(&self) -> bool {
        let is_mlx5 = |driver: &Arc<str>| driver.starts_with("mlx5");
        !self.followed && self.driver.as_ref().is_none_or(is_mlx5)
    }
}

/// Something that cannot be observed of any device of a driver, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// What.
    pub what: Quantity,
    /// Why, one sentence.
    pub why: &'static str,
}

/// A port.
#[derive(Clone, Debug, Serialize)]
pub struct PortRow {
    /// [`DeviceRow::uid`].
    pub device_uid: u64,
    /// Device name.
    pub device: Arc<str>,
    /// Port number.
    pub port: u32,
    /// Logical state.
    pub state: Option<PortState>,
    /// Physical state.
    pub phys_state: Option<PhysState>,
    /// Link layer.
    pub link_layer: Option<Arc<str>>,
    /// Network device.
    pub netdev: Option<Arc<str>>,
    /// MTU of the network device, bytes.
    pub netdev_mtu: Option<u32>,
    /// Priorities with flow control (PFC), a bit for each; `None` when that is not known.
    #[serde(skip)]
    pub pfc: Option<u8>,
    /// GIDs; `None` when they could not be read.
    #[serde(skip)]
    pub gids: Option<Arc<[PortGid]>>,
    /// Rate, bits/s; `None` when the provider has no true one.
    pub rate_bps: Option<u64>,
    /// Lanes of the link, for which symbols are counted.
    #[serde(skip)]
    pub lanes: Option<u8>,
    /// Bytes sent by the provider's own counter, headers included: what passed the wire.
    pub tx_bytes: Option<Counter>,
    /// The same for received bytes.
    pub rx_bytes: Option<Counter>,
    /// Bytes of send WRs, as [`Traffic::tx_bytes`], of all QPs of the port. Payload only: no headers, no
    /// retransmissions, and nothing that a peer reads or writes by itself.
    pub wr_tx_bytes: Option<Counter>,
    /// Bytes of receive completions, as [`Traffic::rx_bytes`], of all QPs of the port.
    pub wr_rx_bytes: Option<Counter>,
    /// Packets sent.
    pub tx_packets: Option<Counter>,
    /// Packets received.
    pub rx_packets: Option<Counter>,
    /// Packets dropped, those that found no receive buffer too.
    pub drops: Option<Counter>,
    /// Packets that found no receive buffer.
    pub out_of_buffer: Option<Counter>,
    /// Packets sent again.
    pub retransmits: Option<Counter>,
    /// How often a sender had to start again: timeouts, NAKs of the peer. Each sends one packet or many again.
    pub retries: Option<Counter>,
    /// Signs of congestion received: packets with a mark, and notifications (CNP).
    pub congestion: Option<Counter>,
    /// Of these the packets with a mark (ECN).
    pub ecn_marked: Option<Counter>,
    /// Of these the notifications (CNP), which slow a sender down.
    pub cnp_handled: Option<Counter>,
    /// Notifications of congestion sent.
    pub cnp_sent: Option<Counter>,
    /// RNR NAKs, both directions.
    pub rnr_naks: Option<Counter>,
    /// Every byte that its byte counters count is of a queue pair, and none of IP.
    #[serde(skip)]
    pub rdma_alone: bool,
    /// Every counter the provider has.
    pub counters: Vec<NamedCounter>,
    /// Tx and Rx bytes/s (packets/s where there are no bytes).
    #[serde(skip)]
    pub history: Arc<History>,
    /// What passed it in the last seconds, by the provider's own counters; `None`: that is not known.
    #[serde(skip)]
    pub recent: Option<Recent>,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// Its place.
    pub index: u16,
    /// It.
    pub gid: Gid,
    /// It is one of RoCE v1 (or of InfiniBand); `None` when the type is not known.
    pub v1: Option<bool>,
}

impl PortRow {
    /// Bytes sent: on the wire where the provider counts them, otherwise of work requests.
    pub fn any_tx_bytes(&self) -> Option<&Counter> {
        self.tx_bytes.as_ref().or(self.wr_tx_bytes.as_ref())
    }

    /// Bytes received, likewise.
    pub fn any_rx_bytes(&self) -> Option<&Counter> {
        self.rx_bytes.as_ref().or(self.wr_rx_bytes.as_ref())
    }
}

/// A counter under the provider's name, as the provider counts it.
#[derive(Clone, Debug, Serialize)]
pub struct NamedCounter {
    /// The provider's name.
    pub name: Arc<str>,
    /// Bytes that one count stands for: 4 for data counters of the InfiniBand specification, which count words.
    /// `None`: the name says what is counted.
    pub unit_bytes: Option<u64>,
    /// What it means, a sentence without its full stop (docs/counters.md); `None`: it is not known.
    #[serde(skip)]
    pub help: Option<&'static str>,
    /// The counter.
    #[serde(flatten)]
    pub counter: Counter,
}

/// Work requests, bytes and completions of a QP or a process.
///
/// `None` is "not observable", which is what a NIC that bypasses the kernel gives.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Traffic {
    /// Send WRs finished.
    pub tx_wr: Option<Counter>,
    /// Send WRs posted.
    pub tx_wr_posted: Option<Counter>,
    /// Receive WRs completed.
    pub rx_wr: Option<Counter>,
    /// Receive WRs posted, as of the last receive completion or modify, or of destroy. `None` also where receives
    /// come from a shared receive queue (SRQ), which belongs to no QP.
    pub rx_wr_posted: Option<Counter>,
    /// Bytes of send-side WRs.
    pub tx_bytes: Option<Counter>,
    /// Bytes of receive completions.
    pub rx_bytes: Option<Counter>,
    /// CQEs.
    pub completions: Option<Counter>,
    /// CQEs with an error, flushes not counted.
    pub completion_errors: Option<Counter>,
    /// CQEs flushed because the QP went to ERR.
    pub flushes: Option<Counter>,
    /// Request packets sent again.
    pub retransmits: Option<Counter>,
    /// Waits for a receiver without buffers.
    pub rnr_waits: Option<Counter>,
    /// Calls of post_send that reached the kernel.
    pub doorbells: Option<Counter>,
    /// CQEs for which the CQ had no room.
    pub cq_overflows: Option<Counter>,
    /// Packets. Of a QP: an estimate from the movement of its send PSN, which a READ moves by the packets of its answer. Of a
    /// process: as the NIC counts them for its QPs.
    pub tx_packets: Option<Counter>,
    /// Send WRs by opcode; only those that happened.
    pub by_opcode: Vec<OpcodeTraffic>,
    /// CQEs by status, success too; only those that happened. Their sum is `completions`.
    pub by_status: Vec<StatusCount>,
    /// Post-to-completion time.
    pub latency: Option<Latency>,
}

impl Traffic {
    /// Bytes per second that its work requests send and receive. The bytes of a READ are among those of send WRs, and they are
    /// received.
    pub fn ways(&self) -> [Option<f64>; 2] {
        let reads = self.by_opcode.iter().filter(|o| matches!(o.opcode.0, 4 | 11));
        let read: f64 = reads.filter_map(|o| o.bytes.rate).sum();
        let [tx, rx] = [self.tx_bytes, self.rx_bytes].map(|c| c.and_then(|c| c.rate));
        [tx.map(|tx| (tx - read).max(0.0)), rx.map(|rx| rx + read)]
    }

    /// Marks all counters as lower bounds: some traffic was not counted.
    pub fn is_partial(&mut self) {
        let counters = [
            &mut self.tx_wr,
            &mut self.tx_wr_posted,
            &mut self.rx_wr,
            &mut self.rx_wr_posted,
            &mut self.tx_bytes,
            &mut self.rx_bytes,
            &mut self.completions,
            &mut self.completion_errors,
            &mut self.flushes,
            &mut self.retransmits,
            &mut self.rnr_waits,
            &mut self.doorbells,
            &mut self.cq_overflows,
            &mut self.tx_packets,
        ];
        let opcodes = self
            .by_opcode
            .iter_mut()
            .flat_map(|row| [&mut row.wr, &mut row.bytes]);
        let statuses = self.by_status.iter_mut().map(|row| &mut row.cqes);
        let counters = counters.into_iter().flatten().chain(opcodes).chain(statuses);
        counters.for_each(|counter| counter.partial = true);
    }
}

/// Send WRs of one opcode.
#[derive(Clone, Debug, Serialize)]
pub struct OpcodeTraffic {
    /// Opcode.
    pub opcode: WrOpcode,
    /// WRs.
    pub wr: Counter,
    /// Bytes.
    pub bytes: Counter,
}

/// CQEs of one status.
#[derive(Clone, Debug, Serialize)]
pub struct StatusCount {
    /// Status.
    pub status: WcStatus,
    /// CQEs.
    pub cqes: Counter,
}

/// A log2 histogram of times, and figures taken from it.
#[derive(Clone, Debug, Serialize)]
pub struct Latency {
    /// Samples.
    pub count: u64,
    /// Work requests that had finished before their doorbell was seen: they give no sample and are not lost.
    pub early: u64,
    /// Mean, ns.
    pub mean_ns: Option<u64>,
    /// Upper edge of the bucket that holds the median, ns.
    pub p50_ns: Option<u64>,
    /// Upper edge of the bucket that holds the 99th percentile, ns.
    pub p99_ns: Option<u64>,
    /// Largest, ns, exact.
    pub max_ns: Option<u64>,
    /// Samples by bucket: `i` holds `[2^i, 2^(i+1))` ns.
    pub buckets: Vec<u64>,
}

/// A process, or a kernel consumer.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessRow {
    /// Unique in this run: a reused pid is another process.
    pub uid: u64,
    /// Process id; `None` for kernel consumers and for orphans whose owner is unknown.
    pub pid: Option<u32>,
    /// Parent.
    pub ppid: Option<u32>,
    /// A kernel consumer; `comm` is its name in brackets.
    pub kernel: bool,
    /// Ended while objects or counters remain.
    pub exited: bool,
    /// Name.
    pub comm: Arc<str>,
    /// Command line.
    pub cmdline: Option<Arc<str>>,
    /// User name, or number as text.
    pub user: Option<Arc<str>>,
    /// Cgroup path.
    pub cgroup: Option<Arc<str>>,
    /// Container, pod or job.
    pub workload: Option<Arc<str>>,
    /// Devices it has QPs on.
    pub devices: Vec<Arc<str>>,
    /// QPs now.
    pub qps: u64,
    /// MR bytes now; `None` when unknown.
    pub mr_bytes: Option<u64>,
    /// Traffic.
    #[serde(flatten)]
    pub traffic: Traffic,
    /// Verb calls that failed, probes by libraries not counted.
    pub verb_errors: Option<Counter>,
    /// Counters of the NIC that its QPs are bound to.
    pub hw_counters: Vec<CounterGroup>,
    /// What it moves by TCP where it could use RDMA; `None`: nothing of note.
    pub tcp: Option<TcpTraffic>,
    /// How busy the links of its job were, and whether it waits for them; `None`: that is not known. Concluded from all rows, so
    /// a filter leaves it as it is.
    pub bound: Option<Bound>,
    /// What it moved in the last seconds; `None`: that is not known.
    #[serde(skip)]
    pub recent: Option<Recent>,
    /// The limit of its RDMA cgroup that is reached; `None`: none, or that is not known.
    #[serde(skip)]
    pub limited: Option<Arc<LimitReached>>,
    /// Libraries of interest.
    pub libraries: Option<Shared<String>>,
    /// RDMA-relevant environment.
    pub environ: Option<Shared<(String, String)>>,
    /// Whether it finds `/dev/infiniband/uverbs*`, without which libraries see no RDMA device.
    #[serde(skip)]
    pub verbs_files: Option<bool>,
    /// Tx and Rx bytes/s (or WRs/s).
    #[serde(skip)]
    pub history: Arc<History>,
}

/// A counter of the NIC, and what it has counted of the QPs that are bound to it.
#[derive(Clone, Debug, Serialize)]
pub struct CounterGroup {
    /// Device name.
    pub device: Arc<str>,
    /// Port number.
    pub port: u32,
    /// Its number on the device.
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
    /// Sent.
    pub tx: Option<f64>,
    /// Received.
    pub rx: Option<f64>,
    /// It is all that moved. Otherwise these are lower bounds: of some QPs nothing is known, or a peer may have read and
    /// written, which no work request here shows.
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
    /// The other end of the one that moves most.
    pub busiest: Option<SocketAddr>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize)]
pub struct QpRow {
    /// Unique in this run: a reused QPN is another QP.
    pub uid: u64,
    /// [`DeviceRow::uid`].
    pub device_uid: Option<u64>,
    /// Device name.
    pub device: Arc<str>,
    /// Port.
    pub port: Option<u32>,
    /// QP number.
    pub qpn: u32,
    /// Type.
    pub qp_type: Option<QpType>,
    /// State.
    pub state: Option<QpState>,
    /// Source of `state`.
    pub state_source: Option<Source>,
    /// Owner.
    pub pid: Option<u32>,
    /// [`ProcessRow::uid`] of the owner.
    pub process_uid: Option<u64>,
    /// Owner's name, or the kernel consumer's in brackets.
    pub comm: Option<Arc<str>>,
    /// Owned by a kernel consumer.
    pub kernel: bool,
    /// Its owner exited, another process still holds it; or its process is not known, because the thread that made it ended.
    pub orphan: bool,
    /// Destroyed; the row stays for some seconds.
    pub exited: bool,
    /// Totals count from attach, or from when the QP got a counter slot, not from its creation.
    pub since_attach: bool,
    /// It moves without a counter slot: its traffic is not known, and a note says why.
    pub uncounted: bool,
    /// Peer's QP number.
    pub remote_qpn: Option<u32>,
    /// GID of the peer's port.
    pub remote_gid: Option<Gid>,
    /// Path MTU, bytes.
    pub path_mtu: Option<u32>,
    /// Index of its own address in the port's GID table.
    #[serde(skip)]
    pub sgid_index: Option<u8>,
    /// `CLOCK_MONOTONIC` of its creation, ns; `None` when it existed before rdmatop. See [`QpRow::age_ns`].
    pub born_mono_ns: Option<u64>,
    /// Send PSN.
    pub sq_psn: Option<u32>,
    /// Receive PSN.
    pub rq_psn: Option<u32>,
    /// States and when they began, oldest first (`mono_ns`). Shared with the rows before and after.
    pub timeline: Arc<Vec<Step>>,
    /// Traffic. All QPs that were idle from the start share one.
    #[serde(flatten)]
    pub traffic: Arc<Traffic>,
    /// Tx and Rx bytes/s (or WRs/s).
    #[serde(skip)]
    pub history: Arc<History>,
}

impl QpRow {
    /// Age at a time of `CLOCK_MONOTONIC` ([`Snapshot::mono_ns`]), ns. Not a field: a row with an age would change at
    /// every snapshot, and ten thousand idle rows could not be shared.
    pub fn age_ns(&self, mono_ns: u64) -> Option<u64> {
        mono_ns.checked_sub(self.born_mono_ns?)
    }
}

/// A step of a QP's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// State entered.
    pub state: QpState,
    /// Time in the kernel's modify, ns; `None` for creation and initial sync.
    pub duration_ns: Option<u64>,
}

/// Verb calls of one process.
#[derive(Clone, Debug, Serialize)]
pub struct VerbRow {
    /// [`ProcessRow::uid`] when the process is known.
    pub process_uid: Option<u64>,
    /// Process id.
    pub pid: u32,
    /// Name.
    pub comm: Option<Arc<str>>,
    /// Verb.
    pub verb: Arc<str>,
    /// Calls.
    pub calls: Counter,
    /// Calls that failed; `None` where only calls are counted.
    pub errors: Option<Counter>,
    /// Failures by errno.
    pub errnos: Vec<(u32, u64)>,
    /// A call that a library makes to probe and that fails by design: not a fault.
    pub probe: bool,
    /// Time in the kernel; `None` where it is not measured, or is a wait.
    pub latency: Option<Latency>,
}

/// Points of the last minutes, one a snapshot, oldest first. `None` where no true rate is known.
///
/// Empty when there were only zeroes and unknowns for as long as points are kept.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Sent, per second.
    pub tx: Vec<Option<f64>>,
    /// Received, per second.
    pub rx: Vec<Option<f64>>,
    /// What the points count: `bytes`, `packets` or `wr`.
    pub unit: &'static str,
}
