//! Combines the facts of all processes of a log.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use serde::Serialize;

use super::{
    channel::{Direction, Transport},
    dictionary::{self, Entry, Kind},
    exception::FrameworkErrors,
    fact::{self, Fact},
    jobs::{self, Job},
    line::{self, Clock, Level, Line, Writer},
    nics::Hca,
    perf::Perf,
    process::{MAX_NAMES, Part, Process},
    ras::Ras,
    warning::{Warning, Warnings},
    wrapped::Unwrapper,
};
use rdmatop_base::order::Gather as _;

/// Largest number of bytes of one log that are read, after it is decompressed. Logs of long jobs of many
/// ranks with `NCCL_DEBUG=INFO` have a few GiB.
pub const MAX_LOG: u64 = 16 << 30;
/// Largest number of processes. A log of a larger job, or of something else, is cut, and the report says so.
const MAX_PROCESSES: usize = 65_536;
/// NICs kept, of all hosts: 4,096 hosts with 16 each.
const MAX_NICS: usize = 65_536;
/// Largest number of bytes of text kept for all processes. A process of a job has some 4 KiB of them.
const MAX_TEXT_BYTES: usize = 256 << 20;
/// Bytes that a message of the dictionary takes in the list of a process, beyond its device's name.
const MESSAGE: usize = 64;
/// How many processes of a host are searched for the name of a NIC: each lists all NICs of its host.
const MAX_SEARCHED: usize = 256;
/// In a torn log, a host with this many lines is a true one, whatever its name.
const FEW_LINES: u64 = 8;
/// In a torn log, a host that has no more than one line for this many torn ones is none: of the lines that
/// are cut into another, one of 20 or so looks whole, and has the rests of two words as its host.
const TORN_PER_LINE: u64 = 4;

/// How NCCL begins what it says of CUDA's errors.
const CUDA_FAILURE: &str = "Cuda failure";

/// RCCL of ROCm 5.5 to 6.3 says `Cuda failure` of what HIP failed in, as NCCL does of CUDA: returned with the
/// words that it has otherwise, whose next steps are those for AMD's GPUs.
fn of_the_gpus_maker<'a>(text: &'a str, versions: &BTreeSet<String>) -> Cow<'a, str> {
    let is_rccl = |version: &String| version.starts_with("RCCL") || version.contains("+hip");
    if text.contains(CUDA_FAILURE) && versions.iter().any(is_rccl) {
        return text.replacen(CUDA_FAILURE, "HIP failure", 1).into();
    }
    text.into()
}

/// Connections over one NIC of a host, or over one interface of its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NicUse {
    /// Connections that send.
    pub sends: u64,
    /// Connections that receive.
    pub receives: u64,
    /// Connections among both that use GPUDirect RDMA.
    pub gpu_direct: u64,
    /// Those of these that receive.
    #[serde(skip)]
    pub gpu_direct_receives: u64,
}

impl NicUse {
    /// Whether all connections that receive use GPUDirect RDMA, and none that sends does.
    pub fn only_receives_directly(self) -> bool {
        self.gpu_direct > 0 && self.gpu_direct == self.gpu_direct_receives && self.gpu_direct == self.receives
    }
}

/// A NIC of a host: the name of its network, and its number there.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicKey {
    /// The host that has the NIC.
    pub host: String,
    /// The name of the network.
    pub network: String,
    /// The number of the NIC in that network.
    pub device: u32,
}

/// Connections that need no network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OtherConnections {
    /// GPU to GPU, or through the host's memory.
    pub local: u64,
    /// How many of `local` are of a job whose hosts NVLink joins.
    pub multi_node: u64,
    /// Connections to in-network reduction.
    pub collnet: u64,
}

/// What all processes of the logs have said.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Number of the present log: how many were begun before it.
    pub input: u32,
    /// How many lines were read.
    pub lines: u64,
    /// How many of these lines are NCCL's, whole or torn.
    pub nccl_lines: u64,
    /// How many of these are of level INFO.
    pub info: u64,
    /// How many of [`Self::nccl_lines`] are cut into each other, or have a writer that is.
    pub torn: u64,
    /// Lines of NCCL that Ray left out because they are like one that it printed.
    pub repeated: u64,
    /// The libraries with their versions.
    versions: BTreeSet<String>,
    /// What each process wrote.
    pub processes: BTreeMap<Writer, Process>,
    /// Who wrote the first line.
    first: Option<Writer>,
    /// Number of lines about processes and NICs beyond the limits.
    pub left_out: u64,
    /// Number of logs that were not read to their end, but up to [`MAX_LOG`].
    pub cut: u64,
    /// Bytes of text that were taken into [`Self::processes`], including those that a later line replaced.
    text_bytes: usize,
    /// NICs with connections over a network.
    pub nics: BTreeMap<NicKey, NicUse>,
    /// Connections that need no network.
    pub other_connections: OtherConnections,
    /// Channels of the widest ring.
    pub channels: Option<u32>,
    /// The warnings of all processes.
    pub warnings: Warnings,
    /// Whether a fault shows that data moves by verbs.
    pub verbs: bool,
    /// An answer of NCCL's RAS service.
    pub ras: Ras,
    /// The output of nccl-tests.
    pub perf: Perf,
    /// Errors that frameworks printed.
    framework_errors: FrameworkErrors,
    /// See [`Report::provider`].
    provider: Option<String>,
    wrapped: Unwrapper,
}

impl Report {
    /// Begins the log of this number: the lines that follow belong to it.
    pub fn begin(&mut self, input: u32) {
        self.flush();
        (self.wrapped, self.input) = (Unwrapper::default(), input);
    }

    /// Takes one line.
    pub fn line(&mut self, bytes: &[u8]) {
        self.lines += 1;
        let line = line::clean(bytes);
        match line::unpacked(&line) {
            Some(lines) => lines.iter().for_each(|line| self.physical_line(line)),
            None => self.physical_line(&line),
        }
    }

    fn physical_line(&mut self, line: &str) {
        let mut wrapped = std::mem::take(&mut self.wrapped);
        wrapped.push(line::once(line), |line| self.logical_line(line));
        self.wrapped = wrapped;
    }

    fn flush(&mut self) {
        let mut wrapped = std::mem::take(&mut self.wrapped);
        wrapped.end(|line| self.logical_line(line));
    }

    /// Ends the last log: takes what was held back, and removes what only torn lines seemed to say.
    pub fn end(&mut self) {
        self.flush();
        self.add_framework_errors();
        self.provider = self.only_provider();
        // What was copied out of a log mostly begins within a line.
        let cut = self.first.take().filter(|first| {
            let is_whole = |other: &Writer| {
                let begins = other.host.strip_suffix(first.host.as_str());
                other.pid == first.pid && begins.is_some_and(|begin| !begin.is_empty())
            };
            !first.host.is_empty() && self.processes.keys().any(is_whole)
        });
        let mut none = if self.torn > 0 {
            self.torn_hosts()
        } else {
            BTreeSet::new()
        };
        none.extend(cut.map(|writer| writer.host));
        let is_host = |host: &String| !none.contains(host);
        for (writer, process) in &self.processes {
            self.torn += if is_host(&writer.host) { 0 } else { process.lines };
        }
        self.processes.retain(|writer, _| is_host(&writer.host));
        self.nics.retain(|nic, _| is_host(&nic.host));
        self.warnings.retain_hosts(is_host);
    }

    /// Hosts of a torn log that are none: their names are cut from others.
    fn torn_hosts(&self) -> BTreeSet<String> {
        let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
        for (writer, process) in &self.processes {
            *lines.entry(&writer.host).or_default() += process.lines;
        }
        // The name of a host without its beginning, or with the end of another line before it.
        let reversed: BTreeSet<String> = lines
            .iter()
            .filter(|(_, count)| **count >= FEW_LINES)
            .map(|(host, _)| host.chars().rev().collect())
            .gather();
        let is_part = |host: &str| {
            let back: String = host.chars().rev().collect();
            let longer = reversed
                .range::<str, _>((Bound::Excluded(back.as_str()), Bound::Unbounded))
                .next()
                .is_some_and(|longer| longer.starts_with(&back));
            let shorter = back
                .char_indices()
                .any(|(at, _)| at > 0 && back.get(..at).is_some_and(|end| reversed.contains(end)));
            longer || shorter
        };
        // If other lines have a host, a line without one has lost it.
        let named: u64 = lines
            .iter()
            .filter(|(host, _)| !host.is_empty())
            .map(|(_, count)| count)
            .sum();
        lines
            .iter()
            .filter(|(host, count)| {
                if host.is_empty() {
                    **count < named
                } else {
                    let is_rest = !reversed.is_empty() && **count * TORN_PER_LINE <= self.torn;
                    **count < FEW_LINES && (is_rest || is_part(host))
                }
            })
            .map(|(host, _)| (*host).to_owned())
            .gather()
    }

    /// Takes what frameworks printed of an error as warnings, unless NCCL's own lines have the fault: then it
    /// is that fault once more, as is what these lines have in the same words. What libfabric says is not:
    /// its provider knows why.
    fn add_framework_errors(&mut self) {
        let mut found = self.framework_errors.drain();
        if self.warnings.has_fault() {
            found.list.retain(|one| one.text.starts_with("<warn> "));
            found.left_out = 0;
        }
        for Warning { entry, text, .. } in &found.list {
            self.verbs |= entry.is_some_and(|entry| dictionary::shows_verbs("", text, entry.kind));
        }
        self.warnings.extend(found);
    }

    fn logical_line(&mut self, line: &str) {
        let (line, repeated) = line::repeated(line);
        if line::is_nccl(line) {
            // Ray counts the line that it printed.
            self.repeated = self.repeated.saturating_add(repeated.saturating_sub(1));
        }
        match Line::read(line) {
            Line::Plain(text) => {
                self.perf.line(text);
                self.ras.line(text);
                self.framework_errors.line(text);
                if let Some(Fact::Version(version)) = fact::parse_plain(text) {
                    self.version(version);
                }
            }
            Line::Torn => {
                let is_host = |host: &str| self.processes_on(host).next().is_some();
                if let Some(pieces) = line::joined(line, is_host) {
                    return pieces.into_iter().for_each(|piece| self.logical_line(piece));
                }
                self.nccl_lines += 1;
                self.torn += 1;
            }
            Line::Nccl {
                writer,
                level,
                before,
                text,
            } => {
                self.nccl_lines += 1;
                self.framework_errors.interrupt();
                self.nccl(writer, level, before, text);
            }
        }
    }

    fn nccl(&mut self, writer: Writer, level: Level, before: &str, text: &str) {
        if self.nccl_lines == 1 {
            self.first = Some(writer.clone());
        }
        if !self.processes.contains_key(&writer) && self.processes.len() >= MAX_PROCESSES {
            self.left_out += 1;
            return;
        }
        let fact = fact::parse(text);
        let host = writer.host.clone();
        let process = self.processes.entry(writer).or_default();
        process.lines += 1;
        self.info += u64::from(level == Level::Info);
        if process.inputs.len() < MAX_NAMES || process.inputs.contains_key(&self.input) {
            let span = process
                .inputs
                .entry(self.input)
                .or_insert((self.lines, self.lines));
            span.1 = self.lines;
        }
        if fact.is_none() && level == Level::Info {
            let part = dictionary::traced_file(text).and_then(Part::of);
            process.failed_in = part.or(process.failed_in);
        }
        if fact.is_none() || level != Level::Info {
            let by_the_way =
                |entry: &Entry| matches!(entry.kind, Kind::Choice | Kind::Note) || entry.is_only_a_result();
            let entry = dictionary::look_up_in(before, &of_the_gpus_maker(text, &self.versions))
                .filter(|entry| level != Level::Info || by_the_way(entry));
            if let Some(entry) = entry {
                // A fault breaks the job; it does not make NCCL choose another network.
                if !matches!(entry.kind, Kind::Fault | Kind::Echo) {
                    let known = process.messages.get(entry.id);
                    let device = dictionary::device(text).filter(|_| known.is_none_or(Option::is_none));
                    if known.is_none() || device.is_some() {
                        self.text_bytes += MESSAGE + device.map_or(0, str::len);
                        if self.text_bytes > MAX_TEXT_BYTES {
                            self.left_out += 1;
                        } else {
                            process.messages.insert(entry.id, device.map(str::to_owned));
                        }
                    }
                }
                self.verbs |= dictionary::shows_verbs(before, text, entry.kind);
            }
            // A choice that NCCL prints by the way decides something, so it is no warning.
            let is_warning = level == Level::Warn || entry.is_some_and(|entry| entry.kind != Kind::Choice);
            if is_warning && !text.is_empty() {
                self.warnings.add(&host, text, entry, Clock::find(before));
            }
        }
        let Some(fact) = fact else { return };
        if !fact.is_of_process() {
            self.add(host, fact);
            return;
        }
        self.text_bytes += text.len() + overhead(&fact);
        if self.text_bytes > MAX_TEXT_BYTES || !process.add(fact) {
            self.left_out += 1;
        }
    }

    fn version(&mut self, version: String) {
        if self.versions.len() < MAX_NAMES {
            self.versions.insert(version);
        }
    }

    fn add(&mut self, host: String, fact: Fact) {
        match fact {
            Fact::Version(version) => self.version(version),
            Fact::Channels(count) => self.channels = self.channels.max(Some(count)),
            Fact::Channel { direction, transport } => match transport {
                Transport::Net {
                    name: network,
                    device,
                    gpu_direct,
                } => {
                    let key = NicKey {
                        host,
                        network,
                        device,
                    };
                    if self.nics.len() >= MAX_NICS && !self.nics.contains_key(&key) {
                        self.left_out += 1;
                        return;
                    }
                    let nic = self.nics.entry(key).or_default();
                    match direction {
                        Direction::Receive => {
                            nic.receives += 1;
                            nic.gpu_direct_receives += u64::from(gpu_direct);
                        }
                        Direction::Send | Direction::Local => nic.sends += 1,
                    }
                    nic.gpu_direct += u64::from(gpu_direct);
                }
                Transport::CollNet => self.other_connections.collnet += 1,
                Transport::P2p { multi_node } => {
                    self.other_connections.local += 1;
                    self.other_connections.multi_node += u64::from(multi_node);
                }
                Transport::SharedMemory => self.other_connections.local += 1,
            },
            _ => {}
        }
    }

    /// Libraries and versions. `2.28.9` and `2.28.9+cuda13.0` of two lines are the same one.
    pub fn versions(&self) -> Vec<&str> {
        let is_short_for = |short: &str, long: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.starts_with(['+', '-']) || (self.torn > 0 && !rest.is_empty()))
        };
        let all = self.versions.iter().map(String::as_str);
        all.filter(|one| !self.versions.iter().any(|other| is_short_for(one, other)))
            .collect()
    }

    fn only_provider(&self) -> Option<String> {
        let mut all = self.processes.values().filter_map(|one| one.provider.as_deref());
        let first = all.next()?;
        all.all(|other| other == first).then(|| first.to_owned())
    }

    /// libfabric's provider, if all processes that name one name the same.
    pub fn provider(&self) -> Option<&str> {
        self.provider.as_deref()
    }

    /// Hosts, in order.
    pub fn hosts(&self) -> BTreeSet<&str> {
        self.processes.keys().map(|writer| writer.host.as_str()).gather()
    }

    /// Processes of a host.
    pub fn processes_on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Process> {
        let first = Writer {
            host: host.to_owned(),
            pid: 0,
        };
        let ours = move |(writer, _): &(&Writer, &Process)| writer.host == host;
        let from_first = self.processes.range(first..);
        from_first.take_while(ours).map(|(_, process)| process)
    }

    /// The first processes of a host: enough to find what each of them lists, the NICs of the host.
    pub fn first_processes_on<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes_on(host).take(MAX_SEARCHED)
    }

    /// The value of a variable, by the first process that has read it.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut values = self.processes.values().filter_map(|one| one.variables.get(name));
        values.next().map(String::as_str)
    }

    /// The same of the first processes of a host.
    pub fn variable_on<'a>(&'a self, host: &'a str, name: &str) -> Option<&'a str> {
        let mut values = self
            .first_processes_on(host)
            .filter_map(|one| one.variables.get(name));
        values.next().map(String::as_str)
    }

    /// NICs of a host with connections.
    pub fn nics_of<'a>(&'a self, host: &'a str) -> impl Iterator<Item = (&'a NicKey, &'a NicUse)> {
        let first = NicKey {
            host: host.to_owned(),
            network: String::new(),
            device: 0,
        };
        self.nics
            .range(first..)
            .take_while(move |(nic, _)| nic.host == host)
    }

    /// The jobs of the log, the largest first.
    pub fn jobs(&self) -> Vec<Job> {
        jobs::group(&self.processes)
    }

    /// The NICs of the transport IB that processes of a host listed.
    pub fn hcas<'a>(&'a self, host: &'a str) -> impl Iterator<Item = &'a Hca> {
        self.first_processes_on(host).flat_map(|process| &process.hcas)
    }

    /// A NIC's name and its kind of link. Merged NICs are in the list of virtual NICs and in that of
    /// GPUDirect, where HPC-X's plugin for NCCL 2.20 to 2.23 gives the number of a merged NIC the name of
    /// another list's device; in the list of the transport IB, numbers hold only for its own networks.
    pub fn name_of(&self, nic: &NicKey) -> Option<(String, Option<String>)> {
        let is_ib = is_ib(&nic.network);
        self.first_processes_on(&nic.host).find_map(|process| {
            let hca = process
                .hcas
                .iter()
                .find(|hca| hca.index == nic.device)
                .filter(|_| is_ib);
            let made = process.virtual_nics.get(&nic.device).filter(|_| is_ib).cloned();
            let direct = process
                .gpu_direct
                .get(&nic.device)
                .and_then(|direct| direct.name.clone());
            let interface = || {
                let at = usize::try_from(nic.device).ok().filter(|_| !is_ib)?;
                process.interfaces.get(at).cloned()
            };
            let is_merged = |hca: &Hca| hca.ports.len() > 1;
            let merged = hca.filter(|_| process.hcas.iter().any(is_merged)).map(Hca::name);
            let name = made
                .or(merged)
                .or(direct)
                .or_else(|| hca.map(Hca::name))
                .or_else(interface)?;
            let of_part = |part: &str| {
                let mut ports = process.hcas.iter().flat_map(|hca| &hca.ports);
                ports
                    .find(|port| port.device == part)
                    .map(|port| port.link.clone())
            };
            let links: Option<BTreeSet<String>> = name.split('+').map(of_part).collect();
            let link = links.and_then(|links| {
                if links.len() == 1 {
                    links.into_iter().next()
                } else {
                    None
                }
            });
            let of_hca = || {
                hca.and_then(|hca| hca.ports.first())
                    .map(|port| port.link.clone())
            };
            Some((name, link.or_else(of_hca)))
        })
    }
}

/// Bytes that a fact takes beyond its text, which may be short.
fn overhead(fact: &Fact) -> usize {
    match fact {
        Fact::Hcas(hcas) => hcas.len() * 64,
        Fact::Member(_) => 96,
        _ => 0,
    }
}

/// Whether a network is the transport IB or a plugin that is made from it: `IB`, `IBext_v8`, `UCX`, which
/// lists NICs in the same words.
pub(super) fn is_ib(network: &str) -> bool {
    network.starts_with("IB") || network.starts_with("UCX") || network.starts_with("gIB")
}
