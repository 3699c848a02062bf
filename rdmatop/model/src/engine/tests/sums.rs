//! What a user sees of a machine that reuses every address and number: the sums of processes and ports.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    history::{Lab, Step, history},
    kernel::Work,
    *,
};
use crate::{
    snapshot::Traffic,
    value::{Counter, Source},
};

fn total(counter: Option<Counter>) -> u64 {
    counter.map_or(0, |counter| counter.total)
}

/// Work requests of a row, whose bytes must go with them.
fn work(traffic: &Traffic) -> Work {
    let (sent, received) = (total(traffic.tx_wr), total(traffic.rx_wr));
    assert_eq!(total(traffic.tx_bytes), Work::SENT_BYTES * sent);
    assert_eq!(total(traffic.rx_bytes), Work::RECEIVED_BYTES * received);
    Work { sent, received }
}

/// Asserts that the sums are those of the machine, once everything has arrived.
fn check_sums(lab: &mut Lab) {
    lab.kernel.now += 10 * MS;
    let snapshot = lab.engine.tick(lab.present());
    let kernel = &lab.kernel;
    let none = Work::default();
    let mut truth: BTreeMap<u32, Work> = BTreeMap::new();
    for qp in kernel.qps.iter().filter(|qp| qp.counted != none) {
        *truth.entry(kernel.tasks[qp.task].pid).or_default() += qp.counted;
    }
    let mut said: BTreeMap<u32, Work> = BTreeMap::new();
    for process in &snapshot.processes {
        let known = work(&process.traffic);
        if known != none {
            *said.entry(process.pid.unwrap_or(0)).or_default() += known;
        }
    }
    assert_eq!(said, truth, "by process id");
    for (which, device) in kernel
        .devices
        .iter()
        .enumerate()
        .filter(|(_, device)| device.lives)
    {
        let on = kernel.qps.iter().filter(|qp| qp.device == which);
        let truth: Work = on.map(|qp| qp.counted).sum();
        let port = snapshot.ports.iter().find(|port| *port.device == *device.name);
        let shown = port.map_or([None; 2], |port| [port.wr_tx_bytes, port.wr_rx_bytes]);
        let shown = shown.map(|counter| total(counter.filter(|counter| counter.source == Source::Ebpf)));
        let bytes = [
            Work::SENT_BYTES * truth.sent,
            Work::RECEIVED_BYTES * truth.received,
        ];
        assert_eq!(shown, bytes, "{device:?}");
    }
}

proptest! {
    #[test]
    fn sums_are_those_of_the_machine(lossy: bool, steps in history()) {
        let mut lab = Lab::new(EngineConfig::keep_all(), lossy);
        lab.run(&Step::Attach);
        for step in &steps {
            lab.run(step);
        }
        lab.settle();
        check_sums(&mut lab);
    }
}
