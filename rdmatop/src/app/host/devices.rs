//! Devices, ports and QPs: RDMA netlink for what changes, sysfs for what netlink does not tell.
//!
//! What a device is, its ports and its resources change rarely: they are listed when something says that they did,
//! and now and then. In between a round reads counters only.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    thread,
    time::Duration,
};

use self::{dump::dump, known::Listed, leaving::Leaving, owners::Owners};
use crate::{
    app::{
        source::{Source, Wants},
        time::now,
    },
    model::input::{CountersSample, DeviceReading, DevicesSample, Input, QpsSample},
    source::{
        netlink::{
            client::Nldev,
            enums::NetnsMode,
            error::NetlinkError,
            record::{Device, DeviceKey},
            sample::{DeviceSample, NetlinkSample},
            sampler::{Sampler, Want},
            socket::Socket,
            transport::Transport,
        },
        removal,
        root::Root,
        sysfs::{device_dir, list_devices},
    },
};

mod counters;
mod dump;
mod known;
mod leaving;
mod owners;
#[cfg(test)]
mod tests;

/// Devices are listed again after this, ns, whatever else tells of a change.
const LIST_EVERY: u64 = 10_000_000_000;
/// States of ports and counts of resources are asked for again after this, ns.
const STATES_EVERY: u64 = 5_000_000_000;
/// A device that is being made is in sysfs some milliseconds before netlink lists it.
const ONE_THAT_COMES: Duration = if cfg!(test) {
    Duration::from_millis(1)
} else {
    Duration::from_millis(250)
};
/// So many devices are asked for their counts in each round that wants QPs. Of more than these, those at rest are
/// asked together with states: nothing but the counts tells of a first QP there, and each device's cost the kernel
/// as much as its counters.
const FEW: usize = 8;

/// Reads devices, and QPs when they are wanted.
pub struct DeviceSource<T = Socket> {
    root: Root,
    open: fn() -> Result<Nldev<T>, NetlinkError>,
    sampler: Option<Sampler<T>>,
    listed: Vec<Listed>,
    /// When the devices were listed, unless that failed.
    listed_ns: Option<u64>,
    /// When states and resources were last asked for.
    states_ns: u64,
    /// Directories of devices at the last listing.
    dirs: Option<Vec<OsString>>,
    owners: Owners,
    /// Devices that are being removed.
    leaving: Leaving,
    /// Devices are seen in every network namespace.
    shared: bool,
}

/// Something is not as it was listed.
struct Changed;

impl DeviceSource {
    /// Reads under `root`; netlink is opened on the first round and again after a failure.
    pub fn new(root: Root) -> Self {
        Self::through(root, Nldev::open)
    }
}

impl<T: Transport> DeviceSource<T> {
    /// Asks the kernel that `open` leads to.
    fn through(root: Root, open: fn() -> Result<Nldev<T>, NetlinkError>) -> Self {
        Self {
            owners: Owners::new(root.clone()),
            root,
            open,
            sampler: None,
            listed: Vec::new(),
            listed_ns: None,
            states_ns: 0,
            dirs: None,
            leaving: Leaving::default(),
            shared: false,
        }
    }

    /// Whether the devices must be listed, and not only their counters read.
    fn list_is_due(&self) -> bool {
        let now_ns = now().mono_ns;
        let young = self
            .listed_ns
            .is_some_and(|at| now_ns.saturating_sub(at) < LIST_EVERY);
        // A device that came, went or was renamed shows here at once, for the price of one directory.
        // Of one that is being removed nothing tells but these lists.
        let young = young && self.leaving.is_empty();
        !young || self.sampler.is_none() || self.dirs.is_none() || list_devices(&self.root) != self.dirs
    }

    fn sample(&mut self, wants: &Wants) -> Result<NetlinkSample, NetlinkError> {
        let sampler = match self.sampler.take() {
            Some(sampler) => sampler,
            None => Sampler::new((self.open)()?),
        };
        let sampler = self.sampler.insert(sampler);
        let sample = sampler.sample(Want {
            ports: true,
            counters: wants.counters,
            // MR sizes of processes that were there before us: once, and again with each repair.
            mrs: wants.qps,
            ..Want::default()
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
                // A machine without RDMA is told by a note: nothing failed there.
                let failed = error != NetlinkError::NoRdma;
                let sample = DevicesSample {
                    mono_ns: before,
                    unread: failed,
                    errors: failed.then(|| error.to_string()).into_iter().collect(),
                    ..DevicesSample::default()
                };
                return out(Input::Devices(Box::new(sample)));
            }
        };
        let mut errors: Vec<String> = sample.errors().map(ToString::to_string).collect();
        if sample.devices.is_err() {
            return out(Input::Devices(Box::new(DevicesSample {
                mono_ns: before,
                unread: true,
                errors,
                ..DevicesSample::default()
            })));
        }
        if let Some(Ok(settings)) = &sample.sys {
            self.shared = settings.netns_mode == Some(NetnsMode::Shared);
        }
        // A list that the kernel calls torn may lack a device: the next round lists again.
        self.listed_ns = (!sample.devices_interrupted).then_some(before);
        self.states_ns = before;
        let mut devices = sample.devices.unwrap_or_default();
        self.owners.forget();
        let mr_bytes: Vec<_> = devices.iter().map(|device| self.mr_bytes([device])).collect();
        let mut listed_before: HashMap<DeviceKey, Listed> = self
            .listed
            .drain(..)
            .map(|listed| (listed.key.clone(), listed))
            .collect();
        let mut readings = Vec::with_capacity(devices.len());
        for (device, mr_bytes) in devices.drain(..).zip(mr_bytes) {
            let listed_before = listed_before.remove(&device.device.key());
            let (listed, reading) = Listed::list(&self.root, device, listed_before, before);
            readings.push(DeviceReading { mr_bytes, ..reading });
            errors.extend(listed.withheld().map(str::to_owned));
            self.listed.push(listed);
        }
        if !sample.devices_interrupted {
            let gone = listed_before.into_values().collect();
            readings.extend(self.leave(gone, before));
        }
        let qps = wants.qps.then(|| self.dump_all(before));
        let mono_ns = now().mono_ns;
        out(Input::Devices(Box::new(DevicesSample {
            mono_ns,
            devices: readings,
            errors,
            unread: false,
            notes: self.leaving.notes(&self.root, mono_ns),
        })));
        out_qps(qps, out);
    }

    /// Readings of the devices that are being removed. `gone` were listed the last time and are not now.
    fn leave(&mut self, gone: Vec<Listed>, now_ns: u64) -> Vec<DeviceReading> {
        let listed = self.listed.iter().map(Listed::device);
        let found = removal::unlisted(
            &self.root,
            self.dirs.as_deref().unwrap_or_default(),
            |dir| is_listed(listed.clone(), dir),
            self.shared,
        );
        let Self { leaving, root, .. } = self;
        let unknown = leaving.update(root, &found, gone, now_ns);
        if !unknown.is_empty() {
            // Nobody has seen it before: one that is just being made looks the same for some milliseconds.
            thread::sleep(ONE_THAT_COMES);
            let again = list_devices(&self.root).unwrap_or_default();
            let devices = self
                .sampler
                .as_mut()
                .and_then(|sampler| sampler.nldev().devices().ok());
            if let Some(devices) = devices {
                let listed = |dir: &OsStr| is_listed(devices.items.iter(), dir);
                let mut still = removal::unlisted(&self.root, &again, listed, self.shared);
                still.retain(|dir| unknown.contains(dir));
                self.leaving.add(&still);
            }
        }
        self.leaving.readings(&self.root, now_ns)
    }

    /// Dumps the QPs of every device that was listed just now.
    fn dump_all(&mut self, mono_ns: u64) -> QpsSample {
        let mut out = QpsSample {
            mono_ns,
            ..QpsSample::default()
        };
        let Some(sampler) = &mut self.sampler else {
            return out;
        };
        for listed in &mut self.listed {
            let count = listed.count("qp");
            if let Err(error) = dump(sampler.nldev(), &mut self.owners, listed, count, &mut out) {
                let what = format!("QPs of {}", listed.device().name);
                out.errors.push(error.of(what).to_string());
            }
        }
        out
    }

    /// Reads what moves, of the devices that are listed. Gives up when they are not what they were.
    fn again(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) -> Result<(), Changed> {
        let before = now().mono_ns;
        let states = before.saturating_sub(self.states_ns) >= STATES_EVERY;
        let sampler = self.sampler.as_mut().ok_or(Changed)?;
        let mut sample = CountersSample::default();
        if wants.counters {
            for listed in &mut self.listed {
                listed
                    .read(sampler.nldev(), &mut sample.ports)
                    .map_err(|_| Changed)?;
            }
        }
        let mut devices = Vec::new();
        let mut qps = wants.qps.then(|| QpsSample {
            mono_ns: before,
            ..QpsSample::default()
        });
        if states || wants.qps || wants.objects {
            self.owners.forget();
            let busy = self.listed.iter().filter(|listed| !listed.rests()).count();
            let all = states || wants.objects || wants.repair || self.listed.len() <= FEW;
            // Together they cost a third less each.
            let all = all || busy > self.listed.len() / 2;
            let ask = || sampler.nldev().summaries().map_err(|_| Changed);
            let counts = all.then(ask).transpose()?;
            let want = Want {
                ports: states,
                skip_summary: true,
                mrs: wants.qps,
                ..Want::default()
            };
            for listed in self.listed.iter_mut().filter(|listed| all || !listed.rests()) {
                let device_index = listed.device().index;
                let count = match &counts {
                    Some(all) => all.items.iter().find(|c| c.device_index == device_index).cloned(),
                    None => sampler.nldev().summary(device_index).ok(),
                };
                let count = count.ok_or(Changed)?;
                let qp_count = count.get("qp");
                let device = sampler.again(listed.device().clone(), want, Some(count));
                sample
                    .changed
                    .extend(listed.again(&device).map_err(|()| Changed)?);
                devices.push(device);
                if let Some(qps) = &mut qps {
                    let nldev = sampler.nldev();
                    dump(nldev, &mut self.owners, listed, qp_count, qps).map_err(|_| Changed)?;
                }
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
}

/// Whether netlink's list has the device of a directory.
fn is_listed<'a>(mut devices: impl Iterator<Item = &'a Device>, dir: &OsStr) -> bool {
    devices.any(|device| device_dir(device.name.as_bytes()).is_some_and(|name| name == dir))
}

fn out_qps(qps: Option<QpsSample>, out: &mut dyn FnMut(Input)) {
    if let Some(qps) = qps {
        out(Input::Qps(Box::new(qps)));
    }
}

impl<T: Transport + Send> Source for DeviceSource<T> {
    fn name(&self) -> &'static str {
        "RDMA devices"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() || wants.only_processes {
            return;
        }
        if self.list_is_due() || self.again(wants, out).is_err() {
            self.list(wants, out);
        }
    }
}
