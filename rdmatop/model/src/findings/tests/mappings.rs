//! Processes that run out of mappings of memory.

use super::*;
use crate::snapshot::Mappings;

/// Two processes, of which the first has so many mappings and may have so many, read so many seconds ago.
fn mapped(count: u64, limit: Option<u64>, seconds: u64) -> Snapshot {
    let mut s = pair();
    s.mono_ns += 1000 * S;
    s.processes[0].mappings = Some(Mappings {
        count,
        limit,
        read_ns: s.mono_ns - seconds * S,
    });
    s
}

#[test]
fn a_process_that_has_nearly_as_many_mappings_as_it_may_is_named() {
    let s = mapped(62_000, Some(65_530), 90);
    let mut watch = FindingTracker::default();
    let found = watch.look_at(&s.judged(None));
    assert_eq!(ids(&found), ["map-count"]);
    assert_eq!((found[0].severity, found[0].pid), (Severity::Warning, Some(254)));
    assert_eq!(
        found[0].verdict,
        "ib_send_bw (PID 254) had 62000 of the 65530 mappings of memory that it may have (vm.max_map_count)"
    );
    assert!(
        found[0].evidence[0] == "counted 1m30s ago, 95 % of the limit",
        "{}",
        found[0].evidence[0]
    );
    assert!(
        found[0].next.contains("sysctl -w vm.max_map_count=131060 "),
        "{}",
        found[0].next
    );
}

#[test]
fn fewer_mappings_than_nine_tenths_are_nothing_of_note() {
    assert_eq!(ids(&after(60, &mapped(58_976, Some(65_530), 1))), [""; 0]);
    assert_eq!(ids(&after(60, &mapped(58_977, Some(65_530), 1))), ["map-count"]);
    assert_eq!(
        ids(&after(60, &mapped(65_531, Some(65_530), 1))),
        ["map-count"],
        "mmap allows one more"
    );
    assert_eq!(
        ids(&after(60, &mapped(62_000, Some(131_060), 1))),
        [""; 0],
        "the limit was raised"
    );
    assert_eq!(
        ids(&after(60, &mapped(u64::MAX, Some(u64::MAX), 1))),
        ["map-count"]
    );
}

#[test]
fn where_count_or_limit_are_not_known_nothing_is_said_of_mappings() {
    assert_eq!(ids(&after(60, &mapped(62_000, None, 1))), [""; 0]);
    assert_eq!(ids(&after(60, &mapped(62_000, Some(0), 1))), [""; 0]);
    let mut s = mapped(62_000, Some(65_530), 1);
    s.processes[0].mappings = None;
    assert_eq!(ids(&after(60, &s)), [""; 0]);
    // The process may have unmapped since.
    assert_eq!(ids(&after(1, &mapped(62_000, Some(65_530), 590))), ["map-count"]);
    assert_eq!(ids(&after(60, &mapped(62_000, Some(65_530), 601))), [""; 0]);
}

#[test]
fn a_process_without_rdma_objects_may_have_all_its_mappings() {
    let mut s = mapped(65_000, Some(65_530), 1);
    (s.processes[0].qps, s.processes[0].mr_bytes) = (0, Some(0));
    assert_eq!(ids(&after(60, &s)), [""; 0]);
    s.processes[0].mr_bytes = Some(4096);
    assert_eq!(ids(&after(60, &s)), ["map-count"], "it registers memory");
    (s.processes[0].qps, s.processes[0].mr_bytes) = (2, None);
    assert_eq!(ids(&after(60, &s)), ["map-count"]);
    s.processes[0].exited = true;
    assert_eq!(ids(&after(60, &s)), [""; 0]);
}

#[test]
fn the_finding_is_over_a_minute_after_the_limit_was_raised() {
    let mut watch = FindingTracker::default();
    let found: Vec<usize> = (0..80_u64)
        .map(|second| {
            let limit = if second < 10 { 65_530 } else { 131_060 };
            let mut s = mapped(62_000, Some(limit), 1);
            s.mono_ns += second * S;
            watch.look_at(&s.judged(None)).len()
        })
        .collect();
    assert_eq!((found[0], found[65], found[75]), (1, 1, 0), "{found:?}");
}
