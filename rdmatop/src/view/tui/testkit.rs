//! Synthetic snapshots: one of each kind that a screen must stand. The demo draws them too.

use std::sync::Arc;

use crate::model::event::{Event, EventKind};
use crate::model::ib::{PhysState, PortState, QpState, QpType, WcStatus, WrOpcode};
use crate::model::input::{EbpfState, HostFacts, Note, ProbeVerdict, Verdict};
use crate::model::snapshot::{
    DeviceRow, Health, History, Latency, NamedCounter, OpcodeTraffic, PortRow, ProcessRow, QpRow, SCHEMA,
    Snapshot, StatusCount, Step, Traffic, VerbRow,
};
use crate::model::value::{Counter, Source};

/// Monotonic time of every snapshot, ns.
pub const NOW: u64 = 3_600_000_000_000;
const S: u64 = 1_000_000_000;

/// A counter.
pub fn count(total: u64, rate: f64, source: Source) -> Counter {
    Counter {
        total,
        rate: Some(rate),
        source,
    }
}

/// A wave, the same in every run.
fn history(unit: &'static str, tx: f64, rx: f64, phase: usize) -> Arc<History> {
    let wave = |size: f64, at: usize| size * (0.75 + 0.25 * ((at + phase) as f64 / 9.0).sin());
    let points = |size: f64| (0..120).map(|at| (at != 60).then(|| wave(size, at))).collect();
    Arc::new(History {
        tx: points(tx),
        rx: points(rx),
        unit,
    })
}

/// A histogram around `2^middle` ns.
pub fn latency(middle: usize, count: u64) -> Latency {
    let mut buckets = vec![0; 64];
    for (at, share) in [
        (middle - 1, 10),
        (middle, 70),
        (middle + 1, 15),
        (middle + 2, 4),
        (middle + 3, 1),
    ] {
        buckets[at] = count * share / 100;
    }
    let edge = |bit: usize| Some(1u64 << bit);
    Latency {
        count,
        early: 0,
        mean_ns: edge(middle).map(|n| n * 3 / 2),
        p50_ns: edge(middle + 1),
        p99_ns: edge(middle + 3),
        max_ns: edge(middle + 4).map(|n| n - 7),
        buckets,
    }
}

/// Traffic as eBPF counts it, `wr` WRs per second of `size` bytes.
pub fn traffic(wr: f64, size: f64, wrong: u64) -> Traffic {
    let e = Source::Ebpf;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small positive test values"
    )]
    let total = |rate: f64| (rate * 90.0) as u64;
    Traffic {
        tx_wr: Some(count(total(wr), wr, e)),
        tx_wr_posted: Some(count(total(wr) + 64, wr, e)),
        rx_wr: Some(count(total(wr / 8.0), wr / 8.0, e)),
        tx_bytes: Some(count(total(wr * size), wr * size, e)),
        rx_bytes: Some(count(total(wr * size / 8.0), wr * size / 8.0, e)),
        completions: Some(count(total(wr * 1.125), wr * 1.125, e)),
        completion_errors: Some(count(wrong, 0.0, e)),
        flushes: Some(count(wrong * 16, 0.0, e)),
        retransmits: Some(count(wrong * 5, if wrong > 0 { 2.5 } else { 0.0 }, e)),
        rnr_waits: Some(count(0, 0.0, e)),
        doorbells: Some(count(total(wr / 4.0), wr / 4.0, e)),
        tx_packets: Some(count(total(wr * size / 1024.0), wr * size / 1024.0, Source::Est)),
        by_opcode: vec![
            OpcodeTraffic {
                opcode: WrOpcode(0),
                wr: count(total(wr * 0.9), wr * 0.9, e),
                bytes: count(total(wr * size * 0.9), wr * size * 0.9, e),
            },
            OpcodeTraffic {
                opcode: WrOpcode(2),
                wr: count(total(wr * 0.1), wr * 0.1, e),
                bytes: count(total(wr * size * 0.1), wr * size * 0.1, e),
            },
        ],
        by_status: if wrong > 0 {
            vec![StatusCount {
                status: WcStatus(12),
                cqes: count(wrong, 0.0, e),
            }]
        } else {
            Vec::new()
        },
        latency: Some(latency(12, total(wr))),
    }
}

/// A device and its only port.
pub fn rail(n: u64, name: &str, rate: Option<u64>, tx: Option<f64>, rx: Option<f64>) -> (DeviceRow, PortRow) {
    let c = |rate: Option<f64>| rate.map(|r| count(90 * 1_000_000, r, Source::Sysfs));
    let device = DeviceRow {
        uid: n,
        index: u32::try_from(n).unwrap_or(0),
        name: name.into(),
        node_guid: Some(format!("0250:56ff:fe00:{n:04x}")),
        driver: Some("mlx5_core".into()),
        fw_version: Some("28.41.1000".into()),
        pci: Some(format!("0000:{n:02x}:00.0").into()),
        numa_node: Some(i32::from(n > 2)),
        qps: Some(64),
        cqs: Some(32),
        mrs: Some(128),
        pds: Some(9),
        cm_ids: Some(4),
        ctxs: Some(8),
        srqs: None,
    };
    let named = |name: &str, total: u64, rate: f64| NamedCounter {
        name: name.into(),
        counter: count(total, rate, Source::Netlink),
    };
    let port = PortRow {
        device_uid: n,
        device: name.into(),
        port: 1,
        state: Some(PortState(4)),
        phys_state: Some(PhysState(5)),
        link_layer: Some("Ethernet".into()),
        netdev: Some(format!("eth{}", n - 1).into()),
        netdev_mtu: Some(4200),
        rate_bps: rate,
        tx_bytes: c(tx),
        rx_bytes: c(rx),
        tx_packets: c(tx.map(|b| b / 4096.0)),
        rx_packets: c(rx.map(|b| b / 4096.0)),
        drops: Some(count(
            if n == 3 { 118 } else { 0 },
            if n == 3 { 3.0 } else { 0.0 },
            Source::Netlink,
        )),
        retransmits: Some(count(if n == 2 { 12 } else { 0 }, 0.0, Source::Netlink)),
        congestion: None,
        rnr_naks: Some(count(0, 0.0, Source::Netlink)),
        counters: vec![
            named("duplicate_request", 0, 0.0),
            named("out_of_sequence", 118, 3.0),
            named("packet_seq_err", 12, 0.0),
            named("np_cnp_sent", 40_120, 118.0),
        ],
        history: history(
            "bytes",
            tx.unwrap_or(0.0),
            rx.unwrap_or(0.0),
            usize::try_from(n).unwrap_or(0) * 5,
        ),
    };
    (device, port)
}

/// A process.
pub fn process(uid: u64, pid: Option<u32>, comm: &str, device: &str, traffic: Traffic) -> ProcessRow {
    let bytes = |c: &Option<Counter>| c.and_then(|c| c.rate).unwrap_or(0.0);
    let history = history(
        "bytes",
        bytes(&traffic.tx_bytes),
        bytes(&traffic.rx_bytes),
        usize::try_from(uid).unwrap_or(0),
    );
    ProcessRow {
        uid,
        pid,
        ppid: pid.map(|_| 900),
        kernel: pid.is_none() && comm.starts_with('['),
        exited: false,
        comm: comm.into(),
        cmdline: pid.map(|_| format!("{comm} -d {device} --duration 60 10.0.0.2").into()),
        user: pid.map(|_| "alice".into()),
        cgroup: pid.map(|_| "/system.slice/slurmstepd.scope/job_7341/step_0/user/task_0".into()),
        workload: pid.map(|_| "slurm 7341.0".into()),
        devices: vec![device.into()],
        qps: 8,
        mr_bytes: pid.map(|_| 64 << 20),
        traffic,
        verb_errors: pid.map(|_| count(0, 0.0, Source::Ebpf)),
        libraries: pid.map(|_| vec!["libibverbs.so.1".to_owned(), "libnccl.so.2".to_owned()]),
        environ: pid.map(|_| vec![("NCCL_IB_HCA".to_owned(), "mlx5_0,mlx5_1".to_owned())]),
        history,
    }
}

/// A QP.
pub fn qp(
    uid: u64,
    device: &str,
    qpn: u32,
    state: u8,
    pid: Option<u32>,
    comm: &str,
    traffic: Traffic,
) -> Arc<QpRow> {
    let mut timeline = Vec::new();
    for (at, step) in (0u64..).zip(0..=state.min(3)) {
        let duration_ns = (at > 0).then_some(40_000 + at * 11_000);
        timeline.push(Step {
            mono_ns: NOW - 192 * S + at * 900_000,
            state: QpState(step),
            duration_ns,
        });
    }
    if state > 3 {
        timeline.push(Step {
            mono_ns: NOW - 31 * S,
            state: QpState(state),
            duration_ns: Some(21_000),
        });
    }
    let bytes = |c: &Option<Counter>| c.and_then(|c| c.rate).unwrap_or(0.0);
    let history = history(
        "bytes",
        bytes(&traffic.tx_bytes),
        bytes(&traffic.rx_bytes),
        usize::try_from(uid).unwrap_or(0),
    );
    Arc::new(QpRow {
        uid,
        device_uid: Some(1),
        device: device.into(),
        port: Some(1),
        qpn,
        qp_type: Some(QpType(2)),
        state: Some(QpState(state)),
        state_source: Some(Source::Ebpf),
        pid,
        process_uid: pid.map(u64::from),
        comm: Some(comm.into()),
        kernel: comm.starts_with('['),
        orphan: false,
        exited: false,
        since_attach: false,
        remote_qpn: (state >= 2).then_some(qpn + 1),
        path_mtu: (state >= 2).then_some(4096),
        born_mono_ns: Some(NOW - 192 * S),
        sq_psn: Some(4_959_146),
        rq_psn: Some(1_187_002),
        timeline,
        traffic,
        history,
    })
}

fn verb(pid: u32, comm: &str, verb: &str, calls: f64, errors: &[(u32, u64)], probe: bool) -> VerbRow {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small positive test values"
    )]
    let total = (calls * 90.0) as u64 + 3;
    VerbRow {
        process_uid: Some(pid.into()),
        pid,
        comm: Some(comm.into()),
        verb: verb.into(),
        calls: count(total, calls, Source::Ebpf),
        errors: count(errors.iter().map(|(_, n)| n).sum(), 0.0, Source::Ebpf),
        errnos: errors.to_vec(),
        probe,
        latency: latency(15, total),
    }
}

fn probe(program: &str, hook: &str, gives: &str, verdict: Verdict, reason: Option<&str>) -> ProbeVerdict {
    ProbeVerdict {
        program: program.to_owned(),
        hook: hook.to_owned(),
        gives: gives.to_owned(),
        verdict,
        reason: reason.map(str::to_owned),
    }
}

/// No device, no process, nothing known.
pub fn empty() -> Snapshot {
    Snapshot {
        schema: SCHEMA,
        time: 1_780_000_000 * S,
        mono_ns: NOW,
        interval_ns: Some(S),
        host: HostFacts {
            hostname: Some("node17".to_owned()),
            kernel: Some("6.12.107".to_owned()),
            uptime_s: Some(273_720),
        },
        health: Health {
            ebpf: EbpfState::Starting,
            lost_events: 0,
            losses: Vec::new(),
            events: 0,
            probes: Vec::new(),
            notes: Vec::new(),
            errors: Vec::new(),
            self_cpu: None,
            self_rss: None,
        },
        devices: Vec::new(),
        ports: Vec::new(),
        processes: Vec::new(),
        qps: Vec::new(),
        verbs: Vec::new(),
    }
}

/// One SoftRoCE device with one process: no port bytes, no true link rate.
pub fn one_row() -> Snapshot {
    let mut s = empty();
    let (mut device, mut port) = rail(1, "rxe0", None, None, None);
    device.driver = Some("rdma_rxe".into());
    (device.fw_version, device.pci, device.numa_node) = (None, None, None);
    port.tx_packets = Some(count(4_000_000, 31_000.0, Source::Netlink));
    port.rx_packets = Some(count(4_000_000, 7_750.0, Source::Netlink));
    s.devices.push(device);
    s.ports.push(port);
    s.processes.push(process(
        231,
        Some(231),
        "ib_send_bw",
        "rxe0",
        traffic(7_800.0, 4096.0, 0),
    ));
    s.qps.push(qp(
        1,
        "rxe0",
        17,
        3,
        Some(231),
        "ib_send_bw",
        traffic(7_800.0, 4096.0, 0),
    ));
    s.verbs
        .push(verb(231, "ib_send_bw", "post_send", 7_800.0, &[], false));
    s.health.ebpf = EbpfState::On {
        datapath: Some("fentry".to_owned()),
    };
    s
}

/// A node at work: four rails, one hot on Tx, one idle; ranks, a kernel consumer, an orphan, QPs in trouble.
pub fn busy() -> Snapshot {
    let mut s = empty();
    let full = 12.5e9;
    for (n, tx, rx) in [(1, 0.96, 0.94), (2, 0.48, 0.03), (3, 0.45, 0.02), (4, 0.0, 0.0)] {
        let (device, port) = rail(
            n,
            &format!("mlx5_{}", n - 1),
            Some(100_000_000_000),
            Some(tx * full),
            Some(rx * full),
        );
        s.devices.push(device);
        s.ports.push(port);
    }
    s.ports[3].state = Some(PortState(1));
    for (n, comm, wr, wrong) in [
        (0, "ib_write_bw", 1.2e5, 0),
        (1, "nccl-tests", 9.1e4, 0),
        (2, "nccl-tests", 8.7e4, 4),
    ] {
        let pid = 4242 + n * 17;
        let dev = format!("mlx5_{n}");
        s.processes.push(process(
            pid.into(),
            Some(pid),
            comm,
            &dev,
            traffic(wr, 65536.0, wrong),
        ));
    }
    s.processes.push(process(
        7,
        None,
        "[nvme_rdma]",
        "mlx5_1",
        traffic(3.3e4, 4096.0, 0),
    ));
    let mut bypass = process(5120, Some(5120), "ucx_perftest", "mlx5_3", Traffic::default());
    (bypass.mr_bytes, bypass.verb_errors) = (None, None);
    s.processes.push(bypass);
    let mut orphan = process(9, None, "?", "mlx5_0", traffic(0.0, 0.0, 0));
    (orphan.comm, orphan.qps, orphan.mr_bytes) = ("(creator gone)".into(), 2, None);
    s.processes.push(orphan);
    let mut gone = process(4100, Some(4100), "ib_send_lat", "mlx5_0", traffic(0.0, 64.0, 0));
    (gone.exited, gone.qps) = (true, 0);
    s.processes.push(gone);
    let t = || traffic(1.5e4, 65536.0, 0);
    s.qps
        .push(qp(1, "mlx5_0", 1, 3, None, "[ib_core]", Traffic::default()));
    Arc::make_mut(&mut s.qps[0]).qp_type = Some(QpType(1));
    s.qps.extend((0..6).map(|n| {
        qp(
            10 + n,
            "mlx5_0",
            289 + u32::try_from(n).unwrap_or(0) * 2,
            3,
            Some(4242),
            "ib_write_bw",
            t(),
        )
    }));
    s.qps.push(qp(
        20,
        "mlx5_1",
        312,
        6,
        Some(4276),
        "nccl-tests",
        traffic(0.0, 65536.0, 4),
    ));
    s.qps.push(qp(
        21,
        "mlx5_1",
        313,
        2,
        Some(4276),
        "nccl-tests",
        traffic(0.0, 0.0, 0),
    ));
    s.qps.push(qp(
        22,
        "mlx5_1",
        314,
        5,
        None,
        "[nvme_rdma]",
        traffic(0.0, 4096.0, 1),
    ));
    s.qps.push(qp(
        23,
        "mlx5_3",
        401,
        3,
        Some(5120),
        "ucx_perftest",
        Traffic::default(),
    ));
    let mut done = qp(
        24,
        "mlx5_0",
        275,
        3,
        Some(4100),
        "ib_send_lat",
        traffic(0.0, 64.0, 0),
    );
    Arc::make_mut(&mut done).exited = true;
    s.qps.push(done);
    s.verbs
        .push(verb(4242, "ib_write_bw", "modify_qp", 0.2, &[], false));
    s.verbs
        .push(verb(4276, "nccl-tests", "reg_mr", 12.0, &[(12, 3)], false));
    s.verbs
        .push(verb(4276, "nccl-tests", "create_cq", 0.0, &[(95, 2)], true));
    s.health.ebpf = EbpfState::On {
        datapath: Some("kprobe".to_owned()),
    };
    s.health.probes = vec![
        probe(
            "qp_create",
            "kprobe:rdma_restrack_add",
            "objects and owners",
            Verdict::Ok,
            None,
        ),
        probe(
            "qp_modify",
            "kprobe:_ib_modify_qp",
            "state changes",
            Verdict::Ok,
            None,
        ),
        probe(
            "rxe_completer",
            "fentry:rxe_completer",
            "finished WRs of SoftRoCE",
            Verdict::NotApplicable,
            Some("rdma_rxe is not loaded"),
        ),
    ];
    (s.health.self_cpu, s.health.self_rss) = (Some(0.004), Some(12 << 20));
    s
}

/// No eBPF, records lost, reads failing, half of the numbers unknown.
pub fn degraded() -> Snapshot {
    let mut s = busy();
    s.health.ebpf = EbpfState::Unavailable {
        why: "no CAP_BPF".to_owned(),
    };
    (s.health.lost_events, s.health.events) = (1_412, 90_000);
    s.health.losses.push(crate::model::snapshot::Loss {
        at: "ring",
        count: 1_412,
    });
    s.health
        .errors
        .push("mlx5_2 port 1: reading counters: Invalid argument".to_owned());
    let note = |what: &str, why: &str, remedy: &str| Note {
        what: what.to_owned(),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    };
    s.health.notes = vec![
        note(
            "No eBPF: no rates by process, no events",
            "this process has no CAP_BPF",
            "Run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_admin+ep rdmatop",
        ),
        note(
            "No byte counters on mlx5_2",
            "reading them fails with EINVAL",
            "Update the firmware; the other devices are not affected",
        ),
    ];
    let verdicts = [
        (Verdict::Unsupported, "CAP_BPF is missing"),
        (Verdict::Broken, "attach: EBUSY"),
        (Verdict::Partial, "dest_qpn is off: no BTF"),
    ];
    for (probe, (verdict, reason)) in s.health.probes.iter_mut().zip(verdicts) {
        (probe.verdict, probe.reason) = (verdict, Some(reason.to_owned()));
    }
    s.processes
        .iter_mut()
        .for_each(|p| p.traffic = Traffic::default());
    s.qps
        .iter_mut()
        .for_each(|q| Arc::make_mut(q).traffic = Traffic::default());
    s.ports[2].tx_bytes = None;
    s.ports[2].rx_bytes = None;
    s.verbs.clear();
    s
}

/// Wide, combining and endless names.
pub fn hostile() -> Snapshot {
    let mut s = busy();
    s.processes[0].comm = "日本語のとても長いプロセス名".into();
    s.processes[0].cmdline = None;
    s.processes[1].comm = "e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}e\u{301}".into();
    s.processes[1].cmdline = None;
    s.processes[2].devices = vec![
        "a_device_name_as_long_as_the_kernel_allows_it_to_be_0123456789".into(),
        "mlx5_0".into(),
    ];
    s.host.hostname = Some("ホスト".repeat(30));
    s.health.notes = vec![Note {
        what: "警告".repeat(40),
        why: "x".repeat(300),
        remedy: "y".repeat(300),
    }];
    s
}

/// Ten thousand QPs of a thousand processes.
pub fn many() -> Snapshot {
    let mut s = busy();
    s.processes = (0..1000u32)
        .map(|n| {
            process(
                n.into(),
                Some(10_000 + n),
                "rank",
                "mlx5_0",
                traffic(f64::from(n % 97), 4096.0, 0),
            )
        })
        .collect();
    s.qps = (0..10_000u32)
        .map(|n| {
            qp(
                n.into(),
                "mlx5_0",
                n,
                3,
                Some(10_000 + n / 10),
                "rank",
                traffic(f64::from(n % 89), 4096.0, 0),
            )
        })
        .collect();
    s
}

/// Events of a QP's life, and some others.
pub fn events() -> Vec<Event> {
    let base = |kind, n: u64| {
        let mut e = Event::new(kind, 1_780_000_000 * S + n * 1_250_000, NOW + n * 1_250_000);
        e.device = Some("mlx5_0".into());
        (e.pid, e.tid, e.comm) = (Some(4242), Some(4242), Some("ib_write_bw".into()));
        e
    };
    let on_qp = |kind, n| {
        let mut e = base(kind, n);
        (e.qpn, e.qp_uid, e.qp_type, e.rc) = (Some(289), Some(10), Some(QpType(2)), Some(0));
        e.duration_ns = Some(41_000 + n * 1000);
        e
    };
    let mut all = vec![on_qp(EventKind::QpCreate, 0)];
    all[0].to = Some(QpState(0));
    for to in 1..=3u8 {
        let mut e = on_qp(EventKind::QpModify, to.into());
        (e.from, e.to) = (Some(QpState(to - 1)), Some(QpState(to)));
        if to == 2 {
            (e.dest_qpn, e.path_mtu, e.sgid_index) = (Some(290), Some(4096), Some(3));
        }
        if to == 3 {
            (e.timeout, e.retry_cnt, e.rnr_retry) = (Some(14), Some(7), Some(7));
        }
        all.push(e);
    }
    let mut mr = base(EventKind::MrReg, 5);
    mr.bytes = Some(64 << 20);
    let mut cm = base(EventKind::CmEvent, 6);
    (cm.cm_event, cm.status) = (Some(crate::model::ib::CmEvent(8)), Some(-111));
    cm.dst = "10.0.0.2:18515".parse().ok();
    let mut failed = base(EventKind::VerbError, 7);
    (failed.verb, failed.rc) = (Some("reg_mr".into()), Some(-12));
    let mut wrong = on_qp(EventKind::QpModify, 8);
    (wrong.from, wrong.to) = (Some(QpState(3)), Some(QpState(6)));
    let mut lost = Event::new(EventKind::Lost, 1_780_000_000 * S + 12_000_000, NOW);
    (lost.count, lost.lost_where) = (Some(1412), Some("ring"));
    all.extend([mr, cm, failed, wrong, lost, on_qp(EventKind::QpDestroy, 11)]);
    all
}
