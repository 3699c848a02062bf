//! A newer QEMU than Debian 12's, unpacked into the cache and never installed.
//!
//! QEMU 10 from Debian 12's backports runs the same tests with an eighth less CPU time than Debian 12's QEMU
//! 7.2. It no longer has the NIC `pvrdma`, so the machine's own QEMU runs guests with that NIC.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{archive, kernel};
use crate::arch::Arch;
use crate::{paths, setup, step};

const SUITE: &str = "bookworm-backports";

/// Packages for guests of an architecture; the libraries are those of the machine's own QEMU.
fn packages(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &[
            "qemu-system-x86",
            "qemu-system-common",
            "qemu-system-data",
            "seabios",
        ],
        Arch::Aarch64 => &["qemu-system-arm", "qemu-system-common", "qemu-system-data"],
    }
}

const TITLE: &str = "lab: QEMU of Debian 12's backports";

fn name(arch: Arch) -> &'static str {
    match arch {
        Arch::X86_64 => "qemu",
        Arch::Aarch64 => "qemu-aarch64",
    }
}

fn dir(arch: Arch) -> PathBuf {
    kernel::cache().join(name(arch))
}

/// Returns the name of the program that runs guests of an architecture.
pub(super) fn program(arch: Arch) -> String {
    format!("qemu-system-{}", arch.name())
}

/// Returns the program if it is in the cache.
pub(super) fn cached(arch: Arch) -> Option<PathBuf> {
    let program = dir(arch).join("usr/bin").join(program(arch));
    program.is_file().then_some(program)
}

/// Fetches it on Debian 12; elsewhere installs Debian's own QEMU for aarch64, as setup did for x86-64. A failure
/// is only reported: the lab runs with any QEMU there is.
pub(crate) fn fetch_if_missing(arch: Arch) {
    if !setup::is_debian_12() {
        if arch == Arch::Aarch64
            && paths::find_tool(&[&program(arch)]).is_none()
            && let Err(error) = setup::packages(&[("run guests for aarch64", packages(arch))], false, true)
        {
            eprintln!("{error:#}");
        }
        return;
    }
    if let Err(error) = archive::once(name(arch), TITLE, || cached(arch), || fetch(arch)) {
        eprintln!("{error:#}; guests run by the QEMU that is installed");
    }
}

fn fetch(arch: Arch) -> Result<PathBuf> {
    // Packages for the architecture of this machine, not of the guest.
    archive::from_any(Arch::X86_64, SUITE, name(arch), TITLE, |apt| {
        let packages: Vec<String> = packages(arch).iter().map(ToString::to_string).collect();
        let files = apt.download(&format!("{TITLE}: download"), &packages)?;
        let new = dir(arch).with_extension("new");
        archive::unpack(TITLE, &files, &new)?;
        starts(&new.join("usr/bin").join(program(arch)))?;
        fs::rename(&new, dir(arch)).with_context(|| format!("cannot rename {}", new.display()))
    })?;
    cached(arch).context("QEMU was fetched and is not there")
}

/// Fails unless the machine has the libraries that the program needs.
fn starts(program: &Path) -> Result<()> {
    step::run(
        &format!("{TITLE}: start it"),
        Command::new(program).arg("--version"),
    )
    .map(drop)
}
