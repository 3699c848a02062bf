//! Requests that NICs count as failed.

use super::*;

const GIVEN_UP: &str = "req_transport_retries_exceeded";

/// What is found at once where this counter of a port rises.
fn found_of(counter: &str) -> Vec<Finding> {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[2], counter, 1.0);
    after(0, &s)
}

#[test]
fn the_row_of_whom_a_ports_trouble_may_concern_has_a_mark() {
    use crate::{fields::finding_of, findings::Role};
    let mut s = ranks([4e9; 8], 1);
    named(&mut s.ports[2], GIVEN_UP, 1.0);
    s.findings = after(0, &s).into();
    let marked = |s: &Snapshot| -> Vec<_> {
        let rows = s.processes.iter();
        rows.filter_map(|row| Some((row.pid, finding_of(row, s)?.role)))
            .collect()
    };
    assert_eq!(marked(&s), [(Some(7020), Role::Possible)]);
    assert!(
        !s.findings[0].concerns_process(s.processes[2].uid),
        "no report names it"
    );
    // A process that is known to suffer is enough.
    let mut known = s.findings.to_vec();
    known[0].victims = vec![s.processes[5].uid];
    s.findings = known.into();
    assert_eq!(marked(&s), [(Some(7050), Role::Victim)]);
}

#[test]
fn a_nic_that_gives_requests_up_says_why_and_who_uses_it() {
    let found = found_of(GIVEN_UP);
    assert_eq!(ids(&found), ["requests-fail"]);
    assert_eq!(
        (found[0].severity, &found[0].victims),
        (Severity::Warning, &vec![]),
        "nobody's QP is seen to fail"
    );
    assert_eq!(
        found[0].verdict,
        "Requests from mlx5_2/1 failed: the peer did not answer; of rank (PID 4711, slurm 7341.0) or of an \
         ended program"
    );
    assert_eq!(
        found[0].evidence,
        [
            "req_transport_retries_exceeded 7 in all, 1.0/s when it last rose",
            "no QP that the kernel lists went to ERR then: it may be of a program that has ended"
        ]
    );
    assert!(
        found[0].next.starts_with("Is the peer's host reached by ping"),
        "{}",
        found[0].next
    );
    for (counter, verdict, next) in [
        (
            "req_rnr_retries_exceeded",
            "Requests from mlx5_2/1 failed: the peer posted no receive in time",
            "The peer has to post receives earlier",
        ),
        (
            "req_remote_access_errors",
            "Requests from mlx5_2/1 failed: the peer refused access to its memory",
            "Check RKey, remote address and remote access flags",
        ),
        (
            "sq_num_rire",
            "Requests from mlx5_2/1 failed: the peer refused the request as invalid",
            "Check the peer's max_dest_rd_atomic",
        ),
        (
            "resp_remote_access_errors",
            "Requests to mlx5_2/1 failed: a peer asked for memory that it may not use",
            "Check RKey, remote address and length on the peer",
        ),
        (
            "resp_local_length_error",
            "Messages to mlx5_2/1 failed: a message was longer than the receive buffer",
            "Post larger receives",
        ),
    ] {
        let found = found_of(counter);
        assert_eq!(ids(&found), ["requests-fail"], "{counter}");
        assert!(found[0].verdict.starts_with(verdict), "{}", found[0].verdict);
        assert!(found[0].next.starts_with(next), "{}", found[0].next);
    }
}

#[test]
fn what_rises_while_connections_work_is_no_failure() {
    for counter in [
        "resp_cqe_error",
        "req_cqe_error",
        "resp_cqe_flush_error",
        "req_cqe_flush_error",
        "duplicate_request",
        "out_of_sequence",
        "nak_access_error",
        "rdma_write_wr_err",
    ] {
        assert_eq!(ids(&found_of(counter)), [""; 0], "{counter}");
    }
    // Where completions are counted, a finding names the process.
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[2], GIVEN_UP, 1.0);
    let mut counted = s.clone();
    counted.devices[2].datapath = Some("kprobe".into());
    assert_eq!(ids(&after(0, &counted)), [""; 0]);
    let mut probed = s;
    probed.processes[0].traffic.tx_wr = rate(5.0);
    assert_eq!(ids(&after(0, &probed)), [""; 0]);
    // No completion at this end says what a peer asked for, and another counter does not hide it.
    named(&mut counted.ports[2], "resp_remote_access_errors", 1.0);
    let found = after(0, &counted);
    assert_eq!(ids(&found), ["requests-fail"]);
    assert!(
        found[0].verdict.starts_with("Requests to mlx5_2/1 failed"),
        "{}",
        found[0].verdict
    );
}

#[test]
fn requests_of_the_kernel_and_of_those_past_it_say_whose_they_are() {
    let mut s = rails([4e9; 8], [4e9; 8]);
    named(&mut s.ports[2], GIVEN_UP, 1.0);
    let mut past = s.clone();
    past.processes[0].devices.clear();
    past.processes[0].unlisted = Some(crate::snapshot::Unlisted::Library);
    (past.devices[2].driver, past.devices[2].contexts) = (Some("mlx5_core".into()), Some(vec![4711].into()));
    let found = &after(0, &past)[0];
    assert!(
        found
            .verdict
            .ends_with("; of rank (PID 4711, slurm 7341.0) or of an ended program"),
        "{}",
        found.verdict
    );
    assert!(
        found.evidence[1].starts_with("the kernel lists no QP there"),
        "{:?}",
        found.evidence
    );
    let mut target = rows::process(9, None, "[nvme_rdma]", "mlx5_2", Traffic::default());
    target.workload = None;
    let mut qp = rows::qp(12, "mlx5_2", 17, 3, None, "[nvme_rdma]", Traffic::default());
    let row = Arc::make_mut(&mut qp);
    (row.process_uid, row.kernel, row.port, row.device_uid) = (Some(9), true, Some(1), Some(3));
    s.qps.push(qp);
    s.processes.push(target);
    let found = &after(0, &s)[0];
    assert!(
        found
            .verdict
            .contains("; of rank (PID 4711, slurm 7341.0) and 1 more or of an ended program"),
        "{}",
        found.verdict
    );
    assert!(found.next.starts_with("Is the peer's host"), "{}", found.next);
    s.processes.remove(0);
    let found = &after(0, &s)[0];
    assert!(
        found.verdict.contains("; of [nvme_rdma] (kernel) or of an ended"),
        "{}",
        found.verdict
    );
    assert!(found.next.starts_with("sudo dmesg | tail -50 "), "{}", found.next);
}

/// What is found of a process whose QP goes to ERR at a second: beside it another one has QPs there or not,
/// and counters rise at seconds.
fn failing_at(failed: u64, beside: bool, rises: &[(&str, u64)]) -> Vec<Finding> {
    ending_at(failed, u64::MAX, beside, rises)
}

/// The same, and the process ends at a second.
fn ending_at(failed: u64, ended: u64, beside: bool, rises: &[(&str, u64)]) -> Vec<Finding> {
    let mut watch = FindingTracker::default();
    let mut found = Vec::new();
    for second in 0..30 {
        let mut s = rails([4e9; 8], [4e9; 8]);
        let failed_ns = s.mono_ns + failed * S;
        s.mono_ns += second * S;
        for (counter, at) in rises {
            named(&mut s.ports[2], counter, if second == *at { 1.0 } else { 0.0 });
        }
        let state = if second < failed { 3 } else { 6 };
        let mut qp = rows::qp(12, "mlx5_2", 17, state, Some(4711), "rank", Traffic::default());
        let row = Arc::make_mut(&mut qp);
        (row.process_uid, row.device_uid, row.port) = (Some(5), Some(3), Some(1));
        row.timeline = Arc::new(vec![Step {
            mono_ns: failed_ns,
            state: QpState(6),
            duration_ns: None,
        }]);
        if second < ended {
            s.qps.push(qp);
        } else {
            s.processes.remove(0);
        }
        if beside {
            s.processes.push(rows::process(
                6,
                Some(4712),
                "other",
                "mlx5_2",
                Traffic::default(),
            ));
        }
        found = watch.look_at(&s.judged(None));
    }
    found
}

#[test]
fn only_a_process_whose_qps_went_to_err_since_the_rise_suffers() {
    let failed = |failed, at| {
        let mut found = failing_at(failed, true, &[(GIVEN_UP, at)]);
        found.retain(|found| found.id == FindingId::RequestsFail);
        found.remove(0)
    };
    // The QP is seen in ERR after the counter, too.
    for (at, rises) in [(10, 11), (12, 11)] {
        let with = failed(at, rises);
        assert_eq!((with.severity, &with.victims), (Severity::Critical, &vec![5]));
        assert!(
            with.verdict.ends_with("; used by rank (PID 4711, slurm 7341.0)"),
            "{}",
            with.verdict
        );
    }
    for (at, rises) in [(2, 20), (0, 1)] {
        let without = failed(at, rises);
        assert_eq!((without.severity, &without.victims), (Severity::Warning, &vec![]));
    }
}

#[test]
fn whose_qps_failed_stays_known_when_their_program_ends() {
    let mut found = ending_at(10, 13, true, &[(GIVEN_UP, 11)]);
    found.retain(|found| found.id == FindingId::RequestsFail);
    assert_eq!(
        (found[0].severity, &found[0].victims),
        (Severity::Critical, &vec![5])
    );
    assert!(!found[0].verdict.contains("other"), "{}", found[0].verdict);
}

#[test]
fn qps_in_err_say_what_their_port_counted_when_they_failed() {
    let found = |failed, beside, rises: &[(&str, u64)]| {
        let mut found = failing_at(failed, beside, rises);
        found.retain(|found| found.id == FindingId::QpError);
        found.remove(0)
    };
    let with = found(10, false, &[(GIVEN_UP, 11)]);
    assert_eq!(
        with.verdict,
        "1 QP of rank (PID 4711, slurm 7341.0) on mlx5_2 in ERR: the peer did not answer"
    );
    assert_eq!(
        with.evidence[1],
        "all work requests are flushed; req_transport_retries_exceeded of mlx5_2/1 rose at that time"
    );
    assert!(
        with.next.starts_with("Is the peer's host reached by ping"),
        "{}",
        with.next
    );
    // The nearest one, though it rose again later.
    let access = "req_remote_access_errors";
    let nearest = found(10, false, &[(GIVEN_UP, 7), (access, 11)]);
    assert!(
        nearest.verdict.ends_with("the peer refused access to its memory"),
        "{}",
        nearest.verdict
    );
    let again = found(10, false, &[(GIVEN_UP, 10), (GIVEN_UP, 20)]);
    assert!(
        again.verdict.ends_with("the peer did not answer"),
        "{}",
        again.verdict
    );
    let all: Vec<_> = (9..29).map(|second| (GIVEN_UP, second)).collect();
    let ever = found(10, false, &all);
    assert!(
        ever.verdict.ends_with("the peer did not answer"),
        "{}",
        ever.verdict
    );
    // It may have been a request of the other process.
    let shared = found(10, true, &[(GIVEN_UP, 11)]);
    assert_eq!(
        shared.evidence[1],
        "may be why: the peer did not answer (req_transport_retries_exceeded of mlx5_2/1 rose at that time)"
    );
    // What is in ERR from the first failed at a time that nobody knows.
    for without in [
        found(10, false, &[(GIVEN_UP, 18)]),
        found(0, false, &[(GIVEN_UP, 1)]),
        shared,
    ] {
        assert!(
            without.verdict.ends_with("in ERR: all work requests are flushed"),
            "{}",
            without.verdict
        );
        assert!(
            without.next.starts_with("Look at the program's log"),
            "{}",
            without.next
        );
    }
}

#[test]
fn a_peer_that_efa_gives_up_is_gone() {
    let found = found_of("unresponsive_remote_events");
    assert_eq!(ids(&found), ["requests-fail"]);
    assert_eq!(
        found[0].verdict,
        "A peer of mlx5_2/1 does not answer any more; used by rank (PID 4711, slurm 7341.0)"
    );
    assert_eq!(
        found[0].evidence,
        ["unresponsive_remote_events 7 in all, 1.0/s when it last rose"]
    );
    // The device only slows down.
    assert_eq!(ids(&found_of("impaired_remote_conn_events")), [""; 0]);
}
