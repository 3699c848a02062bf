//! Adds BTF to a module that was built here, as a distribution's own modules have it.
//!
//! It refers to the BTF of the kernel itself, which no small package has but the kernel's image contains.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::image;
use super::kernel::{self, Kernel};
use crate::{paths, step};

/// Adds BTF to `modules` and then removes the debug information that it is made from.
pub(super) fn add(kernel: &Kernel, modules: &[PathBuf], work: &Path) -> Result<()> {
    let pahole = paths::find_tool(&["pahole"])
        .context("no pahole: `cargo xtask setup`, or `apt-get install pahole`")?;
    let base = of_kernel(kernel, work)?;
    for module in modules {
        let mut command = Command::new(&pahole);
        command
            .arg("-J")
            .arg("--btf_gen_floats")
            .arg("--btf_base")
            .arg(&base);
        step::run("lab: BTF of a module", command.arg(module))?;
        let mut command = Command::new("objcopy");
        step::run("lab: strip a module", command.arg("--strip-debug").arg(module))?;
    }
    Ok(())
}

/// Returns the file of the kernel's own BTF, which is extracted from its image if it is not in the cache.
fn of_kernel(kernel: &Kernel, work: &Path) -> Result<PathBuf> {
    let place = kernel::cache()
        .join("headers")
        .join(&kernel.release)
        .join("vmlinux.btf");
    if place.is_file() {
        return Ok(place);
    }
    let boot = kernel.image();
    let data = fs::read(&boot).with_context(|| format!("cannot read {}", boot.display()))?;
    let btf = image::btf(&data).with_context(|| format!("{} has no BTF", boot.display()))?;
    let new = work.join("vmlinux.btf");
    fs::write(&new, btf).with_context(|| format!("cannot write {}", new.display()))?;
    // Another process may have been faster, with the same content.
    fs::rename(&new, &place).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}
