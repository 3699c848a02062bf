//! Devices, ports and QPs: RDMA netlink for what changes, sysfs for what netlink does not tell.
//!
//! What a device is, its ports and its resources change rarely: they are listed when something says that they did,
//! and now and then. In between a round reads counters only.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
};

use self::{
    known::{Known, Listed},
    owners::Owners,
};
use crate::{
    app::{
        source::{Source, Wants},
        time::now,
    },
    model::{
        ib::{QpState, QpType},
        input::{CountersSample, DeviceReading, DevicesSample, Input, PortCounters, QpReading, QpsSample},
    },
    source::{
        netlink::{
            client::Nldev,
            error::NetlinkError,
            record::{DeviceKey, Owner, Qp},
            sample::{DeviceSample, NetlinkSample},
            sampler::{Sampler, Want, WantQps},
            socket::Socket,
        },
        root::Root,
        sysfs::list_devices,
    },
    text,
};

mod counters;
mod known;
mod owners;

/// Devices are listed again after this, ns, whatever else tells of a change.
const LIST_EVERY: u64 = 10_000_000_000;
/// States of ports and counts of resources are asked for again after this, ns.
const STATES_EVERY: u64 = 5_000_000_000;

/// Reads devices, and QPs when they are wanted.
pub struct DeviceSource {
    root: Root,
    sampler: Option<Sampler<Socket>>,
    listed: Vec<Listed>,
    /// When the devices were listed, unless that failed.
    listed_ns: Option<u64>,
    /// When states and resources were last asked for.
    states_ns: u64,
    /// Directories of devices at the last listing.
    dirs: Option<Vec<OsString>>,
    owners: Owners,
}

/// Something is not as it was listed.
struct Changed;

impl DeviceSource {
    /// Reads under `root`; netlink is opened on the first round and again after a failure.
    pub fn new(root: Root) -> Self {
        Self {
            owners: Owners::new(root.clone()),
            root,
            sampler: None,
            listed: Vec::new(),
            listed_ns: None,
            states_ns: 0,
            dirs: None,
        }
    }

    /// Whether the devices must be listed, and not only their counters read.
    fn list_is_due(&self) -> bool {
        let now_ns = now().mono_ns;
        let young = self
            .listed_ns
            .is_some_and(|at| now_ns.saturating_sub(at) < LIST_EVERY);
        // A device that came, went or was renamed shows here at once, for the price of one directory.
        !young || self.sampler.is_none() || self.dirs.is_none() || list_devices(&self.root) != self.dirs
    }

    fn sample(&mut self, wants: &Wants) -> Result<NetlinkSample, String> {
        if self.sampler.is_none() {
            self.sampler = Some(Sampler::new(Nldev::open().map_err(|error| error.to_string())?));
        }
        let sampler = self.sampler.as_mut().ok_or("no netlink socket")?;
        let sample = sampler.sample(Want {
            ports: true,
            counters: wants.counters,
            ..objects(wants)
        });
        if sample.devices.is_err() {
            self.sampler = None;
        }
        Ok(sample)
    }

    /// Lists everything.
    fn list(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        let before = now().mono_ns;
        self.listed_ns = None;
        self.dirs = list_devices(&self.root);
        let sample = match self.sample(wants) {
            Ok(sample) => sample,
            Err(error) => {
                let sample = DevicesSample {
                    mono_ns: before,
                    errors: vec![error],
                    ..DevicesSample::default()
                };
                return out(Input::Devices(Box::new(sample)));
            }
        };
        let errors: Vec<String> = sample.errors().map(ToString::to_string).collect();
        if sample.devices.is_ok() {
            self.listed_ns = Some(before);
            self.states_ns = before;
        }
        let mut devices = sample.devices.unwrap_or_default();
        self.owners.forget();
        let qps = wants.qps.then(|| self.qps(before, &devices));
        let mr_bytes: Vec<_> = devices.iter().map(|device| self.mr_bytes([device])).collect();
        let mut known: HashMap<DeviceKey, Known> = self
            .listed
            .drain(..)
            .map(|listed| (listed.key, listed.known))
            .collect();
        let mut readings = Vec::with_capacity(devices.len());
        for (device, mr_bytes) in devices.drain(..).zip(mr_bytes) {
            let key = device.device.key();
            let mut known = known.remove(&key).unwrap_or_default();
            known.refresh(&self.root, &device, before);
            let mut reading = known.reading(&device);
            known.counters(&device, &mut reading);
            readings.push(DeviceReading { mr_bytes, ..reading });
            self.listed.push(Listed::new(key, device, known));
        }
        let mono_ns = now().mono_ns;
        out(Input::Devices(Box::new(DevicesSample {
            mono_ns,
            devices: readings,
            errors,
        })));
        out_qps(qps, out);
    }

    /// Reads what moves, of the devices that are listed. Gives up when they are not what they were.
    fn again(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) -> Result<(), Changed> {
        let before = now().mono_ns;
        let states = before.saturating_sub(self.states_ns) >= STATES_EVERY;
        let sampler = self.sampler.as_mut().ok_or(Changed)?;
        let ask = || sampler.nldev().summaries().map_err(|_| Changed);
        let counts = (states || wants.qps || wants.objects).then(ask).transpose()?;
        let want = Want {
            ports: states,
            skip_summary: true,
            mrs: wants.qps,
            ..Want::default()
        };
        self.owners.forget();
        let mut sample = CountersSample::default();
        let mut devices = Vec::new();
        let mut qps = wants.qps.then(|| QpsSample {
            mono_ns: before,
            ..QpsSample::default()
        });
        for listed in &mut self.listed {
            let device_index = listed.device().index;
            if let Some(counts) = &counts {
                let found = counts.items.iter().find(|c| c.device_index == device_index);
                let count = found.ok_or(Changed)?;
                let device = sampler.again(listed.device().clone(), want, Some(count.clone()));
                sample
                    .changed
                    .extend(listed.again(&device).map_err(|()| Changed)?);
                devices.push(device);
                if let Some(qps) = &mut qps {
                    let nldev = sampler.nldev();
                    dump(nldev, &mut self.owners, listed, count.get("qp"), qps).map_err(|_| Changed)?;
                }
            }
            for port in listed.known.ports.iter_mut().filter(|_| wants.counters) {
                sample.ports.push(PortCounters {
                    device_index,
                    number: port.port,
                    counters: port.read(sampler.nldev(), device_index).map_err(|_| Changed)?,
                });
            }
        }
        if states {
            self.states_ns = before;
        }
        sample.mr_bytes = self.mr_bytes(&devices);
        sample.mono_ns = now().mono_ns;
        out(Input::Counters(Box::new(sample)));
        out_qps(qps, out);
        Ok(())
    }

    /// Bytes of regions by process; `None` unless those of all `devices` were listed.
    fn mr_bytes<'a>(
        &mut self,
        devices: impl IntoIterator<Item = &'a DeviceSample>,
    ) -> Option<BTreeMap<u32, u64>> {
        let mut sums = None;
        for device in devices {
            let mrs = device.mrs.as_ref()?.as_ref().ok()?;
            self.owners
                .mr_bytes(&mrs.items, sums.get_or_insert_with(BTreeMap::new));
        }
        sums
    }

    fn qps(&mut self, mono_ns: u64, devices: &[DeviceSample]) -> QpsSample {
        let mut out = QpsSample {
            mono_ns,
            ..QpsSample::default()
        };
        for device in devices {
            match &device.qps {
                Some(Ok(dump)) => {
                    if !dump.interrupted {
                        out.complete.push(device.device.index);
                    }
                    let index = device.device.index;
                    let readings = dump.items.iter().map(|qp| reading(&mut self.owners, index, qp));
                    out.qps.extend(readings);
                }
                Some(Err(error)) => out.errors.push(error.to_string()),
                None => {}
            }
        }
        out
    }
}

/// Adds the QPs of a device, of which it has `count`.
fn dump(
    nldev: &mut Nldev<Socket>,
    owners: &mut Owners,
    listed: &mut Listed,
    count: Option<u64>,
    out: &mut QpsSample,
) -> Result<(), NetlinkError> {
    let index = listed.device().index;
    if let Some(special) = listed.only_special(count) {
        out.complete.push(index);
        out.qps.extend_from_slice(special);
        return Ok(());
    }
    let start = out.qps.len();
    let interrupted = nldev.each_qp(index, &mut |qp| match qp {
        Some(qp) => out.qps.push(reading(owners, index, &qp)),
        None => out.qps.truncate(start),
    })?;
    if !interrupted {
        out.complete.push(index);
        listed.dumped(count, out.qps.get(start..).unwrap_or_default());
    }
    Ok(())
}

fn reading(owners: &mut Owners, device_index: u32, qp: &Qp) -> QpReading {
    QpReading {
        device_index,
        port: qp.port,
        qpn: qp.lqpn,
        qp_type: qp.qp_type.map(|ty| QpType(ty.number())),
        state: qp.state.map(|state| QpState(state.number())),
        // 0 until RTR: no peer yet.
        remote_qpn: qp.rqpn.filter(|qpn| *qpn != 0),
        sq_psn: qp.sq_psn,
        rq_psn: qp.rq_psn,
        pid: qp
            .owner
            .as_ref()
            .and_then(Owner::pid)
            .map(|tid| owners.process(tid)),
        kern_name: match &qp.owner {
            Some(Owner::Kernel(name)) => Some(text::sanitize(name.as_bytes())),
            _ => None,
        },
    }
}

fn out_qps(qps: Option<QpsSample>, out: &mut dyn FnMut(Input)) {
    if let Some(qps) = qps {
        out(Input::Qps(Box::new(qps)));
    }
}

/// What is wanted of objects. MR sizes of processes that were there before us: once, and again with each repair.
fn objects(wants: &Wants) -> Want {
    Want {
        qps: if wants.qps { WantQps::Now } else { WantQps::Never },
        mrs: wants.qps,
        ..Want::default()
    }
}

impl Source for DeviceSource {
    fn name(&self) -> &'static str {
        "RDMA devices"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() {
            return;
        }
        if self.list_is_due() || self.again(wants, out).is_err() {
            self.list(wants, out);
        }
    }
}
