//! The PCIe link of a NIC, and the IOMMU.

use std::collections::BTreeMap;

use crate::{
    facts::{Device, Facts, Pci},
    line::Lines,
    words::{distinct, names, rate},
};
use rdmatop_base::pcie::link_words;
use rdmatop_base::step::{ShellWord, step};
use rdmatop_model::input::PcieLink;

/// The address of the card of a PCI function, without the number of the function.
fn card(pci: &Pci) -> &str {
    pci.address.split('.').next().unwrap_or_default()
}

fn in_words(link: &PcieLink) -> String {
    link_words(link.mega_transfers, link.width)
}

/// Bits per second of the ACTIVE ports of a card, whose functions share its link. Virtual functions have the
/// ports of others, and no link is known of them. Scalable functions have the address and the port of the
/// function that they are parts of.
fn wanted(facts: &Facts, pci: &Pci) -> u64 {
    let mut by_function: BTreeMap<&str, u64> = BTreeMap::new();
    for device in facts.hardware() {
        let Some(other) = &device.pci else { continue };
        if other.current.known().is_none() || card(other) != card(pci) {
            continue;
        }
        let active = device.ports.iter().filter(|port| port.active());
        let rates: u64 = active.filter_map(|port| port.rate.known()).sum();
        let most = by_function.entry(&other.address).or_default();
        *most = rates.max(*most);
    }
    by_function.values().sum()
}

pub(crate) fn link(facts: &Facts, out: &mut Lines) {
    let nics: Vec<(&Device, &Pci)> = facts
        .hardware()
        .filter_map(|device| Some((device, device.pci.as_ref()?)))
        .collect();
    let mut fine: Vec<String> = Vec::new();
    let mut full = Vec::new();
    for (device, pci) in &nics {
        let name = device.name.as_str();
        let current = out.known(&pci.current, name, format!("PCIe link of {name}"), "");
        let (Some(current), Some(max)) = (current, pci.max.known()) else {
            continue;
        };
        let wanted = wanted(facts, pci);
        let carries_all = current.bps >= wanted;
        let carried = format!("{}, the ports {}", rate(current.bps), rate(wanted));
        // Nothing can be done about a card that has less PCIe than ports, as that of DGX Spark.
        if current.bps >= max.bps {
            let link = in_words(current);
            if carries_all {
                fine.push(link);
            } else {
                let text = format!("{name} has PCIe {link}, and can do no more: it carries {carried}");
                full.push((name, text));
            }
            continue;
        }
        let better = nics.iter().any(|(beside, other)| {
            beside.kind() == device.kind()
                && other.max.known() == Some(max)
                && other.current.known().is_some_and(|other| other.bps > current.bps)
        });
        let (has, can) = (in_words(current), in_words(max));
        let text = format!("{name} is on PCIe {has}, could do {can}");
        let address = ShellWord::new(&pci.address, "ADDRESS");
        let remedy = match pci.slot.known() {
            // Both ends could do more: the contacts are bad, or a setting limits the link.
            Some(slot) if current.bps < slot.bps => step!(
                "reseat the card; again -> BIOS, riser; sudo lspci -vvs {} | grep Lnk",
                address
            ),
            Some(_) => step!(
                "the slot can do no more: use another slot; grep . /sys/bus/pci/devices/{}/../max_link_*",
                address
            ),
            None => step!(
                "see whether the slot can do more: sudo lspci -vvs {} | grep Lnk",
                address
            ),
        };
        if !carries_all {
            out.warn(name, text, format!("The slot carries {carried}."), remedy);
        } else if better {
            let why = "The same kind of NIC has a faster link beside it.";
            out.warn(name, text, why, remedy);
        } else {
            fine.push(in_words(current));
        }
    }
    if out.is_empty() && !fine.is_empty() {
        let each = if full.is_empty() {
            "each NIC's PCIe link carries its ports"
        } else {
            "each other NIC's PCIe link carries its ports"
        };
        out.pass("", format!("{each}: {}", names(distinct(fine.into_iter()))));
    }
    for (name, text) in full {
        out.pass(name, text);
    }
}

pub(crate) fn iommu(facts: &Facts, out: &mut Lines) {
    if facts.host.virtual_machine {
        return;
    }
    let mut translated = Vec::new();
    let (mut through, mut without) = (0, 0);
    for device in facts.hardware() {
        let Some(pci) = &device.pci else { continue };
        match out.known(&pci.iommu, &device.name, format!("IOMMU of {}", device.name), "") {
            Some(kind) if kind.starts_with("DMA") => translated.push(device.name.as_str()),
            Some(_) => through += 1,
            None => without += 1,
        }
    }
    if !translated.is_empty() {
        out.warn(
            &names(&translated),
            format!("an IOMMU translates each transfer of {}", names(&translated)),
            "That costs bandwidth, most of all between GPU and NIC.",
            "boot the kernel with iommu=pt (x86) or iommu.passthrough=1 (ARM): what virtual machines are given stays isolated",
        );
    }
    if out.is_empty() {
        match (through, without) {
            (0, 0) => {}
            (0, _) => out.pass("", "no IOMMU between NICs and memory"),
            _ => out.pass("", "the IOMMU passes transfers through"),
        }
    }
}
