//! Each rule on a snapshot with its symptom, and on one without.

mod direct;
mod far;
mod flaps;
mod headroom;
mod hour;
mod infiniband;
mod kinds;
mod lag;
mod load;
mod loss;
mod mappings;
mod nic;
mod order;
mod pauses;
mod places;
mod ports;
mod qps;
mod rails;
mod requests;
mod tcp;
mod verbs;

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::{About, Change, Finding, FindingId, FindingTracker, Limits, Severity};

use crate::ib::{PortState, QpState, WcStatus};
use crate::input::LockedMemory;
use crate::snapshot::{NamedCounter, PortRow, Snapshot, StatusCount, Step, TcpTraffic, Traffic};
use crate::testkit::{self, rows};
use crate::value::{Counter, RateIs, Source};

const S: u64 = 1_000_000_000;

#[expect(clippy::unnecessary_wraps, reason = "the counters of rows are optional")]
fn rate(per_s: f64) -> Option<Counter> {
    Some(Counter::whole(1000, Some(per_s), Source::Ebpf))
}

/// Returns the findings after the snapshot has stayed the same for this many seconds.
fn after(seconds: u64, snapshot: &Snapshot) -> Vec<Finding> {
    let mut watch = FindingTracker::default();
    let mut found = Vec::new();
    for second in 0..=seconds {
        let mut now = snapshot.clone();
        now.mono_ns += second * S;
        found = watch.look_at(&now.judged(None));
    }
    found
}

fn ids(found: &[Finding]) -> Vec<&'static str> {
    found.iter().map(|finding| finding.id.name()).collect()
}

/// A sender and a receiver on one host, connected to each other.
fn pair() -> Snapshot {
    let mut s = testkit::one_row();
    let traffic = || rows::traffic(100.0, 4096.0, 0);
    s.processes = vec![
        rows::process(1, Some(254), "ib_send_bw", "rxe0", traffic()),
        rows::process(2, Some(251), "server", "rxe0", traffic()),
    ];
    s.processes.iter_mut().for_each(|row| row.workload = None);
    s.qps = [(10, 17, 1, 254), (11, 18, 2, 251)]
        .into_iter()
        .map(|(uid, qpn, process, pid)| {
            let mut qp = rows::qp(uid, "rxe0", qpn, 3, Some(pid), "x", traffic());
            let row = Arc::make_mut(&mut qp);
            (row.process_uid, row.remote_qpn) = (Some(process), Some(35 - qpn));
            qp
        })
        .collect();
    s.verbs.clear();
    s
}

fn edit(s: &mut Snapshot, qp: usize, edit: impl Fn(&mut Traffic)) {
    edit(&mut s.processes[qp].traffic);
    edit(Arc::make_mut(&mut Arc::make_mut(&mut s.qps[qp]).traffic));
}

/// Eight ports of one driver with these bytes per second in each direction.
fn rails(tx: [f64; 8], rx: [f64; 8]) -> Snapshot {
    let mut s = testkit::empty();
    for n in 0..8_usize {
        let name = format!("mlx5_{n}");
        let (device, port) = rows::rail(
            n as u64 + 1,
            &name,
            Some(400_000_000_000),
            Some(tx[n]),
            Some(rx[n]),
        );
        s.devices.push(device);
        s.ports.push(port);
    }
    let mut job = rows::process(5, Some(4711), "rank", "mlx5_0", Traffic::default());
    job.devices = s.devices.iter().map(|row| row.name.clone()).collect();
    job.gpus = Some([far::gpu("10:0", 0), far::gpu("14:0", 1)].into());
    s.processes.push(job);
    s
}

fn named(port: &mut PortRow, name: &str, per_s: f64) {
    port.counters.push(NamedCounter {
        name: name.into(),
        unit_bytes: None,
        help: None,
        counter: Counter::whole(7, Some(per_s), Source::Sysfs),
    });
}

/// The same of the port's network device.
fn ethtool(port: &mut PortRow, name: &str, per_s: f64) {
    named(port, name, per_s);
    if let Some(row) = port.counters.last_mut() {
        row.counter.source = Source::Ethtool;
    }
}

#[test]
fn a_healthy_machine_has_no_findings() {
    for snapshot in [
        testkit::empty(),
        testkit::one_row(),
        pair(),
        rails([4e9; 8], [4e9; 8]),
        rails([0.0; 8], [0.0; 8]),
    ] {
        assert_eq!(ids(&after(60, &snapshot)), [""; 0]);
    }
}

#[test]
fn what_is_unknown_is_no_finding() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    for port in &mut s.ports {
        (port.tx_bytes, port.rx_bytes, port.tx_packets, port.rx_packets) = (None, None, None, None);
        (port.state, port.rate_bps, port.netdev_mtu, port.retries) = (None, None, None, None);
        port.counters.clear();
    }
    assert_eq!(ids(&after(60, &s)), [""; 0]);
}

#[test]
fn a_receiver_without_buffers_is_named_and_not_its_victim() {
    let mut s = pair();
    edit(&mut s, 0, |t| t.rnr_waits = rate(12.3));
    assert_eq!(ids(&after(2, &s)), [""; 0], "a short wait is normal");
    let found = after(5, &s);
    assert_eq!(ids(&found), ["receiver-not-ready"]);
    assert_eq!(found[0].pid, Some(251));
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(found[0].victims, [1]);
    assert_eq!(
        found[0].verdict,
        "server (PID 251) on rxe0 posts receives too slowly: ib_send_bw (PID 254) waits"
    );
    assert_eq!(
        found[0].evidence[0],
        "12/s RNR waits by 1 QP of ib_send_bw (PID 254), 1000 in all"
    );
    assert_eq!(found[0].age_s(s.mono_ns + 5 * S), 6, "the first interval counts");
    // The receiver's QP is on another device.
    let mut two = s.clone();
    let row = Arc::make_mut(&mut two.qps[1]);
    (row.device, row.device_uid) = ("rxe1".into(), Some(9));
    let found = after(5, &two);
    assert!(
        found[0].verdict.starts_with("server (PID 251) on rxe1 posts"),
        "{}",
        found[0].verdict
    );
    assert_eq!(found[0].about.device, Some(9));
    // A second sender waits for the same receiver.
    let mut other = s.processes[0].clone();
    (other.uid, other.pid) = (3, Some(255));
    s.processes.push(other);
    let mut qp = s.qps[0].clone();
    let row = Arc::make_mut(&mut qp);
    (row.uid, row.qpn, row.remote_qpn, row.process_uid) = (20, 30, Some(31), Some(3));
    s.qps.push(qp);
    let mut peer = s.qps[1].clone();
    let row = Arc::make_mut(&mut peer);
    (row.uid, row.qpn, row.remote_qpn) = (21, 31, Some(30));
    s.qps.push(peer);
    let found = after(5, &s);
    assert_eq!(ids(&found), ["receiver-not-ready"], "one cause");
    assert_eq!((found[0].pid, &found[0].victims), (Some(251), &vec![1, 3]));
}

#[test]
fn a_receiver_on_another_host_is_named_by_its_address() {
    let mut s = pair();
    s.qps.truncate(1);
    edit(&mut s, 0, |t| (t.rnr_waits, t.tx_wr) = (rate(12.3), rate(0.0)));
    let history = Arc::make_mut(&mut Arc::make_mut(&mut s.qps[0]).history);
    history.tx = vec![Some(0.0); 5];
    let found = after(5, &s);
    assert_eq!((found[0].pid, found[0].severity), (Some(254), Severity::Critical));
    assert!(
        found[0].verdict.starts_with("The peer (QP 18 at fe80:"),
        "{}",
        found[0].verdict
    );
    assert!(
        found[0].verdict.ends_with("posts no receives"),
        "{}",
        found[0].verdict
    );
}

#[test]
fn where_no_work_request_is_counted_the_port_says_that_receivers_are_late() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[2].rnr_naks = rate(9.0);
    let found = after(5, &s);
    assert_eq!(ids(&found), ["receiver-not-ready"]);
    assert_eq!(
        found[0].verdict,
        "Receivers behind mlx5_2/1 post receives too slowly: senders wait (RNR)"
    );
    // A driver that counts NAKs both ways, or what found no buffer: this host is late, and not its peers.
    for late in [
        |port: &mut PortRow| port.rnr_naks_sent = rate(9.0),
        |port: &mut PortRow| {
            (port.out_of_buffer, port.rnr_naks_sent) = (rate(9.0), None);
        },
    ] {
        late(&mut s.ports[2]);
        let found = after(5, &s);
        assert_eq!(
            found[0].verdict,
            "Packets find no receive buffer on mlx5_2/1, and make their senders wait: rank (PID 4711, slurm 7341.0) posts receives too slowly"
        );
    }
}

#[test]
fn two_pairs_with_the_same_numbers_name_no_receiver() {
    let mut s = pair();
    let mut twin = s.qps[1].clone();
    (Arc::make_mut(&mut twin).uid, Arc::make_mut(&mut twin).process_uid) = (12, Some(3));
    s.qps.push(twin);
    edit(&mut s, 0, |t| t.rnr_waits = rate(12.3));
    assert_eq!(after(5, &s)[0].pid, Some(254));
}

#[test]
fn limits_of_one_s_own_are_used() {
    let mut s = pair();
    s.verbs
        .push(rows::verb(254, "ib_send_bw", "reg_mr", 300.0, &[], false));
    let raised = |mr_per_s: f64| {
        let limits = Limits {
            mr_per_s,
            ..Limits::default()
        };
        let mut watch = FindingTracker::new(limits);
        (0..12)
            .map(|second| {
                let mut now = s.clone();
                now.mono_ns += second * S;
                watch.look_at(&now.judged(None)).len()
            })
            .last()
    };
    assert_eq!((raised(100.0), raised(500.0)), (Some(1), Some(0)));
}

#[test]
fn memory_that_is_registered_and_never_deregistered_grows() {
    // `mib` tells what a process has registered in each minute of an hour and a half, in MiB.
    let found = |mib: fn(u64) -> u64| -> Vec<Vec<&'static str>> {
        let mut watch = FindingTracker::default();
        (0..90_u64)
            .map(|minute| {
                let mut s = pair();
                s.mono_ns += minute * 60 * S;
                s.processes[0].mr_bytes = (mib(minute) > 0).then(|| mib(minute) << 20);
                ids(&watch.look_at(&s.judged(None)))
            })
            .collect()
    };
    let never = vec![vec![""; 0]; 90];
    let grows = found(|minute| 100 + 60 * minute.min(60));
    assert!(grows[..17].iter().all(Vec::is_empty), "{grows:?}");
    assert_eq!(grows[40], ["mr-growth"]);
    assert_eq!(grows[89], [""; 0], "it grows no more");
    assert_eq!(found(|minute| 100 + 10 * minute), never, "slowly");
    assert_eq!(
        found(|minute| if minute < 8 { 1000 * (minute + 1) } else { 8000 }),
        never,
        "its start"
    );
    assert_eq!(found(|minute| 100 + 1000 * (minute % 15)), never, "it gives back");
    assert_eq!(found(|minute| 100 + 6000 * (minute / 20)), never, "few steps");
    assert_eq!(found(|_| 0), never, "unknown");
    let dump_fails = found(|minute| if minute == 30 { 0 } else { 100 + 60 * minute });
    assert_eq!(
        dump_fails[31],
        ["mr-growth"],
        "one dump does not undo what was known"
    );
    let every_other = found(|minute| (minute % 2) * (100 + 60 * minute));
    assert_eq!(every_other[41], ["mr-growth"], "what is read suffices");
    assert_eq!(
        found(|minute| (minute % 2) * (100 + 60 * (minute % 15))),
        never,
        "often unknown, and it gives back"
    );
}

#[test]
fn a_process_that_only_creates_qps_leaks_them() {
    let leaks = |moving: u64, receives: bool| {
        let mut watch = FindingTracker::default();
        let mut s = pair();
        let mut found = Vec::new();
        for second in 0..30_u32 {
            s.mono_ns += S;
            for n in 0..2 {
                let used = s.qps.len() as u64 <= moving;
                let mut traffic = rows::traffic(if used { 100.0 } else { 0.0 }, 64.0, 0);
                if !receives {
                    traffic.rx_wr = None;
                }
                let mut qp = rows::qp(
                    100 + u64::from(second * 2 + n),
                    "rxe0",
                    100 + second * 2 + n,
                    3,
                    Some(254),
                    "x",
                    traffic,
                );
                Arc::make_mut(&mut qp).process_uid = Some(1);
                s.qps.push(qp);
            }
            s.processes[0].qps = s.qps.len() as u64 - 1;
            found = watch.look_at(&s.clone().judged(None));
        }
        ids(&found)
    };
    assert_eq!(leaks(0, true), ["qp-leak"]);
    assert_eq!(
        leaks(1000, true),
        [""; 0],
        "a job that grows uses what it creates"
    );
    assert_eq!(leaks(0, false), [""; 0], "whether they receive is not known");
}

#[test]
fn who_suffers_is_told_from_who_is_the_cause() {
    use crate::fields::finding_of;
    use crate::findings::Role;
    // PID 251 receives; PID 254 sends and waits.
    let mut s = pair();
    edit(&mut s, 0, |t| t.rnr_waits = rate(3.0));
    s.findings = after(5, &s).into();
    s.mono_ns += 5 * S;
    assert_eq!(ids(&s.findings), ["receiver-not-ready"]);
    let roles: Vec<_> = s
        .processes
        .iter()
        .map(|row| (row.pid, finding_of(row, &s).map(|mark| (mark.role, mark.words))))
        .collect();
    assert_eq!(
        roles,
        [
            (Some(254), Some((Role::Victim, "6s waits for 251".to_owned()))),
            (Some(251), Some((Role::Cause, "6s posts few recv".to_owned()))),
        ]
    );
    // If a peer does not answer, the known process suffers.
    let victims = vec![s.processes[1].uid];
    let found = Finding {
        victims,
        ..s.findings[0].clone()
    };
    s.findings = vec![found].into();
    let mark = finding_of(&s.processes[1], &s).unwrap();
    assert_eq!((mark.role, &*mark.words), (Role::Victim, "6s posts few recv"));
    assert_eq!((mark.number, mark.severity), (None, Severity::Warning));
    // If there are several findings, each row shows the number of its worst.
    let other = Finding {
        severity: Severity::Info,
        about: About {
            process: Some(s.processes[0].uid),
            ..About::default()
        },
        victims: Vec::new(),
        ..s.findings[0].clone()
    };
    s.findings = vec![s.findings[0].clone(), other].into();
    let numbers = s
        .processes
        .iter()
        .map(|row| finding_of(row, &s).map(|mark| (mark.number, mark.severity)));
    assert_eq!(
        numbers.collect::<Vec<_>>(),
        [
            Some((Some(2), Severity::Info)),
            Some((Some(1), Severity::Warning))
        ]
    );
}

#[test]
fn kinds_have_names_of_their_own_and_all_is_said_of_them() {
    let mut names: Vec<_> = FindingId::ALL.iter().map(|id| id.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), FindingId::ALL.len());
    for id in FindingId::ALL {
        let kind = id.kind();
        assert!(!kind.why.is_empty() && !kind.fixed.is_empty(), "{}", kind.name);
        // With the words around it, this makes a line of 78 columns.
        assert!(kind.fixed.len() <= 41, "{}: {}", kind.name, kind.fixed);
    }
}

/// A snapshot like one of a trace, in which nothing counts work requests.
fn traced(snapshot: &Snapshot) -> Snapshot {
    let mut s = snapshot.clone();
    s.processes
        .iter_mut()
        .for_each(|row| row.traffic = Traffic::default());
    for qp in s.qps.iter_mut() {
        let row = Arc::make_mut(qp);
        row.traffic = Arc::default();
        row.history = Arc::default();
    }
    s
}

#[test]
fn the_table_says_that_a_trace_lacks_what_needs_counts_of_requests() {
    let mut s = pair();
    // One QP waits for the receiver, one retransmits without an answer, one failed and overflowed.
    edit(&mut s, 0, |t| {
        (t.rnr_waits, t.cq_overflows) = (rate(12.3), rate(1.0));
        t.by_status = vec![StatusCount {
            status: WcStatus(12),
            cqes: Counter::whole(1, Some(1.0), Source::Ebpf),
        }];
    });
    let mut dead = rows::qp(30, "rxe0", 40, 3, Some(254), "x", rows::traffic(0.0, 0.0, 0));
    let row = Arc::make_mut(&mut dead);
    row.process_uid = Some(1);
    Arc::make_mut(&mut row.traffic).retransmits = rate(80.0);
    Arc::make_mut(&mut row.history).tx = vec![Some(0.0); 5];
    s.qps.push(dead);
    let mut failed = s.qps[1].clone();
    let row = Arc::make_mut(&mut failed);
    (row.uid, row.qpn, row.remote_qpn, row.state) = (31, 41, None, Some(QpState(6)));
    s.qps.push(failed);
    s.ports[0].rnr_naks = rate(12.3);
    let names = |s: &Snapshot| -> std::collections::BTreeSet<FindingId> {
        after(12, s).iter().map(|finding| finding.id).collect()
    };
    let (live, trace) = (names(&s), names(&traced(&s)));
    let kinds = [
        FindingId::ReceiverNotReady,
        FindingId::PeerGone,
        FindingId::QpError,
        FindingId::CompletionError,
        FindingId::CqOverflow,
    ];
    assert_eq!(live, kinds.into());
    let of_table = |id: &FindingId| kinds::in_a_trace(*id) != "no";
    assert_eq!(trace, live.iter().copied().filter(of_table).collect());
    let found = after(12, &traced(&s));
    let waits = found
        .iter()
        .find(|f| f.id == FindingId::ReceiverNotReady)
        .unwrap();
    assert_eq!(waits.about.port, Some(1), "a port is named");
}

proptest! {
    /// However symptoms come and go, nothing is raised before it was present, or cleared before it was
    /// absent, for as long as its kind says.
    #[test]
    fn no_finding_comes_and_goes_faster_than_its_kind_says(
        looks in prop::collection::vec((1_u64..4_000, any::<bool>(), any::<bool>(), any::<bool>()), 1..200)
    ) {
        let mut watch = FindingTracker::default();
        let mut s = rails([4e9; 8], [4e9; 8]);
        let mut last: BTreeMap<(FindingId, Option<u64>), (bool, u64)> = BTreeMap::new();
        let mut step = S;
        for (ms, waits, down, errors) in looks {
            s.interval_ns = Some(step);
            s.processes[0].traffic.rnr_waits = rate(if waits { 5.0 } else { 0.0 });
            let mut qp = rows::qp(1, "mlx5_0", 9, 3, Some(4711), "rank", s.processes[0].traffic.clone());
            Arc::make_mut(&mut qp).process_uid = Some(5);
            s.qps = vec![qp].into();
            s.ports[3].state = Some(PortState(if down { 1 } else { 4 }));
            s.ports[0].counters.clear();
            named(&mut s.ports[0], "link_downed", if errors { 1.0 } else { 0.0 });
            let found = watch.look_at(&s.clone().judged(None));
            for change in watch.take_changes() {
                let (finding, raised) = match &change {
                    Change::Raised(finding) => (finding, true),
                    Change::Cleared(finding) => (finding, false),
                };
                prop_assert_eq!(found.iter().any(|f| f.id == finding.id && f.about == finding.about), raised);
                let key = (finding.id, finding.about.device);
                let kind = finding.id.kind();
                if let Some((was, at)) = last.insert(key, (raised, s.mono_ns)) {
                    prop_assert_ne!(was, raised, "raised twice, or cleared twice");
                    let least = if raised { kind.raise_s } else { kind.clear_s };
                    prop_assert!(s.mono_ns - at >= least * S, "{} after {} ns", kind.name, s.mono_ns - at);
                } else {
                    prop_assert!(raised);
                }
            }
            step = ms * 1_000_000;
            s.mono_ns += step;
        }
    }
}

/// A job with `of_port` processes on each port that carries anything.
fn ranks(tx: [f64; 8], of_port: u32) -> Snapshot {
    let mut s = rails(tx, tx);
    s.processes.clear();
    for ((n, port), tx) in (0_u32..).zip(&s.facts.ports).zip(tx).filter(|(_, tx)| *tx > 0.0) {
        for rank in n * 10..n * 10 + of_port {
            let traffic = Traffic {
                tx_bytes: rate(tx / f64::from(of_port)),
                ..Traffic::default()
            };
            let (uid, pid) = (u64::from(rank) + 100, Some(7000 + rank));
            s.facts
                .processes
                .push(rows::process(uid, pid, "rank", &port.device, traffic));
        }
    }
    s
}

/// A symptom of each of `parts` parts of one process, or of a device.
fn symptoms(id: FindingId, severity: Severity, about: &About, parts: usize) -> Vec<Finding> {
    let one = |part: usize| Finding {
        severity,
        ..Finding::of(id, about.clone().part(format!("{part:04}")), 0)
    };
    (0..parts).map(one).collect()
}
