//! NICs of the lab besides `SoftRoCE`: QEMU's pvrdma, to which programs post without entering the kernel.
//!
//! The host needs [`loopback`] for it. The guest needs the kernel's driver, which no Debian kernel has and
//! [`super::linux_source`] builds.

mod loopback;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};
use clap::ValueEnum;

use super::kernel::{Kernel, Series};
use super::linux_source;
use crate::arch::Arch;
use crate::paths;

/// A NIC that is no `SoftRoCE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Nic {
    /// QEMU's paravirtual RDMA NIC, with VMware's driver: SEND and RECV by busy polling, and no counters
    Pvrdma,
}

/// What a guest with a NIC needs.
#[derive(Clone, Debug)]
pub(super) struct Ready {
    /// The driver's module.
    pub(super) driver: PathBuf,
    /// The library to preload into QEMU.
    shim: PathBuf,
}

/// Kernels whose driver is known to work with QEMU's device.
const KERNELS: [&str; 2] = ["6.1", "6.12"];

/// Whether this kernel supports the NIC.
pub(crate) fn is_for(series: Series) -> bool {
    series.arch == Arch::X86_64 && KERNELS.contains(&series.name)
}

/// Returns why this machine cannot have the NIC; `None` if it can.
pub(crate) fn missing() -> Option<String> {
    let Some(qemu) = paths::find_tool(&["qemu-system-x86_64"]) else {
        return Some("no qemu-system-x86_64: `cargo xtask setup`".to_owned());
    };
    let devices = Command::new(qemu).args(["-device", "help"]).output();
    let has = devices.is_ok_and(|output| knows_pvrdma(&String::from_utf8_lossy(&output.stdout)));
    (!has).then(|| "this QEMU has no device pvrdma: Debian 12's has it, QEMU 9.1 and newer do not".to_owned())
}

fn knows_pvrdma(help: &str) -> bool {
    help.lines().any(|line| line.starts_with("name \"pvrdma\""))
}

/// Builds what the NIC needs if it is missing.
pub(super) fn ensure(nic: Nic, series: Series, kernel: &Kernel) -> Result<Ready> {
    let Nic::Pvrdma = nic;
    if let Some(reason) = missing() {
        bail!("--nic pvrdma: {reason}");
    }
    if !is_for(series) {
        bail!(
            "--nic pvrdma is for Linux {} on x86-64: with others it was not tried",
            KERNELS.join(" and ")
        );
    }
    Ok(Ready {
        driver: linux_source::VMW_PVRDMA.ensure(series, kernel)?,
        shim: loopback::ensure()?,
    })
}

impl Ready {
    /// Returns `env` with its arguments, to be put before QEMU's program.
    pub(super) fn env(&self, run_dir: &Path) -> Vec<String> {
        vec![
            "env".to_owned(),
            format!("LD_PRELOAD={}", self.shim.display()),
            format!("LAB_MUX_SOCKET={}", socket(run_dir).display()),
        ]
    }
}

fn socket(run_dir: &Path) -> PathBuf {
    run_dir.join("mux.sock")
}

/// Returns QEMU's options. The device must be function 1 beside a vmxnet3, whose address becomes its GID, and
/// needs the guest's memory to be shared.
pub(super) fn arguments(run_dir: &Path, memory: u32) -> Vec<String> {
    let socket = socket(run_dir);
    [
        "-object",
        &format!("memory-backend-ram,id=shared,size={memory}M,share=on"),
        "-numa",
        "node,memdev=shared",
        "-chardev",
        &format!("socket,path={},id=mux", socket.display()),
        "-netdev",
        "user,id=net,restrict=on",
        "-device",
        "vmxnet3,addr=10.0,multifunction=on,netdev=net,mac=52:54:00:12:34:56,romfile=",
        "-device",
        "pvrdma,addr=10.1,ibdev=loopback0,ibport=1,netdev=net,mad-chardev=mux",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_qemu_without_the_device_is_told_from_one_with_it() {
        assert!(knows_pvrdma(
            "Network devices:\nname \"pvrdma\", bus PCI, desc \"RDMA Device\"\n"
        ));
        assert!(!knows_pvrdma(
            "name \"vmxnet3\", bus PCI, desc \"VMWare Paravirtualized Ethernet v3\"\n"
        ));
    }

    #[test]
    fn the_shim_and_the_device_meet_at_one_socket() {
        let ready = Ready {
            driver: "/d".into(),
            shim: "/s".into(),
        };
        let dir = Path::new("/r");
        assert!(ready.env(dir).contains(&"LAB_MUX_SOCKET=/r/mux.sock".to_owned()));
        assert!(arguments(dir, 512).contains(&"socket,path=/r/mux.sock,id=mux".to_owned()));
    }
}
