//! An additional SoftRoCE device over a dummy interface of its own.

use std::{fs, process::Command};

use anyhow::{Result, ensure};

use crate::{child::output, lab};

/// The device and its interface; drop removes both.
#[derive(Debug)]
pub struct Device {
    name: &'static str,
    netdev: String,
}

impl Device {
    /// Makes `name` with the address 10.79.`net`.1, and waits until it can carry traffic.
    pub fn add(name: &'static str, net: u8) -> Result<Self> {
        ensure!(
            !fs::exists(format!("/sys/class/infiniband/{name}"))?,
            "{name} is there already"
        );
        let netdev = format!("on-{name}");
        // From here on drop cleans up, whichever step fails.
        let device = Self { name, netdev };
        let netdev = &device.netdev;
        shell(&format!(
            "set -e
            ip link add {netdev} type dummy
            ip address add 10.79.{net}.1/24 dev {netdev}
            ip link set {netdev} up"
        ))?;
        device.link()?;
        Ok(device)
    }

    fn link(&self) -> Result<()> {
        let Self { name, netdev } = self;
        shell(&format!("rdma link add {name} type rxe netdev {netdev}"))?;
        lab::await_gid(name)
    }

    /// Removes the device and adds one of the same name on the same interface, which has another index and
    /// numbers its QPs from the beginning.
    pub fn add_again(&self) -> Result<()> {
        shell(&format!("rdma link delete {}", self.name))?;
        self.link()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Self { name, netdev } = self;
        let _ = shell(&format!("rdma link delete {name}; ip link delete {netdev}"));
    }
}

fn shell(script: &str) -> Result<String> {
    output(Command::new("sh").arg("-c").arg(script))
}
