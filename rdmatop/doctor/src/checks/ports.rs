//! Ports: up, and as fast as their siblings.

use std::collections::BTreeMap;

use crate::{
    facts::{Device, Facts, Port},
    line::Lines,
    words::{distinct, names, port_name, rate as in_words},
};
use rdmatop_base::fabric;
use rdmatop_base::ib::{PhysState, PortState};
use rdmatop_base::step::{ShellWord, step};

const PICKED: &str = "A job that picks this port fails, hangs or falls back to TCP.";

/// If more than this share of its siblings is up, a port that is down is a fault: of seven siblings, five.
const SHARE: [usize; 2] = [2, 3];

/// With fewer siblings than this there is no pattern: of two cards one may have a cable less.
const SIBLINGS: usize = 2;

pub(crate) fn state(facts: &Facts, out: &mut Lines) {
    let all: Vec<(&Device, &Port)> = facts.ports().collect();
    let active = all.iter().filter(|(_, port)| port.active()).count();
    let mut spare = Vec::new();
    let mut one_up = Vec::new();
    let asks_by = all.iter().find(|(_, port)| port.active() && port.is_infiniband());
    let asks_by = asks_by.map(|(device, port)| (&*device.name, port.number));
    for (device, port) in &all {
        let name = port_name(device, port);
        match (port.state.known(), port.state.unreadable()) {
            (Some(state), _) if state.is_active() => bond(port, &name, out),
            (Some(state), _) => {
                let expected = expected(&all, device, port);
                if expected.is_none() && (port.is_off() || !has_signal(port)) {
                    if siblings(&all, device, port) == [true] {
                        one_up.push(name.clone());
                    }
                    spare.push(name);
                } else {
                    down(&device.name, *state, port, &name, expected, asks_by, out);
                }
            }
            (None, why) => {
                let why = why.unwrap_or("its driver does not say");
                out.unknown(&name, format!("state of {name}"), why);
            }
        }
    }
    let beside = match spare.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} is down and taken for a spare: nothing uses it"),
        _ => format!(
            "; {} are down and taken for spares: nothing uses them",
            names(&spare)
        ),
    };
    // With one sibling there is no pattern, and the reader knows whether the two are to be alike.
    let sibling = match one_up.as_slice() {
        [] => String::new(),
        all => format!("; the one other NIC like {} has the same port up", names(all)),
    };
    // A machine without any cable is what some are meant to be, and what nobody wants for RDMA.
    if active == 0 && out.is_empty() && !spare.is_empty() {
        out.warn(
            "",
            format!("no port is up: {}{beside}", kinds(&all)),
            "A job that wants RDMA fails, hangs or uses TCP.",
            "rdma link show   # where RDMA is wanted: netdev NAME -> sudo ip link set dev NAME up (until the next boot)   # then \
             still no signal, or no netdev -> plug in the cable, or switch on the port at its other end   # a cable between two hosts of \
             InfiniBand, no switch -> opensm has to run on one of them",
        );
    } else if !all.is_empty() && (out.is_empty() || !spare.is_empty()) {
        out.pass(
            "",
            format!("{active} of {} up: {}{beside}{sibling}", all.len(), kinds(&all)),
        );
    }
}

/// A port over a bond stays up while one of its links is.
fn bond(port: &Port, name: &str, out: &mut Lines) {
    let Some(netdev) = &port.netdev else { return };
    let (all, bond) = (netdev.members.len(), &netdev.name);
    let up = netdev
        .members
        .iter()
        .filter(|member| member.up == Some(true))
        .count();
    for member in netdev.members.iter().filter(|member| member.up == Some(false)) {
        let what = if member.outside {
            "is outside of its aggregate (LACP)"
        } else {
            "is down"
        };
        out.warn(
            name,
            format!(
                "{name} has {up} of {all} links of its bond {bond}: {} {what}",
                member.name
            ),
            if netdev.active_backup {
                "The port has its full rate, and no reserve for the link that carries it."
            } else {
                "The port is up with a part of its rate; a collective runs at the pace of its slowest link."
            },
            fabric::bond_member(Some(bond), &member.name, member.outside),
        );
    }
}

/// The kind of a card and which of its ports this is. The ports of one card are functions of one device of
/// PCI, in the order of the functions.
fn place<'a>(device: &'a Device, port: &Port) -> Option<([&'a str; 3], Option<char>, u32)> {
    let pci = device.pci.as_ref();
    let function = pci.and_then(|pci| pci.address.chars().next_back());
    (!device.software).then_some((device.kind(), function, port.number))
}

/// The same port of other NICs of its kind: whether each is up.
fn siblings(all: &[(&Device, &Port)], device: &Device, port: &Port) -> Vec<bool> {
    let own = place(device, port);
    let is_other = |other: &Device| other.name != device.name;
    all.iter()
        .filter(|(other, at)| is_other(other) && own.is_some() && place(other, at) == own)
        .map(|(_, port)| port.active())
        .collect()
}

/// What says that a port should be up; `None` where nothing does, as for one without a cable.
fn expected(all: &[(&Device, &Port)], device: &Device, port: &Port) -> Option<&'static str> {
    let had_signal = port.netdev.as_ref().is_some_and(|netdev| netdev.had_carrier);
    let siblings = siblings(all, device, port);
    let up = siblings.iter().filter(|up| **up).count();
    if port.in_use {
        Some("Queue pairs are on it.")
    } else if port.was_used {
        Some("It has carried data since its driver was loaded.")
    } else if had_signal && !port.is_off() {
        Some("It had a signal since its driver was loaded.")
    } else if siblings.len() >= SIBLINGS && up * SHARE[1] > siblings.len() * SHARE[0] {
        Some("The same port of other NICs of its kind is up.")
    } else {
        None
    }
}

/// Whether there is a signal in its cable. A virtual function of InfiniBand says so of its card's port, also
/// where nobody has let it up.
fn has_signal(port: &Port) -> bool {
    if port.is_infiniband() {
        return port.state.known().is_some_and(|state| state.waits());
    }
    let carrier = port.netdev.as_ref().and_then(|netdev| netdev.carrier);
    carrier.unwrap_or(port.physical.known() == Some(&PhysState::LINK_UP))
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
    names(&kinds)
}

fn down(
    device: &str,
    state: PortState,
    port: &Port,
    name: &str,
    expected: Option<&'static str>,
    asks_by: Option<(&str, u32)>,
    out: &mut Lines,
) {
    let why = expected.map_or_else(|| PICKED.to_owned(), |expected| format!("{expected} {PICKED}"));
    let is_infiniband = port.is_infiniband();
    // The interface may be in another network namespace.
    let netdev = port.netdev.as_ref().filter(|netdev| netdev.up.is_some());
    // A port that waits for its subnet manager has a signal.
    let waits = is_infiniband && state.waits();
    let (detail, remedy) = match netdev {
        _ if waits => (
            "it waits for the subnet manager".to_owned(),
            fabric::bring_up(device, port.number, true, asks_by),
        ),
        Some(netdev) => {
            let interface = ShellWord::netdev(&netdev.name);
            let (is, remedy) = match (netdev.up, netdev.members.as_slice()) {
                (Some(false), _) => (
                    "is switched off",
                    step!(
                        "sudo ip link set dev {} up   # switches it on until the next boot",
                        interface
                    ),
                ),
                (_, []) => (
                    signal(netdev.carrier),
                    step!(
                        "check the cable and the switch's port; sudo ethtool {}",
                        interface
                    ),
                ),
                (_, [first, ..]) => (
                    signal(netdev.carrier),
                    step!(
                        "check the cables and the switches' ports; cat /proc/net/bonding/{}; sudo ethtool {}, and so each member",
                        interface,
                        ShellWord::netdev(&first.name)
                    ),
                ),
            };
            (format!("its interface {} {is}", netdev.name), remedy)
        }
        None => {
            let detail = match port.physical.known() {
                Some(&PhysState::POLLING) => "it looks for a signal",
                Some(&PhysState::DISABLED) => "it is disabled",
                Some(&PhysState::LINK_UP) if is_infiniband => {
                    "its link is up but the port is not: a virtual function that its host holds down"
                }
                Some(&PhysState::LINK_UP) => "the cable has a signal",
                _ => "no signal is known",
            };
            let remedy = if is_infiniband {
                fabric::bring_up(device, port.number, false, None)
            } else {
                "check the cable and the switch's port; sudo dmesg | tail -50".into()
            };
            (detail.to_owned(), remedy)
        }
    };
    let text = format!("{name} is {}: {detail}", word(state));
    if port.is_off() && !waits && !port.in_use {
        out.warn(name, text, why, remedy);
    } else {
        out.fail(name, text, why, remedy);
    }
    out.alias(netdev.map_or("", |netdev| &netdev.name));
}

fn signal(carrier: Option<bool>) -> &'static str {
    match carrier {
        Some(false) => "has no signal",
        Some(true) => "has a signal",
        None => "is switched on",
    }
}

fn word(state: PortState) -> &'static str {
    match state {
        PortState::DOWN => "down",
        state => state.name().unwrap_or("in an unknown state"),
    }
}

pub(crate) fn rate(facts: &Facts, out: &mut Lines) {
    type Kind<'a> = ([&'a str; 3], Option<&'a str>);
    type Place<'a> = (&'a Device, &'a Port);
    // A card may have a port for storage on InfiniBand and one on Ethernet.
    let mut groups: BTreeMap<Kind<'_>, Vec<(Place<'_>, u64)>> = BTreeMap::new();
    for device in facts.hardware() {
        for port in device.ports.iter().filter(|port| port.active()) {
            let kind = (device.kind(), port.link_layer.as_deref());
            if let Some(rate) = port.rate.known() {
                groups.entry(kind).or_default().push(((device, port), *rate));
            }
        }
    }
    for (([driver, ..], layer), ports) in &groups {
        let best = ports.iter().map(|(_, rate)| *rate).max().unwrap_or_default();
        let fastest = ports.iter().filter(|(_, rate)| *rate == best).count();
        let mut slower: BTreeMap<u64, Vec<Place<'_>>> = BTreeMap::new();
        for (place, rate) in ports.iter().filter(|(_, rate)| *rate < best) {
            slower.entry(*rate).or_default().push(*place);
        }
        for (rate, places) in slower {
            let (device, port) = places[0];
            let run = if places.len() == 1 { "runs" } else { "run" };
            let others = if fastest == 1 { "another" } else { "others" };
            let slow = places.into_iter().map(|(device, port)| port_name(device, port));
            let slow = names(slow);
            let (rate, best) = (in_words(rate), in_words(best));
            out.warn(
                &slow,
                format!("{slow} {run} at {rate}, {others} of its kind at {best}"),
                "A collective runs at the speed of its slowest NIC.",
                if *layer == Some("InfiniBand") {
                    fabric::speed_up(&device.name, port.number)
                } else if driver.starts_with("mlx5") {
                    step!(
                        "check cable, transceiver and the switch's port; sudo ethtool INTERFACE, or sudo mlxlink -d {}",
                        ShellWord::device(&device.name)
                    )
                } else {
                    "check cable, transceiver and the switch's port; sudo ethtool INTERFACE".into()
                },
            );
        }
    }
    // The number of ports is left out: a port that is down has its own line.
    let speeds = distinct(groups.values().flatten().map(|(_, rate)| *rate));
    if out.is_empty() && !speeds.is_empty() {
        let several = speeds.len() > 1;
        let (s, alike) = if several {
            ("s", ", the same on equal NICs")
        } else {
            ("", "")
        };
        let speeds = names(speeds.into_iter().map(in_words));
        out.pass("", format!("link speed{s} {speeds}{alike}"));
    }
}
