//! Who is at the other end of a QP.
//!
//! Two QPs of this host are connected when each names the other's number, and the address that one sends to
//! belongs to the port of the other. Numbers alone are not enough: each device gives its own, and a QP on
//! another host may have the same.
//!
//! Nor are addresses, where the two devices are in different network namespaces: one private address may be
//! in many networks, and each function of a card numbers its QPs from the same number on. There the addresses
//! of both ends have to agree, and still the peer is only likely.

use std::net::Ipv6Addr;
use std::sync::{Arc, OnceLock};

use super::Judgement;
use crate::facts::{Facts, QpRow};
use crate::ib::Gid;

/// The other end of a QP.
#[derive(Clone, Copy, Debug)]
pub enum Peer<'a> {
    /// A QP of this host.
    Here {
        /// The QP at the other end.
        qp: &'a QpRow,
        /// The addresses agree, in one network namespace. Otherwise the numbers do, and those of no other QP:
        /// the addresses are not known, or agree across namespaces.
        sure: bool,
    },
    /// The peer is elsewhere, or a QP that cannot be told apart from others.
    At(Gid),
}

impl Peer<'_> {
    /// In a word or two: PID and name, with `~` before it where the numbers alone say so; else an address.
    pub fn name(&self) -> String {
        match self {
            Self::Here { qp, sure } => {
                let mark = if *sure { "" } else { "~" };
                let comm = qp.comm.as_deref().unwrap_or("?");
                match qp.pid {
                    Some(pid) => format!("{mark}{pid} {comm}"),
                    None => format!("{mark}{comm}"),
                }
            }
            Self::At(gid) => address(*gid),
        }
    }
}

/// A GID as an address: IPv4 where it maps one.
pub fn address(gid: Gid) -> String {
    gid.ipv4()
        .map_or_else(|| Ipv6Addr::from(gid.0).to_string(), |ip| ip.to_string())
}

/// Where live QPs are, by their own number and that of their peer. Made when something asks for a peer.
#[derive(Clone, Debug, Default)]
pub(super) struct ByNumbers(OnceLock<Vec<(u64, usize)>>);

/// The map follows from the rows, which are compared elsewhere.
impl PartialEq for ByNumbers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn key(own: u32, remote: u32) -> u64 {
    u64::from(own) << 32 | u64::from(remote)
}

impl ByNumbers {
    fn of(&self, qps: &[Arc<QpRow>]) -> &[(u64, usize)] {
        self.0.get_or_init(|| {
            let live = qps.iter().enumerate().filter(|(_, qp)| !qp.exited);
            let mut all: Vec<_> = live
                .filter_map(|(at, qp)| Some((key(qp.qpn, qp.remote_qpn?), at)))
                .collect();
            all.sort_unstable();
            all
        })
    }

    /// Places of the live QPs with these numbers.
    pub(super) fn places(&self, qps: &[Arc<QpRow>], own: u32, remote: u32) -> impl Iterator<Item = usize> {
        let (all, key) = (self.of(qps), key(own, remote));
        let from = all.partition_point(|(of, _)| *of < key);
        all[from..]
            .iter()
            .take_while(move |(of, _)| *of == key)
            .map(|(_, at)| *at)
    }
}

/// Whether each of two QPs sends what the other one expects: the packet numbers of a connection begin
/// anywhere among sixteen million. They are from the same dump, which takes a moment, and of those under way.
fn follow_each_other(one: &QpRow, other: &QpRow) -> bool {
    const NEAR: u32 = 1 << 16;
    const ALL: u32 = 1 << 24;
    let near = |sent: Option<u32>, expected: Option<u32>| {
        let apart = sent
            .zip(expected)
            .map(|(sent, expected)| sent.wrapping_sub(expected) % ALL);
        apart.is_some_and(|apart| apart.min(ALL - apart) < NEAR)
    };
    near(one.sq_psn, other.rq_psn) && near(other.sq_psn, one.rq_psn)
}

/// Whether the port of a QP has this address; `None` when its addresses are not known.
fn has(facts: &Facts, qp: &QpRow, gid: Gid) -> Option<bool> {
    let mut known = None;
    let is_its = |port: &u32| qp.port.is_none_or(|own| own == *port);
    let ports = facts.ports.iter();
    for port in ports.filter(|row| Some(row.device_uid) == qp.device_uid && is_its(&row.port)) {
        match &port.gids {
            Some(gids) if gids.iter().any(|own| own.gid == gid) => return Some(true),
            Some(_) => known = Some(false),
            None => {}
        }
    }
    known
}

/// The network namespace of the device of a QP, if that is not rdmatop's own.
fn netns(facts: &Facts, qp: &QpRow) -> Option<u64> {
    let mut devices = facts.devices.iter();
    devices.find(|row| Some(row.uid) == qp.device_uid)?.netns
}

impl Judgement {
    /// Who is at the other end of a QP of the facts that were judged; `None` when it is not known.
    pub fn peer<'a>(&self, facts: &'a Facts, qp: &QpRow) -> Option<Peer<'a>> {
        let elsewhere = qp.remote_gid.map(Peer::At);
        let Some(remote) = qp.remote_qpn.filter(|_| !qp.exited) else {
            return elsewhere;
        };
        // Of both ends: whether the address that one sends to is the other's.
        let (mut sure, mut open) = (None, None);
        let (mut of_sure, mut of_open) = (0, 0);
        // Of QPs with these numbers on several devices.
        let (mut near, mut of_near) = (None, 0);
        for at in self.rows.by_numbers.places(&facts.qps, remote, qp.qpn) {
            let Some(other) = facts.qps.get(at).filter(|other| other.uid != qp.uid) else {
                continue;
            };
            let there = qp.remote_gid.and_then(|gid| has(facts, other, gid));
            let back = other.remote_gid.and_then(|gid| has(facts, qp, gid));
            let same_netns = netns(facts, qp) == netns(facts, other);
            match (there, back) {
                (Some(false), _) | (_, Some(false)) => {}
                (None, _) | (_, None) if !same_netns => {}
                (None, None) | (Some(true), Some(true)) if !same_netns || there.is_none() => {
                    (open, of_open) = (Some(other), of_open + 1);
                    if follow_each_other(qp, other) {
                        (near, of_near) = (open, of_near + 1);
                    }
                }
                _ => (sure, of_sure) = (Some(other), of_sure + 1),
            }
        }
        if of_open > 1 && of_near == 1 {
            (open, of_open) = (near, 1);
        }
        match (of_sure, of_open, sure, open) {
            (1, _, Some(qp), _) => Some(Peer::Here { qp, sure: true }),
            (0, 1, _, Some(qp)) => Some(Peer::Here { qp, sure: false }),
            _ => elsewhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::input::PortGid;
    use crate::snapshot::Snapshot;
    use crate::testkit::{self, rows};
    use proptest::prelude::*;

    fn gid(last: u8) -> Gid {
        Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last])
    }

    /// A QP on device `n`, whose address is 10.0.0.n.
    fn qp(uid: u64, n: u64, qpn: u32, remote: u32, to: Option<u8>) -> Arc<QpRow> {
        let pid = u32::try_from(uid).unwrap() + 100;
        let mut row = rows::qp(
            uid,
            &format!("rxe{n}"),
            qpn,
            3,
            Some(pid),
            "rank",
            rows::traffic(1.0, 1.0, 0),
        );
        let edit = Arc::make_mut(&mut row);
        (edit.device_uid, edit.port) = (Some(n), Some(1));
        (edit.remote_qpn, edit.remote_gid) = (Some(remote), to.map(gid));
        row
    }

    fn host(qps: Vec<Arc<QpRow>>, known: bool) -> Snapshot {
        let mut s = testkit::empty();
        for n in 1..=3_u8 {
            let (device, mut port) = rows::rail(n.into(), &format!("rxe{n}"), None, None, None);
            let own = PortGid {
                index: 1,
                gid: gid(n),
                v1: Some(false),
            };
            port.gids = known.then(|| vec![own].into());
            s.devices.push(device);
            s.ports.push(port);
        }
        s.qps = qps.into();
        s.judged(None)
    }

    fn names(s: &Snapshot) -> Vec<String> {
        s.qps
            .iter()
            .map(|row| s.peer(row).map_or_else(|| "-".to_owned(), |peer| peer.name()))
            .collect()
    }

    #[test]
    fn both_ends_on_one_host_name_each_other() {
        let pair = || vec![qp(1, 1, 17, 18, Some(2)), qp(2, 2, 18, 17, Some(1))];
        assert_eq!(names(&host(pair(), true)), ["102 rank", "101 rank"]);
        assert_eq!(names(&host(pair(), false)), ["~102 rank", "~101 rank"]);
    }

    #[test]
    fn a_qp_of_another_host_with_equal_numbers_is_not_taken_for_ours() {
        // 17 talks to 18 of 10.0.0.9, 18 talks to 17 of 10.0.0.8.
        let s = host(vec![qp(1, 1, 17, 18, Some(9)), qp(2, 1, 18, 17, Some(8))], true);
        assert_eq!(names(&s), ["10.0.0.9", "10.0.0.8"]);
    }

    #[test]
    fn equal_numbers_on_two_devices_are_told_apart_by_address_if_at_all() {
        let qps = |to: Option<u8>| {
            vec![
                qp(1, 1, 17, 18, to),
                qp(2, 2, 18, 17, Some(1)),
                qp(3, 3, 18, 17, Some(1)),
            ]
        };
        assert_eq!(names(&host(qps(Some(3)), true))[0], "103 rank");
        assert_eq!(
            names(&host(qps(Some(3)), false))[0],
            "10.0.0.3",
            "no address is known"
        );
        assert_eq!(names(&host(qps(None), true))[0], "-");
    }

    #[test]
    fn earlier_connections_are_known_by_their_numbers_or_their_other_end() {
        let s = host(vec![qp(1, 1, 17, 18, None), qp(2, 2, 18, 17, None)], true);
        assert_eq!(names(&s), ["~102 rank", "~101 rank"]);
        let s = host(vec![qp(1, 1, 17, 18, None), qp(2, 2, 18, 17, Some(1))], true);
        assert_eq!(names(&s), ["102 rank", "101 rank"]);
    }

    #[test]
    fn the_same_numbers_on_two_devices_are_told_apart_by_their_packet_numbers() {
        // Both pairs were connected before rdmatop came: 17 and 18 of each of two devices.
        let all = |psns: [[u32; 2]; 4]| {
            let mut qps = vec![
                qp(1, 1, 17, 18, None),
                qp(2, 1, 18, 17, None),
                qp(3, 2, 17, 18, None),
                qp(4, 2, 18, 17, None),
            ];
            for (row, [sq, rq]) in qps.iter_mut().zip(psns) {
                let row = Arc::make_mut(row);
                (row.sq_psn, row.rq_psn) = (Some(sq), Some(rq));
            }
            names(&host(qps, true))
        };
        // The first sender is some packets ahead, and its numbers begin anew.
        let told = all([
            [90, 7000],
            [7000, 0xff_fff0],
            [5_000_000, 6_000_000],
            [6_000_000, 5_000_000],
        ]);
        assert_eq!(told, ["~102 rank", "~101 rank", "~104 rank", "~103 rank"]);
        assert_eq!(all([[0, 0]; 4]), ["-"; 4], "all begin with 0");
    }

    #[test]
    fn one_address_in_two_network_namespaces_may_be_two_networks() {
        let pods = |qps: Vec<Arc<QpRow>>, netns: [Option<u64>; 3], gids: [u8; 3]| {
            let mut s = host(qps, true);
            let facts = &mut s.facts;
            for (at, (device, port)) in facts.devices.iter_mut().zip(&mut facts.ports).enumerate() {
                device.netns = netns[at];
                let own = PortGid {
                    index: 1,
                    gid: gid(gids[at]),
                    v1: Some(false),
                };
                port.gids = Some(vec![own].into());
            }
            names(&s.judged(None))
        };
        let pair = |to: Option<u8>| vec![qp(1, 1, 17, 18, to), qp(2, 2, 18, 17, Some(1))];
        let apart = [Some(7), Some(9), None];
        assert_eq!(
            pods(pair(Some(2)), [Some(7); 3], [1, 2, 3]),
            ["102 rank", "101 rank"]
        );
        assert_eq!(pods(pair(Some(2)), apart, [1, 2, 3]), ["~102 rank", "~101 rank"]);
        // The address of one end alone, and numbers alone, say nothing there.
        assert_eq!(pods(pair(None), apart, [1, 2, 3]), ["-", "10.0.0.1"]);
        assert_eq!(pods(pair(None), [None; 3], [1, 2, 3]), ["102 rank", "101 rank"]);
        // Who is in the same namespace is the peer; of two that are not, none is.
        let three = || {
            vec![
                qp(1, 1, 17, 18, Some(2)),
                qp(2, 2, 18, 17, Some(1)),
                qp(3, 3, 18, 17, Some(1)),
            ]
        };
        assert_eq!(
            pods(three(), [Some(7), Some(9), Some(7)], [1, 2, 2])[0],
            "103 rank"
        );
        assert_eq!(pods(three(), [Some(7), Some(9), None], [1, 2, 2])[0], "10.0.0.2");
    }

    #[test]
    fn a_destroyed_qp_is_no_peer() {
        let mut qps = vec![qp(1, 1, 17, 18, Some(2)), qp(2, 2, 18, 17, Some(1))];
        Arc::make_mut(&mut qps[1]).exited = true;
        assert_eq!(names(&host(qps, true)), ["10.0.0.2", "10.0.0.1"]);
    }

    proptest! {
        /// However numbers and addresses fall: who is surely a peer has the address, and says the same of the
        /// other.
        #[test]
        fn a_sure_peer_has_the_address_and_is_one_to_one(
            all in prop::collection::vec((1_u64..4, 1_u32..4, 1_u32..4, prop::option::of(1_u8..5)), 0..12), known: bool,
        ) {
            let mut seen = std::collections::BTreeSet::new();
            let qps = (1..).zip(all).filter(|(_, (n, qpn, ..))| seen.insert((*n, *qpn)));
            let s = host(qps.map(|(uid, (n, qpn, remote, to))| qp(uid, n, qpn, remote, to)).collect(), known);
            for row in &s.qps {
                if let Some(Peer::Here { qp, sure }) = s.peer(row) {
                    prop_assert_eq!((Some(qp.qpn), qp.remote_qpn), (row.remote_qpn, Some(row.qpn)));
                    prop_assert!(known || !sure);
                    if let (Some(to), true) = (row.remote_gid, known) {
                        prop_assert_eq!(has(&s, qp, to), Some(true));
                    }
                }
            }
        }
    }
}
