//! The PCIe link of a NIC, and the IOMMU.

use crate::{
    facts::{Facts, Pci},
    line::Lines,
    words::{count, names, rate},
};
use rdmatop_base::step::{ShellWord, step};

pub(crate) fn link(facts: &Facts, out: &mut Lines) {
    let nics: Vec<(&str, &Pci, u64)> = facts
        .hardware()
        .filter_map(|device| {
            let wanted = device.ports.iter().filter_map(|port| port.rate.known()).sum();
            Some((device.name.as_str(), device.pci.as_ref()?, wanted))
        })
        .collect();
    let mut fine: Vec<String> = Vec::new();
    for (name, pci, wanted) in &nics {
        let (Some(current), Some(max)) = (pci.current.known(), pci.max.known()) else {
            if let Some(why) = pci.current.unreadable() {
                out.skip(format!("PCIe link of {name}"), why, "");
            }
            continue;
        };
        let below = current.bits_per_sec < max.bits_per_sec;
        let better = nics.iter().any(|(_, other, _)| {
            other.max.known() == Some(max)
                && other
                    .current
                    .known()
                    .is_some_and(|other| other.bits_per_sec > current.bits_per_sec)
        });
        let text = format!("{name} is on PCIe {}, could do {}", current.words(), max.words());
        let address = ShellWord::new(&pci.address, "ADDRESS");
        let remedy = match pci.slot.known() {
            // Both ends could do more: the contacts are bad, or a setting limits the link.
            Some(slot) if below && current.bits_per_sec < slot.bits_per_sec => step!(
                "reseat the card; again -> BIOS, riser; sudo lspci -vvs {} | grep Lnk",
                address
            ),
            Some(_) if below => step!(
                "the slot can do no more: use another slot; grep . /sys/bus/pci/devices/{}/../max_link_*",
                address
            ),
            _ if below => step!(
                "see whether the slot can do more: sudo lspci -vvs {} | grep Lnk",
                address
            ),
            _ => "the card itself can do no more: nothing is to be done".into(),
        };
        if current.bits_per_sec < *wanted {
            let text = if below {
                text
            } else {
                format!("{name} is on PCIe {}", current.words())
            };
            let why = format!(
                "The slot carries {}, the ports {}.",
                rate(current.bits_per_sec),
                rate(*wanted)
            );
            out.warn(name, text, why, remedy);
        } else if below && better {
            out.warn(
                name,
                text,
                "The same kind of NIC has a faster link beside it.",
                remedy,
            );
        } else {
            let link = current.words();
            if !fine.contains(&link) {
                fine.push(link);
            }
        }
    }
    if out.is_empty() && !fine.is_empty() {
        out.pass(
            "",
            format!("each NIC's PCIe link carries its ports: {}", names(&fine)),
        );
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
        match (pci.iommu.known(), pci.iommu.unreadable()) {
            (Some(kind), _) if kind.starts_with("DMA") => translated.push(device.name.as_str()),
            (Some(_), _) => through += 1,
            (None, Some(why)) => out.skip_of(&device.name, format!("IOMMU of {}", device.name), why),
            (None, None) => without += 1,
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
            (nics, _) => out.pass(
                "",
                format!("the IOMMU passes transfers through ({})", count(nics, "NIC")),
            ),
        }
    }
}
