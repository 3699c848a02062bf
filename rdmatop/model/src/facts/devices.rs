//! Devices and their ports.

use std::sync::Arc;

use serde::Serialize;

#[cfg(doc)]
use super::Traffic;
use super::{History, Recent};
use crate::{
    ib::{PhysState, PortState},
    input::{Bond, NetdevDown, PcieLink, PortGid},
    value::{Counter, Shared, Source},
};

/// Whether a device is being removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceState {
    /// The kernel lists it.
    Registered,
    /// It is being removed while a process has it open: the kernel no longer lists it, and its QPs go on.
    Removing,
}

/// An RDMA device, as the views show it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceRow {
    /// Unique in this run: a re-added device is another one.
    pub uid: u64,
    /// Kernel index; `None` for a device that was being removed when it was first seen.
    pub index: Option<u32>,
    /// The device's name, which the kernel lets root change.
    pub name: Arc<str>,
    /// Whether it is being removed; `None` when no reading has listed it.
    pub state: Option<DeviceState>,
    /// Node GUID, 16 hex digits in groups of four.
    pub node_guid: Option<String>,
    /// Name of the kernel module that drives it.
    pub driver: Option<Arc<str>>,
    /// Version of its firmware.
    pub fw_version: Option<Arc<str>>,
    /// PCI address.
    pub pci: Option<Arc<str>>,
    /// PCI path: host bridge (`pci0000:17`), root port, down to the PCI function; empty if unknown.
    #[serde(skip)]
    pub pci_path: Arc<[String]>,
    /// NUMA node.
    pub numa_node: Option<i32>,
    /// Number of the network namespace that it belongs to, if that is not rdmatop's own.
    pub netns: Option<u64>,
    /// A process in that namespace.
    pub netns_pid: Option<u32>,
    /// Whose that namespace is: pod, container, job, or the name of the process.
    pub netns_holder: Option<Arc<str>>,
    /// PCI Express link: negotiated, and what the device is capable of.
    #[serde(skip)]
    pub pcie: Option<[PcieLink; 2]>,
    /// How many QPs the kernel lists on it now.
    pub qps: Option<u64>,
    /// How many CQs the kernel lists on it now.
    pub cqs: Option<u64>,
    /// How many MRs the kernel lists on it now.
    pub mrs: Option<u64>,
    /// How many PDs the kernel lists on it now.
    pub pds: Option<u64>,
    /// How many ids of rdma_cm the kernel lists on it now.
    pub cm_ids: Option<u64>,
    /// How many user contexts the kernel lists on it now.
    pub ctxs: Option<u64>,
    /// How many SRQs the kernel lists on it now.
    pub srqs: Option<u64>,
    /// The most QPs that the device may have, as its driver said when it registered the device; `None` until
    /// one is made while rdmatop runs.
    pub max_qp: Option<u64>,
    /// The most CQs, as [`DeviceRow::max_qp`].
    pub max_cq: Option<u64>,
    /// The most MRs, as [`DeviceRow::max_qp`].
    pub max_mr: Option<u64>,
    /// The most PDs; `None` until a CQ is made.
    pub max_pd: Option<u64>,
    /// The most SRQs; `None` until an MR is made.
    pub max_srq: Option<u64>,
    /// The processes that have the device open, if one of them may have queue pairs that the kernel does not
    /// list; `None` if that is not known.
    #[serde(skip)]
    pub contexts: Option<Arc<[u32]>>,
    /// They are those with a descriptor of its file. Whose the contexts are is not known: one may have got a
    /// descriptor from a process that has ended.
    #[serde(skip)]
    pub searched: bool,
    /// Errors that its driver logged since rdmatop began; `None` where the kernel's log cannot be read.
    pub driver_errors: Option<u64>,
    /// The last of them.
    pub driver_error: Option<Arc<str>>,
    /// When rdmatop read [`DeviceRow::driver_error`], `CLOCK_MONOTONIC`, ns.
    #[serde(skip)]
    pub driver_error_ns: Option<u64>,
    /// It is not read, because `--exclude-device` says so.
    #[serde(skip)]
    pub left_alone: bool,
    /// Whether rdmatop has programs that count work requests of this driver, attached or not.
    #[serde(skip)]
    pub followed: bool,
    /// How the programs that count its work requests are attached, `kprobe` or `fentry`; `None` when none
    /// are.
    pub datapath: Option<Arc<str>>,
    /// What programs cannot see of its driver's work requests, and why.
    #[serde(skip)]
    pub hidden: &'static [Hidden],
}

impl DeviceRow {
    /// What a device runs out of: how many there are, and how many it may have.
    pub const fn headroom(&self) -> [(&'static str, Option<u64>, Option<u64>); 5] {
        [
            ("QPs", self.qps, self.max_qp),
            ("CQs", self.cqs, self.max_cq),
            ("MRs", self.mrs, self.max_mr),
            ("PDs", self.pds, self.max_pd),
            ("SRQs", self.srqs, self.max_srq),
        ]
    }

    /// Whether processes may use the device through queue pairs that the kernel does not list. Of Linux's
    /// drivers only mlx5's lets a library make them past ib_core (DEVX); an unknown driver may be mlx5's.
    pub fn may_hide_qps(&self) -> bool {
        !self.followed && may_hide_qps(self.driver.as_deref())
    }

    /// Whether its driver is that of mlx5.
    pub(crate) fn is_of_mlx5(&self) -> bool {
        self.driver.is_some() && may_hide_qps(self.driver.as_deref())
    }
}

/// Whether a library may make queue pairs past ib_core on a device of this driver.
pub fn may_hide_qps(driver: Option<&str>) -> bool {
    driver.is_none_or(|driver| driver.starts_with("mlx5"))
}

/// What of a QP, a process or a device may not be observable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Work requests, their bytes, completions and errors.
    WorkRequests,
    /// Bytes on the wire.
    WireBytes,
    /// Packets that are sent again.
    Retransmissions,
    /// Waits for a receiver without buffers.
    ReceiverWaits,
    /// How long work requests take.
    Latency,
    /// What becomes of work requests whose posts are counted: completions, errors, retransmissions, waits,
    /// times.
    Completions,
}

impl Quantity {
    /// The quantity's name, in words.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::WorkRequests => "work requests",
            Self::WireBytes => "bytes on the wire",
            Self::Retransmissions => "packets sent again",
            Self::ReceiverWaits => "waits for a receiver",
            Self::Latency => "times of work requests",
            Self::Completions => "completions, errors and times",
        }
    }
}

/// Something that cannot be observed on the devices of a driver, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hidden {
    /// The quantity that is hidden.
    pub what: Quantity,
    /// The reason in one sentence.
    pub why: &'static str,
}

/// A port of a device, as the views show it.
#[derive(Clone, Debug, Default, Serialize)]
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
    /// It speaks iWARP, over TCP.
    #[serde(skip)]
    pub iwarp: bool,
    /// Network device.
    pub netdev: Option<Arc<str>>,
    /// If the network device is a bond: what the bond consists of.
    pub bond: Option<Bond>,
    /// MTU of the network device, bytes.
    pub netdev_mtu: Option<u32>,
    /// Why the network device carries nothing.
    #[serde(skip)]
    pub netdev_down: Option<NetdevDown>,
    /// Priorities with flow control (PFC), one bit each; `None` when that is not known.
    #[serde(skip)]
    pub pfc: Option<u8>,
    /// GIDs; `None` when they could not be read.
    #[serde(skip)]
    pub gids: Option<Arc<[PortGid]>>,
    /// Rate, bits/s; for a bond, [`Bond::rate_bps`]. `None` when the provider has only a placeholder.
    pub rate_bps: Option<u64>,
    /// Lanes of the link, for which symbols are counted.
    #[serde(skip)]
    pub lanes: Option<u8>,
    /// Bytes sent by the provider's own counter, headers included: what passed the wire.
    pub tx_bytes: Option<Counter>,
    /// Bytes received, read as `tx_bytes`.
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
    /// Packets dropped, including those that found no receive buffer.
    pub drops: Option<Counter>,
    /// Packets that found no receive buffer.
    pub out_of_buffer: Option<Counter>,
    /// Packets sent again.
    pub retransmits: Option<Counter>,
    /// How often a sender had to start again after a timeout or a NAK of the peer. Each time it repeats one
    /// packet or many.
    pub retries: Option<Counter>,
    /// Signs of congestion received: packets with a mark (ECN), and notifications (CNP).
    pub congestion: Option<Counter>,
    /// The part of `congestion` that are packets with a mark (ECN).
    pub ecn_marked: Option<Counter>,
    /// The part of `congestion` that are notifications (CNP), on which a sender slows down.
    pub cnp_handled: Option<Counter>,
    /// Notifications of congestion sent.
    pub cnp_sent: Option<Counter>,
    /// RNR NAKs, both directions.
    pub rnr_naks: Option<Counter>,
    /// The part of `rnr_naks` that were sent: a receive queue here had no buffer.
    #[serde(skip)]
    pub rnr_naks_sent: Option<Counter>,
    /// All bytes in its byte counters are of queue pairs; none is of IP.
    #[serde(skip)]
    pub rdma_alone: bool,
    /// The byte counters include all bytes of queue pairs.
    #[serde(skip)]
    pub all_of_rdma: bool,
    /// Its packets are those of InfiniBand and RoCE: none has more than 4096 bytes and its headers, and PSNs
    /// of RC, UC and UD count them.
    #[serde(skip)]
    pub ib_packets: bool,
    /// Every counter of the provider. If none changed, the list is the same as in the snapshot before.
    pub counters: Shared<NamedCounter>,
    /// Every number of the provider that may fall.
    pub gauges: Vec<Gauge>,
    /// Tx and Rx bytes/s (packets/s where there are no bytes).
    #[serde(skip)]
    pub history: Arc<History>,
    /// What passed the port in the last seconds, by the provider's own counters; `None` if that is not known.
    #[serde(skip)]
    pub recent: Option<Recent>,
}

/// Whether a PSN, of 24 bits, may have gone round unseen between two readings in which a port moved so many
/// packets in a direction and `back` in the other one. Packets that a PSN passed by and that moved in its
/// direction are missing there, so that PSNs explain too few; but a READ moves it by its answer, which passes
/// in the other direction, and as many answers as a PSN has numbers can stand in their place. Counters and
/// PSNs are not read at one moment: `between` is the part of the time that lay between them.
pub(crate) fn may_go_round(own: f64, back: f64, between: f64) -> bool {
    /// At least so large a part of the packets may move then.
    const SKEW: f64 = 1.0 / 16.0;
    back + (own + back) * between.max(SKEW) >= f64::from(1 << 24)
}

impl PortRow {
    /// Whether readings of PSNs so many seconds apart say nothing of either direction.
    pub fn psns_may_go_round(&self, seconds: f64) -> bool {
        let moved =
            [self.tx_packets, self.rx_packets].map(|packets| packets.and_then(|packets| packets.rate));
        let [Some(tx), Some(rx)] = moved.map(|rate| Some(rate? * seconds)) else {
            return false;
        };
        self.ib_packets && may_go_round(tx, rx, 0.0) && may_go_round(rx, tx, 0.0)
    }

    /// What its link can carry, bytes/s.
    pub fn capacity(&self) -> Option<f64> {
        self.rate_bps.map(|bits| bits as f64 / 8.0)
    }

    /// Its GIDs, as far as they could be read.
    pub fn known_gids(&self) -> impl Iterator<Item = &PortGid> {
        self.gids.iter().flat_map(|gids| gids.iter())
    }

    /// Whether the port is known to be ACTIVE.
    pub fn is_active(&self) -> bool {
        self.state.is_some_and(PortState::is_active)
    }

    /// Notes that queue pairs used it that the kernel does not list. They may have no counter set of their
    /// own (`counter_set_id`), so faults of theirs may be in no counter.
    pub(crate) fn may_overlook(&mut self) {
        let faults = [
            &mut self.drops,
            &mut self.out_of_buffer,
            &mut self.retransmits,
            &mut self.retries,
            &mut self.rnr_naks,
            &mut self.rnr_naks_sent,
        ];
        for counter in faults.into_iter().flatten() {
            counter.partial = true;
        }
    }

    /// Bytes sent: those on the wire if the provider counts them, otherwise those of work requests.
    pub fn any_tx_bytes(&self) -> Option<&Counter> {
        self.tx_bytes.as_ref().or(self.wr_tx_bytes.as_ref())
    }

    /// Bytes received: those on the wire if the provider counts them, otherwise those of work requests.
    pub fn any_rx_bytes(&self) -> Option<&Counter> {
        self.rx_bytes.as_ref().or(self.wr_rx_bytes.as_ref())
    }
}

/// A number under the provider's name that may fall: it has a present value, and neither a total nor a rate.
#[derive(Clone, Debug, Serialize)]
pub struct Gauge {
    /// The name that the provider gives it.
    pub name: Arc<str>,
    /// What it means, a sentence without its full stop.
    #[serde(skip)]
    pub help: Option<&'static str>,
    /// The value at the last reading.
    pub value: u64,
    /// Where it came from.
    pub source: Source,
}

/// A counter under the provider's name, as the provider counts it.
#[derive(Clone, Debug, Serialize)]
pub struct NamedCounter {
    /// The name that the provider gives it.
    pub name: Arc<str>,
    /// Bytes that one count stands for: 4 for data counters of the InfiniBand specification, which count
    /// words of 4 bytes. `None`: the name says what is counted.
    pub unit_bytes: Option<u64>,
    /// What it means, a sentence without its full stop (docs/counters.md); `None` if that is not known.
    #[serde(skip)]
    pub help: Option<&'static str>,
    /// The counter.
    #[serde(flatten)]
    pub counter: Counter,
}
