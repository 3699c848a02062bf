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
fn a_nic_that_gives_requests_up_says_why_and_who_uses_it() {
    let found = found_of(GIVEN_UP);
    assert_eq!(ids(&found), ["requests-fail"]);
    assert_eq!(
        (found[0].severity, &found[0].victims),
        (Severity::Critical, &vec![5])
    );
    assert_eq!(
        found[0].verdict,
        "Requests from mlx5_2/1 fail: the peer did not answer (req_transport_retries_exceeded); the port carries rank (PID 4711, \
         slurm 7341.0)"
    );
    assert_eq!(
        found[0].evidence,
        ["req_transport_retries_exceeded 7 in all, 1.0/s when it last rose"]
    );
    assert!(
        found[0].next.starts_with("Is the peer's host reached by ping"),
        "{}",
        found[0].next
    );
    for (counter, verdict, next) in [
        (
            "req_rnr_retries_exceeded",
            "Requests from mlx5_2/1 fail: the peer posted no receive in time (",
            "The peer has to post receives earlier",
        ),
        (
            "req_remote_access_errors",
            "Requests from mlx5_2/1 fail: the peer refused access to its memory (",
            "Check RKey, remote address and remote access flags",
        ),
        (
            "sq_num_rire",
            "Requests from mlx5_2/1 fail: the peer refused the request as invalid (",
            "Check the peer's max_dest_rd_atomic",
        ),
        (
            "resp_remote_access_errors",
            "Requests to mlx5_2/1 fail: a peer asked for memory that it may not use (",
            "Check RKey, remote address and length on the peer",
        ),
        (
            "resp_local_length_error",
            "Messages to mlx5_2/1 fail: a message was longer than the receive buffer (",
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
    let mut probed = s.clone();
    probed.processes[0].traffic.tx_wr = rate(5.0);
    assert_eq!(ids(&after(0, &probed)), [""; 0]);
    // Nobody waits for what a program left behind.
    s.processes.clear();
    assert_eq!(after(0, &s)[0].severity, Severity::Warning);
}

#[test]
fn qps_in_err_say_what_their_port_counted_when_they_failed() {
    let found = |rises_at: u64| {
        let mut watch = Watch::default();
        let mut found = Vec::new();
        for second in 0..30 {
            let mut s = rails([4e9; 8], [4e9; 8]);
            let failed_ns = s.mono_ns + 10 * S;
            s.mono_ns += second * S;
            let per_s = if second == rises_at { 1.0 } else { 0.0 };
            named(&mut s.ports[2], GIVEN_UP, per_s);
            let state = if second < 10 { 3 } else { 6 };
            let mut qp = rows::qp(12, "mlx5_2", 17, state, Some(4711), "rank", Traffic::default());
            let row = Arc::make_mut(&mut qp);
            row.process_uid = Some(5);
            row.timeline = Arc::new(vec![Step {
                mono_ns: failed_ns,
                state: QpState(6),
                duration_ns: None,
            }]);
            s.qps.push(qp);
            found = watch.look(&s.judged(None));
        }
        found.retain(|found| found.id == FindingId::QpError);
        found.remove(0)
    };
    let with = found(11);
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
    let without = found(18);
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
