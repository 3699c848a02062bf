//! A newer QEMU than Debian 12's, unpacked into the cache and never installed.
//!
//! QEMU 10, which Debian 12 has among its backports, runs the same tests in an eighth less of CPU time than
//! its 7.2. It has no NIC `pvrdma` any more: a guest with that NIC is run by the machine's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{archive, kernel};
use crate::{setup, step};

const SUITE: &str = "bookworm-backports";

/// What a guest needs; the libraries are those of the machine's own QEMU.
const PACKAGES: [&str; 4] = [
    "qemu-system-x86",
    "qemu-system-common",
    "qemu-system-data",
    "seabios",
];

const TITLE: &str = "lab: QEMU of Debian 12's backports";

fn dir() -> PathBuf {
    kernel::cache().join("qemu")
}

/// The program, if it is in the cache.
pub(super) fn cached() -> Option<PathBuf> {
    let program = dir().join("usr/bin/qemu-system-x86_64");
    program.is_file().then_some(program)
}

/// Fetches it, where the machine is a Debian 12. A lab runs without it, so a failure is only reported.
pub(crate) fn fetch_if_missing() {
    if !setup::is_debian_12() {
        return;
    }
    if let Err(error) = archive::once("qemu", TITLE, cached, fetch) {
        eprintln!("{error:#}; guests run by the QEMU that is installed");
    }
}

fn fetch() -> Result<PathBuf> {
    archive::from_any(SUITE, "qemu", TITLE, |apt| {
        let files = apt.download(&format!("{TITLE}: download"), &PACKAGES.map(str::to_owned))?;
        let new = dir().with_extension("new");
        archive::unpack(TITLE, &files, &new)?;
        starts(&new.join("usr/bin/qemu-system-x86_64"))?;
        fs::rename(&new, dir()).with_context(|| format!("cannot rename {}", new.display()))
    })?;
    cached().context("QEMU was fetched and is not there")
}

/// Whether the machine has the libraries that it needs.
fn starts(program: &Path) -> Result<()> {
    step::run(
        &format!("{TITLE}: start it"),
        Command::new(program).arg("--version"),
    )
    .map(drop)
}
