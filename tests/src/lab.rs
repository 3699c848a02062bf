//! Where the tests run: only in the lab VM, as root, one at a time.

use std::{
    env, fs,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{
    child::output,
    table::say,
    verbs::IPV4_GID,
    wait::{self, PATIENCE},
};

/// The device of most tests.
pub const DEVICE: &str = "rxe0";

/// The tests share one kernel, so a test would see probes and counters of another.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run a test in the lab.
#[derive(Debug)]
pub struct Lab {
    _turn: MutexGuard<'static, ()>,
    /// `uname -r`.
    pub release: String,
}

impl Lab {
    /// Waits for the turn of test `name`; outside the lab prints that and returns `None`.
    pub fn enter(name: &str) -> Option<Self> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let release = fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned();
        if !is_here() {
            skip(
                name,
                "not in the lab (RDMATOP_LAB is not 1): run `cargo xtask test`",
            );
            return None;
        }
        Some(Self { _turn: turn, release })
    }

    /// Whether the guest's kernel has this version or a newer one.
    pub fn is_at_least(&self, version: (u32, u32)) -> bool {
        let mut numbers = self.release.split('.').map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= version
    }

    /// As [`Self::enter`], for tests of the SoftRoCE data path, which need BTF of the module.
    pub fn enter_data_path(name: &str) -> Option<Self> {
        Self::enter(name)?.with_data_path(name)
    }

    /// Returns this lab if the SoftRoCE data path can be counted.
    fn with_data_path(self, name: &str) -> Option<Self> {
        if !fs::exists("/sys/kernel/btf/rdma_rxe").unwrap_or(false) {
            let release = &self.release;
            skip(
                name,
                &format!("Linux {release} has no BTF of rdma_rxe: exact work-request counts need its layout"),
            );
            return None;
        }
        Some(self)
    }
}

/// Whether this is the lab.
pub fn is_here() -> bool {
    env::var_os("RDMATOP_LAB").is_some_and(|value| value == "1")
}

/// Prints why a test is skipped.
pub fn skip(name: &str, reason: &str) {
    say(&format!("SKIPPED {name}: {reason}"));
}

/// Whether a test can compile a program here; if not, prints that it is skipped. The guests of other machines
/// have no compiler.
pub fn has_compiler(test: &str) -> bool {
    let there = Command::new("cc").arg("--version").output().is_ok();
    if !there {
        skip(test, "no C compiler in this guest");
    }
    there
}

/// Returns the names of the RDMA devices in sysfs.
pub fn devices() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/sys/class/infiniband").context("no RDMA devices")? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Returns the network device of `device`.
pub fn netdev(device: &str) -> Result<String> {
    let links: Value = serde_json::from_str(&output(Command::new("rdma").args(["-j", "link", "show"]))?)?;
    let link = links
        .as_array()
        .into_iter()
        .flatten()
        .find(|link| link["ifname"] == device);
    let netdev = link.and_then(|link| link["netdev"].as_str());
    Ok(netdev
        .with_context(|| format!("{device} has no netdev"))?
        .to_owned())
}

/// Returns the IPv4 address of `device`'s network device.
pub fn address(device: &str) -> Result<String> {
    let netdev = netdev(device)?;
    let text = output(Command::new("ip").args(["-j", "-4", "address", "show", "dev", &netdev]))?;
    let links: Value = serde_json::from_str(&text)?;
    let address = links[0]["addr_info"][0]["local"].as_str();
    Ok(address
        .with_context(|| format!("{netdev} has no IPv4 address"))?
        .to_owned())
}

/// Waits until `device` has the GID of its IPv4 address. The kernel fills the table from a work queue, and a
/// QP that is connected earlier would not reach RTR.
pub fn await_gid(device: &str) -> Result<()> {
    let what = format!("the IPv4 GID of {device}");
    wait::until(&what, PATIENCE, || {
        gid(device).is_ok_and(|gid| gid.contains(":ffff:"))
    })
}

/// The GID of the IPv4 address of `device`, as sysfs writes it.
pub fn gid(device: &str) -> Result<String> {
    let path = format!("/sys/class/infiniband/{device}/ports/1/gids/{IPV4_GID}");
    Ok(fs::read_to_string(&path).context(path)?.trim().to_owned())
}

/// The kernel's own counter `name` of port 1 of `device`; `None` when the kernel has no such counter.
pub fn hw_counter(device: &str, name: &str) -> Result<Option<u64>> {
    let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{name}");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().parse().with_context(|| path)?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(path),
    }
}
