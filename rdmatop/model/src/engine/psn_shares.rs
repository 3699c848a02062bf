//! What the packets of queue pairs say of the bytes of each user of a port. docs/model.md, "Shares by PSN",
//! has the reasons of each rule.
//!
//! A PSN counts packets of one direction and says nothing of their size. So a user's bytes are between two
//! bounds, and what no PSN explains may be anybody's.

use std::collections::BTreeMap;

/// The largest and the smallest path MTU that there is, bytes.
const MTU: (f64, f64) = (4096.0, 256.0);
/// Headers of a packet at most, as the port may count them: Ethernet with a VLAN and its checksum (22), IPv6
/// (40), UDP (8), BTH (12), RETH with immediate data (20), ICRC (4). On InfiniBand there are less.
pub(super) const HEADERS: f64 = 106.0;
/// Those of them that are Ethernet's.
const ETHERNET: f64 = 22.0;
/// A packet at most, of whatever transport: those of DC and XRC have some more headers.
const ANY: f64 = MTU.0 + HEADERS + 32.0;
/// One that carries neither data of a request nor of an answer to a READ: a management datagram is the
/// largest.
const SMALL: f64 = 256.0 + HEADERS + 32.0;
/// By how much an IPv4 header is shorter than one of IPv6.
const LESS_BY_IPV4: f64 = 20.0;
/// How far the packets that PSNs explain may be from those that the port counted, as a part of the latter.
const DISTANCE: f64 = 0.03;
/// Counters and PSNs are not read at one moment: so large a part of a port's packets at least is never taken
/// as explained.
const SKEW: f64 = 1.0 / 400.0;
/// With an upper bound of at most so many lower bounds, the middle of both is at most 5 % wrong.
const CLOSE: f64 = 1.1;

/// What a port moved each second: sent and received.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortRates {
    pub(super) packets: [f64; 2],
    pub(super) bytes: [f64; 2],
    /// The NIC counts the READs of peers, and there was none.
    pub(super) no_reads: bool,
    /// The PSNs of all queue pairs that can have moved data are known, and nothing was sent twice: what they
    /// do not explain is answers.
    pub(super) answers: [bool; 2],
    /// The bytes are those of Ethernet, too.
    pub(super) has_ethernet: bool,
    /// The part of the time that lay between counters and PSNs when they were read.
    pub(super) between: [f64; 2],
}

impl PortRates {
    /// Packets that may have moved between the two: users may take turns on a port that is always busy.
    fn skew(&self, way: usize) -> f64 {
        self.packets[way] * self.between[way].max(SKEW)
    }
}

/// By how much the PSNs of a queue pair moved each second.
#[derive(Clone, Copy, Debug)]
pub(super) struct QpRates {
    /// Whose it is; `None`: nobody knows.
    pub(super) user: Option<u64>,
    /// Send and receive PSN; one that is not known is 0: its packets are not explained.
    pub(super) psns: [f64; 2],
    pub(super) path_mtu: Option<u16>,
    /// Its peer has an IPv4 address.
    pub(super) is_ipv4: bool,
    /// It can READ and be read (RC).
    pub(super) may_read: bool,
}

impl QpRates {
    /// Bytes of one of its packets at most.
    fn most(&self, port: &PortRates) -> f64 {
        let ip = if self.is_ipv4 { LESS_BY_IPV4 } else { 0.0 };
        let link = if port.has_ethernet { 0.0 } else { ETHERNET };
        self.path_mtu.map_or(MTU.0, f64::from) + HEADERS - ip - link
    }
}

/// What is known of a user's part of a direction, each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Packets at least.
    pub(super) packets: f64,
    /// Bytes at least and at most.
    pub(super) bytes: [f64; 2],
}

impl Part {
    /// The bytes, if both bounds are close: then the middle is at most 5 % wrong.
    pub(super) fn close(&self) -> Option<f64> {
        let [least, most] = self.bytes;
        (most <= least * CLOSE).then_some(f64::midpoint(least, most))
    }
}

/// One direction of a port, of which PSNs explain nearly all packets.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Way {
    /// What the port moved.
    pub(super) bytes: f64,
    /// Packets that PSNs may count too many: answers to READs, which pass in the other direction.
    surplus: f64,
    /// What packets carry at most that may be anybody's.
    rest: f64,
    /// Packets of each user, and what they carry at most.
    users: BTreeMap<u64, (f64, f64)>,
    /// What the packets of all users carry at most.
    all: f64,
    /// The part of the port's packets that PSNs explain.
    pub(super) explained: f64,
}

impl Way {
    /// A user's part. One without a PSN here may have what is not explained.
    pub(super) fn part(&self, user: u64) -> Part {
        let (packets, most) = self.users.get(&user).copied().unwrap_or_default();
        let others = self.all - most + self.rest;
        Part {
            packets: (packets - self.surplus).max(0.0),
            bytes: [(self.bytes - others).max(0.0), (most + self.rest).min(self.bytes)],
        }
    }
}

/// Both directions of a port; `None` where PSNs do not explain its packets.
pub(super) fn ways(port: &PortRates, qps: &[QpRates]) -> [Option<Way>; 2] {
    let surplus = surplus(port, qps);
    [0, 1].map(|way| {
        let (counted, back) = (port.packets[way], 1 - way);
        // Where nothing else is left, what PSNs do not explain is small, but for answers to READs.
        let large = match port.answers[way] {
            false => f64::INFINITY,
            true if way == 0 && port.no_reads => 0.0,
            true => read(qps, back),
        };
        let sent = explained(port, qps, way, |qp| qp.psns[way], (surplus[way], large));
        // Or what moved the PSNs of the other direction was answers, but for as many packets as moved there.
        let others = port.packets[back] + port.skew(back);
        let large = if port.answers[way] { 0.0 } else { f64::INFINITY };
        let moved = |qp: &QpRates| qp.psns[way] + if qp.may_read { qp.psns[back] } else { 0.0 };
        let read = explained(port, qps, way, moved, (others, large));
        let holds = |way: &Way| counted > 0.0 && (way.explained - 1.0).abs() <= DISTANCE;
        let both = [sent, read].into_iter().filter(holds);
        let mut best = both.min_by(|one, other| one.rest.total_cmp(&other.rest))?;
        best.explained = best.explained.min(1.0);
        Some(best)
    })
}

/// What a direction of a port is if queue pairs moved so many packets there, of which `surplus` may be too
/// many, and if of what is not explained so many are `large`.
fn explained(
    port: &PortRates,
    qps: &[QpRates],
    way: usize,
    moved: impl Fn(&QpRates) -> f64,
    (surplus, large): (f64, f64),
) -> Way {
    let counted = port.packets[way];
    let sum: f64 = qps.iter().map(&moved).sum();
    // What is sent twice, acknowledgements, answers and the packets of queue pairs that nobody lists.
    let unexplained = (counted - sum).abs() + surplus;
    let large = large.min(unexplained);
    let mut rest = (large + port.skew(way)) * ANY + (unexplained - large) * SMALL;
    let mut users: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for qp in qps {
        let most_of_it = moved(qp) * qp.most(port);
        match qp.user {
            Some(user) => {
                let (packets, most) = users.entry(user).or_default();
                *packets += moved(qp);
                *most += most_of_it;
            }
            None => rest += most_of_it,
        }
    }
    Way {
        bytes: port.bytes[way],
        surplus,
        rest,
        all: users.values().map(|(_, most)| most).sum(),
        users,
        explained: sum / counted,
    }
}

fn total(qps: &[QpRates], way: usize) -> f64 {
    qps.iter().map(|qp| qp.psns[way]).sum()
}

/// How many packets may be answers to READs, in the other direction.
fn read(qps: &[QpRates], way: usize) -> f64 {
    let readers = qps.iter().filter(|qp| qp.may_read);
    readers.map(|qp| qp.psns[way]).sum()
}

/// By how much the PSNs of each direction may exceed the packets that moved in it. A READ moves the PSN by
/// the packets of its answer and is one packet itself; all packets of an answer but the last are full and
/// pass in the other direction.
fn surplus(port: &PortRates, qps: &[QpRates]) -> [f64; 2] {
    let readers = || qps.iter().filter(|qp| qp.may_read);
    let mtu = |qp: &QpRates| qp.path_mtu.map_or(MTU.1, f64::from);
    let full = readers().map(mtu).fold(MTU.0, f64::min);
    let most = |way: usize| read(qps, way).min(port.bytes[1 - way] / full);
    let mut surplus = [most(0), if port.no_reads { 0.0 } else { most(1) }];
    for way in [0, 1] {
        // The other direction has those answers beside its own requests.
        let counted = port.packets[1 - way];
        let off = (counted - total(qps, 1 - way)).abs();
        surplus[way] = surplus[way].min(off + port.skew(1 - way) + surplus[1 - way]);
    }
    surplus
}

#[cfg(test)]
pub(super) mod tests;
