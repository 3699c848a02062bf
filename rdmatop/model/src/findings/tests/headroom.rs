//! Devices that run out of objects.

use super::*;
use crate::snapshot::QpRow;

/// A pair of processes on a device that has so many QPs and may have so many.
fn held(qps: u64, max_qp: Option<u64>) -> Snapshot {
    let mut s = pair();
    let device = s.devices.iter_mut().find(|row| &*row.name == "rxe0").unwrap();
    (device.qps, device.max_qp) = (Some(qps), max_qp);
    let uid = device.uid;
    let on_it = |qp: &Arc<QpRow>| {
        let mut qp = Arc::clone(qp);
        Arc::make_mut(&mut qp).device_uid = Some(uid);
        qp
    };
    s.qps = s.qps.iter().map(on_it).collect();
    s
}

/// The same, where create_qp of the first process has failed so often with this errno.
fn refused(failures: u64, errno: u32) -> Snapshot {
    let mut s = held(1024, Some(1024));
    let mut row = rows::verb(254, "ib_send_bw", "create_qp", 3.0, &[(errno, failures)], false);
    row.process_uid = Some(1);
    s.verbs.push(row);
    s
}

#[test]
fn a_device_with_nine_tenths_of_its_qps_is_named_with_their_holders() {
    let found = after(0, &held(930, Some(1024)));
    assert_eq!(ids(&found), ["headroom"]);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(found[0].verdict, "rxe0 has 930 of the 1024 QPs that it may have");
    assert_eq!(
        found[0].evidence,
        [
            "91 % of what its driver allows",
            "most of them: ib_send_bw (PID 254) 1, server (PID 251) 1"
        ]
    );
    assert!(
        found[0]
            .next
            .starts_with("rdma resource show qp | grep -w rxe0 | "),
        "{}",
        found[0].next
    );
}

#[test]
fn below_nine_tenths_or_without_a_known_limit_nothing_is_said() {
    assert_eq!(ids(&after(60, &held(921, Some(1024)))), [""; 0]);
    assert_eq!(ids(&after(60, &held(922, Some(1024)))), ["headroom"]);
    assert_eq!(ids(&after(60, &held(2000, None))), [""; 0]);
}

#[test]
fn each_kind_has_its_limit_its_verb_and_its_list() {
    for (what, kind, verb) in [
        ("CQs", "cq", "create_cq"),
        ("MRs", "mr", "reg_mr"),
        ("PDs", "pd", "alloc_pd"),
        ("SRQs", "srq", "create_xsrq"),
    ] {
        let mut s = refused(3, 12);
        s.verbs[0].verb = verb.into();
        let device = s.devices.iter_mut().find(|row| &*row.name == "rxe0").unwrap();
        let (count, limit) = match kind {
            "cq" => (&mut device.cqs, &mut device.max_cq),
            "mr" => (&mut device.mrs, &mut device.max_mr),
            "pd" => (&mut device.pds, &mut device.max_pd),
            _ => (&mut device.srqs, &mut device.max_srq),
        };
        (*count, *limit) = (Some(1000), Some(1024));
        device.qps = None;
        let found = after(0, &s);
        let found: Vec<_> = found.iter().filter(|one| one.id == FindingId::Headroom).collect();
        let [found] = found[..] else {
            panic!("{what}: {found:?}")
        };
        let said = format!("rxe0 has 1000 of the 1024 {what} that it may have, and {verb} of ");
        assert!(found.verdict.starts_with(&said), "{}", found.verdict);
        assert_eq!(found.severity, Severity::Critical);
        assert_eq!(found.evidence.len(), 2, "nobody counts them for each process");
        assert!(
            found.next.starts_with(&format!("rdma resource show {kind} |")),
            "{}",
            found.next
        );
    }
}

#[test]
fn a_create_that_fails_makes_it_critical_for_a_minute() {
    let mut watch = FindingTracker::default();
    let mut severities = Vec::new();
    for second in 0..70 {
        let mut s = refused(3, 12);
        s.mono_ns += second * S;
        let found = watch.look_at(&s.judged(None));
        let of_device = found
            .iter()
            .find(|found| found.id == FindingId::Headroom)
            .unwrap();
        if second == 0 {
            assert_eq!(
                of_device.verdict,
                "rxe0 has 1024 of the 1024 QPs that it may have, and create_qp of ib_send_bw (PID 254) failed"
            );
            assert!(
                of_device.evidence[2].ends_with("or one that the driver does not tell"),
                "{:?}",
                of_device.evidence
            );
        }
        severities.push(of_device.severity);
    }
    assert!(severities[..60].iter().all(|one| *one == Severity::Critical));
    assert!(
        severities[60..].iter().all(|one| *one == Severity::Warning),
        "it is long ago"
    );
}

#[test]
fn other_errors_other_verbs_and_processes_elsewhere_are_no_sign_of_it() {
    let severity = |s: &Snapshot| {
        let found = after(0, s);
        found
            .iter()
            .find(|found| found.id == FindingId::Headroom)
            .unwrap()
            .severity
    };
    assert_eq!(severity(&refused(3, 22)), Severity::Warning, "EINVAL");
    assert_eq!(severity(&refused(3, 28)), Severity::Critical, "ENOSPC");
    let mut s = refused(3, 12);
    s.verbs[0].verb = "create_cq".into();
    assert_eq!(severity(&s), Severity::Warning);
    let mut s = refused(3, 12);
    s.processes[0].devices = vec!["mlx5_9".into()];
    assert_eq!(severity(&s), Severity::Warning);
    s.processes[0].devices.clear();
    assert_eq!(severity(&s), Severity::Critical, "its first QP");
}

#[test]
fn registrations_refused_for_locked_memory_are_no_sign_of_it() {
    let severity = |limit: u64, pinned: u64, errno: u32| {
        let mut s = refused(3, errno);
        s.verbs[0].verb = "reg_mr".into();
        let device = s.devices.iter_mut().find(|row| &*row.name == "rxe0").unwrap();
        (device.qps, device.mrs, device.max_mr) = (None, Some(1024), Some(1024));
        s.processes[0].locked = Some(Arc::new(LockedMemory {
            pid: 254,
            limit: Some(limit),
            exempt: Some(false),
            pinned: Some(pinned),
        }));
        let found = after(0, &s);
        found
            .iter()
            .find(|one| one.id == FindingId::Headroom)
            .unwrap()
            .severity
    };
    assert_eq!(severity(8 << 20, 8 << 20, 12), Severity::Warning);
    assert_eq!(
        severity(8 << 30, 1 << 20, 12),
        Severity::Critical,
        "it has much left"
    );
    assert_eq!(severity(8 << 20, 8 << 20, 28), Severity::Critical, "ENOSPC");
}
