//! QPs that wait or failed, and completions with errors.

use super::*;
use crate::ib::Gid;
use crate::input::PortGid;

/// A pair whose two QPs, both of one process, have been in INIT for 6 s.
fn in_init() -> Snapshot {
    let mut s = pair();
    for qp in s.facts.qps.iter_mut() {
        let row = Arc::make_mut(qp);
        (row.state, row.process_uid) = (Some(QpState(1)), Some(1));
        row.timeline = Arc::new(vec![Step {
            mono_ns: s.facts.mono_ns - 6 * S,
            state: QpState(1),
            duration_ns: None,
        }]);
    }
    s
}

#[test]
fn a_dead_peer_and_a_qp_in_err_are_critical() {
    let mut s = pair();
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(0.0)));
    Arc::make_mut(&mut Arc::make_mut(&mut s.qps[0]).history).tx = vec![Some(0.0); 5];
    Arc::make_mut(&mut s.qps[1]).state = Some(QpState(6));
    // Retransmissions to the dead peer must not be a `loss` finding of their own.
    (s.ports[0].retries, s.ports[0].tx_packets) = (rate(80.0), rate(90.0));
    let found = after(5, &s);
    assert_eq!(ids(&found), ["peer-gone", "qp-error"]);
    assert!(found.iter().all(|finding| finding.severity == Severity::Critical));
    assert_eq!([found[0].pid, found[1].pid], [Some(254), Some(251)]);
    assert_eq!(found[0].evidence[2], "80/s packets sent again, 0 finished");
    assert!(
        found[1]
            .verdict
            .ends_with("1 QP of server (PID 251) on rxe0 in ERR: all work requests are flushed")
    );
    Arc::make_mut(&mut s.qps[1]).state = Some(QpState(5));
    let found = after(5, &s);
    assert!(
        found[1]
            .verdict
            .ends_with("in SQE: send work requests are flushed, receives go on"),
        "{}",
        found[1].verdict
    );
}

#[test]
fn a_peer_on_this_host_is_told_apart_by_whether_its_qp_is_still_there() {
    let own = |last: u8| PortGid {
        index: 1,
        gid: Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]),
        v1: Some(false),
    };
    let mut s = pair();
    edit(&mut s, 0, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(0.0)));
    Arc::make_mut(&mut Arc::make_mut(&mut s.qps[0]).history).tx = vec![Some(0.0); 5];
    s.ports[0].gids = Some(vec![own(1)].into());
    for qp in s.facts.qps.iter_mut() {
        let row = Arc::make_mut(qp);
        (row.device_uid, row.remote_gid) = (Some(s.facts.ports[0].device_uid), Some(own(1).gid));
    }
    let says = |s: &Snapshot| {
        let found = after(5, s).remove(0);
        assert_eq!(found.id, FindingId::PeerGone);
        (found.verdict, found.next)
    };
    let (verdict, next) = says(&s);
    assert_eq!(
        verdict,
        "No answer from server (PID 251) for 1 QP of ib_send_bw (PID 254) on rxe0: both live and are connected, so packets between \
         them are lost"
    );
    assert!(next.starts_with("tc -s qdisc show dev "), "{next}");
    Arc::make_mut(&mut s.qps[1]).state = Some(QpState(0));
    assert!(
        says(&s)
            .0
            .ends_with(": the peer's QP is in RESET and answers nothing")
    );
    // Its process destroyed the QP and lives; the row is still there for a while.
    Arc::make_mut(&mut s.qps[1]).exited = true;
    let (verdict, next) = says(&s);
    assert_eq!(
        verdict,
        "No answer for 1 QP of ib_send_bw (PID 254) on rxe0: the peer, QP 18 of rxe0 on this host, was destroyed, its process lives"
    );
    assert!(next.starts_with("rdma resource show qp pid 254"), "{next}");
    s.qps.truncate(1);
    assert!(says(&s).0.ends_with("QP 18 of rxe0 on this host, was destroyed"));
    // Another QP with that number may be the peer.
    let mut other = rows::qp(12, "rxe0", 18, 3, Some(251), "x", rows::traffic(0.0, 0.0, 0));
    Arc::make_mut(&mut other).remote_qpn = None;
    s.qps.push(other);
    let mut of_kernel = s.clone();
    (of_kernel.processes[0].pid, of_kernel.processes[0].kernel) = (None, true);
    let tells = |s: &Snapshot, begin: &str, is_job: bool| {
        let (verdict, next) = says(s);
        assert!(verdict.starts_with(begin), "{verdict}");
        assert_eq!(next.contains("restart the job"), is_job, "{next}");
        assert_eq!(next.contains("mount or connect it anew"), !is_job, "{next}");
    };
    tells(&s, "No answer from 10.0.0.1 for", true);
    tells(&of_kernel, "No answer from 10.0.0.1 for", false);
    for s in [&mut s, &mut of_kernel] {
        Arc::make_mut(&mut s.qps[0]).remote_gid = None;
    }
    tells(&s, "No answer for 1 QP of", true);
    tells(&of_kernel, "No answer for 1 QP of", false);
}

#[test]
fn a_qp_that_waits_in_init_stays_and_two_stay() {
    let mut s = in_init();
    let both = after(2, &s);
    assert_eq!(ids(&both), ["qp-setup"]);
    assert!(
        both[0]
            .verdict
            .starts_with("2 QPs of ib_send_bw (PID 254) on rxe0 stay in INIT for"),
        "{}",
        both[0].verdict
    );
    s.qps.truncate(1);
    let found = after(2, &s);
    assert!(found[0].verdict.contains(" stays in INIT for "));
    assert!(found[0].next.starts_with("sudo ss -tanp "), "{}", found[0].next);
    (s.processes[0].kernel, s.processes[0].pid) = (true, None);
    let next = &after(2, &s)[0].next;
    assert!(
        next.starts_with("sudo dmesg ") && next.ends_with("mount or connect it anew"),
        "a module of the kernel has no sockets: {next}"
    );
}

#[test]
fn where_modify_qp_fails_no_peer_is_blamed() {
    let mut s = in_init();
    let errnos = [(22, 9), (11, 3), (61, 4)];
    let mut row = rows::verb(254, "ib_send_bw", "modify_qp", 3.0, &errnos, false);
    (row.process_uid, row.errors) = (Some(1), rate(4.0));
    s.verbs.push(row);
    let mut watch = FindingTracker::default();
    let mut at = |errors: f64, failed: u64| {
        s.mono_ns += 2 * S;
        s.verbs[0].errors = rate(errors);
        s.verbs[0].errnos[2].1 = failed;
        watch.look_at(&s.clone().judged(None))
    };
    at(4.0, 4);
    let found = at(4.0, 8);
    assert!(
        found.iter().all(|finding| finding.id == FindingId::VerbFails) && !found.is_empty(),
        "{found:?}"
    );
    at(0.0, 8);
    let found = at(0.0, 8);
    let setup = found
        .iter()
        .find(|finding| finding.id == FindingId::QpSetup)
        .unwrap();
    assert!(
        setup
            .verdict
            .ends_with(": no peer has connected yet, or its modify_qp failed"),
        "{}",
        setup.verdict
    );
    assert_eq!(
        setup.evidence[1],
        "8 calls of modify_qp failed with ENODATA, none of them in the last interval"
    );
}

#[test]
fn a_failed_completion_says_what_its_status_means() {
    let mut s = pair();
    for (status, what) in [
        (12, "the peer did not answer"),
        (10, "the peer refused access to its memory"),
    ] {
        edit(&mut s, 0, |t| {
            t.by_status = vec![StatusCount {
                status: WcStatus(status),
                cqes: Counter::whole(1, Some(1.0), Source::Ebpf),
            }];
        });
        let found = after(0, &s);
        assert_eq!(ids(&found), ["completion-error"]);
        assert!(found[0].verdict.contains(what), "{}", found[0].verdict);
    }
    edit(&mut s, 0, |t| t.by_status[0].status = WcStatus(5));
    assert_eq!(ids(&after(0, &s)), [""; 0], "a flush says nothing of its own");
}

#[test]
fn qps_on_several_devices_have_all_of_them_in_the_verdict() {
    let mut s = in_init();
    Arc::make_mut(&mut s.qps[1]).device = "rxe1".into();
    let verdict = |s: &Snapshot, seconds| after(seconds, s).remove(0).verdict;
    let init = verdict(&s, 5);
    assert!(
        init.starts_with("2 QPs of ib_send_bw (PID 254) on rxe0 and rxe1 stay in INIT"),
        "{init}"
    );
    for qp in s.qps.iter_mut() {
        Arc::make_mut(qp).state = Some(QpState(6));
    }
    let failed = verdict(&s, 5);
    assert!(failed.contains(" on rxe0 and rxe1 in ERR"), "{failed}");
    let mut s = pair();
    for at in 0..2 {
        edit(&mut s, at, |t| (t.retransmits, t.tx_wr) = (rate(80.0), rate(0.0)));
        let row = Arc::make_mut(&mut s.qps[at]);
        (row.process_uid, row.device) = (Some(1), format!("rxe{at}").into());
        Arc::make_mut(&mut row.history).tx = vec![Some(0.0); 5];
    }
    let silent = verdict(&s, 5);
    assert!(
        silent.contains("a QP of ib_send_bw (PID 254) on rxe0 (2 QPs wait on rxe0 and rxe1)"),
        "{silent}"
    );
}

#[test]
fn a_failed_completion_names_the_devices_of_the_qps_that_have_it() {
    let mut s = pair();
    let failed = vec![StatusCount {
        status: WcStatus(12),
        cqes: Counter::whole(1, Some(1.0), Source::Ebpf),
    }];
    s.processes[0].devices = vec!["rxe0".into(), "rxe1".into()];
    s.processes[0].traffic.by_status = failed.clone();
    let verdict = |s: &Snapshot| after(0, s).remove(0).verdict;
    let on = "Work requests of ib_send_bw (PID 254) on ";
    assert!(
        verdict(&s).starts_with(&format!("{on}rxe0 and rxe1 fail")),
        "{}",
        verdict(&s)
    );
    let qp = Arc::make_mut(&mut s.qps[0]);
    qp.device = "rxe1".into();
    Arc::make_mut(&mut qp.traffic).by_status = failed;
    assert!(
        verdict(&s).starts_with(&format!("{on}rxe1 fail")),
        "{}",
        verdict(&s)
    );
}
