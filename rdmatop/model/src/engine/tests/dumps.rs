use super::*;
use crate::cause::{Cause, CauseId, Concerns, Obstacle};
use crate::{input::CountersSample, value::Source};

#[test]
fn the_first_dump_fills_the_table() {
    let mut host = Host::new();
    let t = host.now;
    let mut gsi = dumped(1, None, 3);
    gsi.kern_name = Some("ib_core".into());
    host.dump(t, vec![gsi, dumped(17, Some(231), 3)]);
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.qpn, r.comm.as_deref(), r.kernel, r.orphan))
        .collect();
    assert_eq!(
        rows,
        [
            (1, Some("[ib_core]"), true, false),
            (17, Some("#231"), false, false)
        ]
    );
    assert_eq!(snapshot.qps[1].state_source, Some(Source::Netlink));
    assert_eq!(
        snapshot.qps[1].born_mono_ns, None,
        "older than us: its age is unknown"
    );
    assert_eq!(host.engine.needs().processes, [231]);
}

fn driven_by(driver: &str) -> DeviceReading {
    DeviceReading {
        driver: Some(driver.into()),
        ..rxe(0, "rxe0")
    }
}

#[test]
fn the_first_qp_of_an_efa_device_has_the_number_0() {
    let mut host = Host::new();
    host.devices(vec![driven_by("efa")]);
    let t = host.now;
    let mut srd = dumped(0, Some(231), 3);
    srd.qp_type = Some(QpType::DRIVER);
    host.pass(SECOND).dump(t + SECOND, vec![srd]);
    let mut record = modify(t + 2 * SECOND, 0xa0, 0, 3);
    record.qp_type = QpType::DRIVER.0.into();
    let event = host.pass(SECOND).qp(record);
    let rows = host.tick();
    let rows: Vec<_> = rows
        .qps
        .iter()
        .map(|qp| (qp.number(), qp.pid, qp.exited))
        .collect();
    assert_eq!((event.qpn, &*rows), (Some(0), &[(Some(0), Some(231), false)][..]));
    host.pass(5 * SECOND).dump(t + 7 * SECOND, Vec::new());
    assert!(host.tick().qps.iter().all(|qp| qp.exited), "a dump ends it");
}

#[test]
fn qps_without_a_number_are_told_by_their_addresses() {
    for qp_type in [QpType::RAW_PACKET, QpType::DRIVER] {
        let mut host = Host::new();
        host.devices(vec![driven_by("mlx5_core")]);
        let t = host.now;
        let of_type = |mut record: QpRecord| {
            record.qp_type = qp_type.0.into();
            record
        };
        // The kernel's number of each DCT of mlx5 is 0.
        for object in [0xa0, 0xb0] {
            let event = host.qp(of_type(create(t + object, object, 0)));
            assert_eq!(event.qpn, None);
        }
        let event = host.pass(SECOND).qp(of_type(modify(t + SECOND, 0xb0, 0, 2)));
        assert_eq!((event.qpn, event.qp_type), (None, Some(qp_type)));
        // The kernel lists none of them, or the first one.
        let mut first = dumped(0, Some(231), 1);
        first.qp_type = Some(qp_type);
        for (at, listed) in [(2, vec![]), (3, vec![first])] {
            host.pass(SECOND).dump(t + at * SECOND, listed);
            let snapshot = host.tick();
            let rows = snapshot.qps.iter();
            let rows: Vec<_> = rows.map(|qp| (qp.number(), qp.state, qp.exited)).collect();
            let [reset, rtr] = [QpState(0), QpState::RTR].map(|state| (None, Some(state), false));
            assert_eq!(rows, [reset, rtr]);
            assert_eq!(host.process(231).qps, 2);
        }
        let row = serde_json::to_value(&*host.tick().qps[0]).unwrap();
        assert_eq!(
            (&row["qpn"], host.tick().qps[0].name()),
            (&serde_json::Value::Null, "rxe0/-".into())
        );
        // Other programs see the same QP for the first time.
        let mut again = of_type(modify(t + 4 * SECOND, 0xb0, 0, 3));
        again.born_ns = t + 4 * SECOND - 9;
        host.pass(SECOND).qp(again);
        assert_eq!(
            host.tick().qps.iter().map(|qp| qp.exited).collect::<Vec<_>>(),
            [false; 2]
        );
        host.qp(of_type(destroy(t + 5 * SECOND, 0xb0, 0)));
        let rows = host.tick();
        assert_eq!(
            rows.qps.iter().map(|qp| qp.exited).collect::<Vec<_>>(),
            [false, true]
        );
        host.pass(SECOND).devices(vec![]);
        assert!(host.tick().qps.iter().all(|qp| qp.exited));
    }
}

#[test]
fn a_slot_of_qp_1_belongs_to_the_qp_of_the_dump_although_it_names_no_port() {
    let mut host = Host::new();
    let t = host.now;
    let gsi = |port| {
        let mut gsi = dumped(1, None, 3);
        gsi.port = Some(port);
        gsi.kern_name = Some("ib_core".into());
        gsi
    };
    host.dump(t, vec![gsi(1)]);
    host.sweep(&[slot(t, 0xa0, 1, 10)]);
    host.pass(SECOND).dump(t + SECOND, vec![gsi(1)]);
    let row = host.only_qp();
    assert_eq!(row.comm.as_deref(), Some("[ib_core]"));
    assert_eq!(row.traffic.tx_wr.unwrap().total, 10);
    assert!(!row.exited);
    // Each port has its own QP 1.
    host.pass(SECOND).dump(t + 2 * SECOND, vec![gsi(1), gsi(2)]);
    assert_eq!(host.tick().qps.len(), 2);
}

#[test]
fn the_name_of_a_consumer_whose_qp_rdma_cm_made_is_that_of_the_record() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(record(
        consumer(prefix(kind::QP_CREATE, t, 0xa0), "nvme_rdma"),
        17,
    ));
    let mut reading = dumped(17, None, 3);
    reading.kern_name = Some("rdma_cm".into());
    host.pass(SECOND).dump(t + SECOND, vec![reading.clone()]);
    assert_eq!(host.only_qp().comm.as_deref(), Some("[nvme_rdma]"));
    // A QP without a record has the owner that rdma_cm reported.
    reading.qpn = 18;
    host.dump(t + SECOND + 1, vec![reading]);
    let snapshot = host.tick();
    let other = snapshot.qps.iter().find(|row| row.qpn == 18).unwrap();
    assert_eq!(other.comm.as_deref(), Some("[rdma_cm]"));
}

#[test]
fn a_dump_that_is_older_than_an_event_does_not_undo_it() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t + 1, 0xb0, 18));
    host.qp(modify(t + 20, 0xa0, 17, 3));
    host.qp(destroy(t + 20, 0xb0, 18));
    host.qp(create(t + 20, 0xc0, 19));
    // Began before all of that, arrives after it.
    host.dump(t + 10, vec![dumped(17, Some(231), 1), dumped(18, Some(231), 0)]);
    let snapshot = host.tick();
    let rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.qpn, r.state.unwrap().0, r.exited))
        .collect();
    assert_eq!(rows, [(17, 3, false), (18, 0, true), (19, 0, false)]);
}

#[test]
fn a_qp_missing_from_a_complete_dump_is_gone() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t + 1, 0xb0, 18));
    host.dump(t + 10, vec![dumped(18, Some(231), 0)]);
    let snapshot = host.tick();
    assert_eq!(
        snapshot.qps.iter().map(|r| r.exited).collect::<Vec<_>>(),
        [true, false]
    );
    assert_eq!(host.process(231).qps, 1);
}

#[test]
fn a_dump_that_is_not_complete_ends_nothing() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let sample = QpsSample {
        mono_ns: t + 10,
        ..QpsSample::default()
    };
    host.apply(Input::Qps(Box::new(sample)));
    assert!(!host.only_qp().exited);
}

#[test]
fn a_qp_listed_twice_is_one() {
    let mut host = Host::new();
    host.dump(host.now, vec![dumped(17, Some(231), 1), dumped(17, Some(231), 3)]);
    assert_eq!(host.only_qp().state, Some(QpState(3)));
}

#[test]
fn a_create_record_behind_the_dump_that_has_the_qp_makes_no_second_one() {
    let mut host = Host::new();
    let t = host.now;
    host.pass(SECOND);
    host.dump(t, vec![dumped(17, Some(231), 1)]);
    // Created while the dump ran; the record was still in the channel.
    host.qp(create(t + 5, 0xa0, 17));
    let row = host.only_qp();
    assert_eq!((row.born_mono_ns, row.state), (Some(t + 5), Some(QpState(1))));
    assert_eq!(
        row.timeline.iter().map(|s| s.mono_ns).collect::<Vec<_>>(),
        [t + 5]
    );
    host.qp(destroy(t + 9, 0xa0, 17));
    assert!(host.only_qp().exited);
}

#[test]
fn a_create_record_after_a_dump_does_not_name_a_port_set_by_init() {
    let mut host = Host::new();
    let t = host.now;
    host.pass(SECOND);
    host.dump(t, vec![dumped(17, Some(231), 3)]);
    assert_eq!(host.qp(create(t + 5, 0xa0, 17)).port, None);
    assert_eq!(host.qp(modify(t + 9, 0xa0, 17, 3)).port, Some(1));
    let mut of_gsi = create(t + 12, 0xb0, 1);
    of_gsi.port = 1;
    assert_eq!(host.qp(of_gsi).port, Some(1), "the record's own");
}

#[test]
fn a_create_long_after_the_dump_is_another_qp() {
    let mut host = Host::new();
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3)]);
    host.pass(60 * SECOND);
    host.qp(create(t + 59 * SECOND, 0xa0, 17));
    let snapshot = host.tick();
    assert_eq!(
        snapshot.qps.iter().map(|r| r.exited).collect::<Vec<_>>(),
        [true, false]
    );
}

#[test]
fn a_newer_dump_shows_an_err_that_no_modify_made() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(modify(t + 1, 0xa0, 17, 3));
    let mut fatal = record(prefix(kind::QP_ASYNC, t + 2, 0xa0), 17);
    fatal.event = 1;
    let event = host.qp(fatal);
    assert_eq!(event.async_event.unwrap().to_string(), "QP_FATAL");
    assert_eq!((event.pid, event.from), (Some(231), Some(QpState(3))));
    assert!(host.engine.wants_repair());
    host.pass(1).dump(t + 3, vec![dumped(17, Some(231), 6)]);
    let row = host.only_qp();
    assert_eq!(
        (row.state, row.state_source),
        (Some(QpState(6)), Some(Source::Netlink))
    );
    assert_eq!(row.timeline.last().map(|s| s.mono_ns), Some(t + 3));
}

#[test]
fn lost_records_are_reported_and_repaired_by_a_dump() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let events = host.apply(Input::Losses([40, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    let seen: Vec<_> = events
        .iter()
        .map(|e| (e.event.name(), e.lost_where, e.count))
        .collect();
    assert_eq!(
        seen,
        [("lost", Some("ring"), Some(40)), ("lost", Some("stash"), Some(2))]
    );
    assert!(host.engine.wants_repair());
    host.dump(t - 1, vec![]);
    assert!(host.engine.wants_repair(), "it began before the loss");
    host.pass(1).dump(t + 1, vec![dumped(18, Some(231), 3)]);
    assert!(!host.engine.wants_repair());
    let snapshot = host.tick();
    assert_eq!(
        snapshot.qps.iter().map(|r| (r.qpn, r.exited)).collect::<Vec<_>>(),
        [(17, true), (18, false)]
    );
    assert_eq!(snapshot.health.lost_events, Some(42));
    assert!(
        host.apply(Input::Losses([40, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]))
            .is_empty()
    );
}

#[test]
fn records_that_other_programs_make_from_now_on_ask_for_a_dump() {
    let mut host = Host::new();
    assert!(!host.engine.wants_repair());
    assert!(host.apply(anew()).is_empty());
    assert!(host.engine.wants_repair());
    let t = host.pass(1).now;
    host.dump(t, Vec::new());
    assert!(!host.engine.wants_repair());
}

#[test]
fn a_list_of_devices_that_could_not_be_read_makes_nothing_go() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let unread = |errors: &[Cause], unread| {
        Input::Devices(Box::new(DevicesSample {
            mono_ns: t + 1,
            unread,
            errors: errors.to_vec(),
            ..DevicesSample::default()
        }))
    };
    let full = Obstacle::new(CauseId::NoFiles, "Too many open files", "");
    let full = full.takes("list of devices", Concerns::Host);
    host.apply(unread(std::slice::from_ref(&full), true));
    let snapshot = host.tick();
    assert_eq!((snapshot.devices.len(), snapshot.qps[0].exited), (1, false));
    assert_eq!(snapshot.health.errors, [full]);
    host.apply(unread(&[], false));
    assert!(host.tick().devices.is_empty());
}

#[test]
fn skipped_programs_are_unknown_until_reported_and_stay_as_last_reported() {
    let mut host = Host::new();
    assert!(host.tick().health.skipped.is_none());
    let skipped = crate::input::Skipped {
        program: "kp_xmit".to_owned(),
        hook: "kprobe:rxe_xmit_packet".to_owned(),
        count: 9,
        cost: "as many may be missing: retransmitted packets".to_owned(),
    };
    let line = skipped.to_string();
    assert_eq!(
        line,
        "the kernel skipped kprobe:rxe_xmit_packet 9 times: as many may be missing: retransmitted packets"
    );
    host.apply(Input::Skipped(Some(vec![skipped.clone()])));
    // Read before that one, and overtaken.
    host.apply(Input::Skipped(Some(Vec::new())));
    assert_eq!(host.tick().health.skipped.as_deref(), Some(&vec![skipped]));
    host.apply(Input::Skipped(None));
    assert!(host.tick().health.skipped.is_none());
}

#[test]
fn undecodable_records_and_a_full_channel_are_losses_too() {
    let mut host = Host::new();
    assert_eq!(host.apply(Input::BadRecord)[0].lost_where, Some("decode"));
    assert_eq!(host.apply(Input::ChannelDropped(3))[0].count, Some(3));
    assert_eq!(host.apply(Input::ChannelDropped(5))[0].count, Some(2));
    let health = &host.tick().health;
    assert_eq!(health.lost_events, Some(6));
    let losses: Vec<_> = health.losses.iter().map(|l| (l.at, l.count)).collect();
    assert_eq!(losses, [("decode", 1), ("channel", 5)]);
}

#[test]
fn an_orphan_keeps_the_owner_that_events_knew() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.gone(231);
    assert!(
        host.engine.wants_repair(),
        "does another process hold it, or is the destroy on its way?"
    );
    host.pass(SECOND).dump(t + 10, vec![dumped(17, None, 3)]);
    let row = host.only_qp();
    assert_eq!(
        (row.orphan, row.pid, row.comm.as_deref()),
        (true, Some(231), Some("ib_send_bw"))
    );
    host.pass(60 * SECOND);
    let process = host.process(231);
    assert_eq!(
        (process.exited, process.qps),
        (true, 1),
        "the row stays while the QP does"
    );
}

#[test]
fn an_orphan_whose_owner_was_never_seen_has_none() {
    let mut host = Host::new();
    host.dump(host.now, vec![dumped(17, None, 3)]);
    let row = host.only_qp();
    assert_eq!(
        (row.orphan, row.pid, row.comm.as_deref(), row.kernel),
        (true, None, None, false)
    );
}

/// The kernel leaves the PID out for a thread that ended as for a process.
#[test]
fn a_qp_whose_creating_thread_ended_is_no_orphan_while_its_process_lives() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.pass(SECOND).dump(t + 10, vec![dumped(17, None, 3)]);
    let row = host.only_qp();
    assert_eq!((row.orphan, row.pid), (false, Some(231)));
    host.gone(231);
    let now = host.now;
    host.pass(SECOND).dump(now + 10, vec![dumped(17, None, 3)]);
    assert!(host.only_qp().orphan);
}

#[test]
fn an_owner_that_is_known_after_the_dump_makes_a_qp_no_orphan() {
    let mut host = Host::new();
    let t = host.now;
    host.dump(t, vec![dumped(17, None, 3)]);
    assert!(host.only_qp().orphan);
    host.pass(SECOND).qp(modify(t + 10, 0xa0, 17, 3));
    let row = host.only_qp();
    assert_eq!((row.orphan, row.pid), (false, Some(231)));
}

/// In a PID namespace of its own rdmatop gets the machine's PIDs from records and its own namespace's from
/// everything else.
#[test]
fn with_pids_of_two_namespaces_only_records_name_owners() {
    let mut host = Host::with(EngineConfig {
        nested_pids: true,
        ..EngineConfig::default()
    });
    let called = |mono_ns, pid, calls| {
        let stats = VerbStats {
            calls,
            ..VerbStats::new_zeroed()
        };
        Input::Verbs(Box::new(VerbsSample {
            mono_ns,
            verbs: vec![(VerbKey { pid, verb: 1 }, stats)],
            ..VerbsSample::default()
        }))
    };
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.pass(SECOND).dump(
        t + 10,
        vec![dumped(17, None, 3), dumped(18, Some(5), 3), dumped(19, None, 3)],
    );
    assert_eq!(
        host.engine.needs().processes,
        [0u32; 0],
        "/proc knows others by that number"
    );
    let rows: Vec<_> = host
        .tick()
        .qps
        .iter()
        .map(|row| (row.qpn, row.pid, row.orphan))
        .collect();
    assert_eq!(
        rows,
        [(17, Some(231), false), (18, None, false), (19, None, false)]
    );
    host.apply(called(host.now, 400, 1));
    let sums = [(5, 4096)].into();
    let counters = CountersSample {
        mono_ns: host.now,
        mr_bytes: Some(sums),
        ..CountersSample::default()
    };
    host.apply(Input::Counters(Box::new(counters)));
    let pids = |host: &mut Host| -> Vec<_> {
        let snapshot = host.tick();
        let rows = snapshot.processes.iter();
        rows.map(|row| (row.pid, row.exited)).collect()
    };
    assert_eq!(pids(&mut host), [(Some(231), false), (Some(400), false)]);
    // No input reports an end here: a process that owns nothing and does nothing is forgotten, and not shown
    // as ended.
    host.pass(4 * SECOND);
    host.apply(called(host.now, 400, 2));
    host.pass(4 * SECOND);
    assert_eq!(pids(&mut host), [(Some(231), false), (Some(400), false)]);
    host.pass(6 * SECOND);
    assert_eq!(pids(&mut host), [(Some(231), false)]);
}

#[test]
fn a_moving_psn_is_an_estimate_and_a_still_one_is_unknown() {
    let mut host = Host::new();
    let t = host.now;
    let reading = |psn| QpReading {
        sq_psn: Some(psn),
        ..dumped(17, Some(231), 3)
    };
    let passed = |host: &mut Host, packets| {
        let counters = [("sent_pkts", packets), ("rcvd_pkts", packets)];
        host.devices(vec![counting(0, "rxe0", "rdma_rxe", &counters)]);
    };
    passed(&mut host, 0);
    host.dump(t, vec![reading(0xff_ffff)]);
    assert_eq!(host.only_qp().traffic.tx_packets, None);
    passed(host.pass(SECOND), 50);
    host.dump(t + SECOND, vec![reading(0xff_ffff)]);
    assert_eq!(host.only_qp().traffic.tx_packets, None);
    passed(host.pass(SECOND), 150);
    host.dump(t + 2 * SECOND, vec![reading(99)]);
    let packets = host.only_qp().traffic.tx_packets.unwrap();
    assert_eq!(
        (packets.total, packets.rate, packets.source),
        (100, Some(100.0), Source::Est)
    );
}

#[test]
fn an_attribute_set_after_the_dump_began_stays() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let mut rtr = modify(t + 20, 0xa0, 17, 2);
    rtr.dest_qpn = 18;
    host.qp(rtr);
    let reading = QpReading {
        remote_qpn: Some(99),
        ..dumped(17, Some(231), 1)
    };
    host.dump(t + 10, vec![reading.clone()]);
    assert_eq!(host.only_qp().remote_qpn, Some(18));
    host.pass(1).dump(t + 30, vec![reading]);
    assert_eq!(host.only_qp().remote_qpn, Some(99));
}

#[test]
fn a_dump_older_than_the_removal_of_its_device_brings_nothing_back() {
    let mut host = Host::new();
    let t = host.now;
    host.pass(SECOND).devices(vec![]);
    host.dump(t, vec![dumped(17, Some(231), 3)]);
    let snapshot = host.tick();
    assert!(snapshot.devices.is_empty());
    assert!(snapshot.qps.iter().all(|row| row.exited));
}
