//! Reads one device: each part that is wanted. A failed request leaves the other parts as they are.
use rdmatop_model::cause::{CauseId, Obstacle};

use super::record::{Device, Summary};
use super::sample::{DeviceSample, Dump, PortSample, RequestError};
use super::{client::Nldev, error::NetlinkError, transport::Transport};

/// Most ports that are read of one device: no device has so many, and a garbled count must not keep rdmatop
/// busy for minutes.
const MAX_PORTS: u32 = 1024;

/// What is read of a device besides its resource counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// Port states.
    pub ports: bool,
    /// Memory regions.
    pub mrs: bool,
}

/// Reads a device that was listed before. `counts` are its resource counts where the caller has just read
/// them; otherwise they are asked for. Fails only in parts.
pub fn sample<T: Transport>(
    nldev: &mut Nldev<T>,
    device: Device,
    want: Want,
    counts: Option<Summary>,
) -> DeviceSample {
    let index = device.index;
    let mut sample = DeviceSample::new(device);
    let name = sample.device.name.clone();
    let named = |what: &str, error: &NetlinkError| error.of(format!("{what} of {name}"));

    let claimed = sample.device.port_count;
    for port in 1..=claimed.min(MAX_PORTS) {
        let info = want.ports.then(|| {
            let info = nldev.port(index, port);
            info.map_err(|error| named(&format!("port {port}"), &error))
        });
        sample.ports.push(PortSample { port, info });
    }
    if claimed > MAX_PORTS {
        let why = format!("not asked: {claimed} ports are more than one refresh reads");
        sample.ports.push(PortSample {
            port: MAX_PORTS + 1,
            info: Some(Err(RequestError {
                request: format!("ports of {name} from {}", MAX_PORTS + 1).into(),
                why: Obstacle::new(CauseId::ReadFailed, why, ""),
                errno: None,
            })),
        });
    }

    let summary = match counts {
        Some(counts) => Ok(counts),
        None => nldev
            .summary(index)
            .map_err(|error| named("resource counts", &error)),
    };
    sample.mrs = want.mrs.then(|| {
        // The kernel has just counted no MR, so the list is known to be empty.
        if summary.as_ref().ok().and_then(|counts| counts.get("mr")) == Some(0) {
            return Ok(Dump::default());
        }
        nldev.mrs(index).map_err(|error| named("MRs", &error))
    });
    sample.summary = Some(summary);
    sample
}
