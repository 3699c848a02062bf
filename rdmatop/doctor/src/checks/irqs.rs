//! Which CPUs a NIC interrupts.

use crate::{
    facts::Facts,
    line::Lines,
    words::{distinct, names},
};

/// From this number of interrupts on they should be spread: fewer are one queue and its management.
pub(crate) const VECTORS: usize = 4;

pub(crate) fn irqs(facts: &Facts, out: &mut Lines) {
    let cpus: usize = facts.nodes.iter().map(|(_, cpus)| cpus.len()).sum();
    let (mut fine, mut one, mut off) = (Vec::new(), Vec::new(), Vec::new());
    for device in facts.hardware() {
        if device.irqs.len() < VECTORS || cpus < 2 {
            continue;
        }
        let all = distinct(device.irqs.iter().flatten());
        let node = device.pci.as_ref().and_then(|pci| pci.node);
        let near = node.and_then(|node| facts.nodes.iter().find(|(number, _)| *number == node));
        let name = device.name.as_str();
        if all.len() == 1 {
            one.push(name);
        } else if let Some((_, near)) = near
            && facts.nodes.len() > 1
            && !all.is_empty()
            && all.iter().all(|cpu| !near.contains(*cpu))
        {
            off.push(name);
        } else {
            fine.push(name);
        }
    }
    if !one.is_empty() {
        out.warn(
            &names(&one),
            format!("all interrupts of {} go to one CPU", names(&one)),
            "That CPU then limits all programs that wait for completions.",
            "sudo systemctl start irqbalance   # spreads all interrupts of the machine until the next boot; where they are set by hand: sudo set_irq_affinity.sh INTERFACE, of mlnx-tools",
        );
    }
    if !off.is_empty() {
        out.warn(
            &names(&off),
            format!(
                "all interrupts of {} go to CPUs of another NUMA node",
                names(&off)
            ),
            "Each completion then crosses the link between sockets.",
            "sudo systemctl start irqbalance   # spreads all interrupts of the machine until the next boot; where they are set by hand: sudo set_irq_affinity_bynode.sh NODE INTERFACE, of mlnx-tools",
        );
    }
    if out.is_empty() && !fine.is_empty() {
        out.pass("", "each NIC's interrupts go to several CPUs near it");
    }
}
