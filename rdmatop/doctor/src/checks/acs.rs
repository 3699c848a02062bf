//! Access control services of PCIe bridges: GPU-to-NIC traffic through the root complex is slow.

use super::gpu::is_gb10;
use crate::{
    facts::{Facts, Pci},
    line::{Lines, WITH_ROOT},
    words::{distinct, names},
};
use rdmatop_base::step::{ShellWord, step};

pub(crate) fn acs(facts: &Facts, out: &mut Lines) {
    const WHAT: &str = "whether PCIe bridges redirect traffic between GPU and NIC (ACS)";
    // No NIC reaches the memory of a GPU that is the CPU's.
    if facts.host.virtual_machine || facts.gpus.iter().all(is_gb10) {
        return;
    }
    let nics = facts.hardware().filter_map(|device| device.pci.as_ref());
    let nics: Vec<&Pci> = nics.collect();
    if nics.is_empty() {
        return;
    }
    if facts.data_direct {
        let why = "GPUDirect by ConnectX's DMA functions needs a part of it on some bridges";
        return out.skip(WHAT, why, "sudo rdma_topo check   # of rdma-core: shows which");
    }
    let gpus: Vec<&Pci> = facts.gpus.iter().map(|gpu| &gpu.pci).collect();
    let mut on: Vec<&str> = Vec::new();
    let mut known = false;
    for (ones, others) in [(&nics, &gpus), (&gpus, &nics)] {
        for pci in ones {
            if let Some(bridges) = out.known(&pci.acs, "", WHAT, WITH_ROOT) {
                known = true;
                let is_between = |bridge: &&str| others.iter().any(|other| parts(bridge, pci, other));
                on.extend(bridges.iter().map(String::as_str).filter(is_between));
            }
        }
    }
    if !out.is_empty() {
        return;
    }
    let on = distinct(on.into_iter());
    if let Some(first) = on.first() {
        out.warn(
            first,
            format!(
                "PCIe bridges redirect traffic between GPU and NIC (ACS): {}",
                names(&on)
            ),
            "GPUDirect then goes through the root complex, at half the speed or less.",
            step!(
                "sudo setpci -s {} ECAP_ACS+0x6.w=0000   # each of these bridges, until the next boot; it takes the isolation of virtual machines' devices; for good: ACS off in the BIOS",
                ShellWord::new(first, "ADDRESS")
            ),
        );
    } else if known {
        out.pass("", "no PCIe bridge redirects traffic between GPU and NIC (ACS)");
    }
}

/// Whether a bridge above a function is where its way to another one leaves the way to the root complex.
/// Between functions of two root ports there is none: what they send each other passes the root complex
/// anyway.
fn parts(bridge: &str, pci: &Pci, other: &Pci) -> bool {
    let is_shared = |at: &String| at == bridge;
    pci.path.get(1) == other.path.get(1) && !pci.path.is_empty() && !other.path.iter().any(is_shared)
}
