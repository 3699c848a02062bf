//! Ports that several processes share, and what the PSNs of their queue pairs say.

use std::collections::BTreeMap;

use proptest::prelude::*;
use rdmatop_common::{counters::loss, event::kind};

use super::{devx::devx, *};
use crate::{
    input::{DataPaths, EbpfState, PsnReading},
    value::{Counter, Known, Source},
};

/// A queue pair with its process, and by how much its PSNs move in a second.
#[derive(Clone, Copy)]
struct Pair {
    /// The number of the port among those of all devices.
    device: u32,
    qpn: u32,
    pid: u32,
    moves: [u32; 2],
    qp_type: u8,
}

/// Makes a queue pair that sends this many full packets each second.
fn sender(qpn: u32, pid: u32, packets: u32) -> Pair {
    Pair {
        device: 0,
        qpn,
        pid,
        moves: [packets, 0],
        qp_type: 2,
    }
}

/// What SoftRoCE counts of packets that are sent again.
const AGAIN: [&str; 6] = [
    "completer_retry_err",
    "send_rnr_err",
    "rcvd_rnr_err",
    "duplicate_request",
    "out_of_seq_request",
    "rcvd_seq_err",
];

/// Bytes of a full packet.
const FULL: u64 = 4096 + 62;

/// Devices of SoftRoCE whose work requests no program counts.
struct Shared {
    engine: Engine,
    second: u64,
    pairs: Vec<Pair>,
    psns: BTreeMap<(u32, u32), [u32; 2]>,
    /// Counts of each device: packets and bytes, sent and received.
    counted: Vec<[u64; 4]>,
    /// No queue pair comes or goes, and nobody lists them.
    quiet: bool,
    /// How many ports each device has.
    ports: u32,
    /// How many PSNs were asked for in the last second.
    asked: usize,
    /// The driver reports those of the modify.
    stands: bool,
    /// So long after the counters PSNs are read; meanwhile pairs send by turns, so many packets.
    late: (u64, u32),
    /// Acknowledgements that are sent each second.
    acknowledged: u64,
    /// Times that a packet was sent again.
    again: u64,
}

impl Shared {
    fn new(devices: usize, pairs: Vec<Pair>) -> Self {
        let mut shared = Self {
            engine: Engine::new(EngineConfig::default()),
            second: 1,
            pairs,
            psns: BTreeMap::new(),
            counted: vec![[1000; 4]; devices],
            quiet: false,
            ports: 1,
            asked: 0,
            stands: false,
            late: (0, 0),
            acknowledged: 0,
            again: 0,
        };
        let on = EbpfReport {
            state: EbpfState::On {
                datapaths: DataPaths::default(),
            },
            follows_qps: true,
            ..EbpfReport::default()
        };
        shared.apply(Input::Ebpf(Box::new(on)));
        shared
    }

    fn apply(&mut self, input: Input) {
        self.engine.apply(input.at(at(self.second * SECOND)));
    }

    /// A second in which each pair moves full packets, and the ports that many more of `beside`.
    fn second(&mut self, beside: u64) -> Arc<Snapshot> {
        self.second += 1;
        for pair in &self.pairs {
            let psns = self
                .psns
                .entry((pair.device, pair.qpn))
                .or_insert([0xff_ff00, 0xff_ff00]);
            let counts = &mut self.counted[pair.device as usize];
            for way in [0, 1] {
                psns[way] = (psns[way] + pair.moves[way]) & 0xff_ffff;
                counts[way] += u64::from(pair.moves[way]);
                counts[2 + way] += u64::from(pair.moves[way]) * FULL;
            }
        }
        let names = ["sent_pkts", "rcvd_pkts", "sent_bytes", "rcvd_bytes"];
        let mut devices: Vec<DeviceReading> = Vec::new();
        for (counts, number) in self.counted.iter_mut().zip(0..) {
            counts[0] += beside + self.acknowledged;
            counts[2] += beside * FULL + self.acknowledged * 68;
            let signs = AGAIN.map(|name| (name, self.again));
            let counters: Vec<_> = names.into_iter().zip(*counts).chain(signs).collect();
            let index = number / self.ports;
            let mut device = counting(index, &format!("rxe{index}"), "rdma_rxe", &counters);
            let qps = self.pairs.iter().filter(|pair| pair.device / self.ports == index);
            device.resources = [("qp".to_owned(), qps.count() as u64)].into();
            let counters = device.ports.iter_mut().flat_map(|port| &mut port.counters);
            counters.for_each(|counter| counter.at = (self.second * SECOND).into());
            device.ports[0].number = 1 + number % self.ports;
            match devices.last_mut().filter(|last| last.index == index) {
                Some(last) => last.ports.append(&mut device.ports),
                None => devices.push(device),
            }
        }
        self.apply(Input::Devices(Box::new(DevicesSample {
            mono_ns: self.second * SECOND,
            devices,
            ..DevicesSample::default()
        })));
        let wanted = self.engine.needs().psns;
        self.asked = wanted.values().map(Vec::len).sum();
        let read = |(device, qpn): (u32, u32)| {
            let of = |pair: &&Pair| (pair.device / self.ports, pair.qpn) == (device, qpn);
            let place = self.pairs.iter().find(of).map_or(0, |pair| pair.device);
            let psns = self.psns.get(&(place, qpn)).filter(|_| !self.stands);
            let [sq_psn, rq_psn] = psns.copied().unwrap_or([7, 7]);
            let is_its_turn = u64::from(qpn) % 2 == self.second % 2;
            let sq_psn = (sq_psn + self.late.1 * u32::from(is_its_turn)) & 0xff_ffff;
            PsnReading {
                device_index: device,
                port: Some(1 + place % self.ports),
                qpn,
                state: Some(QpState::RTS),
                sq_psn: Some(sq_psn),
                rq_psn: Some(rq_psn),
                at_ns: self.second * SECOND + self.late.0,
            }
        };
        let all = wanted
            .iter()
            .flat_map(|(device, qpns)| qpns.iter().map(|qpn| (*device, *qpn)));
        let read = all.map(read).collect();
        self.apply(Input::Psns(read));
        let qp = |pair: &Pair| QpReading {
            device_index: pair.device / self.ports,
            port: Some(1 + pair.device % self.ports),
            qpn: pair.qpn,
            qp_type: Some(QpType(pair.qp_type)),
            state: Some(QpState::RTS),
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: Some(pair.pid),
            kern_name: None,
        };
        if self.quiet {
            return self.engine.tick(at(self.second * SECOND));
        }
        let qps = self.pairs.iter().map(qp).collect();
        self.apply(Input::Qps(Box::new(QpsSample {
            mono_ns: self.second * SECOND,
            complete: (0..10).collect(),
            qps,
            errors: Vec::new(),
        })));
        self.engine.tick(at(self.second * SECOND))
    }

    fn seconds(&mut self, count: u64) -> Arc<Snapshot> {
        (1..count).for_each(|_| drop(self.second(0)));
        self.second(0)
    }
}

fn row(snapshot: &Snapshot, pid: u32) -> &ProcessRow {
    snapshot
        .processes
        .iter()
        .find(|row| row.pid == Some(pid))
        .unwrap()
}

/// What is shown of the bytes that a process sent: whether it is a share, and what is known of it.
fn sent(snapshot: &Snapshot, pid: u32) -> (f64, Known, Source) {
    let counter = row(snapshot, pid).traffic.tx_bytes.unwrap();
    (counter.rate.unwrap(), counter.rate_known(), counter.source)
}

fn is_share(snapshot: &Snapshot, pid: u32, packets: u32) -> bool {
    let truth = f64::from(packets) * FULL as f64;
    let (rate, known, source) = sent(snapshot, pid);
    (known, source) == (Known::Exact, Source::Psn) && (rate - truth).abs() < truth * 0.05
}

const BOUND: (Known, Source) = (Known::AtMost, Source::Port);

fn is_bound(snapshot: &Snapshot, pid: u32) -> bool {
    let (_, known, source) = sent(snapshot, pid);
    (known, source) == BOUND
}

#[test]
fn two_users_of_a_port_have_shares_by_their_packets() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 30_000)]);
    assert!(is_bound(&nic.seconds(2), 231), "one reading says nothing");
    let snapshot = nic.seconds(2);
    assert!(is_share(&snapshot, 231, 10_000), "{:?}", sent(&snapshot, 231));
    assert!(is_share(&snapshot, 232, 30_000), "{:?}", sent(&snapshot, 232));
    assert_eq!(nic.asked, 2);
    let row = row(&snapshot, 232);
    assert_eq!(row.psn_explains, Some(1.0));
    let packets = row.traffic.tx_packets.unwrap();
    assert_eq!(
        (packets.rate, packets.rate_known()),
        (Some(30_000.0), Known::AtLeast)
    );
    let shown = row.traffic.tx_bytes.and_then(|counter| counter.rate);
    assert_eq!(
        row.history.tx.last(),
        Some(&shown),
        "the graph is where the number is"
    );
    // Totals are lower bounds: what was moved before, and the distance of the bounds, is not in them.
    let total = row.traffic.tx_bytes.unwrap();
    assert!(
        total.partial && total.total > 50_000 * FULL && total.total <= 60_000 * FULL,
        "{total:?}"
    );
    // A sum with the bytes of a port of its own keeps the weaker source.
    let whole = Counter::whole(1, Some(1.0), Source::Port);
    assert_eq!(whole.plus(total).source, Source::Psn);
}

#[test]
fn nobody_asks_where_one_user_is_alone_or_nothing_moves() {
    let mut alone = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 231, 10_000)]);
    let mut idle = Shared::new(1, vec![sender(10, 231, 0), sender(11, 232, 0)]);
    for _ in 0..9 {
        let snapshot = alone.second(0);
        assert_eq!(row(&snapshot, 231).traffic.tx_bytes.unwrap().source, Source::Port);
        assert_eq!(alone.asked, 0);
        idle.second(0);
        // Before the second reading of the port it is not known that it rests.
        assert!(idle.asked == 0 || idle.second <= 3);
    }
}

/// What is shown of what a process sent in a second, and in all, against the truth: that of the last second,
/// or the mean of the last two. A port that rested is not asked in each second, and shares are of the time
/// between two readings.
fn holds(snapshot: &Snapshot, pid: u32, truths: [f64; 2], all: u64) {
    let Some(counter) = row(snapshot, pid).traffic.tx_bytes else {
        return;
    };
    assert!(!counter.partial || counter.total <= all, "{counter:?} of {all}");
    let Some(rate) = counter.rate else { return };
    let is_right = |second: f64| match (counter.rate_known(), counter.source) {
        (Known::Exact, Source::Psn) => (rate - second).abs() <= second * 0.05,
        // A port at rest.
        (Known::Exact, Source::Port) => rate == 0.0 && second == 0.0,
        (Known::AtMost, _) => rate >= second * (1.0 - 1e-9),
        (known, _) => known == Known::AtLeast && rate <= second,
    };
    let of_psns = counter.source == Source::Psn;
    assert!(
        is_right(truths[0]) || of_psns && is_right(truths[1]),
        "{pid}: {counter:?} of {truths:?}"
    );
}

proptest! {
    #[test]
    fn each_second_of_a_history_of_users_is_shown_as_it_was(
        seconds in prop::collection::vec(
            (0..5_usize, prop::sample::select(vec![0, 60, 1_000, 9_000, 30_000_u32]), 0..20_u64, any::<bool>()),
            4..20,
        ),
        // Some are asked at a time.
        idle in prop::sample::select(vec![0, 0, 0, 230_u32]),
    ) {
        let pairs = (0..5).map(|n| sender(10 + n, 231 + n % 4, 1_000 * n));
        let idle = (0..idle).map(|n| sender(1000 + n, 234, 0));
        let mut nic = Shared::new(1, pairs.chain(idle).collect());
        let mut all: BTreeMap<u32, u64> = BTreeMap::new();
        let mut before: BTreeMap<u32, f64> = BTreeMap::new();
        for (number, packets, beside, is_new) in seconds {
            nic.pairs[number].moves[0] = packets;
            if is_new {
                // Another one takes its place.
                nic.pairs[number].qpn += 10;
            }
            // Packets that are sent again: mostly none.
            nic.again += u64::from(beside > 15);
            let snapshot = nic.second(if beside > 15 { 100 * beside } else { 0 });
            for pid in 231..235 {
                let own = nic.pairs.iter().filter(|pair| pair.pid == pid);
                let moved: u64 = own.map(|pair| u64::from(pair.moves[0]) * FULL).sum();
                let all = all.entry(pid).or_default();
                *all += moved;
                let moved = moved as f64;
                let earlier = before.insert(pid, moved).unwrap_or(moved);
                holds(&snapshot, pid, [moved, f64::midpoint(moved, earlier)], *all);
            }
        }
    }
}

#[test]
fn what_is_not_explained_is_answers_where_nothing_else_can_have_moved() {
    // A ninth queue pair moves nothing.
    let senders = (0..8).map(|n| sender(10 + n, 231 + n, 10_000));
    let mut nic = Shared::new(1, senders.chain([sender(18, 231, 0)]).collect());
    nic.acknowledged = 480;
    let all_shares = |nic: &mut Shared| {
        let snapshot = nic.second(0);
        (231..239).all(|pid| is_share(&snapshot, pid, 10_000))
    };
    nic.seconds(3);
    assert!(all_shares(&mut nic));
    nic.again += 1;
    assert!(!all_shares(&mut nic), "one was sent again");
    assert!(all_shares(&mut nic));
    let mut record = modify(nic.second * SECOND + 5, 0xbeef, 18, 3);
    (record.prefix.owner_pid, record.prefix.pid) = (231, 231);
    record.prefix.device = bytes("rxe0");
    nic.apply(Input::Records(vec![Record::Qp(record)]));
    assert!(!all_shares(&mut nic), "it may have moved data before");
    assert!(all_shares(&mut nic));
    let Record::Devx(mut record) = devx(nic.second * SECOND + 5, 238, (0xf000, 1), Some(0x500), 500) else {
        unreachable!()
    };
    record.prefix.device = bytes("rxe0");
    nic.apply(Input::Records(vec![Record::Devx(record)]));
    assert!(!all_shares(&mut nic), "the kernel does not list what it made");
    record.prefix.kind = kind::DEVX_DESTROY;
    record.prefix.ts_ns = nic.second * SECOND + 5;
    nic.apply(Input::Records(vec![Record::Devx(record)]));
    assert!(!all_shares(&mut nic), "it was there");
    nic.seconds(2);
    assert!(all_shares(&mut nic));
    // One of XRC is not asked for.
    nic.pairs[8].qp_type = 9;
    (nic.pairs[8].qpn, nic.pairs[8].pid) = (19, 232);
    nic.second(0);
    assert!(!all_shares(&mut nic), "it may send full packets");
}

#[test]
fn what_moves_between_counters_and_psns_may_be_anybodys() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 10_000)]);
    let truth = 10_000.0 * FULL as f64;
    // Users that take turns on a busy port: its packets are explained, and each has 8 % too many or too few.
    nic.late = (SECOND / 25, 800);
    nic.seconds(4);
    for pid in [231, 232] {
        let (rate, known, _) = sent(&nic.second(0), pid);
        assert!(known == Known::AtMost && rate >= truth, "{rate} of {truth}");
    }
    // Less than usual hides nothing.
    nic.late = (SECOND / 1000, 20);
    assert!(is_share(&nic.seconds(3), 231, 10_000));
}

#[test]
fn packets_of_others_make_it_a_bound_again() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 10_000)]);
    assert!(is_share(&nic.seconds(4), 231, 10_000));
    let snapshot = nic.second(2_000);
    assert!(is_bound(&snapshot, 231), "{:?}", sent(&snapshot, 231));
    assert_eq!(row(&snapshot, 231).psn_explains, None);
    assert!(is_share(&nic.second(0), 231, 10_000));
}

#[test]
fn a_psn_that_may_have_gone_round_gives_nothing() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 4_000_000), sender(11, 232, 11_000_000)]);
    assert!(is_share(&nic.seconds(4), 231, 4_000_000), "less than once");
    nic.pairs[1].moves[0] = (1 << 24) + 20_000;
    assert!(is_bound(&nic.seconds(2), 231), "once");
    // More than once by several.
    nic.pairs = (10..14)
        .map(|qpn| sender(qpn, 221 + qpn % 2, 6_000_000))
        .collect();
    assert!(is_share(&nic.seconds(4), 221, 12_000_000));
    // In the other direction as many packets may be answers to READs.
    (14..17).for_each(|qpn| {
        nic.pairs.push(Pair {
            moves: [0, 6_000_000],
            ..sender(qpn, 222, 0)
        });
    });
    assert!(is_bound(&nic.seconds(4), 221));
}

#[test]
fn a_lost_record_may_have_been_of_another_queue_pair() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 10_000)]);
    assert!(is_share(&nic.seconds(4), 231, 10_000));
    let mut losses = [0; loss::COUNT as usize];
    losses[loss::RING as usize] = 1;
    nic.apply(Input::Losses(losses));
    assert!(is_bound(&nic.second(0), 231));
    // From the next two readings on it is known again, but for the path MTU: any is possible.
    assert!(is_share(&nic.seconds(2), 231, 10_000));
}

#[test]
fn a_modify_that_sets_psns_moves_no_packet() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 10_000)]);
    assert!(is_share(&nic.seconds(4), 231, 10_000));
    let ns = nic.second * SECOND + 5;
    let again = |state| {
        let mut record = modify(ns, 0xbeef, 11, state);
        record.prefix.owner_pid = 232;
        record.prefix.pid = 232;
        record.prefix.device = bytes("rxe0");
        Record::Qp(record)
    };
    nic.apply(Input::Records(vec![again(0), again(3)]));
    assert!(
        is_bound(&nic.second(0), 231),
        "half of the packets are not explained"
    );
    assert!(is_share(&nic.second(0), 231, 10_000));
}

#[test]
fn a_driver_whose_psns_stand_still_is_left_alone() {
    let mut nic = Shared::new(1, vec![sender(10, 231, 10_000), sender(11, 232, 10_000)]);
    nic.stands = true;
    let mut asked = 0;
    for _ in 0..300 {
        let snapshot = nic.second(0);
        assert!(nic.second == 2 || is_bound(&snapshot, 231));
        asked += nic.asked;
    }
    assert_eq!(asked, 2 * 4, "four readings in ten minutes");
    // They may move after all.
    nic.stands = false;
    assert!(is_share(&nic.seconds(400), 231, 10_000));
    // Of more queue pairs than are asked at a time each has its turn before.
    let many = (0..250).map(|n| sender(10 + n, 231 + n % 2, 100));
    let mut nic = Shared::new(1, many.collect());
    nic.stands = true;
    let mut asked = 0;
    for _ in 0..300 {
        nic.second(0);
        asked += nic.asked;
    }
    assert!((500..2500).contains(&asked), "{asked}");
}

#[test]
fn ports_take_turns_and_of_one_with_too_many_queue_pairs_some_are_asked() {
    let of_port = |device: u32, count: u32| {
        (0..count).map(move |n| Pair {
            device,
            qpn: 100 * (device + 1) + n,
            pid: 1000 + device * 2 + n % 2,
            moves: [1000, 0],
            qp_type: 2,
        })
    };
    let pairs = [(0, 90), (1, 90), (2, 90), (3, 201)];
    let pairs = pairs
        .into_iter()
        .flat_map(|(device, count)| of_port(device, count));
    let mut nics = Shared::new(4, pairs.collect());
    let mut asked = 0;
    for _ in 0..20 {
        nics.second(0);
        assert!(nics.asked <= 200, "{}", nics.asked);
        asked += nics.asked;
    }
    assert!(asked >= 18 * 180 - 180, "{asked}");
    let snapshot = nics.second(0);
    for pid in 1000..1006 {
        assert!(
            is_share(&snapshot, pid, 45_000),
            "{pid}: {:?}",
            sent(&snapshot, pid)
        );
    }
}

#[test]
fn idle_queue_pairs_of_one_user_do_not_end_the_shares_of_others() {
    let senders = (0..6).map(|n| sender(10 + n, 231 + n % 2, 10_000 * (1 + n % 2 * 2)));
    let idle = (0..4000).map(|n| sender(1000 + n, 240, 0));
    // With the lowest numbers, too.
    let low = (0..9).map(|n| sender(1 + n, 240, 0));
    let mut nic = Shared::new(1, low.chain(senders).chain(idle).collect());
    for _ in 0..8 {
        nic.second(0);
        assert!(nic.asked <= 100, "{}", nic.asked);
    }
    for _ in 0..20 {
        let snapshot = nic.second(0);
        assert!(is_share(&snapshot, 231, 30_000), "{:?}", sent(&snapshot, 231));
        assert!(is_share(&snapshot, 232, 90_000), "{:?}", sent(&snapshot, 232));
    }
    // One of many that rested begins to move: nothing is shown that is not true, until it is found.
    nic.pairs.last_mut().unwrap().moves[0] = 20_000;
    for _ in 0..9 {
        let snapshot = nic.second(0);
        holds(&snapshot, 240, [20_000.0 * FULL as f64; 2], u64::MAX);
        holds(&snapshot, 231, [30_000.0 * FULL as f64; 2], u64::MAX);
    }
}

#[test]
fn each_port_of_a_device_has_shares_of_its_own() {
    let on = |device: u32, pair: Pair| Pair { device, ..pair };
    let pairs = vec![
        sender(10, 231, 10_000),
        sender(11, 232, 30_000),
        on(1, sender(20, 231, 50_000)),
        on(1, sender(21, 233, 20_000)),
    ];
    let mut nic = Shared::new(2, pairs);
    nic.ports = 2;
    let snapshot = nic.seconds(4);
    for (pid, packets) in [(231, 60_000), (232, 30_000), (233, 20_000)] {
        assert!(is_share(&snapshot, pid, packets), "{:?}", sent(&snapshot, pid));
    }
    // What nobody's PSN explains on one port makes bounds of its users alone.
    nic.counted[1][0] += 9_000;
    nic.counted[1][2] += 9_000 * FULL;
    let snapshot = nic.second(0);
    assert!(is_share(&snapshot, 232, 30_000), "{:?}", sent(&snapshot, 232));
    assert!(is_bound(&snapshot, 233), "{:?}", sent(&snapshot, 233));
    let (rate, known, _) = sent(&snapshot, 231);
    assert!(known == Known::AtMost && rate >= 69_000.0 * FULL as f64, "{rate}");
}

#[test]
fn a_share_in_a_sum_with_a_bound_is_a_bound_too() {
    // A user of both ports; PSNs explain the packets of the first one alone.
    let on = |device: u32, pair: Pair| Pair { device, ..pair };
    let pairs = vec![
        sender(10, 231, 10_000),
        sender(11, 232, 30_000),
        on(1, sender(20, 231, 10_000)),
        on(1, sender(21, 233, 0)),
    ];
    let mut nics = Shared::new(2, pairs);
    nics.seconds(3);
    nics.counted[1][0] += 5_000;
    nics.counted[1][2] += 5_000 * FULL;
    let (rate, known, source) = sent(&nics.second(0), 231);
    assert_eq!((known, source), (Known::AtMost, Source::Psn));
    let truth = 20_000.0 * FULL as f64;
    assert!(rate >= truth + 5_000.0 * FULL as f64, "{rate} of {truth}");
}

/// How a port is used by a process of which sums are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Alone,
    /// Beside another one, and PSNs explain all packets.
    Shared,
    /// And they do not.
    Bound,
    /// Nothing moves there.
    Rests,
}

proptest! {
    #[test]
    fn a_sum_over_ports_of_mixed_sources_is_no_more_certain_than_its_parts(
        ports in prop::collection::vec(
            (
                prop::sample::select(vec![Use::Alone, Use::Shared, Use::Bound, Use::Rests]),
                1_000..30_000_u32,
            ),
            1..4,
        ),
    ) {
        let on = |device: u32, pair: Pair| Pair { device, ..pair };
        let mut pairs = Vec::new();
        for (device, (usage, packets)) in (0..).zip(&ports) {
            let moves = if *usage == Use::Rests { 0 } else { *packets };
            pairs.push(on(device, sender(10 * device + 10, 231, moves)));
            if *usage != Use::Alone {
                pairs.push(on(device, sender(10 * device + 11, 240 + device, moves * 2)));
            }
        }
        let truth: u64 = pairs.iter().filter(|pair| pair.pid == 231).map(|pair| u64::from(pair.moves[0])).sum();
        let truth = (truth * FULL) as f64;
        let mut nics = Shared::new(ports.len(), pairs);
        for _ in 0..6 {
            let snapshot = nics.second(0);
            for (counts, (usage, packets)) in nics.counted.iter_mut().zip(&ports) {
                if *usage == Use::Bound {
                    counts[0] += u64::from(*packets);
                    counts[2] += u64::from(*packets) * FULL;
                }
            }
            let Some(counter) = row(&snapshot, 231).traffic.tx_bytes else { continue };
            let Some(rate) = counter.rate else { continue };
            let of = |usage| ports.iter().any(|(one, _)| *one == usage);
            match counter.rate_known() {
                Known::Exact if counter.source == Source::Psn => {
                    prop_assert!(of(Use::Shared) && !of(Use::Bound), "{:?}", counter);
                    prop_assert!((rate - truth).abs() <= truth * 0.05, "{:?} of {}", counter, truth);
                }
                Known::Exact => {
                    prop_assert!(!of(Use::Shared) && !of(Use::Bound), "{:?}", counter);
                    prop_assert!((rate - truth).abs() < 1.0, "{:?} of {}", counter, truth);
                }
                Known::AtMost => prop_assert!(rate >= truth * (1.0 - 1e-9), "{:?} of {}", counter, truth),
                Known::AtLeast => prop_assert!(rate <= truth, "{:?} of {}", counter, truth),
            }
        }
    }
}

/// Forty refreshes of eight NICs with eight processes and 2,000 queue pairs, of which 64 move.
fn refreshes(owner: impl Fn(u32) -> u32) -> Shared {
    let pair = |n: u32| Pair {
        device: n % 8,
        ..sender(100 + n, 231 + owner(n), if n < 64 { 10_000 } else { 0 })
    };
    let mut nics = Shared::new(8, (0..2_000).map(pair).collect());
    nics.seconds(2);
    nics.quiet = true;
    nics.seconds(40);
    nics
}

/// docs/performance.md, "Shares", says how this and the next one are measured.
#[test]
#[ignore = "callgrind counts its instructions"]
fn refreshes_of_processes_with_a_nic_each() {
    let mut nics = refreshes(|n| n % 8);
    let snapshot = nics.second(0);
    assert_eq!(row(&snapshot, 231).traffic.tx_bytes.unwrap().source, Source::Port);
    assert_eq!(nics.asked, 0);
}

#[test]
#[ignore = "callgrind counts its instructions"]
fn refreshes_of_processes_that_share_each_nic() {
    let mut nics = refreshes(|n| n / 8 % 8);
    let mut asked = 0;
    for _ in 0..8 {
        nics.second(0);
        asked += nics.asked;
    }
    assert!((1400..=1600).contains(&asked), "200 each second: {asked}");
}
