//! Builds the kernel that Debian does not have, from Debian's source: for aarch64 with pages of 64 KiB.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::kernel::{self, Kernel, Series};
use super::{archive, kbuild, linux_source};
use crate::{cross, setup, step};

/// All that it has. What neither this names nor an option of it needs is off, so that the build takes a tenth
/// of the time of Debian's.
const CONFIGURATION: &str = include_str!("arm64-64k.config");

/// Debian's packages for the build, beside the compiler.
const TOOLS: &[&str] = &[
    "bc",
    "bison",
    "flex",
    "libelf-dev",
    "libssl-dev",
    "make",
    "pahole",
];

/// The file that says of which configuration a kernel in the cache is.
const KEPT: &str = "configuration";

/// Whether the kernel in this directory of the cache was built as it would be now.
pub(super) fn is_of_this_configuration(dir: &Path) -> bool {
    fs::read_to_string(dir.join(KEPT)).is_ok_and(|kept| kept == CONFIGURATION)
}

/// Fetches the source, builds the kernel and moves it to the cache. The source is not kept.
pub(super) fn build(series: Series, title: &str) -> Result<Kernel> {
    let why = "build a kernel for aarch64";
    setup::packages(&[(why, TOOLS), (why, cross::COMPILER)], false, true)?;
    let dir = kernel::new_dir(series);
    let (source, objects) = (dir.join("source"), dir.join("objects"));
    let _ = fs::remove_dir_all(&dir);
    for part in [&source, &objects] {
        fs::create_dir_all(part).with_context(|| format!("cannot create {}", part.display()))?;
    }
    archive::from_any(series.arch, series.suite, &series.key(), title, |apt| {
        let package = format!("linux-source-{}", series.filter.unwrap_or_default());
        let files = apt.download(&format!("{title}: download (some 150 MB)"), &[package])?;
        let file = files.first().context("apt brought no source")?;
        linux_source::unpack(file, &source, title, &["*".to_owned()])
    })?;
    let wanted = objects.join("wanted");
    fs::write(&wanted, CONFIGURATION).with_context(|| format!("cannot write {}", wanted.display()))?;
    let make = |target: &str| -> Command {
        let mut make = kbuild::make_in(&source);
        make.arg(format!("O={}", objects.display()))
            .args(["-s", "ARCH=arm64", "CROSS_COMPILE=aarch64-linux-gnu-"])
            .args(target.split(' '));
        make
    };
    let mut configure = make("allnoconfig");
    step::run(
        &format!("{title}: configure"),
        configure.env("KCONFIG_ALLCONFIG", &wanted),
    )?;
    let configured = fs::read_to_string(objects.join(".config")).context("make wrote no configuration")?;
    let lost = lost(CONFIGURATION, &configured);
    ensure!(
        lost.is_empty(),
        "{title}: this source or machine cannot have {}",
        lost.join(", ")
    );
    step::run(
        &format!("{title}: build (ten minutes of CPU time)"),
        &mut make("Image modules"),
    )?;
    let mut install = make("modules_install");
    install
        .arg(format!("INSTALL_MOD_PATH={}", dir.display()))
        .args(["INSTALL_MOD_STRIP=1", "DEPMOD=true"]);
    step::run(&format!("{title}: install"), &mut install)?;
    let release = fs::read_to_string(objects.join("include/config/kernel.release"))?;
    fs::copy(objects.join("arch/arm64/boot/Image"), dir.join("vmlinuz")).context("make built no image")?;
    let modules = dir.join("lib/modules").join(release.trim());
    // Links to directories that are removed now.
    for link in ["build", "source"] {
        let _ = fs::remove_file(modules.join(link));
    }
    for part in [&source, &objects] {
        fs::remove_dir_all(part)?;
    }
    fs::write(dir.join(KEPT), CONFIGURATION)?;
    kernel::keep(series, title, release.trim())
}

/// Returns the lines of `wanted` that are not in the configuration that make made of them: an option whose
/// needs are not met is dropped without a word, such as BTF where there is no pahole.
fn lost<'a>(wanted: &'a str, configured: &str) -> Vec<&'a str> {
    let options = wanted.lines().filter(|line| line.starts_with("CONFIG_"));
    options
        .filter(|option| !configured.lines().any(|line| line == *option))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_make_dropped_is_named() {
        let wanted = "# What it is about.\nCONFIG_ARM64_64K_PAGES=y\nCONFIG_DEBUG_INFO_BTF=y\n";
        let configured = "CONFIG_ARM64_64K_PAGES=y\n# CONFIG_DEBUG_INFO_BTF is not set\n";
        assert_eq!(lost(wanted, configured), ["CONFIG_DEBUG_INFO_BTF=y"]);
        assert!(lost(wanted, wanted).is_empty());
    }

    #[test]
    fn a_kernel_of_another_configuration_is_built_again() {
        let dir = std::env::temp_dir().join(format!("rdmatop-kernel-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(!is_of_this_configuration(&dir));
        fs::write(dir.join(KEPT), "CONFIG_ARM64_4K_PAGES=y\n").unwrap();
        assert!(!is_of_this_configuration(&dir));
        fs::write(dir.join(KEPT), CONFIGURATION).unwrap();
        assert!(is_of_this_configuration(&dir));
        fs::remove_dir_all(&dir).unwrap();
    }
}
