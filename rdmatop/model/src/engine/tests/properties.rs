//! Any inputs in any order: no panic, no total that shrinks, no wrong count of QPs.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::snapshot::Traffic;

/// A step of a random history over few addresses, numbers and processes, so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Create {
        object: u64,
        qpn: u32,
        pid: u32,
        back: u64,
    },
    Modify {
        object: u64,
        qpn: u32,
        state: u8,
        rc: i32,
        mask: u32,
        back: u64,
    },
    Destroy {
        object: u64,
        qpn: u32,
        rc: i32,
        back: u64,
    },
    Dump {
        qpns: Vec<(u32, Option<u32>)>,
        back: u64,
        complete: bool,
    },
    Sweep {
        slots: Vec<(u64, u32, u64, bool)>,
    },
    Devices {
        present: bool,
        index: u32,
    },
    Facts {
        pid: u32,
        start: u64,
    },
    Gone {
        pid: u32,
    },
    Region {
        add: bool,
        object: u64,
        pid: u32,
        size: u64,
    },
    Losses([u64; 11]),
    Verbs {
        pid: u32,
        calls: u64,
        errors: u64,
    },
    Pass {
        ns: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (object, qpn, pid) = (0u64..4, 0u32..5, 1u32..4);
    let back = 0u64..20 * MS;
    prop_oneof![
        4 => (object.clone(), qpn.clone(), pid.clone(), back.clone())
            .prop_map(|(object, qpn, pid, back)| Step::Create { object, qpn, pid, back }),
        3 => (object.clone(), qpn.clone(), 0u8..9, -2i32..2, 0u32..4, back.clone())
            .prop_map(|(object, qpn, state, rc, mask, back)| Step::Modify { object, qpn, state, rc, mask, back }),
        3 => (object.clone(), qpn.clone(), -1i32..1, back.clone())
            .prop_map(|(object, qpn, rc, back)| Step::Destroy { object, qpn, rc, back }),
        2 => (proptest::collection::vec((qpn.clone(), proptest::option::of(pid.clone())), 0..5), back, any::<bool>())
            .prop_map(|(qpns, back, complete)| Step::Dump { qpns, back, complete }),
        4 => proptest::collection::vec((1u64..4, qpn, 0u64..1000, any::<bool>()), 0..4)
            .prop_map(|slots| Step::Sweep { slots }),
        1 => (any::<bool>(), 0u32..2).prop_map(|(present, index)| Step::Devices { present, index }),
        1 => (pid.clone(), 0u64..2).prop_map(|(pid, start)| Step::Facts { pid, start }),
        1 => pid.clone().prop_map(|pid| Step::Gone { pid }),
        1 => (any::<bool>(), object, pid.clone(), any::<u64>())
            .prop_map(|(add, object, pid, size)| Step::Region { add, object, pid, size }),
        1 => any::<[u64; 11]>().prop_map(Step::Losses),
        1 => (pid, any::<u64>(), any::<u64>()).prop_map(|(pid, calls, errors)| Step::Verbs { pid, calls, errors }),
        3 => (0u64..2 * SECOND).prop_map(|ns| Step::Pass { ns }),
    ]
}

fn run(host: &mut Host, step: &Step) {
    let ts = |back: u64| host.now - back;
    match step {
        Step::Create {
            object,
            qpn,
            pid,
            back,
        } => {
            let mut record = create(ts(*back), *object, *qpn);
            record.prefix = by(record.prefix, *pid, &format!("p{pid}"));
            host.qp(record);
        }
        Step::Modify {
            object,
            qpn,
            state,
            rc,
            mask,
            back,
        } => {
            let mut record = modify(ts(*back), *object, *qpn, *state);
            (record.prefix.rc, record.attr_mask) = (*rc, *mask);
            if mask & 2 != 0 {
                record.prefix.flags &= !flag::DEVICE;
            }
            host.qp(record);
        }
        Step::Destroy {
            object,
            qpn,
            rc,
            back,
        } => {
            let mut record = destroy(ts(*back), *object, *qpn);
            record.prefix.rc = *rc;
            host.qp(record);
        }
        Step::Dump { qpns, back, complete } => {
            let sample = QpsSample {
                mono_ns: ts(*back),
                complete: if *complete { vec![0] } else { vec![] },
                qps: qpns.iter().map(|(qpn, pid)| dumped(*qpn, *pid, 3)).collect(),
                errors: Vec::new(),
            };
            host.apply(Input::Qps(Box::new(sample)));
        }
        Step::Sweep { slots } => {
            let slots: Vec<_> = slots
                .iter()
                .map(|(object, qpn, done, last)| {
                    let slot = slot(object * 7, *object, *qpn, *done);
                    if *last { final_slot(slot) } else { slot }
                })
                .collect();
            host.sweep(&slots);
        }
        Step::Devices { present, index } => {
            host.devices(if *present {
                vec![rxe(*index, "rxe0")]
            } else {
                vec![]
            });
        }
        Step::Facts { pid, start } => host.facts(*pid, *start, &format!("p{pid}")),
        Step::Gone { pid } => host.gone(*pid),
        Step::Region {
            add,
            object,
            pid,
            size,
        } => {
            let kind = if *add { kind::MR_REG } else { kind::MR_DEREG };
            host.record(region(kind, host.now, *object, *pid, *size));
        }
        Step::Losses(counts) => {
            host.apply(Input::Losses(*counts));
        }
        Step::Verbs { pid, calls, errors } => {
            let stats = VerbStats {
                calls: *calls,
                errors: *errors,
                ..VerbStats::new_zeroed()
            };
            let sample = VerbsSample {
                mono_ns: host.now,
                verbs: vec![(VerbKey { pid: *pid, verb: 1 }, stats)],
                ..VerbsSample::default()
            };
            host.apply(Input::Verbs(Box::new(sample)));
        }
        Step::Pass { ns } => {
            host.pass(*ns);
        }
    }
}

fn totals(traffic: &Traffic) -> Vec<u64> {
    [
        traffic.tx_wr,
        traffic.tx_bytes,
        traffic.rx_wr,
        traffic.completions,
    ]
    .iter()
    .flatten()
    .inspect(|counter| assert!(counter.rate.is_none_or(|rate| rate.is_finite() && rate >= 0.0)))
    .map(|counter| counter.total)
    .collect()
}

/// Checks a snapshot by itself and against those before it.
fn check(snapshot: &Snapshot, seen: &mut HashMap<(bool, u64), Vec<u64>>) {
    let mut rows = Vec::new();
    for qp in &snapshot.qps {
        rows.push(((false, qp.uid), &*qp.traffic));
        assert!(qp.timeline.is_sorted_by_key(|step| step.mono_ns));
    }
    for process in &snapshot.processes {
        rows.push(((true, process.uid), &process.traffic));
        let living = snapshot
            .qps
            .iter()
            .filter(|qp| qp.process_uid == Some(process.uid) && !qp.exited)
            .count();
        assert_eq!(process.qps, living as u64, "{process:?} {:?}", snapshot.qps);
    }
    for (row, traffic) in rows {
        let now = totals(traffic);
        let before = seen.entry(row).or_default();
        assert!(before.len() <= now.len(), "what was known stays known");
        assert!(
            before.iter().zip(&now).all(|(before, now)| before <= now),
            "{before:?} {now:?}"
        );
        *before = now;
    }
    let mut numbers = HashMap::new();
    for qp in snapshot.qps.iter().filter(|qp| !qp.exited && qp.qpn > 1) {
        let twin = numbers.insert((qp.device_uid, qp.qpn), qp.uid);
        assert_eq!(twin, None, "two living QPs of one number");
    }
}

proptest! {
    #[test]
    fn any_history_leaves_the_tables_whole(steps in proptest::collection::vec(step(), 1..60)) {
        let mut host = Host::new();
        let mut seen = HashMap::new();
        for step in &steps {
            run(&mut host, step);
            check(&host.tick(), &mut seen);
        }
    }

    #[test]
    fn what_was_never_counted_is_never_zero(steps in proptest::collection::vec(step(), 1..60)) {
        let mut host = Host::new();
        for step in steps.iter().filter(|step| !matches!(step, Step::Sweep { .. } | Step::Region { .. } | Step::Verbs { .. })) {
            run(&mut host, step);
        }
        let snapshot = host.tick();
        for traffic in snapshot.qps.iter().map(|r| &*r.traffic).chain(snapshot.processes.iter().map(|r| &r.traffic)) {
            prop_assert!(totals(traffic).is_empty());
            prop_assert!(traffic.latency.is_none() && traffic.completion_errors.is_none());
        }
        for process in &snapshot.processes {
            prop_assert!(process.mr_bytes.is_none() && process.verb_errors.is_none());
        }
        for port in &snapshot.ports {
            prop_assert!(port.tx_bytes.is_none() && port.tx_packets.is_none() && port.drops.is_none());
        }
    }

    #[test]
    fn any_bytes_that_decode_are_folded_in(bytes in proptest::collection::vec(any::<u8>(), 144..240), kind in prop_oneof![1u16..5, 10u16..12, 20u16..22, Just(30), Just(50)]) {
        let mut bytes = bytes;
        bytes[24..26].copy_from_slice(&kind.to_ne_bytes());
        let mut host = Host::new();
        if let Ok(record) = rdmatop_common::event::decode(&bytes) {
            for event in host.record(record) {
                prop_assert!(serde_json::to_string(&event).is_ok());
            }
        }
        host.tick();
    }
}
