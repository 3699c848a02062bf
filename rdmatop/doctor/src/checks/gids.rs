//! Addresses of RoCE ports.

use crate::{
    facts::Facts,
    line::Lines,
    words::{distinct, port_name},
};
use rdmatop_base::step::{ShellWord, step};

pub(crate) fn gids(facts: &Facts, out: &mut Lines) {
    let mut places: Vec<u16> = Vec::new();
    let mut fine = 0;
    for (device, port) in facts.ports() {
        if !port.roce || facts.view.lacks_file(facts, &device.name) {
            continue;
        }
        let name = port_name(device, port);
        // The interface may be in another network namespace, and one of its name here.
        let netdev = port.netdev.as_ref().filter(|netdev| netdev.up.is_some());
        let netdev = netdev.map(|netdev| netdev.name.as_str());
        let address = step!(
            "sudo ip address add ADDRESS/PREFIX dev {}   # until the next boot",
            ShellWord::or(netdev, "INTERFACE")
        );
        let Some(gids) = out.known(&port.gids, &name, format!("addresses (GIDs) of {name}"), "") else {
            continue;
        };
        let v2 = || gids.iter().filter(|gid| gid.is_v2());
        let ipv4 = v2().find(|gid| gid.gid.ipv4().is_some());
        places.extend(ipv4.map(|gid| gid.index));
        if ipv4.is_some() || v2().any(|gid| !gid.gid.is_link_local()) {
            fine += 1;
            continue;
        }
        // Libraries use no port that is not ACTIVE.
        if !port.active() {
            continue;
        }
        if v2().next().is_some() && !port.in_use {
            // The functions of pods have addresses of their own, and of a bond one link has them all.
            let text = format!("{name} has a link-local address (GID) only, and no queue pairs");
            out.pass(&name, text);
        } else if v2().next().is_some() {
            out.warn(
                &name,
                format!("{name} has a link-local address (GID) only"),
                "It cannot reach peers behind a router, and jobs look for a GID of IPv4.",
                address,
            );
        } else {
            let what = if gids.is_empty() {
                "no address (GID)"
            } else {
                "addresses (GIDs) of RoCE v1 only"
            };
            out.fail(
                &name,
                format!("{name} has {what}"),
                "RoCE v2 takes its addresses from those of the interface; without one no peer is reached.",
                address,
            );
        }
    }
    if fine == 0 {
        return;
    }
    out.pass(
        "",
        match distinct(places.into_iter()).as_slice() {
            [] => "RoCE v2 addresses (GIDs) of IPv6".to_owned(),
            [one] => format!("RoCE v2 address (GID) of IPv4 at index {one}"),
            _ => "RoCE v2 addresses (GIDs) of IPv4, their index differs by port".to_owned(),
        },
    );
}
