#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "made-up counts are small and not negative"
)]

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::{
    super::psn_shares::tests::{LARGE, Pair, Truth, Work, pair},
    *,
};
use crate::ib::Gid;

/// What two readings a second apart say of this traffic, by counters as they are and PSNs of 24 bits.
fn read(truth: &Truth, starts: u32) -> [Option<Way>; 2] {
    let port = &truth.port;
    let counted = |at_ns: u64, part: f64| PortTotals {
        packets: port
            .packets
            .map(|packets| ((packets * part).floor() as u64, at_ns)),
        bytes: port.bytes.map(|bytes| ((bytes * part).floor() as u64, at_ns)),
        reads: Some(if port.no_reads { 0 } else { (part * 9.0) as u64 }),
        again: Some(if port.answers[0] { 0 } else { (part * 9.0) as u64 }),
        has_ethernet: port.has_ethernet,
    };
    let batch = |at_ns: u64, part: f64| {
        let psn = |moved: f64| Some(starts.wrapping_add((moved * part) as u32) & MASK);
        let reading = |(qpn, qp): (u32, &QpRates)| {
            let reading = PsnReading {
                device_index: 0,
                port: Some(1),
                qpn,
                state: Some(QpState::RTS),
                sq_psn: psn(qp.psns[0]),
                rq_psn: psn(qp.psns[1]),
                at_ns,
            };
            (qpn, reading)
        };
        Batch {
            at_ns,
            port: counted(at_ns, part),
            qps: (0..).zip(&truth.qps).map(reading).collect(),
        }
    };
    let row = |(qpn, qp): (u32, &QpRates)| QpRow {
        qpn,
        qp_type: Some(QpType::RC),
        state: Some(QpState::RTS),
        process_uid: qp.user,
        path_mtu: qp.path_mtu,
        remote_gid: Some(if qp.is_ipv4 {
            Gid(Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets())
        } else {
            Gid([9; 16])
        }),
        ..QpRow::default()
    };
    let rows: Vec<QpRow> = (0..).zip(&truth.qps).map(row).collect();
    let shown = batch(SECOND, 0.0).until(&batch(2 * SECOND, 1.0), rows.iter(), (0, truth.hides));
    shown.map(|shown| shown.ways).unwrap_or_default()
}

/// So many queue pairs of a user, which move together what the link carries of so many Gb/s.
fn fast(user: u64, work: Work, mtu: u16, count: u32, gigabits: f64) -> Vec<Pair> {
    let each = LARGE.size.div_ceil(mtu.into()) * u32::from(mtu) + 62;
    let messages = gigabits * 1e9 / 8.0 / f64::from(each) / f64::from(count);
    let pair = Pair {
        user,
        work,
        mtu,
        messages: messages as u32,
        ..LARGE
    };
    vec![pair; count as usize]
}

#[test]
fn both_ways_of_400_gigabits_and_one_of_800_are_shared_within_a_second() {
    let both = [Work::Writes, Work::IsWritten].map(|work| {
        let of = |user, gigabits| fast(user, work, 4096, 4, gigabits);
        [of(1, 100.0), of(2, 300.0)].concat()
    });
    let truth = Truth::of(&both.concat(), true);
    assert_eq!(truth.holds(&read(&truth, 77)), [[Some(true); 2]; 2]);
    // 64 million packets: no PSN of eight queue pairs goes round.
    let one = [
        fast(1, Work::Writes, 1024, 8, 200.0),
        fast(2, Work::Writes, 1024, 8, 400.0),
    ];
    let truth = Truth::of(&one.concat(), true);
    assert!(truth.port.packets[0] > 6e7);
    assert_eq!(truth.holds(&read(&truth, 77)), [[Some(true), None]; 2]);
    // One of them has them all: each goes round, and the packets are not explained.
    let one = [
        fast(1, Work::Writes, 1024, 8, 100.0),
        fast(2, Work::Writes, 1024, 1, 500.0),
    ];
    let truth = Truth::of(&one.concat(), true);
    assert_eq!(truth.holds(&read(&truth, 77)), [[None; 2]; 2]);
    // 800 Gb/s both ways are too many.
    let both = [Work::Writes, Work::IsWritten].map(|work| {
        let of = |user| fast(user, work, 4096, 8, 400.0);
        [of(1), of(2)].concat()
    });
    let truth = Truth::of(&both.concat(), true);
    assert_eq!(truth.holds(&read(&truth, 77)), [[None; 2]; 2]);
}

/// Packets of 1024 bytes of the first user, with answers to READs of 4096 bytes of the second, on a queue
/// pair that is written to as well, in so many packets.
fn answers_beside(written: u32) -> Truth {
    let answers = Pair {
        user: 2,
        work: Work::IsRead,
        messages: 10_000,
        ..LARGE
    };
    let is_written = Pair {
        work: Work::IsWritten,
        messages: written / 256,
        ..answers.clone()
    };
    let mut pairs = fast(1, Work::Writes, 1024, 9, 760.0);
    pairs.extend([answers, is_written]);
    let mut truth = Truth::of(&pairs, true);
    // The last two.
    truth.join(|number| number == 10);
    truth
}

#[test]
fn answers_on_a_queue_pair_that_went_round_are_not_taken_for_few() {
    let truth = answers_beside(8_000_000);
    assert!(read(&truth, 5)[0].is_some());
    truth.holds(&read(&truth, 5));
    let truth = answers_beside(14_300_000);
    assert!(truth.qps.iter().any(|qp| qp.psns[1] >= f64::from(1 << 24)));
    assert!(read(&truth, 5)[0].is_none());
}

/// Traffic of up to 800 Gb/s each way, of which some queue pairs move about as much as a PSN goes round.
fn traffic() -> impl Strategy<Value = Vec<Pair>> {
    let mtu = prop::sample::select(vec![1024_u16, 2048, 4096]);
    let packets = prop_oneof![
        3 => 0_u32..60_000_000,
        2 => (1_u32..3, -600_000_i32..4_000_000).prop_map(|(rounds, off)| (rounds << 24).saturating_add_signed(off)),
        1 => 0_u32..3_000_000,
    ];
    let size = prop::sample::select(vec![512_u32, 4096, 5000, 1 << 20]);
    let pair = (pair(), mtu, packets, size).prop_map(|(pair, mtu, packets, size)| Pair {
        messages: packets / size.div_ceil(mtu.into()),
        user: pair.user % 3,
        mtu,
        size,
        ..pair
    });
    prop::collection::vec(pair, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16 * ProptestConfig::default().cases, ..ProptestConfig::default() })]
    #[test]
    fn no_share_is_false_whatever_psns_went_round(
        mut pairs in traffic(),
        counts_reads: bool,
        nothing_again in prop::bool::weighted(0.7),
        all_seen in prop::bool::weighted(0.7),
        starts: u32,
        joins in any::<u64>(),
        times in 1_u32..30,
    ) {
        let mut bytes = [0.0; 2];
        for pair in &mut pairs {
            if nothing_again {
                pair.again = 0;
            }
            if all_seen {
                pair.seen = [true; 3];
            }
            let way = usize::from(matches!(pair.work, Work::Reads | Work::IsWritten));
            bytes[way] += f64::from(pair.messages) * f64::from(pair.size);
        }
        let most = bytes[0].max(bytes[1]);
        for pair in pairs.iter_mut().filter(|_| most > 1e11) {
            pair.messages = (f64::from(pair.messages) * 1e11 / most) as u32;
        }
        // Many queue pairs of one kind, as jobs have: together they move what one PSN could not count.
        let first = pairs[0].clone();
        if first.messages / times > 0 {
            pairs[0].messages /= times;
            let more = vec![pairs[0].clone(); times as usize - 1];
            pairs.extend(more);
        }
        let mut truth = Truth::of(&pairs, counts_reads);
        truth.join(|number| joins >> (number % 64) & 1 != 0);
        truth.holds(&read(&truth, starts));
    }
}

/// A port whose queue pairs, each with its process, are asked in rounds; those of `moves` move.
fn rounds(all: &[(u32, Option<u64>)], moves: &BTreeSet<u32>, count: u32) -> Port {
    let mut port = Port::default();
    for round in 0..count {
        let asked = port.some(all);
        let unique: BTreeSet<u32> = asked.iter().copied().collect();
        assert!(asked.len() <= SOME && unique.len() == asked.len(), "{asked:?}");
        let reading = |qpn: &u32| PsnReading {
            device_index: 0,
            port: Some(1),
            qpn: *qpn,
            state: Some(QpState::RTS),
            sq_psn: Some(if moves.contains(qpn) { round * 9 } else { 5 }),
            rq_psn: None,
            at_ns: u64::from(round),
        };
        let port_is = PortTotals {
            packets: [(0, 0); 2],
            bytes: [(0, 0); 2],
            reads: None,
            again: None,
            has_ethernet: true,
        };
        let new = Batch {
            at_ns: u64::from(round),
            port: port_is,
            qps: asked.iter().map(|qpn| (*qpn, reading(qpn))).collect(),
        };
        port.note(&new);
        port.last = Some(new);
    }
    port
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn who_moves_is_found_however_many_idle_queue_pairs_others_have(
        processes in prop::collection::vec((1_u32..30, 0_u32..30), 1..20),
        idle in 201_u32..2000,
        order: u64,
    ) {
        // The first process has idle ones alone.
        let mut all: Vec<(u32, Option<u64>)> = (0..idle).map(|n| (n, Some(0))).collect();
        let mut moves = BTreeSet::new();
        for (process, (own, moving)) in (1..).zip(&processes) {
            for n in 0..*own {
                let qpn = all.len() as u32;
                all.push((qpn, Some(process)));
                if n < *moving && moves.len() < MOVERS {
                    moves.insert(qpn);
                }
            }
        }
        // Numbers tell nothing of who has them.
        let last = all.len() - 1;
        for at in 0..last {
            let other = (order.rotate_left(at as u32) % (last as u64 + 1)) as usize;
            let (one, two) = (all[at].1, all[other].1);
            let (qpn, with) = (all[at].0, all[other].0);
            if moves.contains(&qpn) == moves.contains(&with) {
                (all[at].1, all[other].1) = (two, one);
            }
        }
        // Each reading compares two of each process at least, and takes two.
        let port = rounds(&all, &moves, 2 * 15 + 2);
        let found: BTreeSet<u32> = port.movers.keys().copied().collect();
        prop_assert_eq!(&found, &moves);
        // From then on they are asked each time.
        let asked: BTreeSet<u32> = port.some(&all).into_iter().collect();
        prop_assert!(moves.is_subset(&asked));
    }
}

#[test]
fn who_resets_psns_of_many_does_not_keep_those_of_others_from_being_asked() {
    // A modify sets any PSN, and moves no packet.
    let mut port = Port {
        movers: (0..900).map(|qpn| (qpn, 1 << 24)).collect(),
        ..Port::default()
    };
    let all = (0..900).map(|qpn| (qpn, Some(u64::from(qpn / 300))));
    let own = [(1000, Some(7)), (1001, Some(7))];
    port.movers.extend([(1000, 70), (1001, 9)]);
    let all: Vec<(u32, Option<u64>)> = all.chain(own).collect();
    let asked = port.some(&all);
    assert!(
        asked[..MOVERS].contains(&1000) && asked[..MOVERS].contains(&1001),
        "{asked:?}"
    );
}

#[test]
fn each_queue_pair_has_its_turn_and_they_end_with_theirs() {
    let all: Vec<(u32, Option<u64>)> = (0..1000).map(|n| (n, Some(1))).collect();
    let port = rounds(&all, &BTreeSet::new(), 20);
    assert_eq!(port.turns.len(), 1000);
    let port = rounds(&all, &(0..1000).collect(), 60);
    assert_eq!(
        port.turns.len(),
        1000,
        "those that move do not keep the others from being asked"
    );
}

#[test]
fn a_loss_casts_doubt_on_the_path_mtu_of_what_was_there_alone() {
    let told = |born_mono_ns, told_ns| {
        let row = QpRow {
            born_mono_ns,
            ..QpRow::default()
        };
        is_told(&row, told_ns)
    };
    assert!(told(Some(5), 0) && told(None, 0));
    assert!(told(Some(8), 7) && !told(Some(7), 7) && !told(Some(5), 7) && !told(None, 7));
}
