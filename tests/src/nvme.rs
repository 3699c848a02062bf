//! A kernel consumer of RDMA: nvme-rdma and its target nvmet-rdma, connected to each other over SoftRoCE.

use std::{fs, process::Command};

use anyhow::{Context, Result};

use crate::{
    child::output,
    lab,
    wait::{self, PATIENCE},
};

/// The kernel consumer that makes the initiator's QPs.
pub const HOST: &str = "[nvme_rdma]";
/// The kernel consumer that makes the target's QPs.
pub const TARGET: &str = "[nvmet_rdma]";

const MODULES: [&str; 3] = ["null_blk", "nvmet-rdma", "nvme-rdma"];
const PORT: u16 = 4420;
const NQN: &str = "rdmatop-tests";

/// A listening target; drop removes it with the initiator and the modules.
#[derive(Debug)]
pub struct NvmeTarget {
    address: String,
}

/// A connected initiator.
#[derive(Debug)]
pub struct Disk<'a> {
    /// The block device.
    pub path: String,
    controller: String,
    _target: &'a NvmeTarget,
}

/// Returns why this kernel has no NVMe over RDMA; `None` if it has.
pub fn missing() -> Option<String> {
    MODULES.iter().find_map(|module| {
        let tried = output(Command::new("modprobe").args(["--dry-run", module]));
        tried.err().map(|_| format!("the kernel has no module {module}"))
    })
}

impl NvmeTarget {
    /// Exports a null block device at the lab's device.
    pub fn up() -> Result<Self> {
        Self::up_at(lab::address(lab::DEVICE)?)
    }

    /// Exports one at this address; one of a link alone has the name of the interface behind a `%`.
    pub fn up_at(address: String) -> Result<Self> {
        let family = if address.contains(':') { "ipv6" } else { "ipv4" };
        // From here on drop cleans up, whichever step fails.
        let target = Self { address };
        let address = &target.address;
        shell(&format!(
            "set -e
            modprobe null_blk nr_devices=1
            modprobe nvmet-rdma
            modprobe nvme-rdma
            mountpoint -q /sys/kernel/config || mount -t configfs configfs /sys/kernel/config
            cd /sys/kernel/config/nvmet
            mkdir subsystems/{NQN}
            echo 1 >subsystems/{NQN}/attr_allow_any_host
            mkdir subsystems/{NQN}/namespaces/1
            printf /dev/nullb0 >subsystems/{NQN}/namespaces/1/device_path
            echo 1 >subsystems/{NQN}/namespaces/1/enable
            mkdir ports/1
            echo rdma >ports/1/addr_trtype
            echo {family} >ports/1/addr_adrfam
            echo {address} >ports/1/addr_traddr
            echo {PORT} >ports/1/addr_trsvcid
            ln -s /sys/kernel/config/nvmet/subsystems/{NQN} ports/1/subsystems/{NQN}"
        ))
        .context("make an NVMe target")?;
        Ok(target)
    }

    /// Connects to the target with one admin queue and one I/O queue.
    pub fn connect(&self) -> Result<Disk<'_>> {
        self.connect_by(&self.address)
    }

    /// Connects to it by this address.
    pub fn connect_by(&self, address: &str) -> Result<Disk<'_>> {
        let before = controllers()?;
        fs::write(
            "/dev/nvme-fabrics",
            format!("nqn={NQN},transport=rdma,traddr={address},trsvcid={PORT},nr_io_queues=1,queue_size=16"),
        )
        .context("connect to the NVMe target")?;
        let controller = controllers()?
            .into_iter()
            .find(|name| !before.contains(name))
            .context("no NVMe controller after a connect")?;
        let path = format!("/dev/{controller}n1");
        wait::until("the NVMe disk", PATIENCE, || fs::exists(&path).unwrap_or(false))?;
        Ok(Disk {
            path,
            controller,
            _target: self,
        })
    }
}

impl Disk<'_> {
    /// Writes or reads `count` blocks of 4 KiB without the page cache, one command each.
    pub fn copy(&self, write: bool, count: u64) -> Result<()> {
        let (from, to, flag) = if write {
            ("/dev/zero", self.path.as_str(), "oflag=direct")
        } else {
            (self.path.as_str(), "/dev/null", "iflag=direct")
        };
        let args = [
            format!("if={from}"),
            format!("of={to}"),
            format!("count={count}"),
            "bs=4k".into(),
            flag.into(),
        ];
        output(Command::new("dd").args(args)).map(drop)
    }

    /// Ends the connection; returns when the QPs of this side are gone.
    pub fn disconnect(self) -> Result<()> {
        let path = format!("/sys/class/nvme/{}/delete_controller", self.controller);
        fs::write(&path, "1").with_context(|| path)
    }
}

impl Drop for NvmeTarget {
    fn drop(&mut self) {
        // Errors of a step are ignored, and the others still run. What stayed would keep rdma_rxe loaded,
        // which would disturb other tests.
        let _ = shell(&format!(
            "for controller in /sys/class/nvme/nvme*/delete_controller; do
                [ -e $controller ] && echo 1 >$controller
            done
            cd /sys/kernel/config/nvmet && {{
                rm -f ports/1/subsystems/{NQN}
                rmdir ports/1
                echo 0 >subsystems/{NQN}/namespaces/1/enable
                rmdir subsystems/{NQN}/namespaces/1
                rmdir subsystems/{NQN}
                cd /
            }}
            modprobe -r nvme-rdma
            modprobe -r nvmet-rdma
            modprobe -r null_blk
            true"
        ));
    }
}

fn controllers() -> Result<Vec<String>> {
    let mut names = Vec::new();
    let Ok(entries) = fs::read_dir("/sys/class/nvme") else {
        return Ok(names);
    };
    for entry in entries {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn shell(script: &str) -> Result<String> {
    output(Command::new("sh").arg("-c").arg(script))
}
