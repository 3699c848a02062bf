//! The PCIe distance between GPUs and NICs, in the terms of `nvidia-smi topo -m`.

use rdmatop_base::pcie::{Distance, Place};

use crate::{
    facts::{Facts, Pci},
    line::Lines,
    words::{count, names},
};

/// Returns the path and the node of a PCI function.
fn place(pci: &Pci) -> Place<'_> {
    Place {
        path: &pci.path,
        node: pci.node,
    }
}

pub(crate) fn distance(facts: &Facts, out: &mut Lines) {
    let nics: Vec<&Pci> = facts
        .hardware()
        .filter_map(|device| device.pci.as_ref())
        .collect();
    let mut near = Vec::new();
    let mut far: Vec<&str> = Vec::new();
    let mut unknown: Vec<&str> = Vec::new();
    // Where firmware does not say the node of a function (numa_node is -1), it may be any of several.
    let several = facts.nodes.len() > 1;
    for gpu in &facts.gpus {
        let from = |nic: &&Pci| {
            let distance = Distance::between(place(&gpu.pci), place(nic));
            let blind = several && (gpu.pci.node.is_none() || nic.node.is_none());
            (distance != Distance::Node || !blind).then_some(distance)
        };
        let all: Vec<Option<Distance>> = nics.iter().map(from).collect();
        match all.iter().flatten().min() {
            None | Some(Distance::System) if all.contains(&None) => unknown.push(&gpu.pci.address),
            None => return,
            Some(Distance::System) => far.push(&gpu.pci.address),
            Some(distance) => near.push(*distance),
        }
    }
    if !unknown.is_empty() {
        out.unknown_until(
            format!(
                "how near a NIC is to {}: {}",
                count(unknown.len(), "GPU"),
                names(&unknown)
            ),
            "the kernel does not know the NUMA nodes of all of them (numa_node is -1)",
            "",
        );
    }
    if let Some(first) = far.first() {
        out.warn(
            first,
            format!(
                "no NIC on the NUMA node of {}: {}",
                count(far.len(), "GPU"),
                names(&far)
            ),
            "Their data crosses from one NUMA node to another, and NCCL uses no GPUDirect there.",
            "nvidia-smi topo -m (AMD: rocm-smi --showtoponuma); use GPUs and NICs of one node together",
        );
    } else if let Some(farthest) = near.iter().max() {
        out.pass(
            "",
            format!(
                "each of {} has a NIC {}",
                count(near.len(), "GPU"),
                farthest.words()
            ),
        );
    }
}
