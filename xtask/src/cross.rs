//! What cargo needs to build for another architecture: Debian's cross compiler, and the libraries in the root
//! directory of that architecture's guests.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::arch::Arch;
use crate::lab::root;
use crate::{paths, setup, step};

/// Debian's packages of the compiler for aarch64.
pub(crate) const COMPILER: &[&str] = &["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];

/// Installs what compiles for `arch`, which is not x86-64, where it is missing.
pub(crate) fn install(arch: Arch) -> Result<()> {
    let compiler = ["compile the tests for aarch64"].map(|why| (why, COMPILER));
    setup::packages(&compiler, false, true)?;
    standard_library(arch)
}

/// Prepares `cargo` to build for `arch`, installing what is missing; does nothing for x86-64.
pub(crate) fn prepare(cargo: &mut Command, arch: Arch) -> Result<()> {
    if arch == Arch::X86_64 {
        return Ok(());
    }
    install(arch)?;
    let triple = arch.triple();
    let dir = paths::target().join("cross");
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let tool = |name: &str| format!("{}-linux-gnu-{name}", arch.name());
    let cc = dir.join(tool("cc"));
    let text = script(&tool("gcc"), &root::ensure(arch)?, arch);
    // Written only when its content changes: the tests' build script checks only the path, and other builds
    // may be using the file.
    if fs::read_to_string(&cc).ok().as_deref() != Some(&*text) {
        fs::write(&cc, text).with_context(|| format!("cannot write {}", cc.display()))?;
        fs::set_permissions(&cc, fs::Permissions::from_mode(0o755))?;
    }
    let linker = format!(
        "CARGO_TARGET_{}_LINKER",
        triple.replace('-', "_").to_ascii_uppercase()
    );
    let variables: [(&str, OsString); 3] = [
        (&linker, cc.clone().into()),
        // tests/build.rs reads these two variables.
        ("CC", cc.into()),
        ("AR", tool("ar").into()),
    ];
    cargo.envs(variables).args(["--target", triple]);
    Ok(())
}

/// Has rustup install Rust's standard library for `arch`, if it is not there.
pub(crate) fn standard_library(arch: Arch) -> Result<()> {
    let triple = arch.triple();
    let sysroot = step::run(
        "ask rustc for its place",
        Command::new("rustc").args(["--print", "sysroot"]),
    )?;
    if Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(triple)
        .is_dir()
    {
        return Ok(());
    }
    step::run(
        &format!("install Rust's standard library for {triple}"),
        Command::new("rustup").args(["target", "add", triple]),
    )
    .with_context(|| format!("rustc has no standard library for {triple}"))?;
    Ok(())
}

/// The script of the compiler: it searches the guests' headers after its own, and links the guests'
/// libraries. Some of these need newer libc symbols than this machine has, hence the linker option.
fn script(gcc: &str, root: &Path, arch: Arch) -> String {
    format!(
        "#!/bin/sh\nexec {gcc} -idirafter '{root}/usr/include' -L'{libraries}' -Wl,--allow-shlib-undefined \"$@\"\n",
        root = root.display(),
        libraries = root::libraries(root, arch).display(),
    )
}

/// Returns the words to put before a program of `arch` to run it here; none if it is native.
pub(crate) fn runner(arch: Arch) -> Result<Vec<OsString>> {
    if arch.name() == env::consts::ARCH {
        return Ok(Vec::new());
    }
    Ok(vec![
        root::emulator(arch)?.into(),
        "-L".into(),
        root::ensure(arch)?.into(),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_gets_its_arguments_and_the_roots_libraries() {
        let text = script("echo", Path::new("/a root"), Arch::Aarch64);
        let output = Command::new("sh")
            .args(["-c", &text, "cc", "-o", "an out"])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "-idirafter /a root/usr/include -L/a root/usr/lib/aarch64-linux-gnu -Wl,--allow-shlib-undefined -o an out\n"
        );
    }

    #[test]
    fn this_machine_s_programs_run_as_they_are() {
        if Arch::X86_64.is_here() {
            assert!(runner(Arch::X86_64).unwrap().is_empty());
        }
    }
}
