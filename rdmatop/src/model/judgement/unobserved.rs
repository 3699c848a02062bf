//! What cannot be observed of a device, and why.

use std::{fmt, sync::Arc};

use serde::Serialize;

use super::{Rows, counts_bytes};
use crate::model::{
    input::EbpfState,
    snapshot::{DeviceRow, Health, ProcessRow, QpRow, Snapshot},
};

/// What cannot be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Work requests, their bytes, completions, errors: by QP, by process, and of the device.
    WorkRequests,
    /// Bytes that pass the wire.
    WireBytes,
    /// Packets that are sent again.
    Retransmissions,
    /// Waits for a receiver without buffers.
    ReceiverWaits,
    /// How long work requests take.
    Latency,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Self::WorkRequests => "work requests",
            Self::WireBytes => "bytes on the wire",
            Self::Retransmissions => "packets sent again",
            Self::ReceiverWaits => "waits for a receiver",
            Self::Latency => "times of work requests",
        }
    }
}

/// Something of a device that cannot be observed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unobserved {
    /// Device name.
    pub device: Arc<str>,
    /// What.
    pub what: Quantity,
    /// So many of its QPs; `None`: all of it.
    pub qps: Option<u64>,
    /// Why, one sentence.
    pub why: String,
}

impl Unobserved {
    /// What, and why.
    pub fn what(&self) -> String {
        let part = match self.qps {
            Some(1) => " of 1 QP".to_owned(),
            Some(qps) => format!(" of {qps} QPs"),
            None => String::new(),
        };
        format!("{}{part}: {}", self.what.name(), self.why)
    }

    /// Whether the same of another device cannot be observed for the same reason.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.what, self.qps, &self.why) == (other.what, other.qps, &other.why)
    }
}

impl fmt::Display for Unobserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.what())
    }
}

/// Why nobody sees what the QPs of a device do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blind<'a> {
    /// The programs are being attached.
    Starting,
    /// The user left them out.
    Disabled,
    /// They cannot be had, and why.
    Off(&'a str),
    /// No program of ours follows the posts of this driver.
    NotFollowed,
    /// One would, and is not attached.
    NoDataPath,
}

impl<'a> Blind<'a> {
    /// Of a device, or of one that is not known; `None` where programs count.
    pub fn of(health: &'a Health, device: Option<&DeviceRow>) -> Option<Self> {
        match &health.ebpf {
            EbpfState::Starting => Some(Self::Starting),
            EbpfState::Disabled => Some(Self::Disabled),
            EbpfState::Unavailable(off) => Some(Self::Off(&off.cause.why)),
            EbpfState::On { .. } if device.is_none_or(|device| !device.followed) => Some(Self::NotFollowed),
            EbpfState::On { .. } if device.is_some_and(|device| device.datapath.is_none()) => {
                Some(Self::NoDataPath)
            }
            EbpfState::On { .. } => None,
        }
    }

    /// Of a QP.
    pub fn of_qp(snapshot: &'a Snapshot, qp: &QpRow) -> Option<Self> {
        let device = snapshot.devices.iter().find(|d| Some(d.uid) == qp.device_uid);
        Self::of(&snapshot.health, device)
    }

    /// Of a process: programs count when they do on one of its devices.
    pub fn of_process(snapshot: &'a Snapshot, process: &ProcessRow) -> Option<Self> {
        let mut devices = snapshot
            .devices
            .iter()
            .filter(|d| process.devices.contains(&d.name));
        Self::of(&snapshot.health, devices.find(|device| device.followed))
    }
}

impl fmt::Display for Blind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("eBPF is starting."),
            Self::Disabled => f.write_str("--no-ebpf leaves out what counts it."),
            Self::Off(why) => write!(f, "eBPF is off: {why}."),
            Self::NotFollowed => {
                f.write_str("no program follows these posts: most NICs' posts bypass the kernel.")
            }
            Self::NoDataPath => f.write_str("the programs that count it are not attached."),
        }
    }
}

pub(super) fn of(snapshot: &Snapshot, rows: &Rows) -> Vec<Unobserved> {
    let mut out = Vec::new();
    for device in &snapshot.devices {
        let mut add = |what, qps, why| {
            out.push(Unobserved {
                device: Arc::clone(&device.name),
                what,
                qps,
                why,
            });
        };
        if let Some(blind) = Blind::of(&snapshot.health, Some(device)) {
            add(Quantity::WorkRequests, None, blind.to_string());
        } else {
            if let Some(qps) = rows.uncounted.get(&device.uid) {
                let why = "they moved when no counter slot was free.".to_owned();
                add(Quantity::WorkRequests, Some(*qps), why);
            }
            for hidden in device.hidden {
                add(hidden.what, None, hidden.why.to_owned());
            }
        }
        let mut ports = snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
        let some = ports.clone().next().is_some();
        if some && !ports.clone().any(counts_bytes) {
            let why = if ports.all(|port| port.counters.is_empty()) {
                "no counter of its driver can be read."
            } else {
                "its driver counts no bytes."
            };
            add(Quantity::WireBytes, None, why.to_owned());
        }
    }
    out
}
