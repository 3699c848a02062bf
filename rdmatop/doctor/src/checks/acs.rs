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
    let mut on: Vec<&str> = Vec::new();
    let mut known = false;
    for pci in nics.into_iter().chain(facts.gpus.iter().map(|gpu| &gpu.pci)) {
        if let Some(bridges) = out.known(&pci.acs, "", WHAT, WITH_ROOT) {
            known = true;
            on.extend(bridges.iter().map(String::as_str));
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
