//! Devices at rest: when they are read, and when they are asked for their counts.

use super::*;

/// How many devices are asked for their counters in a round.
fn read(host: &mut Host, wants: Wants) -> usize {
    let wants = Wants {
        counters: true,
        ..wants
    };
    host.source.poll(&wants, &mut |_| ());
    host.kernel.asked(cmd::STAT_GET).len()
}

#[test]
fn few_devices_are_asked_for_their_counts_in_every_round() {
    let mut host = Host::known(FEW);
    for _ in 0..3 {
        let sample = host.poll(false);
        assert_eq!(sample.complete.len(), FEW);
        assert_eq!(
            host.kernel.asked(cmd::RES_GET),
            [None],
            "all together, and nothing else"
        );
    }
    host.kernel.change(2, |made| made.qps.push((17, 0)));
    assert_eq!(numbers(&host.poll(false), 2), [17, 1]);
}

#[test]
fn of_many_devices_those_at_rest_are_left_alone_until_a_repair() {
    let mut host = Host::known(FEW + 1);
    let sample = host.poll(false);
    assert!(
        sample.complete.is_empty() && sample.qps.is_empty(),
        "not read is not empty"
    );
    assert_eq!(host.kernel.asked(cmd::RES_GET), []);
    host.kernel.change(3, |made| made.qps.push((17, 0)));
    assert_eq!(numbers(&host.poll(true), 3), [17, 1]);
    assert_eq!(host.kernel.asked(cmd::RES_GET), [None]);
}

#[test]
fn of_many_devices_those_at_rest_are_read_in_every_other_round() {
    for (devices, rested_ns, asked) in [
        (FEW, u64::MAX, FEW),
        (FEW + 1, 0, FEW + 1),
        (FEW + 1, u64::MAX, 0),
    ] {
        let mut host = Host::known(devices);
        host.source.rested_ns = rested_ns;
        assert_eq!(read(&mut host, Wants::default()), asked, "{devices} {rested_ns}");
    }
    let mut host = Host::known(FEW + 1);
    host.source.rested_ns = u64::MAX;
    let [objects, last, once, repair] = [(); 4].map(|()| Wants::default());
    let asked = [
        Wants {
            objects: true,
            ..objects
        },
        Wants { last: true, ..last },
        Wants { once: true, ..once },
        Wants {
            repair: true,
            ..repair
        },
    ];
    for wants in asked {
        assert_eq!(read(&mut host, wants.clone()), FEW + 1, "{wants:?}");
    }
    // One that moves is read in every round.
    host.source.rested_ns = 0;
    host.kernel.change(3, |made| made.packets = 5);
    read(&mut host, Wants::default());
    host.source.rested_ns = u64::MAX;
    assert_eq!(read(&mut host, Wants::default()), 1);
}

#[test]
fn a_device_at_rest_stays_so_until_it_has_a_further_queue_pair() {
    let mut host = Host::known(FEW + 1);
    host.source.rested_ns = u64::MAX;
    for more in [false, true] {
        if more {
            host.kernel.change(3, |made| made.qps.push((17, 0)));
        }
        // The second listing compares with the counts of the first.
        for _ in 0..2 {
            host.source.listed_ns = None;
            assert_eq!(read(&mut host, Wants::default()), FEW + 1, "a listing reads all");
        }
        assert_eq!(read(&mut host, Wants::default()), usize::from(more), "{more}");
    }
}

#[test]
fn a_device_whose_counters_move_is_asked_in_the_same_round() {
    let mut host = Host::known(FEW + 1);
    host.kernel.change(3, |made| {
        made.qps.push((17, 0));
        made.packets = 5;
    });
    let sample = host.poll(false);
    assert_eq!(
        (sample.complete.as_slice(), numbers(&sample, 3)),
        (&[3][..], vec![17, 1])
    );
    assert_eq!(host.kernel.asked(cmd::RES_GET), [Some(3)]);
    // From now on its QPs may change at any time.
    assert_eq!(numbers(&host.poll(false), 3), [17, 1]);
    assert_eq!(host.kernel.asked(cmd::RES_GET), [Some(3)]);
}

#[test]
fn a_device_that_a_process_has_open_is_never_at_rest() {
    let mut host = Host::new(FEW + 1);
    host.kernel.change(4, |made| made.ctxs = 1);
    for _ in 0..2 {
        host.poll(false);
    }
    host.kernel.asked(0);
    host.kernel.change(4, |made| made.qps.push((17, 0)));
    assert_eq!(numbers(&host.poll(false), 4), [17, 1]);
    assert_eq!(host.kernel.asked(cmd::RES_GET), [Some(4)]);
}

#[test]
fn a_device_that_lost_its_user_comes_to_rest_again() {
    let mut host = Host::known(FEW + 1);
    host.kernel.change(3, |made| {
        made.qps.push((17, 0));
        made.packets = 5;
    });
    host.poll(false);
    host.kernel.change(3, |made| made.qps.clear());
    assert_eq!(numbers(&host.poll(false), 3), [1], "its end is seen at once");
    host.poll(false);
    host.kernel.asked(0);
    assert_eq!(host.poll(false).complete, [] as [u32; 0]);
    assert_eq!(host.kernel.asked(cmd::RES_GET), []);
}

#[test]
fn a_dump_of_queue_pairs_takes_a_tenth_of_the_time_whoever_asks_for_more() {
    let mut host = Host::known(1);
    host.kernel.change(0, |made| {
        made.qps = vec![(17, 0)];
        (made.sleeps, made.sleeps_in) = (40, Some(cmd::RES_QP_GET));
    });
    let mut dumps = |wants: Wants| {
        host.source.poll(&wants, &mut |_| ());
        host.kernel.asked(cmd::RES_QP_GET).len()
    };
    let repair = || Wants {
        repair: true,
        qps: true,
        ..Wants::default()
    };
    assert_eq!(dumps(repair()), 1);
    assert_eq!(dumps(repair()), 0, "the driver has other work");
    // Nine times as long as the dump took, which on a busy machine is longer than its sleep.
    let owed = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(100));
        dumps(Wants::default()) == 1
    });
    assert!(owed, "what was left out is still owed");
    assert_eq!(dumps(repair()), 0);
    let last = Wants {
        last: true,
        ..repair()
    };
    assert_eq!(dumps(last), 1, "there is no later round");
}
