//! Everything that a source can send to the engine. Plain data: a recording is a list of these.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rdmatop_common::{
    counters::{QpSlot, VerbErrorKey, VerbKey, VerbStats, loss},
    event::Record,
    wr::{WrRecord, count},
};

use serde::{Deserialize, Serialize};
use zerocopy::FromZeros as _;

use super::{
    cause::{Cause, Concerns, Obstacle},
    ib::{PhysState, PortState, QpState, QpType},
    numbers,
    value::Shared,
};

/// A point in time, by both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Now {
    /// `CLOCK_MONOTONIC`, ns: the clock of kernel records and of rates.
    pub mono_ns: u64,
    /// `CLOCK_REALTIME`, ns since the epoch: for display only.
    pub wall_ns: u64,
}

/// When something was read. Each counter has its own time, because a rate is its increase divided by the time between
/// its own two reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadAt {
    /// `CLOCK_MONOTONIC` in the middle of the read, ns: the kernel looked at the counter somewhere between its
    /// beginning and its end.
    pub mono_ns: u64,
    /// Half of the duration of the read, ns: the true time may differ from `mono_ns` by this much.
    pub within_ns: u64,
}

impl ReadAt {
    /// Of a read that began at `before_ns` and ended at `after_ns`.
    pub fn between(before_ns: u64, after_ns: u64) -> Self {
        let within_ns = after_ns.saturating_sub(before_ns) / 2;
        Self {
            mono_ns: before_ns.saturating_add(within_ns),
            within_ns,
        }
    }
}

impl From<u64> for ReadAt {
    /// A read at one moment.
    fn from(mono_ns: u64) -> Self {
        Self {
            mono_ns,
            within_ns: 0,
        }
    }
}

/// An input and the time at which it was read: what a source sends to the engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Timed {
    /// Both clocks when the source handed the input over. The engine reads no clock: this is its present.
    pub at: Now,
    /// What was read.
    pub input: Input,
}

impl Input {
    /// As read at this time.
    pub fn at(self, at: Now) -> Timed {
        Timed { at, input: self }
    }
}

/// What a source has read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Input {
    /// Records from the ring buffer, in their order.
    Records(#[serde(with = "numbers")] Vec<Record>),
    /// Work requests, from their own ring buffer, in their order.
    WorkRequests(#[serde(with = "numbers")] Vec<WrRecord>),
    /// What became of work requests, cumulative since start, indexed by [`count`].
    WorkCounts([u64; count::COUNT as usize]),
    /// The QP whose work requests the view shows.
    Watch(Box<WatchSample>),
    /// A ring-buffer record that could not be decoded.
    BadRecord,
    /// The state of our programs: comes before anything that they send, and at each change.
    Ebpf(Box<EbpfReport>),
    /// Counts of losses, cumulative since start, indexed by [`loss`].
    Losses([u64; loss::COUNT as usize]),
    /// What SoftRoCE's programs have seen; absent where the kernel counts what it skips.
    Seen(SeenByPrograms),
    /// Programs that the kernel skipped since start; `None` where it does not count that.
    Skipped(Option<Vec<Skipped>>),
    /// Messages that found the channel to the engine full, cumulative.
    ChannelDropped(u64),
    /// Devices and ports, as netlink and sysfs report them, at one time.
    Devices(Box<DevicesSample>),
    /// Counters of ports, of devices that an earlier [`Input::Devices`] listed and that have not changed.
    Counters(Box<CountersSample>),
    /// All QPs of some devices, from a netlink dump: initial sync and repair.
    Qps(Box<QpsSample>),
    /// Counter slots from the mmapped array: those in use.
    Slots(Box<SlotsSample>),
    /// Verb counters.
    Verbs(Box<VerbsSample>),
    /// Probes on programs.
    Uprobes(Box<UprobesReport>),
    /// The user wants no more probes on programs.
    UprobesOver,
    /// Counters of the NIC that QPs are bound to.
    Groups(Box<GroupsSample>),
    /// What `--hw-counters` has changed.
    HwCounters(Box<HwCountersReport>),
    /// Facts about a process.
    Process(Box<ProcessFacts>),
    /// What programs with RDMA-capable libraries move by TCP.
    Tcp(Box<TcpSample>),
    /// How busy GPUs were.
    Gpus(Box<GpuSample>),
    /// Which processes have devices open.
    Openers(Box<OpenersSample>),
    /// Errors in the kernel's log since the last input of this kind, of any driver, or why it cannot be read.
    Logged(Result<Vec<LoggedError>, Box<Cause>>),
    /// Processes whose RDMA cgroup is at a limit; replaces the list before.
    RdmaLimits(Vec<LimitReached>),
    /// A process is gone from /proc.
    ProcessGone {
        /// Process id: another one may have it by now.
        pid: u32,
        /// Start time, as in [`ProcessFacts`]; `None` of a process that /proc did not have when it was asked for.
        start_ticks: Option<u64>,
    },
    /// Devices whose drivers answer late; replaces the list before.
    Slow(Vec<Cause>),
    /// The present round of reading has taken too long, and why; `None`: it has ended.
    RoundHangs(Option<Box<Cause>>),
    /// State of our own programs and of the host.
    Health(Box<HealthSample>),
}

/// What the source of a watched QP reports.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WatchSample {
    /// Number of the watch: the user may end one and begin another while records of the first are on their way.
    pub watch: u64,
    /// `uid` of the QP.
    pub qp: u64,
    /// What there is to report.
    pub report: WatchReport,
}

/// See [`WatchSample`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum WatchReport {
    /// The programs are being attached.
    Starting,
    /// They are attached.
    On,
    /// They cannot be, or would see nothing.
    Off(Obstacle),
    /// Records of the QP in their order, and how many found no room or were not seen so far.
    Records {
        /// They.
        #[serde(with = "numbers")]
        records: Vec<WrRecord>,
        /// Records that found no room, since the beginning.
        full: u64,
        /// Posts and ends that no program saw in time, since the beginning.
        missed: u64,
    },
    /// The user has closed it, and nothing is attached.
    Over,
}

/// What SoftRoCE's programs have seen, on all devices together, to be compared with the driver's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenByPrograms {
    /// Number of the session of eBPF programs: each begins at 0.
    pub session: u64,
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Packets that were about to be sent; `None` if no program sees them.
    pub packets: Option<u64>,
    /// Successful completions of receives; `None` if no program sees them.
    pub receives: Option<u64>,
}

/// One reading of every device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DevicesSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Devices there are now. A device missing here is gone.
    pub devices: Vec<DeviceReading>,
    /// The list could not be read: `devices` is meaningless, and no device is gone.
    pub unread: bool,
    /// What could not be read.
    pub errors: Vec<Cause>,
    /// Notes about devices, such as one whose removal waits.
    pub notes: Vec<Cause>,
}

/// A reading of what moves, between two readings of every device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CountersSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Devices of which more than counters has changed; their ports' `counters` are meaningless.
    pub changed: Vec<DeviceReading>,
    /// Ports. One that is missing here is as it was.
    pub ports: Vec<PortCounters>,
    /// MR bytes by owner pid, when the MRs of every device were dumped.
    pub mr_bytes: Option<BTreeMap<u32, u64>>,
}

/// Counters of one port.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortCounters {
    /// Device index.
    pub device_index: u32,
    /// Port number, from 1.
    pub number: u32,
    /// Counters of any name.
    pub counters: Vec<RawReading>,
}

/// Counters that QPs are bound to, of the devices that were asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupsSample {
    /// One entry for each device that was asked, also where no QP is bound.
    pub devices: Vec<DeviceGroups>,
}

/// Those of one device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceGroups {
    /// Device index.
    pub device_index: u32,
    /// When they were read.
    pub at: ReadAt,
    /// The counters. One that is missing here is gone, with what it counted last.
    pub groups: Vec<GroupReading>,
}

/// A counter of the NIC, which counts several things of the QPs that are bound to it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct GroupReading {
    /// Its number on the device.
    pub id: u32,
    /// Port.
    pub port: u32,
    /// How the QPs were bound, as rdma(8) writes it: `auto pid`, `auto type,pid`, `manual`.
    pub mode: String,
    /// The process of all its QPs, where they are bound by process.
    pub pid: Option<u32>,
    /// The type of all its QPs, where they are bound by type.
    pub qp_type: Option<QpType>,
    /// Its QPs.
    pub qps: Vec<u32>,
    /// What it has counted since it was made, by the driver's names.
    pub counters: Vec<(String, u64)>,
}

/// What `--hw-counters` has changed, and what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HwCountersReport {
    /// Ports of all devices.
    pub ports: Vec<HwPort>,
    /// Why no device could be looked at.
    pub failed: Option<Box<Cause>>,
}

/// A port, as `--hw-counters` has found or made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HwPort {
    /// Device name, safe to print.
    pub device: String,
    /// Device index.
    #[serde(skip_serializing)]
    #[serde(default)]
    pub device_index: u32,
    /// Port number.
    pub port: u32,
    /// The kernel binds QPs by process because rdmatop has set it so.
    pub set: bool,
    /// Optional counters that rdmatop has switched on.
    pub optional: Vec<String>,
    /// Why it has not been set.
    pub why: Option<Box<Cause>>,
}

/// The kernel gives no index from here on (`xa_limit_31b`): these stand for devices that are being removed and whose
/// index is not known.
pub const UNLISTED: u32 = 1 << 31;

/// Speed and width of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Mega-transfers per second and lane.
    pub mega_transfers: u32,
    /// Lanes.
    pub width: u32,
    /// Bits per second one way, after line coding.
    pub bps: u64,
}

/// One device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceReading {
    /// Kernel index: changes when a device is removed and added again. From [`UNLISTED`] on it is made up.
    pub index: u32,
    /// It is being removed: the kernel no longer lists it and waits until no process holds it.
    pub removing: bool,
    /// The device exists, and only its name was read: the rest is unchanged.
    pub held: bool,
    /// Raw name, not yet safe to print.
    pub name: String,
    /// Node GUID.
    pub node_guid: Option<u64>,
    /// Driver (`rdma_rxe`, `mlx5_core`, ...).
    pub driver: Option<String>,
    /// Firmware version.
    pub fw_version: Option<String>,
    /// PCI address.
    pub pci: Option<String>,
    /// NUMA node.
    pub numa_node: Option<i32>,
    /// PCI Express link: negotiated, and what the device is capable of.
    #[serde(default)]
    pub pcie: Option<[PcieLink; 2]>,
    /// Counts of objects by the kernel's own name (`qp`, `cq`, `mr`, `pd`, `cm_id`, `ctx`, `srq`).
    pub resources: BTreeMap<String, u64>,
    /// MR bytes by owner pid, when MRs were dumped.
    pub mr_bytes: Option<BTreeMap<u32, u64>>,
    /// Ports.
    pub ports: Vec<PortReading>,
}

/// Where a raw counter was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RawSource {
    /// `RDMA_NLDEV_CMD_STAT_GET`.
    Netlink,
    /// `ports/N/hw_counters`.
    Sysfs,
    /// `ports/N/counters`: names, units and widths of the InfiniBand specification.
    Pma,
    /// `ethtool -S` of the network device under the port.
    Ethtool,
}

/// A counter as a provider names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawReading {
    /// The provider's name.
    pub name: Arc<str>,
    /// Value as the kernel reports it, in the provider's unit. `None`: the counter exists and could not be read, so
    /// that a sum with it is a lower bound.
    pub value: Option<u64>,
    /// Where it was read.
    pub source: RawSource,
    /// When.
    pub at: ReadAt,
}

/// One port of a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PortReading {
    /// Port number, from 1.
    pub number: u32,
    /// Logical state.
    pub state: Option<PortState>,
    /// Physical state.
    pub phys_state: Option<PhysState>,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: Option<String>,
    /// Network device name.
    pub netdev: Option<String>,
    /// Network device MTU, bytes.
    pub netdev_mtu: Option<u32>,
    /// Priorities with flow control (PFC) of the network device, a bit for each; `None` when that is not known.
    #[serde(default)]
    pub pfc: Option<u8>,
    /// Signalling rate, bits/s; `None` when the provider only has a placeholder (rxe says 2.5 Gb/s).
    pub rate_bps: Option<u64>,
    /// Lanes of the link.
    #[serde(default)]
    pub lanes: Option<u8>,
    /// GIDs of the port; `None` when they could not be read.
    #[serde(default)]
    pub gids: Option<Vec<GidReading>>,
    /// Counters of any name.
    pub counters: Vec<RawReading>,
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidReading {
    /// Its place.
    pub index: u16,
    /// It.
    pub gid: [u8; 16],
    /// It is one of RoCE v1 (or of InfiniBand); `None` when the type could not be read.
    pub v1: Option<bool>,
}

/// Dump of QPs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct QpsSample {
    /// `CLOCK_MONOTONIC` **before** the dump began: events after it win over the dump.
    pub mono_ns: u64,
    /// Device indices that were dumped whole; QPs of these that are not listed are gone.
    pub complete: Vec<u32>,
    /// The QPs.
    pub qps: Vec<QpReading>,
    /// What could not be read.
    pub errors: Vec<Cause>,
}

/// One QP of a dump.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct QpReading {
    /// Device index.
    pub device_index: u32,
    /// Port, when the kernel gave one.
    pub port: Option<u32>,
    /// QP number.
    pub qpn: u32,
    /// Type.
    pub qp_type: Option<QpType>,
    /// State.
    pub state: Option<QpState>,
    /// Peer's QP number.
    pub remote_qpn: Option<u32>,
    /// Send PSN, 24 bits.
    pub sq_psn: Option<u32>,
    /// Receive PSN, 24 bits.
    pub rq_psn: Option<u32>,
    /// Owner; `None` for kernel QPs and for orphans.
    pub pid: Option<u32>,
    /// Kernel consumer's name.
    pub kern_name: Option<String>,
}

/// Slots in use.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SlotsSample {
    /// `CLOCK_MONOTONIC` when the sweep began, ns.
    pub mono_ns: u64,
    /// When the slots of this sample were copied, which is later: between two samples of one sweep the reader may have
    /// waited for the engine. `None`: when the sweep began.
    pub at: Option<ReadAt>,
    /// Slot number and copy, only slots in use.
    #[serde(with = "numbers")]
    pub slots: Vec<(u32, QpSlot)>,
    /// Slots in use in which nothing has been counted yet: ten thousand copies of nothing are 8 MB.
    pub idle: Vec<(u32, SlotHead)>,
    /// Slots that have not changed since the sweep before are left out. Otherwise what is left out is free.
    pub partial: bool,
    /// The same sweep goes on in the next sample.
    pub more: bool,
    /// Slots there are, taken or not; 0 for not known.
    pub capacity: u32,
    /// Slots there can be; 0 for not known.
    pub most: u32,
    /// Why there are no more of them, where the kernel refused the memory.
    pub refusal: Option<Obstacle>,
    /// QPs may exist that found no room in the tables of the kernel side: they are not counted.
    pub lacks_some: bool,
}

/// Which QP a slot belongs to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SlotHead {
    /// As of [`QpSlot`].
    pub qp: u64,
    /// As of [`QpSlot`].
    pub born_ns: u64,
    /// As of [`QpSlot`].
    pub owner_start_ns: u64,
    /// As of [`QpSlot`].
    pub since_ns: u64,
    /// As of [`QpSlot`].
    pub qpn: u32,
    /// As of [`QpSlot`].
    pub device_index: u32,
    /// As of [`QpSlot`].
    pub owner_pid: u32,
    /// As of [`QpSlot`].
    pub flags: u32,
}

impl SlotHead {
    /// The head of a slot.
    pub fn of(slot: &QpSlot) -> Self {
        Self {
            qp: slot.qp,
            born_ns: slot.born_ns,
            owner_start_ns: slot.owner_start_ns,
            since_ns: slot.since_ns,
            qpn: slot.qpn,
            device_index: slot.device_index,
            owner_pid: slot.owner_pid,
            flags: slot.flags,
        }
    }

    /// The slot with this head, in which nothing has been counted.
    pub fn slot(&self) -> QpSlot {
        QpSlot {
            qp: self.qp,
            born_ns: self.born_ns,
            owner_start_ns: self.owner_start_ns,
            since_ns: self.since_ns,
            qpn: self.qpn,
            device_index: self.device_index,
            owner_pid: self.owner_pid,
            flags: self.flags,
            ..QpSlot::new_zeroed()
        }
    }
}

/// Verb counters, summed over CPUs, cumulative since attach.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VerbsSample {
    /// `CLOCK_MONOTONIC` in the middle of the reading, ns.
    pub mono_ns: u64,
    /// Only what has changed since the sample before is in `verbs` and `errors`; what is left out stands still.
    pub partial: bool,
    /// Process and verb of entries that the kernel side has given up since the sample before.
    pub gone: Vec<(u32, u32)>,
    /// Counters.
    #[serde(with = "numbers")]
    pub verbs: Vec<(VerbKey, VerbStats)>,
    /// Calls of which only the number is known, always all of them. No key is also in `verbs`.
    #[serde(with = "numbers")]
    pub calls_only: Vec<(VerbKey, u64)>,
    /// When those were read, which is not when `verbs` was; `None`: with them.
    pub calls_only_ns: Option<u64>,
    /// Failures by errno.
    #[serde(with = "numbers")]
    pub errors: Vec<(VerbErrorKey, u64)>,
}

/// A limit of a process's RDMA cgroup, or of one above it, of which all is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReached {
    /// Process id.
    pub pid: u32,
    /// Cgroup that has the limit, safe to print.
    pub cgroup: String,
    /// Device, safe to print.
    pub device: String,
    /// `hca_handle` or `hca_object`.
    pub resource: String,
    /// How many it may have, and has.
    pub max: u64,
}

/// An error that the kernel logged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoggedError {
    /// The message, safe to print.
    pub text: String,
    /// The device that it was logged for, `+pci:0000:3b:00.0`, where its driver named one; safe to print.
    pub device: Option<String>,
}

/// What GPUs did between two readings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// When the reading before was, ns.
    pub before_ns: u64,
    /// When this one was, ns.
    pub mono_ns: u64,
    /// All GPUs of the machine.
    pub gpus: Vec<GpuReading>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuReading {
    /// How busy it was; `None` when it does not tell.
    pub activity: Option<GpuActivity>,
    /// Processes that compute on it; `None` when they cannot be listed.
    pub processes: Option<Vec<u32>>,
}

/// How busy a GPU was, as shares of what it has.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GpuActivity {
    /// Multiprocessors that had work, averaged over the time.
    pub sms: f64,
    /// Time in which tensor cores worked, averaged over the multiprocessors.
    pub tensor: f64,
}

/// One look at TCP connections.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TcpSample {
    /// When it was read.
    pub at: ReadAt,
    /// When the look before was: a process that is new in this one had moved nothing then.
    pub before: Option<ReadAt>,
    /// Processes that moved much between ports that a library chose, and have a library mapped that could use RDMA.
    pub processes: Vec<TcpTotals>,
}

/// What a process moved by TCP since its connections were first seen.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TcpTotals {
    /// Process id.
    pub pid: u32,
    /// Bytes that its peers acknowledged.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Connections that are open.
    pub connections: u32,
    /// The other end of the one that moves most.
    pub busiest: Option<SocketAddr>,
}

/// Which processes have devices open, by their descriptors of `/dev/infiniband/uverbs*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenersSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// They, by number.
    pub found: Vec<Opener>,
    /// The open files of some processes were not readable.
    pub hidden: bool,
    /// The search stopped at its limit.
    pub cut: bool,
}

/// A process that has a device open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opener {
    /// Device, safe to print.
    pub device: String,
    /// Process id.
    pub pid: u32,
    /// Its name, safe to print; `None`: it ended meanwhile.
    pub comm: Option<String>,
    /// Container, pod or job, safe to print.
    pub workload: Option<String>,
    /// Libraries of interest that are mapped, safe to print; `None`: not readable.
    pub libraries: Option<Vec<String>>,
}

/// What /proc says about a process, read once when it is first seen.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot as the kernel counts them: a process with a reused pid has another one.
    pub start_ticks: u64,
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
    /// Container, pod or job the cgroup names, for display.
    pub workload: Option<String>,
    /// Parent process.
    pub ppid: Option<u32>,
    /// Libraries of interest that are mapped (`libnccl`, `libfabric`, ...), when read.
    pub libraries: Option<Vec<String>>,
    /// RDMA-relevant environment, when read.
    pub environ: Option<Vec<(String, String)>>,
    /// Whether it finds `/dev/infiniband/uverbs*`, when read.
    #[serde(default)]
    pub verbs_files: Option<bool>,
}

/// State of rdmatop itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HealthSample {
    /// What is missing on this machine.
    pub notes: Shared<Cause>,
    /// Host facts for the header.
    pub host: HostFacts,
    /// Own CPU use, fraction of one core over the last interval.
    pub self_cpu: Option<f64>,
    /// Own resident memory, bytes.
    pub self_rss: Option<u64>,
}

/// State of the eBPF programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EbpfReport {
    /// On, off, or why not.
    pub state: EbpfState,
    /// Verdicts, one a program; none where nothing is attached.
    pub probes: Shared<ProbeVerdict>,
    /// What they do not see.
    pub notes: Vec<Cause>,
    /// Programs that are attached.
    pub programs: usize,
    /// Modules that cannot be unloaded while the programs are attached.
    pub pinned: Vec<String>,
    /// Records report everything that happens to QPs.
    pub follows_qps: bool,
    /// Other programs than before make the records from now on: no record has what happened in between.
    pub anew: bool,
}

/// Whether eBPF is on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum EbpfState {
    /// Attach has not finished.
    #[default]
    Starting,
    /// Attached and counting.
    On {
        /// The data paths that are counted.
        datapaths: DataPaths,
    },
    /// Not wanted (`--no-ebpf`).
    Disabled,
    /// Wanted but not available.
    Unavailable(Unavailable),
}

/// The data paths that are counted, by driver: on a host with several kinds of device it may be only some.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DataPaths(BTreeMap<Arc<str>, Arc<str>>);

impl DataPaths {
    /// Adds one: the driver's module, and how its hooks are entered, `kprobe` or `fentry`.
    #[must_use]
    pub fn and(mut self, driver: &str, how: &str) -> Self {
        self.0.insert(driver.into(), how.into());
        self
    }

    /// How that of a driver is entered; `None` when it is not counted.
    pub fn of(&self, driver: &str) -> Option<Arc<str>> {
        self.0.get(driver).cloned()
    }

    /// Whether none is counted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How they are entered, in a few words; `None` when none is counted.
    pub fn how(&self) -> Option<String> {
        let mut ways: Vec<&str> = self.0.values().map(|how| &**how).collect();
        ways.sort_unstable();
        ways.dedup();
        (!ways.is_empty()).then(|| ways.join(" and "))
    }
}

/// Why there is no eBPF.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Unavailable {
    /// The cause.
    pub cause: Cause,
}

impl Unavailable {
    /// Why, and what to do, in one line.
    pub fn why(&self) -> String {
        self.cause.reason()
    }
}

impl Serialize for Unavailable {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut object = serializer.serialize_struct("Unavailable", 2)?;
        object.serialize_field("why", &self.why())?;
        object.serialize_field("cause", &self.cause)?;
        object.end()
    }
}

impl EbpfState {
    /// No eBPF, for this reason.
    pub fn unavailable(obstacle: Obstacle) -> Self {
        let what = "No eBPF: no lifecycle events and no per-QP rates";
        Self::Unavailable(Unavailable {
            cause: obstacle.takes(what, Concerns::Host),
        })
    }

    /// Attached and counting.
    pub fn is_on(&self) -> bool {
        matches!(self, Self::On { .. })
    }
}

/// What happened to one program.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ProbeVerdict {
    /// Program name.
    pub program: String,
    /// What it hooks, as `kprobe:` and a function.
    pub hook: String,
    /// What it gives the user.
    pub gives: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the verdict is not [`Verdict::Ok`], and readings that are off when it is.
    pub causes: Vec<Cause>,
}

impl ProbeVerdict {
    /// All causes in one line, `None` when there is none.
    pub fn reason(&self) -> Option<String> {
        let reasons: Vec<_> = self.causes.iter().map(Cause::reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

impl Serialize for ProbeVerdict {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct as _;
        let mut object = serializer.serialize_struct("ProbeVerdict", 6)?;
        object.serialize_field("program", &self.program)?;
        object.serialize_field("hook", &self.hook)?;
        object.serialize_field("gives", &self.gives)?;
        object.serialize_field("verdict", &self.verdict)?;
        object.serialize_field("reason", &self.reason())?;
        object.serialize_field("causes", &self.causes)?;
        object.end()
    }
}

/// Probes on programs whose posts bypass the kernel, and what they cost these programs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UprobesReport {
    /// The one process that was asked for.
    pub pid: Option<u32>,
    /// Functions that are probed.
    pub functions: u64,
    /// QPs that are counted by them.
    pub qps: u64,
    /// Entries and returns of the functions since start.
    pub hits: u64,
    /// The same per second.
    pub hits_per_s: Option<f64>,
    /// What one takes of the program that it meets, ns, as measured on a function of rdmatop's own.
    pub hit_ns: Option<u64>,
    /// What they take of all programs together, cores.
    pub cores: Option<f64>,
    /// How much they may take, cores.
    pub limit: f64,
    /// Posts by a process that does not own the QP, as after fork(2): counted for nobody.
    pub unmatched: u64,
    /// Posts of which something could not be read: counts are short by their work requests.
    pub missed: u64,
    /// Send work requests that a provider did not accept; they are not among those posted.
    pub rejected_sends: u64,
    /// The same of receives.
    pub rejected_receives: u64,
    /// Why the probes are off.
    pub off: Option<Cause>,
    /// What cannot be probed.
    pub failures: Vec<Cause>,
}

/// A program of ours that the kernel did not run although its hook was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Program name.
    pub program: String,
    /// What it hooks, as `kprobe:` and a function.
    pub hook: String,
    /// How often since start.
    pub count: u64,
    /// What that may cost the numbers.
    pub cost: String,
}

impl std::fmt::Display for Skipped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            hook, count, cost, ..
        } = self;
        let times = if *count == 1 {
            "once"
        } else {
            &format!("{count} times")
        };
        write!(f, "the kernel skipped {hook} {times}: {cost}")
    }
}

/// Verdict on a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Attached.
    Ok,
    /// Attached, some readings off.
    Partial,
    /// Its driver or module is not there.
    NotApplicable,
    /// This kernel does not support it.
    Unsupported,
    /// It should have worked.
    Broken,
}

/// Host facts for the header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Host name.
    pub hostname: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Uptime, seconds.
    pub uptime_s: Option<u64>,
}
