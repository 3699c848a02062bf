//! The facts that were read. Each is known, absent, could not be read, or is not known although it should be,
//! with the reason: the four are never mixed up.

use rdmatop_base::ib::{PhysState, PortState};
use rdmatop_base::step::NextStep;
use rdmatop_model::cause::Cause;
use rdmatop_model::input::{PcieLink, PortGid};

/// The result of reading a fact: its value, or why there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reading<T> {
    /// The fact is known, and this is its value.
    Known(T),
    /// What the fact is about does not exist here.
    #[default]
    Absent,
    /// It may exist; why it could not be read.
    Unreadable(String),
    /// It may exist; why it was not read, although rdmatop has the right: it did not answer in time, or
    /// reading it is not safe.
    Unknown(String),
}

impl<T> Reading<T> {
    /// The value.
    pub fn known(&self) -> Option<&T> {
        match self {
            Self::Known(value) => Some(value),
            Self::Absent | Self::Unreadable(_) | Self::Unknown(_) => None,
        }
    }

    /// Why it could not be read.
    pub fn unreadable(&self) -> Option<&str> {
        match self {
            Self::Unreadable(why) => Some(why),
            Self::Known(_) | Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// Why it was not read.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Known(_) | Self::Absent | Self::Unreadable(_) => None,
        }
    }

    /// Converts the value with `read`; a value that `read` does not understand counts as unreadable.
    pub fn parse<U>(self, read: impl FnOnce(T) -> Option<U>) -> Reading<U> {
        self.and_then(|value| match read(value) {
            Some(value) => Reading::Known(value),
            None => Reading::Unreadable("its text is odd".to_owned()),
        })
    }

    /// What `read` makes of the value.
    pub fn and_then<U>(self, read: impl FnOnce(T) -> Reading<U>) -> Reading<U> {
        match self {
            Self::Known(value) => read(value),
            Self::Absent => Reading::Absent,
            Self::Unreadable(why) => Reading::Unreadable(why),
            Self::Unknown(why) => Reading::Unknown(why),
        }
    }
}

impl<T> From<Option<T>> for Reading<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Absent, Self::Known)
    }
}

/// Everything. All text is safe to print.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The machine.
    pub host: Host,
    /// `--pid`: the process whose view is judged.
    pub pid: Option<u32>,
    /// RDMA devices; absent where the kernel has no RDMA subsystem loaded.
    pub devices: Reading<Vec<Device>>,
    /// Devices that are being removed, each with its holders in words.
    pub leaving: Reading<Vec<(String, String)>>,
    /// Verbs devices by name of the RDMA device (`uverbs0`, `mlx5_0`); absent where ib_uverbs is not loaded.
    pub verbs: Reading<Vec<(String, String)>>,
    /// RDMA NICs on PCI without a driver or without an RDMA device.
    pub idle_nics: Vec<IdleNic>,
    /// Searches whose results are not all known, each with the reason.
    pub unfinished: Vec<(&'static str, &'static str)>,
    /// GPUs of NVIDIA and AMD.
    pub gpus: Vec<Gpu>,
    /// NICs have functions for GPUDirect alone (ConnectX-8's Data Direct).
    pub data_direct: bool,
    /// Devices that the user wants left alone, which were not read.
    pub excluded: Vec<String>,
    /// Devices of other network namespaces (mode exclusive), which were not read.
    pub elsewhere: Vec<String>,
    /// How GPU memory reaches a NIC.
    pub gpu_memory: GpuMemory,
    /// CPUs of each NUMA node.
    pub nodes: Vec<(u32, Vec<u32>)>,
    /// TCP settings.
    pub tcp: Tcp,
    /// Limits that container runtimes and job managers pass on.
    pub services: Vec<Service>,
    /// The subject of the report: the process of `--pid`, otherwise rdmatop itself.
    pub view: Process,
    /// Processes that use RDMA or GPUs, or the one of `--pid`.
    pub processes: Vec<Process>,
    /// Processes that hold RDMA or GPU devices, or may, and could not be inspected.
    pub hidden_processes: usize,
    /// Further processes that hold RDMA or GPU devices, beyond the number that one run looks at.
    pub left_out: usize,
    /// rdmatop's own needs.
    pub own: Own,
    /// SoftRoCE; known only on machines without RDMA hardware.
    pub softroce: Option<SoftRoce>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Host {
    /// The host's name.
    pub name: Option<String>,
    /// Kernel release.
    pub kernel: Option<String>,
    /// Major and minor number of it.
    pub version: Option<(u32, u32)>,
    /// rdmatop runs as root.
    pub root: bool,
    /// The CPU reports that it belongs to a virtual machine.
    pub virtual_machine: bool,
    /// rdmatop is in another PID namespace than the machine's, as in a container.
    pub container: bool,
    /// /sys is not mounted.
    pub without_sys: bool,
    /// RDMA devices are seen only in the network namespace that they belong to (`rdma system`: netns
    /// exclusive).
    pub exclusive: bool,
}

/// An RDMA device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// The name of its directory in /sys/class/infiniband.
    pub name: String,
    /// Driver of its PCI function.
    pub driver: Option<String>,
    /// SoftRoCE or another device without hardware.
    pub software: bool,
    /// Listed, but its files are missing.
    pub dangling: bool,
    /// Its driver did not answer in time; the other facts are unknown.
    pub late: bool,
    /// Firmware version.
    pub firmware: Reading<String>,
    /// The kind of its board (`board_id`).
    pub board: Reading<String>,
    /// The device's PCI function.
    pub pci: Option<Pci>,
    /// A driver of GPUs gives it GPU memory (`device/p2p` of amzn-drivers' efa).
    pub p2p: bool,
    /// Its interrupts, each with the CPUs that it goes to.
    pub irqs: Vec<Vec<u32>>,
    /// The device's ports.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Port {
    /// The port's number, from 1.
    pub number: u32,
    /// The state of its link.
    pub state: Reading<PortState>,
    /// The state of its cable.
    pub physical: Reading<PhysState>,
    /// Bits per second; absent where the device has no rate of its own.
    pub rate: Reading<u64>,
    /// The kind of its link: Ethernet, InfiniBand or Unspecified.
    pub link_layer: Option<String>,
    /// The port's packets are RoCE.
    pub roce: bool,
    /// GIDs that are set.
    pub gids: Reading<Vec<PortGid>>,
    /// Network interface.
    pub netdev: Option<Netdev>,
    /// It has queue pairs of programs, or of the kernel's storage.
    pub in_use: bool,
    /// Its counters say that data passed it since its driver was loaded.
    pub was_used: bool,
}

/// A network interface under a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Netdev {
    /// The interface's name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether it is switched on.
    pub up: Option<bool>,
    /// The interface has a signal.
    pub carrier: Option<bool>,
    /// It had one since it was made.
    pub had_carrier: bool,
    /// The interfaces that a bond consists of.
    pub members: Vec<Member>,
    /// One of them carries all, and the others are in reserve.
    pub active_backup: bool,
    /// Flow control, where it can be read; of a bond its members have it.
    pub lossless: Reading<Lossless>,
}

/// An interface of a bond.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The interface's name.
    pub name: String,
    /// Whether its link is up, and in the aggregate of its bond (LACP).
    pub up: Option<bool>,
    /// Its link is up, and it is outside of that.
    pub outside: bool,
    /// Flow control, where it can be read.
    pub lossless: Reading<Lossless>,
}

/// Flow control of an Ethernet port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lossless {
    /// Priorities with PFC.
    pub pfc: Option<Vec<u8>>,
    /// The field that decides a packet's priority: `pcp` or `dscp`.
    pub trust: Option<String>,
    /// Priorities whose notification of congestion is off (`ecn/roce_np/enable`).
    pub ecn_off: Option<Vec<u8>>,
}

/// A PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pci {
    /// PCI address.
    pub address: String,
    /// Its vendor and device and those of its board, as `0x14e4:0x1750:0x14e4:0x2100`; empty where not known.
    pub ids: String,
    /// From the host bridge (`pci0000:17`) through the root port to the function.
    pub path: Vec<String>,
    /// NUMA node.
    pub node: Option<u32>,
    /// The negotiated link: mega-transfers per second, lanes.
    pub current: Reading<PcieLink>,
    /// The link that the function is capable of.
    pub max: Reading<PcieLink>,
    /// The link that the bridge at the other end is capable of.
    pub slot: Reading<PcieLink>,
    /// Type of its IOMMU group: `identity`, `DMA`, `DMA-FQ`; absent without an IOMMU.
    pub iommu: Reading<String>,
    /// Bridges above it that redirect traffic between devices (ACS); absent on Grace, where Linux has them do
    /// so.
    pub acs: Reading<Vec<String>>,
}

/// A NIC that could do RDMA and has no RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleNic {
    /// PCI address.
    pub address: String,
    /// The NIC's name.
    pub what: &'static str,
    /// The NIC's RDMA driver.
    pub module: &'static str,
    /// The driver that the NIC has now.
    pub driver: Option<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gpu {
    /// Made by NVIDIA, else AMD.
    pub nvidia: bool,
    /// The GPU's address on PCI.
    pub pci: Pci,
}

/// How GPU memory reaches a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuMemory {
    /// nvidia_peermem or another client of peer memory is loaded.
    pub peermem: bool,
    /// NVIDIA's kernel module: whether it is the open one; absent where none is loaded.
    pub open_module: Reading<bool>,
}

/// TCP settings; `None` is unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// The largest receive buffer that tuning gives, bytes.
    pub rmem: Option<u64>,
    /// The largest send buffer that tuning gives, bytes.
    pub wmem: Option<u64>,
    /// `net.core.somaxconn`.
    pub backlog: Option<u64>,
}

/// A running container runtime or job manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// The service's name.
    pub comm: String,
    /// The unit of systemd that it runs in: that of k3s for the containerd of k3s.
    pub unit: Option<String>,
    /// Its limit of locked memory, bytes; `None`: unlimited.
    pub memlock: Option<u64>,
    /// The service may exceed the limit.
    pub exempt: bool,
    /// The shell that rdmatop was started from.
    pub shell: bool,
}

/// A process that was inspected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// The process's PID.
    pub pid: u32,
    /// The process's name.
    pub comm: String,
    /// Variables that steer RDMA libraries, including those of /etc/nccl.conf.
    pub environ: Reading<Vec<(String, String)>>,
    /// Whether its /etc/nccl.conf was read.
    pub conf: Reading<()>,
    /// How many of the variables, the last ones, only that file has: each process of the machine has them.
    pub from_conf: usize,
    /// Its limit of locked memory, bytes; `Known(None)`: unlimited.
    pub memlock: Reading<Option<u64>>,
    /// It may lock memory beyond that (CAP_IPC_LOCK).
    pub may_lock: bool,
    /// The path of its cgroup, which tells what it runs in.
    pub cgroup: Option<String>,
    /// Limits of its RDMA cgroups.
    pub rdma_limits: Reading<Vec<RdmaLimit>>,
    /// The process's network interfaces.
    pub interfaces: Reading<Vec<String>>,
    /// Files in its /dev/infiniband, each with whether it may open it for reading and writing; `None` is
    /// unknown.
    pub nodes: Reading<Vec<(String, Option<bool>)>>,
    /// RDMA devices that its /sys lists, each with whether its files are there.
    pub sees: Reading<Vec<(String, bool)>>,
    /// It has a verbs file open, or the kernel lists it as a user of a device.
    pub has_open: bool,
    /// Whether the kernel lists queue pairs of the process.
    pub has_qps: bool,
    /// Its libraries of RDMA and collectives. Only read with `--pid`.
    pub libraries: Reading<Vec<String>>,
    /// Processes that have its verbs files open too. Only looked for with `--pid`.
    pub sharers: Reading<Sharers>,
}

/// The processes that share a process's open verbs files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharers {
    /// Number and name of each.
    pub found: Vec<(u32, String)>,
    /// Not all processes could be looked at.
    pub partial: bool,
}

/// A limit of the RDMA cgroup controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RdmaLimit {
    /// The cgroup's path.
    pub cgroup: String,
    /// The RDMA device whose objects it limits.
    pub device: String,
    /// `hca_handle` or `hca_object`.
    pub resource: String,
    /// The most that the cgroup may have.
    pub max: u64,
    /// What the cgroup has now.
    pub current: Option<u64>,
}

/// What rdmatop needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Own {
    /// What is missing, as the live view says it.
    pub missing: Vec<Cause>,
    /// The kernel has BTF.
    pub btf: Option<bool>,
}

/// Where SoftRoCE stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SoftRoce {
    /// The module is loaded or can be.
    Ready,
    /// This kernel does not have it; what to do.
    Missing(NextStep),
    /// The list of modules cannot be read.
    Unknown,
}
