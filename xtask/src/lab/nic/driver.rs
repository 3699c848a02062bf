//! The kernel's own vmw_pvrdma, built from the source of exactly the lab's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::PrivateApt;
use crate::lab::kbuild::Source;
use crate::lab::kernel::{self, Kernel, Series};
use crate::lab::{archive, headers};
use crate::step;

const DRIVER: &str = "drivers/infiniband/hw/vmw_pvrdma";

/// The module, built first if it is not there.
pub(super) fn ensure(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    let title = format!("lab: source of vmw_pvrdma of Linux {}", kernel.release);
    let have = || Some(place(kernel)).filter(|dir| dir.is_dir());
    let dir = archive::once(&format!("source-{}", series.name), &title, have, || {
        let version = headers::ensure(series, kernel)?.version;
        archive::from_any(series, &format!("{}-source", series.name), &title, |apt| {
            fetch(kernel, &version, &title, apt)
        })
    })?;
    let source = Source::read("vmw_pvrdma", &["CONFIG_INFINIBAND_VMWARE_PVRDMA=m"], &dir)?;
    Ok(source.ensure(series, kernel)?.join("vmw_pvrdma.ko"))
}

fn place(kernel: &Kernel) -> PathBuf {
    kernel::cache()
        .join("source")
        .join(&kernel.release)
        .join("vmw_pvrdma")
}

/// Takes the driver's directory out of Debian's package of the whole source, which is not kept.
fn fetch(kernel: &Kernel, version: &str, title: &str, apt: &PrivateApt) -> Result<PathBuf> {
    let Some(series) = major_minor(&kernel.release) else {
        bail!("{title}: {} is no kernel release", kernel.release);
    };
    let package = format!("linux-source-{series}={version}");
    let files = apt.download(&format!("{title}: download (some 140 MB)"), &[package])?;
    let file = files.first().context("apt brought no source")?;
    let dir = place(kernel);
    let new = dir.with_extension(std::process::id().to_string());
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new).with_context(|| format!("cannot create {}", new.display()))?;
    let unpacked = unpack(file, &new, title);
    if unpacked.is_ok() {
        fs::rename(new.join(DRIVER), &dir).with_context(|| format!("no {DRIVER} in {}", file.display()))?;
    }
    let _ = fs::remove_dir_all(&new);
    unpacked.map(|()| dir)
}

/// A tar in an ar in a tar: each is a pipe, so that the gigabyte of source never lies on the disk.
fn unpack(package: &Path, into: &Path, title: &str) -> Result<()> {
    let script = "dpkg-deb --fsys-tarfile \"$1\" \
                  | tar -x --to-stdout --wildcards './usr/src/linux-source-*.tar.xz' \
                  | xz -dc -T0 \
                  | tar -x -C \"$2\" --strip-components=1 --wildcards \"*/$3\"";
    let mut command = Command::new("bash");
    command
        .args(["-o", "pipefail", "-c", script, "unpack"])
        .arg(package)
        .arg(into)
        .arg(DRIVER);
    step::run(&format!("{title}: unpack"), &mut command).map(drop)
}

/// `6.12` of `6.12.107+deb13-amd64`.
fn major_minor(release: &str) -> Option<String> {
    let mut numbers = release.split('.');
    let (major, minor) = (numbers.next()?, numbers.next()?);
    [major, minor]
        .iter()
        .all(|number| number.parse::<u32>().is_ok())
        .then(|| format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_that_of_the_kernels_series() {
        assert_eq!(major_minor("6.1.0-50-amd64").as_deref(), Some("6.1"));
        assert_eq!(major_minor("6.12.107+deb13-amd64").as_deref(), Some("6.12"));
        assert_eq!(major_minor("6-amd64"), None);
    }
}
