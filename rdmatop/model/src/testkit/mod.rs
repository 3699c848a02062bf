//! Synthetic snapshots for tests: here one of each kind that a screen must cope with, in [`full`] one that
//! sets every field.

pub mod full;
pub mod machine;
pub mod rows;
pub mod situations;

use std::ops::DerefMut;
use std::sync::Arc;

use crate::cause::{Cause, CauseId, Concerns, Obstacle};
use crate::event::{Cm, Event, EventKind};
use crate::findings::{Finding, FindingTracker};
use crate::ib::{PortState, QpState, QpType};
use crate::input::{DataPaths, EbpfState, HostFacts, Verdict};
use crate::judgement::Judgement;
use crate::snapshot::{Facts, Health, Snapshot, Traffic};
use crate::value::{Shared, Source};

use rows::{NOW, S, cause, count, probe, process, qp, rail, traffic, verb};

/// No device, no process, nothing known.
pub fn empty() -> Snapshot {
    let facts = Facts {
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
            follows_qps: false,
            looked_ns: 60_000_000_000,
            lost_events: None,
            losses: Vec::new(),
            floods: Shared::default(),
            skipped: None,
            uprobes: None,
            hw_counters: None,
            events: None,
            work: None,
            probes: Vec::new().into(),
            notes: Vec::new().into(),
            errors: Vec::new(),
            self_cpu: None,
            self_rss: None,
        },
        devices: Vec::new(),
        ports: Vec::new(),
        processes: Vec::new(),
        qps: Shared::default(),
        verbs: Vec::new(),
        watched: None,
    };
    Snapshot {
        facts,
        judgement: Judgement::default(),
        findings: Shared::default(),
        still_looks: Vec::new(),
    }
}

/// What tests do with a snapshot, and a product never: its facts are judged once.
impl Snapshot {
    /// The snapshot with its facts judged again. `before` is the snapshot before this one; parts that did not
    /// change are taken from its judgement.
    #[must_use]
    pub fn judged(mut self, before: Option<&Self>) -> Self {
        let before = before.map(|before| (&before.facts, &before.judgement));
        self.judgement = Judgement::of(&self.facts, self.judgement.unexplained, before);
        self
    }
}

impl DerefMut for Snapshot {
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }
}

impl FindingTracker {
    /// Looks at the next judged snapshot.
    pub fn look_at(&mut self, snapshot: &Snapshot) -> Vec<Finding> {
        self.look(&snapshot.facts, &snapshot.judgement)
    }
}

/// One SoftRoCE device with one process: no port bytes, no true link rate.
pub fn one_row() -> Snapshot {
    let mut s = empty();
    let (mut device, mut port) = rail(1, "rxe0", None, None, None);
    (device.driver, device.followed) = (Some("rdma_rxe".into()), true);
    device.datapath = Some("fentry".into());
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
    if let Some(post) = s.verbs.last_mut() {
        (post.errors, post.latency) = (None, None);
    }
    (s.health.lost_events, s.health.events) = (Some(0), Some(0));
    s.health.ebpf = EbpfState::On {
        datapaths: DataPaths::default().and("rdma_rxe", "fentry"),
    };
    s
}

/// QPs in order, in trouble, kernel-owned and gone.
fn add_qps(s: &mut Snapshot) {
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
    add_qps(&mut s);
    s.verbs
        .push(verb(4242, "ib_write_bw", "modify_qp", 0.2, &[], false));
    s.verbs
        .push(verb(4276, "nccl-tests", "reg_mr", 12.0, &[(12, 3)], false));
    s.verbs
        .push(verb(4276, "nccl-tests", "create_cq", 0.0, &[(95, 2)], true));
    let mut post = verb(4242, "ib_write_bw", "post_send", 7.8, &[], false);
    (post.errors, post.latency) = (None, None);
    s.verbs.push(post);
    (s.health.lost_events, s.health.events) = (Some(0), Some(0));
    s.health.ebpf = EbpfState::On {
        datapaths: DataPaths::default().and("rdma_rxe", "kprobe"),
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
    ]
    .into();
    (s.health.self_cpu, s.health.self_rss) = (Some(0.004), Some(12 << 20));
    s
}

/// A node in trouble: a rail down under a job, all receives on one port, QPs in ERR.
pub fn troubled() -> Snapshot {
    let mut watch = FindingTracker::default();
    let mut s = busy().judged(None);
    watch.look_at(&s);
    s.mono_ns += 12 * S;
    s.findings = watch.look_at(&s).into();
    s
}

/// No eBPF, records lost, reads failing, half of the numbers unknown.
pub fn degraded() -> Snapshot {
    let mut s = busy();
    s.health.ebpf = EbpfState::unavailable(Obstacle::new(CauseId::NoCapability, "no CAP_BPF", ""));
    (s.health.lost_events, s.health.events) = (Some(1_412), Some(90_000));
    s.health.losses.push(crate::snapshot::Loss {
        at: "ring",
        count: 1_412,
        records: true,
    });
    s.health.errors.push(Cause {
        id: CauseId::ReadFailed,
        concerns: Concerns::Device("mlx5_2".to_owned()),
        ..cause("counters of mlx5_2 port 1", "Invalid argument (os error 22)", "")
    });
    let note = cause;
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
    ]
    .into();
    let verdicts = [
        (Verdict::Unsupported, "CAP_BPF is missing"),
        (Verdict::Broken, "attach: EBUSY"),
        (Verdict::Partial, "dest_qpn is off: no BTF"),
    ];
    for (probe, (verdict, reason)) in s.health.probes.iter_mut().zip(verdicts) {
        (probe.verdict, probe.causes) = (verdict, vec![cause(&probe.gives, reason, "")]);
    }
    s.processes
        .iter_mut()
        .for_each(|p| p.traffic = Traffic::default());
    s.qps
        .iter_mut()
        .for_each(|q| Arc::make_mut(q).traffic = Arc::default());
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
    s.health.notes = vec![cause(
        &"警告".repeat(40),
        &"x".repeat(300),
        "y".repeat(300).leak(),
    )]
    .into();
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
    cm.cm = Some(Box::new(Cm {
        cm_event: Some(crate::ib::CmEvent(8)),
        status: Some(-111),
        dst: "10.0.0.2:18515".parse().ok(),
        ..Cm::default()
    }));
    let mut failed = base(EventKind::VerbError, 7);
    (failed.verb, failed.rc) = (Some("reg_mr".into()), Some(-12));
    let mut wrong = on_qp(EventKind::QpModify, 8);
    (wrong.from, wrong.to) = (Some(QpState(3)), Some(QpState(6)));
    let mut lost = Event::new(EventKind::Lost, 1_780_000_000 * S + 12_000_000, NOW);
    (lost.count, lost.lost_where) = (Some(1412), Some("ring"));
    all.extend([mr, cm, failed, wrong, lost, on_qp(EventKind::QpDestroy, 11)]);
    all
}
