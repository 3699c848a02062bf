//! Failing verbs, and memory that is registered over and over.

use super::*;

#[test]
fn a_registration_without_memory_names_the_limit_that_can_cause_it() {
    let mut s = pair();
    let mut row = rows::verb(251, "server", "reg_mr", 3.0, &[(12, 31)], false);
    (row.process_uid, row.errors) = (Some(2), rate(31.0));
    s.verbs.push(row);
    for (limit, exempt, pinned, says, next) in [
        (
            Some(65_536),
            Some(false),
            Some(61_440),
            "its locked-memory limit is 64 KiB (60 KiB in use)",
            "sudo prlimit --memlock=unlimited --pid 251 ",
        ),
        (
            Some(8 << 20),
            None,
            None,
            "its locked-memory limit is 8 MiB, unless CAP_IPC_LOCK counts for it, or memory or the NIC's \
             resources are exhausted",
            "free -h ",
        ),
        (
            Some(64 << 30),
            Some(false),
            Some(40 << 30),
            "its locked-memory limit is 64 GiB (40 GiB in use)",
            "sudo prlimit --memlock=unlimited --pid 251 ",
        ),
        (
            Some(64 << 30),
            Some(false),
            Some(1 << 30),
            "its locked-memory limit is 64 GiB (1 GiB in use), or memory or the NIC's resources are exhausted",
            "free -h ",
        ),
        (
            None,
            Some(false),
            None,
            "its locked memory has no limit",
            "free -h ",
        ),
        (
            Some(65_536),
            Some(true),
            None,
            "its locked memory has no limit",
            "free -h ",
        ),
    ] {
        let locked = LockedMemory {
            pid: 251,
            limit,
            exempt,
            pinned,
        };
        let mut known = s.clone();
        let mut processes = known.processes.clone();
        let server = processes.iter_mut().find(|row| row.pid == Some(251)).unwrap();
        server.locked = Some(Arc::new(locked));
        known.processes = processes;
        let found = FindingTracker::default().look_at(&known.judged(None));
        let verdict = &found[0].verdict;
        assert!(
            verdict.starts_with("reg_mr of server (PID 251) fails with ENOMEM: its locked"),
            "{verdict}"
        );
        assert!(
            verdict.contains(says) && found[0].next.starts_with(next),
            "{:?}",
            found[0]
        );
        let ends = verdict.ends_with(says) || limit.is_none() || exempt == Some(true);
        assert!(ends, "{verdict}");
    }
}

#[test]
fn the_remedy_for_a_process_believes_no_job_that_a_user_may_have_named() {
    let mut s = pair();
    let mut row = rows::verb(251, "server", "reg_mr", 3.0, &[(12, 31)], false);
    (row.process_uid, row.errors) = (Some(2), rate(31.0));
    s.verbs.push(row);
    for (claimed, says) in [(false, "slurm.conf"), (true, "systemctl edit x.service")] {
        let mut known = s.clone();
        let mut processes = known.processes.clone();
        let server = processes.iter_mut().find(|row| row.pid == Some(251)).unwrap();
        server.cgroup = Some("/system.slice/x.service/slurmstepd.scope/job_7/step_0".into());
        server.workload_claimed = claimed;
        known.processes = processes;
        let found = FindingTracker::default().look_at(&known.judged(None));
        assert!(found[0].next.contains(says), "{:?}", found[0]);
    }
}

#[test]
fn memory_that_cannot_be_locked_is_said_at_once_and_for_a_minute() {
    let mut s = pair();
    let mut row = rows::verb(251, "server", "reg_mr", 3.0, &[(12, 31)], false);
    (row.process_uid, row.errors) = (Some(2), rate(31.0));
    s.verbs.push(row);
    let mut watch = FindingTracker::default();
    let found = watch.look_at(&s.clone().judged(None));
    assert_eq!(
        found[0].verdict,
        "reg_mr of server (PID 251) fails with ENOMEM: the locked-memory limit or memory is exhausted"
    );
    // What frees a registration, or asks about it, pins no memory.
    for verb in ["dereg_mr", "query_mr", "advise_mr"] {
        let mut other = s.clone();
        other.verbs[0].verb = verb.into();
        let found = after(1, &other);
        assert!(
            found.iter().all(|found| !found.verdict.contains("locked-memory")),
            "{found:?}"
        );
    }
    s.verbs[0].errors = rate(0.0);
    for second in 1..=60 {
        s.mono_ns += S;
        let found = watch.look_at(&s.clone().judged(None));
        assert_eq!(found.len(), usize::from(second < 60), "{second}");
    }
    let [Change::Raised(raised), Change::Cleared(cleared)] = &watch.take_changes()[..] else {
        panic!("it is raised once and cleared once")
    };
    assert_eq!(raised, cleared);
    // An errno whose count does not grow is old, whatever else fails now.
    s.verbs[0].errnos = vec![(12, 31), (22, 5)];
    s.verbs[0].errors = rate(5.0);
    assert_eq!(ids(&watch.look_at(&s.clone().judged(None))), [""; 0]);
    s.verbs[0].errnos[0].1 += 2;
    let found = watch.look_at(&s.clone().judged(None));
    assert_eq!(ids(&found), ["verb-fails"]);
    assert!(
        found[0].evidence[0].ends_with("failed so, 2 of them in the last interval that had any"),
        "{:?}",
        found[0].evidence
    );
    s.verbs[0].errnos = vec![(22, 5)];
    s.verbs[0].errors = rate(5.0);
    assert_eq!(ids(&after(5, &s)), [""; 0], "EINVAL is how libraries try");
    (s.verbs[0].verb, s.verbs[0].errnos) = ("cm_resolve_ip".into(), vec![(19, 5)]);
    assert_eq!(
        ids(&after(5, &s)),
        [""; 0],
        "so is resolving an address on each device"
    );
}

#[test]
fn failures_are_not_new_because_the_name_of_their_verb_is_known_now() {
    let mut s = pair();
    let mut row = rows::verb(251, "server", "0x1001.0x1000", 3.0, &[(5, 31)], false);
    (row.process_uid, row.errors) = (Some(2), rate(1.0));
    s.verbs.push(row);
    let mut watch = FindingTracker::default();
    watch.look_at(&s.clone().judged(None));
    s.mono_ns += S;
    s.verbs[0].verb = "devx_obj_create".into();
    s.verbs[0].errnos[0].1 += 2;
    let found = watch.look_at(&s.judged(None));
    let named = found
        .iter()
        .find(|found| found.verdict.starts_with("devx_obj_create"));
    let evidence = &named.unwrap().evidence[0];
    assert!(
        evidence.ends_with("failed so, 2 of them in the last interval that had any"),
        "{evidence}"
    );
}

#[test]
fn registrations_for_each_transfer_are_churn() {
    let mut s = pair();
    s.verbs
        .push(rows::verb(254, "ib_send_bw", "reg_mr", 99.0, &[], false));
    assert_eq!(ids(&after(20, &s)), [""; 0]);
    s.verbs[0].calls = Counter::whole(9, Some(101.0), Source::Ebpf);
    assert_eq!(ids(&after(8, &s)), [""; 0]);
    assert_eq!(ids(&after(10, &s)), ["mr-churn"]);
}

#[test]
fn registrations_that_jitter_around_the_limit_are_churn() {
    let mut watch = FindingTracker::default();
    let found: Vec<_> = (0..60)
        .map(|second: u64| {
            let mut s = pair();
            s.mono_ns += second * S;
            // 60 to 192 per second, 126 on average, in irregular order.
            let per_s = 60.0 + (second * 7 % 12) as f64 * 12.0;
            s.verbs
                .push(rows::verb(254, "ib_send_bw", "reg_mr", per_s, &[], false));
            ids(&watch.look_at(&s.judged(None)))
        })
        .collect();
    let first = found.iter().position(|now| !now.is_empty()).unwrap();
    assert!(first < 20, "{first}");
    assert!(found[first..].iter().all(|now| *now == ["mr-churn"]));
}

/// Returns the findings, second by second, about a process with this many calls of reg_mr and dereg_mr per
/// second, this much time in both, and these bytes.
fn registering(calls: u64, freed: u64, ms: u64, bytes: u64) -> Vec<String> {
    registering_beside(&pair(), (calls, freed), ms, bytes)
}

/// The same, with other rows of processes.
fn registering_beside(rows: &Snapshot, (calls, freed): (u64, u64), ms: u64, bytes: u64) -> Vec<String> {
    let mut watch = FindingTracker::default();
    let mut s = rows.clone();
    s.verbs = ["reg_mr", "dereg_mr"]
        .map(|verb| rows::verb(254, "ib_send_bw", verb, 0.0, &[], false))
        .into();
    for second in 1..60_u64 {
        s.mono_ns += S;
        // With one call in two seconds, a call ends in one of the two.
        let ends = |calls: u64| calls * second / 2;
        for (row, calls) in s.verbs.iter_mut().zip([calls, freed]) {
            row.process_uid = Some(1);
            row.calls = Counter::whole(ends(calls), Some(calls as f64 / 2.0), Source::Ebpf);
            let latency = row.latency.as_mut().unwrap();
            latency.count = ends(calls);
            latency.mean_ns = Some(ms * 1_000_000);
        }
        s.processes[0].mr_registered = ends(calls) * bytes;
        let found = watch.look_at(&s.clone().judged(None));
        if second == 59 {
            return found.into_iter().map(|found| found.verdict).collect();
        }
    }
    Vec::new()
}

#[test]
fn few_registrations_that_take_long_or_of_much_memory_are_churn_too() {
    let who = "ib_send_bw (PID 254)";
    assert_eq!(
        registering(1, 1, 800, 512 << 20),
        [format!(
            "{who} spends 80 % of a thread's time on registering memory (1.6 s a call) instead of reusing its regions"
        )]
    );
    assert_eq!(
        registering(8, 8, 2, 1 << 30),
        [format!(
            "{who} registers 4.3 GB/s of memory, as much as it moves or more, instead of reusing its regions"
        )]
    );
    let quiet = [""; 0];
    // Of most NICs it is not known what a process moves, or only the most or the least of it.
    for traffic in [
        None,
        Some(Counter::whole(9, Some(0.0), Source::Hw).plus_unknown()),
    ] {
        let mut unknown = pair();
        let row = &mut unknown.processes[0].traffic;
        (row.tx_bytes, row.rx_bytes) = (traffic, traffic);
        assert_eq!(
            registering_beside(&unknown, (8, 8), 2, 1 << 30),
            quiet,
            "{traffic:?}"
        );
    }
    assert_eq!(
        registering(1, 0, 800, 512 << 20),
        quiet,
        "it takes its buffers and keeps them"
    );
    assert_eq!(registering(8, 8, 2, 1 << 20), quiet, "small and quick");
}

#[test]
fn connections_that_come_and_go_are_churn_and_a_start_is_none() {
    let found = |made: f64, ended: f64| {
        let mut s = pair();
        for (verb, rate) in [("create_qp", made), ("destroy_qp", ended)] {
            s.verbs
                .push(rows::verb(254, "ib_send_bw", verb, rate, &[], false));
        }
        after(12, &s)
    };
    let churn = found(40.0, 39.0);
    assert_eq!(ids(&churn), ["qp-churn"]);
    assert_eq!(
        churn[0].verdict,
        "ib_send_bw (PID 254) makes 40 QPs a second and destroys 39 instead of keeping its connections"
    );
    assert_eq!(ids(&found(400.0, 0.0)), [""; 0], "a job starts");
    assert_eq!(ids(&found(0.0, 400.0)), [""; 0], "a job ends");
    assert_eq!(ids(&found(5.0, 5.0)), [""; 0], "now and then");
}

/// What is found, and the last line of its evidence, when a process makes so many calls a second, each of
/// which takes so many microseconds where that is measured.
fn calling(calls: &[(&str, u64, Option<u64>)], partial: bool) -> (String, String) {
    let mut watch = FindingTracker::default();
    let mut s = pair();
    let mut found = Vec::new();
    for second in 1..=30_u64 {
        s.mono_ns += S;
        let rows = calls.iter().map(|(verb, per_s, us)| {
            let mut row = rows::verb(254, "ib_send_bw", verb, 0.0, &[], false);
            let total = per_s * second;
            row.process_uid = Some(1);
            row.calls = Counter::whole(total, Some(*per_s as f64), Source::Ebpf);
            let times = row.latency.take();
            row.latency = times.zip(*us).map(|(mut times, us)| {
                (times.count, times.mean_ns) = (total, Some(us * 1000));
                times
            });
            row
        });
        s.verbs = rows.collect();
        if let Some(last) = s.verbs.last_mut() {
            last.calls.partial = partial;
        }
        found = watch.look_at(&s.clone().judged(None));
    }
    let found = found.remove(0);
    (found.verdict, found.evidence.last().unwrap().clone())
}

#[test]
fn churn_says_how_much_time_goes_into_its_calls_where_that_is_measured() {
    let registers = |us, partial| calling(&[("reg_mr", 180, us), ("dereg_mr", 180, Some(42))], partial);
    let who = "ib_send_bw (PID 254) registers memory 180 times a second";
    let instead = "instead of reusing its regions";
    let (verdict, evidence) = registers(Some(42), false);
    assert_eq!(
        verdict,
        format!("{who} {instead}"),
        "a small share is no argument"
    );
    assert_eq!(
        evidence,
        "lately 180 calls a second, 1.51 % of a thread's time in reg_mr and dereg_mr"
    );
    let (_, evidence) = registers(Some(42), true);
    assert!(
        evidence.contains(", at least 1.51 % of"),
        "some calls are missing: {evidence}"
    );
    let (verdict, _) = registers(Some(1600), false);
    assert_eq!(verdict, format!("{who} (30 % of a thread's time) {instead}"));
    let (verdict, evidence) = registers(None, false);
    assert_eq!(
        verdict,
        format!("{who} {instead}"),
        "of reg_mr it is not measured"
    );
    assert_eq!(evidence, "lately 180 calls a second");
    let connects = |us| {
        let calls = [
            ("create_qp", 40, us),
            ("modify_qp", 120, Some(500)),
            ("destroy_qp", 40, Some(1000)),
        ];
        calling(&calls, false)
    };
    let (verdict, evidence) = connects(Some(2000));
    assert_eq!(
        verdict,
        "ib_send_bw (PID 254) makes 40 QPs a second and destroys 40 (18 % of a thread's time) instead of keeping its connections"
    );
    assert_eq!(
        evidence,
        "lately 40 QPs a second, 18 % of a thread's time in create_qp, modify_qp and destroy_qp, 4.5 ms for each QP"
    );
    let (verdict, evidence) = connects(None);
    assert!(
        verdict.ends_with("destroys 40 instead of keeping its connections"),
        "{verdict}"
    );
    assert!(evidence.ends_with(" calls of create_qp in all"), "{evidence}");
}

#[test]
fn a_peer_that_answers_no_arp_is_not_taken_for_firmware_that_hangs() {
    let verdict = |verb: &str| {
        let mut s = pair();
        let mut row = rows::verb(251, "server", verb, 3.0, &[(110, 4)], false);
        (row.process_uid, row.errors) = (Some(2), rate(4.0));
        s.verbs.push(row);
        let found = after(0, &s);
        assert_eq!(ids(&found), ["verb-fails"]);
        (found[0].verdict.clone(), found[0].next.clone())
    };
    let (peer, next) = verdict("modify_qp");
    assert!(
        peer.contains("no answer from the peer's address (ARP on RoCE)") && next.starts_with("ip neigh"),
        "{peer}: {next}"
    );
    let (firmware, next) = verdict("reg_mr");
    assert!(
        firmware.ends_with("the NIC or its firmware does not answer") && next.starts_with("sudo dmesg"),
        "{firmware}: {next}"
    );
}

#[test]
fn a_verb_that_the_rdma_cgroup_refuses_names_the_limit() {
    use crate::input::LimitReached;
    let mut s = pair();
    let mut row = rows::verb(251, "server", "create_qp", 3.0, &[(11, 4)], false);
    (row.process_uid, row.errors) = (Some(2), rate(4.0));
    s.verbs.push(row);
    let found = after(0, &s);
    assert_eq!(ids(&found), ["verb-fails"], "the limit is not known");
    assert!(
        found[0]
            .verdict
            .ends_with("fails with EAGAIN: a limit is reached, as a rule that of the RDMA cgroup")
    );
    s.processes[1].limited = Some(Arc::new(LimitReached {
        pid: 251,
        cgroup: "/job".to_owned(),
        device: "rxe0".to_owned(),
        resource: "hca_object".to_owned(),
        max: 5,
    }));
    let found = after(0, &s);
    assert_eq!(ids(&found), ["cgroup-limit"]);
    assert_eq!(
        found[0].verdict,
        "create_qp of server (PID 251) fails with EAGAIN: its cgroup /job has all 5 RDMA objects of rxe0 that it may have"
    );
    assert_eq!(
        found[0].next,
        "printf '%s %s=max\\n' rxe0 hca_object | sudo tee /sys/fs/cgroup/job/rdma.max   # or let the program destroy what it does not use"
    );
    s.verbs.clear();
    assert_eq!(
        ids(&after(0, &s)),
        [""; 0],
        "who has all and asks for no more is well"
    );
}
