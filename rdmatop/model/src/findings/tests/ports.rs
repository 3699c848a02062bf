//! Rules about ports: state, load, errors, loss, congestion, MTU, commands.

use super::*;
use crate::ib::Gid;
use crate::snapshot::PortGid;
use crate::value::RateIs;

#[test]
fn a_port_that_is_down_matters_where_it_is_used() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[3].state = Some(PortState(1));
    let found = after(3, &s);
    assert_eq!(ids(&found), ["port-down"]);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(
        (found[0].device.as_deref(), found[0].pid),
        (Some("mlx5_3"), Some(4711))
    );
    // The kernel does not list QPs that UCX makes by DEVX. A process with it that has the device open loses a
    // port that was ACTIVE; a spare port was not.
    let mut devx = s.clone();
    devx.processes[0].qps = 0;
    devx.processes[0].devices.clear();
    devx.processes[0].libraries = Some(vec!["libuct.so.0".to_owned()].into());
    devx.devices[3].contexts = Some(vec![4711].into());
    assert_eq!(ids(&after(3, &devx)), [""; 0]);
    let mut watch = Watch::default();
    let found: Vec<_> = (0..6_u64)
        .map(|second| {
            let mut now = devx.clone();
            now.mono_ns += second * S;
            now.ports[3].state = Some(PortState(if second < 2 { 4 } else { 1 }));
            ids(&watch.look(&now.judged(None)))
        })
        .collect();
    assert_eq!(found[5], ["port-down"], "{found:?}");
    devx.processes[0].libraries = Some(vec!["libnccl.so.2".to_owned()].into());
    assert_eq!(ids(&after(3, &devx)), [""; 0], "NCCL opens every device");
    // A spare port that no process uses may be down.
    s.processes[0].devices.remove(3);
    assert_eq!(ids(&after(3, &s)), [""; 0]);
    // The driver reports link errors that may be short as ACTIVE_DEFER.
    s.processes[0].devices = s.devices.iter().map(|row| row.name.clone()).collect();
    s.ports[3].state = Some(PortState(5));
    assert_eq!(ids(&after(3, &s)), [""; 0]);
}

#[test]
fn a_port_that_is_down_holds_up_the_other_ranks_of_its_job() {
    let still = || Traffic {
        tx_bytes: Some(Counter::whole(9, Some(0.0), Source::Netlink)),
        rx_bytes: Some(Counter::whole(9, Some(0.0), Source::Netlink)),
        ..Traffic::default()
    };
    let found = |edit: fn(&mut Snapshot)| {
        let mut s = ranks([4e9; 8], 1);
        for row in &mut s.processes {
            row.traffic = still();
        }
        s.ports[3].state = Some(PortState(1));
        edit(&mut s);
        after(3, &s).remove(0)
    };
    let all = found(|_| {});
    assert_eq!(
        all.verdict,
        "mlx5_3/1 is DOWN: rank (PID 7030, slurm 7341.0) cannot send or receive; 7 more ranks of the job move nothing"
    );
    assert_eq!(all.victims, [130, 100, 110, 120, 140, 150, 160, 170]);
    assert_eq!((all.pid, all.device.as_deref()), (Some(7030), Some("mlx5_3")));
    let last = all.evidence.last().unwrap();
    assert_eq!(
        last,
        "ranks that move nothing: rank (PID 7000, slurm 7341.0) and 6 more"
    );
    // The row of each says for whom it waits, not that its own port is down.
    let mut s = ranks([4e9; 8], 1);
    s.mono_ns += 3 * S;
    s.findings = vec![all].into();
    let words =
        |at: usize| crate::fields::finding_of(&s.processes[at], &s).map(|mark| (mark.role, mark.words));
    let role = super::super::Role::Victim;
    assert_eq!(words(3), Some((role, "4s port DOWN".to_owned())));
    assert_eq!(words(4), Some((role, "4s waits for 7030".to_owned())));
    let victims = |edit: fn(&mut Snapshot)| found(edit).victims;
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.workload_claimed = true)),
        [130],
        "it is not known whose job it is"
    );
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.workload = None)),
        [130],
        "processes of one host are no job"
    );
    assert_eq!(
        victims(|s| s.processes.iter_mut().for_each(|row| row.libraries = None)),
        [130],
        "nothing says that they wait for one another"
    );
    assert_eq!(
        victims(|s| {
            s.processes[0].workload = Some("slurm 9.0".into());
            s.processes[1].comm = "storage".into();
            s.processes[2].qps = 0;
            s.processes[4].traffic.tx_bytes = rate(1e6);
        }),
        [130, 150, 160, 170],
        "another job, another program, no QP, data that still moves"
    );
    // What moves of a rank that shares its port is a bound, or not known at all.
    assert_eq!(
        victims(|s| {
            s.processes[0].traffic = Traffic::default();
            let shared = &mut s.processes[1].traffic.tx_bytes;
            let most = rate(1e9).map(|counter| Counter {
                rate_is: RateIs::AtMost,
                ..counter
            });
            *shared = most;
        }),
        [130, 120, 140, 150, 160, 170]
    );
    // Another program with a QP that leads to that rank, by its address; numbers alone are no proof.
    let connected = |by_address: bool| {
        let mut s = ranks([4e9; 8], 1);
        s.processes.iter_mut().for_each(|row| row.traffic = still());
        s.ports[3].state = Some(PortState(1));
        s.processes.truncate(5);
        s.processes[1].comm = "hub".into();
        let gid = Gid([7; 16]);
        if by_address {
            let index = 0;
            s.ports[3].gids = Some([PortGid { index, gid, v1: None }].into());
        }
        let device = s.ports[3].device_uid;
        for (uid, qpn, process) in [(91, 17, 130), (92, 18, 110)] {
            let mut qp = rows::qp(uid, "mlx5_3", qpn, 3, None, "x", Traffic::default());
            let row = Arc::make_mut(&mut qp);
            (row.device_uid, row.port) = (Some(device), Some(1));
            (row.process_uid, row.remote_qpn) = (Some(process), Some(35 - qpn));
            row.remote_gid = by_address.then_some(gid);
            s.qps.push(qp);
        }
        after(3, &s).remove(0).victims
    };
    assert_eq!(connected(true), [130, 100, 110, 120, 140]);
    assert_eq!(connected(false), [130, 100, 120, 140]);
}

#[test]
fn a_rank_waits_for_none_of_another_job_and_not_for_itself() {
    let mut s = ranks([4e9; 8], 1);
    s.ports[3].state = Some(PortState(1));
    let found = after(3, &s).remove(0);
    s.mono_ns += 3 * S;
    s.findings = vec![Finding {
        victims: s.processes.iter().map(|row| row.uid).collect(),
        ..found
    }]
    .into();
    s.processes[4].workload = Some("slurm 9.0".into());
    // A rank whose QPs on the port are gone while the finding is still shown.
    s.processes[3].devices.clear();
    let words = |at: usize| crate::fields::finding_of(&s.processes[at], &s).map(|mark| mark.words);
    assert_eq!(words(3).as_deref(), Some("4s port DOWN"));
    assert_eq!(words(4).as_deref(), Some("4s waits"));
    assert_eq!(words(5).as_deref(), Some("4s waits for 7030"));
}

#[test]
fn a_port_that_runs_slower_than_most_is_named() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[5].rate_bps = Some(100_000_000_000);
    let found = after(6, &s);
    assert_eq!(
        found[0].verdict,
        "mlx5_5/1 runs at 100 Gb/s, the other ports at 400: it slows rank (PID 4711, slurm 7341.0), which uses them together"
    );
    // A storage NIC may have the same driver as the job's NICs.
    let slow = s.processes[0].devices.remove(5);
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    s.processes[0].devices.push(slow);
    for port in &mut s.ports[..4] {
        port.rate_bps = Some(100_000_000_000);
    }
    assert_eq!(ids(&after(6, &s)), [""; 0], "two kinds of NIC");
}

#[test]
fn a_hot_port_says_what_chose_it() {
    let mut one = [0.0; 8];
    one[2] = 40e9;
    let chosen = |cmdline: &str, variable: Option<(&str, &str)>| {
        let mut s = rails(one, one);
        s.processes[0].cmdline = Some(cmdline.into());
        let environ = variable.map(|(name, value)| vec![(name.to_owned(), value.to_owned())].into());
        s.processes[0].environ = environ;
        let found = after(12, &s).remove(0);
        let meant = cmdline.contains(" -d mlx5_2 ") || cmdline.contains("--ib-dev");
        let severity = if meant { Severity::Info } else { Severity::Warning };
        assert_eq!(
            found.severity, severity,
            "a variable may be left over from a test"
        );
        let (_, why) = found.verdict.split_once(" (80 % of its link)").unwrap();
        let idle = [": mlx5_0, mlx5_1, mlx5_3 and 4 more are idle", ": 7 are idle"];
        let why = idle.iter().find_map(|idle| why.strip_suffix(idle)).unwrap();
        let why = why.to_owned();
        (why, found.next)
    };
    for cmdline in [
        "ib_write_bw -d mlx5_2 -x 1",
        "ib_write_bw --ib-dev=mlx5_2 -x 1",
        "ib_write_bw --ib-dev mlx5_2:1",
    ] {
        let (why, next) = chosen(cmdline, None);
        assert!(
            why.starts_with(", which its command line (-") && why.ends_with(" mlx5_2) chose"),
            "{cmdline}: {why}"
        );
        assert!(next.contains("one such program for each NIC"), "{next}");
    }
    for (name, value) in [
        ("NCCL_IB_HCA", "=mlx5_2:1"),
        ("NCCL_IB_HCA", "mlx5_2"),
        ("UCX_NET_DEVICES", "mlx5_2:1"),
    ] {
        let (why, next) = chosen("python3 train.py", Some((name, value)));
        assert_eq!(why, format!(", which its {name}={value} chose"));
        assert!(next.contains(&format!("without {name},")), "{next}");
    }
    // An option that names another device, several devices, or devices to avoid chose nothing.
    for (cmdline, variable) in [
        ("python3 train.py", None),
        ("ib_write_bw -d mlx5_20", None),
        ("python3 -d", None),
        ("x", Some(("NCCL_IB_HCA", "mlx5"))),
        ("x", Some(("NCCL_IB_HCA", "^mlx5_2"))),
        ("x", Some(("UCX_NET_DEVICES", "mlx5_2:1,mlx5_3:1"))),
        ("x", Some(("UCX_TLS", "mlx5_2"))),
    ] {
        assert_eq!(chosen(cmdline, variable).0, "", "{cmdline} {variable:?}");
    }
}

/// A job with `of_port` processes on each port that carries anything.
fn ranks(tx: [f64; 8], of_port: u32) -> Snapshot {
    let mut s = rails(tx, tx);
    s.processes.clear();
    for ((n, port), tx) in (0_u32..).zip(&s.ports).zip(tx).filter(|(_, tx)| *tx > 0.0) {
        for rank in n * 10..n * 10 + of_port {
            let traffic = Traffic {
                tx_bytes: rate(tx / f64::from(of_port)),
                ..Traffic::default()
            };
            let (uid, pid) = (u64::from(rank) + 100, Some(7000 + rank));
            s.processes
                .push(rows::process(uid, pid, "rank", &port.device, traffic));
        }
    }
    s
}

#[test]
fn half_of_the_rails_that_carry_nothing_are_idle() {
    let mut half = [0.0; 8];
    half[..4].fill(40e9);
    let found = after(24, &ranks(half, 2));
    assert_eq!(ids(&found), ["rails-idle"]);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(
        found[0].verdict,
        "4 of 8 ports are idle (mlx5_4, mlx5_5, mlx5_6 and 1 more): 8 processes of slurm 7341.0 share the others, which are full"
    );
    assert_eq!(found[0].victims.len(), 8);
    // One of eight, and six of them.
    let mut one = [40e9; 8];
    one[6] = 0.0;
    assert_eq!(ids(&after(24, &ranks(one, 2))), ["rails-idle"]);
    let mut two = [0.0; 8];
    two[..2].fill(40e9);
    assert_eq!(ids(&after(24, &ranks(two, 2))), ["rails-idle"]);
    // One process with QPs on all of them.
    let found = after(24, &rails(half, half));
    assert_eq!(ids(&found), ["rails-idle"]);
    assert_eq!(found[0].severity, Severity::Info);
    assert!(
        found[0]
            .verdict
            .ends_with("): rank (PID 4711, slurm 7341.0) has QPs on them, and fills the others")
    );
    // The finding ends when they carry their part.
    let mut watch = Watch::default();
    let found: Vec<_> = (0..60_u64)
        .map(|second| {
            let mut now = if second < 25 {
                ranks(half, 2)
            } else {
                ranks([20e9; 8], 1)
            };
            now.mono_ns += second * S;
            ids(&watch.look(&now.judged(None)))
        })
        .collect();
    assert_eq!((&*found[24], &*found[59]), (&["rails-idle"][..], &[][..]));
}

#[test]
fn rails_that_nobody_could_use_are_not_idle() {
    let mut half = [0.0; 8];
    half[..4].fill(40e9);
    assert_eq!(ids(&after(60, &ranks(half, 1))), [""; 0], "a job of four GPUs");
    let mut jobs = ranks(half, 2);
    jobs.processes[3].workload = Some("slurm 9.0".into());
    assert_eq!(ids(&after(60, &jobs)), [""; 0], "two jobs");
    let mut claimed = ranks(half, 2);
    claimed
        .processes
        .iter_mut()
        .for_each(|row| row.workload_claimed = true);
    assert_eq!(ids(&after(60, &claimed)), [""; 0], "whose job it is is not known");
    let mut slow = ranks(half, 2);
    slow.ports[4..]
        .iter_mut()
        .for_each(|port| port.rate_bps = Some(100_000_000_000));
    assert_eq!(ids(&after(60, &slow)), [""; 0], "NICs of another kind");
    let mut calm = half;
    calm[..4].fill(4e9);
    assert_eq!(
        ids(&after(60, &ranks(calm, 2))),
        [""; 0],
        "there is no want of ports"
    );
    let mut deaf = ranks(half, 2);
    (deaf.ports[5].rx_bytes, deaf.ports[5].rx_packets) = (None, None);
    assert_eq!(ids(&after(60, &deaf)), [""; 0], "it may receive");
    let mut receives = half;
    receives[4..].fill(20e9);
    let mut s = ranks(half, 2);
    for (port, rx) in s.ports.iter_mut().zip(receives) {
        port.rx_bytes = rate(rx);
    }
    assert_eq!(ids(&after(60, &s)), [""; 0], "the others receive");
}

#[test]
fn one_hot_port_of_eight_and_one_that_gets_all_receives() {
    let mut one = [0.0; 8];
    one[2] = 40e9;
    let found = after(12, &rails(one, one));
    assert_eq!(ids(&found), ["hot-port"]);
    assert_eq!(
        found[0].verdict,
        "All traffic of rank (PID 4711, slurm 7341.0) leaves by mlx5_2/1 (80 % of its link): mlx5_0, mlx5_1, mlx5_3 and 4 more are idle"
    );
    let mut dead = rails(one, one);
    let traffic = Traffic {
        retransmits: rate(5000.0),
        tx_wr: rate(0.0),
        ..rows::traffic(0.0, 0.0, 0)
    };
    let mut qp = rows::qp(12, "mlx5_2", 17, 3, Some(4711), "x", traffic);
    Arc::make_mut(&mut qp).device_uid = Some(dead.ports[2].device_uid);
    dead.qps.push(qp);
    assert_eq!(
        ids(&after(12, &dead)),
        [""; 0],
        "all of it is sent again for a peer that is gone"
    );
    let mut kernel = rails(one, one);
    kernel.processes[0].kernel = true;
    assert_eq!(
        ids(&after(12, &kernel)),
        [""; 0],
        "no process can be told to use more"
    );
    let mut devx = rails(one, one);
    devx.processes[0].qps = 0;
    assert_eq!(ids(&after(12, &devx)), ["hot-port"], "QPs made past the kernel");
    // Ports that carry nothing do not hide the hot port.
    let (mut tx, mut half) = ([0.0; 8], one);
    tx[..4].fill(4e9);
    half[2] = 16e9;
    assert_eq!(ids(&after(12, &rails(tx, half))), ["rx-funnel"]);
    let found = after(12, &rails([4e9; 8], one));
    assert_eq!(ids(&found), ["rx-funnel"]);
    assert!(
        found[0].verdict.starts_with("mlx5_2/1 gets "),
        "{}",
        found[0].verdict
    );
    let mut deaf = rails(one, one);
    (deaf.ports[0].rx_bytes, deaf.ports[0].rx_packets) = (None, None);
    assert_eq!(
        ids(&after(12, &deaf)),
        ["hot-port"],
        "receives are not needed for it"
    );
    let mut dead = rails(one, one);
    let mut qp = rows::qp(1, "mlx5_2", 9, 3, Some(4711), "rank", rows::traffic(0.0, 0.0, 0));
    let row = Arc::make_mut(&mut qp);
    Arc::make_mut(&mut row.traffic).retransmits = rate(80.0);
    Arc::make_mut(&mut row.history).tx = vec![Some(0.0); 5];
    row.process_uid = Some(5);
    dead.qps.push(qp);
    assert_eq!(
        ids(&after(12, &dead)),
        ["peer-gone"],
        "what is sent again is no load"
    );
    for less in [1e5, 20e9] {
        one[2] = less;
        assert_eq!(
            ids(&after(12, &rails(one, one))),
            [""; 0],
            "one NIC is enough for {less}"
        );
    }
}

/// Four processes on the first of four ports, each sending this many bytes per second.
fn four_on_one(of_each: [f64; 4]) -> Snapshot {
    let sum: f64 = of_each.iter().sum();
    let mut s = rails([sum, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [0.0; 8]);
    s.ports.truncate(4);
    s.devices.truncate(4);
    s.processes = (0..4_u32)
        .map(|n| {
            let traffic = Traffic {
                tx_bytes: rate(of_each[n as usize]),
                ..Traffic::default()
            };
            rows::process(10 + u64::from(n), Some(300 + n), "rank", "mlx5_0", traffic)
        })
        .collect();
    s.processes.iter_mut().for_each(|row| row.workload = None);
    s
}

/// Returns what is found second by second.
fn by_second(watch: &mut Watch, seconds: u64, make: impl Fn(u64) -> Snapshot) -> Vec<Vec<Finding>> {
    let looks = (0..seconds).map(|second| {
        let mut now = make(second);
        now.mono_ns += second * S;
        watch.look(&now.judged(None))
    });
    looks.collect()
}

#[test]
fn equal_processes_on_one_port_are_one_finding_whichever_is_the_busiest() {
    let mut watch = Watch::default();
    let found = by_second(&mut watch, 40, |second| {
        let mut each = [8e9; 4];
        each[usize::try_from(second % 4).unwrap()] = 9e9;
        four_on_one(each)
    });
    assert_eq!(ids(&found[9]), ["hot-port"]);
    for now in &found[9..] {
        assert_eq!(
            now[0].verdict,
            "All traffic of rank (PID 300) and 3 more leaves by mlx5_0/1 (66 % of its link), which their command line (-d mlx5_0) \
             chose: mlx5_1, mlx5_2, mlx5_3 are idle"
        );
        assert_eq!((now.len(), &now[0].victims), (1, &vec![10, 11, 12, 13]));
    }
    assert_eq!(watch.take_changes().len(), 1);
}

#[test]
fn a_job_that_sends_every_other_two_seconds_is_found_and_stays_found() {
    let mut watch = Watch::default();
    let found = by_second(&mut watch, 150, |second| {
        four_on_one(if second % 4 < 2 { [8e9; 4] } else { [0.0; 4] })
    });
    let first = found.iter().position(|now| !now.is_empty()).unwrap();
    assert!((16..24).contains(&first), "{first}");
    assert!(found[first..].iter().all(|now| ids(now) == ["hot-port"]));
    // One second in four is too little for a bottleneck.
    let mut watch = Watch::default();
    let found = by_second(&mut watch, 150, |second| {
        four_on_one(if second % 4 < 1 { [8e9; 4] } else { [0.0; 4] })
    });
    assert!(found.iter().all(Vec::is_empty));
}

#[test]
fn errors_of_the_link_have_limits() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[0], "symbol_error", 9.0);
    assert_eq!(ids(&after(1, &s)), [""; 0]);
    named(&mut s.ports[1], "symbol_error", 11.0);
    named(&mut s.ports[2], "link_downed", 1.0);
    assert_eq!(ids(&after(1, &s)), ["link-errors", "link-errors"]);
}

#[test]
fn a_link_that_goes_down_repeatedly_flaps_and_one_outage_does_not() {
    let mut watch = Watch::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.processes[0].devices.remove(3);
    s.ports[4].netdev = Some("eth4".into());
    named(&mut s.ports[4], "link_downed", 0.0);
    // The port is down for ten seconds of each minute; when rdmatop looks at it, the first of two times a
    // minute, the port is up again and the counter has risen.
    let minute = |s: &mut Snapshot, watch: &mut Watch, down: bool, rises: u64| {
        let mut found = Vec::new();
        for second in (0..60).step_by(10) {
            s.mono_ns += 10 * S;
            s.ports[3].state = Some(PortState(if down && second == 10 { 1 } else { 4 }));
            let downed = s.ports[4].counters.last_mut().unwrap();
            downed.counter.total += if second == 20 { rises } else { 0 };
            downed.counter.rate = Some(if second == 20 && rises > 0 { 0.1 } else { 0.0 });
            found = watch.look(&s.clone().judged(None));
        }
        found
    };
    assert_eq!(ids(&minute(&mut s, &mut watch, true, 1)), ["link-errors"]);
    assert_eq!(ids(&minute(&mut s, &mut watch, true, 1)), ["link-errors"]);
    let found = minute(&mut s, &mut watch, true, 2);
    assert_eq!(ids(&found), ["link-flaps", "link-flaps"]);
    assert_eq!(
        found.iter().map(|f| f.verdict.as_str()).collect::<Vec<_>>(),
        [
            "The link of mlx5_3/1 flaps: it went down 3 times within 2m50s",
            "The link of mlx5_4/1 flaps: it went down 4 times within 2m40s, for 30s or less in all; the port carries rank (PID 4711, slurm 7341.0)"
        ]
    );
    assert_eq!(
        found[1].evidence,
        [
            "by link_downed, the last time 30s ago",
            "down for at most 19 % of these 2m40s"
        ]
    );
    // The window and the time for which the finding is kept; nothing flaps twice as one.
    for _ in 0..7 {
        assert_eq!(minute(&mut s, &mut watch, false, 0).len(), 2);
    }
    for _ in 0..4 {
        minute(&mut s, &mut watch, false, 0);
    }
    assert_eq!(ids(&minute(&mut s, &mut watch, false, 0)), [""; 0]);
    let raised = watch
        .take_changes()
        .into_iter()
        .filter(|change| matches!(change, Change::Raised(finding) if finding.id == FindingId::LinkFlaps));
    assert_eq!(raised.count(), 2);
    // One outage, however long.
    let mut watch = Watch::default();
    for down in [false, true, true, true, true, false] {
        s.mono_ns += 100 * S;
        s.ports[3].state = Some(PortState(if down { 1 } else { 4 }));
        assert_eq!(ids(&watch.look(&s.clone().judged(None))), [""; 0]);
    }
}

/// What is found of a link that is seen down for five seconds of twenty, three times.
fn flapping(counted: bool, edit: impl Fn(&mut Snapshot)) -> Finding {
    let mut watch = Watch::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    if counted {
        named(&mut s.ports[3], "link_downed", 0.0);
    }
    edit(&mut s);
    let mut found = Vec::new();
    for second in 0..60 {
        let down = (5..10).contains(&(second % 20));
        s.ports[3].state = Some(PortState(if down { 1 } else { 4 }));
        if counted && second % 20 == 5 {
            s.ports[3].counters.last_mut().unwrap().counter.total += 1;
        }
        found = watch.look(&s.clone().judged(None));
        s.mono_ns += S;
    }
    let flaps = found.into_iter().find(|found| found.id == FindingId::LinkFlaps);
    flaps.unwrap()
}

#[test]
fn a_link_that_flaps_says_for_how_long_it_was_down_and_which_qps_failed() {
    let verdict = "The link of mlx5_3/1 flaps: it went down 3 times within 55s, for 12s or more in all; the port carries rank (PID \
                   4711, slurm 7341.0)";
    let witness = "by the port's state, the last time 14s ago";
    let found = flapping(true, |_| {});
    assert_eq!(found.verdict, verdict);
    assert_eq!(
        found.evidence,
        [witness, "down for at least 21 % of these 55s, at most 33 %"]
    );
    // Without the counter it may have been down between two looks.
    let found = flapping(false, |_| {});
    assert_eq!(found.verdict, verdict);
    assert_eq!(found.evidence, [witness, "down for at least 21 % of these 55s"]);
    let with_qp = |state: u8, since: u64| {
        flapping(true, |s| {
            for (uid, state) in [(41, 3), (42, state)] {
                let mut qp = rows::qp(uid, "mlx5_3", 9, state, Some(4711), "rank", Traffic::default());
                let row = Arc::make_mut(&mut qp);
                (row.device_uid, row.process_uid) = (Some(4), Some(5));
                Arc::make_mut(&mut row.timeline).last_mut().unwrap().mono_ns = s.mono_ns + since * S;
                s.qps.push(qp);
            }
        })
    };
    let failed = with_qp(6, 7);
    assert!(
        failed
            .verdict
            .contains(", for 12s or more in all, and 1 QP went to ERR; the port"),
        "{}",
        failed.verdict
    );
    assert_eq!(
        failed.evidence[2],
        "1 QP of 1 process went to ERR since the link first went down"
    );
    let well = with_qp(3, 7);
    assert_eq!(
        (well.verdict.as_str(), &*well.evidence[2]),
        (verdict, "none of the 2 QPs that the kernel lists there is in ERR")
    );
    let earlier = with_qp(6, 0);
    assert_eq!(
        (earlier.verdict.as_str(), earlier.evidence.len()),
        (verdict, 2),
        "what failed before has another reason"
    );
}

/// What is found at the end of a link that is looked at each second; `look` gives its state and counter.
fn flaps_of(seconds: u64, look: impl Fn(u64) -> (u8, Counter)) -> Finding {
    let mut watch = Watch::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[3], "link_downed", 0.0);
    let mut found = Vec::new();
    for second in 0..seconds {
        let (state, counter) = look(second);
        s.ports[3].state = Some(PortState(state));
        s.ports[3].counters.last_mut().unwrap().counter = counter;
        found = watch.look(&s.clone().judged(None));
        s.mono_ns += S;
    }
    found
        .into_iter()
        .find(|found| found.id == FindingId::LinkFlaps)
        .unwrap()
}

#[test]
fn no_time_down_exceeds_the_window_and_no_bound_rests_on_a_full_counter() {
    let counter = |total| Counter::whole(total, Some(0.0), Source::Netlink);
    // It comes up between the snapshots, which all see it down, each ten seconds, for half an hour.
    let bounces = flaps_of(1800, |second| (1, counter(second / 10)));
    let time = bounces.verdict.split_once(", for ").unwrap().1;
    assert!(time.starts_with("9m"), "{}", bounces.verdict);
    let share = &bounces.evidence[1];
    assert!(
        !share.contains("100 %") || share.contains("at most 100 %"),
        "{share}"
    );
    // The counter is at its end while the link is seen to go down.
    let full = flaps_of(60, |second| {
        let partial = true;
        let state = if second % 20 == 10 { 1 } else { 4 };
        (
            state,
            Counter {
                partial,
                ..counter(255)
            },
        )
    });
    assert!(!full.verdict.contains("or less"), "{}", full.verdict);
    // One look finds that it went down three times.
    let at_once = flaps_of(12, |second| (4, counter(if second == 11 { 3 } else { 0 })));
    assert!(
        at_once.verdict.contains("3 times within 1s, for 1s or less"),
        "{}",
        at_once.verdict
    );
}

#[test]
fn a_link_that_is_found_to_flap_has_no_outages_beside_it() {
    let mut watch = Watch::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[4], "link_downed", 1.0);
    let found: Vec<_> = (0..4)
        .map(|_| {
            s.mono_ns += S;
            s.ports[4].counters.last_mut().unwrap().counter.total += 1;
            ids(&watch.look(&s.clone().judged(None)))
        })
        .collect();
    assert_eq!(
        found,
        [["link-errors"], ["link-errors"], ["link-errors"], ["link-flaps"]]
    );
    let changes = watch.take_changes();
    assert!(
        matches!(
            &changes[..],
            [Change::Raised(_), Change::Cleared(_), Change::Raised(_)]
                | [Change::Raised(_), Change::Raised(_), Change::Cleared(_)]
        ),
        "{changes:?}"
    );
}

#[test]
fn only_an_infiniband_port_is_congested_by_want_of_credits() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    // 400 Gb/s on four lanes: 50 GB/s, 12.5e9 symbols per lane.
    named(&mut s.ports[2], "port_xmit_wait", 0.5e9);
    s.ports[2].link_layer = Some("InfiniBand".into());
    assert_eq!(ids(&after(12, &s)), [""; 0], "4 % of the time");
    s.ports[2].counters.last_mut().unwrap().counter.rate = Some(1.5e9);
    assert_eq!(ids(&after(6, &s)), [""; 0], "it may pass");
    let found = after(9, &s);
    assert_eq!(ids(&found), ["ib-congestion"]);
    assert_eq!(
        found[0].verdict,
        "mlx5_2/1 has data and waits at least 12 % of the time to send it: the fabric or a receiver is congested; the port carries \
         rank (PID 4711, slurm 7341.0)"
    );
    // Without the lanes the value of a tick is unknown; a counter at its maximum has no rate.
    s.ports[2].lanes = None;
    assert_eq!(ids(&after(12, &s)), [""; 0]);
    s.ports[2].lanes = Some(4);
    s.ports[2].link_layer = Some("Ethernet".into());
    assert_eq!(ids(&after(12, &s)), [""; 0]);
}

#[test]
fn a_path_mtu_below_what_the_port_has_room_for_is_small() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[1].netdev_mtu = Some(9000);
    let connect = |s: &mut Snapshot, uid: u64, mtu: u16| {
        let mut qp = rows::qp(uid, "mlx5_1", 9, 3, Some(4711), "rank", Traffic::default());
        let row = Arc::make_mut(&mut qp);
        (row.device_uid, row.port, row.process_uid) = (Some(2), Some(1), Some(5));
        (row.path_mtu, row.sgid_index) = (Some(mtu), Some(u8::try_from(uid).unwrap()));
        s.qps.push(qp);
    };
    connect(&mut s, 1, 4096);
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    connect(&mut s, 2, 1024);
    connect(&mut s, 3, 2048);
    let found = after(6, &s);
    assert_eq!(ids(&found), ["small-mtu"]);
    assert_eq!(
        found[0].verdict,
        "2 QPs of rank (PID 4711, slurm 7341.0) on mlx5_1/1 have a path MTU of 1024, the port has room for 4096"
    );
    // A port without room for more is named itself; one whose rate or MTU is unknown is not judged.
    s.ports[1].netdev_mtu = Some(1500);
    s.qps.truncate(2);
    let found = after(6, &s);
    assert_eq!(found.iter().map(|f| f.about.process).collect::<Vec<_>>(), [None]);
    s.ports[1].netdev_mtu = None;
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    (s.ports[1].netdev_mtu, s.ports[1].rate_bps) = (Some(9000), None);
    assert_eq!(ids(&after(6, &s)), [""; 0], "SoftRoCE");
}

#[test]
fn loss_is_a_share_of_what_is_sent_and_not_what_rnr_explains() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.health.ebpf = crate::input::EbpfState::Disabled;
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    s.ports[1].retries = rate(sent * 0.0005);
    assert_eq!(ids(&after(10, &s)), [""; 0]);
    s.ports[1].retries = rate(sent * 0.002);
    let found = after(10, &s);
    // A round repeats any number of packets, so no share is known.
    let verdict = &found[0].verdict;
    assert!(
        verdict.starts_with("Packets from mlx5_1/1 are lost or out of order (")
            && verdict.contains(" retransmissions/s")
            && verdict.ends_with("/s); the port carries rank (PID 4711, slurm 7341.0)"),
        "{verdict}"
    );
    s.ports[1].retransmits = rate(sent * 0.002);
    assert_eq!(
        after(10, &s)[0].verdict,
        "Packets from mlx5_1/1 are lost or out of order (0.20 % are sent again); the port carries rank (PID 4711, slurm 7341.0)"
    );
    // Each round repeats everything in flight: the repeated packets are not all lost.
    (s.ports[1].retransmits, s.ports[1].retries) = (rate(sent * 0.41), rate(sent * 0.0059));
    assert_eq!(
        after(10, &s)[0].verdict,
        "About 1.00 % of the packets from mlx5_1/1 are lost or out of order, and 41 % of what it sends is sent again for them; the \
         port carries rank (PID 4711, slurm 7341.0)"
    );
    s.ports[1].rnr_naks = rate(1.0);
    assert_eq!(ids(&after(10, &s)), ["receiver-not-ready"]);
}

#[test]
fn while_programs_are_attached_no_packet_is_called_lost() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    let sent = s.ports[1].tx_packets.unwrap().rate.unwrap();
    s.ports[1].retransmits = rate(sent);
    s.health.ebpf = crate::input::EbpfState::Starting;
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "a QP whose peer is gone may explain it"
    );
    s.health.ebpf = crate::input::EbpfState::Disabled;
    assert_eq!(ids(&after(20, &s)), ["loss"]);
}

#[test]
fn where_qps_are_counted_loss_has_a_qp_that_sends_again_and_finishes_work() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), None));
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "whether it finishes anything is not known yet"
    );
    edit(&mut s, 0, |t| t.tx_wr = rate(5.0));
    assert_eq!(ids(&after(20, &s)), ["loss"]);
    edit(&mut s, 0, |t| t.retransmits = None);
    assert_eq!(
        ids(&after(20, &s)),
        [""; 0],
        "a QP that is not counted yet sends again"
    );
    s.devices[0].datapath = None;
    assert_eq!(ids(&after(20, &s)), ["loss"], "no QP is counted");
}

#[test]
fn what_a_receiver_of_this_host_got_twice_was_late_and_is_not_lost() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(5.0)));
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 75.0);
    assert_eq!(ids(&after(20, &s)), [""; 0], "5/s are no loss");
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 60.0);
    let found = after(20, &s);
    assert_eq!(ids(&found), ["loss"], "20/s did not arrive");
    assert!(
        found[0].verdict.contains("are lost or out of order ("),
        "some arrived twice"
    );
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 1.0);
    assert!(after(20, &s)[0].verdict.contains("are lost ("), "none came twice");
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 60.0);
    let found = after(20, &s);
    assert!(
        found[0].evidence[0].starts_with("20/s "),
        "{:?}",
        found[0].evidence
    );
    // The peer is on another host, so what it receives is unknown.
    let elsewhere = Arc::make_mut(&mut s.qps[0]);
    elsewhere.remote_qpn = Some(99);
    s.ports[0].counters.clear();
    named(&mut s.ports[0], "duplicate_request", 80.0);
    assert_eq!(ids(&after(20, &s)), ["loss"]);
}

#[test]
fn loss_names_the_peers_to_which_packets_do_not_come() {
    let mut s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(5.0)));
    let said = |s: &Snapshot| {
        let found = after(20, s).remove(0);
        let (to, rest) = found.verdict.split_once(" are lost").unwrap();
        let (_, by) = rest.split_once("(80 retransmissions/s)").unwrap();
        let to = to.strip_prefix("Packets from rxe0/1").unwrap();
        (format!("{to}{by}"), found.evidence.last().unwrap().clone())
    };
    let carries = "; the port carries ib_send_bw (PID 254) and 1 more";
    let sends = "; ib_send_bw (PID 254) sends them";
    let sent = "80/s rounds of retransmission, 90/s packets sent";
    assert_eq!(
        said(&s),
        (format!(" to ~server (PID 251){sends}"), sent.to_owned())
    );
    // A second QP sends more of it again, to another host.
    let mut far = s.qps[0].clone();
    let row = Arc::make_mut(&mut far);
    (row.uid, row.qpn, row.remote_qpn) = (20, 30, Some(99));
    let mut ipv4 = [0; 16];
    ipv4[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 9]);
    row.remote_gid = Some(Gid(ipv4));
    Arc::make_mut(&mut row.traffic).retransmits = Some(Counter::whole(5000, Some(70.0), Source::Ebpf));
    s.qps.push(far);
    assert_eq!(
        said(&s),
        (
            format!(" to 10.0.0.9 or 1 more{sends}"),
            "the QPs that send again lead to 10.0.0.9, ~server (PID 251)".to_owned()
        )
    );
    // Whose packets are lost is not known: all processes and all peers of the port are named.
    for qp in s.qps.iter_mut() {
        Arc::make_mut(&mut Arc::make_mut(qp).traffic).retransmits = None;
    }
    s.devices[0].datapath = None;
    s.qps.remove(1);
    let row = Arc::make_mut(&mut s.qps[0]);
    row.remote_gid = Some(Gid(ipv4));
    assert_eq!(said(&s), (format!(" to 10.0.0.9{carries}"), sent.to_owned()));
    let row = Arc::make_mut(&mut s.qps[0]);
    row.remote_gid = None;
    assert_eq!(said(&s).0, format!(" to 10.0.0.9 or others{carries}"));
    s.processes.clear();
    assert_eq!(said(&s).0, " to 10.0.0.9 or others");
    // Nothing is known of them.
    s = pair();
    (s.ports[0].retries, s.ports[0].tx_packets, s.devices[0].datapath) = (rate(80.0), rate(90.0), None);
    s.qps.clear();
    assert_eq!(said(&s), (carries.to_owned(), sent.to_owned()));
}

#[test]
fn ignored_congestion_a_small_mtu_and_refused_commands() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[0], "rp_cnp_ignored", 5.0);
    s.ports[1].counters.clear();
    named(&mut s.ports[1], "np_ecn_marked_roce_packets", 5.0);
    named(&mut s.ports[1], "np_cnp_sent", 0.0);
    s.ports[2].netdev_mtu = Some(1500);
    named(&mut s.ports[3], "cmds_err", 0.5);
    let mut found = ids(&after(10, &s));
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "congestion-ignored",
            "congestion-ignored",
            "device-command-errors",
            "small-mtu"
        ]
    );
}
