//! Builds kernel drivers that Debian does not build, from the source of exactly the lab's kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kbuild::DriverSource;
use super::kernel::{self, Kernel, Series};
use super::{archive, headers};
use crate::apt::PrivateApt;
use crate::step;

/// A driver in the kernel source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driver {
    /// The name of the driver's module.
    pub(super) name: &'static str,
    /// Its directory in the source.
    dir: &'static str,
    /// The words for make that enable it.
    options: &'static [&'static str],
    /// Whether the module gets BTF, as the kernel's own modules have it: programs of ours read its structs.
    btf: bool,
}

/// VMware's driver for QEMU's pvrdma.
pub(super) const VMW_PVRDMA: Driver = Driver {
    name: "vmw_pvrdma",
    dir: "drivers/infiniband/hw/vmw_pvrdma",
    options: &["CONFIG_INFINIBAND_VMWARE_PVRDMA=m"],
    btf: false,
};

/// Soft iWARP, which Ubuntu and Fedora ship.
pub(super) const SIW: Driver = Driver {
    name: "siw",
    dir: "drivers/infiniband/sw/siw",
    options: &["CONFIG_RDMA_SIW=m"],
    btf: true,
};

/// All drivers. One fetch of the source extracts all of them.
const ALL: [Driver; 2] = [VMW_PVRDMA, SIW];

impl Driver {
    /// Returns the module, which is built if it does not exist.
    pub(super) fn ensure(self, series: Series, kernel: &Kernel) -> Result<PathBuf> {
        let title = format!("lab: source of {} of Linux {}", self.name, kernel.release);
        let have = || Some(self.place(kernel)).filter(|dir| dir.is_dir());
        archive::once(&format!("source-{}", series.name), &title, have, || {
            let version = headers::ensure(series, kernel)?.version;
            archive::from_any(
                series.arch,
                series.suite,
                &format!("{}-source", series.name),
                &title,
                |apt| fetch(kernel, &version, &title, apt),
            )?;
            have().with_context(|| format!("no {} in the source of {}", self.dir, kernel.release))
        })?;
        let source = self.source(kernel)?;
        Ok(source.ensure(series, kernel)?.join(format!("{}.ko", self.name)))
    }

    /// Returns the module if it has been built.
    pub(super) fn built(self, kernel: &Kernel) -> Option<PathBuf> {
        let dir = self.source(kernel).ok()?.built(kernel)?;
        Some(dir.join(format!("{}.ko", self.name)))
    }

    fn source(self, kernel: &Kernel) -> Result<DriverSource> {
        let source = DriverSource::read(self.name, self.options, &self.place(kernel))?;
        Ok(if self.btf { source.with_btf() } else { source })
    }

    /// The directory of its source.
    fn place(self, kernel: &Kernel) -> PathBuf {
        kernel::cache()
            .join("source")
            .join(&kernel.release)
            .join(self.name)
    }
}

/// Extracts the drivers' directories from Debian's package of the whole source, which is not kept.
fn fetch(kernel: &Kernel, version: &str, title: &str, apt: &PrivateApt) -> Result<()> {
    let Some(series) = major_minor(&kernel.release) else {
        bail!("{title}: {} is no kernel release", kernel.release);
    };
    let package = format!("linux-source-{series}={version}");
    let files = apt.download(&format!("{title}: download (some 140 MB)"), &[package])?;
    let file = files.first().context("apt brought no source")?;
    let sources = kernel::cache().join("source").join(&kernel.release);
    let new = sources.join(format!("new-{}", std::process::id()));
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new).with_context(|| format!("cannot create {}", new.display()))?;
    let wanted = ALL.map(|driver| format!("*/{}", driver.dir));
    let unpacked = unpack(file, &new, title, &wanted).and_then(|()| {
        for driver in ALL {
            let place = driver.place(kernel);
            if !place.is_dir() {
                fs::rename(new.join(driver.dir), &place)
                    .with_context(|| format!("no {} in {}", driver.dir, file.display()))?;
            }
        }
        Ok(())
    });
    let _ = fs::remove_dir_all(&new);
    unpacked
}

/// The package is a tar in an ar in a tar. Pipes unpack it, so that of the gigabyte of source only what is
/// `wanted`, by patterns of paths, comes on disk.
pub(super) fn unpack(package: &Path, into: &Path, title: &str, wanted: &[String]) -> Result<()> {
    let script = "package=$1; into=$2; shift 2
                  dpkg-deb --fsys-tarfile \"$package\" \
                  | tar -x --to-stdout --wildcards './usr/src/linux-source-*.tar.xz' \
                  | xz -dc -T0 \
                  | tar -x -C \"$into\" --strip-components=1 --wildcards \"$@\"";
    let mut command = Command::new("bash");
    command
        .args(["-o", "pipefail", "-c", script, "unpack"])
        .arg(package)
        .arg(into)
        .args(wanted);
    step::run(&format!("{title}: unpack"), &mut command).map(drop)
}

/// Returns `6.12` for `6.12.107+deb13-amd64`.
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
