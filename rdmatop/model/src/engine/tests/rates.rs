//! At a constant true speed, every rate that is shown is that speed, whenever each counter was read, and
//! whether or not the machine slept in between.

use proptest::prelude::*;

use super::{
    history::{Lab, Step, history},
    *,
};
use crate::{
    findings::FindingId,
    input::{CountersSample, PortCounters, ReadAt},
    value::Counter,
};

const US: u64 = 1000;

/// One round of sampling: how long after the round before it begins, and how long each of its reads takes, in
/// us.
#[derive(Clone, Debug)]
struct Round {
    pause: u64,
    waits: [u64; 8],
    /// The driver's counters cannot be read in this round.
    failed: bool,
}

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let round = (
        60_000u64..3_000_000,
        prop::array::uniform8(1u64..400_000),
        prop::bool::weighted(0.2),
    );
    let round = round.prop_map(|(pause, waits, failed)| Round { pause, waits, failed });
    prop::collection::vec(round, 2..14)
}

/// What moves on the host, per microsecond.
#[derive(Clone, Copy, Debug)]
struct Speeds {
    packets: u64,
    words: u64,
    drops: [u64; 2],
    requests: [u64; 2],
    calls: u64,
}

/// Counters of the one port of device 1 at the times of their own reads.
fn port(speeds: Speeds, hw_us: u64, pma_us: [u64; 2], failed: bool) -> Vec<RawReading> {
    let raw = |name: &str, per_us: u64, us: u64, source, failed: bool| RawReading {
        name: name.into(),
        value: (!failed).then_some(per_us * us),
        source,
        at: ReadAt::from(us * US),
    };
    vec![
        raw(
            "out_of_buffer",
            speeds.drops[0],
            hw_us,
            RawSource::Netlink,
            failed,
        ),
        raw("port_xmit_data", speeds.words, pma_us[0], RawSource::Pma, false),
        raw(
            "port_xmit_discards",
            speeds.drops[1],
            pma_us[1],
            RawSource::Pma,
            false,
        ),
        raw(
            "port_xmit_packets",
            speeds.packets,
            pma_us[1],
            RawSource::Pma,
            false,
        ),
    ]
}

fn is(shown: Option<Counter>, truth: u64, what: &str) -> Result<(), TestCaseError> {
    let Some(rate) = shown.and_then(|counter| counter.rate) else {
        return Ok(());
    };
    let truth = truth as f64 * 1e6;
    prop_assert!((rate - truth).abs() <= truth * 1e-9, "{what}: {rate} for {truth}");
    Ok(())
}

/// Holds what is shown to the truth; returns how many rates there were.
fn check(snapshot: &Snapshot, round: &Round, speeds: Speeds) -> Result<usize, TestCaseError> {
    let (of_qps, hardware) = (&snapshot.ports[1], &snapshot.ports[0]);
    is(hardware.tx_bytes, 4 * speeds.words, "bytes of the wire")?;
    is(hardware.tx_packets, speeds.packets, "packets")?;
    let drops = if round.failed {
        speeds.drops[1]
    } else {
        speeds.drops[0] + speeds.drops[1]
    };
    prop_assert_eq!(hardware.drops.map(|c| c.partial), Some(round.failed));
    is(hardware.drops, drops, "drops")?;
    let requests = speeds.requests[0] + speeds.requests[1];
    is(of_qps.wr_tx_bytes, 100 * requests, "bytes of a port's QPs")?;
    let process = &snapshot.processes[0];
    is(process.traffic.tx_wr, requests, "requests of the process")?;
    is(
        process.traffic.by_status.first().map(|s| s.cqes),
        requests,
        "successes of the process",
    )?;
    for (qp, requests) in snapshot.qps.iter().zip(speeds.requests) {
        is(qp.traffic.tx_wr, requests, "requests of a QP")?;
        is(qp.traffic.tx_bytes, 100 * requests, "bytes of a QP")?;
    }
    is(
        snapshot.verbs.first().map(|verb| verb.calls),
        speeds.calls,
        "verb calls",
    )?;
    for (history, truth) in [
        (&hardware.history, 4 * speeds.words),
        (&of_qps.history, 100 * requests),
        (&process.history, 100 * requests),
    ] {
        let most = history.tx.iter().flatten().copied().fold(0.0, f64::max);
        prop_assert!(
            most <= truth as f64 * 1e6 * (1.0 + 1e-9),
            "history: {most} for {truth}"
        );
    }
    let shown = [
        hardware.tx_bytes,
        of_qps.wr_tx_bytes,
        process.traffic.tx_wr,
        hardware.drops,
    ]
    .into_iter()
    .flatten()
    .filter(|counter| counter.rate.is_some())
    .count();
    Ok(shown)
}

/// Plays rounds; returns how many rates were shown.
fn play(rounds: &[Round], speeds: Speeds) -> Result<usize, TestCaseError> {
    let mut host = Host::new();
    let mut us = 10_000_000;
    let mut shown = 0;
    let born = host.now;
    host.qp(create(born, 0xa0, 17));
    host.qp(create(born, 0xb0, 18));
    for (number, round) in rounds.iter().enumerate() {
        us += round.pause;
        let [hw, pma, discards, sweep, first, second, verbs, end] = round.waits.map(|wait| {
            us += wait;
            us
        });
        let counters = port(speeds, hw, [pma, discards], round.failed);
        host.now = us * US;
        if number == 0 {
            let mut device = rxe(1, "mlx5_0");
            device.driver = Some("mlx5_core".into());
            device.ports[0].counters = counters;
            let sample = DevicesSample {
                mono_ns: discards * US,
                devices: vec![rxe(0, "rxe0"), device],
                ..DevicesSample::default()
            };
            host.apply(Input::Devices(Box::new(sample)));
        } else {
            let ports = vec![PortCounters {
                device_index: 1,
                number: 1,
                counters,
            }];
            let sample = CountersSample {
                mono_ns: discards * US,
                ports,
                ..CountersSample::default()
            };
            host.apply(Input::Counters(Box::new(sample)));
        }
        // One sweep in two samples, between which the reader had to wait.
        let slots = [(0xa0, 17, first), (0xb0, 18, second)];
        for (at, (object, qpn, read)) in slots.into_iter().enumerate() {
            let sample = SlotsSample {
                mono_ns: sweep * US,
                at: Some(ReadAt::from(read * US)),
                slots: vec![(
                    u32::try_from(at).unwrap(),
                    slot(born, object, qpn, speeds.requests[at] * read),
                )],
                partial: number > 0,
                more: at == 0,
                ..SlotsSample::default()
            };
            host.apply(Input::Slots(Box::new(sample)));
        }
        let stats = VerbStats {
            calls: speeds.calls * verbs,
            ..VerbStats::new_zeroed()
        };
        let sample = VerbsSample {
            mono_ns: verbs * US,
            verbs: vec![(VerbKey { pid: 231, verb: 1 }, stats)],
            ..VerbsSample::default()
        };
        host.apply(Input::Verbs(Box::new(sample)));
        host.now = end * US;
        let snapshot = host.tick();
        shown += check(&snapshot, round, speeds)?;
    }
    Ok(shown)
}

#[test]
fn from_the_second_round_on_all_rates_are_shown() {
    let speeds = Speeds {
        packets: 3,
        words: 9,
        drops: [2, 1],
        requests: [5, 7],
        calls: 1,
    };
    let round = |wait: u64| Round {
        pause: 900_000,
        waits: [wait; 8],
        failed: false,
    };
    let rounds = [round(300_000), round(10), round(50_000)];
    assert_eq!(play(&rounds, speeds).unwrap(), 8);
}

/// Nanoseconds of a tick of /proc's clock of starts.
const TICK: u64 = 10 * MS;
/// A night. No input gives its length: only the two clocks that go on in the meantime show it.
const NIGHT: u64 = 8 * 3600 * SECOND;
/// Start of process 231 by the clock that goes on while the machine sleeps.
const START: u64 = 77 * SECOND;

/// One second of a machine on which QP 17 moves at a constant speed and QP 18 waits for its peer.
fn one_second(host: &mut Host, born: u64) -> Arc<Snapshot> {
    host.pass(SECOND);
    let second = host.now / SECOND;
    host.devices(vec![counting(
        0,
        "rxe0",
        "rdma_rxe",
        &[("sent_pkts", second * 500)],
    )]);
    let slots = [(0xa0, 17, second * 100), (0xb0, 18, 0)].map(|(object, qpn, done)| QpSlot {
        owner_start_ns: START,
        ..slot(born, object, qpn, done)
    });
    host.sweep(&slots);
    let stats = VerbStats {
        calls: second * 10,
        ..VerbStats::new_zeroed()
    };
    host.apply(Input::Verbs(Box::new(VerbsSample {
        mono_ns: host.now,
        verbs: vec![(VerbKey { pid: 231, verb: 1 }, stats)],
        ..VerbsSample::default()
    })));
    host.facts(231, START / TICK, "ib_send_bw");
    host.tick()
}

/// A host with those two QPs, born at the time that is returned.
fn host_before_the_night() -> (Host, u64) {
    let mut host = Host::new();
    let born = host.now;
    for (object, qpn) in [(0xa0, 17), (0xb0, 18)] {
        let owned = |record| QpRecord {
            owner_start_ns: START,
            ..record
        };
        host.qp(owned(create(born, object, qpn)));
        host.qp(owned(modify(born + MS, object, qpn, 1)));
        if qpn == 17 {
            host.qp(owned(modify(born + 2 * MS, object, qpn, 3)));
        }
    }
    (host, born)
}

/// CLOCK_MONOTONIC stands still while a machine sleeps; the clock of the day and that of processes' starts go
/// on.
#[test]
fn a_suspend_changes_no_rate_no_age_and_no_identity() {
    // Before the QP that waits is stuck, when it would be found to be, and long after.
    for wakes in [4, 7, 14] {
        let (mut host, born) = host_before_the_night();
        let mut first = None;
        for second in 2..=24 {
            if second == wakes {
                host.slept_ns += NIGHT;
            }
            let snapshot = one_second(&mut host, born);
            assert_eq!(snapshot.time, WALL + second * SECOND + host.slept_ns);
            assert_eq!(snapshot.mono_ns, second * SECOND);
            assert_eq!(snapshot.interval_ns, (second > 2).then_some(SECOND));
            let uids = who(&snapshot);
            assert_eq!(*first.get_or_insert(uids), uids, "second {second}");
            ages_are_those_of(&snapshot, second);
            rates_are_those_of(&snapshot, second);
        }
        let points = &host.tick().processes[0].history.tx;
        let shown: Vec<_> = points.iter().copied().flatten().collect();
        assert_eq!(shown, vec![10_000.0; 23]);
    }
}

/// The uids of the one process and its two QPs, all of which live.
fn who(snapshot: &Snapshot) -> [u64; 3] {
    let (processes, qps) = (&snapshot.processes, &snapshot.qps);
    let ([process], [first, second]) = (processes.as_slice(), qps.as_slice()) else {
        panic!("{processes:?} {qps:?}");
    };
    assert_eq!((process.pid, process.exited, process.qps), (Some(231), false, 2));
    for (qp, qpn) in [(first, 17), (second, 18)] {
        assert_eq!(
            (qp.qpn, qp.exited, qp.process_uid),
            (qpn, false, Some(process.uid))
        );
    }
    [process.uid, first.uid, second.uid]
}

fn ages_are_those_of(snapshot: &Snapshot, second: u64) {
    for qp in &snapshot.qps {
        assert_eq!(qp.age_ns(snapshot.mono_ns), Some((second - 1) * SECOND));
    }
    let steps: Vec<_> = snapshot.qps[1].timeline.iter().map(|step| step.mono_ns).collect();
    assert_eq!(steps, [SECOND, SECOND + MS]);
    let found = snapshot.findings.iter();
    let found: Vec<_> = found
        .map(|found| (found.id, found.age_s(snapshot.mono_ns)))
        .collect();
    // The first snapshot after 5 s in INIT raises it: it is in that state since 1.001 s.
    let truth = (second >= 7).then_some((FindingId::QpSetup, second - 2));
    assert_eq!(found, Vec::from_iter(truth), "second {second}");
}

fn rates_are_those_of(snapshot: &Snapshot, second: u64) {
    let port = &snapshot.ports[0];
    let shown = [
        port.tx_packets,
        port.wr_tx_bytes,
        snapshot.processes[0].traffic.tx_wr,
        snapshot.qps[0].traffic.tx_bytes,
        snapshot.qps[1].traffic.tx_bytes,
        snapshot.verbs.first().map(|verb| verb.calls),
    ];
    let rates = shown.map(|counter| counter.and_then(|counter| counter.rate));
    let truth = [500.0, 10_000.0, 100.0, 10_000.0, 0.0, 10.0];
    assert_eq!(
        rates,
        truth.map(|rate| (second > 2).then_some(rate)),
        "second {second}"
    );
}

/// After a night, a process and a QP that take the numbers of those before are others, and start without an
/// age.
#[test]
fn after_a_suspend_a_reused_number_is_another_process_and_another_qp() {
    let (mut host, born) = host_before_the_night();
    let before = who(&one_second(&mut host, born));
    host.slept_ns += NIGHT;
    assert_eq!(who(&one_second(&mut host, born)), before);
    let started = host.now + host.slept_ns;
    let made = host.now + MS;
    host.pass(10 * MS);
    let end = host.qp(QpRecord {
        owner_start_ns: START,
        ..destroy(made - 1, 0xa0, 17)
    });
    let create = host.qp(QpRecord {
        owner_start_ns: started,
        ..create(made, 0xa0, 17)
    });
    // What happened after the night has the time of day of then.
    assert_eq!(
        [end.ts_ns, create.ts_ns],
        [made - 1, made].map(|mono_ns| WALL + mono_ns + NIGHT)
    );
    host.facts(231, started / TICK, "ib_send_bw");
    let snapshot = host.tick();
    let [process, first, second] = before;
    let rows = snapshot.processes.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.uid == process, row.exited, row.qps))
        .collect();
    assert_eq!(rows, [(true, true, 1), (false, false, 1)]);
    let rows = snapshot.qps.iter();
    let rows: Vec<_> = rows
        .map(|row| (row.qpn, row.exited, row.age_ns(host.now)))
        .collect();
    let [old, new] = [born, made].map(|born| Some(host.now - born));
    assert_eq!(rows, [(17, true, old), (18, false, old), (17, false, new)]);
    let uids: Vec<_> = snapshot.qps.iter().map(|row| row.uid).collect();
    assert_eq!(uids[..2], [first, second]);
    assert!(!uids[..2].contains(&uids[2]));
}

/// All that a snapshot and the events before it say, without the time of day.
fn said(snapshot: &Snapshot, mut events: Vec<Event>) -> String {
    let mut row = serde_json::to_value(snapshot).unwrap();
    row["time"] = serde_json::Value::Null;
    // It comes from the difference of the clocks when the record is read, which may be after a night.
    for event in &mut events {
        event.ts_ns = 0;
    }
    format!("{row} {events:?}")
}

proptest! {
    // Each step makes two snapshots as text: some histories fewer.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(4)))]

    #[test]
    fn a_machine_that_slept_says_what_one_says_that_did_not(first: bool, lossy: bool, steps in history()) {
        let mut labs = [(); 2].map(|()| Lab::new(EngineConfig::default(), lossy));
        let first = first.then_some(Step::Attach);
        for mut step in first.into_iter().chain(steps) {
            // Two processes that start within one tick of /proc have a night between them on one machine
            // only.
            if let Step::Spawn { same_tick, .. } = &mut step {
                *same_tick = false;
            }
            let [awake, slept] = [false, true].map(|sleeps| {
                let lab = &mut labs[usize::from(sleeps)];
                let is_night = matches!(step, Step::Sleep(_));
                let events = if is_night && !sleeps { Vec::new() } else { lab.run(&step) };
                let now = lab.present();
                said(&lab.engine.tick(now), events)
            });
            prop_assert_eq!(awake, slept);
        }
    }
}

proptest! {
    #[test]
    fn constant_speeds_are_shown_as_they_are(
        rounds in rounds(),
        packets in 1u64..1000,
        words in 1u64..100_000,
        drops in prop::array::uniform2(1u64..100),
        requests in prop::array::uniform2(1u64..1000),
        calls in 1u64..10,
    ) {
        play(&rounds, Speeds { packets, words, drops, requests, calls })?;
    }

    #[test]
    fn a_step_of_the_wall_clock_changes_no_rate(steps in prop::collection::vec(any::<i64>(), 1..8)) {
        let mut host = Host::new();
        for (second, step) in (2u64..).zip(steps) {
            host.now = second * SECOND;
            host.devices(vec![counting(0, "rxe0", "rdma_rxe", &[("sent_pkts", second * 500)])]);
            let wall = Now { mono_ns: host.now, wall_ns: WALL.wrapping_add_signed(step) };
            let packets = host.engine.tick(wall).ports[0].tx_packets.unwrap();
            prop_assert_eq!(packets.rate, (second > 2).then_some(500.0));
        }
    }
}
