//! Links that go down again and again: how often, for how long, and what failed.

use super::*;

#[test]
fn a_link_that_goes_down_repeatedly_flaps_and_one_outage_does_not() {
    let mut watch = FindingTracker::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.processes[0].devices.remove(3);
    s.ports[4].netdev = Some("eth4".into());
    named(&mut s.ports[4], "link_downed", 0.0);
    // The port is down for ten seconds of each minute; when rdmatop looks at it, the first of two times a
    // minute, the port is up again and the counter has risen.
    let minute = |s: &mut Snapshot, watch: &mut FindingTracker, down: bool, rises: u64| {
        let mut found = Vec::new();
        for second in (0..60).step_by(10) {
            s.mono_ns += 10 * S;
            s.ports[3].state = Some(PortState(if down && second == 10 { 1 } else { 4 }));
            let downed = s.ports[4].counters.last_mut().unwrap();
            downed.counter.total += if second == 20 { rises } else { 0 };
            downed.counter.rate = Some(if second == 20 && rises > 0 { 0.1 } else { 0.0 });
            found = watch.look_at(&s.clone().judged(None));
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
            "The link of mlx5_4/1 flaps: it went down 4 times within 2m40s; used by rank (PID 4711, slurm 7341.0)"
        ]
    );
    assert_eq!(found[1].evidence, ["by link_downed, the last time 30s ago"]);
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
    let mut watch = FindingTracker::default();
    for down in [false, true, true, true, true, false] {
        s.mono_ns += 100 * S;
        s.ports[3].state = Some(PortState(if down { 1 } else { 4 }));
        assert_eq!(ids(&watch.look_at(&s.clone().judged(None))), [""; 0]);
    }
}

/// What is found of a link that is seen down for five seconds of twenty, three times.
fn flapping(counted: bool, edit: impl Fn(&mut Snapshot)) -> Finding {
    let mut watch = FindingTracker::default();
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
        found = watch.look_at(&s.clone().judged(None));
        s.mono_ns += S;
    }
    let flaps = found.into_iter().find(|found| found.id == FindingId::LinkFlaps);
    flaps.unwrap()
}

#[test]
fn a_link_that_flaps_says_for_how_long_it_was_down_and_which_qps_failed() {
    let verdict = "The link of mlx5_3/1 flaps: it went down 3 times within 55s, for 12s or more in all; used by rank (PID \
                   4711, slurm 7341.0)";
    let witness = "by the port's state, the last time 14s ago";
    let found = flapping(true, |_| {});
    assert_eq!(found.verdict, verdict);
    assert_eq!(found.evidence, [witness]);
    let found = flapping(false, |_| {});
    assert_eq!((&*found.verdict, found.evidence.len()), (verdict, 1));
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
            .contains(", for 12s or more in all, and 1 QP went to ERR; used by"),
        "{}",
        failed.verdict
    );
    assert_eq!(
        failed.evidence[1],
        "1 QP of 1 process went to ERR since the link first went down"
    );
    let well = with_qp(3, 7);
    assert_eq!((well.verdict.as_str(), well.evidence.len()), (verdict, 1));
    let earlier = with_qp(6, 0);
    assert_eq!(
        (earlier.verdict.as_str(), earlier.evidence.len()),
        (verdict, 1),
        "what failed before has another reason"
    );
}

/// What is found at the end of a link that is looked at each second; `look` gives its state and counter.
fn flaps_of(seconds: u64, look: impl Fn(u64) -> (u8, Counter)) -> Finding {
    let mut watch = FindingTracker::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[3], "link_downed", 0.0);
    let mut found = Vec::new();
    for second in 0..seconds {
        let (state, counter) = look(second);
        s.ports[3].state = Some(PortState(state));
        s.ports[3].counters.last_mut().unwrap().counter = counter;
        found = watch.look_at(&s.clone().judged(None));
        s.mono_ns += S;
    }
    found
        .into_iter()
        .find(|found| found.id == FindingId::LinkFlaps)
        .unwrap()
}

#[test]
fn no_time_down_exceeds_the_window() {
    let counter = |total| Counter::whole(total, Some(0.0), Source::Netlink);
    // It comes up between the snapshots, which all see it down, each ten seconds, for half an hour.
    let bounces = flaps_of(1800, |second| (1, counter(second / 10)));
    let time = bounces.verdict.split_once(", for ").unwrap().1;
    assert!(time.starts_with("9m"), "{}", bounces.verdict);
    // One look finds that it went down three times.
    let at_once = flaps_of(12, |second| (4, counter(if second == 11 { 3 } else { 0 })));
    assert!(
        at_once.verdict.contains("3 times within 1s; used by"),
        "{}",
        at_once.verdict
    );
}

#[test]
fn a_link_that_is_found_to_flap_has_no_outages_beside_it() {
    let mut watch = FindingTracker::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[4], "link_downed", 1.0);
    let found: Vec<_> = (0..4)
        .map(|_| {
            s.mono_ns += S;
            s.ports[4].counters.last_mut().unwrap().counter.total += 1;
            ids(&watch.look_at(&s.clone().judged(None)))
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
fn a_link_of_ethernet_flaps_by_the_counter_of_its_network_device() {
    let mut watch = FindingTracker::default();
    let mut s = rails([4e9; 8], [4e9; 8]);
    s.ports[4].link_layer = Some("Ethernet".into());
    named(&mut s.ports[4], "link_downed", 0.0);
    let mut look = |s: &mut Snapshot| {
        s.mono_ns += S;
        watch.look_at(&s.clone().judged(None))
    };
    look(&mut s);
    // It is read later than the other, and has counted since the driver was loaded.
    ethtool(&mut s.ports[4], "link_down_events_phy", 0.0);
    s.ports[4].counters.last_mut().unwrap().counter.total = 40;
    assert_eq!(ids(&look(&mut s)), [""; 0]);
    s.ports[4].counters.last_mut().unwrap().counter.total = 43;
    let found = look(&mut s);
    assert_eq!(ids(&found), ["link-flaps"]);
    assert_eq!(
        found[0].verdict,
        "The link of mlx5_4/1 flaps: it went down 3 times within 6s; used by rank (PID 4711, slurm 7341.0)",
        "it is read each five seconds"
    );
    assert_eq!(
        found[0].evidence,
        ["by link_down_events_phy, the last time 0s ago"]
    );
    // A link of a bond leaves the port up.
    let mut s = rails([4e9; 8], [4e9; 8]);
    let mut watch = FindingTracker::default();
    ethtool(&mut s.ports[4], "eth4:link_down_events_phy", 0.0);
    watch.look_at(&s.clone().judged(None));
    s.mono_ns += S;
    let counter = &mut s.ports[4].counters.last_mut().unwrap().counter;
    (counter.total, counter.rate) = (10, Some(0.6));
    let found = watch.look_at(&s.judged(None));
    assert_eq!(
        found.iter().map(|found| &*found.verdict).collect::<Vec<_>>(),
        ["The link of eth4, of the bond of mlx5_4/1, went down; used by rank (PID 4711, slurm 7341.0)"]
    );
}
