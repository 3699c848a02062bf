//! What the packets of queue pairs say of the bytes of each user of a port. docs/model.md, "Shares by PSN", has
//! the reasons of each rule.
//!
//! A PSN counts packets of one direction and says nothing of their size. So a user's bytes are between two
//! bounds, and what no PSN explains may be anybody's.

use std::collections::BTreeMap;

/// The largest and the smallest path MTU that there is, bytes.
const MTU: (f64, f64) = (4096.0, 256.0);
/// Headers of a packet at most, as the port may count them: Ethernet with a VLAN and its checksum (22), IPv6
/// (40), UDP (8), BTH (12), RETH with immediate data (20), ICRC (4). On InfiniBand there are less.
const HEADERS: f64 = 106.0;
/// A packet at most, of whatever transport: those of DC and XRC have some more headers.
const ANY: f64 = MTU.0 + HEADERS + 32.0;
/// By how much an IPv4 header is shorter than one of IPv6.
const LESS_BY_IPV4: f64 = 20.0;
/// How far the packets that PSNs explain may be from those that the port counted, as a part of the latter.
const DISTANCE: f64 = 0.03;
/// Counters and PSNs are not read at one moment: this part of a port's packets is never taken as explained.
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
    /// The same where it is not known what its path is.
    pub(super) fn of_any_path(self) -> Self {
        Self {
            path_mtu: None,
            is_ipv4: false,
            ..self
        }
    }

    /// Bytes of one of its packets at most.
    fn most(&self) -> f64 {
        let less = if self.is_ipv4 { LESS_BY_IPV4 } else { 0.0 };
        self.path_mtu.map_or(MTU.0, f64::from) + HEADERS - less
    }
}

/// What is known of a user's part of a direction, each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    /// Packets by PSN.
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
    bytes: f64,
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
            packets,
            bytes: [(self.bytes - others).max(0.0), (most + self.rest).min(self.bytes)],
        }
    }
}

/// Both directions of a port; `None` where PSNs do not explain its packets.
pub(super) fn ways(port: &PortRates, qps: &[QpRates]) -> [Option<Way>; 2] {
    let surplus = surplus(port, qps);
    [0, 1].map(|way| {
        let (counted, explained) = (port.packets[way], total(qps, way));
        let off = (counted - explained).abs();
        // What is sent twice, acknowledgements, answers and the packets of queue pairs that nobody lists.
        let unexplained = off + surplus[way] + counted * SKEW;
        let mut rest = unexplained * ANY;
        let mut users: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for qp in qps {
            let most_of_it = qp.psns[way] * qp.most();
            match qp.user {
                Some(user) => {
                    let (packets, most) = users.entry(user).or_default();
                    *packets += qp.psns[way];
                    *most += most_of_it;
                }
                None => rest += most_of_it,
            }
        }
        (counted > 0.0 && off <= counted * DISTANCE).then(|| Way {
            bytes: port.bytes[way],
            rest,
            all: users.values().map(|(_, most)| most).sum(),
            users,
            explained: (explained / counted).min(1.0),
        })
    })
}

fn total(qps: &[QpRates], way: usize) -> f64 {
    qps.iter().map(|qp| qp.psns[way]).sum()
}

/// By how much the PSNs of each direction may exceed the packets that moved in it. A READ moves the PSN by the
/// packets of its answer and is one packet itself; all packets of an answer but the last are full and pass in
/// the other direction.
fn surplus(port: &PortRates, qps: &[QpRates]) -> [f64; 2] {
    let readers = || qps.iter().filter(|qp| qp.may_read);
    let mtu = |qp: &QpRates| qp.path_mtu.map_or(MTU.1, f64::from);
    let full = readers().map(mtu).fold(MTU.0, f64::min);
    let most = |way: usize| {
        let psns: f64 = readers().map(|qp| qp.psns[way]).sum();
        psns.min(port.bytes[1 - way] / full)
    };
    let mut surplus = [most(0), if port.no_reads { 0.0 } else { most(1) }];
    for way in [0, 1] {
        // The other direction has those answers beside its own requests.
        let counted = port.packets[1 - way];
        let off = (counted - total(qps, 1 - way)).abs();
        surplus[way] = surplus[way].min(off + counted * SKEW + surplus[1 - way]);
    }
    surplus
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a queue pair does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Work {
        Writes,
        Reads,
        IsWritten,
        IsRead,
    }

    /// A queue pair with its messages, and how it is seen.
    #[derive(Clone, Debug)]
    struct Pair {
        user: u64,
        work: Work,
        messages: u32,
        size: u32,
        mtu: u16,
        /// Headers of a packet.
        headers: u32,
        /// So many packets share an acknowledgement.
        acknowledged: u32,
        /// Packets sent again.
        again: u32,
        /// The kernel lists it; its path and its owner are known.
        seen: [bool; 3],
    }

    /// The usual queue pair of a job.
    const LARGE: Pair = Pair {
        user: 1,
        work: Work::Writes,
        messages: 1000,
        size: 1 << 20,
        mtu: 4096,
        headers: 62,
        acknowledged: 256,
        again: 0,
        seen: [true; 3],
    };

    /// Counts of a port, and what each user moved.
    #[derive(Default)]
    struct Truth {
        port: PortRates,
        users: BTreeMap<u64, [f64; 2]>,
        qps: Vec<QpRates>,
    }

    impl Truth {
        fn of(pairs: &[Pair], counts_reads: bool) -> Self {
            let mut truth = Self::default();
            truth.port.no_reads = counts_reads && pairs.iter().all(|pair| pair.work != Work::IsRead);
            for pair in pairs {
                let each = pair.size.div_ceil(pair.mtu.into()).max(1);
                let packets = f64::from(pair.messages * each);
                let payload = f64::from(pair.messages) * f64::from(pair.size);
                let full = f64::from(u32::from(pair.mtu) + pair.headers);
                let headers = f64::from(pair.headers);
                // The data, and the direction in which it goes.
                let data = usize::from(matches!(pair.work, Work::Reads | Work::IsWritten));
                let psn = usize::from(matches!(pair.work, Work::IsWritten | Work::IsRead));
                truth.moves(pair.user, data, packets, payload + packets * headers);
                truth.moves(pair.user, data, pair.again.into(), f64::from(pair.again) * full);
                // Requests of READs, else acknowledgements, which go the other way.
                let small = match pair.work {
                    Work::Reads | Work::IsRead => f64::from(pair.messages),
                    _ => packets / f64::from(pair.acknowledged),
                };
                truth.moves(pair.user, 1 - data, small, small * headers);
                let mut psns = [0.0; 2];
                psns[psn] = packets;
                let [listed, path, owner] = pair.seen;
                truth.qps.extend(listed.then_some(QpRates {
                    user: owner.then_some(pair.user),
                    psns,
                    path_mtu: path.then_some(pair.mtu),
                    is_ipv4: path && pair.headers <= 86,
                    may_read: true,
                }));
            }
            truth
        }

        fn moves(&mut self, user: u64, way: usize, packets: f64, bytes: f64) {
            self.port.packets[way] += packets;
            self.port.bytes[way] += bytes;
            self.users.entry(user).or_default()[way] += bytes;
        }

        /// Each bound is on the right side, and what is close is at most 5 % wrong. Returns which are close, of
        /// the users in their order.
        fn holds(&self) -> Vec<[Option<bool>; 2]> {
            let ways = ways(&self.port, &self.qps);
            let of_user = |(user, moved): (&u64, &[f64; 2])| {
                [0, 1].map(|way| {
                    let part = ways[way].as_ref()?.part(*user);
                    let [least, most] = part.bytes;
                    let (truth, error) = (moved[way], moved[way] * 1e-9 + 1e-6);
                    assert!(
                        least <= truth + error && truth <= most + error,
                        "{truth} {part:?} of {user}"
                    );
                    if let Some(close) = part.close() {
                        assert!(
                            (close - truth).abs() <= truth * 0.05 + error,
                            "{truth} {part:?} of {user}"
                        );
                    }
                    Some(part.close().is_some())
                })
            };
            self.users.iter().map(of_user).collect()
        }
    }

    #[test]
    fn large_messages_of_two_users_are_told_apart_by_their_packets() {
        let three = Pair {
            user: 2,
            messages: 3000,
            ..LARGE
        };
        let senders = Truth::of(&[LARGE, three.clone()], false).holds();
        // Acknowledgements have no PSN, so that nothing is said of what the port received.
        assert_eq!(senders, [[Some(true), None]; 2]);
        let received = [LARGE, three].map(|pair| Pair {
            work: Work::IsWritten,
            ..pair
        });
        assert_eq!(Truth::of(&received, false).holds(), [[None, Some(true)]; 2]);
    }

    #[test]
    fn small_messages_beside_large_ones_have_bounds_alone() {
        let small = Pair {
            user: 2,
            messages: 256_000,
            size: 64,
            ..LARGE
        };
        let found = Truth::of(&[LARGE, small], false).holds();
        assert_eq!(sent(&found), [Some(false); 2]);
    }

    /// Of each user whether what it sent is close.
    fn sent(found: &[[Option<bool>; 2]]) -> Vec<Option<bool>> {
        found.iter().map(|[sent, _]| *sent).collect()
    }

    #[test]
    fn who_reads_and_who_writes_is_told_apart_only_where_reads_are_counted() {
        let both = |user| {
            let writes = Pair { user, ..LARGE };
            let written = Pair {
                work: Work::IsWritten,
                ..writes.clone()
            };
            [writes, written]
        };
        let job: Vec<Pair> = [1, 2].into_iter().flat_map(both).collect();
        assert_eq!(Truth::of(&job, true).holds(), [[Some(true); 2]; 2]);
        // It may be one that reads and one that is read.
        assert_eq!(Truth::of(&job, false).holds(), [[Some(false); 2]; 2]);
        let swapped = [
            Pair {
                work: Work::Reads,
                ..LARGE
            },
            Pair {
                user: 2,
                work: Work::IsRead,
                ..LARGE
            },
        ];
        assert_eq!(Truth::of(&swapped, false).holds(), [[Some(false); 2]; 2]);
    }

    #[test]
    fn packets_that_no_psn_explains_silence_it() {
        let hidden = Pair {
            user: 2,
            messages: 40,
            seen: [false; 3],
            ..LARGE
        };
        assert_eq!(Truth::of(&[LARGE, hidden.clone()], false).holds(), [[None; 2]; 2]);
        // 2 % are anybody's: of the process that has none of its own listed there is a bound.
        let less = Pair {
            messages: 20,
            ..hidden
        };
        let found = sent(&Truth::of(&[LARGE, less], false).holds());
        assert_eq!(found, [Some(true), Some(false)]);
    }

    fn pair() -> impl Strategy<Value = Pair> {
        let works = prop_oneof![
            Just(Work::Writes),
            Just(Work::Writes),
            Just(Work::Reads),
            Just(Work::IsWritten),
            Just(Work::IsRead)
        ];
        let size = prop_oneof![
            Just(64_u32),
            Just(4096),
            1_u32..9000,
            Just(1 << 20),
            1_u32..(1 << 22)
        ];
        let mtu = prop_oneof![Just(4096_u16), Just(4096), Just(1024), Just(256)];
        let again = prop_oneof![Just(0_u32), Just(0), 0_u32..300, 0_u32..30_000];
        let mostly = || prop::bool::weighted(0.9);
        let seen = [mostly().boxed(), mostly().boxed(), mostly().boxed()];
        let numbers = (0_u64..5, 1_u32..2000, 44_u32..=106, 1_u32..300);
        (works, numbers, size, mtu, again, seen).prop_map(|(work, numbers, size, mtu, again, seen)| {
            let (user, messages, headers, acknowledged) = numbers;
            Pair {
                user,
                work,
                messages,
                size,
                mtu,
                headers,
                acknowledged,
                again,
                seen,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases, ..ProptestConfig::default() })]
        #[test]
        fn the_truth_is_always_between_the_bounds(
            pairs in prop::collection::vec(pair(), 1..8),
            counts_reads: bool,
        ) {
            Truth::of(&pairs, counts_reads).holds();
        }
    }
}
