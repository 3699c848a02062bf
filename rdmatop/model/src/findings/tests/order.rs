//! Which finding is first.

use super::*;

/// A symptom of a process, or of a port where none is given, that is there from a time on.
fn of(id: FindingId, severity: Severity, process: Option<u64>, since_ns: u64) -> Symptom {
    let about = process.map_or_else(
        || About {
            port: Some(1),
            ..About::of_device(1)
        },
        About::of_process,
    );
    let mut all = symptoms(id, severity, &about, 1);
    all[0].since_ns = since_ns;
    all.remove(0)
}

/// What is found, in its order, while the symptoms last from their second on.
fn order(all: &[(FindingId, Severity, Option<u64>, u64)]) -> Vec<&'static str> {
    let last = all.iter().map(|(.., second)| *second).max().unwrap() + 30;
    let (mut s, mut watch) = (testkit::empty(), Watch::default());
    let begin = s.mono_ns;
    let mut found = Vec::new();
    for second in 0..=last {
        s.mono_ns = begin + second * S;
        let now = all.iter().filter(|(.., since)| *since <= second);
        let now = now.map(|(id, severity, process, since)| of(*id, *severity, *process, begin + since * S));
        found = watch.follow(&s, now.collect());
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

proptest! {
    /// However findings begin and end: while none does, all stay in their order, and the headline is none
    /// that is less severe, or that stands for days beside an equally bad one that does not.
    #[test]
    fn the_order_changes_only_when_something_begins_or_ends(
        looks in prop::collection::vec((1_u64..600, any::<u64>()), 1..120),
        often in any::<bool>(),
    ) {
        let (mut s, mut watch) = (testkit::empty(), Watch::default());
        let mut before: Vec<(FindingId, About)> = Vec::new();
        for (seconds, bits) in looks {
            let shown = FindingId::ALL.iter().enumerate().filter(|(at, _)| bits >> (at % 64) & 1 == 1);
            let now = shown.map(|(at, id)| {
                let severity = [Severity::Warning, Severity::Critical][at % 2];
                of(*id, severity, (at % 3 == 0).then_some(at as u64), s.mono_ns)
            });
            let found = watch.follow(&s, now.collect());
            let changed = !watch.take_changes().is_empty();
            let order: Vec<_> = found.iter().map(|found| (found.id, found.about.clone())).collect();
            prop_assert!(changed || order == before);
            let ranks = found.iter().map(|found| (std::cmp::Reverse(found.severity), found.id.stands()));
            prop_assert!(ranks.is_sorted());
            before = order;
            s.mono_ns += if often { seconds.div_ceil(20) } else { seconds } * S;
        }
    }
}
