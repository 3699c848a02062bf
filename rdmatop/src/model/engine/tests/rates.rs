//! At a constant true speed, every rate that is shown is that speed, whenever each counter was read.

use proptest::prelude::*;

use super::*;
use crate::model::{
    input::{CountersSample, PortCounters, ReadAt},
    value::Counter,
};

const US: u64 = 1000;

/// One round of sampling: how long after the round before it begins, and how long each of its reads takes, in us.
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
