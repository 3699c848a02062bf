//! Which findings keep a place where there are more than are shown or followed.

use super::*;

#[test]
fn one_process_cannot_push_out_what_others_suffer_from() {
    let (s, mut watch) = (testkit::empty(), FindingTracker::default());
    let (hostile, device) = (About::of_process(7), About::of_device(1));
    let mut all = symptoms(FindingId::CompletionError, Severity::Critical, &hostile, 600);
    all.extend(symptoms(FindingId::PcieSlow, Severity::Warning, &device, 1));
    let other = symptoms(
        FindingId::CompletionError,
        Severity::Critical,
        &About::of_process(8),
        1,
    );
    all.extend(other);
    let found = [0, 60]
        .map(|second| {
            let mut now = s.clone();
            now.mono_ns += second * S;
            watch.follow(&now, &now.judgement, all.clone())
        })
        .concat();
    let has = |id, process| {
        let is_it = |f: &&Finding| (f.id, f.about.process) == (id, process);
        found.iter().filter(is_it).count()
    };
    assert!(has(FindingId::CompletionError, Some(8)) > 0 && has(FindingId::PcieSlow, None) > 0);
    assert_eq!(watch.left_out().symptoms, 600 - super::super::watch::OF_ONE);
    let note = watch.left_out().note().unwrap();
    assert_eq!(
        note.line(),
        "584 symptoms left out: at most 128 findings and 16 of one process are kept; users take turns"
    );
}

#[test]
fn one_user_with_many_processes_cannot_push_out_what_others_suffer_from() {
    let mut s = testkit::empty();
    for uid in 1..=1000 {
        let pid = u32::try_from(uid).ok();
        let mut row = rows::process(uid, pid, "x", "mlx5_0", Traffic::default());
        row.user = Some(if uid <= 900 { "hostile" } else { "other" }.into());
        s.processes.push(row);
    }
    let of = |uid: u64, severity| symptoms(FindingId::CompletionError, severity, &About::of_process(uid), 1);
    let mut all: Vec<Finding> = (1..=900).flat_map(|uid| of(uid, Severity::Critical)).collect();
    all.extend((990..1000).flat_map(|uid| of(uid, Severity::Warning)));
    let of_device = symptoms(FindingId::PcieSlow, Severity::Warning, &About::of_device(1), 1);
    let mut watch = FindingTracker::default();
    let mut look = |second: u64| {
        let mut now = s.clone();
        now.mono_ns += second * S;
        // It comes when all places are taken.
        let later = of_device.iter().filter(|_| second > 0);
        let found = watch.follow(&now, &now.judgement, all.iter().chain(later).cloned().collect());
        let count = |wants: fn(&Finding) -> bool| found.iter().filter(|found| wants(found)).count();
        let others = count(|found| found.about.process.is_some_and(|uid| uid >= 990));
        let of_device = count(|found| found.about.process.is_none());
        (found.len(), others, of_device, watch.take_changes().len())
    };
    assert_eq!(look(0), (128, 10, 0, 512));
    for second in 1..5 {
        assert_eq!(look(second), (128, 10, 0, 0));
    }
    // `pcie-slow` is raised after five seconds, in a place of the user who has the most.
    assert_eq!(look(5), (128, 10, 1, 2));
    assert_eq!(look(6), (128, 10, 1, 0), "nobody takes a place back");
    assert_eq!((watch.left_out().findings, watch.left_out().symptoms), (384, 399));
}

#[test]
fn processes_of_unknown_users_push_out_nothing_of_the_kernel_s() {
    let mut s = testkit::empty();
    let mut row = rows::process(1000, None, "nfs", "mlx5_0", Traffic::default());
    row.kernel = true;
    s.processes.push(row);
    let of = |uid: u64, severity, parts| {
        symptoms(
            FindingId::CompletionError,
            severity,
            &About::of_process(uid),
            parts,
        )
    };
    let mut all: Vec<Finding> = (1..=900).flat_map(|uid| of(uid, Severity::Critical, 1)).collect();
    all.extend(of(1000, Severity::Warning, 4));
    let found = FindingTracker::default().follow(&s, &s.judgement, all);
    let is_kernel = |found: &&Finding| found.about.process == Some(1000);
    assert_eq!((found.len(), found.iter().filter(is_kernel).count()), (128, 4));
}

#[test]
fn a_raised_finding_makes_way_for_a_raised_one_alone() {
    let (s, mut watch) = (testkit::empty(), FindingTracker::default());
    let warnings: Vec<Finding> = (1..=512)
        .flat_map(|rank| {
            symptoms(
                FindingId::CompletionError,
                Severity::Warning,
                &About::of_process(rank),
                1,
            )
        })
        .collect();
    let mut look = |second: u64, critical: bool| {
        let mut now = s.clone();
        now.mono_ns += second * S;
        let mut all = warnings.clone();
        if critical {
            all.extend(symptoms(
                FindingId::ReceiverNotReady,
                Severity::Critical,
                &About::of_process(1000),
                1,
            ));
        }
        watch.follow(&now, &now.judgement, all);
        let cleared = |change: &&Change| matches!(change, Change::Cleared(_));
        let changes = watch.take_changes();
        let cleared = changes.iter().filter(cleared).count();
        (changes.len() - cleared, cleared, watch.left_out().symptoms)
    };
    assert_eq!(look(0, false), (512, 0, 0));
    // It is raised when it was there for some seconds.
    assert_eq!(look(1, true), (0, 0, 0));
    assert_eq!(look(2, false), (0, 0, 0));
    for second in 3..=4 {
        assert_eq!(look(second, true), (0, 0, 0), "{second}");
    }
    assert_eq!(look(5, true), (1, 1, 1));
    // What has made way waits for a place, and takes none from its like.
    assert_eq!(look(6, true), (0, 0, 1));
}

#[test]
fn of_too_many_findings_the_worst_stay_and_the_rest_is_counted() {
    let (s, mut watch) = (testkit::empty(), FindingTracker::default());
    let ranks = |severity| -> Vec<Finding> {
        let of = |rank| symptoms(FindingId::CompletionError, severity, &About::of_process(rank), 1);
        (1..=700).flat_map(of).collect()
    };
    assert_eq!(
        watch.follow(&s, &s.judgement, ranks(Severity::Warning)).len(),
        128
    );
    assert_eq!((watch.left_out().findings, watch.left_out().symptoms), (384, 188));
    let mut changes = watch.take_changes();
    // The cause of all comes late, and the ranks fail at once.
    let mut later = s.clone();
    later.mono_ns += S;
    let mut all = ranks(Severity::Critical);
    all.extend(symptoms(
        FindingId::DriverErrors,
        Severity::Critical,
        &About::of_device(1),
        1,
    ));
    let found = watch.follow(&later, &later.judgement, all);
    assert!(found.iter().all(|found| found.severity == Severity::Critical));
    assert!(found.iter().any(|found| found.id == FindingId::DriverErrors));
    assert_eq!((watch.left_out().findings, watch.left_out().symptoms), (384, 189));
    changes.extend(watch.take_changes());
    let mut raised = 0_i64;
    for change in changes {
        raised += if matches!(change, Change::Raised(_)) {
            1
        } else {
            -1
        };
    }
    assert_eq!(raised, 512, "what makes way is cleared");
    later.mono_ns += 600 * S;
    watch.follow(&later, &later.judgement, Vec::new());
    assert_eq!(watch.left_out().note(), None);
}
