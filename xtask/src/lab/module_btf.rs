//! BTF of a module that was built here: what a distribution's own modules have.
//!
//! It builds upon the BTF of the kernel itself, which no small package has and the kernel's image has in it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::kernel::{self, Kernel};
use crate::{paths, step};

/// Ways in which a kernel's image is compressed: how such data begins, and what unpacks it.
const PACKED: [(&[u8], &[&str]); 3] = [
    (b"\xfd7zXZ\0", &["xz", "-dc"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dc"]),
    (b"\x1f\x8b\x08", &["gzip", "-dc"]),
];

/// Adds BTF to the modules `modules`, and takes the debug information that it is made from out of them.
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

/// The file of the kernel's own BTF, taken out of its image first if it is not in the cache.
fn of_kernel(kernel: &Kernel, work: &Path) -> Result<PathBuf> {
    let place = kernel::cache()
        .join("headers")
        .join(&kernel.release)
        .join("vmlinux.btf");
    if place.is_file() {
        return Ok(place);
    }
    let image = kernel.dir.join("vmlinuz");
    let data = fs::read(&image).with_context(|| format!("cannot read {}", image.display()))?;
    let elf = work.join("vmlinux");
    fs::write(
        &elf,
        unpacked(&data).with_context(|| format!("no kernel in {}", image.display()))?,
    )?;
    let new = work.join("vmlinux.btf");
    let mut command = Command::new("objcopy");
    command
        .arg("--dump-section")
        .arg(format!(".BTF={}", new.display()))
        .arg(&elf)
        .arg(work.join("rest"));
    step::run("lab: BTF of the kernel", &mut command)?;
    ensure!(new.is_file(), "{} has no BTF", image.display());
    // Another process may have been faster, with the same.
    fs::rename(&new, &place).with_context(|| format!("cannot write {}", place.display()))?;
    Ok(place)
}

/// The kernel in an image: the first compressed part of it that is an ELF file.
fn unpacked(image: &[u8]) -> Option<Vec<u8>> {
    for (magic, tool) in PACKED {
        let at = image.windows(magic.len()).enumerate();
        for (at, _) in at.filter(|(_, window)| *window == magic) {
            if let Some(elf) = run(tool, &image[at..]).filter(|data| data.starts_with(b"\x7fELF")) {
                return Some(elf);
            }
        }
    }
    None
}

/// What a program makes of `data`; what follows the compressed part makes it fail at the end, which does not
/// matter.
fn run(tool: &[&str], data: &[u8]) -> Option<Vec<u8>> {
    let (program, arguments) = tool.split_first()?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // Fails when the program has had enough.
            let _ = stdin.write_all(data);
        });
        child.wait_with_output().ok().map(|output| output.stdout)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_in_its_image_behind_what_only_looks_like_one() {
        let packed = |data: &[u8]| run(&["gzip", "-c"], data).unwrap();
        let image = [
            b"MZ....\x1f\x8b\x08".as_slice(),
            &packed(b"no kernel"),
            &packed(b"\x7fELF..."),
            b"tail",
        ]
        .concat();
        assert_eq!(unpacked(&image).as_deref(), Some(b"\x7fELF...".as_slice()));
        assert_eq!(unpacked(b"nothing"), None);
    }
}
