//! Flow control of Ethernet: RoCE needs a network without loss, or at least congestion marks.

use std::collections::BTreeMap;

use crate::{
    facts::{Fact, Facts, Lossless},
    line::Lines,
    words::{lists, names, port_name},
};
use rdmatop_base::step::{ShellWord, step};

/// Ethernet ports of hardware with what is known of their flow control; for a bond each of its interfaces.
/// Unreadable ones get a skip line with the reason.
fn known<'a>(facts: &'a Facts, what: &str, out: &mut Lines) -> Vec<(String, &'a str, &'a Lossless)> {
    let mut all = Vec::new();
    let mut blind: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut add = |name: String, interface: &'a str, fact: &'a Fact<Lossless>| match fact {
        Fact::Known(lossless) => all.push((name, interface, lossless)),
        Fact::Unknown(why) => out.unknown(&name, format!("{what} of {name}"), why.clone()),
        Fact::Unreadable(why) => blind.entry(why).or_default().push(name),
        Fact::Absent => {}
    };
    for device in facts.hardware() {
        for port in device.ports.iter().filter(|port| port.roce) {
            let Some(netdev) = &port.netdev else { continue };
            let name = port_name(device, port);
            for member in &netdev.members {
                add(
                    format!("{name} ({})", member.name),
                    &member.name,
                    &member.lossless,
                );
            }
            if netdev.members.is_empty() {
                add(name, &netdev.name, &netdev.lossless);
            }
        }
    }
    for (reason, ports) in blind {
        out.skip(format!("{what} of {}", names(&ports)), reason, "");
    }
    all
}

fn list(priorities: &[u8]) -> String {
    let all: Vec<String> = priorities.iter().map(u8::to_string).collect();
    if all.len() == 1 {
        format!("priority {}", all[0])
    } else {
        format!("priorities {}", all.join(", "))
    }
}

pub(crate) fn pfc(facts: &Facts, out: &mut Lines) {
    let all = known(facts, "flow control (PFC)", out);
    let known: Vec<_> = all
        .iter()
        .filter_map(|(port, interface, lossless)| Some((port, interface, lossless, lossless.pfc.as_ref()?)))
        .collect();
    for (port, interface, lossless, priorities) in &known {
        if !priorities.is_empty() && lossless.trust.as_deref().is_some_and(|trust| trust != "dscp") {
            out.warn(
                port,
                format!("{port} has flow control (PFC) and does not trust DSCP"),
                "RoCE v2 marks its packets by DSCP: they all end in priority 0.",
                step!(
                    "sudo mlnx_qos -i {} --trust dscp   # at once, until the next boot; on all hosts, as the switches have it",
                    ShellWord::netdev(interface)
                ),
            );
        }
    }
    let words = |lossless: &Lossless, priorities: &[u8]| {
        let trust = lossless
            .trust
            .as_ref()
            .map_or(String::new(), |trust| format!(", trust {trust}"));
        if priorities.is_empty() {
            "no flow control (PFC): lost packets are sent again".to_owned()
        } else {
            format!("flow control (PFC) on {}{trust}", list(priorities))
        }
    };
    let mut kinds: Vec<(String, Vec<&str>)> = Vec::new();
    for (port, _, lossless, priorities) in &known {
        let kind = words(lossless, priorities);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, ports)) => ports.push(port),
            None => kinds.push((kind, vec![port])),
        }
    }
    match kinds.as_slice() {
        [(kind, _)] if out.is_empty() => out.pass("", kind.clone()),
        several if several.len() > 1 && out.is_empty() => {
            let each: Vec<String> = several
                .iter()
                .map(|(kind, ports)| format!("{}: {kind}", names(ports)))
                .collect();
            out.warn(
                "",
                format!("ports differ in flow control: {}", lists(&each)),
                "Some then lose packets where others are paused.",
                "sudo mlnx_qos -i INTERFACE   # of each: shows its settings; make them alike",
            );
        }
        _ => {}
    }
}

pub(crate) fn ecn(facts: &Facts, out: &mut Lines) {
    // The check before reports what cannot be read.
    let all = known(facts, "", &mut Lines::default());
    let mut fine = false;
    for (port, interface, lossless) in &all {
        let (Some(pfc), Some(off)) = (&lossless.pfc, &lossless.ecn_off) else {
            continue;
        };
        let missing: Vec<u8> = pfc
            .iter()
            .filter(|priority| off.contains(priority))
            .copied()
            .collect();
        if let Some(first) = missing.first() {
            out.warn(
                port,
                format!(
                    "{port} does not answer congestion marks (ECN) on {}",
                    list(&missing)
                ),
                "Senders are then slowed by pauses alone, which spread through the network.",
                step!(
                    "echo 1 | sudo tee /sys/class/net/{}/ecn/roce_np/enable/{}   # at once, until the next boot",
                    ShellWord::netdev(interface),
                    *first
                ),
            );
        } else {
            fine |= !pfc.is_empty();
        }
    }
    if out.is_empty() && fine {
        out.pass(
            "",
            "congestion marks (ECN) are answered on every priority with PFC",
        );
    }
}
