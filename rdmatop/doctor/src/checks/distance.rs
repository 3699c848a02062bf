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
    for gpu in &facts.gpus {
        match nics
            .iter()
            .map(|nic| Distance::between(place(&gpu.pci), place(nic)))
            .min()
        {
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
