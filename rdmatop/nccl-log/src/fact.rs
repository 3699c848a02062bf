//! Reads the fact in one line.
//!
//! The spellings are those of NCCL 2.3 to 2.30 (src/transport/net.cc, net_ib, net_socket.cc, p2p.cc, shm.cc,
//! coll_net.cc, src/graph/{topo,paths}.cc, src/plugin, src/init.cc), of RCCL, which keeps them, and of
//! aws-ofi-nccl (`NET/OFI ...`). What went wrong is in [`super::dictionary`].

use super::{
    channel::{self, Direction, Transport},
    nics::{self, Hca},
    process::GpuDirect,
};

/// A rank of a communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Address of the communicator in its process; 0 if the line has none.
    pub comm: u64,
    /// Number that all ranks of a communicator share, since 2.16.
    pub id: Option<u64>,
    /// For a part of another communicator: the other one's address, number of parts made before, and color.
    pub part_of: Option<(u64, u64, i64)>,
    /// The rank's number.
    pub rank: u32,
    /// The number of ranks in the communicator.
    pub ranks: u32,
    /// Number of hosts, or of parts of a rack that NVLink joins.
    pub nodes: Option<u32>,
    /// The communicator begins.
    pub started: bool,
    /// The communicator is complete.
    pub complete: bool,
}

/// The fact in one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The library and its version.
    Version(String),
    /// A connection of a channel.
    Channel {
        /// Whether the rank sends or receives.
        direction: Direction,
        /// What carries the data.
        transport: Transport,
    },
    /// Number of channels: `Channel 00/16 : 0 1 2`.
    Channels(u32),
    /// NICs of the transport IB.
    Hcas(Vec<Hca>),
    /// A NIC that was made of several: its number, and its name (`mlx5_0+mlx5_1`).
    Virtual(u32, String),
    /// Interfaces of the transport Socket, or of a plugin.
    Interfaces {
        /// Name of the network; empty where the line does not say that it was chosen.
        network: String,
        /// Names of the interfaces.
        names: Vec<String>,
    },
    /// The process begins its first communicator: `Bootstrap : Using eth0`.
    Bootstrap,
    /// The network that was chosen.
    Network(String),
    /// Whether GPUDirect RDMA works with the NIC of this number.
    GpuDirect(u32, GpuDirect),
    /// A variable that NCCL says it has read, and its value.
    Variable(String, String),
    /// A network plugin was loaded.
    Plugin(String),
    /// No plugin was found, which is normal.
    NoPlugin,
    /// libfabric's provider, under aws-ofi-nccl.
    Provider(String),
    /// A rank of a communicator.
    Member(Member),
}

impl Fact {
    /// Whether the fact is about the process that logs it, and not about the job, a connection or a NIC of
    /// the host.
    pub fn is_of_process(&self) -> bool {
        !matches!(self, Self::Version(_) | Self::Channel { .. } | Self::Channels(_))
    }
}

/// Reads a line that is not NCCL's.
pub fn parse_plain(line: &str) -> Option<Fact> {
    // `NCCL`, `RCCL`, and others that were made from it.
    let (before, rest) = line.split_once("CCL version")?;
    let library = before.rsplit(|c: char| !c.is_ascii_uppercase()).next()?;
    // RCCL has `RCCL version : 2.22.3-HEAD:1234567`.
    let rest = rest.trim_start_matches([':', ' ']);
    let end = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-' | '_'));
    let version = rest.split(end).next()?.trim_end_matches('.');
    let is_version = version.starts_with(|c: char| c.is_ascii_digit()) && version.contains('.');
    (is_version && !library.is_empty()).then(|| Fact::Version(format!("{library}CCL {version}")))
}

/// Reads the text of a line of NCCL's.
pub fn parse(text: &str) -> Option<Fact> {
    channel::read(text)
        .or_else(|| network(text))
        .or_else(|| nics::read(text))
        .or_else(|| nics::gpu_direct(text))
        .or_else(|| plugin(text))
        .or_else(|| variable(text))
        .or_else(|| member(text).map(Fact::Member))
        .or_else(|| parse_plain(text))
}

fn network(text: &str) -> Option<Fact> {
    // With a space before the colon until 2.23.
    if text.starts_with("Bootstrap : Using ") || text.starts_with("Bootstrap: Using ") {
        return Some(Fact::Bootstrap);
    }
    if text.starts_with("NET/FastSocket : Connected after ") {
        return Some(Fact::Network("FastSocket".to_owned()));
    }
    // The second and the third of 2.3, the last since 2.27.
    let name = [
        "Using network ",
        "Using internal Network ",
        "Using external Network ",
    ]
    .iter()
    .find_map(|before| text.strip_prefix(before))
    .or_else(|| {
        text.strip_prefix("Assigned NET plugin ")?
            .strip_suffix(" to comm")
    })?;
    let name = name.trim();
    (!name.is_empty()).then(|| Fact::Network(name.to_owned()))
}

fn plugin(text: &str) -> Option<Fact> {
    if let Some(rest) = text.strip_prefix("NET/Plugin") {
        let rest = rest.trim_start_matches([' ', ':']);
        if let Some(name) = rest.strip_prefix("Loaded net plugin ") {
            return Some(Fact::Plugin(name.split(" (").next()?.to_owned()));
        }
        let none = rest.contains("No plugin found")
            || rest.starts_with("Could not find")
            || rest.starts_with("Using internal");
        return none.then_some(Fact::NoPlugin);
    }
    // aws-ofi-nccl: `NET/OFI Selected provider is efa, fabric is efa (found 4 nics)`.
    let rest = text.strip_prefix("NET/OFI Selected ")?;
    let rest = rest
        .strip_prefix("provider is ")
        .or_else(|| rest.strip_prefix("Provider is "))?;
    Some(Fact::Provider(rest.split([',', ' ']).next()?.to_owned()))
}

fn variable(text: &str) -> Option<Fact> {
    let (name, value) = text
        .split_once(" set by environment to ")
        .or_else(|| text.split_once(" set to "))?;
    let is_name = name
        .bytes()
        .all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    let known = ["NCCL_", "RCCL_", "OFI_", "FI_"]
        .iter()
        .any(|prefix| name.starts_with(prefix));
    let value = value.trim().trim_end_matches('.');
    (is_name && known).then(|| Fact::Variable(name.to_owned(), value.to_owned()))
}

/// `ncclCommInitRank comm 0x1 rank 1 nranks 16 ... commId 0x2 - Init COMPLETE`, `... parent 0x1 splitCount 1
/// color 3 key 0 - Init START`, and `comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 1`.
fn member(text: &str) -> Option<Member> {
    // 2.3 has no `Init`.
    let complete = text.contains("Init COMPLETE") || text.ends_with(" - COMPLETE");
    let started = text.contains("Init START");
    if !complete && !started && !text.contains(" nNodes ") {
        return None;
    }
    let mut member = Member {
        started,
        complete,
        ..Member::default()
    };
    let (mut rank, mut ranks, mut parent, mut count, mut color) = (None, None, None, 0, None);
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.windows(2) {
        let [name, value] = pair else { continue };
        match *name {
            "comm" => member.comm = address(value)?,
            "rank" => rank = value.parse().ok(),
            "nranks" | "nRanks" => ranks = value.parse().ok(),
            "nNodes" => member.nodes = value.parse().ok(),
            "commId" => member.id = Some(address(value)?),
            "parent" => parent = Some(address(value)?),
            "splitCount" | "childCount" => count = value.parse().ok()?,
            "color" => color = value.parse().ok(),
            _ => {}
        }
    }
    (member.rank, member.ranks) = (rank?, ranks?);
    member.part_of = parent.zip(color).map(|(parent, color)| (parent, count, color));
    (member.rank < member.ranks).then_some(member)
}

fn address(word: &str) -> Option<u64> {
    if word == "(nil)" {
        return Some(0);
    }
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}
