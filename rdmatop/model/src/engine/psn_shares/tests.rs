//! Made-up traffic, of which the truth is known.

use proptest::prelude::*;

use super::*;

/// The work that a queue pair does, or that its peer does on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Writes,
    Reads,
    IsWritten,
    IsRead,
}

/// A queue pair with its messages, and how it is seen.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) user: u64,
    pub(crate) work: Work,
    pub(crate) messages: u32,
    pub(crate) size: u32,
    pub(crate) mtu: u16,
    /// Headers of a packet.
    pub(crate) headers: u32,
    /// So many packets share an acknowledgement.
    pub(crate) acknowledged: u32,
    /// Packets sent again.
    pub(crate) again: u32,
    /// The kernel lists it; its path and its owner are known.
    pub(crate) seen: [bool; 3],
}

/// The usual queue pair of a job.
pub(crate) const LARGE: Pair = Pair {
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
pub(crate) struct Truth {
    pub(crate) port: PortRates,
    users: BTreeMap<u64, [f64; 2]>,
    packets: BTreeMap<u64, [f64; 2]>,
    pub(crate) qps: Vec<QpRates>,
    /// Somebody has queue pairs that the kernel does not list.
    pub(crate) hides: bool,
}

impl Truth {
    pub(crate) fn of(pairs: &[Pair], counts_reads: bool) -> Self {
        let mut truth = Self {
            hides: pairs.iter().any(|pair| !pair.seen[0]),
            ..Self::default()
        };
        truth.port.no_reads = counts_reads && pairs.iter().all(|pair| pair.work != Work::IsRead);
        truth.port.answers = [pairs.iter().all(|pair| pair.again == 0 && pair.seen[0]); 2];
        truth.port.has_ethernet = pairs.iter().any(|pair| pair.headers > 84);
        let ipv4 = if truth.port.has_ethernet { 86 } else { 64 };
        for pair in pairs {
            let each = pair.size.div_ceil(pair.mtu.into()).max(1);
            let packets = f64::from(pair.messages) * f64::from(each);
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
                is_ipv4: path && pair.headers <= ipv4,
                may_read: true,
            }));
        }
        truth
    }

    fn moves(&mut self, user: u64, way: usize, packets: f64, bytes: f64) {
        self.port.packets[way] += packets;
        self.port.bytes[way] += bytes;
        self.users.entry(user).or_default()[way] += bytes;
        self.packets.entry(user).or_default()[way] += packets;
    }

    /// Makes one queue pair of each that is like the one before, if `joins` says so of its number.
    pub(crate) fn join(&mut self, joins: impl Fn(usize) -> bool) {
        let mut number = 0;
        self.qps.dedup_by(|next, qp| {
            number += 1;
            let is_like = (next.user, next.path_mtu, next.is_ipv4) == (qp.user, qp.path_mtu, qp.is_ipv4);
            let is_one = is_like && joins(number);
            if is_one {
                qp.psns = [0, 1].map(|way| qp.psns[way] + next.psns[way]);
            }
            is_one
        });
    }

    /// See [`Self::holds`].
    fn holds_by_rates(&self) -> Vec<[Option<bool>; 2]> {
        self.holds(&ways(&self.port, &self.qps))
    }

    /// Each bound is on the right side, and what is close is at most 5 % wrong. Returns which are close, of
    /// the users in their order.
    pub(crate) fn holds(&self, ways: &[Option<Way>; 2]) -> Vec<[Option<bool>; 2]> {
        let of_user = |(user, moved): (&u64, &[f64; 2])| {
            [0, 1].map(|way| {
                let part = ways[way].as_ref()?.part(*user);
                let [least, most] = part.bytes;
                let (truth, error) = (moved[way], moved[way] * 1e-9 + 1.0);
                assert!(
                    least <= truth + error && truth <= most + error,
                    "{truth} {part:?} of {user}"
                );
                let packets = self.packets[user][way];
                assert!(part.packets <= packets + error, "{packets} {part:?} of {user}");
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
    let senders = Truth::of(&[LARGE, three.clone()], false).holds_by_rates();
    // Acknowledgements have no PSN, so that nothing is said of what the port received.
    assert_eq!(senders, [[Some(true), None]; 2]);
    let received = [LARGE, three].map(|pair| Pair {
        work: Work::IsWritten,
        ..pair
    });
    assert_eq!(
        Truth::of(&received, false).holds_by_rates(),
        [[None, Some(true)]; 2]
    );
}

#[test]
fn small_messages_beside_large_ones_have_bounds_alone() {
    let small = Pair {
        user: 2,
        messages: 256_000,
        size: 64,
        ..LARGE
    };
    let found = Truth::of(&[LARGE, small], false).holds_by_rates();
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
    assert_eq!(Truth::of(&job, true).holds_by_rates(), [[Some(true); 2]; 2]);
    // It may be one that reads and one that is read.
    assert_eq!(Truth::of(&job, false).holds_by_rates(), [[Some(false); 2]; 2]);
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
    assert_eq!(Truth::of(&swapped, false).holds_by_rates(), [[Some(false); 2]; 2]);
}

#[test]
fn users_that_all_read_or_are_all_read_are_told_apart_by_their_answers() {
    let of = |work| {
        let pair = |user: u32| Pair {
            user: user.into(),
            work,
            messages: 1000 * user,
            ..LARGE
        };
        Truth::of(&[pair(1), pair(3)], false).holds_by_rates()
    };
    // Requests are few, and nobody knows of how many each user's answers are.
    assert_eq!(of(Work::Reads), [[None, Some(true)]; 2]);
    assert_eq!(of(Work::IsRead), [[Some(true), None]; 2]);
}

#[test]
fn packets_that_no_psn_explains_silence_it() {
    let hidden = Pair {
        user: 2,
        messages: 40,
        seen: [false; 3],
        ..LARGE
    };
    assert_eq!(
        Truth::of(&[LARGE, hidden.clone()], false).holds_by_rates(),
        [[None; 2]; 2]
    );
    // 2 % are anybody's: of the process that has none of its own listed there is a bound.
    let less = Pair {
        messages: 20,
        ..hidden
    };
    let found = sent(&Truth::of(&[LARGE, less], false).holds_by_rates());
    assert_eq!(found, [Some(true), Some(false)]);
}

#[test]
fn eight_users_of_one_size_are_told_apart_where_nothing_is_sent_again() {
    let eight = |again, headers| {
        let pair = |user| Pair {
            user,
            again,
            headers,
            acknowledged: 64,
            ..LARGE
        };
        let writers: Vec<Pair> = (0..8).map(pair).collect();
        let read = writers.iter().map(|pair| Pair {
            work: Work::IsWritten,
            ..pair.clone()
        });
        let both: Vec<Pair> = writers.iter().cloned().chain(read).collect();
        [
            sent(&Truth::of(&writers, false).holds_by_rates()),
            sent(&Truth::of(&both, true).holds_by_rates()),
        ]
    };
    let close = vec![Some(true); 8];
    assert_eq!(eight(0, 64), [close.clone(), close]);
    // A packet that was sent again is as large as any.
    let bounds = vec![Some(false); 8];
    assert_eq!(eight(2560, 64)[1], bounds);
}

pub(crate) fn pair() -> impl Strategy<Value = Pair> {
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
        mut pairs in prop::collection::vec(pair(), 1..8),
        counts_reads: bool,
        nothing_again: bool,
        short_headers: bool,
    ) {
        for pair in &mut pairs {
            if nothing_again {
                (pair.again, pair.seen[0]) = (0, true);
            }
            if short_headers {
                pair.headers = pair.headers.min(84);
            }
        }
        Truth::of(&pairs, counts_reads).holds_by_rates();
    }
}
