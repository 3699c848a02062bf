use super::*;
use crate::cause::{Cause, CauseId, Concerns};
use crate::input::{LimitReached, LockedMemory, MappingCount, MappingsSample, TcpSample, TcpTotals};
use crate::snapshot::Mappings;
use rdmatop_base::step::NextStep;

#[test]
fn unknown_processes_of_tcp_connections_are_noted_until_all_are_searched() {
    let mut host = Host::new();
    let note = Cause {
        id: CauseId::SlowProcess,
        concerns: Concerns::Host,
        what: "Unknown of some TCP connections: their processes".into(),
        why: "a user has many files open".into(),
        remedy: NextStep::default(),
    };
    for cut in [Some(note), None] {
        host.apply(Input::Tcp(Box::new(TcpSample {
            at: host.now.into(),
            before: None,
            processes: Vec::new(),
            cut: cut.clone().map(Box::new),
        })));
        assert_eq!(*host.tick().health.notes, Vec::from_iter(cut));
    }
}

#[test]
fn bytes_by_tcp_from_before_an_interval_are_in_no_rate_of_anybody() {
    let mut host = Host::new();
    host.facts(231, 99, "python3");
    let mut look = |start_ticks, moved: u64, lately: u64| {
        host.now += 1000 * MS;
        host.apply(Input::Tcp(Box::new(TcpSample {
            at: host.now.into(),
            before: Some((host.now - 1000 * MS).into()),
            processes: vec![TcpTotals {
                pid: 231,
                start_ticks,
                moved: [moved, 0],
                lately: [lately, 0],
                connections: 1,
                busiest: None,
            }],
            cut: None,
        })));
        let mut rows = host.tick().processes.clone();
        rows.sort_by_key(|row| row.uid);
        let sent = rows.iter().filter_map(|row| Some(row.tcp.as_ref()?.tx_bytes));
        sent.map(|sent| (sent.total, sent.rate)).collect::<Vec<_>>()
    };
    // The row is new, or is made anew, long after the bytes were.
    assert_eq!(look(99, 90_000, 500), [(90_000, Some(500.0))]);
    assert_eq!(look(99, 90_700, 700), [(90_700, Some(700.0))]);
    // Before /proc has been read for another process with this PID.
    let both = [(90_700, Some(700.0)), (400, Some(400.0))];
    assert_eq!(look(120, 400, 400), both);
    assert_eq!(look(120, 1000, 600)[1], (1000, Some(600.0)));
}

#[test]
fn what_a_row_knows_is_kept_when_proc_is_read_again() {
    let mut host = Host::new();
    host.facts(231, 99, "python3");
    let locked = LockedMemory {
        pid: 231,
        limit: Some(65_536),
        exempt: Some(false),
        pinned: None,
    };
    let limit = LimitReached {
        pid: 231,
        cgroup: "/job".into(),
        device: "rxe0".into(),
        resource: "hca_object".into(),
        max: 8,
    };
    host.apply(Input::Locked(vec![locked.clone()]));
    host.apply(Input::RdmaLimits(vec![limit.clone()]));
    host.facts(231, 99, "python3");
    let row = host.process(231);
    assert_eq!(row.locked.as_deref(), Some(&locked));
    assert_eq!(row.limited.as_deref(), Some(&limit));
}

#[test]
fn facts_are_asked_for_once_and_fill_the_row() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t + 1, 0xb0, 18));
    assert_eq!(host.engine.needs().processes, [231]);
    assert!(host.engine.needs().processes.is_empty());
    let facts = ProcessFacts {
        pid: 231,
        start_ticks: 99,
        comm: Some("ib_send_bw".into()),
        cmdline: Some("ib_send_bw -d rxe0".into()),
        uid: Some(1000),
        ppid: Some(1),
        ..ProcessFacts::default()
    };
    host.apply(Input::Process(Box::new(facts)));
    let row = host.process(231);
    assert_eq!(
        (row.cmdline.as_deref(), row.user.as_deref(), row.ppid),
        (Some("ib_send_bw -d rxe0"), Some("1000"), Some(1))
    );
}

#[test]
fn a_process_that_ended_before_anyone_looked_keeps_the_name_of_its_event() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(destroy(t + 1, 0xa0, 17));
    host.gone(231);
    let row = host.process(231);
    assert_eq!((&*row.comm, row.exited, row.cmdline), ("ib_send_bw", true, None));
}

#[test]
fn a_program_read_before_its_exec_has_the_name_that_made_its_qp() {
    for (first_thread, read_ns, name) in [(true, 1, "prog"), (true, 9, "sh"), (false, 1, "sh")] {
        let mut host = Host::new();
        let t = host.now;
        let facts = ProcessFacts {
            pid: 231,
            comm: Some("sh".into()),
            read_ns: t + read_ns,
            ..ProcessFacts::default()
        };
        host.apply(Input::Process(Box::new(facts)));
        let mut made = record(by(prefix(kind::QP_CREATE, t + 5, 0xa0), 231, "prog"), 17);
        made.owner_start_ns = 5;
        if !first_thread {
            made.prefix.tid += 1;
        }
        host.qp(made);
        let row = host.process(231);
        assert_eq!((&*row.comm, row.qps), (name, 1), "{first_thread} {read_ns}");
    }
}

#[test]
fn a_pid_reused_after_its_end_is_another_process() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.facts(231, 10, "ib_send_bw");
    host.sweep(&[final_slot(slot(t, 0xa0, 17, 1000))]);
    host.gone(231);
    let gone_ns = host.now;
    host.pass(SECOND);
    host.qp(create(gone_ns + 5, 0xb0, 18));
    host.sweep(&[slot(gone_ns + 5, 0xb0, 18, 1)]);
    host.facts(231, 20, "ib_send_bw");
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .processes
        .iter()
        .map(|r| (r.exited, r.qps, r.traffic.tx_wr.unwrap().total))
        .collect();
    assert_eq!(rows, [(true, 0, 1000), (false, 1, 1)]);
}

#[test]
fn the_end_of_the_pid_s_last_holder_is_not_that_of_the_next() {
    const TICK: u64 = 10_000_000;
    let mut host = Host::new();
    let t = host.now;
    host.facts(231, 10, "ib_send_bw");
    let mut next = create(t, 0xb0, 18);
    next.owner_start_ns = 20 * TICK;
    host.qp(next);
    let gone = |start| Input::ProcessGone {
        pid: 231,
        start_ticks: Some(start),
    };
    host.apply(gone(10));
    host.pass(SECOND);
    // It has the pid alone.
    host.record(region(kind::MR_REG, host.now, 0xc0, 231, 4096));
    host.facts(231, 20, "ib_send_bw");
    let rows = |snapshot: &Snapshot| -> Vec<_> {
        let of = |row: &ProcessRow| (row.exited, row.qps, row.mr_bytes.unwrap_or(0));
        snapshot.processes.iter().map(of).collect()
    };
    assert_eq!(rows(&host.tick()), [(true, 0, 0), (false, 1, 4096)]);
    host.apply(gone(20));
    assert_eq!(rows(&host.tick()), [(true, 0, 0), (true, 1, 4096)]);
}

#[test]
fn a_process_that_was_taken_for_ended_is_one_row_when_proc_still_has_it() {
    const TICK: u64 = 10_000_000;
    let mut host = Host::new();
    let t = host.now;
    let mut made = create(t, 0xb0, 18);
    made.owner_start_ns = 20 * TICK;
    host.qp(made);
    host.gone(231);
    host.pass(SECOND);
    let Record::Object(mut made) = region(kind::MR_REG, host.now, 0xc0, 231, 4096) else {
        unreachable!()
    };
    made.owner_start_ns = 20 * TICK;
    host.record(Record::Object(made));
    // It has the pid alone.
    let mut device = rxe(0, "rxe0");
    device.mr_bytes = Some([(231, 4096)].into());
    host.pass(SECOND).devices(vec![device]);
    assert_eq!(host.tick().processes.len(), 2);
    host.facts(231, 20, "ib_send_bw");
    let row = host.process(231);
    assert_eq!((row.exited, row.qps, row.mr_bytes), (false, 1, Some(4096)));
}

#[test]
fn a_pid_reused_unnoticed_is_another_process_once_its_start_time_is_read() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.facts(231, 10, "ib_send_bw");
    host.qp(destroy(t + 1, 0xa0, 17));
    host.engine.needs();
    let mut next = create(t + 2, 0xb0, 18);
    next.prefix = by(next.prefix, 231, "rping");
    next.owner_start_ns = 200_000_000;
    host.qp(next);
    assert_eq!(host.engine.needs().processes, [231], "another start asks again");
    host.facts(231, 20, "rping");
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .processes
        .iter()
        .map(|r| (&*r.comm, r.exited, r.qps))
        .collect();
    assert_eq!(rows, [("ib_send_bw", true, 0), ("rping", false, 1)]);
}

#[test]
fn a_thread_with_another_name_is_no_other_process() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.facts(231, 10, "python3");
    host.engine.needs();
    let thread = |ts, object, qpn| {
        let mut record = create(ts, object, qpn);
        record.prefix = by(record.prefix, 231, "pt_main_thread");
        record
    };
    host.qp(thread(t + 2, 0xb0, 18));
    host.sweep(&[slot(t, 0xa0, 17, 5), slot(t + 2, 0xb0, 18, 7)]);
    host.facts(231, 10, "python3");
    let row = host.process(231);
    assert_eq!(
        (&*row.comm, row.qps, row.traffic.tx_wr.unwrap().total),
        ("python3", 2, 12)
    );
    let uid = row.uid;
    assert!(
        host.tick()
            .qps
            .iter()
            .all(|qp| qp.process_uid == Some(uid) && qp.comm.as_deref() == Some("python3"))
    );
    host.qp(thread(t + 3, 0xc0, 19));
    assert!(
        host.engine.needs().processes.is_empty(),
        "the name is known by now"
    );
    assert_eq!(host.process(231).qps, 3);
}

#[test]
fn memory_is_unknown_then_summed_then_corrected_by_a_dump() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    assert_eq!(host.process(231).mr_bytes, None);
    let events = host.record(region(kind::MR_REG, t + 1, 0xe0, 231, 8192));
    assert_eq!((events[0].event.name(), events[0].bytes), ("mr_reg", Some(8192)));
    assert_eq!(host.process(231).mr_bytes, Some(8192));
    let mut device = rxe(0, "rxe0");
    device.mr_bytes = Some([(231, 100_000)].into());
    host.pass(SECOND).devices(vec![device]);
    assert_eq!(host.process(231).mr_bytes, Some(100_000));
    let ts = host.now + 1;
    let events = host.record(region(kind::MR_DEREG, ts, 0xe0, 231, u64::MAX));
    assert_eq!(
        events[0].bytes,
        Some(8192),
        "the table knows what the record does not"
    );
    assert_eq!(host.process(231).mr_bytes, Some(100_000 - 8192));
}

#[test]
fn a_region_whose_end_was_lost_ends_when_its_address_is_used_again() {
    let mut host = Host::new();
    let t = host.now;
    host.record(region(kind::MR_REG, t + 1, 0xe0, 231, 8192));
    host.record(region(kind::MR_REG, t + 2, 0xe0, 231, 4096));
    assert_eq!(host.process(231).mr_bytes, Some(4096));
}

#[test]
fn a_failed_deregistration_keeps_the_bytes() {
    let mut host = Host::new();
    let t = host.now;
    host.record(region(kind::MR_REG, t + 1, 0xe0, 231, 8192));
    let Record::Object(mut failed) = region(kind::MR_DEREG, t + 2, 0xe0, 231, 8192) else {
        unreachable!()
    };
    failed.prefix.rc = -16;
    let events = host.record(Record::Object(failed));
    assert_eq!(events[0].rc, Some(-16));
    assert_eq!(host.process(231).mr_bytes, Some(8192));
}

#[test]
fn mappings_are_those_of_the_last_list_with_the_last_limit() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.facts(231, 5000, "server");
    let sample = |limit, counts: &[(u32, Option<u64>)]| {
        Input::Mappings(MappingsSample {
            limit,
            processes: counts
                .iter()
                .map(|&(pid, count)| MappingCount {
                    pid,
                    start_ticks: 5000,
                    count,
                    read_ns: 7,
                })
                .collect(),
        })
    };
    let is = |count, limit| {
        Some(Mappings {
            count,
            limit,
            read_ns: 7,
        })
    };
    assert_eq!(host.process(231).mappings, None);
    host.apply(sample(Some(65_530), &[(231, Some(900)), (999, Some(1))]));
    assert_eq!(host.process(231).mappings, is(900, Some(65_530)));
    host.apply(sample(Some(131_060), &[]));
    assert_eq!(host.process(231).mappings, is(900, Some(131_060)));
    host.facts(231, 5000, "server");
    assert_eq!(
        host.process(231).mappings,
        is(900, Some(131_060)),
        "facts have no counts"
    );
    host.apply(sample(None, &[]));
    assert_eq!(host.process(231).mappings, is(900, None));
    host.apply(sample(Some(65_530), &[(231, None)]));
    assert_eq!(
        host.process(231).mappings,
        None,
        "after an exec its list was not readable"
    );
}

#[test]
fn mappings_of_those_who_register_memory_are_counted_again_one_at_a_time() {
    let mut host = Host::new();
    let t = host.now;
    for (pid, address) in [(231, 0xa0), (232, 0xa1), (233, 0xa2)] {
        let mut record = create(t, address, u32::try_from(address).unwrap());
        record.prefix.owner_pid = pid;
        host.qp(record);
        host.facts(pid, 5000, "server");
    }
    let sums = [(231, 4096), (232, 4096), (233, 0)].into();
    host.engine.machine.processes.registered(&sums, t);
    let _ = host.engine.needs();
    let counted = |host: &mut Host, pid, count, read_ns| {
        host.apply(Input::Mappings(MappingsSample {
            limit: Some(65_530),
            processes: vec![MappingCount {
                pid,
                start_ticks: 5000,
                count,
                read_ns,
            }],
        }));
    };
    for pid in [231, 232, 233] {
        counted(&mut host, pid, Some(900), t + u64::from(pid));
    }
    let mut asked = Vec::new();
    let mut look = |host: &mut Host, seconds: u64| {
        host.now = t + seconds * 1000 * MS;
        host.tick();
        let wanted = host.engine.needs().processes;
        asked.extend(wanted.iter().map(|pid| (seconds, *pid)));
    };
    for second in [299, 301, 302, 303, 600] {
        look(&mut host, second);
    }
    // One of them answers, with a list that is too long now: nobody asks for it any more.
    let now = host.now;
    counted(&mut host, 231, None, now);
    for second in [601, 602, 603, 901, 902] {
        look(&mut host, second);
    }
    assert_eq!(asked, [(301, 231), (302, 232), (602, 232), (902, 232)]);
}
