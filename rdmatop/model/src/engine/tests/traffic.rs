use super::*;
use crate::ib::Gid;
use crate::value::{Counter, Source};

fn rate(counter: Option<Counter>) -> Option<f64> {
    counter.unwrap().rate
}

#[test]
fn a_qp_without_a_slot_is_not_observable_and_never_zero() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[]);
    let json = serde_json::to_value(&*host.only_qp()).unwrap();
    for field in [
        "tx_wr",
        "tx_wr_posted",
        "rx_wr",
        "tx_bytes",
        "rx_bytes",
        "completions",
        "completion_errors",
    ] {
        assert!(json[field].is_null(), "{field}");
    }
    assert!(host.process(231).traffic.tx_wr.is_none());
}

#[test]
fn totals_and_rates_of_qp_and_process_are_exact() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 1000)]);
    let row = host.only_qp();
    let tx = row.traffic.tx_wr.unwrap();
    assert_eq!(
        (tx.total, tx.rate, tx.source),
        (1000, None, Source::Ebpf),
        "no interval yet"
    );
    host.pass(2 * SECOND).sweep(&[slot(t, 0xa0, 17, 3000)]);
    let row = host.only_qp();
    assert_eq!(rate(row.traffic.tx_wr), Some(1000.0));
    assert_eq!(rate(row.traffic.tx_bytes), Some(100_000.0));
    assert_eq!(row.traffic.by_opcode.len(), 1);
    assert_eq!(row.traffic.by_opcode[0].bytes.total, 300_000);
    assert_eq!(row.history.tx, [Some(100_000.0)]);
    let process = host.process(231);
    assert_eq!(
        (process.traffic.tx_wr.unwrap().total, rate(process.traffic.tx_wr)),
        (3000, Some(1000.0))
    );
}

#[test]
fn a_changed_interval_changes_no_rate() {
    let mut host = Host::new();
    let t = host.now;
    let mut done = 0;
    host.sweep(&[slot(t, 0xa0, 17, done)]);
    for ms in [1000, 250, 3000, 100] {
        done += ms;
        host.pass(ms * MS).sweep(&[slot(t, 0xa0, 17, done)]);
        let rate = rate(host.only_qp().traffic.tx_wr).unwrap();
        assert!((rate - 1000.0).abs() < 1e-6, "{rate}");
    }
}

#[test]
fn two_sweeps_at_once_keep_rate_and_count() {
    let mut host = Host::new();
    let t = host.now;
    host.sweep(&[slot(t, 0xa0, 17, 0)]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 1000)]);
    host.pass(MS).sweep(&[slot(t, 0xa0, 17, 1001)]);
    let tx = host.only_qp().traffic.tx_wr.unwrap();
    assert_eq!((tx.total, tx.rate), (1001, Some(1000.0)));
    host.pass(999 * MS).sweep(&[slot(t, 0xa0, 17, 2000)]);
    assert_eq!(rate(host.only_qp().traffic.tx_wr), Some(1000.0));
}

#[test]
fn a_qp_born_and_gone_between_sweeps_counts_for_its_process() {
    let mut host = Host::new();
    host.sweep(&[]);
    let t = host.now;
    host.qp(create(t + 1, 0xa0, 17));
    host.qp(destroy(t + 2, 0xa0, 17));
    host.pass(SECOND).sweep(&[final_slot(slot(t + 1, 0xa0, 17, 500))]);
    let process = host.process(231);
    assert_eq!(
        (process.traffic.tx_wr.unwrap().total, rate(process.traffic.tx_wr)),
        (500, Some(500.0))
    );
    let row = host.only_qp();
    assert_eq!((row.exited, row.traffic.tx_wr.unwrap().total), (true, 500));
}

#[test]
fn a_process_keeps_what_its_ended_qps_did() {
    let mut host = Host::new();
    let t = host.now;
    host.sweep(&[]);
    for round in 0..5u64 {
        let (born, object) = (t + 1 + round * 10 * SECOND, 0xa0 + round);
        host.qp(create(born, object, 17));
        host.pass(5 * SECOND).sweep(&[slot(born, object, 17, 60)]);
        host.qp(destroy(born + 1, object, 17));
        host.pass(5 * SECOND)
            .sweep(&[final_slot(slot(born, object, 17, 100))]);
        host.pass(5 * SECOND).sweep(&[]);
        assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 100 * (round + 1));
        host.now = t + 1 + (round + 1) * 10 * SECOND + 5 * SECOND;
    }
}

#[test]
fn a_slot_with_a_new_tenant_never_credits_old_counts() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 1000)]);
    host.qp(destroy(t + 1, 0xa0, 17));
    let mut next = create(t + 2, 0xa0, 17);
    next.prefix = by(next.prefix, 300, "rping");
    host.qp(next);
    let mut tenant = slot(t + 2, 0xa0, 17, 10);
    tenant.owner_pid = 300;
    host.pass(SECOND).sweep(&[tenant]);
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 1000);
    assert_eq!(host.process(300).traffic.tx_wr.unwrap().total, 10);
    assert_eq!(rate(host.process(300).traffic.tx_wr), Some(10.0));
}

#[test]
fn a_qp_older_than_us_counts_since_attach() {
    let mut host = Host::new();
    let t = host.now;
    host.dump(t, vec![dumped(17, Some(231), 3)]);
    let mut old = slot(t + 5, 0xa0, 17, 7);
    old.flags = slot_flag::SINCE_ATTACH;
    old.dest_gid[15] = 1;
    host.pass(SECOND).sweep(&[old]);
    let row = host.only_qp();
    assert_eq!(row.remote_gid, Gid::known(old.dest_gid));
    assert_eq!((row.since_attach, row.born_mono_ns), (true, None));
    assert_eq!(row.traffic.tx_wr.unwrap().total, 7);
    host.qp(modify(host.now, 0xa0, 17, 6));
    host.only_qp();
}

#[test]
fn a_modify_that_was_seen_is_newer_than_the_peer_in_a_slot() {
    let mut host = Host::new();
    host.dump(host.now, vec![dumped(17, Some(231), 3)]);
    let mut seen = modify(host.now, 0xa0, 17, 2);
    seen.dest_gid[15] = 2;
    host.qp(seen);
    let mut old = slot(seen.born_ns, 0xa0, 17, 7);
    (old.flags, old.dest_gid[15]) = (slot_flag::SINCE_ATTACH, 1);
    host.pass(SECOND).sweep(&[old]);
    assert_eq!(host.only_qp().remote_gid, Gid::known(seen.dest_gid));
}

#[test]
fn counts_of_a_living_qp_go_on_when_programs_are_attached_anew() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 1000)]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 3000)]);
    // The slot of the next session is made with the first post that it sees.
    let mut next = slot(host.now + 5, 0xa0, 17, 7);
    next.flags = slot_flag::SINCE_ATTACH;
    host.pass(SECOND).sweep(&[next]);
    assert_eq!(host.only_qp().traffic.tx_wr.unwrap().total, 3007);
    next.tx_done = 10;
    host.pass(SECOND).sweep(&[next]);
    let row = host.only_qp();
    assert_eq!(row.traffic.tx_wr.unwrap().total, 3010);
    assert_eq!(rate(row.traffic.tx_wr), Some(3.0));
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 3010);
}

#[test]
fn a_slot_shows_a_qp_whose_create_was_lost_and_a_later_record_joins_it() {
    let mut host = Host::new();
    let t = host.now;
    host.sweep(&[]);
    host.pass(SECOND).sweep(&[slot(t + 100, 0xa0, 17, 7)]);
    assert_eq!(host.only_qp().pid, Some(231));
    host.qp(create(t + 100, 0xa0, 17));
    let row = host.only_qp();
    assert_eq!(
        (row.comm.as_deref(), row.state),
        (Some("ib_send_bw"), Some(QpState(0)))
    );
    host.qp(destroy(t + 200, 0xa0, 17));
    assert!(host.only_qp().exited);
}

#[test]
fn an_owner_learnt_late_gets_the_counts_without_a_spike() {
    let mut host = Host::new();
    let t = host.now;
    let mut nobody = slot(t, 0xa0, 17, 1_000_000);
    nobody.owner_pid = 0;
    host.sweep(&[nobody]);
    nobody = QpSlot {
        owner_pid: 0,
        ..slot(t, 0xa0, 17, 1_000_000)
    };
    host.pass(SECOND).sweep(&[nobody]);
    host.dump(host.now, vec![dumped(17, Some(231), 3)]);
    host.pass(SECOND).sweep(&[nobody]);
    let tx = host.process(231).traffic.tx_wr.unwrap();
    assert_eq!((tx.total, tx.rate), (1_000_000, None));
    host.pass(SECOND).sweep(&[nobody]);
    assert_eq!(rate(host.process(231).traffic.tx_wr), Some(0.0));
}

#[test]
fn rates_are_unknown_some_time_after_sweeps_stopped() {
    let mut host = Host::new();
    let t = host.now;
    host.sweep(&[slot(t, 0xa0, 17, 0)]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 1000)]);
    assert_eq!(rate(host.only_qp().traffic.tx_wr), Some(1000.0));
    host.pass(60 * SECOND);
    let tx = host.only_qp().traffic.tx_wr.unwrap();
    assert_eq!((tx.total, tx.rate), (1000, None));
}

#[test]
fn the_first_error_of_a_qp_asks_for_its_state() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 5)]);
    assert!(!host.engine.wants_repair());
    let mut failed = slot(t, 0xa0, 17, 5);
    (failed.wc[12], failed.wc[5]) = (1, 127);
    failed.cqes += 128;
    host.pass(SECOND).sweep(&[failed]);
    assert!(host.engine.wants_repair());
    let row = host.only_qp();
    assert_eq!(row.traffic.completion_errors.unwrap().total, 1);
    assert_eq!(row.traffic.flushes.unwrap().total, 127);
}

#[test]
fn a_qp_in_a_slot_is_not_forgotten_before_its_last_counts() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 5)]);
    host.qp(destroy(t + 1, 0xa0, 17));
    assert!(host.pass(60 * SECOND).tick().qps.is_empty());
    host.sweep(&[final_slot(slot(t, 0xa0, 17, 9))]);
    assert!(host.tick().qps.is_empty());
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 9);
    host.pass(SECOND).sweep(&[]);
    assert_eq!(host.engine.machine.qps.iter().count(), 0);
}

#[test]
fn a_slot_seen_late_does_not_end_the_next_tenant_of_its_address() {
    let mut host = Host::new();
    host.sweep(&[]);
    let t = host.now;
    // The first QP's records were lost; its slot is swept when the second has its address already.
    host.qp(create(t + SECOND, 0xa0, 18));
    let (first, second) = (slot(t + 1, 0xa0, 17, 30), slot(t + SECOND, 0xa0, 18, 5));
    host.pass(2 * SECOND).sweep(&[final_slot(first), second]);
    let snapshot = host.tick();
    let mut rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.qpn, r.exited, r.traffic.tx_wr.unwrap().total))
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, [(17, true, 30), (18, false, 5)]);
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 35);
}

#[test]
fn a_slot_seen_late_with_the_number_of_a_living_qp_has_ended() {
    let mut host = Host::new();
    host.sweep(&[]);
    let t = host.now;
    host.qp(create(t + SECOND, 0xb0, 17));
    let (first, second) = (slot(t + 1, 0xa0, 17, 30), slot(t + SECOND, 0xb0, 17, 5));
    host.pass(2 * SECOND).sweep(&[first, second]);
    let snapshot = host.tick();
    let mut rows: Vec<_> = snapshot
        .qps
        .iter()
        .map(|r| (r.exited, r.traffic.tx_wr.unwrap().total))
        .collect();
    rows.sort_unstable();
    assert_eq!(rows, [(false, 5), (true, 30)]);
}

#[test]
fn counts_from_before_the_last_sweep_that_missed_them_make_no_rate() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.pass(SECOND).sweep(&[]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 1_000_000)]);
    assert_eq!(rate(host.only_qp().traffic.tx_wr), None);
    assert_eq!(rate(host.process(231).traffic.tx_wr), None);
    assert_eq!(rate(host.tick().ports[0].wr_tx_bytes), None);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 1_000_007)]);
    assert_eq!(rate(host.only_qp().traffic.tx_wr), Some(7.0));
    assert_eq!(rate(host.process(231).traffic.tx_wr), Some(7.0));
}

#[test]
fn a_process_has_lower_bounds_while_one_of_its_qps_is_uncounted() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 0)]);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 100)]);
    let sent = |host: &mut Host| host.process(231).traffic.tx_wr.unwrap();
    assert!(!sent(&mut host).partial);
    // No slot was left for this one. As long as no sweep could have found it, nothing is missing.
    host.pass(1);
    let born = host.now;
    host.qp(create(born, 0xb0, 18));
    assert!(!sent(&mut host).partial);
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 200)]);
    let part = sent(&mut host);
    assert_eq!((part.total, part.partial), (200, true));
    let traffic = host.process(231).traffic;
    assert!(traffic.by_opcode[0].wr.partial && traffic.by_status[0].cqes.partial);
    let all = host.tick();
    let other = all.qps.iter().find(|qp| qp.qpn == 17).unwrap();
    assert!(!other.traffic.tx_wr.unwrap().partial, "that one is counted");
    let gone = host.now;
    host.qp(destroy(gone, 0xb0, 18));
    host.pass(SECOND).sweep(&[slot(t, 0xa0, 17, 300)]);
    assert!(!sent(&mut host).partial);
}
