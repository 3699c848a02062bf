//! QPs that are counted by probes on their programs.

use super::*;
use crate::{
    cause::{CauseId, Concerns, Obstacle},
    input::UprobesReport,
    value::Source,
};

/// A slot of a QP whose program is probed: `posted` sends, as many receives.
pub(super) fn probed(t: u64, qp: u64, qpn: u32, posted: u64) -> QpSlot {
    let unknown = slot_flag::NO_RNR
        | slot_flag::NO_RETRANSMITS
        | slot_flag::NO_CQES
        | slot_flag::NO_LATENCY
        | slot_flag::NO_DOORBELLS;
    QpSlot {
        flags: slot_flag::provider::USER | slot_flag::POSTED | unknown,
        tx_posted: posted,
        rx_posted: posted,
        ..slot(t, qp, qpn, posted)
    }
}

fn report(off: bool) -> Input {
    let too_costly = Obstacle::new(CauseId::TooCostly, "x", "y").takes("z", Concerns::Host);
    Input::Uprobes(Box::new(UprobesReport {
        off: off.then_some(too_costly),
        ..UprobesReport::default()
    }))
}

#[test]
fn what_was_posted_is_known_with_its_source_and_nothing_else_is() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.apply(report(false));
    host.sweep(&[probed(t, 0xa0, 17, 0)]);
    host.pass(SECOND).sweep(&[probed(t, 0xa0, 17, 500)]);
    for traffic in [
        (*host.only_qp().traffic).clone(),
        host.process(231).traffic.clone(),
    ] {
        for counter in [traffic.tx_wr, traffic.tx_wr_posted, traffic.rx_wr_posted] {
            let counter = counter.unwrap();
            assert_eq!(
                (counter.total, counter.rate, counter.source),
                (500, Some(500.0), Source::Uprobe)
            );
        }
        for unknown in [
            traffic.rx_wr,
            traffic.rx_bytes,
            traffic.completions,
            traffic.retransmits,
            traffic.rnr_waits,
            traffic.doorbells,
        ] {
            assert_eq!(unknown, None);
        }
        assert!(traffic.latency.is_none());
    }
}

#[test]
fn a_qp_whose_probes_were_never_hit_is_unknown_and_not_at_rest() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.qp(create(t, 0xb0, 18));
    host.apply(report(false));
    let used = |posted| [probed(t, 0xa0, 17, 0), probed(t, 0xb0, 18, posted)];
    host.sweep(&used(0));
    host.pass(SECOND).sweep(&used(0));
    assert!(host.process(231).traffic.tx_wr.is_none());
    host.pass(SECOND).sweep(&used(7));
    let snapshot = host.tick();
    let of = |qpn: u32| {
        let mut qps = snapshot.qps.iter();
        qps.find(|qp| qp.qpn == qpn).unwrap().traffic.clone()
    };
    let (silent, used) = (of(17), of(18));
    assert!(silent.tx_wr.is_none() && silent.tx_bytes.is_none() && silent.rx_wr_posted.is_none());
    assert_eq!(used.tx_wr.unwrap().total, 7);
    // The sum lacks one part.
    let sum = host.process(231).traffic.tx_wr.unwrap();
    assert_eq!((sum.total, sum.partial), (7, true));
}

#[test]
fn sends_by_a_way_that_is_not_probed_are_unknown() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    let mut slot = probed(t, 0xa0, 17, 0);
    slot.flags |= slot_flag::NO_SENDS;
    slot.rx_posted = 3;
    host.sweep(&[slot]);
    let traffic = host.only_qp().traffic.clone();
    assert!(traffic.tx_wr.is_none() && traffic.tx_wr_posted.is_none() && traffic.tx_bytes.is_none());
    assert_eq!(traffic.rx_wr_posted.unwrap().total, 3);
}

#[test]
fn without_the_probes_counts_are_unknown_and_not_at_rest() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.apply(report(false));
    host.sweep(&[probed(t, 0xa0, 17, 500)]);
    host.apply(report(true));
    host.pass(SECOND).sweep(&[]);
    assert!(host.only_qp().traffic.tx_wr.is_none());
    assert!(host.process(231).traffic.tx_wr.is_none());
    let notes = host.tick().health.notes.clone();
    assert!(
        notes.iter().any(|note| note.id == CauseId::TooCostly),
        "{notes:?}"
    );
}

#[test]
fn probes_that_the_user_ends_and_wants_again_count_from_then_on() {
    let mut host = Host::new();
    let t = host.now;
    host.qp(create(t, 0xa0, 17));
    host.apply(report(false));
    host.sweep(&[probed(t, 0xa0, 17, 40)]);
    assert_eq!(host.only_qp().traffic.tx_wr_posted.as_ref().unwrap().total, 40);
    host.pass(SECOND).apply(Input::UprobesOver);
    let snapshot = host.tick();
    assert!(snapshot.health.uprobes.is_none());
    assert!(
        snapshot.qps[0].traffic.tx_wr_posted.is_none(),
        "{:?}",
        snapshot.qps[0]
    );
    // Another session learns of the QP later, and counts from zero.
    host.pass(SECOND).apply(report(false));
    let again = |posted| {
        let mut slot = probed(t, 0xa0, 17, posted);
        (slot.born_ns, slot.since_ns) = (t + 2 * SECOND, t + 2 * SECOND);
        slot.flags |= slot_flag::SINCE_ATTACH;
        slot
    };
    host.sweep(&[again(1)]);
    host.pass(SECOND).sweep(&[again(8)]);
    let qp = host.only_qp();
    let posted = qp.traffic.tx_wr_posted.as_ref().unwrap();
    assert_eq!((posted.total, posted.rate, qp.qpn), (48, Some(7.0), 17));
}
