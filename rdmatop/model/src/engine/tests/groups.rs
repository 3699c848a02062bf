//! Counters of NICs that QPs are bound to.

use super::*;
use crate::{
    cause::{CauseId, Concerns, Obstacle},
    ib::PortState,
    input::{DeviceGroups, GroupReading, HwCountersReport, HwPort},
    snapshot::Bound,
    value::Source,
};

/// Counter `id` of the QPs `qps` of `pid`, which has sent so many bytes in a tenth of the packets.
fn group(id: u32, pid: Option<u32>, qps: &[u32], sent: u64) -> GroupReading {
    GroupReading {
        id,
        port: 1,
        mode: "auto pid".to_owned(),
        pid,
        qp_type: None,
        qps: qps.to_vec(),
        counters: vec![
            ("out_of_buffer".to_owned(), 0),
            ("rdma_tx_bytes".to_owned(), sent),
            ("rdma_rx_bytes".to_owned(), 2 * sent),
            ("rdma_tx_packets".to_owned(), sent / 10),
        ],
    }
}

fn read(host: &mut Host, groups: Vec<GroupReading>) {
    let device = DeviceGroups {
        device_index: 0,
        at: host.now.into(),
        groups,
    };
    host.apply(Input::Groups(vec![device]));
}

fn mlx5() -> Host {
    let mut host = Host::new();
    host.devices(vec![counting(0, "mlx5_0", "mlx5_core", &[("out_of_buffer", 0)])]);
    host
}

/// Total, rate and whether it is a bound.
fn sent(host: &mut Host, pid: u32) -> (u64, Option<f64>, bool) {
    let counter = host.process(pid).traffic.tx_bytes.expect("a counter");
    assert_eq!(counter.source, Source::Hw);
    (counter.total, counter.rate, counter.partial)
}

#[test]
fn the_nic_s_counts_of_a_process_are_its_traffic_for_want_of_better() {
    let mut host = mlx5();
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 3)]);
    read(&mut host, vec![group(1, Some(231), &[17, 18], 1000)]);
    assert_eq!(sent(&mut host, 231), (1000, None, false));
    host.pass(SECOND);
    read(&mut host, vec![group(1, Some(231), &[17, 18], 4000)]);
    assert_eq!(sent(&mut host, 231), (4000, Some(3000.0), false));
    let row = host.process(231);
    assert_eq!(row.traffic.rx_bytes.unwrap().rate, Some(6000.0));
    assert_eq!(row.traffic.tx_packets.unwrap().rate, Some(300.0));
    assert_eq!(row.traffic.tx_wr, None, "work requests are not counted by it");
    assert_eq!(row.history.tx.last(), Some(&Some(3000.0)));
    let counter = &row.hw_counters[0];
    assert_eq!(
        (&*counter.device, counter.id, &*counter.qps),
        ("mlx5_0", 1, &[17, 18][..])
    );
    assert_eq!(counter.counters.len(), 4);
}

#[test]
fn a_counter_that_goes_with_its_last_qp_leaves_what_it_counted_as_a_bound() {
    let mut host = mlx5();
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 3)]);
    read(
        &mut host,
        vec![group(1, Some(231), &[17], 1000), group(2, Some(231), &[18], 500)],
    );
    assert_eq!(sent(&mut host, 231).0, 1500);
    host.pass(SECOND);
    let now = host.now;
    host.dump(now, vec![dumped(18, Some(231), 3)]);
    read(&mut host, vec![group(2, Some(231), &[18], 700)]);
    assert_eq!(sent(&mut host, 231), (1700, Some(200.0), true));
    // The number is given again, to a counter of another process.
    host.pass(SECOND);
    read(
        &mut host,
        vec![group(1, Some(400), &[19], 10), group(2, Some(231), &[18], 700)],
    );
    assert_eq!(sent(&mut host, 231).0, 1700);
    assert_eq!(sent(&mut host, 400).0, 10);
    host.pass(SECOND);
    read(&mut host, Vec::new());
    assert_eq!(sent(&mut host, 231), (1700, None, true));
    assert!(host.process(231).hw_counters.is_empty());
}

#[test]
fn a_process_with_a_qp_that_is_bound_to_nothing_has_a_lower_bound() {
    let mut host = mlx5();
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 3)]);
    host.pass(SECOND);
    read(&mut host, vec![group(1, Some(231), &[17], 1000)]);
    assert_eq!(sent(&mut host, 231), (1000, None, true));
    // In RESET a QP sends nothing, and is bound when it leaves it.
    let mut host = mlx5();
    host.dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 0)]);
    host.pass(SECOND);
    read(&mut host, vec![group(1, Some(231), &[17], 1000)]);
    assert_eq!(sent(&mut host, 231), (1000, None, false));
}

#[test]
fn work_requests_that_programs_count_exactly_come_first() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 0)]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 50)]);
    read(&mut host, vec![group(1, Some(231), &[17], 9000)]);
    let row = host.process(231);
    let counter = row.traffic.tx_bytes.unwrap();
    assert_eq!((counter.total, counter.source), (5000, Source::Ebpf));
    assert_eq!(row.hw_counters.len(), 1, "they are shown all the same");
}

#[test]
fn a_counter_without_a_process_has_the_owner_of_all_its_qps_or_none() {
    let mut host = mlx5();
    let t = host.now;
    host.dump(
        t,
        vec![
            dumped(17, Some(231), 3),
            dumped(18, Some(231), 3),
            dumped(19, Some(400), 3),
        ],
    );
    read(&mut host, vec![group(1, None, &[17, 18], 1000)]);
    assert_eq!(sent(&mut host, 231).0, 1000);
    host.pass(SECOND);
    read(&mut host, vec![group(5, None, &[18, 19], 1000)]);
    assert!(host.process(400).traffic.tx_bytes.is_none());
}

#[test]
fn the_notes_say_what_was_set_once_and_why_something_was_not() {
    let mut host = Host::new();
    let port = |device: &str, why: Option<(CauseId, &str)>| HwPort {
        device: device.to_owned(),
        device_index: 0,
        port: 1,
        set: why.is_none(),
        optional: Vec::new(),
        why: why.map(|(id, why)| Box::new(Obstacle::new(id, why, "").takes("x", Concerns::Host))),
    };
    let taken = Some((CauseId::CountersTaken, "another"));
    let none = Some((CauseId::NoBinding, "none"));
    let report = |ports| Input::HwCounters(Box::new(HwCountersReport { ports, failed: None }));
    host.apply(report(vec![
        port("mlx5_0", None),
        port("mlx5_1", None),
        port("mlx5_2", taken),
        port("mlx5_3", taken),
        port("rxe0", none),
    ]));
    let notes: Vec<_> = host
        .tick()
        .health
        .notes
        .iter()
        .map(|note| (note.id, note.line()))
        .collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert_eq!(notes[0].0, CauseId::CountersSet);
    assert!(notes[0].1.contains("mlx5_0/1, mlx5_1/1"), "{notes:?}");
    assert!(notes[1].1.contains("mlx5_2/1, mlx5_3/1"), "{notes:?}");
    // Where nothing is set, that a driver cannot is what the user has to know.
    host.apply(report(vec![port("rxe0", none)]));
    assert_eq!(host.tick().health.notes[0].id, CauseId::NoBinding);
}

/// A port of 100 kB/s, and what is said of its user after so many seconds in which it receives so many bytes
/// a second.
fn links(seconds: u64, per_s: u64, qps: &[u32]) -> Option<Bound> {
    let mut host = Host::new();
    let mut mlx5 = counting(0, "mlx5_0", "mlx5_core", &[("out_of_buffer", 0)]);
    mlx5.ports[0].state = Some(PortState(4));
    mlx5.ports[0].rate_bps = Some(800_000);
    host.devices(vec![mlx5]);
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 3)]);
    // `group` receives twice what it sends.
    read(&mut host, vec![group(1, Some(231), qps, 0)]);
    host.tick();
    for second in 1..=seconds {
        host.pass(SECOND);
        read(&mut host, vec![group(1, Some(231), qps, second * per_s / 2)]);
        host.tick();
    }
    host.process(231).bound
}

#[test]
fn a_job_that_fills_its_link_is_bound_by_communication() {
    let full = links(12, 90_000, &[17, 18]).unwrap();
    assert_eq!(
        (full.verdict.is_some(), full.partial, full.source),
        (true, false, Source::Hw)
    );
    assert!(
        (full.share - 0.9).abs() < 1e-9 && full.seconds >= 11.0,
        "{full:?}"
    );
    let short = links(3, 90_000, &[17, 18]).unwrap();
    assert!(short.verdict.is_none() && short.seconds <= 3.0, "{short:?}");
    let rest = links(12, 10_000, &[17, 18]).unwrap();
    assert!(
        rest.verdict.is_none() && (rest.share - 0.1).abs() < 1e-9,
        "{rest:?}"
    );
    assert_eq!(links(12, 90_000, &[17]), None, "of QP 18 nothing is known");
}
