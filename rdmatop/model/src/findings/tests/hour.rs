//! An hour of perftest's programs, as a machine with SoftRoCE and one with eight NICs report it, must have no
//! finding.

use super::FindingId;
use crate::input::RawSource;
use crate::testkit::machine::{Machine, Work};

const HOUR: u64 = 3600;

/// A program, its opcode, its work requests per second, their size, and the time of each.
const PROGRAMS: &[(&str, usize, f64, f64, u64)] = &[
    ("ib_send_bw", 2, 1800.0, 65_536.0, 900_000),
    ("ib_send_lat", 2, 4000.0, 2.0, 60_000),
    ("ib_write_bw", 0, 2000.0, 65_536.0, 800_000),
    ("ib_write_lat", 0, 4500.0, 2.0, 50_000),
    ("ib_read_bw", 4, 1500.0, 65_536.0, 1_100_000),
    ("ib_read_lat", 4, 3500.0, 2.0, 90_000),
    ("ib_atomic_bw", 6, 9000.0, 8.0, 200_000),
    ("ib_atomic_lat", 6, 3000.0, 8.0, 110_000),
];

/// A fixed sequence of numbers from 0.8 to 1.2.
struct Jitter(u64);

impl Jitter {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        0.8 + (self.0 >> 33) as f64 / f64::from(1_u32 << 31) * 0.4
    }
}

/// Fails if anything is found, with the second.
fn quiet(machine: &Machine, second: u64) {
    assert_eq!(machine.found(), [], "in second {second}");
}

#[test]
fn an_hour_of_perftest_on_softroce_raises_nothing() {
    let mut machine = Machine::new("node7", true);
    let rxe0 = machine.nic("rxe0", "rdma_rxe", None);
    let mut jitter = Jitter(7);
    let mut clients = Vec::new();
    for second in 0..HOUR {
        // One program begins every two minutes, and runs for one minute, for ten, or to the end.
        let at = usize::try_from(second / 120).unwrap();
        if second % 120 == 5 && at < PROGRAMS.len() * 3 {
            let (program, ..) = PROGRAMS[at % PROGRAMS.len()];
            let number = u32::try_from(at).unwrap();
            for (end, peer) in [(0, 1), (1, 0)] {
                machine.process(
                    1000 + 2 * number + end,
                    &format!("{program} -d rxe0"),
                    None,
                    &[],
                    &[],
                );
                let qp = machine.qp(
                    rxe0,
                    50 + 2 * number + end,
                    (1000 + 2 * number + end, program),
                    3,
                    Some((50 + 2 * number + peer, 1)),
                );
                if end == 1 {
                    clients.push((qp, at % PROGRAMS.len(), second + [60, 600, HOUR][at % 3]));
                }
            }
        }
        let mut packets = 1.0;
        for (qp, which, end) in &clients {
            let (_, opcode, tx, size, ns) = PROGRAMS[*which];
            let pace = jitter.next();
            let over = second >= *end;
            packets += if over {
                0.0
            } else {
                tx * pace * (size / 1024.0).ceil()
            };
            machine.work(
                *qp,
                Work {
                    tx: if over { 0.0 } else { tx * pace },
                    size,
                    opcode,
                    ns: crate::testkit::machine::count(ns as f64 / pace),
                    ..Work::default()
                },
            );
        }
        for (name, per_s) in [
            ("sent_pkts", packets),
            ("rcvd_pkts", packets),
            ("completer_retry_err", 0.0),
        ] {
            machine.counter(rxe0, name, RawSource::Netlink, per_s);
        }
        machine.run(1);
        quiet(&machine, second);
    }
    assert_eq!(clients.len(), 24, "all have begun");
    // Real trouble is still found afterwards.
    let (client, ..) = clients[2];
    machine.work(
        client,
        Work {
            rnr: 50.0,
            ..Work::default()
        },
    );
    machine.run(6);
    assert_eq!(machine.found(), [FindingId::ReceiverNotReady]);
}

#[test]
fn an_hour_of_a_job_on_eight_nics_raises_nothing() {
    let mut machine = Machine::new("p5-0", false);
    let mut jitter = Jitter(11);
    let nics: Vec<usize> = (0..8)
        .map(|n| machine.nic(&format!("mlx5_{n}"), "mlx5_core", Some(400)))
        .collect();
    machine.process(
        4711,
        "python3 train.py",
        Some("slurm 7341.0"),
        &["libnccl.so.2"],
        &[],
    );
    for (nic, n) in nics.iter().zip(0..) {
        machine.qp(*nic, 100 + n, (4711, "python3"), 3, Some((300 + n, 20)));
    }
    for second in 0..HOUR {
        // Steps of some seconds: the job computes while all ports are idle, then it exchanges gradients.
        let talks = second % 7 < 4;
        for nic in &nics {
            let words = if talks { 10e9 * jitter.next() } else { 0.0 };
            for (name, source, per_s) in [
                ("port_xmit_data", RawSource::Pma, words),
                ("port_rcv_data", RawSource::Pma, words),
                ("port_xmit_packets", RawSource::Pma, words / 1024.0),
                ("port_rcv_packets", RawSource::Pma, words / 1024.0),
                ("port_xmit_wait", RawSource::Pma, words / 9.0),
                ("symbol_error", RawSource::Pma, 0.0),
                ("link_downed", RawSource::Pma, 0.0),
                ("out_of_buffer", RawSource::Netlink, 0.0),
                (
                    "packet_seq_err",
                    RawSource::Netlink,
                    if second % 600 == 0 { 3.0 } else { 0.0 },
                ),
                (
                    "np_ecn_marked_roce_packets",
                    RawSource::Netlink,
                    if talks { 300.0 } else { 0.0 },
                ),
                ("np_cnp_sent", RawSource::Netlink, if talks { 200.0 } else { 0.0 }),
                (
                    "rp_cnp_handled",
                    RawSource::Netlink,
                    if talks { 200.0 } else { 0.0 },
                ),
                (
                    "rx_prio3_pause",
                    RawSource::Ethtool,
                    if talks { 40.0 } else { 0.0 },
                ),
                ("tx_prio3_bytes", RawSource::Ethtool, words * 4.0),
            ] {
                machine.counter(*nic, name, source, per_s);
            }
        }
        machine.run(1);
        quiet(&machine, second);
    }
    machine.port(nics[3], 1, 3);
    machine.run(4);
    assert_eq!(machine.found(), [FindingId::PortDown]);
}
