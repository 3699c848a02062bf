//! A soft iWARP device, whose driver `cargo xtask lab modules` builds from the kernel's own source.

use std::{env, fs, process::Command};

use anyhow::{Context as _, Result, ensure};

use crate::{
    child::output,
    lab,
    wait::{self, PATIENCE},
};

/// The name of the device.
pub const DEVICE: &str = "siw0";
/// The address of siw0.
pub const ADDRESS: &str = "10.80.0.1";

/// The device; drop removes it and unloads the module.
#[derive(Debug)]
pub struct Siw(());

/// Whether the driver was built; otherwise prints that test `test` is skipped.
pub fn is_built(test: &str) -> bool {
    let built = env::var_os("RDMATOP_SIW").is_some();
    if !built {
        lab::skip(
            test,
            "no module siw for this kernel (RDMATOP_SIW): `cargo xtask lab modules` builds it for 6.1 and later",
        );
    }
    built
}

impl Siw {
    /// Makes the device.
    pub fn up() -> Result<Self> {
        let module = env::var_os("RDMATOP_SIW").context("no module siw: RDMATOP_SIW is not set")?;
        // From here on drop cleans up, whichever step fails.
        let siw = Self(());
        let script = "set -e
            modprobe ib_uverbs
            modprobe rdma_ucm
            for needed in $(modinfo -F depends \"$1\" | tr , ' '); do modprobe $needed; done
            insmod \"$1\"
            ip link add siwnet type dummy
            ip address add 10.80.0.1/24 dev siwnet
            ip link set siwnet up
            rdma link add siw0 type siw netdev siwnet";
        output(Command::new("sh").args(["-c", script, "siw"]).arg(module))?;
        ensure!(
            fs::exists("/sys/kernel/btf/siw")?,
            "siw was built without BTF, which Ubuntu's and Fedora's has"
        );
        wait::until("an active siw0", PATIENCE, || {
            let state = fs::read_to_string("/sys/class/infiniband/siw0/ports/1/state");
            state.is_ok_and(|state| state.contains("ACTIVE"))
        })?;
        Ok(siw)
    }
}

impl Drop for Siw {
    fn drop(&mut self) {
        let script = "rdma link delete siw0; ip link delete siwnet; rmmod siw";
        if let Err(error) = output(Command::new("sh").args(["-c", script])) {
            crate::table::say(&format!("cannot take siw0 away: {error:#}"));
        }
    }
}
