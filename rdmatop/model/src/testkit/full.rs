//! A machine at work in which every field of every object is set somewhere, for what the printed views write.

use std::sync::Arc;

use crate::cause::{Cause, CauseId, Concerns};
use crate::event::{Cm, Event, EventKind, Work};
use crate::findings::{About, Change, Finding, FindingId, Severity};
use crate::ib::{
    AsyncEvent, CmEvent, Gid, PhysState, PortState, QpState, QpType, WcStatus, WrOpcode, WrRequest,
};
use crate::input::{
    DataPaths, EbpfState, Flood, GpuPlace, HostFacts, HwCountersReport, HwPort, Opener, OpenersSample,
    ProbeVerdict, Skipped, UprobesReport, Verdict,
};
use crate::judgement::{Judgement, Unexplained};
use crate::snapshot::{
    Bond, Bound, CounterGroup, DeviceRow, DeviceState, DevxKind, DevxObjects, Facts, Gauge, GpuUse, Health,
    History, Latency, Loss, Member, NamedCounter, OpcodeTraffic, PortRow, ProcessRow, QpRow, Snapshot,
    StatusCount, Step, TcpTraffic, Traffic, VerbRow,
};
use crate::value::{Counter, RateIs, Shared, Source};

use super::rows::{self, cause};

const WALL: u64 = 1_700_000_000_000_000_000;
const MONO: u64 = 5_000_000_000;
/// 10.0.0.1, as RoCE v2 spells it.
const RXE_GID: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1];

/// One event of every kind, and a few that failed.
#[expect(
    clippy::too_many_lines,
    clippy::vec_init_then_push,
    reason = "a list of examples, one after another"
)]
pub fn events() -> Vec<Event> {
    let mut at = 0;
    let mut new = |kind| {
        at += 1_234_567;
        let mut event = Event::new(kind, WALL + at, MONO + at);
        if kind != EventKind::Lost {
            event.device = Some("rxe0".into());
            event.pid = Some(231);
            event.tid = Some(231);
            event.comm = Some("ib_send_bw".into());
            event.rc = Some(0);
            event.duration_ns = Some(12_345);
        }
        if kind.name().starts_with("qp_") {
            event.port = Some(1);
            event.qpn = Some(17);
            event.qp_type = Some(QpType(2));
            event.qp_uid = Some(3);
        }
        event
    };
    let mut all = Vec::new();
    all.push(Event {
        cqe: Some(128),
        ..new(EventKind::CqCreate)
    });
    all.push(Event {
        bytes: Some(65_536),
        ..new(EventKind::MrReg)
    });
    all.push(Event {
        devx: Some(DevxKind::Qp),
        ..new(EventKind::DevxCreate)
    });
    all.push(Event {
        to: Some(QpState(0)),
        ..new(EventKind::QpCreate)
    });
    all.push(modify(new(EventKind::QpModify), 0, 1));
    all.push(Event {
        attr_mask: Some(0x0010_9181),
        dest_qpn: Some(18),
        dest_gid: Some(Gid(RXE_GID)),
        path_mtu: Some(1024),
        sgid_index: Some(1),
        ..modify(new(EventKind::QpModify), 1, 2)
    });
    all.push(Event {
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        by_pid: Some(232),
        tid: None,
        ..modify(new(EventKind::QpModify), 2, 3)
    });
    all.push(Event {
        attr_mask: Some(1 << 7 | 1 << 10),
        ..new(EventKind::QpModify)
    });
    all.push(Event {
        rc: Some(-22),
        ..modify(new(EventKind::QpModify), 3, 1)
    });
    all.push(Event {
        async_event: Some(AsyncEvent(3)),
        duration_ns: None,
        ..new(EventKind::QpError)
    });
    let ends = || Cm {
        cm_id: Some(5),
        src: Some(([192, 168, 1, 1], 18_515).into()),
        dst: Some(([0xfd00, 0, 0, 0, 0, 0, 0, 2], 7471).into()),
        ..Cm::default()
    };
    let cm = |event: Event, cm: Cm| Event {
        qpn: Some(17),
        cm: Some(Box::new(cm)),
        duration_ns: None,
        ..event
    };
    for kind in [
        EventKind::CmConnect,
        EventKind::CmAccept,
        EventKind::CmReject,
        EventKind::CmDisconnect,
    ] {
        all.push(cm(new(kind), ends()));
    }
    let established = Cm {
        cm_event: Some(CmEvent(9)),
        status: Some(0),
        ..ends()
    };
    let unreachable = Cm {
        cm_event: Some(CmEvent(7)),
        status: Some(-110),
        dst: None,
        ..ends()
    };
    for what in [established, unreachable] {
        all.push(cm(new(EventKind::CmEvent), what));
    }
    all.push(Event {
        verb: Some("reg_mr".into()),
        rc: Some(-12),
        ..new(EventKind::VerbError)
    });
    all.push(Event {
        comm: Some("[nvme_rdma]".into()),
        kernel: true,
        pid: None,
        tid: None,
        from: Some(QpState(6)),
        ..new(EventKind::QpDestroy)
    });
    all.push(Event {
        bytes: Some(65_536),
        ..new(EventKind::MrDereg)
    });
    all.push(Event {
        cqe: Some(128),
        ..new(EventKind::CqDestroy)
    });
    all.push(Event {
        devx: Some(DevxKind::Qp),
        ..new(EventKind::DevxDestroy)
    });
    let request = Work {
        wr_id: Some(7),
        opcode: Some(WrRequest(3)),
        signaled: Some(true),
        imm: Some(9),
        ..Work::default()
    };
    let mut work = |kind: EventKind, request: Work| Event {
        qpn: Some(17),
        qp_type: Some(QpType(2)),
        rc: None,
        dest_qpn: Some(18),
        dest_gid: Some(Gid(RXE_GID)),
        bytes: Some(4096),
        work: Some(Box::new(request)),
        ..new(kind)
    };
    let posted = work(
        EventKind::WrPost,
        Work {
            signaled: Some(false),
            ..request.clone()
        },
    );
    all.push(Event {
        duration_ns: None,
        ..posted
    });
    let ends = [
        Work {
            wc_status: Some(WcStatus(0)),
            ..request.clone()
        },
        Work {
            wc_status: Some(WcStatus(5)),
            cq_full: true,
            ..request.clone()
        },
        Work {
            opcode: Some(WrRequest(128)),
            dropped: true,
            ..request
        },
    ];
    for end in ends {
        all.push(Event {
            tid: None,
            ..work(EventKind::WrDone, end)
        });
    }
    all.push(Event {
        count: Some(12),
        lost_where: Some("ring"),
        ..new(EventKind::Lost)
    });
    for change in [Change::Raised(finding()), Change::Cleared(finding())] {
        at += 1_000_000_000;
        all.push(Event::of_change(change, WALL + at, MONO + at));
    }
    all
}

/// One that names everything.
pub fn finding() -> Finding {
    findings()[0].clone()
}

fn modify(event: Event, from: u8, to: u8) -> Event {
    Event {
        from: Some(QpState(from)),
        to: Some(QpState(to)),
        ..event
    }
}

/// No devices, nothing attached.
pub fn empty() -> Snapshot {
    let mut empty = super::empty();
    (empty.time, empty.mono_ns, empty.interval_ns) = (WALL, MONO, None);
    empty.host = HostFacts::default();
    empty.health.ebpf = EbpfState::Disabled;
    empty
}

fn counter(total: u64, rate: f64) -> Counter {
    Counter::whole(total, Some(rate), Source::Ebpf)
}

#[expect(clippy::unnecessary_wraps, reason = "rows hold options")]
fn from(source: Source, total: u64, rate: f64) -> Option<Counter> {
    Some(Counter {
        source,
        ..counter(total, rate)
    })
}

fn latency() -> Latency {
    Latency {
        count: 3000,
        early: 2,
        mean_ns: Some(21_000),
        p50_ns: Some(32_768),
        p99_ns: Some(65_536),
        max_ns: Some(71_000),
        buckets: vec![0; 4],
    }
}

fn traffic() -> Traffic {
    let one = |n: u64| Some(counter(n * 1000, n as f64 * 100.0));
    Traffic {
        tx_wr: one(3),
        tx_wr_posted: one(4),
        rx_wr: one(5),
        rx_wr_posted: one(7),
        tx_bytes: Some(counter(3 << 30, 150e6)),
        rx_bytes: Some(counter(4096, 0.0)),
        completions: one(6),
        completion_errors: Some(counter(2, 0.0)),
        flushes: Some(counter(16, 0.0)),
        retransmits: Some(counter(7, 1.0)),
        rnr_waits: Some(counter(1, 0.0)),
        doorbells: one(2),
        cq_overflows: Some(counter(0, 0.0)),
        tx_packets: from(Source::Est, 123_456, 1500.0),
        by_opcode: vec![OpcodeTraffic {
            opcode: WrOpcode(2),
            wr: counter(3000, 300.0),
            bytes: counter(3 << 30, 150e6),
        }],
        by_status: vec![StatusCount {
            status: WcStatus(12),
            cqes: counter(2, 0.0),
        }],
        latency: Some(latency()),
    }
}

/// Two devices, one of which bypasses the kernel; a user process, a kernel consumer; three QPs.
pub fn snapshot() -> Snapshot {
    let facts = Facts {
        interval_ns: Some(1_000_000_000),
        host: HostFacts {
            hostname: Some("node1".into()),
            kernel: Some("6.12.57".into()),
            uptime_s: Some(86_400),
        },
        health: health(),
        devices: devices(),
        ports: ports(),
        processes: processes(),
        qps: qps().into(),
        verbs: vec![
            VerbRow {
                process_uid: Some(1),
                pid: 231,
                comm: Some("ib_send_bw".into()),
                verb: "create_qp".into(),
                number: 1,
                calls: counter(12, 0.0),
                errors: Some(counter(2, 0.0)),
                errnos: vec![(12, 1), (95, 1)],
                probe: true,
                latency: Some(latency()),
            },
            VerbRow {
                process_uid: Some(1),
                pid: 231,
                comm: Some("ib_send_bw".into()),
                verb: "post_send".into(),
                number: 2,
                calls: counter(1000, 7.5),
                errors: None,
                errnos: Vec::new(),
                probe: false,
                latency: None,
            },
        ],
        ..empty().facts
    };
    Snapshot {
        judgement: Judgement::of(&facts, unexplained(), None),
        facts,
        findings: findings(),
        still_looks: Vec::new(),
    }
}

/// A port that moves data without a queue pair, and who may be meant.
fn unexplained() -> Vec<Unexplained> {
    let opener = Opener {
        device: "mlx5_0".into(),
        pid: 231,
        user: Some(1000),
        comm: Some("python3".into()),
        workload: Some("slurm 12.0".into()),
        libraries: Some(vec!["libnvshmem_host.so.3".into()]),
    };
    let openers = OpenersSample {
        found: vec![opener],
        ..OpenersSample::default()
    };
    vec![Unexplained::new(&devices()[0], 1, Some(Arc::new(openers)))]
}

/// One of each severity: of a process with a victim, and of a port.
fn findings() -> Shared<Finding> {
    let receiver = Finding {
        id: FindingId::ReceiverNotReady,
        severity: Severity::Critical,
        verdict: "ib_send_bw (PID 231) on rxe0 posts no receives: rping (PID 240) waits".to_owned(),
        evidence: vec!["80/s RNR waits by 1 QP of rping (PID 240), 960 in all".to_owned()],
        why: FindingId::ReceiverNotReady.kind().why,
        fixed: FindingId::ReceiverNotReady.kind().fixed,
        next: "ps -o pid,stat,wchan:30,args -p 231".into(),
        since_mono_ns: 1_000_000_000,
        short: "posts no recv".to_owned(),
        pid: Some(231),
        comm: Some("ib_send_bw".into()),
        device: Some("rxe0".into()),
        port: Some(1),
        victims: vec![2],
        about: About {
            process: Some(1),
            device: Some(1),
            ..About::default()
        },
        taker: None,
        seen_mono_ns: u64::MAX,
    };
    let mtu = Finding {
        id: FindingId::SmallMtu,
        severity: Severity::Warning,
        verdict: "eth0 has MTU 1500: RoCE packets are a quarter of what they could be".to_owned(),
        pid: None,
        comm: None,
        victims: Vec::new(),
        about: About {
            device: Some(1),
            port: Some(1),
            ..About::default()
        },
        ..receiver.clone()
    };
    vec![receiver, mtu].into()
}

fn health() -> Health {
    let probe = |program: &str, hook: &str, gives: &str, verdict, reason: Option<&str>| ProbeVerdict {
        program: program.into(),
        hook: hook.into(),
        gives: gives.into(),
        verdict,
        causes: reason.into_iter().map(|why| cause(gives, why, "")).collect(),
    };
    Health {
        ebpf: EbpfState::On {
            datapaths: DataPaths::default().and("rdma_rxe", "fentry"),
        },
        work: None,
        lost_events: Some(12),
        losses: vec![Loss {
            at: "ring",
            count: 12,
            records: true,
        }],
        uprobes: Some(Arc::new(uprobes())),
        hw_counters: Some(Arc::new(hw_counters())),
        floods: vec![Flood {
            pid: Some(4242),
            comm: Some("fuzz".to_owned()),
            failures: 149_937,
            records: 3,
        }]
        .into(),
        skipped: Some(
            vec![Skipped {
                program: "kp_cq_post".into(),
                hook: "kprobe:rxe_cq_post".into(),
                count: 2,
                cost: "as many may be missing: completions".into(),
            }]
            .into(),
        ),
        events: Some(431),
        probes: vec![
            probe(
                "qp_modify",
                "kprobe:_ib_modify_qp",
                "QP states",
                Verdict::Ok,
                None,
            ),
            probe(
                "rxe_cqe",
                "fentry:rxe_cq_post",
                "completions",
                Verdict::NotApplicable,
                Some("rdma_rxe is not loaded"),
            ),
        ]
        .into(),
        follows_qps: true,
        looked_ns: 60_000_000_000,
        notes: vec![Cause {
            concerns: Concerns::Device("mlx5_0".into()),
            ..cause(
                "work requests of mlx5_0",
                "user space posts to the device without the kernel",
                "see port counters",
            )
        }]
        .into(),
        errors: vec![Cause {
            id: CauseId::ReadFailed,
            concerns: Concerns::Device("mlx5_0".into()),
            ..cause("counters of mlx5_0 port 2", "Input/output error (os error 5)", "")
        }],
        self_cpu: Some(0.004),
        self_rss: Some(12 << 20),
    }
}

fn devices() -> Vec<DeviceRow> {
    vec![
        DeviceRow {
            uid: 1,
            index: Some(0),
            name: "mlx5_0".into(),
            state: Some(DeviceState::Registered),
            node_guid: Some("b859:9f03:00ab:cdef".into()),
            driver: Some("mlx5_core".into()),
            fw_version: Some("28.39.1002".into()),
            pci: Some("0000:3b:00.0".into()),
            numa_node: Some(0),
            netns: Some(4_026_532_201),
            netns_pid: Some(4711),
            netns_holder: Some("pod 8d2f5e10-7a55-4c1b-9d0e-1f2a3b4c5d6e".into()),
            pci_path: Arc::default(),
            pcie: None,
            qps: Some(2),
            cqs: Some(3),
            mrs: Some(1),
            pds: Some(2),
            cm_ids: Some(0),
            ctxs: Some(1),
            srqs: Some(0),
            max_qp: Some(1024),
            max_cq: Some(1024),
            max_mr: Some(1 << 20),
            max_pd: Some(1 << 10),
            max_srq: Some(1 << 10),
            contexts: None,
            searched: false,
            driver_errors: Some(1),
            driver_error: Some("mlx5_core 0000:01:00.0: cmd_work_handler: failed".into()),
            driver_error_ns: None,
            left_alone: false,
            followed: false,
            datapath: None,
            hidden: &[],
        },
        DeviceRow {
            uid: 2,
            index: Some(1),
            name: "rxe0".into(),
            state: Some(DeviceState::Registered),
            node_guid: None,
            driver: Some("rdma_rxe".into()),
            fw_version: None,
            pci: None,
            numa_node: None,
            netns: None,
            netns_pid: None,
            netns_holder: None,
            pci_path: Arc::default(),
            pcie: None,
            qps: Some(2),
            cqs: None,
            mrs: None,
            pds: None,
            cm_ids: None,
            ctxs: None,
            srqs: None,
            max_qp: None,
            max_cq: None,
            max_mr: None,
            max_pd: None,
            max_srq: None,
            contexts: None,
            searched: false,
            driver_errors: None,
            driver_error: None,
            driver_error_ns: None,
            left_alone: false,
            followed: true,
            datapath: Some("fentry".into()),
            hidden: &[],
        },
    ]
}

fn bond() -> Bond {
    Bond {
        mode: Some("802.3ad".into()),
        members: ["ens1f0np0", "ens1f1np1"]
            .map(|name| Member {
                name: name.into(),
                up: Some(true),
                outside: false,
                rate_bps: Some(50_000_000_000),
                tx_bytes: from(Source::Ethtool, 1 << 39, 5.75e9),
                rx_bytes: from(Source::Ethtool, 1 << 38, 0.0),
            })
            .into(),
    }
}

fn ports() -> Vec<PortRow> {
    let full = PortRow {
        device_uid: 1,
        device: "mlx5_0".into(),
        port: 1,
        state: Some(PortState(4)),
        phys_state: Some(PhysState(5)),
        link_layer: Some("Ethernet".into()),
        iwarp: false,
        netdev: Some("ens1np0".into()),
        bond: Some(bond()),
        netdev_mtu: Some(9000),
        netdev_down: None,
        pfc: None,
        gids: None,
        rate_bps: Some(100_000_000_000),
        lanes: Some(4),
        tx_bytes: from(Source::Sysfs, 1 << 40, 11.5e9),
        rx_bytes: from(Source::Sysfs, 1 << 39, 0.0),
        wr_tx_bytes: None,
        wr_rx_bytes: None,
        tx_packets: from(Source::Sysfs, 1 << 30, 2.8e6),
        rx_packets: from(Source::Sysfs, 1 << 29, 12.0),
        drops: from(Source::Sysfs, 5, 0.0),
        out_of_buffer: from(Source::Netlink, 2, 0.0),
        retransmits: None,
        retries: from(Source::Netlink, 6, 0.5),
        congestion: Some(Counter {
            partial: true,
            ..Counter::whole(7, Some(0.0), Source::Netlink)
        }),
        ecn_marked: from(Source::Netlink, 4, 0.0),
        cnp_handled: from(Source::Netlink, 3, 0.0),
        cnp_sent: from(Source::Netlink, 1, 0.0),
        rdma_alone: true,
        all_of_rdma: true,
        ib_packets: true,
        rnr_naks: from(Source::Netlink, 8, 0.0),
        rnr_naks_sent: None,
        counters: vec![NamedCounter {
            name: "out_of_sequence".into(),
            unit_bytes: None,
            help: Some("packets received out of order"),
            counter: Counter {
                source: Source::Netlink,
                ..counter(9, 0.0)
            },
        }]
        .into(),
        gauges: vec![Gauge {
            name: "active_qps".into(),
            help: Some("QPs that exist"),
            value: 12,
            source: Source::Netlink,
        }],
        recent: None,
        history: Arc::new(History::default()),
    };
    let packets_only = PortRow {
        device_uid: 2,
        device: "rxe0".into(),
        netdev: Some("eth0".into()),
        bond: None,
        netdev_mtu: Some(1500),
        pfc: None,
        gids: None,
        rate_bps: None,
        lanes: None,
        tx_bytes: None,
        rx_bytes: None,
        wr_tx_bytes: from(Source::Ebpf, 1 << 20, 4096.0),
        wr_rx_bytes: from(Source::Ebpf, 1 << 21, 8192.0),
        tx_packets: from(Source::Netlink, 400, 100.0),
        rx_packets: Some(Counter {
            total: 400,
            rate: None,
            source: Source::Netlink,
            partial: false,
            rate_is: RateIs::AsTotal,
        }),
        drops: None,
        out_of_buffer: None,
        retransmits: from(Source::Ebpf, 3, 1.0),
        congestion: None,
        ecn_marked: None,
        cnp_handled: None,
        cnp_sent: None,
        rdma_alone: false,
        counters: Vec::new().into(),
        ..full.clone()
    };
    vec![full, packets_only]
}

fn processes() -> Vec<ProcessRow> {
    let user = ProcessRow {
        uid: 1,
        pid: Some(231),
        ppid: Some(1),
        kernel: false,
        exited: false,
        comm: "ib_send_bw".into(),
        cmdline: Some("ib_send_bw -d rxe0".into()),
        user: Some("alice".into()),
        cgroup: Some("/system.slice/slurmstepd.scope/job_7".into()),
        workload: Some("slurm job 7".into()),
        workload_claimed: false,
        devices: vec!["mlx5_0".into(), "rxe0".into()],
        qps: 2,
        devx: Some(vec![devx()].into()),
        mr_bytes: Some(65_536),
        mr_registered: 0,
        traffic: traffic(),
        verb_errors: Some(counter(1, 0.0)),
        tcp: Some(TcpTraffic {
            tx_bytes: counter(100, 8.0),
            rx_bytes: counter(200, 9.0),
            connections: 2,
            busiest: Some(([10, 0, 0, 2], 45_000).into()),
        }),
        hw_counters: vec![CounterGroup {
            device: "mlx5_0".into(),
            port: 1,
            id: 3,
            mode: "auto pid".into(),
            qps: vec![201, 202].into(),
            counters: vec![NamedCounter {
                name: "rdma_tx_bytes".into(),
                unit_bytes: None,
                help: None,
                counter: Counter::whole(1 << 30, Some(2.5e6), Source::Hw),
            }],
        }],
        bound: Some(bound(false)),
        psn_explains: Some(0.97),
        recent: None,
        limited: None,
        locked: None,
        mappings: None,
        unlisted: None,
        libraries: Some(vec!["libibverbs".into()].into()),
        environ: Some(vec![("NCCL_IB_HCA".into(), "mlx5".into())].into()),
        gpus: Some([gpu()].into()),
        host_regions: Some(3),
        verbs_files: Some(true),
        history: Arc::new(History::default()),
    };
    let kernel = ProcessRow {
        uid: 2,
        pid: None,
        ppid: None,
        kernel: true,
        exited: true,
        comm: "[nvme_rdma]".into(),
        cmdline: None,
        user: None,
        cgroup: None,
        workload: None,
        workload_claimed: false,
        devices: vec!["rxe0".into()],
        qps: 1,
        devx: None,
        mr_bytes: None,
        mr_registered: 0,
        traffic: Traffic {
            rx_bytes: Some(Counter {
                partial: true,
                rate_is: RateIs::AtMost,
                ..Counter::whole(1 << 20, Some(2.5e6), Source::Port)
            }),
            ..Traffic::default()
        },
        verb_errors: None,
        hw_counters: Vec::new(),
        tcp: None,
        bound: Some(bound(true)),
        limited: None,
        locked: None,
        mappings: None,
        libraries: None,
        environ: None,
        gpus: None,
        host_regions: None,
        verbs_files: None,
        ..user.clone()
    };
    vec![user, kernel]
}

/// Three queue pairs and a completion queue, of which a queue pair is gone.
fn devx() -> DevxObjects {
    DevxObjects {
        device: Some("mlx5_0".into()),
        device_uid: Some(1),
        whole: true,
        made: [(DevxKind::Qp, 3), (DevxKind::Cq, 1)].into(),
        destroyed: [(DevxKind::Qp, 1)].into(),
        now: [(DevxKind::Qp, 2), (DevxKind::Cq, 1)].into(),
    }
}

fn gpu() -> Arc<GpuPlace> {
    Arc::new(GpuPlace {
        address: "0000:0f:00.0".to_owned(),
        path: ["pci0000:0e", "0000:0e:01.0", "0000:0f:00.0"]
            .map(str::to_owned)
            .to_vec(),
        node: Some(0),
    })
}

/// A job that its links hold back, and one of which a part is not known.
fn bound(partial: bool) -> Bound {
    Bound {
        share: if partial { 0.25 } else { 0.875 },
        partial,
        of_ports: !partial,
        seconds: 30.0,
        processes: 2,
        source: if partial { Source::Uprobe } else { Source::Sysfs },
        verdict: (!partial).then_some("communication"),
        gpu: (!partial).then_some(GpuUse {
            sm_share: 0.25,
            tensor_share: 0.0,
            gpus: 2,
            seconds: 30.0,
        }),
    }
}

fn qps() -> Vec<Arc<QpRow>> {
    let full = QpRow {
        uid: 3,
        device_uid: Some(2),
        device: "rxe0".into(),
        port: Some(1),
        qpn: 17,
        qp_type: Some(QpType(2)),
        state: Some(QpState(3)),
        state_source: Some(Source::Ebpf),
        pid: Some(231),
        process_uid: Some(1),
        comm: Some("ib_send_bw".into()),
        kernel: false,
        orphan: true,
        exited: false,
        since_attach: true,
        uncounted: true,
        remote_qpn: Some(18),
        remote_gid: Some(Gid(RXE_GID)),
        remote_gid_source: Some(Source::Ebpf),
        path_mtu: Some(1024),
        sgid_index: None,
        born_mono_ns: Some(MONO - 90_000_000),
        sq_psn: Some(11_259_375),
        rq_psn: Some(1),
        timeline: Arc::new(vec![Step {
            mono_ns: MONO - 80_000_000,
            state: QpState(3),
            duration_ns: Some(12_345),
        }]),
        traffic: Arc::new(traffic()),
        history: Arc::new(History::default()),
    };
    let estimated = QpRow {
        uid: 4,
        device: "mlx5_0".into(),
        qpn: 203,
        state: Some(QpState(6)),
        orphan: false,
        traffic: Arc::new(Traffic {
            tx_packets: from(Source::Est, 123_456, 1500.0),
            ..Traffic::default()
        }),
        ..full.clone()
    };
    let gone = QpRow {
        exited: true,
        orphan: false,
        state: Some(QpState(6)),
        ..rows::unknown_qp()
    };
    vec![Arc::new(full), Arc::new(estimated), Arc::new(gone)]
}

fn hw_counters() -> HwCountersReport {
    let port = |number, why: Option<Cause>| HwPort {
        device: "mlx5_0".into(),
        device_index: 0,
        port: number,
        set: why.is_none(),
        optional: why
            .is_none()
            .then(|| "rdma_tx_bytes".to_owned())
            .into_iter()
            .collect(),
        why: why.map(Box::new),
    };
    HwCountersReport {
        ports: vec![port(1, None), port(2, Some(cause("Hardware counters", "x", "y")))],
        failed: None,
    }
}

fn uprobes() -> UprobesReport {
    UprobesReport {
        pid: None,
        functions: 2,
        qps: 2,
        hits: 1_000_000,
        hits_per_s: Some(20_000.0),
        hit_ns: Some(600),
        cores: Some(0.012),
        limit: 0.1,
        unmatched: 1,
        missed: 2,
        rejected_sends: 3,
        rejected_receives: 4,
        off: None,
        failures: Vec::new(),
    }
}
