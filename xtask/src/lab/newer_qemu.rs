//! A newer QEMU than Debian 12's, unpacked into the cache and never installed.
//!
//! QEMU 10, which Debian 12 has among its backports, runs the same tests in an eighth less of CPU time than
//! its 7.2. It has no NIC `pvrdma` any more: a guest with that NIC is run by the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{archive, kernel};
use crate::arch::Arch;
use crate::{setup, step};

const SUITE: &str = "bookworm-backports";

/// What guests of a machine need; the libraries are those of the machine's own QEMU.
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

/// The name of the program that runs guests of a machine.
pub(super) fn program(arch: Arch) -> String {
    format!("qemu-system-{}", arch.name())
}

/// The program, if it is in the cache.
pub(super) fn cached(arch: Arch) -> Option<PathBuf> {
    let program = dir(arch).join("usr/bin").join(program(arch));
    program.is_file().then_some(program)
}

/// Fetches it, where the machine is a Debian 12. A lab runs without it, so a failure is only reported.
pub(crate) fn fetch_if_missing(arch: Arch) {
    if !setup::is_debian_12() {
        return;
    }
    if let Err(error) = archive::once(name(arch), TITLE, || cached(arch), || fetch(arch)) {
        eprintln!("{error:#}; guests run by the QEMU that is installed");
    }
}

fn fetch(arch: Arch) -> Result<PathBuf> {
    // The packages are those that run here.
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

/// Whether the machine has the libraries that it needs.
fn starts(program: &Path) -> Result<()> {
    step::run(
        &format!("{TITLE}: start it"),
        Command::new(program).arg("--version"),
    )
    .map(drop)
}
