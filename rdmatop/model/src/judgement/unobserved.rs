//! What cannot be observed of a device, and why. For a single QP, [`super::uncounted`] says it.

use std::{fmt, sync::Arc};

use serde::{Serialize, Serializer, ser::SerializeStruct as _};

use super::{Rows, counts_bytes, uncounted};
use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    facts::{DeviceRow, Facts, Quantity},
};
use rdmatop_base::text::count;

/// A quantity of a device that cannot be observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unobserved {
    /// Device name.
    pub device: Arc<str>,
    /// Which quantity.
    pub what: Quantity,
    /// How many QPs of the device this concerns; `None`: all.
    pub qps: Option<u64>,
    /// The reason why it is not observed.
    pub cause: Cause,
}

impl Unobserved {
    /// The quantity and the reason.
    pub fn what(&self) -> String {
        let part = self.qps.map(|qps| format!(" of {}", count(qps, "QP")));
        let part = part.unwrap_or_default();
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

/// The cause and the remedy, as a sentence.
pub fn sentence(cause: &Cause) -> String {
    format!("{}.", cause.reason())
}

pub(super) fn of_device(device: &DeviceRow) -> Concerns {
    Concerns::Device(device.name.to_string())
}

/// Whether nothing of a device was read: it is left alone, or does not answer.
fn is_unread(facts: &Facts, device: &DeviceRow) -> bool {
    let mut ports = facts.ports.iter();
    device.driver.is_none() && ports.all(|port| port.device_uid != device.uid)
}

/// Whether there are devices, and nothing of any of them was read.
pub fn looked_at_none(facts: &Facts) -> bool {
    let mut devices = facts.devices.iter();
    !facts.devices.is_empty() && devices.all(|device| is_unread(facts, device))
}

pub(super) fn of(facts: &Facts, rows: &Rows) -> Vec<Unobserved> {
    let mut out = Vec::new();
    for device in &facts.devices {
        let ports = || facts.ports.iter().filter(|port| port.device_uid == device.uid);
        // A note says that rdmatop leaves this device alone. Any other cause would be a guess about its
        // driver.
        if device.left_alone {
            continue;
        }
        let because =
            |what: Quantity, id, why: &str| Obstacle::new(id, why, "").takes(what.name(), of_device(device));
        let mut add = |what, qps, cause| {
            out.push(Unobserved {
                device: Arc::clone(&device.name),
                what,
                qps,
                cause,
            });
        };
        if let Some(cause) = uncounted::why_uncounted(&facts.health, Some(device)) {
            if uncounted::is_probed(&facts.health, device) {
                for (what, qps, cause) in uncounted::not_probed(facts, rows, device, cause) {
                    add(what, qps, cause);
                }
            } else {
                add(Quantity::WorkRequests, None, cause);
            }
        } else {
            if let Some(qps) = rows.uncounted.get(&device.uid) {
                let full = "they found no free counter slot, or no room in the tables of QPs";
                let cause = because(Quantity::WorkRequests, CauseId::NoSlot, full);
                add(Quantity::WorkRequests, Some(*qps), cause);
            }
            for hidden in device.hidden {
                let cause = because(hidden.what, CauseId::NotInDriver, hidden.why);
                add(hidden.what, None, cause);
            }
        }
        if ports().next().is_some() && !ports().any(counts_bytes) {
            let of_bytes = |id, why| because(Quantity::WireBytes, id, why);
            let cause = if let Some(pause) = facts.health.note_of(CauseId::CountersPaused, &device.name) {
                let reason = Obstacle::new(pause.id, &*pause.why, pause.remedy.clone());
                reason.takes(Quantity::WireBytes.name(), of_device(device))
            } else if ports().any(|port| !port.counters.is_empty()) {
                of_bytes(CauseId::NoByteCounters, "its driver counts no bytes")
            } else {
                of_bytes(CauseId::NoCounters, "no counter of its driver can be read")
            };
            add(Quantity::WireBytes, None, cause);
        }
    }
    out
}
