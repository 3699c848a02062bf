//! The fact in one line.
//!
//! The spellings are those of NCCL 2.4 to 2.30 (src/transport/net.cc, net_ib, net_socket.cc, p2p.cc, shm.cc, coll_net.cc,
//! src/graph/{topo,paths}.cc, src/plugin, src/init.cc), of RCCL, which keeps them, and of aws-ofi-nccl (`NET/OFI ...`).

/// Direction of a channel's connection, seen from the process that logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It sends.
    Send,
    /// It receives.
    Receive,
    /// Inside a host: both ends in one line.
    Local,
}

/// The transport of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// A network: `NET/IB/0/GDRDMA`.
    Net {
        /// Name of the network, as `Using network` has it.
        name: String,
        /// Number of its device.
        device: u32,
        /// Data passes between NIC and GPU without the host's memory.
        gpu_direct: bool,
    },
    /// In-network reduction: `COLLNET/SHARP/0`.
    CollNet {
        /// Name of the network.
        name: String,
        /// Number of its device.
        device: u32,
        /// As of [`Via::Net`].
        gpu_direct: bool,
    },
    /// GPU to GPU.
    Peer,
    /// The host's memory.
    Memory,
}

/// A NIC of the list `NET/IB : Using`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hca {
    /// Its number in `NET/IB/N`.
    pub index: u32,
    /// RDMA device.
    pub device: String,
    /// Port.
    pub port: u32,
    /// `IB` or `RoCE`.
    pub link: String,
}

/// The fact in one line.
#[derive(Clone, Debug, PartialEq)]
pub enum Fact {
    /// The library and its version.
    Version(String),
    /// A connection of a channel.
    Channel {
        /// Channel.
        channel: u32,
        /// Rank that sends.
        from: u32,
        /// Rank that receives.
        to: u32,
        /// Direction.
        way: Way,
        /// Transport.
        via: Via,
    },
    /// Number of channels: `Channel 00/16 : 0 1 2`.
    Channels(u32),
    /// NICs of the transport IB.
    Hcas(Vec<Hca>),
    /// IB found none.
    NoHca,
    /// Interfaces of the transport Socket.
    Interfaces(Vec<String>),
    /// The network that was chosen.
    Network(String),
    /// GPUDirect RDMA of a NIC.
    GpuDirect {
        /// Usable.
        on: bool,
        /// Its number.
        device: u32,
        /// Its name.
        name: Option<String>,
        /// Why not: `no module`, `distance 8 > 4`.
        why: Option<String>,
    },
    /// A variable that NCCL reports to have read.
    Variable {
        /// Name.
        name: String,
        /// Value.
        value: String,
    },
    /// A network plugin was loaded.
    Plugin(String),
    /// A network plugin was not, and why.
    NoPlugin(String),
    /// libfabric's provider, under aws-ofi-nccl.
    Provider {
        /// Its name.
        name: String,
        /// NICs that it found.
        nics: Option<u32>,
    },
    /// Protocol of aws-ofi-nccl.
    Protocol(String),
    /// A rank joined, or is about to.
    Rank {
        /// Its number.
        rank: u32,
        /// Number of ranks.
        ranks: u32,
        /// It has.
        complete: bool,
    },
    /// Bandwidth of a NIC in NCCL's own topology, GB/s.
    NicSpeed {
        /// Its number.
        device: u32,
        /// GB/s.
        gigabytes: f64,
    },
}

impl Fact {
    /// Whether it is about the process that logs it, and not about the job, a connection or a NIC of the host.
    pub fn is_of_process(&self) -> bool {
        match self {
            Self::Hcas(_)
            | Self::NoHca
            | Self::Interfaces(_)
            | Self::Network(_)
            | Self::GpuDirect { .. }
            | Self::Variable { .. }
            | Self::Plugin(_)
            | Self::NoPlugin(_)
            | Self::Provider { .. }
            | Self::Rank { .. } => true,
            Self::Version(_)
            | Self::Channel { .. }
            | Self::Channels(_)
            | Self::Protocol(_)
            | Self::NicSpeed { .. } => false,
        }
    }
}

/// Reads a plain line.
pub fn plain(line: &str) -> Option<Fact> {
    for library in ["NCCL", "RCCL"] {
        let rest = line
            .find(&format!("{library} version "))
            .and_then(|at| line.get(at..));
        if let Some(version) = rest.and_then(|rest| rest.split_whitespace().nth(2)) {
            return Some(Fact::Version(format!("{library} {version}")));
        }
    }
    None
}

/// Reads a line of NCCL's.
pub fn of(text: &str) -> Option<Fact> {
    channel(text)
        .or_else(|| network(text))
        .or_else(|| gpu_direct(text))
        .or_else(|| plugin(text))
        .or_else(|| libfabric(text))
        .or_else(|| variable(text))
        .or_else(|| rank(text))
        .or_else(|| nic_speed(text))
        .or_else(|| plain(text))
}

/// `7[4100]`: a rank and its GPU.
fn rank_of(word: &str) -> Option<u32> {
    word.split('[').next()?.parse().ok()
}

fn channel(text: &str) -> Option<Fact> {
    let (head, rest) = text.split_once(" : ")?;
    let (kind, number) = head.split_once(' ')?;
    match kind {
        // `Ring` until 2.7.
        "Channel" | "Ring" | "CollNet" => {}
        _ => return None,
    }
    let (number, count) = match number.split_once('/') {
        Some((number, count)) => (number, Some(count)),
        None => (number, None),
    };
    let channel = number.trim().parse().ok()?;
    let Some((ranks, via)) = rest.split_once(" via ") else {
        // `Channel 00/16 : 0 1 2 3`: the ring itself.
        let ring = !rest.contains("->") && kind == "Channel";
        return count
            .filter(|_| ring)
            .and_then(|count| count.trim().parse().ok())
            .map(Fact::Channels);
    };
    let words: Vec<&str> = ranks.split_whitespace().collect();
    let way = match words.last() {
        Some(&"[send]") => Way::Send,
        Some(&"[receive]") => Way::Receive,
        _ => Way::Local,
    };
    let (from, to) = match words.as_slice() {
        [from, "->", to, ..] => (rank_of(from)?, rank_of(to)?),
        // CollNet has one end: the network.
        [rank, ..] if kind == "CollNet" => (rank_of(rank)?, rank_of(rank)?),
        _ => return None,
    };
    Some(Fact::Channel {
        channel,
        from,
        to,
        way,
        via: carried_by(via)?,
    })
}

fn carried_by(via: &str) -> Option<Via> {
    let over = |rest: &str| -> Option<(String, u32, bool)> {
        // The name of a plugin may hold spaces and slashes; the device's number is the first part that is one.
        let parts: Vec<&str> = rest.split('/').collect();
        let number = |part: &&str| {
            part.split('(')
                .next()
                .is_some_and(|n| n.trim().parse::<u32>().is_ok())
        };
        let at = parts.iter().position(number)?;
        let device = parts.get(at)?.split('(').next()?.trim().parse().ok()?;
        let name = parts.get(..at)?.join("/");
        let gpu_direct = parts.iter().skip(at + 1).any(|part| part.starts_with("GDRDMA"));
        (!name.is_empty()).then_some((name, device, gpu_direct))
    };
    let via = via.trim();
    if let Some(rest) = via.strip_prefix("NET/") {
        let (name, device, gpu_direct) = over(rest)?;
        return Some(Via::Net {
            name,
            device,
            gpu_direct,
        });
    }
    if let Some(rest) = via.strip_prefix("COLLNET/") {
        let (name, device, gpu_direct) = over(rest)?;
        return Some(Via::CollNet {
            name,
            device,
            gpu_direct,
        });
    }
    if via.starts_with("P2P") {
        return Some(Via::Peer);
    }
    (via.starts_with("SHM") || via.contains("shared memory")).then_some(Via::Memory)
}

/// `[0]mlx5_0:1/RoCE [1]mlx5_1:1/IB [RO]`.
fn hcas(list: &str) -> Vec<Hca> {
    let one = |item: &str| -> Option<Hca> {
        let (index, rest) = item.strip_prefix('[')?.split_once(']')?;
        let (device, link) = rest.rsplit_once('/')?;
        let (device, port) = device.split_once(':')?;
        Some(Hca {
            index: index.parse().ok()?,
            device: device.to_owned(),
            port: port.split(':').next()?.parse().ok()?,
            link: link.to_owned(),
        })
    };
    list.split_whitespace().filter_map(one).collect()
}

/// `[0]eth0:192.0.2.1<0>`.
fn interfaces(list: &str) -> Vec<String> {
    let one = |item: &str| Some(item.split_once(']')?.1.split(':').next()?.to_owned());
    list.split_whitespace().filter_map(one).collect()
}

fn network(text: &str) -> Option<Fact> {
    if let Some(name) = text.strip_prefix("Using network ") {
        return Some(Fact::Network(name.trim().to_owned()));
    }
    // Since 2.27.
    if let Some(rest) = text.strip_prefix("Assigned NET plugin ") {
        return Some(Fact::Network(
            rest.strip_suffix(" to comm").unwrap_or(rest).to_owned(),
        ));
    }
    let rest = text.strip_prefix("NET/")?;
    let (transport, what) = rest.split_once(':')?;
    let what = what.trim();
    match (transport.trim(), what.strip_prefix("Using")) {
        ("IB", Some(list)) => Some(Fact::Hcas(hcas(list.split(';').next()?))),
        ("Socket", Some(list)) => Some(Fact::Interfaces(interfaces(list))),
        ("IB", None) if what.starts_with("No device found") => Some(Fact::NoHca),
        _ => None,
    }
}

fn gpu_direct(text: &str) -> Option<Fact> {
    let (_, rest) = text.split_once("GPU Direct RDMA ")?;
    let (on, rest) = match rest.split_once(' ')? {
        ("Enabled", rest) => (true, rest),
        ("Disabled", rest) => (false, rest),
        _ => return None,
    };
    // `for HCA 0 'mlx5_0' (no module)`; until 2.8 `for GPU 7000 / HCA 0 (distance 8 > 4), read 0`.
    let (_, hca) = rest.split_once("HCA ")?;
    let device = hca.split([' ', ',']).next()?.parse().ok()?;
    let name = hca.split('\'').nth(1).map(str::to_owned);
    let why = hca
        .split_once('(')
        .and_then(|(_, why)| Some(why.split_once(')')?.0.to_owned()));
    Some(Fact::GpuDirect {
        on,
        device,
        name,
        why: why.filter(|_| !on),
    })
}

fn plugin(text: &str) -> Option<Fact> {
    if let Some(rest) = text.strip_prefix("NET/Plugin") {
        let rest = rest.trim_start_matches([' ', ':']);
        if let Some(name) = rest.strip_prefix("Loaded net plugin ") {
            return Some(Fact::Plugin(name.split(" (").next()?.to_owned()));
        }
        let missing = rest.starts_with("No plugin found")
            || rest.starts_with("Could not find")
            || rest.starts_with("Plugin load")
            || rest.starts_with("Failed to");
        return missing.then(|| Fact::NoPlugin(rest.to_owned()));
    }
    let failed = text.starts_with("Failed to initialize NET plugin ")
        || (text.starts_with("External network plugin ") && text.contains("unsupported"));
    failed.then(|| Fact::NoPlugin(text.to_owned()))
}

fn libfabric(text: &str) -> Option<Fact> {
    let rest = text.strip_prefix("NET/OFI ")?;
    let lower = rest.to_lowercase();
    if lower.starts_with("selected provider is ") {
        let rest = rest.get("selected provider is ".len()..)?;
        let nics = rest
            .split_once("(found ")
            .and_then(|(_, found)| found.split(' ').next()?.parse().ok());
        let name = rest.split([',', ' ']).next()?.to_owned();
        return Some(Fact::Provider { name, nics });
    }
    let protocol = rest.strip_prefix("Using transport protocol ")?;
    Some(Fact::Protocol(protocol.split(' ').next()?.to_owned()))
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
    (is_name && known).then(|| Fact::Variable {
        name: name.to_owned(),
        value: value.to_owned(),
    })
}

fn rank(text: &str) -> Option<Fact> {
    let complete = text.contains("Init COMPLETE");
    if !complete && !text.contains("Init START") {
        return None;
    }
    let after = |word: &str| {
        let (_, rest) = text.split_once(word)?;
        rest.split(' ').next()?.parse().ok()
    };
    Some(Fact::Rank {
        rank: after(" rank ")?,
        ranks: after(" nranks ")?,
        complete,
    })
}

/// `+ NET[12.0] - NET/0 (0/0/12.5)` of the topology that NCCL prints.
fn nic_speed(text: &str) -> Option<Fact> {
    let (_, rest) = text.split_once("+ NET[")?;
    let (speed, rest) = rest.split_once("] - NET/")?;
    let device = rest.split([' ', '-']).next()?.parse().ok()?;
    let gigabytes: f64 = speed.parse().ok()?;
    (gigabytes.is_finite() && gigabytes > 0.0).then_some(Fact::NicSpeed { device, gigabytes })
}
