//! Ports: up, and as fast as their siblings.

use std::collections::BTreeMap;

use crate::doctor::{
    facts::{Device, Facts, Port},
    line::Lines,
    words::{names, port_name, rate as in_words},
};
use crate::step::{ShellWord, step};

const PICKED: &str = "A job that picks this port fails, hangs or falls back to TCP.";

pub(crate) fn state(facts: &Facts, out: &mut Lines) {
    let all: Vec<(&Device, &Port)> = facts.ports().collect();
    let active = all.iter().filter(|(_, port)| port.active()).count();
    for (device, port) in &all {
        let name = port_name(device, port);
        match (port.state.known(), port.state.unreadable()) {
            (Some(4), _) => {}
            (Some(state), _) => down(&name, *state, port, active > 0, out),
            (None, why) => {
                let why = why.unwrap_or("its driver does not say");
                out.skip(format!("state of {name}"), why, "");
            }
        }
    }
    if out.is_empty() && !all.is_empty() {
        out.pass("", format!("{active} of {} up: {}", all.len(), kinds(&all)));
    }
}

/// Link layers, each once.
fn kinds(all: &[(&Device, &Port)]) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for (device, port) in all {
        let kind = match port.link_layer.as_deref() {
            Some("Unspecified") | None if device.driver.as_deref() == Some("efa") => "EFA",
            Some("Unspecified") | None => "of an unknown kind",
            Some(layer) => layer,
        };
        let kind = if device.software {
            format!("{kind} (SoftRoCE has no speed of its own)")
        } else {
            kind.to_owned()
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.join(", ")
}

fn down(name: &str, state: u32, port: &Port, others: bool, out: &mut Lines) {
    // A port that waits for its subnet manager has a signal.
    if port.link_layer.as_deref() == Some("InfiniBand") && matches!(state, 2 | 3) {
        return out.fail(
            name,
            format!("{name} waits for the subnet manager (state {})", word(state)),
            PICKED,
            "sudo sminfo; start opensm, or the switch's subnet manager",
        );
    }
    let Some(netdev) = &port.netdev else {
        let signal = match port.physical.known() {
            Some(2) => "it looks for a signal",
            Some(3) => "it is disabled",
            Some(5) => "the cable has a signal",
            _ => "no signal is known",
        };
        return out.fail(
            name,
            format!("{name} is {}: {signal}", word(state)),
            PICKED,
            "check the cable and the switch's port; sudo dmesg | tail -50",
        );
    };
    let interface = &netdev.name;
    if netdev.up == Some(false) {
        let text = format!(
            "{name} is {}: its interface {interface} is switched off",
            word(state)
        );
        let remedy = step!("sudo ip link set dev {} up", ShellWord::netdev(interface));
        if others {
            out.warn(name, text, PICKED, remedy);
        } else {
            out.fail(name, text, PICKED, remedy);
        }
        return;
    }
    let signal = match netdev.carrier {
        Some(false) => "has no signal",
        Some(true) => "has a signal",
        None => "is switched on",
    };
    out.fail(
        name,
        format!("{name} is {}: its interface {interface} {signal}", word(state)),
        PICKED,
        step!(
            "check the cable and the switch's port; sudo ethtool {}",
            ShellWord::netdev(interface)
        ),
    );
}

fn word(state: u32) -> &'static str {
    match state {
        0 => "NOP",
        1 => "down",
        2 => "INIT",
        3 => "ARMED",
        5 => "ACTIVE_DEFER",
        _ => "in an unknown state",
    }
}

pub(crate) fn rate(facts: &Facts, out: &mut Lines) {
    let mut groups: BTreeMap<(&str, &str), Vec<(String, u64)>> = BTreeMap::new();
    for device in facts.hardware() {
        for port in device.ports.iter().filter(|port| port.active()) {
            let kind = (
                device.driver.as_deref().unwrap_or_default(),
                device.board.known().map_or("", String::as_str),
            );
            if let Some(rate) = port.rate.known() {
                groups
                    .entry(kind)
                    .or_default()
                    .push((port_name(device, port), *rate));
            }
        }
    }
    for ports in groups.values() {
        let best = ports.iter().map(|(_, rate)| *rate).max().unwrap_or_default();
        let fastest = ports.iter().filter(|(_, rate)| *rate == best).count();
        let mut slower: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
        for (name, rate) in ports.iter().filter(|(_, rate)| *rate < best) {
            slower.entry(*rate).or_default().push(name);
        }
        for (rate, slow) in slower {
            out.warn(
                &names(&slow),
                format!(
                    "{} at {}, {} of its kind at {}",
                    if slow.len() == 1 {
                        format!("{} runs", slow[0])
                    } else {
                        format!("{} run", names(&slow))
                    },
                    in_words(rate),
                    if fastest == 1 { "another" } else { "others" },
                    in_words(best)
                ),
                "A collective runs at the speed of its slowest NIC.",
                step!(
                    "check cable, transceiver and the switch's port; sudo ethtool INTERFACE, or sudo mlxlink -d {}",
                    ShellWord::device(slow[0])
                ),
            );
        }
    }
    // Without their number: a port that is down has its own line.
    let mut speeds: Vec<u64> = groups.values().flatten().map(|(_, rate)| *rate).collect();
    speeds.sort_unstable();
    speeds.dedup();
    if out.is_empty() && !speeds.is_empty() {
        let several = speeds.len() > 1;
        let speeds: Vec<String> = speeds.into_iter().map(in_words).collect();
        let (s, alike) = if several {
            ("s", ", the same on equal NICs")
        } else {
            ("", "")
        };
        out.pass("", format!("link speed{s} {}{alike}", names(&speeds)));
    }
}
