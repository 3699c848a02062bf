//! Which finding is first.

use super::*;

/// A symptom of a process, or of a port where none is given, that is there from a time on.
fn of(id: FindingId, severity: Severity, process: Option<u64>, since_ns: u64) -> Finding {
    let about = process.map_or_else(
        || About {
            port: Some(1),
            ..About::of_device(1)
        },
        About::of_process,
    );
    let mut all = symptoms(id, severity, &about, 1);
    all[0].since_mono_ns = since_ns;
    all.remove(0)
}

/// What is found, in its order, while the symptoms last from their second on.
fn order(all: &[(FindingId, Severity, Option<u64>, u64)]) -> Vec<&'static str> {
    let last = all.iter().map(|(.., second)| *second).max().unwrap() + 30;
    let (mut s, mut watch) = (testkit::empty(), FindingTracker::default());
    let begin = s.mono_ns;
    let mut found = Vec::new();
    for second in 0..=last {
        s.mono_ns = begin + second * S;
        let now = all.iter().filter(|(.., since)| *since <= second);
        let now = now.map(|(id, severity, process, since)| of(*id, *severity, *process, begin + since * S));
        found = watch.follow(&s, &s.judgement, now.collect());
    }
    ids(&found)
}

#[test]
fn what_stands_for_days_is_after_what_began_later_or_at_once_with_it() {
    use Severity::Warning;
    let mtu = (FindingId::SmallMtu, Warning, None, 0);
    for second in [0, 4000] {
        let errors = (FindingId::LinkErrors, Warning, None, second);
        assert_eq!(order(&[mtu, errors]), ["link-errors", "small-mtu"], "{second}");
    }
    // It is new, and still less likely the cause than what a link does.
    let (errors, late) = (
        (FindingId::LinkErrors, Warning, None, 0),
        (FindingId::PcieSlow, Warning, None, 60),
    );
    assert_eq!(order(&[errors, late]), ["link-errors", "pcie-slow"]);
    // What is worse is first, whatever it is.
    let worse = (FindingId::SmallMtu, Severity::Critical, None, 0);
    assert_eq!(order(&[errors, worse]), ["small-mtu", "link-errors"]);
}

#[test]
fn of_one_episode_the_cause_is_first_and_the_newest_episode_before_others() {
    use Severity::Critical;
    let qps = (FindingId::QpError, Critical, Some(5), 0);
    let port = (FindingId::PortDown, Critical, None, 30);
    assert_eq!(order(&[qps, port]), ["port-down", "qp-error"]);
    // QPs give up minutes after their port: a result, not news.
    let late = (FindingId::QpError, Critical, Some(5), 200);
    assert_eq!(order(&[port, late]), ["port-down", "qp-error"]);
    let first = (FindingId::CqOverflow, Critical, Some(5), 170);
    assert_eq!(order(&[late, first]), ["cq-overflow", "qp-error"]);
    // A port that is down for an hour has other results than those of now.
    let much_later = (FindingId::QpError, Critical, Some(5), 3700);
    assert_eq!(order(&[port, much_later]), ["qp-error", "port-down"]);
}

#[test]
fn a_setting_stands_only_where_it_was_there_at_first_or_for_an_hour() {
    use Severity::Warning;
    let errors = (FindingId::LinkErrors, Warning, None, 400);
    // The watch begins to look at second 0.
    let seen_slow = |second| (FindingId::PortSlow, Warning, None, second);
    assert_eq!(order(&[errors, seen_slow(0)]), ["link-errors", "port-slow"]);
    assert_eq!(order(&[errors, seen_slow(8)]), ["link-errors", "port-slow"]);
    assert_eq!(order(&[errors, seen_slow(1000)]), ["port-slow", "link-errors"]);
    let late = (FindingId::CqOverflow, Warning, Some(5), 4700);
    let all = order(&[errors, seen_slow(1000), late]);
    assert_eq!(all, ["cq-overflow", "link-errors", "port-slow"]);
}

#[test]
fn a_result_is_behind_its_cause_however_old_that_is() {
    let order = |joined: fn(&mut Finding, &mut Snapshot, u64)| {
        let (mut s, mut watch) = (testkit::empty(), FindingTracker::default());
        let begin = s.mono_ns;
        let mut found = Vec::new();
        for second in (0..=8000).step_by(10) {
            s.mono_ns = begin + second * S;
            let mut port = of(FindingId::PortDown, Severity::Critical, None, begin + 100 * S);
            joined(&mut port, &mut s, second);
            let others = [
                (FindingId::LinkFlaps, None, 600),
                (FindingId::QpError, Some(if second < 7000 { 5 } else { 6 }), 5000),
            ];
            let others = others.into_iter().filter(|(.., from)| second >= *from);
            let mut now: Vec<_> = others
                .map(|(id, process, from)| of(id, Severity::Critical, process, begin + from * S))
                .collect();
            now.push(port);
            found = watch.follow(&s, &s.judgement, now);
        }
        ids(&found)
    };
    let results = ["port-down", "qp-error", "link-flaps"];
    // The job starts again while the port stays down: another process, of later.
    let by_victims = order(|port, _, second| port.victims = vec![if second < 7000 { 5 } else { 6 }]);
    assert_eq!(by_victims, results);
    let by_device = order(|_, s, _| {
        let device = rows::rail(1, "mlx5_0", None, None, None).0;
        s.devices = vec![device];
        s.processes = [5, 6]
            .map(|uid| rows::process(uid, None, "rank", "mlx5_0", Traffic::default()))
            .into();
    });
    // Both ports are of the device that it uses.
    assert_eq!(by_device, ["port-down", "link-flaps", "qp-error"]);
    let apart = order(|_, _, _| {});
    assert_eq!(apart, ["qp-error", "link-flaps", "port-down"]);
}

/// Looks with the same symptoms: more than changes of them take.
const ALIKE: usize = 24;

proptest! {
    /// However findings begin and end: while none does, all stay in their order, and the headline is none
    /// that is less severe, or that stands for days beside an equally bad one that does not.
    #[test]
    fn the_order_changes_only_when_something_begins_or_ends(
        sets in prop::collection::vec((5_u64..600, any::<u64>()), 1..12),
    ) {
        let (mut s, mut watch) = (testkit::empty(), FindingTracker::default());
        let began = s.mono_ns;
        let mut before = Vec::new();
        let (mut looks, mut same) = (0, 0);
        for (seconds, bits) in sets.iter().flat_map(|set| std::iter::repeat_n(*set, ALIKE)) {
            let shown = FindingId::ALL.iter().enumerate().filter(|(at, _)| bits >> (at % 64) & 1 == 1);
            let now = shown.map(|(at, id)| {
                let severity = [Severity::Warning, Severity::Critical][at % 2];
                of(*id, severity, (at % 3 == 0).then_some(at as u64), s.mono_ns)
            });
            let found = watch.follow(&s, &s.judgement, now.collect());
            let changed = !watch.take_changes().is_empty();
            let stands = |found: &Finding| super::super::watch::stands(found, began, s.mono_ns);
            // What has stood for an hour since the last look moves.
            let order: Vec<_> = found.iter().map(|found| (found.id, found.about.clone(), stands(found))).collect();
            let sorted = |order: &[(FindingId, About, bool)]| {
                order.iter().cloned().collect::<std::collections::BTreeSet<_>>()
            };
            if !changed && sorted(&order) == sorted(&before) {
                prop_assert_eq!(&order, &before);
                same += 1;
            }
            looks += 1;
            let ranks = found.iter().map(|found| (std::cmp::Reverse(found.severity), stands(found)));
            prop_assert!(ranks.is_sorted());
            before = order;
            s.mono_ns += seconds * S;
        }
        prop_assert!(same * 3 >= looks, "{same} of {looks}");
    }
}

#[test]
fn when_a_finding_was_so_is_told_from_whether_it_still_is() {
    let when = |age: u64, quiet: u64| {
        let mut found = testkit::full::snapshot().findings[0].clone();
        found.id = FindingId::LinkErrors;
        (found.since_mono_ns, found.seen_mono_ns) = ((100 - age) * S, (100 - quiet) * S);
        let over = found.over(100 * S);
        let shown = over.rsplit_once("shown ").unwrap().1;
        [found.when(100 * S), found.when_short(100 * S), shown.to_owned()]
    };
    for (age, quiet, words) in [
        (21, 0, ["for 21s", "21s", "until 60s later"]),
        (21, 4, ["for 21s", "21s", "until 60s later"]),
        (
            21,
            21,
            ["over: ended 21s ago", "over", "39s more, unless it comes again"],
        ),
        (
            21,
            17,
            ["over: ended 17s ago", "over", "43s more, unless it comes again"],
        ),
        (
            40,
            12,
            [
                "over: lasted 28s, ended 12s ago",
                "over",
                "48s more, unless it comes again",
            ],
        ),
    ] {
        assert_eq!(when(age, quiet), words);
    }
}
