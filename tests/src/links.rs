//! Links between two SoftRoCE devices each, so many at a time as a test wants.

use std::{fmt::Write as _, fs, process::Command};

use anyhow::Result;

use crate::{
    child::output,
    wait::{self, PATIENCE},
};

/// The names of the ends of a link.
pub const SIDES: [&str; 2] = ["a", "b"];

/// The device at an end of a link; its network device has a `v` before that.
pub fn device(link: usize, side: usize) -> String {
    format!("s{link}{}", SIDES[side])
}

/// Pairs of veth interfaces with a device on each end, which reach each other by their link-local
/// addresses.
#[derive(Debug)]
pub struct Links {
    count: usize,
}

impl Links {
    /// Makes `count` links, each with a SoftRoCE device at both ends.
    pub fn up(count: usize) -> Result<Self> {
        let links = Self { count };
        let mut script = String::from("set -e; modprobe veth\n");
        for kind in ["all", "default"] {
            let _ = writeln!(script, "echo 0 >/proc/sys/net/ipv6/conf/{kind}/accept_dad");
        }
        for link in 0..count {
            let [a, b] = [0, 1].map(|side| device(link, side));
            let _ = writeln!(
                script,
                "ip link add v{a} mtu 9000 type veth peer name v{b} mtu 9000"
            );
            for end in [a, b] {
                let _ = writeln!(script, "ip link set v{end} up");
                let _ = writeln!(script, "rdma link add {end} type rxe netdev v{end}");
            }
        }
        output(Command::new("sh").arg("-c").arg(script))?;
        for link in 0..count {
            for side in [0, 1] {
                let netdev = format!("v{}", device(link, side));
                // The last column of an address that can be used has no sign of a check.
                let has = |text: String| text.lines().any(|line| line.ends_with(&format!(" 80 {netdev}")));
                let ready =
                    || fs::read_to_string("/proc/net/if_inet6").is_ok_and(|text| has(squeezed(&text)));
                wait::until("a link-local address", PATIENCE, ready)?;
            }
        }
        Ok(links)
    }
}

fn squeezed(text: &str) -> String {
    let lines = text.lines();
    let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

impl Drop for Links {
    fn drop(&mut self) {
        for link in 0..self.count {
            // rxe removes its devices with the network devices under them.
            let _ = output(Command::new("ip").args(["link", "delete", &format!("v{}", device(link, 0))]));
        }
    }
}
