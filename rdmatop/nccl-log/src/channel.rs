//! Connections of channels: `Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`.

use super::fact::Fact;

/// The longest name of a network; NCCL's plugins have shorter ones.
const LONGEST: usize = 64;

/// Direction of a channel's connection, seen from the process that logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The rank sends.
    Send,
    /// The rank receives.
    Receive,
    /// Inside a host, or by NVLink: one line has both ends.
    Local,
}

/// The transport of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// A network: `NET/IB/0/GDRDMA`.
    Net {
        /// Name of the network, as `Using network` has it.
        name: String,
        /// Number of the NIC in the network.
        device: u32,
        /// Data passes between NIC and GPU without going through the host's memory.
        gpu_direct: bool,
    },
    /// In-network reduction: `COLLNET/SHARP/0`.
    CollNet,
    /// From GPU to GPU; `P2P/MNNVL` if NVLink joins the hosts.
    P2p {
        /// The job uses NVLink between hosts.
        multi_node: bool,
    },
    /// Through the host's memory.
    SharedMemory,
}

/// Reads the text of a line.
pub(super) fn read(text: &str) -> Option<Fact> {
    let (head, rest) = text.split_once(" : ")?;
    let (kind, number) = head.split_once(' ')?;
    match kind {
        // `Ring` until 2.6; `Coll` until 2.8.
        "Channel" | "Ring" | "CollNet" | "Coll" => {}
        _ => return None,
    }
    let (number, count) = match number.split_once('/') {
        Some((number, count)) => (number, Some(count)),
        None => (number, None),
    };
    number.trim().parse::<u32>().ok()?;
    let Some((ranks, via)) = rest.split_once(" via ") else {
        // `Channel 00/16 : 0 1 2 3` is no connection but the ring itself.
        let is_number = |word: &str| word.parse::<u32>().is_ok();
        let ring = kind == "Channel" && rest.split_whitespace().next().is_some_and(is_number);
        return count
            .filter(|_| ring)
            .and_then(|count| count.trim().parse().ok())
            .map(Fact::Channels);
    };
    let words: Vec<&str> = ranks.split_whitespace().collect();
    let direction = match words.last() {
        Some(&"[send]") => Direction::Send,
        Some(&"[receive]") => Direction::Receive,
        _ => Direction::Local,
    };
    match words.as_slice() {
        [from, "->", to, ..] if is_rank(from) && is_rank(to) => {}
        // A connection of CollNet has one rank; its other end is the network.
        [rank, ..] if kind.starts_with("Coll") && is_rank(rank) => {}
        _ => return None,
    }
    Some(Fact::Channel {
        direction,
        transport: parse_transport(via.trim())?,
    })
}

/// `7[4100]`: a rank and its GPU.
fn is_rank(word: &str) -> bool {
    word.split('[')
        .next()
        .is_some_and(|rank| rank.parse::<u32>().is_ok())
}

fn parse_transport(via: &str) -> Option<Transport> {
    if let Some(rest) = via.strip_prefix("NET/") {
        // The name of a plugin may hold spaces and slashes; the number of the device is the first part that
        // is a number.
        let parts: Vec<&str> = rest.split('/').collect();
        let at = parts.iter().position(|part| device(part).is_some())?;
        let name = parts.get(..at)?.join("/");
        let gpu_direct = parts.iter().skip(at + 1).any(|part| part.starts_with("GDRDMA"));
        return (1..=LONGEST).contains(&name.len()).then_some(Transport::Net {
            name,
            device: device(parts.get(at)?)?,
            gpu_direct,
        });
    }
    if via.starts_with("COLLNET/") {
        return Some(Transport::CollNet);
    }
    if let Some(rest) = via.strip_prefix("P2P") {
        let multi_node = rest.starts_with("/MNNVL");
        return Some(Transport::P2p { multi_node });
    }
    (via.starts_with("SHM") || via.contains("shared memory")).then_some(Transport::SharedMemory)
}

/// The number in `2` or `2(3)` (by the process of rank 3). In RCCL more may follow: `0 comm 0x55`.
fn device(part: &str) -> Option<u32> {
    let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
    let (number, rest) = part.split_at_checked(end)?;
    let ends = rest.is_empty() || rest.starts_with(['(', ' ', '"', '\\']);
    number.parse().ok().filter(|_| ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(text: &str) -> Option<Transport> {
        match read(&format!("Channel 00/0 : 0[0] -> 8[0] [send] via {text}")) {
            Some(Fact::Channel { transport, .. }) => Some(transport),
            _ => None,
        }
    }

    #[test]
    fn a_device_is_a_whole_number_and_nothing_is_made_of_a_part() {
        let net = |name: &str, device, gpu_direct| {
            Some(Transport::Net {
                name: name.to_owned(),
                device,
                gpu_direct,
            })
        };
        assert_eq!(via("NET/IB/12/GDRDMA"), net("IB", 12, true));
        assert_eq!(via("NET/IB/2(3)/GDRDMA(PCI)/Shared"), net("IB", 2, true));
        assert_eq!(
            via("NET/AWS Libfabric/7/GDRDMA/Shared"),
            net("AWS Libfabric", 7, true)
        );
        assert_eq!(via("NET/UCX/0 comm 0x55 nRanks 16"), net("UCX", 0, false));
        for torn in ["NET/IB/1rectory", "NET/IB", "NET/IB/", "NET//0", "NE"] {
            assert_eq!(via(torn), None, "{torn}");
        }
        assert_eq!(read("Channel 00/0 : 0[0] -> x [send] via NET/IB/0"), None);
        assert_eq!(read("Channel x/0 : 0[0] -> 1[0] [send] via NET/IB/0"), None);
    }

    #[test]
    fn a_ring_is_a_list_of_ranks() {
        assert_eq!(read("Channel 00/16 : 0 1 2"), Some(Fact::Channels(16)));
        assert_eq!(read("Channel 00/04 :    0   1"), Some(Fact::Channels(4)));
        for cut in [
            "Channel 00/0 : 6[",
            "Channel 00/0 : 6[6] -> 5[5]",
            "Channel 00/0 : ",
        ] {
            assert_eq!(read(cut), None, "{cut}");
        }
    }

    #[test]
    fn what_needs_no_network_is_told_apart() {
        assert_eq!(via("P2P/CUMEM/read"), Some(Transport::P2p { multi_node: false }));
        assert_eq!(via("P2P/MNNVL"), Some(Transport::P2p { multi_node: true }));
        assert_eq!(via("SHM/direct/direct"), Some(Transport::SharedMemory));
        let collnet = Some(Fact::Channel {
            direction: Direction::Receive,
            transport: Transport::CollNet,
        });
        assert_eq!(
            read("CollNet 00/0 : 4 [receive] via COLLNET/SHARP/0/GDRDMA"),
            collnet
        );
        assert_eq!(read("Coll 00 : 4 [receive] via COLLNET/SHARP/0"), collnet);
    }
}
