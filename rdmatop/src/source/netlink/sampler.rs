//! One refresh: every device, every wanted reading, each failure kept to itself.
use std::collections::HashMap;

use super::client::Nldev;
use super::error::NetlinkError;
use super::record::{Device, DeviceKey, Summary};
use crate::model::cause::{CauseId, Obstacle};

use super::sample::{DeviceSample, Dump, NetlinkSample, PortSample, Reading, RequestError};
use super::transport::Transport;
use crate::source::clock::timed;

/// Most ports of one device read in a refresh: no device has so many, and a garbled count must not keep us busy
/// for minutes.
const MAX_PORTS: u32 = 1024;

/// When to list the queue pairs, the one request whose cost grows with their square.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WantQps {
    /// Not at all.
    #[default]
    Never,
    /// When the count differs from that of the last list. Misses changes that keep the count: a QP replaced by
    /// another, a QP that changed state.
    OnChange,
    /// On this refresh.
    Now,
}

/// What a refresh reads besides the list of devices and their summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Want {
    /// Leave out the resource counts: they were asked for a moment ago.
    pub skip_summary: bool,
    /// Port states.
    pub ports: bool,
    /// Hardware counters of ports.
    pub counters: bool,
    /// Queue pairs.
    pub qps: WantQps,
    /// Connection-manager ids.
    pub cm_ids: bool,
    /// Completion queues.
    pub cqs: bool,
    /// Memory regions.
    pub mrs: bool,
    /// Protection domains.
    pub pds: bool,
    /// User contexts.
    pub ctxs: bool,
    /// Shared receive queues.
    pub srqs: bool,
    /// Counter sets bound to QPs.
    pub counter_sets: bool,
}

impl Want {
    /// Everything there is.
    pub const EVERYTHING: Self = Self {
        skip_summary: false,
        ports: true,
        counters: true,
        qps: WantQps::Now,
        cm_ids: true,
        cqs: true,
        mrs: true,
        pds: true,
        ctxs: true,
        srqs: true,
        counter_sets: true,
    };
}

/// Takes refreshes over one connection. The caller stamps the sample; what is divided by time, the counters, have their
/// own times.
#[derive(Debug)]
pub struct Sampler<T> {
    nldev: Nldev<T>,
    sys_asked: bool,
    /// QP count of the summary before the last good list, by device generation.
    listed: HashMap<DeviceKey, u64>,
}

impl<T: Transport> Sampler<T> {
    /// Asks through `nldev`.
    pub fn new(nldev: Nldev<T>) -> Self {
        Self {
            nldev,
            sys_asked: false,
            listed: HashMap::new(),
        }
    }

    /// The connection, to ask something else.
    pub const fn nldev(&mut self) -> &mut Nldev<T> {
        &mut self.nldev
    }

    /// The connection, to look at or to take what it recorded.
    pub fn into_nldev(self) -> Nldev<T> {
        self.nldev
    }

    /// Takes one refresh. Fails only in parts.
    pub fn sample(&mut self, want: Want) -> NetlinkSample {
        let sys = (!self.sys_asked).then(|| {
            self.nldev
                .sys_get()
                .map_err(|error| error.of("subsystem settings"))
        });
        self.sys_asked = true;
        let devices = match self.nldev.devices() {
            Ok(devices) => devices,
            Err(error) => {
                let devices = Err(error.of("list of devices"));
                return NetlinkSample {
                    sys,
                    devices,
                    devices_interrupted: false,
                };
            }
        };
        let keys: Vec<DeviceKey> = devices.items.iter().map(Device::key).collect();
        self.listed.retain(|key, _| keys.contains(key));
        let samples = devices.items.into_iter().zip(keys);
        let samples = samples
            .map(|(device, key)| self.device(device, &key, want, None))
            .collect();
        NetlinkSample {
            sys,
            devices: Ok(samples),
            devices_interrupted: devices.interrupted,
        }
    }

    /// Reads one device that was listed before, of which the resource counts may be known already.
    pub fn again(&mut self, device: Device, want: Want, counts: Option<Summary>) -> DeviceSample {
        let key = device.key();
        self.device(device, &key, want, counts)
    }

    fn device(
        &mut self,
        device: Device,
        key: &DeviceKey,
        want: Want,
        counts: Option<Summary>,
    ) -> DeviceSample {
        let index = device.index;
        let mut sample = DeviceSample::new(device);
        let name = sample.device.name.clone();
        let named = |what: &str, error: &NetlinkError| error.of(format!("{what} of {name}"));

        for port in 1..=sample.device.port_count.min(MAX_PORTS) {
            let info = want.ports.then(|| {
                let info = self.nldev.port(index, port);
                info.map_err(|error| error.of(format!("port {port} of {name}")))
            });
            let counters = want.counters.then(|| {
                let (counters, at) = timed(|| self.nldev.counters(index, port));
                let named = |error: NetlinkError| error.of(format!("counters of {name} port {port}"));
                (counters.map_err(named), at)
            });
            let (counters, counters_at) = counters.unzip();
            sample.ports.push(PortSample {
                port,
                info,
                counters,
                counters_at,
            });
        }

        let claimed = sample.device.port_count;
        if claimed > MAX_PORTS {
            let request = format!("ports of {name} from {}", MAX_PORTS + 1).into();
            let why = format!("not asked: {claimed} ports are more than one refresh reads");
            let info = Some(Err(RequestError {
                request,
                why: Obstacle::new(CauseId::ReadFailed, why, ""),
                errno: None,
            }));
            sample.ports.push(PortSample {
                port: MAX_PORTS + 1,
                info,
                counters: None,
                counters_at: None,
            });
        }

        let ask = || {
            let summary = self.nldev.summary(index);
            summary.map_err(|error| named("resource counts", &error))
        };
        let summary = counts.map(Ok).or_else(|| (!want.skip_summary).then(ask));
        let count = |what: &str| {
            let summary: &Summary = summary.as_ref()?.as_ref().ok()?;
            summary.get(what)
        };

        let qp_count = count("qp");
        let list_qps = match want.qps {
            WantQps::Never => false,
            WantQps::Now => true,
            // Without a count nothing says whether the list changed, so ask.
            WantQps::OnChange => qp_count.is_none() || self.listed.get(key).copied() != qp_count,
        };
        sample.qps = read(
            list_qps,
            qp_count,
            || self.nldev.qps(index),
            |error| named("QPs", error),
        );
        if let Some(Ok(_)) = sample.qps {
            match qp_count {
                Some(count) => self.listed.insert(key.clone(), count),
                None => self.listed.remove(key),
            };
        }

        let nldev = &mut self.nldev;
        let (cm_id, cq, mr, pd) = (count("cm_id"), count("cq"), count("mr"), count("pd"));
        sample.cm_ids = read(
            want.cm_ids,
            cm_id,
            || nldev.cm_ids(index),
            |error| named("CM_IDs", error),
        );
        sample.cqs = read(want.cqs, cq, || nldev.cqs(index), |error| named("CQs", error));
        sample.mrs = read(want.mrs, mr, || nldev.mrs(index), |error| named("MRs", error));
        sample.pds = read(want.pds, pd, || nldev.pds(index), |error| named("PDs", error));
        let (ctx, srq) = (count("ctx"), count("srq"));
        sample.ctxs = read(
            want.ctxs,
            ctx,
            || nldev.ctxs(index),
            |error| named("user contexts", error),
        );
        sample.srqs = read(want.srqs, srq, || nldev.srqs(index), |error| named("SRQs", error));
        let sets = || nldev.counter_sets(index);
        sample.counter_sets = read(want.counter_sets, None, sets, |error| {
            named("QP counter sets", error)
        });
        sample.summary = summary;
        sample
    }
}

/// Asks if `wanted`. Where the summary already said that there are none, the answer is known: an empty list.
fn read<R>(
    wanted: bool,
    count: Option<u64>,
    ask: impl FnOnce() -> Result<Dump<R>, NetlinkError>,
    name: impl FnOnce(&NetlinkError) -> RequestError,
) -> Reading<Dump<R>> {
    wanted.then(|| {
        if count == Some(0) {
            Ok(Dump::default())
        } else {
            ask().map_err(|error| name(&error))
        }
    })
}
