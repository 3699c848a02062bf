//! Devices, their ports and their counters, as netlink and sysfs have them.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::ReadAt;
use crate::{
    cause::Cause,
    ib::{Gid, PhysState, PortState, QpType},
    value::Counter,
};

/// One reading of every device.
#[derive(Clone, Debug, Default)]
pub struct DevicesSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Devices that exist now. A device missing here is gone.
    pub devices: Vec<DeviceReading>,
    /// The list could not be read: `devices` is meaningless, and no device is gone.
    pub unread: bool,
    /// What could not be read.
    pub errors: Vec<Cause>,
    /// Notes about devices, such as one whose removal waits.
    pub notes: Vec<Cause>,
}

/// A reading of what changes often, between two readings of every device.
#[derive(Clone, Debug, Default)]
pub struct CountersSample {
    /// `CLOCK_MONOTONIC` when it was read, ns.
    pub mono_ns: u64,
    /// Devices of which more than counters has changed; the `counters` of their ports are meaningless.
    pub changed: Vec<DeviceReading>,
    /// Ports. A port that is missing here has not changed.
    pub ports: Vec<PortCounters>,
    /// MR bytes by owner pid, when the MRs of every device were dumped.
    pub mr_bytes: Option<BTreeMap<u32, u64>>,
}

/// Counters of one port.
#[derive(Clone, Debug, Default)]
pub struct PortCounters {
    /// Device index.
    pub device_index: u32,
    /// Port number, from 1.
    pub number: u32,
    /// Counters of any name.
    pub counters: Vec<RawReading>,
}

/// The counters of one device to which QPs are bound.
#[derive(Clone, Debug, Default)]
pub struct DeviceGroups {
    /// Device index.
    pub device_index: u32,
    /// The time of the reading.
    pub at: ReadAt,
    /// The counters. One that is missing here is gone, and so is what it counted after its last reading.
    pub groups: Vec<GroupReading>,
}

/// A counter of the NIC, which counts several things of the QPs that are bound to it.
#[derive(Clone, Debug, Default)]
pub struct GroupReading {
    /// The counter's number on the device.
    pub id: u32,
    /// The port of the device that it counts on.
    pub port: u32,
    /// How the QPs were bound, as rdma(8) writes it: `auto pid`, `auto type,pid`, `manual`.
    pub mode: String,
    /// The process of all its QPs, where they are bound by process.
    pub pid: Option<u32>,
    /// The type of all its QPs, where they are bound by type.
    pub qp_type: Option<QpType>,
    /// Numbers of the QPs that are bound to the counter.
    pub qps: Vec<u32>,
    /// What it has counted since it was made, by the driver's names.
    pub counters: Vec<(String, u64)>,
}

/// What `--hw-counters` has changed, and what it has not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HwCountersReport {
    /// Ports of all devices.
    pub ports: Vec<HwPort>,
    /// Why no device could be looked at.
    pub failed: Option<Box<Cause>>,
}

/// A port, as `--hw-counters` has found or made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HwPort {
    /// Device name, safe to print.
    pub device: String,
    /// Device index.
    #[serde(skip)]
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

/// First index that the kernel never gives (`xa_limit_31b`). From here on, indices stand for devices that are
/// being removed and whose index is not known.
pub const UNLISTED: u32 = 1 << 31;

/// Speed and width of a PCI Express link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PcieLink {
    /// Mega-transfers per second and lane.
    pub mega_transfers: u32,
    /// How many lanes the link has.
    pub width: u32,
    /// Bits per second one way, after line coding.
    pub bps: u64,
}

/// The network namespace of a device, where that is not rdmatop's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetnsReading {
    /// Its number.
    pub inode: u64,
    /// A process in it.
    pub pid: u32,
    /// Whose it is: pod, container, job, or the name of the process. Safe to print.
    pub holder: Option<String>,
}

/// One device.
#[derive(Clone, Debug, Default)]
pub struct DeviceReading {
    /// Kernel index: changes when a device is removed and added again. From [`UNLISTED`] on it is made up.
    pub index: u32,
    /// It is being removed: the kernel no longer lists it and waits until no process holds it.
    pub removing: bool,
    /// The device exists, but only its name was read: the rest is unchanged.
    pub held: bool,
    /// It is [`DeviceReading::held`] because `--exclude-device` says so.
    pub left_alone: bool,
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
    /// PCI path: host bridge (`pci0000:17`), root port, down to the PCI function; empty if unknown.
    pub pci_path: Arc<[String]>,
    /// NUMA node.
    pub numa_node: Option<i32>,
    /// PCI Express link: negotiated, and what the device is capable of.
    pub pcie: Option<[PcieLink; 2]>,
    /// Counts of objects by the kernel's own name (`qp`, `cq`, `mr`, `pd`, `cm_id`, `ctx`, `srq`).
    pub resources: BTreeMap<String, u64>,
    /// MR bytes by owner pid, when MRs were dumped.
    pub mr_bytes: Option<BTreeMap<u32, u64>>,
    /// The processes that have the device open, if they may have queue pairs that the kernel does not list.
    /// `None` if nobody asked, or if the kernel does not name the process of every context.
    pub contexts: Option<Vec<u32>>,
    /// Its network namespace, if it is another one than rdmatop's.
    pub netns: Option<NetnsReading>,
    /// What was read of each of its ports.
    pub ports: Vec<PortReading>,
}

/// Where a raw counter was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawSource {
    /// `RDMA_NLDEV_CMD_STAT_GET`.
    Netlink,
    /// `ports/N/hw_counters`, and `hw_counters` of a device with one port.
    Sysfs,
    /// `hw_counters` of a device with several ports: each is of all of them.
    Device,
    /// `ports/N/counters`: names, units and widths of the InfiniBand specification.
    Pma,
    /// `ethtool -S` of the network device under the port.
    Ethtool,
}

/// A counter as a provider names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawReading {
    /// The name that the provider gives it.
    pub name: Arc<str>,
    /// Value as the kernel reports it, in the provider's unit. `None`: the counter exists but could not be
    /// read, so a sum that includes it is a lower bound.
    pub value: Option<u64>,
    /// Where it was read.
    pub source: RawSource,
    /// The time of the reading.
    pub at: ReadAt,
}

/// One port of a device.
#[derive(Clone, Debug, Default)]
pub struct PortReading {
    /// Port number, from 1.
    pub number: u32,
    /// Logical state.
    pub state: Option<PortState>,
    /// Physical state.
    pub phys_state: Option<PhysState>,
    /// `Ethernet` or `InfiniBand`.
    pub link_layer: Option<String>,
    /// It speaks iWARP, over TCP.
    pub iwarp: bool,
    /// Network device name.
    pub netdev: Option<String>,
    /// If the network device is a bond: what the bond consists of.
    pub bond: Option<Bond>,
    /// Network device MTU, bytes.
    pub netdev_mtu: Option<u32>,
    /// Why the network device carries nothing.
    pub netdev_down: Option<NetdevDown>,
    /// Priorities of the network device with flow control (PFC), one bit each; `None` when that is not known.
    pub pfc: Option<u8>,
    /// Signalling rate, bits/s; `None` when the provider only has a placeholder (rxe says 2.5 Gb/s).
    pub rate_bps: Option<u64>,
    /// Lanes of the link.
    pub lanes: Option<u8>,
    /// GIDs of the port; `None` when they could not be read.
    pub gids: Option<Vec<PortGid>>,
    /// Counters of any name.
    pub counters: Vec<RawReading>,
}

/// Why a network device carries nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetdevDown {
    /// It is switched off (`ip link set NAME down`).
    Off,
    /// It is switched on, and its link has no signal.
    NoCarrier,
}

/// The bond over which a port sends and receives (RoCE LAG).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bond {
    /// How the bond spreads what it sends, as the kernel names it: `802.3ad`, `balance-xor`, `active-backup`.
    pub mode: Option<Arc<str>>,
    /// Its network devices, which have the links and the byte counters.
    pub members: Vec<Member>,
}

impl Bond {
    /// Whether one member carries all traffic, and the others wait for it to fail.
    pub fn is_active_backup(&self) -> bool {
        self.mode.as_deref() == Some("active-backup")
    }

    /// The members whose links are up.
    pub fn up(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.up == Some(true))
    }

    /// How many of its links are up: `1/2`, or `?/2` where one's state is not known.
    pub fn links_up(&self) -> String {
        let are_known = self.members.iter().all(|member| member.up.is_some());
        let up = if are_known {
            self.up().count().to_string()
        } else {
            "?".to_owned()
        };
        format!("{up}/{}", self.members.len())
    }

    /// What the bond can carry, bits/s: the sum of the members that are up, or for active-backup the fastest
    /// of them. `None` if the rate of a member that is up is not known.
    pub fn rate_bps(&self) -> Option<u64> {
        let rates: Vec<u64> = self.up().map(|member| member.rate_bps).collect::<Option<_>>()?;
        if self.is_active_backup() {
            rates.into_iter().max()
        } else {
            (!rates.is_empty()).then(|| rates.iter().sum())
        }
    }
}

/// A network device of a [`Bond`]. Its counters are among those of the port, as `eth0:tx_bytes_phy`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Member {
    /// Its name, safe to print.
    pub name: Arc<str>,
    /// Whether its link is up, and in the aggregate of its bond where that speaks LACP; `None` when that
    /// could not be read.
    pub up: Option<bool>,
    /// Its link is up, and it is outside of that aggregate: the bond does not send by it.
    #[serde(skip)]
    pub outside: bool,
    /// Speed, bits/s.
    pub rate_bps: Option<u64>,
    /// Bytes sent on its wire, by its driver's counter: RDMA and IP, headers included. The engine sets it.
    pub tx_bytes: Option<Counter>,
    /// Bytes received, as `tx_bytes`.
    pub rx_bytes: Option<Counter>,
}

/// An entry of a port's GID table that is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortGid {
    /// Its index in the port's GID table.
    pub index: u16,
    /// The GID, in network byte order.
    pub gid: Gid,
    /// Whether it is a GID of RoCE v1 (or of InfiniBand); `None` when the type could not be read.
    pub v1: Option<bool>,
}

impl PortGid {
    /// Whether it is known to be a GID of RoCE v2: over UDP, which routers forward.
    pub fn is_v2(&self) -> bool {
        self.v1 == Some(false)
    }
}

/// An error that the kernel logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedError {
    /// The message, safe to print.
    pub text: String,
    /// The device for which it was logged (`+pci:0000:3b:00.0`), if the driver named one; safe to print.
    pub device: Option<String>,
    /// The device does not work, as is known of such a line, or as its level says.
    pub critical: bool,
    /// It is logged because rdmatop reads counters of the device, and says nothing about it.
    pub ours: bool,
}
