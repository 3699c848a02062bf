//! SoftRoCE devices that a test adds to the lab's and removes.

use std::process::Command;

use anyhow::Result;

use crate::{child::output, kernel};

/// An rxe device on a dummy network device of its own; drop removes both.
#[derive(Debug)]
pub struct Rxe {
    netdev: String,
    index: u32,
}

impl Rxe {
    /// Makes device `name` on the network device `extraN`, whose address is 10.79.N.1.
    pub fn up(name: &str, number: u8) -> Result<Self> {
        let netdev = format!("extra{number}");
        output(Command::new("ip").args(["link", "add", &netdev, "type", "dummy"]))?;
        // From here on drop cleans up, whichever step fails.
        let mut made = Self {
            netdev: netdev.clone(),
            index: u32::MAX,
        };
        let address = format!("10.79.{number}.1/24");
        output(Command::new("ip").args(["address", "add", &address, "dev", &netdev]))?;
        output(Command::new("ip").args(["link", "set", &netdev, "up"]))?;
        kernel::add_link(name, &netdev)?;
        made.index = index(name)?;
        Ok(made)
    }

    /// The kernel's index of the device, which a rename does not change.
    pub fn index(&self) -> u32 {
        self.index
    }
}

impl Drop for Rxe {
    fn drop(&mut self) {
        // rxe removes its device with the network device under it, whatever its name is by then.
        let _ = output(Command::new("ip").args(["link", "delete", &self.netdev]));
    }
}

fn index(name: &str) -> Result<u32> {
    let text = output(Command::new("rdma").args(["-j", "dev", "show"]))?;
    let devices: serde_json::Value = serde_json::from_str(&text)?;
    let device = devices
        .as_array()
        .into_iter()
        .flatten()
        .find(|device| device["ifname"] == name);
    let index = device.and_then(|device| device["ifindex"].as_u64());
    Ok(u32::try_from(index.ok_or_else(|| {
        anyhow::anyhow!("rdma lists no device {name}")
    })?)?)
}
