//! Which CPUs a NIC interrupts.

use crate::{
    facts::Facts,
    line::Lines,
    words::{distinct, names},
};
use rdmatop_base::step::{NextStep, step};

/// From this number of interrupts on they should be spread: fewer are one queue and its management.
pub(crate) const VECTORS: usize = 4;

pub(crate) fn irqs(facts: &Facts, out: &mut Lines) {
    let cpus: usize = facts.nodes.iter().map(|(_, cpus)| cpus.len()).sum();
    let (mut fine, mut one, mut off) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_mlx5 = true;
    for device in facts.hardware() {
        let driver = device.driver.as_deref().unwrap_or_default();
        if device.irqs.len() < VECTORS || cpus < 2 {
            continue;
        }
        is_mlx5 &= driver.starts_with("mlx5");
        let all = distinct(device.irqs.iter().flatten());
        let node = device.pci.as_ref().and_then(|pci| pci.node);
        let near = node.and_then(|node| facts.nodes.iter().find(|(number, _)| *number == node));
        let name = device.name.as_str();
        if all.len() == 1 {
            one.push(name);
        } else if let Some((_, near)) = near
            // efa asks for its vector n to go to CPU n (`efa_setup_comp_irq`), on whatever node that is.
            && driver != "efa"
            && facts.nodes.len() > 1
            && !all.is_empty()
            && all.iter().all(|cpu| !near.contains(*cpu))
        {
            off.push(name);
        } else {
            fine.push(name);
        }
    }
    for (all, place, why, by_hand) in [
        (
            one,
            "one CPU",
            "That CPU then limits all programs that wait for completions.",
            "sudo set_irq_affinity.sh INTERFACE, of mlnx-tools, until the next boot",
        ),
        (
            off,
            "CPUs of another NUMA node",
            "Each completion then crosses the link between sockets.",
            "sudo set_irq_affinity_bynode.sh NODE INTERFACE, of mlnx-tools, until the next boot",
        ),
    ] {
        let all = names(&all);
        let mut remedy = NextStep::from(
            "sudo systemctl start irqbalance   # spreads all interrupts of the machine until the next boot; it is not found -> install irqbalance",
        );
        if is_mlx5 {
            remedy = step!("{}; where they are set by hand: {}", remedy, by_hand);
        }
        if !all.is_empty() {
            out.warn(
                &all,
                format!("all interrupts of {all} go to {place}"),
                why,
                remedy,
            );
        }
    }
    if out.is_empty() && !fine.is_empty() {
        out.pass("", "each NIC's interrupts go to several CPUs");
    }
}
