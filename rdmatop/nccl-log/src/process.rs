//! What one process logged.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    fact::{Fact, Member},
    nics::Hca,
};

/// Names kept of each list of one process.
pub(super) const NAMES: usize = 256;
/// Ranks of communicators kept of one process: eight GPUs, each in 512 communicators.
const MEMBERS: usize = 4096;

/// GPUDirect RDMA of a NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Direct {
    /// Usable, by one GPU at least.
    pub on: bool,
    /// Name of the NIC.
    pub name: Option<String>,
    /// Why not, for one GPU at least.
    pub why: Option<String>,
}

/// What one process logged.
#[derive(Clone, Debug, Default)]
pub struct Process {
    /// Lines.
    pub lines: u64,
    /// Its ranks in its communicators; the last with an address and a rank is the one that lines are about.
    pub members: Vec<Member>,
    /// Positions in [`Self::members`].
    at: BTreeMap<(u64, u32), usize>,
    /// The network it chose.
    pub network: Option<String>,
    /// The network that listed interfaces.
    listed: Option<String>,
    /// NICs of the transport IB.
    pub hcas: Vec<Hca>,
    /// NICs made of several, and those of one, by number.
    pub virtual_nics: BTreeMap<u32, String>,
    /// Interfaces of the transport Socket, or of a plugin of that kind.
    pub interfaces: Vec<String>,
    /// GPUDirect RDMA by number of the NIC.
    pub gpu_direct: BTreeMap<u32, Direct>,
    /// Variables that it reported to have read.
    pub variables: BTreeMap<String, String>,
    /// The network plugin it loaded.
    pub plugin: Option<String>,
    /// NCCL found no plugin, which is normal.
    pub no_plugin: bool,
    /// libfabric's provider.
    pub provider: Option<String>,
    /// Entries of the dictionary that it wrote, each with the device that the first line names.
    pub messages: BTreeMap<&'static str, Option<String>>,
    /// Numbers of the logs that have lines of it; see [`super::report::Report::begin`].
    pub inputs: BTreeSet<u32>,
}

impl Process {
    /// Takes a fact about itself. `false`: it has more of them than are kept.
    pub(super) fn take(&mut self, fact: Fact) -> bool {
        match fact {
            Fact::Hcas(hcas) => self.hcas = hcas.into_iter().take(NAMES).collect(),
            Fact::Virtual { index, name } if self.virtual_nics.len() < NAMES => {
                self.virtual_nics.insert(index, name);
            }
            Fact::Interfaces { network, names } => {
                self.listed = Some(network);
                self.interfaces = names.into_iter().take(NAMES).collect();
            }
            Fact::Network(name) => self.network = Some(name),
            Fact::GpuDirect {
                on,
                device,
                name,
                why,
            } if self.gpu_direct.len() < NAMES => self.direct(device, Direct { on, name, why }),
            Fact::Variable { name, value } if self.variables.len() < NAMES => {
                self.variables.insert(name, value);
            }
            Fact::Plugin(name) => self.plugin = Some(name),
            Fact::NoPlugin => self.no_plugin = true,
            Fact::Provider(name) => self.provider = Some(name),
            Fact::Member(member) => return self.member(member),
            _ => return false,
        }
        true
    }

    /// Lines about a GPU and a NIC have no name of it, and another GPU may be nearer.
    fn direct(&mut self, device: u32, new: Direct) {
        let known = self.gpu_direct.entry(device).or_default();
        known.on |= new.on;
        known.name = new.name.or(known.name.take());
        known.why = known.why.take().or(new.why);
    }

    fn member(&mut self, new: Member) -> bool {
        let key = (new.comm, new.rank);
        let known = self.at.get(&key).and_then(|at| self.members.get_mut(*at));
        if let Some(known) = known
            && known.ranks == new.ranks
            && known.id.is_none_or(|id| new.id.is_none_or(|new| new == id))
            // Memory is used again: what begins anew is another communicator.
            && !(new.started && (known.started || known.complete))
        {
            known.complete |= new.complete;
            known.started |= new.started;
            known.id = known.id.or(new.id);
            known.nodes = known.nodes.or(new.nodes);
            known.part_of = known.part_of.or(new.part_of);
            return true;
        }
        if self.members.len() >= MEMBERS {
            return false;
        }
        self.at.insert(key, self.members.len());
        self.members.push(new);
        true
    }

    /// The network it chose. Before 2.6, and in the beginning of a log, no line says so: it is IB where that
    /// found a NIC.
    pub fn network(&self) -> Option<&str> {
        let of_ib = || (!self.hcas.is_empty()).then_some("IB");
        self.network.as_deref().or_else(of_ib).or(self.listed.as_deref())
    }

    /// The number of ranks of its largest communicator.
    fn size(&self) -> Option<u32> {
        self.members.iter().map(|member| member.ranks).max()
    }

    /// The process's ranks in its largest communicators.
    pub fn ranks(&self) -> BTreeSet<u32> {
        let size = self.size();
        let members = self.members.iter().filter(|member| Some(member.ranks) == size);
        members.map(|member| member.rank).collect()
    }

    /// One of its communicators is complete.
    pub fn joined(&self) -> bool {
        self.members.iter().any(|member| member.complete)
    }
}
