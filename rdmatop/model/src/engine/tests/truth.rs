//! Whatever the kernel reuses, and however late and out of order the inputs come: counts go to the true
//! owner.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{
    history::{Lab, Step, history},
    kernel::{self, Work},
    *,
};
use crate::engine::flow::Flow;

/// Work requests, whose bytes must go with them.
fn counted(flow: Option<&Flow>) -> Work {
    let Some(flow) = flow else {
        return Work::default();
    };
    let traffic = flow.traffic(true);
    let counts = [traffic.tx_wr, traffic.tx_bytes, traffic.rx_wr, traffic.rx_bytes];
    // The model's programs see everything.
    let [sent, sent_bytes, received, received_bytes] = counts.map(|counter| counter.expect("a count").total);
    assert_eq!(sent_bytes, Work::SENT_BYTES * sent);
    assert_eq!(received_bytes, Work::RECEIVED_BYTES * received);
    Work { sent, received }
}

/// What the engine claims about the QPs and the devices that there were, by their places in the kernel's
/// lists.
#[derive(Default)]
struct Said {
    qps: HashMap<usize, Work>,
    devices: HashMap<usize, Work>,
}

/// Asserts that the engine claims nothing that is not true. What it does not know yet may be missing.
fn check(lab: &Lab) -> Said {
    let (kernel, engine) = (&lab.kernel, &lab.engine);
    let mut said = Said::default();
    let mut generations = HashMap::new();
    for qp in engine.machine.qps.iter() {
        let mut born_as = qp.births.iter().copied().map(|(object, born_ns)| {
            let is_it = |truth: &kernel::TrueQp| truth.object == object && truth.births.contains(&born_ns);
            kernel.qps.iter().position(is_it).expect("a birth that was")
        });
        let Some(which) = born_as.next() else {
            let none = Work::default();
            assert_eq!(
                counted(qp.flow.as_ref()),
                none,
                "counts of a QP that no slot is of"
            );
            continue;
        };
        assert!(
            born_as.all(|other| other == which),
            "two QPs taken for one: {qp:?}"
        );
        let truth = &kernel.qps[which];
        let known = counted(qp.flow.as_ref());
        assert!(known.is_within(truth.counted), "{known:?} of {truth:?}");
        assert_eq!(
            said.qps.insert(which, known),
            None,
            "one QP taken for two: {qp:?}"
        );
        assert_eq!(qp.key.qpn, truth.qpn);
        let generation = *generations.entry(truth.device).or_insert(qp.key.device);
        assert_eq!(generation, qp.key.device, "the device of {qp:?}");
        let task = &kernel.tasks[truth.task];
        let owner = engine.machine.processes.get(qp.process().expect("an owner"));
        let Some(owner) = owner else {
            assert!(!lab.keeps_all && !qp.lives(), "{qp:?} without its owner");
            continue;
        };
        assert_eq!(
            (owner.pid, owner.start_ns),
            (Some(task.pid), Some(task.start_ns)),
            "{qp:?}"
        );
        if !qp.lives() {
            let is_settled = lab.kernel.records.is_empty() && lab.kernel.samples.is_empty();
            assert!(
                !truth.lives || !is_settled || !kernel.devices[truth.device].lives,
                "{qp:?} lives"
            );
        }
    }
    let mut of_generation: HashMap<u64, usize> = HashMap::new();
    for (device, generation) in &generations {
        assert_eq!(
            of_generation.insert(*generation, *device),
            None,
            "two devices taken for one"
        );
    }
    for process in engine.machine.processes.iter() {
        let known = counted(process.flow.as_deref());
        let start_ns = process.start_ns;
        let is_it = |qp: &&kernel::TrueQp| {
            let task = &kernel.tasks[qp.task];
            (Some(task.pid), Some(task.start_ns)) == (process.pid, start_ns)
        };
        let truth: Work = kernel.qps.iter().filter(is_it).map(|qp| qp.counted).sum();
        assert!(known.is_within(truth), "{known:?} for {truth:?}: {process:?}");
    }
    for device in engine.machine.devices.iter() {
        let known = counted(device.flow.as_deref());
        let Some(which) = of_generation.get(&device.uid) else {
            assert!(
                known == Work::default() || !lab.keeps_all,
                "counts of {device:?}, on which nothing was"
            );
            continue;
        };
        assert_eq!(device.index, kernel.devices[*which].index);
        let on = kernel.qps.iter().filter(|qp| qp.device == *which);
        let truth: Work = on.map(|qp| qp.counted).sum();
        assert!(known.is_within(truth), "{known:?} for {truth:?} of {device:?}");
        said.devices.insert(*which, known);
    }
    said
}

/// Asserts that everything is known once everything has arrived: the counts of each QP, the sums of processes
/// and devices, and which QPs live.
fn check_all(lab: &mut Lab) {
    let said = check(lab);
    let kernel = &lab.kernel;
    let moved = |qp: &kernel::TrueQp| qp.counted != Work::default();
    for (which, truth) in kernel.qps.iter().enumerate().filter(|(_, qp)| moved(qp)) {
        assert_eq!(said.qps.get(&which), Some(&truth.counted), "{truth:?}");
    }
    let total: Work = kernel.qps.iter().map(|qp| qp.counted).sum();
    let processes = lab.engine.machine.processes.iter();
    let sum: Work = processes.map(|process| counted(process.flow.as_deref())).sum();
    assert_eq!(sum, total, "the sum of all processes");
    for (which, _) in kernel
        .devices
        .iter()
        .enumerate()
        .filter(|(_, device)| device.lives)
    {
        let on = kernel.qps.iter().filter(|qp| qp.device == which);
        let truth: Work = on.map(|qp| qp.counted).sum();
        assert_eq!(
            said.devices.get(&which).copied().unwrap_or_default(),
            truth,
            "device {which}"
        );
    }
    let mut truth: Vec<_> = kernel
        .qps
        .iter()
        .filter(|qp| qp.lives)
        .map(|qp| (kernel.devices[qp.device].index, qp.qpn, kernel.tasks[qp.task].pid))
        .collect();
    let engine = &lab.engine;
    let index = |uid| {
        engine
            .machine
            .devices
            .get(uid)
            .map_or(u32::MAX, |device| device.index)
    };
    let living = engine.machine.qps.iter().filter(|qp| qp.lives());
    let mut rows: Vec<_> = living
        .map(|qp| (index(qp.key.device), qp.key.qpn, qp.row().pid.unwrap_or(0)))
        .collect();
    truth.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, truth, "the QPs that live");
    if !lab.lossy {
        // The state of a QP that was there before the programs and went before a dump is not known.
        for qp in engine.machine.qps.iter().filter(|qp| qp.created) {
            let row = qp.row();
            assert!(row.qp_type.is_some() && row.state.is_some(), "a ghost: {row:?}");
        }
    }
}

fn try_out(config: EngineConfig, lossy: bool, attach_first: bool, steps: &[Step]) -> Lab {
    let mut lab = Lab::new(config, lossy);
    if attach_first {
        lab.run(&Step::Attach);
    }
    for step in steps {
        lab.run(step);
        check(&lab);
        lab.engine.tick(lab.present());
    }
    lab
}

proptest! {
    #[test]
    fn every_count_goes_to_its_owner_however_late_it_arrives(first: bool, steps in history()) {
        let mut lab = try_out(EngineConfig::keep_all(), false, first, &steps);
        lab.settle();
        check_all(&mut lab);
    }

    #[test]
    fn with_lost_records_counts_still_go_to_their_owners(first: bool, steps in history()) {
        let mut lab = try_out(EngineConfig::keep_all(), true, first, &steps);
        lab.settle();
        check_all(&mut lab);
    }

    #[test]
    fn what_is_forgotten_early_goes_to_no_other_owner(first: bool, lossy: bool, max_ended in 0usize..4, steps in history()) {
        let config = EngineConfig { max_ended, ..EngineConfig::default() };
        let mut lab = try_out(config, lossy, first, &steps);
        lab.settle();
        check(&lab);
    }
}
