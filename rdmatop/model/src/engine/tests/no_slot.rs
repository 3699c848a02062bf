//! QPs without a counter slot: at rest means 0, no slot left means unknown, and which of the two is never
//! guessed.

use rdmatop_common::counters::{loss, place};

use super::*;
use crate::input::{DataPaths, EbpfReport, EbpfState, SlotsSample};

fn born(t: u64, object: u64, qpn: u32, place: u32) -> QpRecord {
    let mut record = create(t, object, qpn);
    record.slot = place;
    record
}

fn denied(t: u64, object: u64, qpn: u32) -> Record {
    Record::Qp(record(
        by(prefix(kind::QP_UNCOUNTED, t, object), 231, "ib_send_bw"),
        qpn,
    ))
}

fn losses(slot: u64) -> Input {
    let mut counts = [0; loss::COUNT as usize];
    counts[loss::SLOT as usize] = slot;
    Input::Losses(counts)
}

fn row(host: &mut Host, qpn: u32) -> Arc<QpRow> {
    let snapshot = host.tick();
    Arc::clone(snapshot.qps.iter().find(|row| row.qpn == qpn).unwrap())
}

fn total(host: &mut Host, qpn: u32) -> Option<u64> {
    row(host, qpn).traffic.tx_wr.map(|tx| tx.total)
}

fn notes(host: &mut Host) -> Vec<String> {
    host.tick().health.notes.iter().map(ToString::to_string).collect()
}

#[test]
fn a_qp_at_rest_has_counted_nothing_and_its_receives_were_not_looked_at() {
    let mut host = Host::new();
    // Made after the first sweep: a record that names a slot would promise counts.
    host.sweep(&[]);
    let t = host.pass(SECOND).now;
    host.qp(born(t, 0xa0, 17, place::AT_REST));
    host.sweep(&[]);
    host.pass(SECOND).sweep(&[]);
    let at_rest = row(&mut host, 17);
    let tx = at_rest.traffic.tx_wr.unwrap();
    assert_eq!((tx.total, tx.rate), (0, Some(0.0)));
    assert!(at_rest.traffic.rx_wr_posted.is_none());
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().total, 0);
    // It moves: what it did since the last sweep is a speed.
    host.pass(SECOND);
    let mut moved = slot(t, 0xa0, 17, 500);
    moved.since_ns = host.now - SECOND / 2;
    host.sweep(&[moved]);
    let tx = row(&mut host, 17).traffic.tx_wr.unwrap();
    assert_eq!((tx.total, tx.rate), (500, Some(500.0)));
    assert!(row(&mut host, 17).traffic.rx_wr_posted.is_some());
    assert!(notes(&mut host).is_empty());
}

#[test]
fn a_qp_without_a_slot_is_unknown_until_it_has_one_and_its_sums_stay() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(born(t, 0xa0, 17, place::AT_REST));
    host.qp(born(t, 0xb0, 18, place::AT_REST));
    host.sweep(&[]);
    assert!(
        host.record(denied(t + 1, 0xa0, 17)).is_empty(),
        "nothing happened to it"
    );
    host.apply(losses(1));
    host.pass(SECOND).sweep(&[]);
    let unknown = row(&mut host, 17);
    assert!(unknown.uncounted && unknown.traffic.tx_wr.is_none());
    assert_eq!(total(&mut host, 18), Some(0), "it is known which one it was");
    assert!(host.process(231).traffic.tx_wr.is_none());
    let note = notes(&mut host).concat();
    assert!(note.contains("1 QP (rxe0/17)"), "{note}");
    // One of the others went.
    host.pass(SECOND);
    let mut late = slot(t, 0xa0, 17, 5);
    (late.since_ns, late.flags) = (host.now - 1, slot_flag::SINCE_ATTACH);
    host.sweep(&[late]);
    let counted = row(&mut host, 17);
    assert!(!counted.uncounted && counted.since_attach);
    assert_eq!(total(&mut host, 17), Some(5));
    assert!(host.process(231).traffic.tx_wr.is_none());
    let note = notes(&mut host).concat();
    assert!(note.contains("for a time"), "{note}");
}

/// A sweep that has nothing to give.
fn sweep_that(lacks_some: bool, host: &mut Host) {
    let mono_ns = host.pass(SECOND).now;
    host.apply(Input::Slots(Box::new(SlotsSample {
        mono_ns,
        partial: true,
        lacks_some,
        ..SlotsSample::default()
    })));
}

fn without_place(count: u64) -> Input {
    let mut counts = [0; loss::COUNT as usize];
    counts[loss::PLACE as usize] = count;
    Input::Losses(counts)
}

#[test]
fn a_qp_that_the_tables_do_not_hold_is_unknown_until_it_has_a_slot() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(born(t, 0xa0, 17, place::NONE_LEFT));
    host.qp(born(t, 0xb0, 18, place::AT_REST));
    host.sweep(&[]);
    // Once at its creation, and with two modifies.
    host.apply(without_place(3));
    sweep_that(true, &mut host);
    let note = notes(&mut host).concat();
    assert!(
        note.contains("of 1 QP (rxe0/17)") && note.contains("--max-qps"),
        "{note}"
    );
    assert_eq!((total(&mut host, 17), total(&mut host, 18)), (None, Some(0)));
    // There is room: it was listed, and is at rest. What it received meanwhile nobody knows.
    sweep_that(false, &mut host);
    assert!(row(&mut host, 17).uncounted && total(&mut host, 17).is_none());
    // It moves.
    host.pass(SECOND);
    let mut late = slot(host.now - 1, 0xa0, 17, 5);
    (late.since_ns, late.flags) = (host.now - 1, slot_flag::SINCE_ATTACH);
    host.sweep(&[late]);
    assert_eq!(total(&mut host, 17), Some(5));
    assert!(row(&mut host, 17).since_attach && host.process(231).traffic.tx_wr.is_none());
    let note = notes(&mut host).concat();
    assert!(
        note.contains("Not counted for a time") && !note.contains("rxe0/17"),
        "{note}"
    );
}

#[test]
fn a_listed_qp_is_at_rest_only_when_all_found_room() {
    let mut host = Host::new();
    host.apply(Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::On {
            datapaths: DataPaths::default().and("rdma_rxe", "kprobe"),
        },
        ..EbpfReport::default()
    })));
    let t = host.now;
    host.pass(SECOND)
        .dump(t, vec![dumped(17, Some(231), 3), dumped(18, Some(231), 3)]);
    let mut old = slot(t, 0xa0, 17, 3);
    old.flags = slot_flag::SINCE_ATTACH;
    host.apply(Input::Slots(Box::new(SlotsSample {
        mono_ns: host.now,
        slots: vec![(0, old)],
        lacks_some: true,
        ..SlotsSample::default()
    })));
    assert_eq!((total(&mut host, 17), total(&mut host, 18)), (Some(3), None));
    sweep_that(false, &mut host);
    assert_eq!(total(&mut host, 18), Some(0));
}

#[test]
fn a_slot_that_arrives_before_the_record_that_none_was_free_stays() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(born(t, 0xa0, 17, place::AT_REST));
    host.sweep(&[slot(t, 0xa0, 17, 5)]);
    host.record(denied(t + 1, 0xa0, 17));
    assert_eq!(total(&mut host, 17), Some(5));
    assert!(!row(&mut host, 17).uncounted);
}

#[test]
fn while_it_is_not_known_which_qp_found_none_no_qp_at_rest_is_0() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(born(t, 0xa0, 17, place::AT_REST));
    host.qp(create(t, 0xb0, 18));
    host.sweep(&[slot(t, 0xb0, 18, 3)]);
    assert_eq!(total(&mut host, 17), Some(0));
    // The record that names it is still in the ring buffer, or was lost.
    host.apply(losses(1));
    assert_eq!((total(&mut host, 17), total(&mut host, 18)), (None, Some(3)));
    let note = notes(&mut host).concat();
    assert!(note.contains("1 QP,"), "{note}");
    host.record(denied(t + 1, 0xa0, 17));
    assert!(row(&mut host, 17).uncounted);
}

#[test]
fn qps_of_a_dump_that_the_kernel_side_knows_rest_while_others_count() {
    for datapath in [None, Some("kprobe")] {
        let mut host = Host::new();
        host.apply(Input::Ebpf(Box::new(EbpfReport {
            state: EbpfState::On {
                datapaths: match datapath {
                    Some(how) => DataPaths::default().and("rdma_rxe", how),
                    None => DataPaths::default(),
                },
            },
            ..EbpfReport::default()
        })));
        let t = host.now;
        host.pass(SECOND).dump(
            t,
            vec![
                dumped(17, Some(231), 3),
                dumped(18, Some(231), 3),
                dumped(19, Some(231), 3),
            ],
        );
        let mut old = slot(t, 0xa0, 17, 3);
        old.flags = slot_flag::SINCE_ATTACH;
        // A created QP whose record says that no program counts it.
        host.qp(create(t, 0xc0, 19));
        host.sweep(&[old]);
        let zero = datapath.map(|_| 0);
        assert_eq!((total(&mut host, 17), total(&mut host, 18)), (Some(3), zero));
        assert_eq!(row(&mut host, 18).since_attach, zero.is_some());
        assert_eq!(total(&mut host, 19), None);
    }
}
