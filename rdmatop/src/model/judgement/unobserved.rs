//! What cannot be observed of a device, and why.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{Rows, counts_bytes};
use crate::model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    input::{EbpfState, UprobesReport},
    snapshot::{DeviceRow, Health, ProcessRow, QpRow, Snapshot},
};

/// What cannot be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Work requests, their bytes, completions, errors: by QP, by process, and by device.
    WorkRequests,
    /// Bytes on the wire.
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

/// A quantity of a device that cannot be observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unobserved {
    /// Device name.
    pub device: Arc<str>,
    /// Which quantity.
    pub what: Quantity,
    /// For how many of its QPs; `None`: for all.
    pub qps: Option<u64>,
    /// Why.
    pub cause: Cause,
}

impl Unobserved {
    /// The quantity and the reason.
    pub fn what(&self) -> String {
        let part = match self.qps {
            Some(1) => " of 1 QP".to_owned(),
            Some(qps) => format!(" of {qps} QPs"),
            None => String::new(),
        };
        format!("{}{part}: {}", self.what.name(), sentence(&self.cause))
    }

    /// Whether the same quantity of another device is unobservable for the same reason.
    pub fn is_like(&self, other: &Self) -> bool {
        let why = |it: &Self| (it.what, it.qps, it.cause.id);
        why(self) == why(other) && self.cause.reason() == other.cause.reason()
    }
}

impl fmt::Display for Unobserved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.what())
    }
}

impl Serialize for Unobserved {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("Unobserved", 5)?;
        object.serialize_field("device", &self.device)?;
        object.serialize_field("what", &self.what)?;
        object.serialize_field("qps", &self.qps)?;
        object.serialize_field("why", &sentence(&self.cause))?;
        object.serialize_field("cause", &self.cause)?;
        object.end()
    }
}

/// Why, and what to do, as a sentence.
pub fn sentence(cause: &Cause) -> String {
    format!("{}.", cause.reason())
}

/// Why no program counts the work requests of a device, or of an unknown device; `None` where one does.
pub fn why_uncounted(health: &Health, device: Option<&DeviceRow>) -> Option<Cause> {
    let because = |id, why: &str, remedy: &str| Obstacle::new(id, why, remedy);
    let obstacle = match &health.ebpf {
        EbpfState::Starting => because(CauseId::EbpfStarts, "eBPF is starting", ""),
        EbpfState::Disabled => because(CauseId::NoEbpf, "--no-ebpf leaves out what counts it", ""),
        EbpfState::Unavailable(off) => {
            let why = format!("eBPF is off: {}", off.cause.why);
            because(off.cause.id, &why, "")
        }
        EbpfState::On { .. } if device.is_none_or(|device| !device.followed) => not_followed(health),
        EbpfState::On { .. } if device.is_some_and(|device| device.datapath.is_none()) => because(
            CauseId::NoDataPath,
            "the programs that count it are not attached",
            "`rdmatop probes` says why",
        ),
        EbpfState::On { .. } => return None,
    };
    let concerns = device.map_or(Concerns::Host, of_device);
    Some(obstacle.takes(Quantity::WorkRequests.name(), concerns))
}

/// Why posts that the kernel does not see are not counted.
fn not_followed(health: &Health) -> Obstacle {
    match health.uprobes.as_deref() {
        None => Obstacle::new(
            CauseId::NotFollowed,
            "no program follows these posts: most NICs' posts bypass the kernel",
            "`--uprobes` counts them where the program uses libibverbs",
        ),
        Some(UprobesReport { off: Some(off), .. }) => Obstacle::new(off.id, &*off.why, &*off.remedy),
        Some(UprobesReport { pid: Some(pid), .. }) => {
            let why = format!("these posts bypass the kernel, and only process {pid} is probed");
            Obstacle::new(CauseId::NotProbed, why, "`--uprobes` probes all")
        }
        Some(_) => Obstacle::new(
            CauseId::NotProbed,
            "these posts bypass the kernel, and no probe on a program counts them",
            "",
        ),
    }
}

/// QPs of a device that probes on programs do not count, where they count any; `None` where they count none: it may be used
/// without a QP that the kernel knows. Those that carry management datagrams are no process's.
fn not_probed(snapshot: &Snapshot, device: &DeviceRow) -> Option<u64> {
    let management = |qp: &QpRow| qp.qp_type.is_some_and(|kind| kind.0 < 2);
    let silent = |qp: &QpRow| qp.traffic.tx_wr.is_none() && qp.traffic.rx_wr_posted.is_none();
    let own = snapshot.qps.iter().filter(|qp| qp.device_uid == Some(device.uid));
    let own = own.filter(|qp| !qp.exited && !management(qp));
    let (silent, counted): (Vec<_>, Vec<_>) = own.partition(|qp| silent(qp));
    (!counted.is_empty()).then_some(silent.len() as u64)
}

/// As [`why_uncounted`], for a QP.
pub fn why_qp_is_uncounted(snapshot: &Snapshot, qp: &QpRow) -> Option<Cause> {
    let device = snapshot.devices.iter().find(|d| Some(d.uid) == qp.device_uid);
    why_uncounted(&snapshot.health, device)
}

/// As [`why_uncounted`], for a process: its work requests are counted when a program counts those of one of its
/// devices.
pub fn why_process_is_uncounted(snapshot: &Snapshot, process: &ProcessRow) -> Option<Cause> {
    let mut devices = snapshot
        .devices
        .iter()
        .filter(|d| process.devices.contains(&d.name));
    why_uncounted(&snapshot.health, devices.find(|device| device.followed))
}

fn of_device(device: &DeviceRow) -> Concerns {
    Concerns::Device(device.name.to_string())
}

pub(super) fn of(snapshot: &Snapshot, rows: &Rows) -> Vec<Unobserved> {
    let mut out = Vec::new();
    for device in &snapshot.devices {
        let mut add = |what, qps, cause| {
            out.push(Unobserved {
                device: Arc::clone(&device.name),
                what,
                qps,
                cause,
            });
        };
        if let Some(cause) = why_uncounted(&snapshot.health, Some(device)) {
            // This looks at all QPs.
            let some_are_probed = cause.id == CauseId::NotProbed;
            match some_are_probed.then(|| not_probed(snapshot, device)).flatten() {
                Some(0) => {}
                some => add(Quantity::WorkRequests, some, cause),
            }
        } else {
            if let Some(qps) = rows.uncounted.get(&device.uid) {
                let full = Obstacle::new(
                    CauseId::NoSlot,
                    "they found no free counter slot, or no room in the tables of QPs",
                    "",
                );
                let cause = full.takes(Quantity::WorkRequests.name(), of_device(device));
                add(Quantity::WorkRequests, Some(*qps), cause);
            }
            for hidden in device.hidden {
                let unseen = Obstacle::new(CauseId::NotInDriver, hidden.why, "");
                add(
                    hidden.what,
                    None,
                    unseen.takes(hidden.what.name(), of_device(device)),
                );
            }
        }
        let mut ports = snapshot.ports.iter().filter(|p| p.device_uid == device.uid);
        let some = ports.clone().next().is_some();
        if some && !ports.clone().any(counts_bytes) {
            let (id, why) = if ports.all(|port| port.counters.is_empty()) {
                (CauseId::NoCounters, "no counter of its driver can be read")
            } else {
                (CauseId::NoByteCounters, "its driver counts no bytes")
            };
            let cause = Obstacle::new(id, why, "").takes(Quantity::WireBytes.name(), of_device(device));
            add(Quantity::WireBytes, None, cause);
        }
    }
    out
}
