//! Devices: one generation each, independent of the present name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    flow::Flow,
    logged::{self, Errors},
    names::{self, Names},
    ports::Port,
    providers::Provider,
    psn::Passed,
    psn_batches::PortTotals,
};
use crate::{
    cause::{Cause, CauseId, Concerns},
    event::EventKind,
    ib::QpType,
    input::{
        CountersSample, DeviceReading, DevicesSample, EbpfState, LoggedError, OpenersSample, ReadAt, UNLISTED,
    },
    snapshot::{DeviceRow, DeviceState, NO_NUMBER, PortRow, count},
    value::Counter,
};
use rdmatop_base::order::{Gather as _, Ordered as _};
use rdmatop_base::{
    step::{ShellWord, step},
    text,
};

/// How long a search for who has a device open is taken for the present, ns: one is made each ten seconds.
const SEARCHED: u64 = 25_000_000_000;

/// Generations that ended and are remembered, for records that come late.
const ENDED: usize = 64;

/// One generation of a device: from `ib_register_device` to `ib_unregister_device`.
#[derive(Debug, Default)]
pub(super) struct Device {
    pub(super) uid: u64,
    pub(super) index: u32,
    pub(super) name: Arc<str>,
    guid: Option<u64>,
    /// When it was first seen. An older sample cannot show that it is gone.
    seen_ns: u64,
    /// The family of its driver.
    pub(super) provider: Provider,
    /// What a reading said, as views see it.
    row: DeviceRow,
    ports: BTreeMap<u32, Port>,
    errors: Errors,
    /// Who had it open when the open files of all processes were last looked at, by how many descriptors, and
    /// when that was; `None` if some could not be read, or a process has ended since.
    searched: Option<(u64, u64, Arc<[u32]>)>,
    /// What its QPs counted; `None` until one of them has a slot.
    pub(super) flow: Option<Box<Flow>>,
}

#[derive(Debug)]
struct EndedDevice {
    uid: u64,
    index: u32,
    seen_ns: u64,
    at_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Devices {
    by_index: BTreeMap<u32, Device>,
    gone: Vec<EndedDevice>,
    /// Generations whose name changed since the last snapshot.
    pub(super) renamed: BTreeSet<u64>,
    /// Why the kernel's log is not read; `None` before the first look.
    log: Option<Result<(), Cause>>,
    last_uid: u64,
    last_ns: u64,
}

impl Devices {
    /// Folds a reading of all devices in. Returns the generations that ended, and their names.
    pub(super) fn read(&mut self, sample: &mut DevicesSample, names: &mut Names) -> BTreeMap<u64, Arc<str>> {
        let mut gone = BTreeMap::new();
        if sample.mono_ns < self.last_ns {
            return gone;
        }
        self.last_ns = sample.mono_ns;
        self.recognize(&mut sample.devices, names);
        let listed: BTreeSet<u32> = sample.devices.iter().map(|reading| reading.index).gather();
        let missing: Vec<u32> = self
            .by_index
            .iter()
            .filter(|(index, device)| !listed.contains(index) && device.seen_ns <= sample.mono_ns)
            .map(|(index, _)| *index)
            .collect();
        for index in missing {
            gone.extend(self.end(index, sample.mono_ns));
        }
        for reading in std::mem::take(&mut sample.devices) {
            gone.extend(self.read_one(reading, sample.mono_ns, names));
        }
        gone
    }

    /// Readings without the kernel's index get that of a known device: the one with their name, or the only
    /// one that is known from work requests and is in no reading.
    fn recognize(&self, readings: &mut [DeviceReading], names: &mut Names) {
        let listed: BTreeSet<u32> = readings.iter().map(|reading| reading.index).gather();
        let unknown = readings
            .iter()
            .filter(|reading| reading.index >= UNLISTED)
            .count();
        let left = || {
            let known = self.by_index.values();
            known.filter(|device| device.index < UNLISTED && !listed.contains(&device.index))
        };
        for reading in readings.iter_mut().filter(|reading| reading.index >= UNLISTED) {
            let name = names.of(reading.name.as_bytes());
            let mut nameless = left().filter(|device| device.is_nameless());
            let only = nameless
                .next()
                .filter(|_| nameless.next().is_none() && unknown == 1);
            let same = left().find(|device| device.name == name);
            if let Some(known) = same.or(only) {
                reading.index = known.index;
            }
        }
    }

    /// One device of a reading. Returns the generation before it that ended, and its name.
    fn read_one(&mut self, reading: DeviceReading, at_ns: u64, names: &mut Names) -> Option<(u64, Arc<str>)> {
        let other = self.by_index.get(&reading.index).is_some_and(|device| {
            device
                .guid
                .zip(reading.node_guid)
                .is_some_and(|(before, now)| before != now)
        });
        let gone = if other {
            self.end(reading.index, at_ns)
        } else {
            None
        };
        let name = names.of(reading.name.as_bytes());
        let known = self.by_index.get_mut(&reading.index);
        if let Some(device) = known.filter(|device| device.name != name) {
            device.name = Arc::clone(&name);
            self.renamed.insert(device.uid);
        }
        let device = self.at(reading.index, at_ns, &name);
        if reading.held {
            device.hold(&reading);
            return gone;
        }
        device.guid = reading.node_guid.or(device.guid);
        let counters = reading.ports.iter().flat_map(|port| &port.counters);
        device.provider =
            Provider::of(reading.driver.as_deref(), &device.name).counting(counters.map(|raw| &*raw.name));
        let provider = device.provider;
        device.describe(&reading);
        let mut before = std::mem::take(&mut device.ports);
        for port in reading.ports {
            let mut kept = before.remove(&port.number).unwrap_or_default();
            let number = port.number;
            kept.read(&port, provider);
            device.ports.insert(number, kept);
        }
        gone
    }

    /// Folds counters in. A device that no reading has listed is gone or new: the next reading of all devices
    /// shows which of the two.
    pub(super) fn counted(&mut self, sample: CountersSample) {
        if sample.mono_ns < self.last_ns {
            return;
        }
        self.last_ns = sample.mono_ns;
        for reading in &sample.changed {
            if let Some(device) = self.by_index.get_mut(&reading.index) {
                device.describe(reading);
                for read in &reading.ports {
                    if let Some(port) = device.ports.get_mut(&read.number) {
                        port.describe(read);
                    }
                }
            }
        }
        for read in sample.ports {
            if let Some(device) = self.by_index.get_mut(&read.device_index)
                && let Some(port) = device.ports.get_mut(&read.number)
            {
                port.count(&read.counters, device.provider);
            }
        }
    }

    /// Counts each error for the devices that it names.
    pub(super) fn logged(&mut self, errors: Result<Vec<LoggedError>, Box<Cause>>, now_ns: u64) {
        let (errors, log) = match errors {
            Ok(errors) => (errors, Ok(())),
            Err(cause) => (Vec::new(), Err(*cause)),
        };
        self.log = Some(log);
        for error in &errors {
            for device in self.by_index.values_mut() {
                if logged::concerns(error, &device.name, device.row.pci.as_deref()) {
                    device.errors.add(error, now_ns);
                }
            }
        }
    }

    /// Why errors are not watched, where a device is that they could be of: those that SoftRoCE and soft
    /// iWARP log are no finding, see `findings/rules/nic.rs`.
    pub(super) fn log_note(&self) -> Option<&Cause> {
        let cause = self.log.as_ref()?.as_ref().err()?;
        let hardware = |device: &Device| device.row.pci.is_some() && !device.is_followed();
        self.by_index.values().any(hardware).then_some(cause)
    }

    /// On which devices `--hw-counters` sets nothing, because they are in other network namespaces.
    pub(super) fn uncounted_elsewhere(&self) -> impl Iterator<Item = Cause> {
        self.by_index.values().filter_map(|device| {
            let pid = device.row.netns_pid.filter(|_| device.row.driver.as_deref() == Some("mlx5_core"))?;
            Some(Cause {
                id: CauseId::NoBinding,
                concerns: Concerns::Device(device.name.to_string()),
                what: format!("No hardware counters by process on {}", device.name),
                why: format!("rdmatop sets none in the network namespace of another (PID {pid})"),
                remedy: step!(
                    "sudo nsenter -t {} -n rdma statistic qp set link {}/1 auto pid on   # rdmatop shows what it counts; auto off ends it",
                    pid,
                    ShellWord::device(&device.name)
                ),
            })
        })
    }

    /// The device of an index, made when it is new.
    fn at(&mut self, index: u32, seen_ns: u64, name: &Arc<str>) -> &mut Device {
        let last_uid = &mut self.last_uid;
        self.by_index.entry(index).or_insert_with(|| {
            *last_uid += 1;
            Device {
                uid: *last_uid,
                index,
                name: Arc::clone(name),
                seen_ns,
                row: nameless(*last_uid, index, name),
                ..Device::default()
            }
        })
    }

    fn end(&mut self, index: u32, at_ns: u64) -> Option<(u64, Arc<str>)> {
        let device = self.by_index.remove(&index)?;
        if self.gone.len() >= ENDED {
            self.gone.remove(0);
        }
        self.gone.push(EndedDevice {
            uid: device.uid,
            index,
            seen_ns: device.seen_ns,
            at_ns,
        });
        Some((device.uid, device.name))
    }

    /// The generation that had this index at `ts_ns`; one that no reading has listed yet is made, with `name`
    /// or, without one, its number.
    pub(super) fn resolve(&mut self, index: u32, name: Option<&Arc<str>>, ts_ns: u64) -> u64 {
        let now = self.by_index.get(&index);
        if let Some(device) = now.filter(|device| device.seen_ns <= ts_ns) {
            return device.uid;
        }
        // The record came late. Indexes start again when ib_core is loaded again.
        let late = |gone: &&EndedDevice| gone.index == index && ts_ns <= gone.at_ns;
        let mut late = self.gone.iter().rev().filter(late).peekable();
        let last = late.peek().map(|gone| gone.uid);
        let then = late.find(|gone| gone.seen_ns <= ts_ns).map(|gone| gone.uid);
        if let Some(uid) = then.or(now.map(|device| device.uid)).or(last) {
            return uid;
        }
        if let Some(uid) = self.adopt(index, name) {
            return uid;
        }
        let name = name.map_or_else(|| number_of(index), Arc::clone);
        self.at(index, ts_ns, &name).uid
    }

    /// The device that is being removed and whose index was not known until work requests showed it: the one
    /// with this name, or, without a name, the only one.
    fn adopt(&mut self, index: u32, name: Option<&Arc<str>>) -> Option<u64> {
        let mut all = self.by_index.range(UNLISTED..).map(|(at, device)| (*at, device));
        let at = match name {
            Some(name) => all.find(|(_, device)| device.name == *name)?.0,
            None => all.next().filter(|_| all.next().is_none())?.0,
        };
        let mut device = self.by_index.remove(&at)?;
        device.index = index;
        device.row.index = Some(index);
        let uid = device.uid;
        self.by_index.insert(index, device);
        Some(uid)
    }

    /// Returns the number that the kernel has for a QP of a device, or [`NO_NUMBER`]. The first QP of an EFA
    /// device has the number 0.
    pub(super) fn qp_number(&self, uid: u64, qpn: u32, qp_type: Option<QpType>) -> u32 {
        let may_lack = qpn == 0 && matches!(qp_type, Some(QpType::RAW_PACKET | QpType::DRIVER));
        let lacks = may_lack && self.get(uid).is_some_and(|device| device.row.is_of_mlx5());
        if lacks { NO_NUMBER } else { qpn }
    }

    /// How many objects a device may have of the kind whose creation was seen, and of one that has no
    /// records, as its driver said when it registered the device: `int` members of `ib_device.attrs`, and 0
    /// where the driver said nothing.
    pub(super) fn may_have(&mut self, uid: u64, made: EventKind, limits: [u32; 2]) {
        let Some(Device { row, .. }) = self.get_mut(uid) else {
            return;
        };
        let kinds: &mut [&mut Option<u64>] = match made {
            EventKind::QpCreate => &mut [&mut row.max_qp],
            EventKind::CqCreate => &mut [&mut row.max_cq, &mut row.max_pd],
            EventKind::MrReg => &mut [&mut row.max_mr, &mut row.max_srq],
            _ => return,
        };
        for (known, limit) in kinds.iter_mut().zip(limits) {
            let limit = i32::try_from(limit).ok().filter(|limit| *limit > 0);
            **known = limit.map(|limit| u64::from(limit.unsigned_abs())).or(**known);
        }
    }

    /// When a generation ended, if it has.
    pub(super) fn ended_ns(&self, uid: u64) -> Option<u64> {
        self.gone
            .iter()
            .find(|gone| gone.uid == uid)
            .map(|gone| gone.at_ns)
    }

    /// The drivers of the devices that a process has open, as far as that was asked.
    pub(super) fn opened_by(&self, pid: u32) -> impl Iterator<Item = Provider> {
        let open = move |device: &&Device| {
            let contexts = device.row.contexts.as_deref();
            contexts.is_some_and(|contexts| contexts.contains(&pid))
        };
        self.by_index.values().filter(open).map(|device| device.provider)
    }

    /// Whether the kernel does not list who has a device open on which there may be QPs that it does not list
    /// either: before Linux 5.14 it lists no contexts.
    pub(super) fn lacks_contexts(&self) -> bool {
        self.by_index.values().any(|device| {
            let row = &device.row;
            let is_read = row.state == Some(DeviceState::Registered) && !row.left_alone;
            is_read && row.contexts.is_none() && row.may_hide_qps()
        })
    }

    /// Takes over who has devices open, for those of which the kernel does not say it.
    pub(super) fn searched(&mut self, sample: &OpenersSample) {
        let whole = !sample.hidden && !sample.cut;
        for device in self.by_index.values_mut() {
            let own = sample
                .found
                .iter()
                .filter(|opener| *opener.device == *device.name);
            let pids = own.map(|opener| opener.pid).collect();
            let files = sample.files.get(&*device.name).copied().unwrap_or(0);
            device.searched = whole.then_some((sample.mono_ns, files, pids));
        }
    }

    /// A process ended. Others may have got one of its descriptors since the last search: of a device that it
    /// had open then, or of any if it made objects past the kernel.
    pub(super) fn may_be_left(&mut self, pid: u32, made: bool) {
        for device in self.by_index.values_mut() {
            device.searched.take_if(|(.., pids)| made || pids.contains(&pid));
        }
    }

    /// Whether a data path in the kernel counts a device's QPs, as of the last snapshot.
    pub(super) fn is_counted(&self, uid: u64) -> bool {
        self.get(uid).is_some_and(|device| device.row.datapath.is_some())
    }

    pub(super) fn get(&self, uid: u64) -> Option<&Device> {
        self.by_index.values().find(|device| device.uid == uid)
    }

    pub(super) fn get_mut(&mut self, uid: u64) -> Option<&mut Device> {
        self.by_index.values_mut().find(|device| device.uid == uid)
    }

    /// Packets of a port since this was last asked, for a dump that began at `began_ns`; `None` where they
    /// are not counted.
    pub(super) fn passed(&mut self, uid: u64, port: u32, began_ns: u64) -> Option<Passed> {
        self.get_mut(uid)?.ports.get_mut(&port)?.passed(began_ns)
    }

    pub(super) fn totals(&self, uid: u64, port: u32, now_ns: u64) -> Option<PortTotals> {
        self.get(uid)?.ports.get(&port)?.totals(now_ns)
    }

    pub(super) fn sent(&self, uid: u64, port: u32, now_ns: u64) -> Option<(u64, ReadAt)> {
        self.get(uid)?.ports.get(&port)?.sent(now_ns)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_index.values()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Device> {
        self.by_index.values_mut()
    }

    /// Rows in natural order of the names.
    pub(super) fn rows(
        &mut self,
        now_ns: u64,
        rates_are_fresh: bool,
        ebpf: &EbpfState,
    ) -> (Vec<DeviceRow>, Vec<PortRow>) {
        let mut sorted: Vec<&mut Device> = self.by_index.values_mut().collect();
        sorted.order_by(|a, b| text::natural(&a.name, &b.name).then(a.index.cmp(&b.index)));
        let mut ports = Vec::new();
        let mut rows = Vec::with_capacity(sorted.len());
        for device in sorted {
            let provider = device.provider;
            let counted = device.counted(provider, rates_are_fresh);
            device.row.datapath = match ebpf {
                EbpfState::On { datapaths } => provider.driver().and_then(|driver| datapaths.of(driver)),
                _ => None,
            };
            device
                .errors
                .show(matches!(self.log, Some(Ok(()))), &mut device.row);
            for port in device.ports.values_mut() {
                ports.push(port.row((device.uid, &device.name), counted, now_ns));
            }
            let mut row = device.row.clone();
            if row.contexts.is_none() {
                // Where there are more contexts than descriptors, somebody uses one without: by a mapping of
                // the file, or it is on its way in a socket.
                let holds = |(at_ns, files, _): &&(u64, u64, _)| {
                    now_ns.saturating_sub(*at_ns) < SEARCHED && row.ctxs.is_none_or(|ctxs| ctxs <= *files)
                };
                let searched = device.searched.as_ref().filter(holds);
                row.contexts = searched.map(|(.., pids)| Arc::clone(pids));
                row.searched = true;
            }
            rows.push(row);
        }
        (rows, ports)
    }
}

impl Device {
    /// Only work requests have shown it, and its name is not known.
    fn is_nameless(&self) -> bool {
        self.row.state.is_none() && self.name == number_of(self.index)
    }

    /// Takes over what a reading has of it.
    fn describe(&mut self, reading: &DeviceReading) {
        let count = |name: &str| reading.resources.get(name).copied();
        let state = if reading.removing {
            DeviceState::Removing
        } else {
            DeviceState::Registered
        };
        if reading.contexts.is_some() {
            self.searched = None;
        }
        self.row = DeviceRow {
            state: Some(state),
            node_guid: self.guid.map(names::guid),
            driver: names::safe_opt(reading.driver.as_ref()),
            fw_version: names::safe_opt(reading.fw_version.as_ref()),
            pci: names::safe_opt(reading.pci.as_ref()),
            numa_node: reading.numa_node,
            pci_path: Arc::clone(&reading.pci_path),
            pcie: reading.pcie,
            netns: reading.netns.as_ref().map(|netns| netns.inode),
            netns_pid: reading.netns.as_ref().map(|netns| netns.pid),
            netns_holder: names::safe_opt(reading.netns.as_ref().and_then(|netns| netns.holder.as_ref())),
            qps: count("qp"),
            cqs: count("cq"),
            mrs: count("mr"),
            pds: count("pd"),
            cm_ids: count("cm_id"),
            ctxs: count("ctx"),
            srqs: count("srq"),
            max_qp: self.row.max_qp,
            max_cq: self.row.max_cq,
            max_mr: self.row.max_mr,
            max_pd: self.row.max_pd,
            max_srq: self.row.max_srq,
            contexts: reading.contexts.as_deref().map(Arc::from),
            followed: self.is_followed(),
            datapath: None,
            hidden: self.provider.hidden(),
            ..nameless(self.uid, self.index, &self.name)
        };
    }

    /// Takes over that it is there.
    fn hold(&mut self, reading: &DeviceReading) {
        if self.row.state.is_none() {
            self.describe(reading);
        }
        self.row.name = Arc::clone(&self.name);
        self.row.left_alone = reading.left_alone;
        if reading.removing {
            self.row.state = Some(DeviceState::Removing);
        }
    }

    /// The processes that have it open, as the kernel lists them; `None` if it does not, or was not asked.
    pub(super) fn contexts(&self) -> Option<&[u32]> {
        self.row.contexts.as_deref()
    }

    /// Whether programs count what its QPs do.
    pub(super) fn is_followed(&self) -> bool {
        self.provider.driver().is_some()
    }

    /// What its QPs counted, as its port's. Only SoftRoCE's QPs are counted completely, and only for a device
    /// with one port is the port of a QP certain.
    fn counted(&self, provider: Provider, rates_are_fresh: bool) -> [Option<Counter>; 3] {
        let flow = self.flow.as_ref().and_then(|flow| flow.whole());
        let flow = flow.filter(|_| provider == Provider::Rxe && self.ports.len() == 1);
        [count::TX_BYTES, count::RX_BYTES, count::RETRANSMITS]
            .map(|count| flow?.known(count, rates_are_fresh))
    }
}

/// A placeholder for the name of a device of which only the index is known.
fn number_of(index: u32) -> Arc<str> {
    format!("#{index}").into()
}

fn nameless(uid: u64, index: u32, name: &Arc<str>) -> DeviceRow {
    DeviceRow {
        uid,
        index: (index < UNLISTED).then_some(index),
        name: Arc::clone(name),
        ..DeviceRow::default()
    }
}
