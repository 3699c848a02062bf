//! Sweeps that hold only what changed say the same as sweeps that hold everything.

use proptest::prelude::*;

use super::*;

impl Host {
    /// A sweep that leaves out what has not changed.
    fn changes(&mut self, slots: &[(u32, QpSlot)]) {
        self.sample(slots, false);
    }

    fn sample(&mut self, slots: &[(u32, QpSlot)], more: bool) {
        let sample = SlotsSample {
            mono_ns: self.now,
            at: None,
            slots: slots.to_vec(),
            partial: true,
            more,
            capacity: 8,
            lacks_some: false,
        };
        self.apply(Input::Slots(Box::new(sample)));
    }
}

fn tx(row: &QpRow) -> (u64, Option<f64>) {
    let tx = row.traffic.tx_wr.unwrap();
    (tx.total, tx.rate)
}

#[test]
fn a_slot_that_is_left_out_has_not_changed() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 1000)]);
    host.pass(SECOND).changes(&[(0, slot(t, 0xa0, 17, 1500))]);
    assert_eq!(tx(&host.only_qp()), (1500, Some(500.0)));
    host.pass(SECOND).changes(&[]);
    assert_eq!(tx(&host.only_qp()), (1500, Some(0.0)));
    let still = host.only_qp();
    host.pass(SECOND).changes(&[]);
    assert!(!Arc::ptr_eq(&still, &host.only_qp()), "its history goes on");
    host.pass(SECOND).changes(&[(0, slot(t, 0xa0, 17, 1502))]);
    assert_eq!(tx(&host.only_qp()), (1502, Some(2.0)));
}

#[test]
fn a_qp_that_was_idle_from_the_start_is_known_to_be_and_its_row_is_shared() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.changes(&[(3, slot(t, 0xa0, 17, 0))]);
    host.only_qp();
    host.pass(SECOND).changes(&[]);
    let row = host.only_qp();
    assert_eq!(tx(&row), (0, Some(0.0)));
    host.pass(SECOND).changes(&[]);
    assert!(Arc::ptr_eq(&row, &host.only_qp()));
}

#[test]
fn rows_at_rest_are_one_list_until_one_of_them_has_to_change() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t, 0xb0, 18));
    host.changes(&[(3, 0xa0, 17), (4, 0xb0, 18)].map(|(at, qp, qpn)| (at, slot(t, qp, qpn, 0))));
    let mut next = |change: &dyn Fn(&mut Host)| {
        host.pass(SECOND);
        change(&mut host);
        host.tick()
    };
    let idle = |host: &mut Host| host.changes(&[]);
    next(&idle);
    let before = next(&idle);
    let same = next(&idle);
    assert!(before.qps.is(&same.qps));
    let touched = next(&|host| {
        host.changes(&[]);
        host.qp(modify(t + 3, 0xb0, 18, 1));
    });
    assert!(Arc::ptr_eq(&same.qps[0], &touched.qps[0]));
    assert_eq!(touched.qps[1].state, Some(QpState(1)));
    assert!(touched.qps.is(&next(&idle).qps), "it is at rest again");
    // Their rates grow old without anything that touches them.
    let old = next(&|host| _ = host.pass(60 * SECOND));
    assert_eq!(tx(&old.qps[0]), (0, None));
    next(&idle);
    let moved = next(&|host| host.changes(&[(3, slot(t, 0xa0, 17, 5))]));
    assert_eq!((tx(&moved.qps[0]).0, tx(&moved.qps[1]).0), (5, 0));
    let ended = next(&|host| {
        host.changes(&[]);
        let now = host.now;
        host.qp(destroy(now, 0xb0, 18));
    });
    assert!(ended.qps[1].exited);
}

#[test]
fn a_sweep_in_pieces_is_one_sweep() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t, 0xa1, 18));
    host.sweep(&[slot(t, 0xa0, 17, 0), slot(t, 0xa1, 18, 0)]);
    host.pass(SECOND);
    host.sample(&[(0, slot(t, 0xa0, 17, 10))], true);
    host.sample(&[(1, slot(t, 0xa1, 18, 20))], false);
    let snapshot = host.tick();
    let seen: Vec<_> = snapshot.qps.iter().map(|row| tx(row)).collect();
    assert_eq!(seen, [(10, Some(10.0)), (20, Some(20.0))]);
    assert_eq!(host.process(231).traffic.tx_wr.unwrap().rate, Some(30.0));
}

#[test]
fn the_last_reading_of_a_destroyed_qp_frees_its_slot() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.sweep(&[slot(t, 0xa0, 17, 5)]);
    let mut last = slot(t, 0xa0, 17, 9);
    last.flags |= rdmatop_common::counters::slot_flag::DESTROYED;
    host.pass(SECOND).changes(&[(0, last)]);
    let row = host.only_qp();
    assert!(row.exited);
    assert_eq!(row.traffic.tx_wr.unwrap().total, 9);
    let t = host.pass(SECOND).now;
    host.qp(create(t, 0xb0, 18));
    host.changes(&[(0, slot(t, 0xb0, 18, 2))]);
    let totals: Vec<_> = host.tick().qps.iter().map(|row| tx(row).0).collect();
    assert_eq!(totals, [9, 2]);
    // The slot was its last tie: the row goes when its time is over.
    host.pass(10 * SECOND).changes(&[]);
    assert_eq!(host.only_qp().qpn, 18);
}

proptest! {
    #[test]
    fn sweeps_without_unchanged_slots_give_the_same_result(
        steps in proptest::collection::vec(proptest::collection::vec(0u64..3, 4), 1..20)
    ) {
        let (mut whole, mut partial) = (Host::new(), Host::new());
        let born = whole.now;
        let qps = 0..4u32;
        let mut done = [0u64; 4];
        let at = |number: u32, done: u64| slot(born, 0xa0 + u64::from(number), 17 + number, done);
        for host in [&mut whole, &mut partial] {
            let all: Vec<QpSlot> = qps.clone().map(|number| at(number, 0)).collect();
            host.sweep(&all);
        }
        for step in &steps {
            let mut changed = Vec::new();
            for (number, more) in (0u32..).zip(step) {
                done[number as usize] += more;
                if *more > 0 {
                    changed.push((number, at(number, done[number as usize])));
                }
            }
            let all: Vec<QpSlot> = qps.clone().map(|number| at(number, done[number as usize])).collect();
            whole.pass(SECOND).sweep(&all);
            partial.pass(SECOND).changes(&changed);
            let json = |host: &mut Host| serde_json::to_value(&*host.tick()).unwrap();
            prop_assert_eq!(json(&mut whole), json(&mut partial));
        }
    }
}
