use super::*;
use crate::{event::EventKind, filter::Filter, ib::Gid, value::Source};

#[test]
fn a_perftest_pair_is_followed_from_creation_to_destruction() {
    let mut host = Host::new();
    let t = host.now;
    let event = host.qp(create(t + 1, 0xa0, 17));
    assert_eq!(
        (event.event, event.qpn, event.pid, event.tid),
        (EventKind::QpCreate, Some(17), Some(231), Some(231))
    );
    assert_eq!(
        (event.device.as_deref(), event.comm.as_deref()),
        (Some("rxe0"), Some("ib_send_bw"))
    );
    assert_eq!(
        (event.rc, event.by_pid, event.qp_type),
        (Some(0), None, Some(QpType(2)))
    );
    assert_eq!((event.mono_ns, event.ts_ns), (t + 1, WALL + t + 1));

    host.qp(modify(t + 2, 0xa0, 17, 1));
    let mut rtr = modify(t + 3, 0xa0, 17, 2);
    (
        rtr.attr_mask,
        rtr.dest_qpn,
        rtr.path_mtu,
        rtr.sgid_index,
        rtr.port,
    ) = (0x0012_9181, 18, 3, 1, 1);
    rtr.dest_gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 1]);
    let event = host.qp(rtr);
    assert_eq!((event.from, event.to), (Some(QpState(1)), Some(QpState(2))));
    assert_eq!(
        (event.dest_qpn, event.path_mtu, event.sgid_index),
        (Some(18), Some(1024), Some(1))
    );
    let gid = Gid::known(rtr.dest_gid);
    assert!(gid.is_some() && event.dest_gid == gid, "{:?}", event.dest_gid);
    assert_eq!(
        (event.duration_ns, event.attr_mask),
        (Some(5000), Some(0x0012_9181))
    );
    host.qp(modify(t + 4, 0xa0, 17, 3));

    let row = host.only_qp();
    assert_eq!(
        (row.state, row.state_source),
        (Some(QpState(3)), Some(Source::Ebpf))
    );
    assert_eq!(
        (row.remote_qpn, row.path_mtu, row.port),
        (Some(18), Some(1024), Some(1))
    );
    // Not of the modify to RTS, which sets no address.
    assert_eq!(row.remote_gid, gid);
    assert_eq!(
        (row.pid, row.comm.as_deref(), row.age_ns(t + 101)),
        (Some(231), Some("ib_send_bw"), Some(100))
    );
    let steps: Vec<_> = row
        .timeline
        .iter()
        .map(|s| (s.mono_ns - t, s.state.0, s.duration_ns))
        .collect();
    assert_eq!(
        steps,
        [
            (1, 0, None),
            (2, 1, Some(5000)),
            (3, 2, Some(5000)),
            (4, 3, Some(5000))
        ]
    );
    let process = host.process(231);
    assert_eq!(
        (process.qps, process.devices.len(), &*process.devices[0]),
        (1, 1, "rxe0")
    );

    let event = host.qp(destroy(t + 5, 0xa0, 17));
    assert_eq!(
        (event.from, event.rc, event.qp_uid),
        (Some(QpState(3)), Some(0), Some(row.uid))
    );
    assert!(host.only_qp().exited);
    assert_eq!(host.process(231).qps, 0);
    assert!(
        host.pass(6 * SECOND).tick().qps.is_empty(),
        "the row lingers five seconds"
    );
}

#[test]
fn kill_9_destroys_without_a_modify_and_the_peer_stays() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut peer = create(t + 2, 0xb0, 18);
    peer.prefix = by(peer.prefix, 240, "ib_send_bw");
    host.qp(peer);
    host.qp(destroy(t + 3, 0xa0, 17));
    host.gone(231);
    let snapshot = host.tick();
    let ended: Vec<_> = snapshot
        .qps
        .iter()
        .map(|row| (row.qpn, row.exited, row.orphan))
        .collect();
    assert_eq!(ended, [(17, true, false), (18, false, false)]);
    assert!(host.process(231).exited);
    assert!(!host.process(240).exited);
    // It stays one of the device that it used, by which a view is narrowed.
    let mine = Filter {
        device: Some(snapshot.qps[0].device.to_string()),
        ..Filter::default()
    };
    assert_eq!(mine.apply(&snapshot).processes.len(), 2);
    host.pass(6 * SECOND);
    assert_eq!(host.tick().processes.len(), 1);
}

#[test]
fn a_reused_number_is_another_qp() {
    let mut host = Host::new();
    let t = host.now;
    let first = host.qp(create(t + 1, 0xa0, 17)).qp_uid;
    host.qp(modify(t + 2, 0xa0, 17, 3));
    host.qp(destroy(t + 3, 0xa0, 17));
    let second = host.qp(create(t + 4, 0xb0, 17)).qp_uid;
    assert_ne!(first, second);
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.exited, r.state.unwrap().0))
        .collect();
    assert_eq!(rows, [(true, 3), (false, 0)]);
}

#[test]
fn a_reused_number_whose_destroy_was_lost_ends_the_old_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(create(t + 2, 0xb0, 17));
    let snapshot = host.tick();
    assert_eq!(
        snapshot.qps.iter().map(|r| r.exited).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(host.process(231).qps, 1);
}

#[test]
fn a_reused_address_is_another_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(create(t + 2, 0xa0, 18));
    host.qp(modify(t + 3, 0xa0, 18, 1));
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.qpn, r.exited, r.state.unwrap().0))
        .collect();
    assert_eq!(rows, [(17, true, 0), (18, false, 1)]);
}

#[test]
fn a_destroy_reported_after_the_address_was_reused_ends_its_own_qp() {
    // The QP is freed inside the call. A busy CPU may return from it long after another has made the next QP
    // there.
    for begun in [5 * MS, 60 * MS] {
        let mut host = Host::new();
        let t = host.now;
        let first = host.qp(create(t, 0xa0, 17)).qp_uid;
        let next = host.qp(create(t + 100 * MS, 0xa0, 18)).qp_uid;
        host.qp(modify(t + 101 * MS, 0xa0, 18, 1));
        let mut late = destroy(t + 160 * MS, 0xa0, 17);
        late.prefix.duration_ns = 60 * MS + begun;
        assert_eq!(host.qp(late).qp_uid, first);
        assert_eq!(host.qp(modify(t + 161 * MS, 0xa0, 18, 2)).qp_uid, next);
        let snapshot = host.tick();
        let rows: Vec<_> = snapshot.qps.iter().map(|r| (r.qpn, r.exited)).collect();
        assert_eq!(rows, [(17, true), (18, false)], "begun {begun} ns before");
    }
}

#[test]
fn a_reused_address_with_a_lost_create_is_another_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let event = host.qp(modify(t + MS, 0xa0, 99, 1));
    assert_eq!(event.from, None, "the new QP's state is not known");
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot.qps.iter().map(|r| (r.qpn, r.exited)).collect();
    assert_eq!(rows, [(17, true), (99, false)]);
}

#[test]
fn a_failed_modify_changes_nothing_and_is_reported() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut failed = modify(t + 2, 0xa0, 17, 3);
    (failed.prefix.rc, failed.dest_qpn) = (-22, 5);
    let event = host.qp(failed);
    assert_eq!(
        (event.rc, event.from, event.to),
        (Some(-22), Some(QpState(0)), Some(QpState(3)))
    );
    let row = host.only_qp();
    assert_eq!(
        (row.state, row.timeline.len(), row.remote_qpn),
        (Some(QpState(0)), 1, None)
    );
}

#[test]
fn a_modify_without_the_state_bit_does_not_read_as_reset() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(modify(t + 2, 0xa0, 17, 3));
    let mut timer = modify(t + 3, 0xa0, 17, 0);
    timer.attr_mask = 0x8000;
    let event = host.qp(timer);
    assert_eq!(
        (event.from, event.to, event.attr_mask),
        (None, None, Some(0x8000))
    );
    assert_eq!(host.only_qp().state, Some(QpState(3)));
}

#[test]
fn a_failed_destroy_leaves_the_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut failed = destroy(t + 2, 0xa0, 17);
    failed.prefix.rc = -16;
    host.qp(failed);
    assert!(!host.only_qp().exited);
}

#[test]
fn a_true_old_state_in_the_record_wins_over_the_table() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut record = modify(t + 2, 0xa0, 17, 0);
    record.from_state = 6;
    assert_eq!(host.qp(record).from, Some(QpState(6)));
}

#[test]
fn records_that_change_places_still_make_one_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.births.insert((0xa0, 17), (t + 10, true));
    let uid = host.qp(modify(t + 20, 0xa0, 17, 1)).qp_uid;
    let event = host.qp(create(t + 10, 0xa0, 17));
    assert_eq!(event.qp_uid, uid);
    let row = host.only_qp();
    assert_eq!((row.state, row.born_mono_ns), (Some(QpState(1)), Some(t + 10)));
    let steps: Vec<_> = row.timeline.iter().map(|s| s.state.0).collect();
    assert_eq!(steps, [0, 1]);
    host.qp(destroy(t + 40, 0xa0, 17));
    host.qp(modify(t + 30, 0xa0, 17, 6));
    let row = host.only_qp();
    assert!(row.exited);
    assert_eq!(row.state, Some(QpState(6)));
}

#[test]
fn a_destroy_by_another_holder_keeps_the_owner_and_names_the_caller() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut record = record(prefix(kind::QP_DESTROY, t + 2, 0xa0), 17);
    (record.prefix.pid, record.prefix.tid, record.prefix.comm) = (233, 234, bytes("python3"));
    let event = host.qp(record);
    assert_eq!(
        (event.pid, event.comm.as_deref()),
        (Some(231), Some("ib_send_bw"))
    );
    assert_eq!((event.by_pid, event.tid), (Some(233), None));
}

#[test]
fn a_kernel_qp_has_its_consumer_in_brackets_and_no_pid() {
    let mut host = Host::new();
    let t = host.now;
    for (object, qpn) in [(0xa0, 20), (0xb0, 21)] {
        let event = host.qp(record(
            consumer(prefix(kind::QP_CREATE, t + object, object), "nvme_rdma"),
            qpn,
        ));
        assert_eq!(
            (event.pid, event.tid, event.by_pid, event.kernel),
            (None, None, None, true)
        );
        assert_eq!(event.comm.as_deref(), Some("[nvme_rdma]"));
    }
    let snapshot = host.tick();
    assert!(snapshot.qps.iter().all(|row| row.kernel && row.pid.is_none()));
    assert_eq!(snapshot.processes.len(), 1, "one row a consumer");
    let row = &snapshot.processes[0];
    assert_eq!(
        (row.kernel, &*row.comm, row.qps, row.verb_errors),
        (true, "[nvme_rdma]", 2, None)
    );
    assert!(host.engine.needs().processes.is_empty());
}

#[test]
fn a_record_without_the_device_finds_it_by_the_object() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    let mut record = modify(t + 2, 0xa0, 17, 1);
    record.prefix.flags &= !flag::DEVICE;
    record.prefix.device = [0; 64];
    let event = host.qp(record);
    assert_eq!(
        (event.device.as_deref(), event.from),
        (Some("rxe0"), Some(QpState(0)))
    );
    host.only_qp();
}

#[test]
fn an_event_before_the_first_reading_of_devices_is_not_doubled_by_it() {
    let mut host = Host::with(EngineConfig::default());
    let t = host.now;
    let mut early = create(t + 1, 0xa0, 17);
    (early.prefix.device_index, early.prefix.device) = (3, bytes("rxe3"));
    host.qp(early);
    host.pass(SECOND).devices(vec![rxe(0, "rxe0"), rxe(3, "rxe3")]);
    let snapshot = host.tick();
    let names: Vec<_> = snapshot.devices.iter().map(|d| &*d.name).collect();
    assert_eq!(names, ["rxe0", "rxe3"]);
    assert_eq!(snapshot.qps[0].device_uid, Some(snapshot.devices[1].uid));
}

#[test]
fn hostile_names_are_safe_everywhere() {
    let mut host = Host::new();
    let t = host.now;
    host.devices(vec![rxe(0, "rx\u{1b}[2J\n/0")]);
    let mut record = create(t + 1, 0xa0, 17);
    record.prefix = by(record.prefix, 231, "a\u{1b}]0;x\u{7}\nb");
    record.prefix.device = bytes("rx\u{1b}[2J\n/0");
    let event = host.qp(record);
    host.facts(231, 5, "c\u{9b}31m\r");
    let snapshot = host.pass(1).tick();
    let texts = [
        event.comm.unwrap(),
        event.device.unwrap(),
        Arc::clone(&snapshot.devices[0].name),
        Arc::clone(&snapshot.qps[0].device),
        snapshot.qps[0].comm.clone().unwrap(),
        Arc::clone(&snapshot.processes[0].comm),
    ];
    for text in texts {
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.contains('\\'), "{text:?} shows what was there");
    }
}

#[test]
fn idle_rows_are_shared_between_snapshots() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(create(t + 2, 0xb0, 18));
    let before = host.tick();
    host.qp(modify(t + 3, 0xb0, 18, 1));
    let after = host.pass(SECOND).tick();
    assert!(Arc::ptr_eq(&before.qps[0], &after.qps[0]));
    assert!(!Arc::ptr_eq(&before.qps[1], &after.qps[1]));
}

#[test]
fn without_timelines_events_and_states_are_the_same() {
    let life = |timelines| {
        let mut host = Host::with(EngineConfig {
            timelines,
            ..EngineConfig::default()
        });
        let t = host.now;
        let mut events = vec![host.qp(create(t + 1, 0xa0, 17))];
        for (after, state) in [(2, 1), (3, 2), (4, 3), (5, 6)] {
            events.push(host.qp(modify(t + after, 0xa0, 17, state)));
        }
        let steps = |host: &mut Host| {
            let row = host.only_qp();
            (row.state, row.state_source, row.timeline.len())
        };
        let living = steps(&mut host);
        events.push(host.qp(destroy(host.now + 1, 0xa0, 17)));
        (format!("{events:?}"), living)
    };
    let (events, (state, source, steps)) = life(true);
    assert_eq!((state, steps), (Some(QpState(6)), 5));
    assert_eq!(life(false), (events, (state, source, 0)));
}

#[test]
fn rows_of_ended_qps_are_bounded_under_churn() {
    let mut host = Host::with(EngineConfig {
        max_ended: 10,
        ..EngineConfig::default()
    });
    let t = host.now;
    for i in 0..1000 {
        host.qp(create(t + 2 * i, 0xa0 + i, 17));
        host.qp(destroy(t + 2 * i + 1, 0xa0 + i, 17));
    }
    assert_eq!(host.tick().qps.len(), 10);
}

#[test]
fn a_single_sample_keeps_what_ended_within_it() {
    let mut host = Host::with(EngineConfig::keep_all());
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(destroy(t + 2, 0xa0, 17));
    host.gone(231);
    host.pass(3600 * SECOND);
    assert!(host.only_qp().exited);
    let process = host.process(231);
    assert!(process.exited);
    assert_eq!(
        process.devices[..],
        ["rxe0".into()],
        "a filter of the device keeps it"
    );
}

#[test]
fn records_without_an_address_never_make_two_living_qps_of_one_number() {
    let mut host = Host::new();
    let t = host.now + SECOND;
    host.pass(SECOND);
    host.qp(modify(t - 16 * MS, 0, 2, 0));
    host.qp(create(t, 0, 2));
    host.qp(create(t - 10 * MS - 1, 0, 2));
    let snapshot = host.tick();
    assert_eq!(snapshot.qps.iter().filter(|row| !row.exited).count(), 1);
}
