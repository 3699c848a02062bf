//! Judgements; reusing parts of them must give the same as judging from scratch.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    engine::{Engine, EngineConfig},
    ib::{QpState, QpType},
    input::{DataPaths, EbpfState, Now},
    snapshot::{Snapshot, Step, Traffic},
    testkit,
    value::{Counter, Source},
};

const S: u64 = 1_000_000_000;

fn totals(snapshot: &Snapshot) -> Totals {
    judged(snapshot).totals
}

fn judged(snapshot: &Snapshot) -> Judgement {
    Judgement::of(snapshot, snapshot.judgement.unexplained.clone(), None)
}

fn since(state: u8, mono_ns: u64) -> Arc<Vec<Step>> {
    Arc::new(vec![Step {
        mono_ns,
        state: QpState(state),
        duration_ns: None,
    }])
}

#[test]
fn a_row_that_waits_becomes_stuck_though_it_did_not_change() {
    let mut before = testkit::busy();
    for qp in before.qps.iter_mut() {
        let qp = Arc::make_mut(qp);
        qp.exited |= stuck::from(qp).is_some();
    }
    let mut qp = (*before.qps[1]).clone();
    (qp.state, qp.timeline) = (Some(QpState(1)), since(1, before.mono_ns));
    before.qps[1] = Arc::new(qp);
    let before = before.judged(None);
    let mut after = before.clone();
    after.mono_ns += 6 * S;
    let after = after.judged(Some(&before));
    assert_eq!(before.judgement.stuck().len(), 0);
    assert_eq!(after.judgement.stuck().len(), 1);
    assert!(
        Arc::ptr_eq(&before.judgement.rows, &after.judgement.rows),
        "no QP was looked at again"
    );
}

#[test]
fn the_engine_keeps_the_judgement_of_qps_while_a_view_holds_the_snapshot() {
    let mut engine = Engine::new(EngineConfig::default());
    let mut tick = |mono_ns| engine.tick(Now { mono_ns, wall_ns: 0 });
    let first = tick(1);
    let second = tick(2);
    assert!(Arc::ptr_eq(&first.judgement.rows, &second.judgement.rows));
    let rows = Arc::downgrade(&second.judgement.rows);
    drop((first, second));
    assert!(rows.upgrade().is_none(), "the engine itself holds no rows");
    assert_eq!(tick(3).judgement.stuck().len(), 0);
}

#[test]
fn the_list_holds_the_rows_that_are_stuck_by_themselves() {
    let s = testkit::busy().judged(None);
    let mut listed: Vec<u64> = s.judgement.stuck().map(|qp| qp.uid).collect();
    let rows = s.qps.iter().filter(|qp| Stuck::of(qp, s.mono_ns).is_some());
    let mut alone: Vec<u64> = rows.map(|qp| qp.uid).collect();
    listed.sort_unstable();
    alone.sort_unstable();
    assert_eq!(listed, alone);
    assert!(!alone.is_empty());
}

#[test]
fn the_number_of_qps_is_a_bound_where_a_device_is_left_alone() {
    let mut s = testkit::busy();
    let json = |s: &Snapshot| serde_json::to_value(totals(s)).unwrap();
    assert!(json(&s).get("qps_are_partial").is_none());
    s.health.notes.push(Cause {
        id: CauseId::Excluded,
        concerns: Concerns::Host,
        what: "mlx5_3".into(),
        why: "not read, as --exclude-device or the settings say".into(),
        remedy: "".into(),
    });
    assert_eq!(json(&s)["qps_are_partial"], true);
}

#[test]
fn of_a_device_that_is_left_alone_no_cause_is_guessed() {
    let mut s = testkit::one_row();
    s.ports.clear();
    s.health.ebpf = EbpfState::Disabled;
    s.devices[0].driver = None;
    // Another one does not answer, so nothing of it is known either.
    let mut hangs = s.devices[0].clone();
    (hangs.uid, hangs.name) = (9, "rxe9".into());
    s.devices.push(hangs);
    let of = |s: &Snapshot| -> Vec<String> {
        let judged = s.clone().judged(None);
        let unobserved = judged.judgement.unobserved.iter();
        unobserved.map(|cause| cause.device.to_string()).collect()
    };
    assert_eq!(of(&s), ["rxe0", "rxe9"]);
    s.devices[0].left_alone = true;
    assert_eq!(of(&s), ["rxe9"]);
}

#[test]
fn a_port_without_a_packet_moved_nothing_and_one_with_packets_may_have() {
    let mut s = testkit::one_row();
    s.qps.clear();
    s.ports[0].tx_packets = Some(Counter::whole(7, Some(0.0), Source::Netlink));
    let sums = totals(&s);
    assert_eq!((sums.tx.rate, sums.tx.partial), (Some(0.0), false));
    assert_eq!((sums.rx.rate, sums.rx.partial), (None, true), "packets came in");
    s.ports[0].tx_packets = None;
    assert!(totals(&s).tx.partial, "packets are not known");
}

/// A device `n` on which there is no QP but one for management, of which nothing is counted.
fn managed(s: &mut Snapshot, n: u64, kind: u8) {
    let mut device = s.devices[0].clone();
    (device.uid, device.name, device.qps) = (n, format!("rxe{n}").into(), Some(1));
    let mut port = s.ports[0].clone();
    (port.device_uid, port.device) = (n, device.name.clone());
    (port.tx_bytes, port.rx_bytes) = (None, None);
    let mut qp = (*s.qps[0]).clone();
    (qp.uid, qp.device_uid, qp.qpn, qp.qp_type) = (n * 100, Some(n), 1, Some(QpType(kind)));
    (qp.pid, qp.kernel, qp.comm, qp.traffic) = (None, true, Some("[ib_core]".into()), Arc::default());
    s.devices.push(device);
    s.ports.push(port);
    s.qps.push(Arc::new(qp));
    (s.health.follows_qps, s.health.lost_events) = (true, Some(0));
}

#[test]
fn packets_of_a_device_with_management_qps_alone_are_no_data() {
    let mut s = testkit::one_row();
    managed(&mut s, 7, 1);
    (s.devices, s.ports) = (vec![s.devices[1].clone()], vec![s.ports[1].clone()]);
    s.qps.remove(0);
    let nothing = Sum {
        rate: Some(0.0),
        partial: false,
    };
    let sums = totals(&s);
    assert_eq!((sums.tx, sums.rx), (nothing, nothing));
    let is_unknown = |edit: fn(&mut Snapshot)| {
        let mut s = s.clone();
        edit(&mut s);
        assert_eq!((totals(&s).rx.rate, totals(&s).rx.partial), (None, true));
    };
    is_unknown(|s| s.devices[0].qps = Some(2));
    is_unknown(|s| s.devices[0].qps = None);
    is_unknown(|s| s.health.follows_qps = false);
    is_unknown(|s| s.health.lost_events = Some(1));
    is_unknown(|s| (s.devices[0].followed, s.devices[0].driver) = (false, Some("mlx5_core".into())));
    is_unknown(|s| Arc::make_mut(&mut s.qps[0]).qp_type = Some(QpType(2)));
    is_unknown(|s| Arc::make_mut(&mut s.qps[0]).qp_type = None);
    is_unknown(|s| {
        let mut ended = (*s.qps[0]).clone();
        (ended.uid, ended.qp_type, ended.exited) = (8, Some(QpType(2)), true);
        s.qps.push(Arc::new(ended));
    });
}

/// As on a kernel where no program counts work requests: rows without a number make no 0, and rows with one
/// are the sum.
#[test]
fn a_sum_over_rows_of_which_none_is_known_is_unknown() {
    for (counts, row_is_known) in [(false, false), (false, true), (true, false)] {
        let mut s = testkit::one_row();
        managed(&mut s, 7, 1);
        (s.devices, s.ports) = (vec![s.devices[1].clone()], vec![s.ports[1].clone()]);
        s.qps.remove(0);
        s.ports[0].tx_packets = Some(Counter::whole(9, Some(40.0), Source::Netlink));
        s.devices[0].datapath = counts.then(|| "kprobe".into());
        let datapaths = DataPaths::default();
        let datapaths = if counts {
            datapaths.and("rdma_rxe", "kprobe")
        } else {
            datapaths
        };
        s.health.ebpf = EbpfState::On { datapaths };
        let core = &mut s.processes[0];
        (core.pid, core.kernel, core.comm, core.traffic) =
            (None, true, "[ib_core]".into(), Traffic::default());
        core.traffic.tx_wr = row_is_known.then(|| Counter::whole(9, Some(3.0), Source::Ebpf));
        let sums = totals(&s);
        assert_eq!(sums.tx.known(), counts.then_some(0.0));
        assert_eq!(
            sums.wr.known(),
            match (counts, row_is_known) {
                (_, true) => Some(3.0),
                (counts, false) => counts.then_some(0.0),
            }
        );
    }
}

#[test]
fn a_port_or_a_process_with_a_missing_part_makes_the_total_a_lower_bound() {
    let whole = testkit::busy();
    let sums = totals(&whole);
    let mut s = whole.clone();
    for counter in s.ports.iter_mut().filter_map(|p| p.tx_bytes.as_mut()).take(1) {
        counter.partial = true;
    }
    let port = totals(&s);
    assert_eq!((port.tx.rate, port.tx.partial), (sums.tx.rate, true));
    assert_eq!(port.rx, sums.rx);
    let mut s = whole.clone();
    let sent = s.processes.iter_mut().filter_map(|p| p.traffic.tx_wr.as_mut());
    for counter in sent.take(1) {
        counter.partial = true;
    }
    assert!(totals(&s).wr.partial);
}

#[test]
fn what_a_process_moved_that_has_ended_is_part_of_the_total() {
    let mut s = testkit::one_row();
    let before = totals(&s).wr;
    assert!(before.rate > Some(0.0));
    (s.processes[0].exited, s.processes[0].qps) = (true, 0);
    assert_eq!(totals(&s).wr, before);
    s.processes[0].traffic = Traffic::default();
    assert_eq!(totals(&s).wr.rate, Some(0.0), "it had no QP");
}

#[test]
fn unknown_kernel_consumers_make_sums_lower_bounds_and_mads_do_not() {
    let mut s = testkit::one_row();
    let mut kernel = s.processes[0].clone();
    (kernel.uid, kernel.pid, kernel.kernel, kernel.comm) = (9, None, true, "[ib_core]".into());
    kernel.traffic = Traffic::default();
    s.processes.push(kernel);
    assert!(!totals(&s).wr.partial);
    s.processes[1].comm = "[nvme_rdma]".into();
    assert!(totals(&s).wr.partial);
    s.processes.clear();
    assert_eq!(totals(&s).wr.rate, Some(0.0), "no process posts");
    s.health.ebpf = EbpfState::Disabled;
    assert_eq!(totals(&s).wr.rate, None, "no program counts");
}

#[test]
fn a_part_is_null_in_json_and_what_is_known_of_it_stands_beside() {
    let json = |rate, partial| serde_json::to_string(&Sum { rate, partial }).unwrap();
    assert_eq!(json(Some(1.5), false), r#"{"rate":1.5}"#);
    assert_eq!(json(Some(1.5), true), r#"{"rate":null,"at_least":1.5}"#);
    assert_eq!(json(None, true), r#"{"rate":null,"at_least":null}"#);
}

#[test]
fn stuck_qps_are_counted_for_their_process_with_what_is_wrong_first() {
    let mut s = testkit::busy();
    let mut late = (*s.qps[1]).clone();
    (late.state, late.process_uid, late.uid) = (Some(QpState(4)), Some(4276), 99);
    late.timeline = since(4, s.mono_ns);
    s.qps.insert(0, Arc::new(late));
    s.mono_ns += 10 * S;
    let judgement = judged(&s);
    let first = judgement
        .stuck_of(4276)
        .map(|(count, stuck)| (count, stuck.reason));
    assert_eq!(first, Some((2, Reason::Failed)));
    assert_eq!(judgement.by_process.len(), 1, "the kernel's have no process here");
    assert_eq!(judgement.stuck().len(), 3);
    assert!(judgement.stuck().take(2).all(|qp| qp.stuck.is_wrong()));
}

#[test]
fn a_device_names_what_of_it_cannot_be_observed_and_why() {
    let lines = |s: &Snapshot| -> Vec<String> {
        let judgement = judged(s);
        judgement.unobserved.iter().map(ToString::to_string).collect()
    };
    let bytes = "rxe0: bytes on the wire: its driver counts no bytes.";
    let mut s = testkit::one_row();
    s.devices[0].followed = true;
    assert!(!s.ports[0].counters.is_empty());
    assert_eq!(lines(&s), [bytes]);
    Arc::make_mut(&mut s.qps[0]).uncounted = true;
    let slots =
        "rxe0: work requests of 1 QP: they found no free counter slot, or no room in the tables of QPs.";
    assert_eq!(lines(&s), [slots, bytes]);
    let why = |s: &Snapshot| lines(s)[0].clone();
    s.health.ebpf = EbpfState::On {
        datapaths: DataPaths::default(),
    };
    s.devices[0].datapath = None;
    assert_eq!(
        why(&s),
        "rxe0: work requests: the programs that count it are not attached; `rdmatop probes` says why."
    );
    let id = |s: &Snapshot| judged(s).unobserved[0].cause.id;
    assert_eq!(id(&s), CauseId::NoDataPath);
    s.devices[0].followed = false;
    assert_eq!(id(&s), CauseId::NotFollowed);
    assert!(why(&s).contains("bypass the kernel"), "{}", why(&s));
    assert!(why(&s).contains("--uprobes"), "{}", why(&s));
    // With probes only those that are not counted are named.
    s.health.uprobes = Some(Arc::default());
    let of_work = |s: &Snapshot| {
        lines(s)
            .iter()
            .filter(|line| line.contains("work requests"))
            .count()
    };
    for qp in s.qps.iter_mut() {
        let qp = Arc::make_mut(qp);
        let traffic = Arc::make_mut(&mut qp.traffic);
        traffic.tx_wr = Some(Counter::whole(1, None, Source::Uprobe));
    }
    assert_eq!(of_work(&s), 0, "{:?}", lines(&s));
    let mut silent = (*s.qps[0]).clone();
    (silent.exited, silent.qp_type) = (false, Some(QpType(2)));
    silent.traffic = Arc::default();
    s.qps.push(Arc::new(silent));
    assert!(why(&s).contains("of 1 QP: "), "{}", why(&s));
    assert!(!why(&s).contains("--uprobes"), "{}", why(&s));
    // If no QP is counted, the device may be used without a QP.
    s.qps.clear();
    assert!(why(&s).starts_with("rxe0: work requests: "), "{}", why(&s));
    s.health.uprobes = None;
    s.health.ebpf = EbpfState::Disabled;
    assert!(why(&s).contains("--no-ebpf"), "{}", why(&s));
    let refused = Obstacle::new(CauseId::NoCapability, "CAP_BPF is missing", "run as root");
    s.health.ebpf = EbpfState::unavailable(refused);
    assert_eq!(
        (id(&s), &*why(&s)),
        (
            CauseId::NoCapability,
            "rxe0: work requests: eBPF is off: CAP_BPF is missing."
        )
    );
    s.ports[0].counters.clear();
    assert!(lines(&s)[1].ends_with("no counter of its driver can be read."));
    s.ports.clear();
    assert_eq!(lines(&s).len(), 1, "ports that are not known yet lack nothing");
}

proptest! {
    /// Whatever is counted of QPs for management: sums are what the rows of processes say.
    #[test]
    fn management_makes_no_sum_unknown(
        devices in proptest::collection::vec((0_u8..2, proptest::option::of(0_u32..9000)), 0..4),
        sent in proptest::option::of((proptest::option::of(0_u32..9), any::<bool>())),
    ) {
        let mut s = testkit::one_row();
        let bytes = Some(Counter::whole(9, Some(4e6), Source::Sysfs));
        (s.ports[0].tx_bytes, s.ports[0].rx_bytes) = (bytes, bytes);
        let before = totals(&s);
        prop_assert_eq!((before.tx.partial, before.rx.partial), (false, false));
        for (n, (kind, packets)) in (7..).zip(devices) {
            managed(&mut s, n, kind);
            let counter = packets.map(|rate| Counter::whole(9, Some(rate.into()), Source::Netlink));
            let port = s.ports.last_mut().unwrap();
            (port.tx_packets, port.rx_packets) = (counter, counter);
        }
        let mut owner = s.processes[0].clone();
        (owner.uid, owner.pid, owner.kernel, owner.comm) = (9, None, true, "[ib_core]".into());
        owner.traffic = Traffic::default();
        let posts = sent.map(|(rate, partial)| (rate.map(f64::from), partial));
        owner.traffic.tx_wr = posts.map(|(rate, partial)| {
            let mut counter = Counter::whole(9, rate, Source::Ebpf);
            counter.partial = partial;
            counter
        });
        s.processes.push(owner);
        let sums = totals(&s);
        prop_assert_eq!((sums.tx, sums.rx), (before.tx, before.rx));
        let own = posts.and_then(|(rate, _)| rate).unwrap_or(0.0);
        prop_assert_eq!(sums.wr.rate, before.wr.rate.map(|rate| rate + own));
        prop_assert_eq!(sums.wr.partial, before.wr.partial);
    }

    #[test]
    fn kept_judgements_equal_new_ones(
        steps in proptest::collection::vec((0usize..20, 0u8..7, 0u64..4, any::<bool>()), 1..12),
    ) {
        let mut before = testkit::busy().judged(None);
        for (at, state, seconds, gone) in steps {
            let mut after = before.clone();
            after.mono_ns += seconds * S;
            if let Some(qp) = after.qps.get_mut(at) {
                let qp = Arc::make_mut(qp);
                (qp.state, qp.exited) = (Some(QpState(state)), gone);
                if let Some(tx) = &mut Arc::make_mut(&mut qp.traffic).tx_bytes {
                    tx.rate = Some(f64::from(state));
                }
            } else if at == 19 {
                after.qps.pop();
            } else if at == 18 {
                after.ports.pop();
            }
            let after = after.judged(Some(&before));
            prop_assert_eq!(&after.judgement, &judged(&after));
            before = after;
        }
    }
}
