//! The PCIe distance between GPUs and NICs, in the terms of `nvidia-smi topo -m`.

use crate::{
    facts::{Facts, Pci},
    line::Lines,
    words::{count, names},
};

/// The nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Distance {
    /// Behind the same switch: PIX, PXB.
    Switch,
    /// On the same host bridge: PHB.
    Bridge,
    /// On the same NUMA node, or on a machine with one: NODE.
    Node,
    /// On another NUMA node: SYS.
    System,
}

pub(crate) fn between(a: &Pci, b: &Pci) -> Distance {
    // A path begins with the host bridge; next is the root port.
    let part = |pci: &Pci, at: usize| pci.path.get(at).cloned();
    if part(a, 1).is_some() && part(a, 1) == part(b, 1) {
        return Distance::Switch;
    }
    if let (Some(a), Some(b)) = (a.node, b.node)
        && a != b
    {
        return Distance::System;
    }
    if part(a, 0).is_some() && part(a, 0) == part(b, 0) {
        return Distance::Bridge;
    }
    Distance::Node
}

pub(crate) fn distance(facts: &Facts, out: &mut Lines) {
    let nics: Vec<&Pci> = facts
        .hardware()
        .filter_map(|device| device.pci.as_ref())
        .collect();
    let mut near = Vec::new();
    let mut far: Vec<&str> = Vec::new();
    for gpu in &facts.gpus {
        match nics.iter().map(|nic| between(&gpu.pci, nic)).min() {
            Some(Distance::System) => far.push(&gpu.pci.address),
            Some(distance) => near.push(distance),
            None => return,
        }
    }
    if let Some(first) = far.first() {
        out.warn(
            first,
            format!(
                "no NIC on the NUMA node of {}: {}",
                count(far.len(), "GPU"),
                names(&far)
            ),
            "Their data crosses the link between sockets, and NCCL uses no GPUDirect there.",
            "nvidia-smi topo -m; use GPUs and NICs of one node together",
        );
    } else if let Some(farthest) = near.iter().max() {
        let place = match farthest {
            Distance::Switch => "behind the same PCIe switch",
            Distance::Bridge => "on the same PCIe host bridge",
            Distance::Node | Distance::System => "on the same NUMA node",
        };
        out.pass(
            "",
            format!("each of {} has a NIC {place}", count(near.len(), "GPU")),
        );
    }
}
