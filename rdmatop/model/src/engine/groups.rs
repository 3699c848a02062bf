//! Counters of NICs that QPs are bound to (`rdma statistic qp`), and what they say of processes.
//!
//! A counter goes with the last of its QPs, and what it counted since its last reading goes with it. So what
//! a process had counted stays in its sum, and the sum is a lower bound from then on.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::{
    devices::Devices,
    machine::Machine,
    meter::Meter,
    others::{Counted, OnPort},
    programs::Programs,
    providers::Provider,
    psn_batches::Place,
    qp::{Key, Qp},
    qps::Qps,
};
use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    ib::QpState,
    input::{DeviceGroups, GroupReading, HwCountersReport, HwPort, RawSource, ReadAt},
    snapshot::{CounterGroup, NamedCounter, Traffic},
    value::{Counter, Source},
};
use rdmatop_base::order::{Gather as _, Ordered as _};

/// Names of mlx5 for what QPs send and receive, in the places of [`Sum`].
const TX_BYTES: &str = "rdma_tx_bytes";
const RX_BYTES: &str = "rdma_rx_bytes";
const TX_PACKETS: &str = "rdma_tx_packets";
/// How many QP numbers and causes a line names.
const NAMED: usize = 8;

/// A counter of a device.
#[derive(Debug)]
struct Group {
    device: u64,
    id: u32,
    port: u32,
    mode: Arc<str>,
    process: Option<u64>,
    /// The last reading said so of all its QPs.
    is_its: bool,
    qps: Arc<[u32]>,
    counters: Vec<(Arc<str>, Meter)>,
}

impl Group {
    /// Not all drivers count the bytes of QPs, and one process may have QPs on devices of several.
    fn counts_bytes(&self) -> bool {
        let has = |wanted: &str| self.counters.iter().any(|(name, _)| **name == *wanted);
        has(TX_BYTES) && has(RX_BYTES)
    }

    fn counter(&self, name: &str, now_ns: u64) -> Option<Counter> {
        let mut counters = self.counters.iter();
        let (_, meter) = counters.find(|(known, _)| **known == *name)?;
        Some(meter.counter(Source::Hw, now_ns))
    }

    /// What it has counted of what was sent, if the NIC counts both.
    fn counted(&self, now_ns: u64) -> Option<Counted> {
        let of = |name| Some(self.counter(name, now_ns)?.total);
        Some(Counted {
            bytes: of(TX_BYTES)?,
            packets: of(TX_PACKETS)?,
        })
    }
}

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// What counters that are gone had counted of each process, by name.
    gone: HashMap<u64, BTreeMap<Arc<str>, u64>>,
    /// QPs that are bound, by device and number, and whether the counter counts packets.
    bound: HashMap<(u64, u32), bool>,
    /// When the counters of a device were last read.
    read_at: BTreeMap<u64, ReadAt>,
    pub(super) hw_counters: Option<Arc<HwCountersReport>>,
}

/// What the NIC has counted of a process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    pub(super) tx_bytes: Option<Counter>,
    pub(super) rx_bytes: Option<Counter>,
    tx_packets: Option<Counter>,
    /// Its rates are of all QPs. Its totals may still be lower bounds, for what was counted before.
    rates_are_whole: bool,
}

impl Sum {
    /// Rates of both directions, where they are of all QPs.
    pub(super) fn rates(self) -> [Option<f64>; 2] {
        [self.tx_bytes, self.rx_bytes].map(|counter| counter.filter(|_| self.rates_are_whole)?.rate)
    }

    /// Writes what is counted in the place of what is not known, or not of all QPs.
    pub(super) fn take_place(self, traffic: &mut Traffic) {
        for (place, counted) in [
            (&mut traffic.tx_bytes, self.tx_bytes),
            (&mut traffic.rx_bytes, self.rx_bytes),
            (&mut traffic.tx_packets, self.tx_packets),
        ] {
            if counted.is_some_and(|counted| place.is_none() || !counted.partial) {
                *place = counted;
            }
        }
    }
}

impl Groups {
    /// Folds in readings of the counters of devices.
    pub(super) fn apply(&mut self, read: Vec<DeviceGroups>, machine: &mut Machine, programs: &Programs) {
        let foreign_pids = programs.has_foreign_pids();
        for device in read {
            self.read(device, machine, foreign_pids);
        }
        self.gone
            .retain(|process, _| machine.processes.get(*process).is_some());
    }

    /// What `--hw-counters` has changed, and why something is not counted.
    pub(super) fn hw_counters_notes(&self) -> Vec<Cause> {
        let Some(report) = &self.hw_counters else {
            return Vec::new();
        };
        let place = |port: &HwPort| format!("{}/{}", port.device, port.port);
        let listed = |places: Vec<String>| match places.len().saturating_sub(NAMED) {
            0 => places.join(", "),
            more => format!("{} and {more} more", places[..NAMED].join(", ")),
        };
        let set: Vec<String> = report.ports.iter().filter(|port| port.set).map(place).collect();
        let mut notes = Vec::new();
        let any = !set.is_empty();
        if any {
            let why = format!(
                "rdmatop has set mode auto,pid on {}: queue pairs made since are counted by process; it is taken back at the end",
                listed(set)
            );
            notes.push(
                Obstacle::new(CauseId::CountersSet, why, "")
                    .takes("Hardware counters are on", Concerns::Host),
            );
        }
        let mut refused: Vec<(&Cause, Vec<String>)> = Vec::new();
        for port in &report.ports {
            // Where some port counts, that a driver of another kind cannot is no news.
            let why = port.why.as_deref();
            let Some(why) = why.filter(|why| !(any && why.id == CauseId::NoBinding)) else {
                continue;
            };
            let like = |known: &&mut (&Cause, Vec<String>)| known.0.reason() == why.reason();
            match refused.iter_mut().find(like) {
                Some((_, places)) => places.push(place(port)),
                None => refused.push((why, vec![place(port)])),
            }
        }
        notes.extend(refused.into_iter().map(|(why, places)| Cause {
            what: format!("No hardware counters by process on {}", listed(places)),
            ..why.clone()
        }));
        notes.extend(report.failed.as_deref().cloned());
        notes
    }

    /// Whether the NIC counts the packets of a QP.
    pub(super) fn counts_packets_of(&self, key: &Key) -> bool {
        self.bound.get(&(key.device, key.qpn)) == Some(&true)
    }

    /// Processes with a QP that has been there for a reading and is bound to no counter. In RESET it sends
    /// nothing, and is bound when it leaves it.
    pub(super) fn uncovered(&self, qps: &Qps) -> BTreeSet<u64> {
        if self.all.is_empty() && self.gone.is_empty() {
            return BTreeSet::new();
        }
        let uncovered = |qp: &&Qp| {
            let read_at = self.read_at.get(&qp.key.device);
            let read_ns = read_at.map_or(u64::MAX, |at| at.mono_ns);
            qp.lives()
                && qp.first_ns < read_ns
                && qp.row().state != Some(QpState(0))
                && !self.bound.contains_key(&(qp.key.device, qp.key.qpn))
        };
        qps.iter().filter(uncovered).filter_map(Qp::process).gather()
    }

    /// What was counted of a process; `None` where none of its QPs is or was bound.
    pub(super) fn sum(&self, process: u64, now_ns: u64, uncovered: bool) -> Option<Sum> {
        let gone = self.gone.get(&process);
        let own = self.all.iter().filter(|group| group.process == Some(process));
        let own: Vec<_> = own.collect();
        if own.is_empty() && gone.is_none() {
            return None;
        }
        let sum = |name: &str| {
            let past = gone.and_then(|gone| gone.get(name)).copied();
            let parts = || own.iter().map(|group| group.counter(name, now_ns));
            let present = parts().flatten().reduce(Counter::plus);
            let sum = present.or(past.map(|_| Counter::whole(0, None, Source::Hw)))?;
            let missing = parts().any(|part| part.is_none());
            Some(Counter {
                total: sum.total.saturating_add(past.unwrap_or(0)),
                partial: sum.partial || uncovered || missing || past.is_some(),
                ..sum
            })
        };
        Some(Sum {
            tx_bytes: sum(TX_BYTES),
            rx_bytes: sum(RX_BYTES),
            tx_packets: sum(TX_PACKETS),
            rates_are_whole: !uncovered && own.iter().all(|group| group.counts_bytes()),
        })
    }

    /// What was counted of processes on each port, with the time of the reading.
    pub(super) fn on_ports(&self, now_ns: u64) -> BTreeMap<Place, (ReadAt, OnPort)> {
        let mut ports: BTreeMap<Place, (ReadAt, OnPort)> = BTreeMap::new();
        for group in self.all.iter().filter(|group| group.is_its) {
            let known = group.process.zip(group.counted(now_ns));
            if let (Some((process, counted)), Some(at)) = (known, self.read_at.get(&group.device)) {
                let port = ports.entry((group.device, group.port));
                let (_, of_port) = port.or_insert_with(|| (*at, OnPort::new()));
                of_port.insert((process, group.id), counted);
            }
        }
        ports
    }

    pub(super) fn rows(&self, process: u64, devices: &Devices, now_ns: u64) -> Vec<CounterGroup> {
        let own = self.all.iter().filter(|group| group.process == Some(process));
        let row = |group: &Group| {
            let device = devices.get(group.device);
            let counter = |(name, meter): &(Arc<str>, Meter)| NamedCounter {
                name: Arc::clone(name),
                unit_bytes: None,
                help: device.and_then(|device| device.provider.entry(RawSource::Netlink, name).meaning()),
                counter: meter.counter(Source::Hw, now_ns),
            };
            CounterGroup {
                device: device.map_or_else(|| "?".into(), |device| Arc::clone(&device.name)),
                port: group.port,
                id: group.id,
                mode: Arc::clone(&group.mode),
                qps: Arc::clone(&group.qps),
                counters: group.counters.iter().map(counter).collect(),
            }
        };
        own.map(row).collect()
    }

    /// Takes over the counters of a device.
    fn read(&mut self, read: DeviceGroups, machine: &mut Machine, foreign_pids: bool) {
        let at = read.at;
        let device = machine.devices.resolve(read.device_index, None, at.mono_ns);
        let known = machine.devices.get(device);
        let provider = known.map_or(Provider::Other, |device| device.provider);
        let last = self.read_at.entry(device).or_default();
        if at.mono_ns <= last.mono_ns {
            return;
        }
        *last = at;
        let (mut before, others): (Vec<Group>, Vec<Group>) = std::mem::take(&mut self.all)
            .into_iter()
            .partition(|group| group.device == device);
        self.all = others;
        for reading in read.groups {
            let process = owner_of(machine, device, &reading, foreign_pids, at.mono_ns);
            let names = &mut machine.names;
            let same = |group: &Group| {
                group.id == reading.id
                    && group.port == reading.port
                    && (group.process == process || group.process.is_none() || process.is_none())
            };
            let mut group = match before.iter().position(same) {
                Some(known) => before.swap_remove(known),
                None => Group {
                    device,
                    id: reading.id,
                    port: reading.port,
                    mode: names.of(reading.mode.as_bytes()),
                    process,
                    is_its: false,
                    qps: Arc::default(),
                    counters: Vec::new(),
                },
            };
            group.process = process.or(group.process);
            group.is_its = process.is_some();
            if *group.qps != *reading.qps {
                group.qps = reading.qps.into();
            }
            for (name, value) in reading.counters {
                let name = names.of(name.as_bytes());
                let width = provider.entry(RawSource::Netlink, &name).width;
                match group.counters.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, meter)) => meter.read(value, at, width),
                    None => group.counters.push((name, Meter::first(value, at, width))),
                }
            }
            self.all.push(group);
        }
        for group in before {
            self.end(&group, at.mono_ns);
        }
        self.all.order_by_key(|group| (group.device, group.id));
        self.index();
    }

    /// A counter is gone: what it had counted stays its process's.
    fn end(&mut self, group: &Group, now_ns: u64) {
        let Some(process) = group.process else { return };
        let totals = self.gone.entry(process).or_default();
        for (name, meter) in &group.counters {
            let sum = totals.entry(Arc::clone(name)).or_default();
            *sum = sum.saturating_add(meter.counter(Source::Hw, now_ns).total);
        }
    }

    fn index(&mut self) {
        self.bound.clear();
        for group in &self.all {
            let packets = group.counters.iter().any(|(name, _)| **name == *TX_PACKETS);
            for qpn in group.qps.iter() {
                *self.bound.entry((group.device, *qpn)).or_default() |= packets;
            }
        }
    }
}

/// The process whose QPs are bound to a counter: the kernel names it where it binds by process; otherwise the
/// owner of all its QPs.
fn owner_of(
    machine: &mut Machine,
    device: u64,
    group: &GroupReading,
    foreign_pids: bool,
    at_ns: u64,
) -> Option<u64> {
    if let Some(pid) = group.pid.filter(|_| !foreign_pids) {
        return Some(machine.processes.user(pid, None, at_ns));
    }
    let of = |qpn: &u32| {
        let uid = machine.qps.live(Key::new(device, *qpn, Some(group.port)))?;
        machine.qps.get(uid)?.process()
    };
    let mut owners = group.qps.iter().map(of);
    let first = owners.next()??;
    owners.all(|owner| owner == Some(first)).then_some(first)
}
