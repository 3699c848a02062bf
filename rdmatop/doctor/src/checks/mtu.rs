//! Packet size: that of an Ethernet port follows from the MTU of its interface.

use crate::{
    facts::Facts,
    line::Lines,
    words::{distinct, names, port_name, rate},
};
use rdmatop_base::{
    roce::payload,
    step::{ShellWord, step},
};

/// A port of this speed needs large packets, bits per second.
pub(crate) const FAST: u64 = 25_000_000_000;
/// The payload that they should carry there.
pub(crate) const FAST_MTU: u32 = 4096;
/// The payload that they should carry anywhere: an interface with the usual 1500 allows it.
pub(crate) const LEAST: u32 = 1024;

struct PortMtu<'a> {
    port: String,
    interface: &'a str,
    mtu: u32,
    payload: u32,
    fast: Option<u64>,
    kind: (Option<&'a str>, Option<u64>),
}

pub(crate) fn mtu(facts: &Facts, out: &mut Lines) {
    let fastest = |infiniband| {
        let active = facts.ports().filter(|(_, port)| port.active());
        let of_layer = active.filter(move |(_, port)| port.is_infiniband() == infiniband);
        of_layer.filter_map(|(_, port)| port.rate.known()).max()
    };
    let (infiniband, ethernet) = (fastest(true), fastest(false));
    let mut all: Vec<PortMtu<'_>> = Vec::new();
    // A port that is down has no rate; mlx5 says 40 Gb/s then (`mlx5_query_port_roce`).
    for (device, port) in facts.ports().filter(|(_, port)| port.roce && port.active()) {
        // Beside faster ports it may be the machine's ordinary network; beside RoCE one that is fast itself
        // may be for storage.
        let rate = port.rate.known();
        let ordinary =
            rate.is_some_and(|rate| Some(rate) < infiniband || (*rate <= FAST && Some(rate) < ethernet));
        if ordinary && !port.in_use {
            continue;
        }
        let Some(netdev) = &port.netdev else { continue };
        let Some(mtu) = netdev.mtu else { continue };
        let rate = port.rate.known().copied();
        all.push(PortMtu {
            port: port_name(device, port),
            interface: &netdev.name,
            mtu,
            payload: payload(mtu).unwrap_or(0),
            fast: rate.filter(|rate| *rate >= FAST),
            kind: (device.driver.as_deref(), rate),
        });
    }
    for seen in &all {
        let PortMtu {
            port,
            interface,
            mtu,
            payload,
            ..
        } = seen;
        let best = all
            .iter()
            .filter(|other| other.kind == seen.kind)
            .map(|other| other.payload)
            .max()
            .unwrap_or_default();
        let is = format!("packets of {port} carry {payload} bytes: {interface} has MTU {mtu}");
        let (text, why, to) = if *payload < LEAST {
            let why = "Smaller packets cost speed, and peers with a larger size cannot connect.";
            (
                is,
                why.to_owned(),
                if seen.fast.is_some() { 9000_u32 } else { 1500 },
            )
        } else if let (Some(bits), true) = (seen.fast, *payload < FAST_MTU) {
            let bits = rate(bits);
            let why = format!("At {bits} packets of {FAST_MTU} bytes are needed for full speed.");
            (is, why, 9000)
        } else if *payload < best {
            let why = "A collective runs at the speed of its slowest NIC.";
            (format!("{is}; its siblings carry {best}"), why.to_owned(), 9000)
        } else {
            continue;
        };
        // Jumbo frames have to be set on the whole path, or packets are dropped.
        let raise = step!(
            "sudo ip link set dev {} mtu {}   # until the next boot; on the switches first, and on all hosts",
            ShellWord::netdev(interface),
            to
        );
        out.warn(port, text, why, raise);
    }
    if !out.is_empty() || all.is_empty() {
        return;
    }
    let sizes = distinct(all.iter().map(|seen| (seen.payload, seen.mtu))).into_iter();
    let sizes = sizes.map(|(payload, mtu)| format!("{payload} bytes (interface MTU {mtu})"));
    out.pass("", format!("packets carry {}", names(sizes)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_carry_what_the_kernel_computes() {
        // Seen on Linux 6.12: 1500 gives 1024, 4200 gives 4096.
        for (mtu, carries) in [
            (9000, Some(4096)),
            (4200, Some(4096)),
            (4191, Some(2048)),
            (1500, Some(1024)),
            (1000, Some(512)),
            (352, Some(256)),
            (351, None),
            (0, None),
        ] {
            assert_eq!(payload(mtu), carries, "{mtu}");
        }
        assert_eq!(payload(u32::MAX), Some(4096));
    }
}
