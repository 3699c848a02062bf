//! The lab's kernels: their list, and fetching and unpacking their Debian packages into the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{archive, kernel_build};
use crate::apt::PrivateApt;
use crate::arch::Arch;
use crate::{paths, step};

/// A kernel the lab knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// The name that users give.
    pub(crate) name: &'static str,
    /// The Debian suite that has it.
    pub(crate) suite: &'static str,
    /// The kernel series to take; `None` takes the newest of the suite, because unstable moves on.
    pub(super) filter: Option<&'static str>,
    /// The architecture that it is for.
    pub(crate) arch: Arch,
    /// The ending of its package names; `None`: Debian has no such kernel, and it is built from the source.
    flavour: Option<&'static str>,
}

/// All kernels of the lab for x86-64, oldest first.
pub(crate) const ALL: [Series; 4] = [
    Series {
        name: "5.10",
        suite: "bullseye",
        filter: Some("5.10"),
        arch: Arch::X86_64,
        flavour: Some("amd64"),
    },
    Series {
        name: "6.1",
        suite: "bookworm",
        filter: Some("6.1"),
        arch: Arch::X86_64,
        flavour: Some("amd64"),
    },
    Series {
        name: "6.12",
        suite: "trixie",
        filter: Some("6.12"),
        arch: Arch::X86_64,
        flavour: Some("amd64"),
    },
    Series {
        name: "7.2",
        suite: "unstable",
        filter: None,
        arch: Arch::X86_64,
        flavour: Some("amd64"),
    },
];

/// The kernels for aarch64, which are fetched only on request. Debian's have pages of 4 KiB; since Linux 6.12
/// there is one with pages of 16 KiB, but none with 64 KiB, as other distributions have: that one is built.
pub(crate) const AARCH64: [Series; 5] = [
    Series {
        arch: Arch::Aarch64,
        flavour: Some("arm64"),
        ..ALL[1]
    },
    Series {
        arch: Arch::Aarch64,
        flavour: Some("arm64"),
        ..ALL[2]
    },
    Series {
        name: "6.12-16k",
        arch: Arch::Aarch64,
        flavour: Some("arm64-16k"),
        ..ALL[2]
    },
    Series {
        name: "6.12-64k",
        arch: Arch::Aarch64,
        flavour: None,
        ..ALL[2]
    },
    Series {
        arch: Arch::Aarch64,
        flavour: Some("arm64"),
        ..ALL[3]
    },
];

/// Returns the kernels for an architecture.
pub(crate) fn all(arch: Arch) -> &'static [Series] {
    match arch {
        Arch::X86_64 => &ALL,
        Arch::Aarch64 => &AARCH64,
    }
}

/// Finds a kernel for x86-64 by version (`6.12`) or suite (`trixie`, `sid`).
pub(crate) fn find(name: &str) -> Result<Series> {
    find_for(Arch::X86_64, name)
}

/// Finds a kernel for an architecture by version (`6.12`) or suite (`trixie`, `sid`).
pub(crate) fn find_for(arch: Arch, name: &str) -> Result<Series> {
    let name = if name == "sid" { "unstable" } else { name };
    let found = all(arch)
        .iter()
        .find(|series| series.name == name || series.suite == name);
    found.copied().with_context(|| {
        let names: Vec<&str> = all(arch).iter().map(|series| series.name).collect();
        format!(
            "no kernel `{name}` for {} in the lab: choose one of {}",
            arch.name(),
            names.join(", ")
        )
    })
}

/// Returns the kernel of that name, or all kernels for `all`.
pub(crate) fn named(arch: Arch, name: &str) -> Result<Vec<Series>> {
    if name == "all" {
        return Ok(all(arch).to_vec());
    }
    Ok(vec![find_for(arch, name)?])
}

impl Series {
    /// The name of its files in the cache and of its guests in a log.
    pub(crate) fn key(self) -> String {
        match self.arch {
            Arch::X86_64 => self.name.to_owned(),
            Arch::Aarch64 => format!("{}-{}", self.name, self.arch.name()),
        }
    }

    /// The title where kernels for several architectures are listed.
    pub(crate) fn title(self) -> String {
        match self.arch {
            Arch::X86_64 => format!("Linux {}", self.name),
            Arch::Aarch64 => format!("Linux {} for {}", self.name, self.arch.name()),
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The version as `uname -r` gives it.
    pub(crate) release: String,
    /// The kernel's directory in the cache.
    pub(crate) dir: PathBuf,
    /// The architecture that it is for.
    pub(crate) arch: Arch,
}

impl Kernel {
    /// The boot image.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The module tree, `lib/modules/RELEASE`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules").join(&self.release)
    }
}

/// The lab's directory in the cache.
pub(crate) fn cache() -> PathBuf {
    paths::cache().join("lab")
}

/// Returns the kernel if it is in the cache.
pub(crate) fn cached(series: Series) -> Option<Kernel> {
    let dir = cache().join("kernels").join(series.key());
    // The marker file is written last, before the directory is renamed: it proves that the rest is complete.
    let release = fs::read_to_string(dir.join("release")).ok()?.trim().to_owned();
    if series.flavour.is_none() && !kernel_build::is_of_this_configuration(&dir) {
        return None;
    }
    Some(Kernel {
        release,
        dir,
        arch: series.arch,
    })
}

/// Whether `series` is in the cache.
pub(crate) fn is_cached(series: Series) -> bool {
    cached(series).is_some()
}

/// Returns the kernel; it is fetched if it is not in the cache.
pub(crate) fn ensure(series: Series) -> Result<Kernel> {
    archive::once(
        &series.key(),
        &series.title(),
        || cached(series),
        || fetch(series),
    )
}

fn fetch(series: Series) -> Result<Kernel> {
    let title = format!("lab: {} (Debian {})", series.title(), series.suite);
    let Some(flavour) = series.flavour else {
        return kernel_build::build(series, &title);
    };
    archive::from_any(series.arch, series.suite, &series.key(), &title, |apt| {
        fetch_from(series, flavour, &title, apt)
    })
}

fn fetch_from(series: Series, flavour: &str, title: &str, apt: &PrivateApt) -> Result<Kernel> {
    let picked = apt.newest_kernel(title, flavour, series.filter)?;
    let files = apt.download(
        &format!("{title}: download {}", picked.packages.join(" ")),
        &picked.packages,
    )?;
    unpack(series, title, &picked.release, &files)
}

/// The directory in which a kernel is put together before it is in the cache.
pub(super) fn new_dir(series: Series) -> PathBuf {
    cache().join("kernels").join(format!("{}.new", series.key()))
}

/// Parts of a module tree of which no guest loads anything: half of what depmod would read.
const UNUSED: [&str; 9] = [
    "drivers/gpu",
    "drivers/hid",
    "drivers/iio",
    "drivers/input",
    "drivers/media",
    "drivers/net/wireless",
    "drivers/staging",
    "drivers/usb",
    "sound",
];

fn unpack(series: Series, title: &str, release: &str, files: &[PathBuf]) -> Result<Kernel> {
    let dir = new_dir(series);
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&dir);
    archive::unpack(title, files, &root)?;
    let first_of = archive::first_of(&root);
    let image = first_of([
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ])?;
    fs::copy(&image, dir.join("vmlinuz")).with_context(|| format!("cannot copy {}", image.display()))?;
    let modules = first_of([
        format!("lib/modules/{release}"),
        format!("usr/lib/modules/{release}"),
    ])?;
    for part in UNUSED {
        // A kernel without one of them is as good.
        let _ = fs::remove_dir_all(modules.join("kernel").join(part));
    }
    fs::create_dir_all(dir.join("lib/modules"))?;
    fs::rename(&modules, dir.join("lib/modules").join(release))
        .with_context(|| format!("cannot move {}", modules.display()))?;
    fs::remove_dir_all(&root)?;
    keep(series, title, release)
}

/// Moves the kernel whose image and modules are in [`new_dir`] to its place in the cache.
pub(super) fn keep(series: Series, title: &str, release: &str) -> Result<Kernel> {
    let dir = new_dir(series);
    let depmod = paths::find_tool(&["depmod"]).context("no depmod: `apt-get install kmod`")?;
    step::run(
        &format!("{title}: depmod"),
        Command::new(depmod).arg("-b").arg(&dir).arg(release),
    )?;
    fs::write(dir.join("release"), release)?;
    let final_dir = cache().join("kernels").join(series.key());
    let _ = fs::remove_dir_all(&final_dir);
    fs::rename(&dir, &final_dir).with_context(|| format!("cannot rename {}", dir.display()))?;
    Ok(Kernel {
        release: release.to_owned(),
        dir: final_dir,
        arch: series.arch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_version_and_by_suite() {
        assert_eq!(find("6.12").unwrap().suite, "trixie");
        assert_eq!(find("bullseye").unwrap().name, "5.10");
        assert_eq!(find("sid").unwrap().suite, "unstable");
        assert!(find("4.19").unwrap_err().to_string().contains("6.12"));
    }

    #[test]
    fn a_kernel_for_another_machine_has_a_name_and_a_place_of_its_own() {
        let (here, there) = (find("7.2").unwrap(), find_for(Arch::Aarch64, "sid").unwrap());
        assert_eq!((here.name, here.suite), (there.name, there.suite));
        assert_eq!((here.key().as_str(), here.title().as_str()), ("7.2", "Linux 7.2"));
        assert_eq!(there.key(), "7.2-aarch64");
        assert_eq!(there.title(), "Linux 7.2 for aarch64");
        assert!(find("6.12-16k").is_err());
        assert!(find_for(Arch::Aarch64, "5.10").is_err());
    }
}
