//! Rules about the ports of one job side by side: speed, load, idle ones.

use super::*;
use crate::facts::ProcessRow;

#[test]
fn a_port_that_runs_slower_than_most_is_named() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[5].rate_bps = Some(100_000_000_000);
    let found = after(6, &s);
    assert_eq!(
        found[0].verdict,
        "mlx5_5/1 runs at 100 Gb/s (32 % full), the other ports at 400: it slows rank (PID 4711, slurm 7341.0), which uses them together"
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
fn a_port_on_which_a_process_has_idle_queue_pairs_slows_nobody() {
    // UCX has a QP on each port, those for storage among them.
    let mut rates = [40e9; 8];
    rates[6..].fill(0.0);
    let mut s = rails(rates, rates);
    for port in &mut s.ports[6..] {
        port.rate_bps = Some(200_000_000_000);
    }
    assert_eq!(ids(&after(6, &s)), [""; 0]);
    s.ports[6].tx_bytes = rate(20e9);
    assert_eq!(ids(&after(6, &s)), ["port-slow"]);
    s.ports[7].tx_bytes = None;
    assert_eq!(ids(&after(6, &s)), ["port-slow"; 2], "it may carry its part");
}

#[test]
fn one_gpu_needs_no_second_nic() {
    let on = |row: &mut ProcessRow, gpus: &[u8]| {
        row.gpus = Some(gpus.iter().map(|gpu| far::gpu(&format!("{gpu}0:0"), 0)).collect());
        (row.environ, row.cmdline) = (None, None);
    };
    let found = |s: &Snapshot| ids(&after(12, s));
    for busy in 1..=4_usize {
        // The busiest of several rails leads by a little.
        let mut rates = [0.0; 8];
        rates[..busy].fill(39e9);
        rates[0] = 40e9;
        let mut s = ranks(rates, 1);
        for (row, gpu) in s.facts.processes.iter_mut().zip(1..) {
            on(row, &[gpu]);
        }
        assert_eq!(found(&s), [""; 0], "{busy} jobs of one GPU, or one of {busy}");
    }
    // The other ranks of its job wait for what one sends for all.
    let mut one = [0.0; 8];
    one[2] = 40e9;
    let mut s = ranks(one, 1);
    on(&mut s.processes[0], &[2]);
    let mut other = rows::process(900, Some(9000), "rank", "mlx5_2", Traffic::default());
    on(&mut other, &[3]);
    s.processes.push(other);
    assert_eq!(found(&s), ["hot-port"]);
    s.processes[1].workload = Some("slurm 9.0".into());
    assert_eq!(found(&s), [""; 0], "another job's");
    s.processes.pop();
    on(&mut s.processes[0], &[2, 3]);
    assert_eq!(found(&s), ["hot-port"], "one process of two GPUs");
    s.processes[0].gpus = None;
    assert_eq!(after(12, &s)[0].severity, Severity::Info, "it may be one GPU");
}

#[test]
fn what_sends_by_two_ports_does_not_leave_by_one() {
    let mut two = [0.0; 8];
    (two[2], two[3]) = (45e9, 15e9);
    let mut s = rails(two, two);
    s.processes[0].devices = vec!["mlx5_2".into()];
    assert_eq!(ids(&after(12, &s)), ["hot-port"]);
    s.processes[0].devices.push("mlx5_3".into());
    assert_eq!(ids(&after(12, &s)), [""; 0]);
}

#[test]
fn an_efa_port_of_an_unknown_rate_is_not_hot_for_little() {
    let hot = |bytes: f64| {
        let mut one = [0.0; 8];
        one[2] = bytes;
        let mut s = rails(one, one);
        s.devices
            .iter_mut()
            .for_each(|device| device.driver = Some("efa".into()));
        s.ports.iter_mut().for_each(|port| port.rate_bps = None);
        ids(&after(12, &s))
    };
    assert_eq!(hot(2e6), [""; 0]);
    assert_eq!(hot(8e9), ["hot-port"]);
}

#[test]
fn ports_of_another_link_layer_are_of_another_kind() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    for port in &mut s.ports[5..] {
        port.rate_bps = Some(100_000_000_000);
    }
    assert_eq!(ids(&after(6, &s)), ["port-slow"; 3]);
    for port in &mut s.ports[5..] {
        port.link_layer = Some("InfiniBand".into());
    }
    assert_eq!(ids(&after(6, &s)), [""; 0]);
}

#[test]
fn a_hot_port_says_what_chose_it() {
    let mut one = [0.0; 8];
    one[2] = 40e9;
    let chosen = |cmdline: &str, variable: Option<(&str, &str)>| {
        let mut s = rails(one, one);
        s.processes[0].devices = vec!["mlx5_2".into()];
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
        let idle = [
            ": mlx5_0, mlx5_1, mlx5_3, mlx5_4 and 3 more are idle",
            ": 7 are idle",
        ];
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

#[test]
fn a_hot_port_is_no_warning_where_nothing_says_that_a_job_waits_for_it() {
    let mut one = [0.0; 8];
    one[2] = 40e9;
    let mut job = rails(one, one);
    job.processes[0].devices = vec!["mlx5_2".into()];
    let severity = |s: &Snapshot| after(12, s).first().map(|found| found.severity);
    assert_eq!(severity(&job), Some(Severity::Warning));
    let mut storage = job.clone();
    storage.processes[0].libraries = Some(vec!["libibverbs.so.1".to_owned()].into());
    assert_eq!(severity(&storage), Some(Severity::Warning), "Slurm runs it");
    storage.processes[0].workload_claimed = true;
    assert_eq!(severity(&storage), Some(Severity::Info), "it says so itself");
    storage.processes[0].workload = None;
    let at = |cgroup: &str| {
        let mut s = storage.clone();
        s.processes[0].cgroup = Some(cgroup.into());
        severity(&s)
    };
    assert_eq!(at("/system.slice/gpfs.service"), None, "root has set it up");
    assert_eq!(
        at("/user.slice/user-7.slice/user@7.service/x.service"),
        Some(Severity::Info)
    );
    assert_eq!(
        at("/user.slice/user-7.slice/session-3.scope/x.service"),
        Some(Severity::Info)
    );
    let mut unknown = storage.clone();
    unknown.processes[0].libraries = None;
    assert_eq!(severity(&unknown), Some(Severity::Warning), "it may be a rank");
    let found = after(12, &storage);
    assert_eq!(
        (ids(&found), found[0].severity),
        (vec!["hot-port"], Severity::Info)
    );
    assert!(
        found[0]
            .next
            .starts_with("Where one NIC is meant, as for storage, nothing is to be done."),
        "{}",
        found[0].next
    );
    let set = |name: &str| Some(vec![(name.to_owned(), "mlx5_2".to_owned())].into());
    storage.processes[0].environ = set("UCX_NET_DEVICES");
    assert_eq!(severity(&storage), Some(Severity::Info), "DAOS sets it");
    storage.processes[0].environ = set("NCCL_IB_HCA");
    assert_eq!(severity(&storage), Some(Severity::Warning), "it is of NCCL");
    let mut on_others = job.clone();
    on_others.processes[0].devices.push("mlx5_5".into());
    assert_eq!(severity(&on_others), Some(Severity::Info));
    on_others.processes[0].environ = set("NCCL_IB_HCA");
    assert_eq!(severity(&on_others), Some(Severity::Warning));
    // Ports of other rates are no rails of it.
    for port in job.ports.iter_mut().filter(|port| &*port.device != "mlx5_2") {
        port.rate_bps = Some(200_000_000_000);
    }
    assert_eq!(ids(&after(12, &job)), [""; 0]);
    // And one of another rate that carries more does not hide a hot one.
    let mut two = one;
    two[7] = 90e9;
    let mut s = rails(two, [0.0; 8]);
    s.processes[0].devices = vec!["mlx5_2".into()];
    s.ports[7].rate_bps = Some(800_000_000_000);
    assert_eq!(ids(&after(12, &s)), ["hot-port"]);
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
        "4 of 8 ports are idle (mlx5_4 to mlx5_7): 8 processes of slurm 7341.0 share the others, which are full"
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
    let mut watch = FindingTracker::default();
    let found: Vec<_> = (0..60_u64)
        .map(|second| {
            let mut now = if second < 25 {
                ranks(half, 2)
            } else {
                ranks([20e9; 8], 1)
            };
            now.mono_ns += second * S;
            ids(&watch.look_at(&now.judged(None)))
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
        "All traffic of rank (PID 4711, slurm 7341.0) leaves by mlx5_2/1 (80 % of its link): mlx5_0, mlx5_1, mlx5_3, mlx5_4 and 3 more are idle"
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
fn by_second(watch: &mut FindingTracker, seconds: u64, make: impl Fn(u64) -> Snapshot) -> Vec<Vec<Finding>> {
    let looks = (0..seconds).map(|second| {
        let mut now = make(second);
        now.mono_ns += second * S;
        watch.look_at(&now.judged(None))
    });
    looks.collect()
}

#[test]
fn equal_processes_on_one_port_are_one_finding_whichever_is_the_busiest() {
    let mut watch = FindingTracker::default();
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
             chose: mlx5_1 to mlx5_3 are idle"
        );
        assert_eq!((now.len(), &now[0].victims), (1, &vec![10, 11, 12, 13]));
    }
    assert_eq!(watch.take_changes().len(), 1);
}

#[test]
fn a_job_that_sends_every_other_two_seconds_is_found_and_stays_found() {
    let mut watch = FindingTracker::default();
    let found = by_second(&mut watch, 150, |second| {
        four_on_one(if second % 4 < 2 { [8e9; 4] } else { [0.0; 4] })
    });
    let first = found.iter().position(|now| !now.is_empty()).unwrap();
    assert!((16..24).contains(&first), "{first}");
    assert!(found[first..].iter().all(|now| ids(now) == ["hot-port"]));
    // One second in four is too little for a bottleneck.
    let mut watch = FindingTracker::default();
    let found = by_second(&mut watch, 150, |second| {
        four_on_one(if second % 4 < 1 { [8e9; 4] } else { [0.0; 4] })
    });
    assert!(found.iter().all(Vec::is_empty));
}
