//! The artefacts are linked by zig. It knows the symbols of each glibc version, so it can link a program for
//! a system older than this one, or for another architecture.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{arch::Arch, paths, step};

/// The glibc that artefacts are linked for: that of RHEL 8, which is older than those of Ubuntu 20.04 and
/// Debian 11.
pub(super) const GLIBC: &str = "2.28";

/// The version of zig. Another version may generate other bytes.
const VERSION: &str = "0.14.1";
/// The SHA-256 of PyPI's wheel for a builder of each machine. pip refuses anything else under this name.
const WHEELS: [(Arch, &str); 2] = [
    (
        Arch::X86_64,
        "6eb9d4d759b292c83810dbee2e9e8e3fbfbf01d864e6e9811bae711fd74e1c2f",
    ),
    (
        Arch::Aarch64,
        "7994b27f3cbfcedea43f9b7552e38b45857bdf0e9a45065474092dd74e7048cf",
    ),
];

/// What zig links into a program, and where its licence lies in the wheel.
const LICENCES: [(&str, &str); 3] = [
    ("Zig's compiler_rt", "LICENSE"),
    ("LLVM's libunwind", "lib/libunwind/LICENSE.TXT"),
    ("glibc", "lib/libc/glibc/LICENSES"),
];

/// Returns the line of pip's list that names zig, its version and the hashes of its wheels.
fn requirement() -> String {
    let hashes = WHEELS.map(|(_, hash)| format!(" --hash=sha256:{hash}"));
    format!("ziglang=={VERSION}{}\n", hashes.concat())
}

/// Returns the licences of what zig links, and the files with their texts.
pub(super) fn licences() -> Result<Vec<(&'static str, PathBuf)>> {
    let program = zig()?;
    let wheel = program.parent().context("zig without a directory")?;
    Ok(LICENCES.map(|(part, file)| (part, wheel.join(file))).to_vec())
}

/// Returns the path of zig, which is downloaded into the cache once.
pub(super) fn zig() -> Result<PathBuf> {
    let dir = paths::cache().join(format!("zig-{VERSION}"));
    let program = dir.join("ziglang/zig");
    if program.is_file() {
        return Ok(program);
    }
    let new = paths::cache().join(format!("zig-{VERSION}.new"));
    let _ = fs::remove_dir_all(&new);
    fs::create_dir_all(&new).with_context(|| format!("cannot create {}", new.display()))?;
    let list = new.join("requirements.txt");
    fs::write(&list, requirement()).with_context(|| format!("cannot write {}", list.display()))?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--require-hashes",
        "--requirement",
    ]);
    pip.arg(&list).arg("--target").arg(&new);
    step::run(
        &format!("dist: fetch zig {VERSION}, which links for glibc {GLIBC}"),
        &mut pip,
    )
    .context("zig comes from PyPI by `python3 -m pip` (Debian: apt-get install python3-pip)")?;
    fs::rename(&new, &dir).with_context(|| format!("cannot rename {}", new.display()))?;
    Ok(program)
}

/// Writes a wrapper for `arch` into `dir`, which rustc calls instead of a C compiler to link.
pub(super) fn wrapper(arch: Arch, dir: &Path) -> Result<PathBuf> {
    let file = dir.join(format!("link-{}", arch.name()));
    let text = script(&zig()?, &dir.join("zig-cache"), arch);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", file.display()))?;
    Ok(file)
}

/// A shell script that calls zig with the arguments of rustc, without those that choose another linker. It
/// links zig's static unwinder instead of GCC's, so that the program does not need libgcc_s.so.1.
fn script(zig: &Path, cache: &Path, arch: Arch) -> String {
    format!(
        r#"#!/bin/sh
set -eu
for arg do
    shift
    case $arg in
    -fuse-ld=* | -B* | --target=* | -Wl,--no-undefined-version) ;;
    -lgcc_s) set -- "$@" -lunwind ;;
    *) set -- "$@" "$arg" ;;
    esac
done
export ZIG_GLOBAL_CACHE_DIR='{cache}' ZIG_LOCAL_CACHE_DIR='{cache}'
exec '{zig}' cc -target {arch}-linux-gnu.{GLIBC} "$@"
"#,
        cache = cache.display(),
        zig = zig.display(),
        arch = arch.name(),
    )
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    #[test]
    fn zig_can_be_had_on_a_builder_of_each_machine() {
        for arch in Arch::value_variants() {
            assert_eq!(WHEELS.iter().filter(|(of, _)| of == arch).count(), 1, "{arch:?}");
        }
        let line = requirement();
        assert!(line.starts_with("ziglang==0.14.1 --hash=sha256:") && line.lines().count() == 1);
        let digests: Vec<&str> = line.trim().split(" --hash=sha256:").skip(1).collect();
        assert!(
            digests.len() == 2 && digests.iter().all(|digest| digest.len() == 64),
            "{line}"
        );
    }

    #[test]
    fn the_linker_gets_what_rustc_gives_but_for_other_linkers() {
        let text = script(Path::new("/bin/echo"), Path::new("/tmp"), Arch::Aarch64);
        let output = Command::new("sh")
            .args([
                "-c",
                &text,
                "link",
                "-fuse-ld=lld",
                "-B/a/gcc-ld",
                "-o",
                "an out",
                "-lgcc_s",
                "-lc",
            ])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            format!("cc -target aarch64-linux-gnu.{GLIBC} -o an out -lunwind -lc\n")
        );
    }
}
