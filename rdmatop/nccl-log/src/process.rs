//! What one process logged.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    fact::{Fact, Member},
    nics::Hca,
};
use rdmatop_base::order::Gather as _;

/// Largest number of names that each list of a process keeps.
pub(super) const MAX_NAMES: usize = 256;
/// Largest number of ranks kept for a process: eight GPUs, each in 512 communicators.
const MAX_MEMBERS: usize = 4096;

/// Whether GPUDirect RDMA works with a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuDirect {
    /// It works for at least one GPU.
    pub on: bool,
    /// The name of the NIC.
    pub name: Option<String>,
    /// Why it does not work for at least one GPU.
    pub why: Option<String>,
}

/// In what part of NCCL a call failed, by the places that its trace names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Where the ranks of a communicator find one another, by TCP.
    Bootstrap,
    /// The transport IB, or a plugin made of it.
    Verbs,
    /// The transport Socket.
    Sockets,
}

impl Part {
    /// The part that a file of NCCL's source belongs to.
    pub(super) fn of(file: &str) -> Option<Self> {
        // Their ends are `.cc`, `.cu` before 2.5, and `.cpp` in RCCL's builds.
        match file.rsplit('/').next()?.split('.').next()? {
            "bootstrap" => Some(Self::Bootstrap),
            "net_socket" => Some(Self::Sockets),
            // The last two are of HPC-X.
            "net_ib" | "ib_plugin" | "p2p_plugin" => Some(Self::Verbs),
            _ if file.contains("transport/net_ib/") => Some(Self::Verbs),
            _ => None,
        }
    }

    /// Where a call failed.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Bootstrap => "where ranks find one another at the start (bootstrap, by TCP)",
            Self::Verbs => "in the transport IB",
            Self::Sockets => "in the transport Socket",
        }
    }
}

/// What one process logged.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// How many lines it wrote.
    pub lines: u64,
    /// Its ranks in its communicators. Of those with one address and rank, lines are about the last.
    pub members: Vec<Member>,
    /// Positions in [`Self::members`], by address and rank.
    positions: BTreeMap<(u64, u32), usize>,
    /// The log has the line that its communicators begin with.
    pub bootstrapped: bool,
    /// Where the last call failed that a trace shows.
    pub failed_in: Option<Part>,
    /// The network that it chose.
    pub network: Option<String>,
    /// The network of the last list of interfaces.
    listed_network: Option<String>,
    /// NICs of the transport IB.
    pub hcas: Vec<Hca>,
    /// NICs made of several, and the single ones of that list, by number.
    pub virtual_nics: BTreeMap<u32, String>,
    /// Interfaces of the transport Socket, or of a plugin of that kind.
    pub interfaces: Vec<String>,
    /// GPUDirect RDMA by number of the NIC.
    pub gpu_direct: BTreeMap<u32, GpuDirect>,
    /// Variables that it reported to have read.
    pub variables: BTreeMap<String, String>,
    /// The network plugin that it loaded.
    pub plugin: Option<String>,
    /// NCCL found no plugin, which is normal.
    pub no_plugin: bool,
    /// libfabric's provider.
    pub provider: Option<String>,
    /// Messages of the dictionary that it wrote and that are no faults, each with the device that its first
    /// line names.
    pub messages: BTreeMap<&'static str, Option<String>>,
    /// The logs that have lines of this process, by number (see [`super::report::Report::begin`]), with the
    /// numbers of its first and its last line there.
    pub inputs: BTreeMap<u32, (u64, u64)>,
}

impl Process {
    /// Takes a fact about this process. `false` if no more of that kind are kept.
    pub(super) fn add(&mut self, fact: Fact) -> bool {
        match fact {
            Fact::Hcas(hcas) => self.hcas = hcas.into_iter().take(MAX_NAMES).collect(),
            Fact::Virtual(index, name) if self.virtual_nics.len() < MAX_NAMES => {
                self.virtual_nics.insert(index, name);
            }
            Fact::Interfaces { network, names } if network.is_empty() => {
                let new = names.into_iter().filter(|name| !self.interfaces.contains(name));
                let new: Vec<String> = new
                    .take(MAX_NAMES.saturating_sub(self.interfaces.len()))
                    .collect();
                self.interfaces.extend(new);
            }
            Fact::Interfaces { network, names } => {
                self.listed_network = Some(network);
                self.interfaces = names.into_iter().take(MAX_NAMES).collect();
            }
            Fact::Bootstrap => self.bootstrapped = true,
            Fact::Network(name) => self.network = Some(name),
            Fact::GpuDirect(device, new) if self.gpu_direct.len() < MAX_NAMES => {
                self.add_gpu_direct(device, new);
            }
            Fact::Variable(name, value) if self.variables.len() < MAX_NAMES => {
                self.variables.insert(name, value);
            }
            Fact::Plugin(name) => self.plugin = Some(name),
            Fact::NoPlugin => self.no_plugin = true,
            Fact::Provider(name) => self.provider = Some(name),
            Fact::Member(member) => return self.add_member(member),
            _ => return false,
        }
        true
    }

    /// Lines about a GPU and a NIC do not name the NIC, so a known name stays; another GPU may be nearer.
    fn add_gpu_direct(&mut self, device: u32, new: GpuDirect) {
        let known = self.gpu_direct.entry(device).or_default();
        known.on |= new.on;
        known.name = new.name.or(known.name.take());
        known.why = known.why.take().or(new.why);
    }

    fn add_member(&mut self, new: Member) -> bool {
        let key = (new.comm, new.rank);
        let known = self.positions.get(&key).and_then(|at| self.members.get_mut(*at));
        if let Some(known) = known
            && known.ranks == new.ranks
            && known.id.is_none_or(|id| new.id.is_none_or(|new| new == id))
            // Addresses are used again: a member that begins anew belongs to another communicator.
            && !(new.started && (known.started || known.complete))
        {
            known.complete |= new.complete;
            known.started |= new.started;
            known.id = known.id.or(new.id);
            known.nodes = known.nodes.or(new.nodes);
            known.part_of = known.part_of.or(new.part_of);
            return true;
        }
        if self.members.len() >= MAX_MEMBERS {
            return false;
        }
        self.positions.insert(key, self.members.len());
        self.members.push(new);
        true
    }

    /// The network that it chose. Before 2.6, and at the beginning of a log, no line says so: then it is IB
    /// if that found a NIC, or what was listed last. If NCCL_NET is set, NCCL takes no other network than
    /// that one, whatever it lists.
    pub fn network(&self) -> Option<&str> {
        let wanted = self.variables.get("NCCL_NET").map(|name| name.to_lowercase());
        let is_wanted = |name: &&str| {
            wanted
                .as_ref()
                .is_none_or(|wanted| *wanted == name.to_lowercase())
        };
        let of_ib = || self.lists_hcas().then_some("IB").filter(is_wanted);
        let listed = || self.listed_network.as_deref().filter(is_wanted);
        self.network.as_deref().or_else(of_ib).or_else(listed)
    }

    /// Whether it listed NICs of the transport IB.
    pub fn lists_hcas(&self) -> bool {
        !self.hcas.is_empty() || !self.virtual_nics.is_empty()
    }

    /// The number of ranks of its largest communicator.
    fn largest_size(&self) -> Option<u32> {
        self.members.iter().map(|member| member.ranks).max()
    }

    /// The process's ranks in its largest communicators.
    pub fn ranks(&self) -> BTreeSet<u32> {
        let size = self.largest_size();
        let members = self.members.iter().filter(|member| Some(member.ranks) == size);
        members.map(|member| member.rank).gather()
    }

    /// Whether one of its communicators is complete.
    pub fn joined(&self) -> bool {
        self.members.iter().any(|member| member.complete)
    }
}
