//! Flow control of Ethernet: RoCE needs a network without loss, or at least congestion marks.

use crate::{
    facts::{Facts, Lossless, Reading},
    line::Lines,
    words::{group, lists, names, port_name},
};
use rdmatop_base::pause::list;
use rdmatop_base::step::{ShellWord, step};

/// The kind of a port's card, and the port's speed.
type Kind<'a> = ([&'a str; 3], Option<u64>);

/// A port, or an interface of its bond, with what is known of its flow control.
struct PortFlowControl<'a> {
    name: String,
    /// Of a port that is not ACTIVE `None`: its speed means nothing, and it may be a spare.
    kind: Option<Kind<'a>>,
    interface: &'a str,
    lossless: &'a Lossless,
}

/// Ethernet ports of hardware with what is known of their flow control; for a bond each of its interfaces.
/// What is not known of them is a line with the reason.
fn known<'a>(facts: &'a Facts, what: &str, out: &mut Lines) -> Vec<PortFlowControl<'a>> {
    let mut all = Vec::new();
    let mut add = |name: String, kind: Option<Kind<'a>>, interface: &'a str, fact: &'a Reading<Lossless>| {
        let lossless = out.known(fact, &name, format!("{what} of {name}"), "");
        all.extend(lossless.map(|lossless| PortFlowControl {
            name,
            kind,
            interface,
            lossless,
        }));
    };
    for device in facts.hardware() {
        for port in device.ports.iter().filter(|port| port.roce) {
            let Some(netdev) = &port.netdev else { continue };
            let name = port_name(device, port);
            let kind = port.active().then(|| (device.kind(), port.rate.known().copied()));
            for member in &netdev.members {
                add(
                    format!("{name} ({})", member.name),
                    kind,
                    &member.name,
                    &member.lossless,
                );
            }
            if netdev.members.is_empty() {
                add(name, kind, &netdev.name, &netdev.lossless);
            }
        }
    }
    all
}

pub(crate) fn pfc(facts: &Facts, out: &mut Lines) {
    let all = known(facts, "flow control (PFC)", out);
    let known: Vec<(&PortFlowControl<'_>, &Vec<u8>)> = all
        .iter()
        .filter_map(|seen| Some((seen, seen.lossless.pfc.as_ref()?)))
        .collect();
    for (seen, priorities) in &known {
        let port = &seen.name;
        let trust = seen.lossless.trust.as_deref();
        if !priorities.is_empty() && trust.is_some_and(|trust| trust != "dscp") {
            out.warn(
                port,
                format!("{port} has flow control (PFC) and does not trust DSCP"),
                "RoCE v2 marks its packets by DSCP. Those without a VLAN tag all end in priority 0.",
                step!(
                    "sudo mlnx_qos -i {} --trust dscp   # at once, until the next boot; where the switches go by DSCP, on all hosts   # VLANs, and switches that go by their priority -> leave it",
                    ShellWord::netdev(seen.interface)
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
    // Only ports of one kind and one speed serve one purpose: a front-end need not have what compute rails
    // have.
    let mut groups: Vec<((&Kind<'_>, String), Vec<&str>)> = Vec::new();
    for (seen, priorities) in &known {
        let Some(of) = &seen.kind else { continue };
        group(
            &mut groups,
            (of, words(seen.lossless, priorities)),
            seen.name.as_str(),
        );
    }
    if !out.is_empty() {
        return;
    }
    let differs = |kind: &Kind<'_>| groups.iter().filter(|((other, _), _)| *other == kind).count() > 1;
    let (unlike, alike): (Vec<_>, Vec<_>) = groups.iter().partition(|((kind, _), _)| differs(kind));
    let list_of = |groups: &[&((&Kind<'_>, String), Vec<&str>)]| {
        let each = groups.iter();
        let each = each.map(|((_, said), ports)| format!("{}: {said}", names(ports)));
        lists(&each.collect::<Vec<String>>())
    };
    if let Some(((([driver, ..], _), _), _)) = unlike.first() {
        out.warn(
            "",
            format!("ports differ in flow control: {}", list_of(&unlike)),
            "Some then lose packets where others are paused.",
            if driver.starts_with("mlx5") {
                "sudo mlnx_qos -i INTERFACE   # of each: shows its settings; make them alike"
            } else {
                "dcb pfc show dev INTERFACE   # of each: shows its settings; make them alike"
            },
        );
    } else if let [((_, first), _), rest @ ..] = alike.as_slice() {
        if rest.iter().all(|((_, said), _)| said == first) {
            out.pass("", first.clone());
        } else {
            out.pass(
                "",
                format!(
                    "ports of one kind and speed have the same flow control: {}",
                    list_of(&alike)
                ),
            );
        }
    }
}

pub(crate) fn ecn(facts: &Facts, out: &mut Lines) {
    // The check before reports what cannot be read.
    let all = known(facts, "", &mut Lines::default());
    let mut fine = false;
    for seen in &all {
        let PortFlowControl {
            name: port,
            interface,
            lossless,
            ..
        } = seen;
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
