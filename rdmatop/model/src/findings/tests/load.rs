//! Rules about how a program posts and how long its work requests take.

use super::*;
use crate::input::RawSource;
use crate::snapshot::QpRow;
use crate::testkit::machine::{Machine, Work};

#[test]
fn calls_of_post_send_that_post_nothing_say_that_the_queue_is_full() {
    let mut s = pair();
    // Eight of ten calls are refused.
    edit(&mut s, 0, |t| {
        (t.doorbells, t.tx_wr_posted) = (rate(500.0), rate(100.0));
    });
    assert_eq!(ids(&after(2, &s)), [""; 0], "it may pass");
    let found = after(5, &s);
    assert_eq!(ids(&found), ["send-queue-full"]);
    assert_eq!(
        found[0].verdict,
        "ib_send_bw (PID 254) posts to a send queue that is full: at least 400 of 500 calls of post_send a second post nothing"
    );
    let quiet = |what: &str, edit_by: &dyn Fn(&mut Traffic)| {
        let mut s = s.clone();
        edit(&mut s, 0, edit_by);
        assert!(
            after(12, &s).iter().all(|f| f.id != FindingId::SendQueueFull),
            "{what}"
        );
    };
    quiet("each call posts one, with any number outstanding", &|t| {
        t.tx_wr_posted = rate(500.0);
    });
    quiet("each call posts many", &|t| t.tx_wr_posted = rate(8000.0));
    quiet("a few", &|t| t.tx_wr_posted = rate(300.0));
    quiet("nothing finishes: that is another finding", &|t| {
        t.tx_wr = rate(0.0);
    });
    quiet("it waits for its receiver", &|t| t.rnr_waits = rate(3.0));
    quiet("some posts were not counted", &|t| {
        t.tx_wr_posted = rate(100.0).map(|count| Counter {
            partial: true,
            ..count
        });
    });
    quiet("posts are not counted", &|t| t.tx_wr_posted = None);
}

/// A machine with one program that posts.
fn posting() -> (Machine, usize) {
    let mut machine = Machine::new("node7", true);
    let rxe0 = machine.nic("rxe0", "rdma_rxe", None);
    machine.process(421, "ib_write_bw -d rxe0 10.0.0.9", None, &[], &[]);
    let qp = machine.qp(rxe0, 22, (421, "ib_write_bw"), 3, Some((21, 9)));
    (machine, qp)
}

const FAST: Work = Work {
    tx: 2000.0,
    size: 65_536.0,
    opcode: 0,
    rx: 0.0,
    again: 0.0,
    rnr: 0.0,
    ns: 1_000_000,
};

#[test]
fn work_requests_that_get_slower_and_fewer_are_named_until_it_is_usual() {
    let (mut machine, qp) = posting();
    machine.work(qp, FAST);
    machine.run(60);
    assert_eq!(machine.found(), []);
    // The same number is outstanding, but each takes twenty times as long.
    let slow = Work {
        tx: 100.0,
        ns: 20_000_000,
        ..FAST
    };
    machine.work(qp, slow);
    machine.run(10);
    assert_eq!(machine.found(), [], "it may pass");
    machine.run(25);
    assert_eq!(machine.found(), [FindingId::LatencyRises]);
    machine.work(qp, FAST);
    machine.run(40);
    assert_eq!(machine.found(), [], "it is as before");
    machine.work(qp, slow);
    machine.run(35);
    let snapshot = machine.snapshot();
    let found = &snapshot.findings[0];
    assert_eq!(
        found.verdict,
        "Work requests of ib_write_bw (PID 421) take longer and are fewer: p99 34 ms instead of 1.0 ms, 100/s instead of 2000/s"
    );
}

#[test]
fn a_program_that_is_slow_for_as_long_as_it_was_fast_is_slow_no_more() {
    let (mut machine, qp) = posting();
    machine.work(qp, FAST);
    machine.run(400);
    machine.work(
        qp,
        Work {
            tx: 100.0,
            ns: 20_000_000,
            ..FAST
        },
    );
    let found: Vec<bool> = (0..600)
        .map(|_| {
            machine.run(1);
            !machine.found().is_empty()
        })
        .collect();
    let changes = found.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((changes, found[100], found[599]), (2, true, false));
}

#[test]
fn a_start_an_end_another_size_and_a_pause_of_the_program_are_no_rise() {
    let healthy = |what: &str, works: &[(u64, Work)]| {
        let (mut machine, qp) = posting();
        for (seconds, work) in works {
            machine.work(qp, *work);
            for _ in 0..*seconds {
                machine.run(1);
                assert_eq!(machine.found(), [], "{what}");
            }
        }
    };
    healthy(
        "a slow start",
        &[
            (
                20,
                Work {
                    tx: 50.0,
                    ns: 40_000_000,
                    ..FAST
                },
            ),
            (100, FAST),
        ],
    );
    healthy("an end", &[(60, FAST), (60, Work::default())]);
    let large = Work {
        tx: 100.0,
        size: 4e6,
        ns: 40_000_000,
        ..FAST
    };
    healthy("larger messages", &[(60, FAST), (60, large)]);
    let seldom = Work {
        tx: 20.0,
        ns: 5_000_000,
        ..FAST
    };
    healthy("a program that posts less by itself", &[(60, FAST), (60, seldom)]);
    let shared = Work {
        tx: 1000.0,
        ns: 2_000_000,
        ..FAST
    };
    healthy("a second program on the same link", &[(60, FAST), (60, shared)]);
    let little = Work {
        tx: 5000.0,
        ns: 20_000,
        ..FAST
    };
    let busy = Work {
        tx: 1500.0,
        ns: 90_000,
        ..FAST
    };
    healthy("within 200 us", &[(60, little), (60, busy)]);
}

/// Two processes on one port of SoftRoCE with these numbers of QPs, each with this many work requests of 1
/// KiB per second; returns the snapshot after a minute.
fn sharing(many: (u32, f64), few: (u32, f64), edit: impl Fn(u32, &mut Work)) -> Snapshot {
    sharing_with(many, few, None, edit)
}

/// The same; `hub` is the address to which the first QPs of both processes are connected.
fn sharing_with(
    many: (u32, f64),
    few: (u32, f64),
    hub: Option<u8>,
    edit: impl Fn(u32, &mut Work),
) -> Snapshot {
    let mut machine = Machine::new("node7", true);
    let rxe0 = machine.nic("rxe0", "rdma_rxe", None);
    for (pid, other, (qps, tx)) in [(421, 450, many), (450, 421, few)] {
        machine.process(pid, "ib_write_bw", None, &[], &[]);
        for n in 0..qps {
            let peer = hub.map_or((600 + n, 9), |address| (other + n, address));
            let qp = machine.qp(rxe0, pid + n, (pid, "ib_write_bw"), 3, Some(peer));
            let mut work = Work {
                tx,
                size: 1024.0,
                ..Work::default()
            };
            edit(pid, &mut work);
            machine.work(qp, work);
        }
    }
    machine.run(60);
    machine.snapshot()
}

fn as_it_is(_pid: u32, _work: &mut Work) {}

#[test]
fn a_process_with_one_qp_beside_sixteen_of_another_gets_as_much_as_one() {
    let s = sharing((8, 450.0), (1, 250.0), as_it_is);
    assert_eq!(ids(&s.findings), ["port-contention"]);
    let found = &s.findings[0];
    assert_eq!(
        found.verdict,
        "ib_write_bw (PID 450) sends 2.0 Mb/s with 1 QP on rxe0/1, ib_write_bw (PID 421) 29.5 Mb/s with 8: shared per QP, not per process"
    );
    assert_eq!(
        found.evidence[0],
        "ib_write_bw (PID 450): 2.0 Mb/s by each QP, 64 work requests or more wait"
    );
    assert_eq!(found.severity, Severity::Info);
    let uid = |pid| {
        let row = s.processes.iter().find(|row| row.pid == Some(pid));
        row.map(|row| row.uid)
    };
    assert_eq!(found.victims, Vec::from_iter(uid(450)));
    let quiet = |what: &str, s: &Snapshot| {
        let found = ids(&s.findings);
        assert!(!found.contains(&"port-contention"), "{what}: {found:?}");
    };
    quiet("as many QPs", &sharing((1, 9000.0), (1, 250.0), as_it_is));
    quiet("a fair share", &sharing((8, 450.0), (4, 450.0), as_it_is));
    quiet(
        "each of its QPs has less: that is another reason",
        &sharing((8, 2000.0), (1, 100.0), as_it_is),
    );
    quiet("next to nothing", &sharing((8, 10.0), (1, 10.0), as_it_is));
    let rnr = |pid, work: &mut Work| work.rnr = if pid == 450 { 5.0 } else { 0.0 };
    quiet("its receiver is late", &sharing((8, 450.0), (1, 250.0), rnr));
    let reads = |pid, work: &mut Work| work.opcode = if pid == 421 { 4 } else { 0 };
    quiet("the other one receives", &sharing((8, 450.0), (1, 250.0), reads));
    let hub = sharing_with((8, 450.0), (1, 250.0), Some(1), as_it_is);
    quiet("it is a client of the other one", &hub);
}

/// Two processes share a full port of a NIC by their PSNs: QPs and packets per second of a QP of each.
fn sharing_a_nic(many: (u32, f64), few: (u32, f64), load: f64) -> Snapshot {
    const LINK: f64 = 12.5e9;
    let mut machine = Machine::new("gpu12", false);
    let nic = machine.nic("mlx5_0", "mlx5_core", Some(100));
    machine.watch_starts();
    for (pid, (qps, _)) in [(421, many), (450, few)] {
        machine.process(pid, "ib_write_bw", None, &[], &[]);
        for n in 0..qps {
            machine.qp(nic, pid + n, (pid, "ib_write_bw"), 3, Some((600 + n, 9)));
        }
    }
    let parts = f64::from(many.0) * many.1 + f64::from(few.0) * few.1;
    let packets = load * LINK / (4096.0 + 62.0);
    for (name, per_s) in [
        ("port_xmit_data", load * LINK / 4.0),
        ("port_xmit_packets", packets),
        ("port_rcv_data", load * LINK / 4.0),
        ("port_rcv_packets", packets),
    ] {
        machine.counter(nic, name, RawSource::Pma, per_s);
    }
    machine.counter(nic, "rx_read_requests", RawSource::Netlink, 0.0);
    machine.packets(421, packets * 0.999 * many.1 / parts);
    machine.packets(450, packets * 0.999 * few.1 / parts);
    machine.run(60);
    machine.snapshot()
}

#[test]
fn on_a_full_port_of_a_nic_shares_say_who_has_too_few_qps() {
    let s = sharing_a_nic((16, 1.0), (1, 1.0), 0.95);
    assert_eq!(ids(&s.findings), ["port-contention"]);
    let found = &s.findings[0];
    assert!(
        found.verdict.starts_with("ib_write_bw (PID 450) sends at most ")
            && found
                .verdict
                .contains(" with 1 QP on mlx5_0/1 (95 % full), ib_write_bw (PID 421) "),
        "{}",
        found.verdict
    );
    assert!(
        found.evidence[0].ends_with("by each QP; the port is full"),
        "{found:?}"
    );
    // The one that takes most has a mark, too, and other words.
    let words = |pid: u32| {
        let row = s.processes.iter().find(|row| row.pid == Some(pid)).unwrap();
        let mark = crate::fields::finding_of(row, &s).unwrap();
        (mark.role, mark.words.rsplit_once(' ').unwrap().1.to_owned())
    };
    assert_eq!(words(421), (super::super::Role::Cause, "most".to_owned()));
    assert_eq!(words(450), (super::super::Role::Victim, "QPs".to_owned()));
    for (what, s) in [
        ("there is room for more", sharing_a_nic((16, 1.0), (1, 1.0), 0.8)),
        (
            "it wants less than its QP could have",
            sharing_a_nic((16, 1.0), (1, 0.7), 0.95),
        ),
        ("a fair share", sharing_a_nic((4, 1.0), (4, 1.0), 0.95)),
    ] {
        assert_eq!(ids(&s.findings), [""; 0], "{what}");
    }
    let found = |edit: fn(&mut Snapshot)| {
        let mut s = s.clone();
        edit(&mut s);
        ids(&after(30, &s))
    };
    assert_eq!(found(|_| {}), ["port-contention"]);
    assert_eq!(
        found(|s| for row in &mut s.processes {
            row.devices = vec!["mlx5_0".into(), "mlx5_1".into()];
        }),
        [""; 0],
        "it may send by another NIC"
    );
    assert_eq!(
        found(|s| for row in &mut s.processes {
            row.traffic.tx_packets = None;
        }),
        [""; 0],
        "a bound without packets says nothing"
    );
    // By their work requests: what READs fetch fills no port that sends.
    let by_requests = |reads: bool| {
        let mut s = s.clone();
        for row in &mut s.processes {
            let rate = if row.pid == Some(421) { 11.2e9 } else { 0.7e9 };
            let bytes = Counter::whole(9, Some(rate), Source::Uprobe);
            row.traffic.tx_bytes = Some(bytes);
            row.traffic.tx_packets = None;
            row.traffic.by_opcode = vec![crate::facts::OpcodeTraffic {
                opcode: crate::ib::WrOpcode(if reads { 4 } else { 0 }),
                wr: bytes,
                bytes,
            }];
        }
        ids(&after(30, &s))
    };
    assert_eq!(by_requests(false), ["port-contention"]);
    assert_eq!(by_requests(true), [""; 0]);
}

/// What to do names another NIC only where the two could use one.
#[test]
fn another_nic_is_named_only_if_active_and_of_this_namespace_and_fabric() {
    let one = sharing_a_nic((16, 1.0), (1, 1.0), 0.95);
    let names_another = |edit: &dyn Fn(&mut Snapshot)| {
        let mut s = one.clone();
        edit(&mut s);
        let found = after(30, &s);
        assert_eq!(ids(&found), ["port-contention"]);
        found[0].next.contains("on another NIC")
    };
    let second = |s: &mut Snapshot| {
        let (mut device, mut port) = (s.devices[0].clone(), s.ports[0].clone());
        (device.uid, device.name) = (99, "mlx5_1".into());
        (port.device_uid, port.device) = (99, "mlx5_1".into());
        (port.tx_bytes, port.rx_bytes) = (None, None);
        s.devices.push(device);
        s.ports.push(port);
    };
    let with_second = |edit: fn(&mut Snapshot)| {
        names_another(&|s| {
            second(s);
            edit(s);
        })
    };
    assert!(!names_another(&|_| {}));
    assert!(with_second(|_| {}));
    assert!(
        !with_second(|s| s.ports[1].state = Some(PortState(1))),
        "not ACTIVE"
    );
    assert!(
        !with_second(|s| s.devices[1].netns = Some(4_026_532_201)),
        "a pod's"
    );
    assert!(
        !with_second(|s| s.devices[0].netns = Some(4_026_532_201)),
        "a pod has one NIC"
    );
    assert!(with_second(|s| for device in &mut s.devices {
        device.netns = Some(4_026_532_201);
    }));
    assert!(
        !with_second(|s| s.ports[1].link_layer = Some("InfiniBand".into())),
        "another fabric"
    );
}

#[test]
fn who_waits_for_answers_or_is_not_counted_whole_is_not_crowded_out() {
    let s = sharing((8, 450.0), (1, 250.0), as_it_is);
    let found = |what: &dyn Fn(&mut Snapshot)| {
        let mut s = s.clone();
        what(&mut s);
        ids(&after(30, &s)).contains(&"port-contention")
    };
    let few = |s: &mut Snapshot, edit: &dyn Fn(&mut QpRow)| {
        let mut rows = s.qps.iter_mut();
        let row = rows.find(|qp| qp.pid == Some(450)).unwrap();
        edit(Arc::make_mut(row));
    };
    assert!(found(&|_| {}));
    assert!(!found(&|s| few(s, &|qp| {
        let traffic = Arc::make_mut(&mut qp.traffic);
        traffic.tx_wr_posted = traffic.tx_wr.map(|done| Counter {
            total: done.total + 3,
            ..done
        });
    })));
    assert!(!found(&|s| few(s, &|qp| qp.uncounted = true)));
    let of_one_job = |job: &str, claimed| {
        found(&|s| {
            for row in &mut s.processes {
                row.workload = Some(job.into());
                row.workload_claimed = claimed;
            }
        })
    };
    assert!(!of_one_job("slurm 777.0", false));
    assert!(of_one_job("slurm 777.0?", true), "a claim decides nothing");
    // On a NIC nothing tells how many work requests wait.
    assert!(!found(&|s| s.devices[0].driver = Some("mlx5_core".into())));
}
