//! Builds rdmatop as it is released: for an old glibc, without symbols, and without paths of this machine in
//! it.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::tree;
use crate::{arch::Arch, cross, ebpf_toolchain, paths, step};

/// The optimisation level of link-time optimisation, after the crates that read and keep the tables were
/// optimised for speed.
const LINKED_SMALL: [&str; 1] = ["-Copt-level=s"];

/// Returns the path of the program that cargo builds.
pub(super) fn built(arch: Arch) -> PathBuf {
    paths::target().join(arch.triple()).join("release/rdmatop")
}

/// Makes the next build link the program again: cargo does not know that the crate list is linked into it.
pub(super) fn link_again(arch: Arch) -> Result<()> {
    let deps = built(arch).with_file_name("deps");
    for file in tree::files(&deps)? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("rdmatop-") && !name.contains('.') {
            fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        }
    }
    Ok(())
}

/// Builds for `arch` with `linker`, links the object file `list` in, and returns the program.
pub(super) fn build(arch: Arch, epoch: u64, linker: &Path, list: &Path, work: &Path) -> Result<PathBuf> {
    // Without an eBPF toolchain build.rs would only warn and build a program without eBPF.
    ebpf_toolchain::find().map_err(anyhow::Error::msg)?;
    cross::standard_library(arch)?;
    // Only the program is linked for the target, so these flags reach nothing else.
    let link = [
        format!("-Clinker={}", linker.display()),
        format!("-Clink-arg={}", list.display()),
    ];
    let flags: Vec<String> = link
        .into_iter()
        .chain(own_paths()?.iter().map(|(path, name)| remap(path, name)))
        .collect();
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args([
            "rustc",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "rdmatop",
            "--target",
            arch.triple(),
            "--bin",
            "rdmatop",
            "--",
        ])
        .args(LINKED_SMALL)
        .current_dir(paths::repo())
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_TARGET_DIR", paths::target())
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_INCREMENTAL", "0")
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .env_remove("RDMATOP_EBPF_SKIP")
        .env_remove("RDMATOP_EBPF_OBJECTS");
    step::run(
        &format!("dist: build rdmatop for {}, some minutes", arch.name()),
        &mut cargo,
    )?;
    let program = work.join(format!("rdmatop-{}", arch.name()));
    let built = built(arch);
    fs::copy(&built, &program).with_context(|| format!("cannot copy {}", built.display()))?;
    Ok(program)
}

/// Directories of this machine whose names the compiler would write into the program, and their replacements.
/// If two match, rustc applies the later one.
pub(super) fn own_paths() -> Result<Vec<(PathBuf, &'static str)>> {
    let sysroot = step::run(
        "dist: ask rustc for its place",
        Command::new("rustc").args(["--print", "sysroot"]),
    )?;
    let mut paths = vec![
        (PathBuf::from(sysroot.trim()), "/rustc"),
        (paths::repo(), "/rdmatop"),
        (paths::target(), "/target"),
    ];
    paths.extend(ebpf_toolchain::cargo_home().map(|home| (home, "/cargo")));
    Ok(paths)
}

/// The compiler option that writes `name` instead of `path`.
fn remap(path: &Path, name: &str) -> String {
    format!("--remap-path-prefix={}={name}", path.display())
}
