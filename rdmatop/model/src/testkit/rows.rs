//! Rows of synthetic snapshots.

use std::sync::Arc;

use crate::cause::{Cause, CauseId, Concerns};
use crate::ib::{Gid, PhysState, PortState, QpState, QpType, WcStatus, WrOpcode};
use crate::input::{ProbeVerdict, Verdict};
use crate::snapshot::{
    DeviceRow, DeviceState, History, Latency, NamedCounter, OpcodeTraffic, PortRow, ProcessRow, QpRow,
    StatusCount, Step, Traffic, VerbRow,
};
use crate::value::{Counter, Source};

/// Monotonic time of every snapshot, ns.
pub const NOW: u64 = 3_600_000_000_000;
/// Nanoseconds of a second.
pub const S: u64 = 1_000_000_000;

/// A counter.
pub fn count(total: u64, rate: f64, source: Source) -> Counter {
    Counter::whole(total, Some(rate), source)
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
        rx_wr_posted: Some(count(total(wr / 8.0) + 512, wr / 8.0, e)),
        tx_bytes: Some(count(total(wr * size), wr * size, e)),
        rx_bytes: Some(count(total(wr * size / 8.0), wr * size / 8.0, e)),
        completions: Some(count(total(wr * 1.125), wr * 1.125, e)),
        completion_errors: Some(count(wrong, 0.0, e)),
        flushes: Some(count(wrong * 16, 0.0, e)),
        retransmits: Some(count(wrong * 5, if wrong > 0 { 2.5 } else { 0.0 }, e)),
        rnr_waits: Some(count(0, 0.0, e)),
        doorbells: Some(count(total(wr / 4.0), wr / 4.0, e)),
        cq_overflows: Some(count(0, 0.0, e)),
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
        index: Some(u32::try_from(n).unwrap_or(0)),
        name: name.into(),
        state: Some(DeviceState::Registered),
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
        ..DeviceRow::default()
    };
    let named = |name: &str, total: u64, rate: f64| NamedCounter {
        name: name.into(),
        unit_bytes: None,
        help: None,
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
        lanes: rate.map(|_| 4),
        tx_bytes: c(tx),
        rx_bytes: c(rx),
        tx_packets: c(tx.map(|b| b / 4096.0)),
        rx_packets: c(rx.map(|b| b / 4096.0)),
        drops: Some(count(
            if n == 3 { 118 } else { 0 },
            if n == 3 { 3.0 } else { 0.0 },
            Source::Netlink,
        )),
        retries: Some(count(if n == 2 { 12 } else { 0 }, 0.0, Source::Netlink)),
        rnr_naks: Some(count(0, 0.0, Source::Netlink)),
        rdma_alone: true,
        all_of_rdma: true,
        ib_packets: true,
        counters: vec![
            named("duplicate_request", 0, 0.0),
            named("out_of_sequence", 118, 3.0),
            named("packet_seq_err", 12, 0.0),
            named("np_cnp_sent", 40_120, 118.0),
        ]
        .into(),
        history: history(
            "bytes",
            tx.unwrap_or(0.0),
            rx.unwrap_or(0.0),
            usize::try_from(n).unwrap_or(0) * 5,
        ),
        ..PortRow::default()
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
        libraries: pid.map(|_| vec!["libibverbs.so.1".to_owned(), "libnccl.so.2".to_owned()].into()),
        environ: pid.map(|_| vec![("NCCL_IB_HCA".to_owned(), "mlx5_0,mlx5_1".to_owned())].into()),
        verbs_files: pid.map(|_| true),
        history,
        ..ProcessRow::default()
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
        remote_qpn: (state >= 2).then_some(qpn + 1),
        remote_gid: (state >= 2).then_some(Gid([
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 0x15, 0x5d, 0xff, 0xfe, 0, 1, 0x2a,
        ])),
        remote_gid_source: (state >= 2).then_some(Source::Ebpf),
        path_mtu: (state >= 2).then_some(4096),
        born_mono_ns: Some(NOW - 192 * S),
        sq_psn: Some(4_959_146),
        rq_psn: Some(1_187_002),
        timeline: Arc::new(timeline),
        traffic: Arc::new(traffic),
        history,
        ..QpRow::default()
    })
}

/// A QP of which only the number is known.
pub fn unknown_qp() -> QpRow {
    QpRow {
        uid: 1,
        device: "mlx5_0".into(),
        qpn: 99,
        ..QpRow::default()
    }
}

/// Calls of a verb by a process.
pub fn verb(pid: u32, comm: &str, verb: &str, calls: f64, errors: &[(u32, u64)], probe: bool) -> VerbRow {
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
        // Any number will do that no other verb of a test has.
        number: verb
            .bytes()
            .fold(0, |sum: u32, b| sum.wrapping_mul(31).wrapping_add(b.into())),
        calls: count(total, calls, Source::Ebpf),
        errors: Some(count(errors.iter().map(|(_, n)| n).sum(), 0.0, Source::Ebpf)),
        errnos: errors.to_vec(),
        probe,
        latency: Some(latency(15, total)),
    }
}

/// A program, and what became of it.
pub fn probe(program: &str, hook: &str, gives: &str, verdict: Verdict, reason: Option<&str>) -> ProbeVerdict {
    ProbeVerdict {
        program: program.to_owned(),
        hook: hook.to_owned(),
        gives: gives.to_owned(),
        verdict,
        causes: reason.into_iter().map(|why| cause(gives, why, "")).collect(),
    }
}

/// A cause of any kind.
pub fn cause(what: &str, why: &str, remedy: &'static str) -> Cause {
    Cause {
        id: CauseId::NoModule,
        concerns: Concerns::Host,
        what: what.to_owned(),
        why: why.to_owned(),
        remedy: remedy.into(),
    }
}
