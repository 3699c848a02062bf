//! Compares what a log says with what its processes do.

use super::super::{
    identity::{Candidate, Identity, Proof},
    json,
    line::Writer,
    now::{Agreement, IdentifiedProcess, Now},
    page::{self, Links},
    report::Report,
};
use super::{read, two_hosts};
use rdmatop_model::{
    cause::{CauseId, Concerns, Obstacle},
    ib::{PortState, QpState},
    snapshot::{PortRow, ProcessRow, QpRow, Snapshot, TcpTraffic, Traffic},
    testkit::full,
    value::{Counter, RateIs, Source},
};
use std::sync::Arc;

const DOCUMENT: &str = include_str!("../../../../docs/nccl-log.md");

fn counter(rate: f64, source: Source) -> Counter {
    Counter::whole(3, Some(rate), source)
}

fn tcp(rate: f64) -> TcpTraffic {
    TcpTraffic {
        tx_bytes: counter(rate / 2.0, Source::SockDiag),
        rx_bytes: counter(rate / 2.0, Source::SockDiag),
        connections: 8,
        busiest: None,
    }
}

/// A rank with QPs on devices. What it moves is unknown, as on a NIC that bypasses the kernel.
pub(super) fn rank(pid: u32, devices: &[&str]) -> ProcessRow {
    ProcessRow {
        uid: u64::from(pid),
        pid: Some(pid),
        comm: "python3".into(),
        devices: devices.iter().map(|name| Arc::from(*name)).collect(),
        qps: 8 * devices.len() as u64,
        traffic: Traffic::default(),
        tcp: None,
        ..full::snapshot().processes[0].clone()
    }
}

pub(super) fn port(device: &str, rate: f64) -> PortRow {
    PortRow {
        device: device.into(),
        state: Some(PortState(4)),
        rate_bps: Some(200_000_000_000),
        tx_bytes: Some(counter(rate / 2.0, Source::Sysfs)),
        rx_bytes: Some(counter(rate / 2.0, Source::Sysfs)),
        ..full::snapshot().ports[0].clone()
    }
}

pub(super) fn snapshot(processes: Vec<ProcessRow>, ports: Vec<PortRow>) -> Snapshot {
    let mut snapshot = full::empty();
    snapshot.health.errors.clear();
    (snapshot.processes, snapshot.ports) = (processes, ports);
    snapshot
}

pub(super) fn found(pid: u32, identity: Option<u32>) -> IdentifiedProcess {
    let candidate = |here| Candidate {
        pid: here,
        comm: "python3".to_owned(),
        libraries: Some(vec!["libnccl.so.2".to_owned()]),
        other_network: Some(false),
        ..Candidate::default()
    };
    IdentifiedProcess {
        writer: Writer {
            host: "gpu-a".to_owned(),
            pid,
        },
        identity: identity.map_or(Identity::Ended, |here| {
            Identity::Process(Box::new(candidate(here)), Proof::Library)
        }),
        ended: false,
    }
}

/// Both ranks of gpu-a are on this machine, with the numbers of the log.
fn both() -> [IdentifiedProcess; 2] {
    [found(100, Some(100)), found(101, Some(101))]
}

fn compared(
    report: &Report,
    found: &[IdentifiedProcess],
    snapshot: &Snapshot,
) -> Vec<(Agreement, &'static str, String)> {
    let now = Now::of(report, found, snapshot, 3.0);
    now.comparisons
        .into_iter()
        .map(|one| (one.kind, one.id, one.line))
        .collect()
}

fn ids(report: &Report, found: &[IdentifiedProcess], snapshot: &Snapshot) -> Vec<(Agreement, &'static str)> {
    compared(report, found, snapshot)
        .into_iter()
        .map(|(kind, id, _)| (kind, id))
        .collect()
}

fn on_tcp() -> Report {
    read(
        "gpu-a:100:100 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n\
         gpu-a:100:100 [0] NCCL INFO Using network Socket\n\
         gpu-a:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\n",
    )
}

#[test]
fn a_job_that_does_what_its_log_says_agrees_in_one_line() {
    let report = read(&two_hosts());
    let healthy = snapshot(
        vec![rank(100, &["mlx5_0"]), rank(101, &["mlx5_1"])],
        vec![port("mlx5_0", 20e9), port("mlx5_1", 22e9), port("mlx5_9", 5e9)],
    );
    let lines = compared(&report, &both(), &healthy);
    assert_eq!(
        lines,
        [(
            Agreement::Agrees,
            "rdma",
            "As the log says, RDMA: 42.0 GB/s on mlx5_0 and mlx5_1".to_owned()
        )]
    );
    let tcp_job = snapshot(
        vec![ProcessRow {
            tcp: Some(tcp(500e6)),
            qps: 0,
            devices: Vec::new(),
            ..rank(100, &[])
        }],
        Vec::new(),
    );
    assert_eq!(
        compared(&on_tcp(), &[found(100, Some(100))], &tcp_job),
        [(
            Agreement::Agrees,
            "tcp",
            "As the log says, TCP: 500.0 MB/s in 8 connections of PID 100".to_owned()
        )]
    );
}

#[test]
fn of_the_nics_of_the_log_one_that_carries_nothing_is_named() {
    let report = read(&two_hosts());
    let processes = || vec![rank(100, &["mlx5_0"]), rank(101, &["mlx5_1"])];
    let of = |second: f64| {
        compared(
            &report,
            &both(),
            &snapshot(processes(), vec![port("mlx5_0", 20e9), port("mlx5_1", second)]),
        )
    };
    let [(Agreement::Differs, "idle-nic", line)] = &of(0.19e9)[..] else {
        panic!("{:?}", of(0.19e9));
    };
    assert_eq!(
        line,
        "The log has connections on 2 NICs, and only mlx5_0 moves data (20.2 GB/s): mlx5_1 moves less than 1 % of that"
    );
    assert_eq!(of(0.21e9)[0].0, Agreement::Agrees, "just enough");
    let quiet = snapshot(
        processes(),
        vec![port("mlx5_0", 300_000.0), port("mlx5_1", 300_000.0)],
    );
    assert_eq!(ids(&report, &both(), &quiet), [(Agreement::Unclear, "quiet")]);
    let unknown = PortRow {
        tx_bytes: None,
        wr_tx_bytes: None,
        ..port("mlx5_1", 1e9)
    };
    let unknown = snapshot(processes(), vec![port("mlx5_0", 20e9), unknown]);
    assert_eq!(
        ids(&report, &both(), &unknown),
        [(Agreement::Unclear, "unknown")],
        "unknown is not idle"
    );
}

#[test]
fn of_a_nic_with_two_ports_only_that_of_the_log_is_meant() {
    let report = read(&two_hosts());
    let second = |name: &str, state: u8| PortRow {
        port: 2,
        state: Some(PortState(state)),
        ..port(name, 0.0)
    };
    let ports = |state| {
        vec![
            port("mlx5_0", 20e9),
            second("mlx5_0", state),
            port("mlx5_1", 22e9),
            second("mlx5_1", state),
        ]
    };
    for state in [1, 4] {
        let shot = snapshot(vec![rank(100, &["mlx5_0"]), rank(101, &["mlx5_1"])], ports(state));
        assert_eq!(
            ids(&report, &both(), &shot),
            [(Agreement::Agrees, "rdma")],
            "{state}"
        );
        let now = Now::of(&report, &both(), &shot, 3.0);
        let in_log: Vec<_> = now.ports.iter().map(|port| port.in_log).collect();
        assert_eq!(in_log, [Some(true), Some(false), Some(true), Some(false)]);
    }
}

#[test]
fn a_log_of_libfabric_names_no_device_and_its_network_is_not_called_ib() {
    let report = read(
        "gpu-a:100:100 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 2 nics)\n\
         gpu-a:100:100 [0] NCCL INFO Using network AWS Libfabric\n\
         gpu-a:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/0/GDRDMA\n",
    );
    let job = [found(100, Some(100))];
    let shot = |rates: [f64; 2]| {
        let [a, b] = rates;
        snapshot(
            vec![rank(100, &["rdmap0s6", "rdmap0s7"])],
            vec![port("rdmap0s6", a), port("rdmap0s7", b)],
        )
    };
    let busy = shot([9e9, 9e9]);
    assert_eq!(ids(&report, &job, &busy), [(Agreement::Agrees, "rdma")]);
    let now = Now::of(&report, &job, &busy, 3.0);
    assert!(
        now.ports.iter().all(|port| port.in_log.is_none()),
        "{:?}",
        now.ports
    );
    let lines = compared(&report, &job, &shot([9e9, 0.0]));
    assert_eq!(
        lines,
        [(
            Agreement::Differs,
            "idle-nic",
            "The log says NET/AWS Libfabric; its processes have QPs on 2 NICs, and only rdmap0s6 moves data (9.0 GB/s): \
             rdmap0s7 moves less than 1 % of that"
                .to_owned()
        )]
    );
    assert_eq!(
        ids(&report, &job, &shot([0.0, 0.0])),
        [(Agreement::Unclear, "quiet")]
    );
}

#[test]
fn a_process_without_qps_is_told_from_one_whose_qps_are_not_known() {
    let report = read(&two_hosts());
    let ports = || vec![port("mlx5_0", 20e9), port("mlx5_1", 20e9)];
    let without = |tcp| {
        let row = ProcessRow {
            qps: 0,
            devices: Vec::new(),
            tcp,
            ..rank(100, &[])
        };
        snapshot(vec![row, rank(101, &["mlx5_1"])], ports())
    };
    let lines = compared(&report, &both(), &without(None));
    assert_eq!(lines[0].1, "no-qp");
    assert_eq!(
        lines[0].2,
        "The log says NET/IB, and python3 (PID 100) has no QP: its connections are closed, or not made"
    );
    let lines = compared(&report, &both(), &without(Some(tcp(480e6))));
    assert_eq!((lines[0].0, lines[0].1), (Agreement::Differs, "tcp-instead"));
    assert!(
        lines[0]
            .2
            .ends_with("has no QP: it moves 480.0 MB/s by TCP instead"),
        "{lines:?}"
    );
    // If a reading failed, or devices may be in another namespace, the number of QPs is unknown.
    let mut elsewhere = both();
    if let Identity::Process(who, _) = &mut elsewhere[0].identity {
        who.other_network = None;
    }
    let now = Now::of(&report, &elsewhere, &without(None), 3.0);
    assert_eq!(now.processes[0].qps, None);
    assert!(
        now.comparisons.iter().all(|one| one.id != "no-qp"),
        "{:?}",
        now.comparisons
    );
    assert!(
        now.missing.iter().any(|line| line.contains("run it as root")),
        "{:?}",
        now.missing
    );
    // Missing rights give one line with the remedy.
    let rights = Obstacle::new(CauseId::NoCapability, "CAP_BPF is missing", "run with sudo");
    let mut plain = snapshot(vec![rank(100, &["mlx5_0"])], vec![port("mlx5_0", 20e9)]);
    plain.health.notes = vec![rights.takes("eBPF is off", Concerns::Host)].into();
    let now = Now::of(&report, &[found(100, Some(100))], &plain, 3.0);
    assert_eq!(now.missing, ["eBPF is off: CAP_BPF is missing; run with sudo"]);
    // A rank that has not joined has no QP yet.
    let starting = read("gpu-a:100:100 [0] NCCL INFO Using network IB\n");
    assert_eq!(
        ids(&starting, &[found(100, Some(100))], &without(None)),
        [(Agreement::Unclear, "no-qp")]
    );
}

#[test]
fn a_job_is_not_called_quiet_where_connections_of_a_pod_are_not_seen() {
    let of = |rank: u32| {
        let pid = 100 + rank;
        format!(
            "gpu-a:{pid}:{pid} [{rank}] NCCL INFO Using network Socket\n\
             gpu-a:{pid}:{pid} [{rank}] NCCL INFO Channel 00/0 : {rank}[0] -> {}[0] [send] via NET/Socket/0\n",
            1 - rank
        )
    };
    let report = read(&[of(0), of(1)].concat());
    let without = |pid, tcp| ProcessRow {
        tcp,
        qps: 0,
        devices: Vec::new(),
        ..rank(pid, &[])
    };
    let shown = snapshot(
        vec![without(100, Some(tcp(100.0))), without(101, None)],
        Vec::new(),
    );
    let mut all = both();
    assert_eq!(ids(&report, &all, &shown), [(Agreement::Unclear, "quiet")]);
    if let Identity::Process(who, _) = &mut all[1].identity {
        who.other_network = Some(true);
    }
    assert_eq!(ids(&report, &all, &shown), [(Agreement::Unclear, "unknown")]);
}

#[test]
fn what_goes_another_way_than_the_log_says_is_a_difference() {
    let mut moving = rank(100, &["mlx5_0"]);
    moving.traffic.tx_bytes = Some(counter(2e9, Source::Ebpf));
    moving.traffic.rx_bytes = Some(counter(0.0, Source::Ebpf));
    let by_rdma = snapshot(vec![moving.clone()], vec![port("mlx5_0", 2e9)]);
    let one = [found(100, Some(100))];
    assert_eq!(
        ids(&on_tcp(), &one, &by_rdma)[0],
        (Agreement::Differs, "rdma-instead")
    );
    moving.traffic.tx_bytes = Some(counter(1e6, Source::Ebpf));
    moving.tcp = Some(tcp(500e6));
    let by_tcp = snapshot(vec![moving], vec![port("mlx5_0", 1e6), port("mlx5_1", 1e6)]);
    assert_eq!(
        ids(&read(&two_hosts()), &one, &by_tcp)[0],
        (Agreement::Differs, "tcp-instead")
    );
    // Work requests do not show what peers write, so a small count is no evidence.
    let of_work_requests = |device: &str, rate: f64| PortRow {
        tx_bytes: None,
        rx_bytes: None,
        wr_tx_bytes: Some(counter(rate, Source::Ebpf)),
        wr_rx_bytes: Some(counter(0.0, Source::Ebpf)),
        ..port(device, 0.0)
    };
    let bounds = snapshot(
        by_tcp.processes.clone(),
        vec![of_work_requests("mlx5_0", 1e3), of_work_requests("mlx5_1", 9e9)],
    );
    let now = Now::of(&read(&two_hosts()), &one, &bounds, 3.0);
    let [line] = now.comparisons.as_slice() else {
        panic!("{:?}", now.comparisons)
    };
    assert_eq!((line.kind, line.id), (Agreement::Unclear, "unknown"));
    assert!(now.ports[0].tx_bytes.is_some_and(|counter| counter.partial));
    // The log names mlx5_0 and mlx5_1.
    let elsewhere = snapshot(
        vec![rank(100, &["mlx5_7"])],
        vec![
            PortRow {
                state: Some(PortState(1)),
                ..port("mlx5_0", 0.0)
            },
            port("mlx5_7", 9e9),
        ],
    );
    let lines = ids(&read(&two_hosts()), &one, &elsewhere);
    for id in ["nic-gone", "port-down", "other-nic"] {
        assert!(lines.contains(&(Agreement::Differs, id)), "{id}: {lines:?}");
    }
}

#[test]
fn a_rank_that_ended_beside_others_and_qps_in_err_are_named() {
    let report = read(&two_hosts());
    let mut shot = snapshot(
        vec![rank(100, &["mlx5_0"])],
        vec![port("mlx5_0", 0.0), port("mlx5_1", 0.0)],
    );
    let broken = QpRow {
        process_uid: Some(100),
        state: Some(QpState(6)),
        exited: false,
        ..(*full::snapshot().qps[0]).clone()
    };
    shot.qps = vec![Arc::new(broken)].into();
    let lines = compared(&report, &[found(100, Some(100)), found(101, None)], &shot);
    assert!(
        lines.iter().any(|(kind, id, line)| *kind == Agreement::Differs
            && *id == "rank-gone"
            && line == "PID 101 of the log has ended, and of the others 1 run on: a collective waits for every rank"),
        "{lines:?}"
    );
    assert!(
        lines
            .iter()
            .any(|(_, id, line)| *id == "qp-error" && line.starts_with("1 of 8 QPs of python3 (PID 100)"))
    );
}

#[test]
fn a_share_of_a_port_and_an_upper_bound_are_shown_as_such() {
    let report = read(&two_hosts());
    let mut first = rank(4711, &["mlx5_0"]);
    first.traffic.tx_bytes = Some(counter(2e9, Source::Psn));
    first.traffic.rx_bytes = Some(Counter {
        partial: true,
        rate_is: RateIs::AtMost,
        ..counter(3e9, Source::Port)
    });
    let page = |first: ProcessRow| {
        let shot = snapshot(vec![first], vec![port("mlx5_0", 5e9)]);
        let now = Now::of(&report, &[found(100, Some(4711))], &shot, 3.0);
        page::text(&report, &Links::default(), Some(&now))
    };
    let text = page(first.clone());
    let row = text.lines().find(|line| line.contains(" 4711 ")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(words[4..6], ["~2.0G", "0-3.0G"], "{row}");
    assert!(text.contains("; 0-n: between 0 and n; ~\n  within 5 %"), "{text}");
    // What the port alone had is exact, and the page needs no words for signs that it has not.
    first.traffic.tx_bytes = Some(counter(2e9, Source::Port));
    first.traffic.rx_bytes = Some(counter(3e9, Source::Port));
    let text = page(first);
    assert!(text.contains("    2.0G     3.0G"), "{text}");
    assert!(!text.contains("0-n") && !text.contains('~'), "{text}");
}

#[test]
fn the_section_reads_well_and_is_absent_where_there_is_nothing_to_say() {
    let report = read(&two_hosts());
    let mut first = rank(4711, &["mlx5_0"]);
    first.traffic.tx_bytes = Some(counter(9.5e9, Source::Uprobe));
    first.traffic.rx_bytes = None;
    first.tcp = Some(tcp(21_000.0));
    let shot = snapshot(
        vec![first, rank(101, &["mlx5_0", "mlx5_1"])],
        vec![port("mlx5_0", 38e9), port("mlx5_1", 0.02e9)],
    );
    let now = Now::of(
        &report,
        &[found(100, Some(4711)), found(101, Some(101))],
        &shot,
        3.02,
    );
    let text = page::text(&report, &Links::default(), Some(&now));
    insta::assert_snapshot!(text);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let (beginning, _) = text.split_once("\n\nConnections between").unwrap();
    assert!(
        DOCUMENT.contains(&format!("```\n{beginning}\n```\n")),
        "docs/nccl-log.md"
    );
    let json: serde_json::Value =
        serde_json::from_str(&json::document(&report, Some(&now)).unwrap()).unwrap();
    let process = &json["now"]["processes"][0];
    assert_eq!(
        (&process["log_pid"], &process["pid"]),
        (&100.into(), &4711.into())
    );
    assert_eq!(process["tx_bytes"]["source"], "uprobe");
    assert!(process["rx_bytes"].is_null());
    assert_eq!(json["now"]["said"][0]["id"], "idle-nic");

    let elsewhere = Now::unobserved(&report, &[]);
    assert!(elsewhere.is_none());
    let plain = page::text(&report, &Links::default(), None);
    assert!(!plain.contains("Now"));
    let over = Now::unobserved(&report, &[found(100, None), found(101, None)]);
    let text = page::text(&report, &Links::default(), over.as_ref());
    assert!(
        text.contains("\nNow\n  All 2 processes of the log on this machine have ended\n"),
        "{text}"
    );
}

/// The tables of docs/nccl-log.md name each key that JSON has.
#[test]
fn the_document_names_every_key_and_every_line() {
    let report = read(&two_hosts());
    let shot = snapshot(vec![rank(100, &["mlx5_0"])], vec![port("mlx5_0", 38e9)]);
    let now = Now::of(&report, &[found(100, Some(100)), found(101, None)], &shot, 3.0);
    let json: serde_json::Value =
        serde_json::from_str(&json::document(&report, Some(&now)).unwrap()).unwrap();
    let now = &json["now"];
    let rows = |section: &str| -> String {
        let (_, rest) = DOCUMENT.split_once(&format!("\n{section}\n")).unwrap();
        rest.split("\n#").next().unwrap().to_owned()
    };
    for (section, object) in [
        ("## JSON", &json),
        ("### Now", now),
        ("### Rank", &now["processes"][0]),
        ("### Absent", &now["absent"][0]),
        ("### Rail", &now["ports"][0]),
        ("### Said", &now["said"][0]),
    ] {
        let rows = rows(section);
        for key in object.as_object().unwrap().keys() {
            assert!(rows.contains(&format!("`{key}`")), "{section}: {key}");
        }
    }
    let compared = rows("## What is compared");
    let source = include_str!("../compare.rs");
    for id in [
        "rdma",
        "tcp",
        "tcp-instead",
        "no-qp",
        "rdma-instead",
        "idle-nic",
        "other-nic",
        "nic-gone",
        "port-down",
        "rank-gone",
        "qp-error",
        "quiet",
        "unknown",
        "ended",
    ] {
        assert!(
            compared.contains(&format!("`{id}`")) && source.contains(&format!("\"{id}\"")),
            "{id}"
        );
    }
}
