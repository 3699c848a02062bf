//! The facts of all processes of a job, in one picture.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    fact::{self, Fact, Hca, Via, Way},
    line::{Level, Line, Writer},
    perf::Perf,
    warning::{self, Meaning},
};

/// The largest number of processes; a log of a larger job, or of something else, is cut, and the report says so.
const PROCESSES: usize = 65_536;
/// Kinds of warning kept.
const WARNINGS: usize = 64;
/// Names kept of each list of one process.
const NAMES: usize = 256;
/// NICs kept, of all hosts: 4,096 hosts with 16 each.
const NICS: usize = 65_536;
/// Bytes of text kept of all processes. A process of a job logs some 4 KiB of what is kept.
const KEPT: usize = 256 << 20;
/// Processes of a host that are asked for the name of a NIC. Each process of a job lists all NICs of its host.
const ASKED: usize = 256;

/// What one process logged.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Its ranks, and whether each has joined.
    pub ranks: BTreeMap<u32, bool>,
    /// Ranks of the job.
    pub of: Option<u32>,
    /// The network it chose.
    pub network: Option<String>,
    /// NICs of the transport IB.
    pub hcas: Vec<Hca>,
    /// The transport IB found none.
    pub no_hca: bool,
    /// Interfaces of the transport Socket.
    pub interfaces: Vec<String>,
    /// GPUDirect RDMA by number of the NIC: usable, its name, why not.
    pub gpu_direct: BTreeMap<u32, (bool, Option<String>, Option<String>)>,
    /// Variables that it reported to have read.
    pub variables: BTreeMap<String, String>,
    /// The network plugin it loaded.
    pub plugin: Option<String>,
    /// Why it loaded none.
    pub no_plugin: Option<String>,
    /// libfabric's provider.
    pub provider: Option<String>,
    /// Its known warnings.
    pub warnings: BTreeSet<&'static str>,
    /// Numbers of the logs that have lines of it; see [`Report::begin`].
    pub inputs: BTreeSet<u32>,
}

/// Connections of one NIC, or of one interface of a network, of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Use {
    /// Connections that send.
    pub sends: u64,
    /// Connections that receive.
    pub receives: u64,
    /// Of both, those with GPUDirect RDMA.
    pub gpu_direct: u64,
}

/// A NIC of a host, by the network's name and its number there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicKey {
    /// Host.
    pub host: String,
    /// Network.
    pub network: String,
    /// Number.
    pub device: u32,
}

/// A warning, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its meaning, where known.
    pub meaning: Option<Meaning>,
    /// The words of the first one.
    pub text: String,
    /// How often.
    pub count: u64,
    /// The processes that wrote it.
    pub hosts: BTreeSet<String>,
    /// RDMA devices that it names, with their host.
    pub devices: BTreeSet<(String, String)>,
}

/// Everything.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Logs begun before the present one.
    pub input: u32,
    /// Lines read.
    pub lines: u64,
    /// Of these, NCCL's.
    pub nccl_lines: u64,
    /// Libraries and versions.
    pub versions: BTreeSet<String>,
    /// Processes.
    pub processes: BTreeMap<Writer, Process>,
    /// Lines of processes and NICs beyond the limits.
    pub left_out: u64,
    /// Bytes of text that were taken into [`Self::processes`], those that a later line replaced too.
    kept: usize,
    /// NICs with connections over a network.
    pub nics: BTreeMap<NicKey, Use>,
    /// Connections inside hosts.
    pub local: u64,
    /// Connections to in-network reduction.
    pub collnet: u64,
    /// Channels of the widest ring.
    pub channels: Option<u32>,
    /// Bandwidth of NICs in NCCL's topology, GB/s.
    pub nic_speed: BTreeMap<u32, f64>,
    /// Warnings, in the order of their first line.
    pub warnings: Vec<Warning>,
    /// Warnings of kinds beyond the limit.
    pub warnings_left_out: u64,
    /// nccl-tests.
    pub perf: Perf,
}

impl Report {
    /// The lines that follow are of the log of this number.
    pub fn begin(&mut self, input: u32) {
        self.input = input;
    }

    /// Takes one line.
    pub fn line(&mut self, bytes: &[u8]) {
        self.lines += 1;
        match Line::read(bytes) {
            Line::Plain(text) => {
                self.perf.line(&text);
                if let Some(Fact::Version(version)) = fact::plain(&text) {
                    self.version(version);
                }
            }
            Line::Nccl { writer, level, text } => {
                self.nccl_lines += 1;
                if !self.processes.contains_key(&writer) && self.processes.len() >= PROCESSES {
                    self.left_out += 1;
                    return;
                }
                if level == Level::Warn {
                    self.warn(&writer, &text);
                }
                let input = self.input;
                let process = self.processes.entry(writer.clone()).or_default();
                if process.inputs.len() < NAMES {
                    process.inputs.insert(input);
                }
                let Some(fact) = fact::of(&text) else { return };
                if fact.is_of_process() {
                    self.kept += text.len();
                    if self.kept > KEPT {
                        self.left_out += 1;
                    } else {
                        process.take(&fact);
                    }
                } else {
                    self.take(&writer, fact);
                }
            }
        }
    }

    fn version(&mut self, version: String) {
        if self.versions.len() < NAMES {
            self.versions.insert(version);
        }
    }

    fn warn(&mut self, writer: &Writer, text: &str) {
        let meaning = warning::meaning(text);
        if let (Some(meaning), Some(process)) = (meaning, self.processes.get_mut(writer)) {
            process.warnings.insert(meaning.id);
        } else if let Some(meaning) = meaning {
            let process = Process {
                warnings: BTreeSet::from([meaning.id]),
                ..Process::default()
            };
            self.processes.insert(writer.clone(), process);
        }
        let same = |known: &Warning| match (known.meaning, meaning) {
            (Some(a), Some(b)) => a == b,
            (None, None) => known.text == text,
            _ => false,
        };
        let at = self.warnings.iter().position(same);
        let at = match at {
            Some(at) => at,
            None if self.warnings.len() >= WARNINGS => {
                self.warnings_left_out += 1;
                return;
            }
            None => {
                self.warnings.push(Warning {
                    meaning,
                    text: text.to_owned(),
                    count: 0,
                    hosts: BTreeSet::new(),
                    devices: BTreeSet::new(),
                });
                self.warnings.len() - 1
            }
        };
        if let Some(warning) = self.warnings.get_mut(at) {
            warning.count += 1;
            if warning.hosts.len() < NAMES {
                warning.hosts.insert(writer.host.clone());
            }
            if let Some(device) = warning::device(text)
                && warning.devices.len() < NAMES
            {
                warning.devices.insert((writer.host.clone(), device.to_owned()));
            }
        }
    }

    fn take(&mut self, writer: &Writer, fact: Fact) {
        match fact {
            Fact::Version(version) => self.version(version),
            Fact::Channels(count) => self.channels = self.channels.max(Some(count)),
            Fact::NicSpeed { device, gigabytes } if self.nic_speed.len() < NAMES => {
                self.nic_speed.insert(device, gigabytes);
            }
            Fact::Channel { way, via, .. } => match via {
                Via::Net {
                    name,
                    device,
                    gpu_direct,
                } => {
                    let key = NicKey {
                        host: writer.host.clone(),
                        network: name,
                        device,
                    };
                    if self.nics.len() >= NICS && !self.nics.contains_key(&key) {
                        self.left_out += 1;
                        return;
                    }
                    let nic = self.nics.entry(key).or_default();
                    match way {
                        Way::Receive => nic.receives += 1,
                        Way::Send | Way::Local => nic.sends += 1,
                    }
                    nic.gpu_direct += u64::from(gpu_direct);
                }
                Via::CollNet { .. } => self.collnet += 1,
                Via::Peer | Via::Memory => self.local += 1,
            },
            _ => {}
        }
    }

    /// Hosts, in order.
    pub fn hosts(&self) -> BTreeSet<&str> {
        self.processes.keys().map(|writer| writer.host.as_str()).collect()
    }

    /// Processes of a host.
    pub fn on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Process> {
        let first = Writer {
            host: host.to_owned(),
            pid: 0,
        };
        let ours = move |(writer, _): &(&Writer, &Process)| writer.host == host;
        let from_first = self.processes.range(first..);
        from_first.take_while(ours).map(|(_, process)| process)
    }

    /// As many processes of a host as are asked what each of them lists: NICs of the host.
    pub fn some_on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Process> {
        self.on(host).take(ASKED)
    }

    /// NICs of a host with connections.
    pub fn nics_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = (&'a NicKey, &'a Use)> {
        let first = NicKey {
            host: host.to_owned(),
            network: String::new(),
            device: 0,
        };
        self.nics
            .range(first..)
            .take_while(move |(nic, _)| nic.host == host)
    }

    /// Ranks that have joined, ranks seen, and ranks of the job.
    pub fn ranks(&self) -> (usize, usize, Option<u32>) {
        let mut all: BTreeMap<u32, bool> = BTreeMap::new();
        for (rank, joined) in self.processes.values().flat_map(|process| &process.ranks) {
            *all.entry(*rank).or_default() |= joined;
        }
        let of = self.processes.values().filter_map(|process| process.of).max();
        (all.values().filter(|joined| **joined).count(), all.len(), of)
    }

    /// The NICs of the transport IB that processes of a host listed.
    pub fn hcas<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Hca> {
        self.some_on(host).flat_map(|process| &process.hcas)
    }

    /// A NIC's name: from the list of GPUDirect, which has merged ones, otherwise from the list of HCAs.
    pub fn name_of(&self, nic: &NicKey) -> Option<(String, Option<String>)> {
        self.some_on(&nic.host).find_map(|process| {
            let hca = process.hcas.iter().find(|hca| hca.index == nic.device);
            let merged = process
                .gpu_direct
                .get(&nic.device)
                .and_then(|(_, name, _)| name.clone());
            let link = hca.map(|hca| hca.link.clone());
            match (merged, hca) {
                (Some(name), _) => Some((name, link)),
                (None, Some(hca)) if nic.network.starts_with("IB") => Some((hca.device.clone(), link)),
                _ => None,
            }
        })
    }
}

impl Process {
    /// Takes a fact about itself.
    fn take(&mut self, fact: &Fact) {
        match fact {
            Fact::Hcas(hcas) => self.hcas = hcas.iter().take(NAMES).cloned().collect(),
            Fact::NoHca => self.no_hca = true,
            Fact::Interfaces(names) => self.interfaces = names.iter().take(NAMES).cloned().collect(),
            Fact::Network(name) => self.network = Some(name.clone()),
            Fact::GpuDirect {
                on,
                device,
                name,
                why,
            } if self.gpu_direct.len() < NAMES => {
                self.gpu_direct.insert(*device, (*on, name.clone(), why.clone()));
            }
            Fact::Variable { name, value } if self.variables.len() < NAMES => {
                self.variables.insert(name.clone(), value.clone());
            }
            Fact::Plugin(name) => self.plugin = Some(name.clone()),
            Fact::NoPlugin(why) => self.no_plugin = Some(why.clone()),
            Fact::Provider { name, .. } => self.provider = Some(name.clone()),
            Fact::Rank {
                rank,
                ranks,
                complete,
            } if self.ranks.len() < NAMES => {
                *self.ranks.entry(*rank).or_default() |= complete;
                self.of = self.of.max(Some(*ranks));
            }
            _ => {}
        }
    }
}
