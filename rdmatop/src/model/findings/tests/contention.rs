//! A process with many QPs beside one with few.

use super::*;
use crate::model::testkit::machine::{Machine, Work};

/// WRITEs of 4 KiB.
fn writes(tx: f64) -> Work {
    Work {
        tx,
        size: 4096.0,
        ..Work::default()
    }
}

/// `ib_write_bw` (PID 501) with one QP, and (PID 601) with 16, each of which sends as much.
fn shared(tx: f64, jobs: [Option<&str>; 2]) -> (Machine, Vec<usize>) {
    let mut machine = Machine::new("node7", true);
    let rxe0 = machine.nic("rxe0", "rdma_rxe", None);
    let mut qps = Vec::new();
    for (pid, first, count, job) in [(501, 30, 1, jobs[0]), (601, 100, 16, jobs[1])] {
        machine.process(pid, "ib_write_bw -d rxe0 10.0.0.9", job, &[], &[]);
        for n in 0..count {
            let qpn = first + n;
            qps.push(machine.qp(rxe0, qpn, (pid, "ib_write_bw"), 3, Some((qpn + 500, 9))));
        }
    }
    for qp in &qps {
        machine.work(*qp, writes(tx));
    }
    (machine, qps)
}

#[test]
fn one_qp_with_work_beside_sixteen_is_named_with_both_processes() {
    let (mut machine, qps) = shared(100.0, [None, None]);
    machine.run(9);
    assert_eq!(machine.found(), [], "it may pass");
    machine.run(6);
    assert_eq!(machine.found(), [FindingId::Contention]);
    machine.work(qps[0], writes(0.0));
    machine.run(16);
    assert_eq!(machine.found(), [], "it has nothing more to send");
    machine.work(qps[0], writes(100.0));
    machine.run(15);
    let s = machine.snapshot();
    let found = &s.findings[0];
    assert_eq!(
        found.verdict,
        "ib_write_bw (PID 601) sends 52.4 Mb/s by 16 QPs of rxe0/1; ib_write_bw (PID 501) has 1 QP and gets 3.3 Mb/s"
    );
    assert_eq!(
        found.evidence,
        [
            "ib_write_bw (PID 601): 16 QPs (100 to 115), 3.3 Mb/s each, 1024 send WRs outstanding",
            "ib_write_bw (PID 501): 1 QP (30), 3.3 Mb/s each, 64 send WRs outstanding"
        ]
    );
    let of = |pid| s.processes.iter().find(|row| row.pid == Some(pid)).unwrap().uid;
    assert_eq!((found.severity, found.pid), (Severity::Info, Some(601)));
    assert_eq!(
        (found.about.process, &found.victims),
        (Some(of(601)), &vec![of(501)])
    );
}

#[test]
fn processes_that_get_what_they_ask_for_do_not_contend() {
    let (mut machine, _) = shared(100.0, [None, None]);
    machine.run(3);
    let s = machine.snapshot();
    assert_eq!(ids(&after(12, &s)), ["contention"]);
    let quiet = |what: &str, edit: &dyn Fn(&mut Snapshot)| {
        let mut s = s.clone();
        edit(&mut s);
        assert_eq!(ids(&after(30, &s)), [""; 0], "{what}");
    };
    let of = |s: &mut Snapshot, many: bool, edit: &dyn Fn(&mut Traffic)| {
        let qps = s.qps.iter_mut().filter(|qp| (qp.qpn >= 100) == many);
        qps.for_each(|qp| edit(Arc::make_mut(&mut Arc::make_mut(qp).traffic)));
    };
    // One outstanding WR, as of a program that waits for each answer.
    let asks = |t: &mut Traffic| t.tx_wr_posted.as_mut().unwrap().total = t.tx_wr.unwrap().total + 1;
    quiet("the small one waits for answers", &|s| of(s, false, &asks));
    quiet("the large one does", &|s| of(s, true, &asks));
    quiet("a receiver has no buffers", &|s| {
        of(s, false, &|t| t.rnr_waits = rate(3.0));
    });
    quiet("each QP of the large one moves much more", &|s| {
        of(s, true, &|t| t.tx_bytes = rate(4_096_000.0));
    });
    quiet("the small one has half as much", &|s| {
        of(s, false, &|t| t.tx_bytes = rate(3_300_000.0));
    });
    for many in [false, true] {
        quiet("a bound", &|s| of(s, many, &|t| t.is_partial()));
        quiet("unknown", &|s| of(s, many, &|t| t.tx_wr = None));
    }
    quiet("the link has room", &|s| {
        s.ports[0].rate_bps = Some(1_000_000_000);
    });
    let mut full = s.clone();
    full.ports[0].rate_bps = Some(100_000_000);
    assert_eq!(ids(&after(12, &full)), ["contention"], "the link is half full");
}

#[test]
fn ranks_of_one_job_may_have_different_numbers_of_qps() {
    for (jobs, found) in [
        ([Some("slurm 7341.0"), Some("slurm 7341.0")], &[][..]),
        (
            [Some("slurm 7341.0"), Some("slurm 7342.0")],
            &[FindingId::Contention],
        ),
    ] {
        let (mut machine, _) = shared(100.0, jobs);
        machine.run(20);
        assert_eq!(machine.found(), found, "{jobs:?}");
    }
}

#[test]
fn two_equal_processes_that_crowd_out_a_third_are_one_finding() {
    let (mut machine, mut qps) = shared(100.0, [None, None]);
    machine.process(701, "ib_write_bw -d rxe0 10.0.0.9", None, &[], &[]);
    for n in 200..216 {
        qps.push(machine.qp(0, n, (701, "ib_write_bw"), 3, Some((n + 500, 9))));
    }
    for second in 0..120_usize {
        for (at, qp) in qps.iter().enumerate() {
            // They take turns at being the busiest.
            machine.work(*qp, writes(80.0 + 40.0 * ((second + at / 16) % 2) as f64));
        }
        machine.run(1);
        let found = machine.found();
        assert_eq!(found.is_empty(), second < 10, "in second {second}: {found:?}");
        assert!(found.len() < 2, "in second {second}: {found:?}");
    }
    let s = machine.snapshot();
    assert_eq!(s.findings[0].pid, Some(601), "the older of the two");
}
