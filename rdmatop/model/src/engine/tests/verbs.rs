use super::*;
use crate::input::LockedMemory;
use crate::snapshot::VerbRow;
use rdmatop_common::verb;

fn stats(calls: u64, errors: u64) -> VerbStats {
    let mut stats = VerbStats {
        calls,
        errors,
        ns: calls * 3000,
        max_ns: 9000,
        ..VerbStats::new_zeroed()
    };
    stats.hist[11] = calls;
    stats
}

fn errors(row: &VerbRow) -> Option<u64> {
    row.errors.map(|errors| errors.total)
}

fn sample(host: &mut Host, verbs: &[(u32, u32, VerbStats)], errors: &[(u32, u32, u32, u64)]) {
    sweep(host, verbs, &[], errors);
}

fn sweep(
    host: &mut Host,
    verbs: &[(u32, u32, VerbStats)],
    calls_only: &[(u32, u32, u64)],
    errors: &[(u32, u32, u32, u64)],
) {
    let sample = VerbsSample {
        mono_ns: host.now,
        calls_only_ns: None,
        partial: false,
        gone: Vec::new(),
        calls_only: calls_only
            .iter()
            .map(|(pid, verb, calls)| {
                (
                    VerbKey {
                        pid: *pid,
                        verb: *verb,
                    },
                    *calls,
                )
            })
            .collect(),
        verbs: verbs
            .iter()
            .map(|(pid, verb, stats)| {
                (
                    VerbKey {
                        pid: *pid,
                        verb: *verb,
                    },
                    *stats,
                )
            })
            .collect(),
        errors: errors
            .iter()
            .map(|(pid, verb, errno, count)| {
                let key = VerbErrorKey {
                    pid: *pid,
                    verb: *verb,
                    errno: *errno,
                    reserved: 0,
                };
                (key, *count)
            })
            .collect(),
    };
    host.apply(Input::Verbs(Box::new(sample)));
}

#[test]
fn a_verb_has_calls_rate_and_latency() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    sample(&mut host, &[(231, verb::write(9), stats(10, 0))], &[]);
    host.pass(SECOND);
    sample(&mut host, &[(231, verb::write(9), stats(15, 0))], &[]);
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!(
        (&*row.verb, row.calls.total, row.calls.rate),
        ("reg_mr", 15, Some(5.0))
    );
    assert_eq!(
        (row.comm.as_deref(), row.probe, errors(row)),
        (Some("ib_send_bw"), false, Some(0))
    );
    let latency = row.latency.as_ref().unwrap();
    let latency = (latency.mean_ns, latency.p50_ns, latency.max_ns);
    assert_eq!(latency, (Some(3000), Some(4096), Some(9000)));
}

/// A sample of what has changed.
fn changes(host: &mut Host, verbs: &[(u32, u32, VerbStats)], gone: &[(u32, u32)]) {
    let verbs = verbs.iter().map(|(pid, verb, stats)| {
        let key = VerbKey {
            pid: *pid,
            verb: *verb,
        };
        (key, *stats)
    });
    let sample = VerbsSample {
        mono_ns: host.now,
        partial: true,
        gone: gone.to_vec(),
        verbs: verbs.collect(),
        ..VerbsSample::default()
    };
    host.apply(Input::Verbs(Box::new(sample)));
}

#[test]
fn what_a_sample_of_changes_leaves_out_counts_as_read_and_at_rest() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    sample(&mut host, &[(231, verb::write(9), stats(10, 1))], &[]);
    host.pass(SECOND);
    changes(&mut host, &[(231, verb::write(9), stats(15, 3))], &[]);
    let row = host.tick().verbs[0].clone();
    assert_eq!((row.calls.total, row.calls.rate), (15, Some(5.0)));
    for _ in 0..30 {
        host.pass(SECOND);
        changes(&mut host, &[], &[]);
        let row = host.tick().verbs[0].clone();
        assert_eq!((row.calls.total, row.calls.rate), (15, Some(0.0)));
        assert_eq!(row.errors.map(|errors| errors.rate), Some(Some(0.0)));
        assert_eq!(host.process(231).verb_errors.unwrap().rate, Some(0.0));
    }
    // All of it is of the last second, not of the half minute before.
    host.pass(SECOND);
    changes(&mut host, &[(231, verb::write(9), stats(22, 4))], &[]);
    let row = host.tick().verbs[0].clone();
    assert_eq!((row.calls.total, row.calls.rate), (22, Some(7.0)));
    assert_eq!(host.process(231).verb_errors.unwrap().rate, Some(1.0));
}

#[test]
fn an_entry_that_was_given_up_is_no_past_of_the_next_process() {
    for given_up in [false, true] {
        let mut host = Host::new();
        let t = host.now;
        host.qp(create(t, 0xa0, 17));
        sample(&mut host, &[(231, verb::write(9), stats(10, 0))], &[]);
        host.tick();
        assert!(host.engine.verbs.holds(231), "the kernel side has it");
        host.pass(SECOND);
        let gone: &[_] = if given_up { &[(231, verb::write(9))] } else { &[] };
        changes(&mut host, &[], gone);
        assert_eq!(host.engine.verbs.holds(231), !given_up);
    }
}

#[test]
fn a_library_probe_is_no_fault() {
    let mut host = Host::new();
    let t = host.now;
    let mut record = VerbRecord {
        prefix: by(prefix(kind::VERB_ERROR, t, 0), 231, "ibv_devinfo"),
        verb: verb::QUERY_DEVICE,
        reserved: 0,
    };
    record.prefix.rc = -28;
    assert!(host.record(Record::Verb(record)).is_empty());
    sample(
        &mut host,
        &[(231, verb::QUERY_DEVICE, stats(2, 1))],
        &[(231, verb::QUERY_DEVICE, 28, 1)],
    );
    let snapshot = host.tick();
    assert!(snapshot.verbs[0].probe);
    assert_eq!(snapshot.verbs[0].errnos, [(28, 1)]);
    assert_eq!(host.process(231).verb_errors.unwrap().total, 0);
}

#[test]
fn empty_places_of_a_gid_table_are_no_faults() {
    let mut host = Host::new();
    sample(
        &mut host,
        &[(231, verb::QUERY_GID_ENTRY, stats(1024, 1022))],
        &[
            (231, verb::QUERY_GID_ENTRY, 61, 1021),
            (231, verb::QUERY_GID_ENTRY, 22, 1),
        ],
    );
    assert!(
        !host.tick().verbs[0].probe,
        "EINVAL is a place that the table does not have"
    );
    assert_eq!(host.process(231).verb_errors.unwrap().total, 1);
}

#[test]
fn a_fault_is_reported_counted_and_named() {
    let mut host = Host::new();
    let t = host.now;
    let mut record = VerbRecord {
        prefix: by(prefix(kind::VERB_ERROR, t, 0), 231, "a.out"),
        verb: verb::ioctl(3, 0),
        reserved: 0,
    };
    (record.prefix.rc, record.prefix.duration_ns) = (-22, 700);
    let event = host.record(Record::Verb(record)).remove(0);
    assert_eq!(
        (event.verb.as_deref(), event.rc, event.pid),
        (Some("create_cq"), Some(-22), Some(231))
    );
    sample(
        &mut host,
        &[(231, verb::ioctl(3, 0), stats(1, 1))],
        &[(231, verb::ioctl(3, 0), 22, 1)],
    );
    let snapshot = host.tick();
    assert_eq!(
        (snapshot.verbs[0].probe, errors(&snapshot.verbs[0])),
        (false, Some(1))
    );
    let row = host.process(231);
    assert_eq!(
        (row.verb_errors.unwrap().total, row.qps),
        (1, 0),
        "a process that never got a QP has a row"
    );
}

#[test]
fn a_query_device_that_fails_otherwise_is_a_fault() {
    let mut host = Host::new();
    let q = verb::QUERY_DEVICE;
    sample(
        &mut host,
        &[(231, q, stats(3, 2))],
        &[(231, q, 28, 1), (231, q, 19, 1)],
    );
    assert!(!host.tick().verbs[0].probe);
    assert_eq!(host.process(231).verb_errors.unwrap().total, 1);
}

#[test]
fn errors_are_unknown_until_verbs_are_counted_and_when_some_were_not() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    assert_eq!(host.process(231).verb_errors, None);
    sample(&mut host, &[], &[]);
    assert_eq!(host.process(231).verb_errors.unwrap().total, 0);
    host.apply(Input::Losses([0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]));
    assert_eq!(host.process(231).verb_errors, None);
}

#[test]
fn a_reused_pid_starts_its_calls_at_zero() {
    let mut host = Host::new();
    let v = verb::write(26);
    sample(&mut host, &[(231, v, stats(1000, 10))], &[(231, v, 22, 10)]);
    host.pass(SECOND).gone(231);
    host.pass(SECOND);
    sample(&mut host, &[(231, v, stats(1000, 10))], &[(231, v, 22, 10)]);
    host.pass(SECOND);
    sample(&mut host, &[(231, v, stats(1003, 11))], &[(231, v, 22, 11)]);
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!((row.calls.total, errors(row)), (3, Some(1)));
    assert_eq!(row.latency.as_ref().unwrap().count, 3);
    assert_eq!(row.errnos, [(22, 1)]);
    let totals: Vec<_> = snapshot
        .processes
        .iter()
        .map(|p| p.verb_errors.unwrap().total)
        .collect();
    assert_eq!(totals, [10, 1]);
}

/// The kernel side counts on in the entry of a process that was forgotten long ago.
#[test]
fn a_pid_reused_after_its_process_was_forgotten_starts_at_zero() {
    let mut host = Host::new();
    let v = verb::write(26);
    sample(&mut host, &[(231, v, stats(1000, 10))], &[(231, v, 22, 10)]);
    host.pass(SECOND).gone(231);
    for _ in 0..10 {
        host.pass(SECOND);
        sample(&mut host, &[(231, v, stats(1000, 10))], &[(231, v, 22, 10)]);
        host.tick();
    }
    let snapshot = host.tick();
    assert!(
        snapshot.processes.is_empty() && snapshot.verbs.is_empty(),
        "no ghost"
    );
    host.pass(SECOND);
    sample(&mut host, &[(231, v, stats(1003, 11))], &[(231, v, 22, 11)]);
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!(
        (row.calls.total, row.calls.rate, errors(row)),
        (3, Some(3.0), Some(1))
    );
    assert_eq!(row.latency.as_ref().unwrap().count, 3);
    assert_eq!(row.errnos, [(22, 1)]);
    assert_eq!(snapshot.processes[0].verb_errors.unwrap().total, 1);
    // An entry that was freed meanwhile begins at zero.
    host.pass(SECOND).gone(231);
    for _ in 0..10 {
        host.pass(SECOND);
        sample(&mut host, &[(231, v, stats(1003, 11))], &[]);
        host.tick();
    }
    host.pass(SECOND);
    sample(&mut host, &[(231, v, stats(5, 0))], &[]);
    assert_eq!(host.tick().verbs[0].calls.total, 5);
}

#[test]
fn calls_of_a_process_that_came_between_sweeps_have_a_rate() {
    let mut host = Host::new();
    sample(&mut host, &[], &[]);
    host.pass(2 * SECOND);
    sample(&mut host, &[(231, verb::write(9), stats(10, 0))], &[]);
    assert_eq!(host.tick().verbs[0].calls.rate, Some(5.0));
}

#[test]
fn an_unknown_verb_has_its_numbers() {
    let mut host = Host::new();
    sample(
        &mut host,
        &[
            (231, verb::ioctl(999, 7), stats(1, 0)),
            (231, verb::write(200), stats(1, 0)),
            (231, verb::cm(77), stats(1, 0)),
        ],
        &[],
    );
    let snapshot = host.tick();
    let names: Vec<_> = snapshot.verbs.iter().map(|v| &*v.verb).collect();
    assert_eq!(names, ["ioctl_999_7", "cm_77", "write_200"]);
}

#[test]
fn the_last_calls_of_a_process_are_its_own_and_bring_no_ghost() {
    let mut host = Host::new();
    let v = verb::write(26);
    sample(&mut host, &[(231, v, stats(10, 0))], &[]);
    host.pass(SECOND / 2).gone(231);
    host.pass(SECOND / 2);
    sample(&mut host, &[(231, v, stats(12, 1))], &[(231, v, 22, 1)]);
    let snapshot = host.tick();
    assert_eq!((snapshot.processes.len(), snapshot.verbs[0].calls.total), (1, 12));
    host.engine.needs();
    for _ in 0..20 {
        host.pass(SECOND);
        sample(&mut host, &[(231, v, stats(12, 1))], &[(231, v, 22, 1)]);
        host.tick();
    }
    let snapshot = host.tick();
    assert!(snapshot.processes.is_empty() && snapshot.verbs.is_empty());
    assert!(host.engine.needs().processes.is_empty());
}

#[test]
fn calls_that_are_only_counted_have_neither_errors_nor_times() {
    let mut host = Host::new();
    sweep(&mut host, &[], &[(231, verb::POST_SEND, 10)], &[]);
    host.pass(SECOND);
    sweep(&mut host, &[], &[(231, verb::POST_SEND, 30)], &[]);
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!(
        (&*row.verb, row.calls.total, row.calls.rate),
        ("post_send", 30, Some(20.0))
    );
    assert!(row.errors.is_none() && row.latency.is_none() && row.errnos.is_empty());
    // The data path is gone, and write() is counted where it enters: for the sum of both only the number of
    // calls is known.
    host.pass(SECOND);
    sample(&mut host, &[(231, verb::POST_SEND, stats(5, 1))], &[]);
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!((row.calls.total, errors(row)), (35, None));
    assert!(row.latency.is_none());
}

#[test]
fn a_wait_for_an_event_has_no_time_and_its_end_without_one_is_no_fault() {
    let mut host = Host::new();
    let wait = VerbStats {
        calls: 4,
        errors: 2,
        ..VerbStats::new_zeroed()
    };
    let get = verb::CM_GET_EVENT;
    sample(
        &mut host,
        &[(231, get, wait)],
        &[(231, get, 11, 1), (231, get, 512, 1)],
    );
    let snapshot = host.tick();
    let row = &snapshot.verbs[0];
    assert_eq!(
        (&*row.verb, errors(row), row.probe),
        ("cm_get_event", Some(2), true)
    );
    assert!(row.latency.is_none());
    assert_eq!(host.process(231).verb_errors.unwrap().total, 0);
}

#[test]
fn only_the_bind_that_librdmacm_probes_with_may_find_no_device() {
    let mut host = Host::new();
    let (probe, bind) = (verb::CM_BIND | verb::AF_IB, verb::CM_BIND);
    sample(
        &mut host,
        &[(231, probe, stats(1, 1)), (231, bind, stats(1, 1))],
        &[(231, probe, 19, 1), (231, bind, 19, 1)],
    );
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot.verbs.iter().map(|row| (&*row.verb, row.probe)).collect();
    assert_eq!(rows, [("cm_bind", false), ("cm_bind_af_ib", true)]);
    assert_eq!(host.process(231).verb_errors.unwrap().total, 1);
}

#[test]
fn the_limit_of_locked_memory_is_read_when_registrations_lack_memory() {
    const ENOMEM: u32 = 12;
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let reg_mr = verb::write(9);
    let create_cq = verb::write(18);
    let failed = |count| [(231, reg_mr, ENOMEM, count), (231, create_cq, ENOMEM, 1)];
    let calls = [(231, reg_mr, stats(5, 2)), (231, create_cq, stats(1, 1))];
    sample(&mut host, &calls[1..], &failed(0)[1..]);
    assert_eq!(host.engine.needs().locked, [0; 0], "create_cq pins nothing");
    host.pass(SECOND);
    sample(&mut host, &calls, &failed(2));
    assert_eq!(host.engine.needs().locked, [231]);
    assert_eq!(host.engine.needs().locked, [0; 0], "once");
    host.pass(SECOND);
    sample(&mut host, &calls, &failed(2));
    assert_eq!(host.engine.needs().locked, [0; 0], "none has failed since");
    let locked = LockedMemory {
        pid: 231,
        limit: Some(65_536),
        exempt: Some(false),
        pinned: Some(4096),
    };
    host.apply(Input::Locked(vec![locked.clone()]));
    host.tick();
    assert_eq!(host.process(231).locked.as_deref(), Some(&locked));
    host.pass(SECOND);
    sample(&mut host, &calls, &failed(3));
    assert_eq!(
        host.engine.needs().locked,
        [231],
        "the limit may be another by now"
    );
}

#[test]
fn one_user_s_failing_registrations_keep_no_other_s_limit_from_being_read() {
    const ENOMEM: u32 = 12;
    let mut host = Host::new();
    let reg_mr = verb::write(9);
    let pids: Vec<u32> = (1..=100).chain([7000]).collect();
    for pid in &pids {
        host.apply(Input::Process(Box::new(ProcessFacts {
            pid: *pid,
            uid: Some(if *pid == 7000 { 2000 } else { 1000 }),
            ..ProcessFacts::default()
        })));
    }
    let calls: Vec<_> = pids.iter().map(|pid| (*pid, reg_mr, stats(1, 1))).collect();
    let failed: Vec<_> = pids.iter().map(|pid| (*pid, reg_mr, ENOMEM, 1)).collect();
    sample(&mut host, &calls, &failed);
    let first = host.engine.needs().locked;
    assert_eq!((first.len(), first.last()), (64, Some(&7000)));
    let rest = host.engine.needs().locked;
    assert_eq!(rest, (64..=100).collect::<Vec<u32>>(), "nobody is forgotten");
}
