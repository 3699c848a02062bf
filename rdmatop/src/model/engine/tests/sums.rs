//! What a user sees of a machine that reuses every address and number: the sums of processes and ports.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    history::{Lab, Step, cases, history},
    *,
};
use crate::model::value::{Counter, Source};

fn total(counter: Option<Counter>) -> u64 {
    counter.map_or(0, |counter| counter.total)
}

/// Asserts that the sums are those of the machine, once everything has arrived.
fn check_sums(lab: &mut Lab) {
    let snapshot = lab.engine.tick(at(lab.kernel.now + 20 * MS));
    let kernel = &lab.kernel;
    let mut truth: BTreeMap<u32, u64> = BTreeMap::new();
    for qp in kernel.qps.iter().filter(|qp| qp.counted > 0) {
        *truth.entry(kernel.tasks[qp.task].pid).or_default() += qp.counted;
    }
    let mut said: BTreeMap<u32, u64> = BTreeMap::new();
    for process in &snapshot.processes {
        let sent = total(process.traffic.tx_wr);
        assert_eq!(total(process.traffic.tx_bytes), 100 * sent);
        if sent > 0 {
            *said.entry(process.pid.unwrap_or(0)).or_default() += sent;
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
        let bytes: u64 = on.map(|qp| 100 * qp.counted).sum();
        let port = snapshot.ports.iter().find(|port| *port.device == *device.name);
        let counted = port
            .and_then(|port| port.wr_tx_bytes)
            .filter(|counter| counter.source == Source::Ebpf);
        assert_eq!(total(counted), bytes, "{device:?}");
    }
}

proptest! {
    #![proptest_config(cases())]

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
