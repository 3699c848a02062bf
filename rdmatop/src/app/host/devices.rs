//! Devices, ports and QPs: RDMA netlink for what changes, sysfs for what netlink does not tell.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::{OsStr, OsString},
    sync::Arc,
};

use crate::{
    app::{
        source::{Source, Wants},
        time::now,
    },
    model::{
        ib::{PhysState, PortState, QpState, QpType},
        input::{
            DeviceReading, DevicesSample, Input, PortReading, QpReading, QpsSample, RawReading, RawSource,
        },
    },
    source::{
        netlink::{
            client::Nldev,
            record::{DeviceKey, HwCounter, Mr, Owner, Qp},
            sample::{DeviceSample, NetlinkSample, PortSample},
            sampler::{Sampler, Want, WantQps},
            socket::Socket,
        },
        root::Root,
        sysfs::{CounterFiles, CounterGroup, DeviceFacts, device_dir, read_device, read_netdev},
    },
    text,
};

/// Rounds after which sysfs facts of a device are read again: speed, MTU and the like move rarely.
const FACTS_EVERY: u64 = 30;

/// What is kept of a device between rounds.
struct Known {
    facts: Option<DeviceFacts>,
    read_in: u64,
    mtus: HashMap<u32, u32>,
    /// Open counter files by port: `counters/`, and `hw_counters/` where netlink does not serve them.
    files: HashMap<u32, Vec<CounterFiles>>,
}

/// Reads devices, and QPs when they are wanted.
pub struct DeviceSource {
    root: Root,
    sampler: Option<Sampler<Socket>>,
    known: HashMap<DeviceKey, Known>,
    names: HashMap<Box<str>, Arc<str>>,
    /// Process of each thread that netlink named: it may name the thread that made a resource.
    processes: HashMap<u32, u32>,
}

impl DeviceSource {
    /// Reads under `root`; netlink is opened on the first round and again after a failure.
    pub fn new(root: Root) -> Self {
        Self {
            root,
            sampler: None,
            known: HashMap::new(),
            names: HashMap::new(),
            processes: HashMap::new(),
        }
    }

    fn sample(&mut self, wants: &Wants) -> Result<NetlinkSample, String> {
        if self.sampler.is_none() {
            self.sampler = Some(Sampler::new(Nldev::open().map_err(|error| error.to_string())?));
        }
        let want = Want {
            ports: true,
            counters: wants.counters,
            qps: if wants.qps { WantQps::Now } else { WantQps::Never },
            // MR sizes of processes that were there before us: once, and again with each repair.
            mrs: wants.qps,
            ..Want::default()
        };
        let sampler = self.sampler.as_mut().ok_or("no netlink socket")?;
        let sample = sampler.sample(want);
        if sample.devices.is_err() {
            self.sampler = None;
        }
        Ok(sample)
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let shared: Arc<str> = name.into();
        self.names.insert(name.into(), Arc::clone(&shared));
        shared
    }

    fn device(&mut self, sample: &DeviceSample, round: u64) -> DeviceReading {
        let key = sample.device.key();
        let dir = device_dir(sample.device.name.as_bytes());
        self.refresh(&key, dir.as_deref(), round, sample);
        let facts = self.known.get(&key).and_then(|known| known.facts.clone());
        let mut reading = DeviceReading {
            index: sample.device.index,
            name: text::sanitize(sample.device.name.as_bytes()),
            node_guid: sample.device.node_guid.map(|guid| guid.0),
            driver: facts.as_ref().and_then(driver),
            fw_version: sample.device.firmware.as_deref().map(str::to_owned),
            pci: facts.as_ref().and_then(|f| Some(f.pci.as_ref()?.address.clone())),
            numa_node: facts
                .as_ref()
                .and_then(|f| i32::try_from(f.pci.as_ref()?.numa_node?).ok()),
            resources: BTreeMap::new(),
            mr_bytes: sample
                .mrs
                .as_ref()
                .and_then(|mrs| mrs.as_ref().ok())
                .map(|mrs| self.mr_bytes(&mrs.items)),
            ports: Vec::with_capacity(sample.ports.len()),
        };
        if let Some(Ok(summary)) = &sample.summary {
            let counts = summary.counts.iter();
            reading.resources = counts
                .map(|c| (text::sanitize(c.name.as_bytes()), c.count))
                .collect();
        }
        for port in &sample.ports {
            reading.ports.push(self.port(&key, facts.as_ref(), port));
        }
        reading
    }

    /// Reads sysfs facts when they are due.
    fn refresh(&mut self, key: &DeviceKey, dir: Option<&OsStr>, round: u64, sample: &DeviceSample) {
        if self
            .known
            .get(key)
            .is_some_and(|known| round < known.read_in + FACTS_EVERY)
        {
            return;
        }
        let facts = dir.and_then(|dir| read_device(&self.root, dir));
        let mut mtus = HashMap::new();
        for port in facts.iter().flat_map(|f| &f.ports) {
            let mtu = port
                .netdev
                .as_deref()
                .and_then(|netdev| read_netdev(&self.root, netdev)?.mtu);
            if let Some(mtu) = mtu.and_then(|mtu| u32::try_from(mtu).ok()) {
                mtus.insert(port.port, mtu);
            }
        }
        let mut files = HashMap::new();
        for port in &sample.ports {
            let dir: OsString = dir.unwrap_or_default().to_owned();
            let mut open = vec![CounterFiles::open(
                &self.root,
                &dir,
                port.port,
                CounterGroup::Port,
            )];
            // A driver without the netlink statistic still has its files.
            if !matches!(port.counters, Some(Ok(_)) | None) {
                open.push(CounterFiles::open(
                    &self.root,
                    &dir,
                    port.port,
                    CounterGroup::Hardware,
                ));
            }
            files.insert(port.port, open);
        }
        self.known.insert(
            key.clone(),
            Known {
                facts,
                read_in: round,
                mtus,
                files,
            },
        );
    }

    fn port(&mut self, key: &DeviceKey, facts: Option<&DeviceFacts>, sample: &PortSample) -> PortReading {
        let info = sample.info.as_ref().and_then(|info| info.as_ref().ok());
        let facts = facts.and_then(|f| f.ports.iter().find(|p| p.port == sample.port));
        let mut counters = Vec::new();
        if let Some(Ok(list)) = &sample.counters {
            for HwCounter { name, value } in list {
                counters.push(RawReading {
                    name: self.name(name),
                    value: *value,
                    source: RawSource::Netlink,
                });
            }
        }
        let from_files: Vec<_> = self
            .known
            .get(key)
            .and_then(|known| known.files.get(&sample.port))
            .into_iter()
            .flatten()
            .flat_map(CounterFiles::read)
            .collect();
        for counter in from_files {
            counters.push(RawReading {
                name: self.name(&counter.name),
                value: counter.value,
                source: RawSource::Sysfs,
            });
        }
        let netdev = info.and_then(|i| i.netdev.as_ref()?.name.as_ref());
        PortReading {
            number: sample.port,
            state: info.and_then(|i| i.state).map(|state| PortState(state.number())),
            phys_state: info
                .and_then(|i| i.phys_state)
                .map(|state| PhysState(state.number())),
            link_layer: facts.and_then(|f| f.link_layer.clone()),
            netdev: netdev
                .map(|name| text::sanitize(name.as_bytes()))
                .or_else(|| facts.and_then(|f| f.netdev.clone())),
            netdev_mtu: self
                .known
                .get(key)
                .and_then(|known| known.mtus.get(&sample.port).copied()),
            rate_bps: facts.and_then(|f| f.rate.as_ref()?.honest_bits_per_sec()),
            counters,
        }
    }

    fn mr_bytes(&mut self, mrs: &[Mr]) -> BTreeMap<u32, u64> {
        let mut sums = BTreeMap::new();
        for mr in mrs {
            if let (Some(pid), Some(bytes)) = (mr.owner.as_ref().and_then(Owner::pid), mr.bytes) {
                *sums.entry(self.process(pid)).or_insert(0) += bytes;
            }
        }
        sums
    }

    /// The process that a thread belongs to; itself when /proc does not tell.
    fn process(&mut self, tid: u32) -> u32 {
        if let Some(pid) = self.processes.get(&tid) {
            return *pid;
        }
        let status = self
            .root
            .bytes(&self.root.proc(format!("{tid}/status")), 16 << 10);
        let pid = status
            .and_then(|raw| crate::source::proc::Status::parse(&raw).tgid)
            .unwrap_or(tid);
        self.processes.insert(tid, pid);
        pid
    }

    fn qp(&mut self, device_index: u32, qp: &Qp) -> QpReading {
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
                .map(|tid| self.process(tid)),
            kern_name: match &qp.owner {
                Some(Owner::Kernel(name)) => Some(text::sanitize(name.as_bytes())),
                _ => None,
            },
        }
    }

    fn qps(&mut self, mono_ns: u64, devices: &[DeviceSample]) -> QpsSample {
        // Numbers are reused: what was learnt of threads holds for one dump.
        self.processes.clear();
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
                    for qp in &dump.items {
                        let reading = self.qp(device.device.index, qp);
                        out.qps.push(reading);
                    }
                }
                Some(Err(error)) => out.errors.push(error.to_string()),
                None => {}
            }
        }
        out
    }
}

/// The driver's name; rxe and siw have no driver link, their modules are known.
fn driver(facts: &DeviceFacts) -> Option<String> {
    facts
        .driver
        .clone()
        .or_else(|| (facts.software && facts.parent_netdev.is_some()).then(|| "rdma_rxe".to_owned()))
}

impl Source for DeviceSource {
    fn name(&self) -> &'static str {
        "RDMA devices"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() {
            return;
        }
        let before = now().mono_ns;
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
        let devices = sample.devices.unwrap_or_default();
        self.known
            .retain(|key, _| devices.iter().any(|d| d.device.key() == *key));
        let readings = devices.iter().map(|d| self.device(d, wants.round)).collect();
        let mono_ns = now().mono_ns;
        out(Input::Devices(Box::new(DevicesSample {
            mono_ns,
            devices: readings,
            errors,
        })));
        if wants.qps {
            let qps = self.qps(before, &devices);
            out(Input::Qps(Box::new(qps)));
        }
    }
}
