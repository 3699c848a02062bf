//! Installs, upgrades, removes and purges the packages in fresh Debian roots; nothing may be left behind.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::tree::{self, PACKAGE, said_by};
use super::{VERSION, deb, rpm};
use crate::lab::root;
use crate::{apt, arch::Arch, paths, setup, step};

/// The suites to test, oldest first.
const SUITES: [&str; 4] = ["bullseye", "bookworm", "trixie", "unstable"];

/// The script that runs in each root.
const SCRIPT: &str = include_str!("roots.sh");

/// The script that runs here and changes a root by this machine's rpm.
const RPM_SCRIPT: &str = include_str!("roots_rpm.sh");

/// A version that sorts after the current one.
const NEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "+next");

/// Fails if root directories cannot be made here, or programs of `arch` cannot be started in them.
pub(super) fn possible(arch: Arch) -> Result<()> {
    ensure!(setup::is_root(), "--roots changes roots, which root can alone");
    ensure!(
        paths::find_tool(&["mmdebstrap"]).is_some(),
        "--roots makes roots with mmdebstrap: apt-get install mmdebstrap"
    );
    emulated(arch, Emulation::of).map(drop)
}

/// Tests the packages of `arch` in all suites. Programs of another machine run in emulation there.
pub(super) fn try_all(arch: Arch, out: &Path, work: &Path, epoch: u64) -> Result<()> {
    let _emulation = emulated(arch, Emulation::of)?;
    let package = out.join(deb::file_name(VERSION, arch));
    let newer = work.join(deb::file_name(NEXT, arch));
    let tree = work.join(format!("{PACKAGE}-{VERSION}-{}", arch.name()));
    deb::make(&tree, arch, NEXT, epoch, &newer)?;
    rpm::make(&tree, arch, NEXT, epoch, work)?;
    let rpms = [
        out.join(rpm::file_name(VERSION, arch)),
        work.join(rpm::file_name(NEXT, arch)),
    ];
    let other = other(work)?;
    let tarball = out.join(format!("{PACKAGE}-{VERSION}-{}.tar.gz", arch.name()));
    let mut failed = Vec::new();
    for suite in SUITES {
        let tried = fresh(suite, arch, work).and_then(|root| {
            let said = in_root(&root, [&package, &newer, &other], &tarball)?;
            by_rpm(&root, &rpms)?;
            Ok(said)
        });
        match tried {
            Ok(said) => println!(
                "{suite}, {}: both packages and the tarball installed, upgraded, removed; {}",
                arch.name(),
                said.lines().next().unwrap_or_default()
            ),
            Err(error) => {
                println!("{suite}, {}: {error:#}", arch.name());
                failed.push(suite);
            }
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("the package for {} failed in {}", arch.name(), failed.join(", "))
}

/// Makes an emulation of `arch`, which programs of this machine do not need.
fn emulated<E>(arch: Arch, make: impl FnOnce(Arch) -> Result<E>) -> Result<Option<E>> {
    if arch.is_here() {
        return Ok(None);
    }
    make(arch).map(Some).with_context(|| {
        format!(
            "--roots starts programs of {} here, which needs QEMU and a kernel that lets root register it in \
             binfmt_misc (on the host, if this is a container): mend that, or leave them out with --arch {}",
            arch.name(),
            env::consts::ARCH
        )
    })
}

/// Has the kernel start QEMU for programs of another machine, in whatever root directory, until it is
/// dropped.
struct Emulation(PathBuf);

impl Emulation {
    fn of(arch: Arch) -> Result<Self> {
        const FORMATS: &str = "/proc/sys/fs/binfmt_misc";
        let emulator = root::emulator(arch)?;
        let register = Path::new(FORMATS).join("register");
        if !register.exists() {
            said_by(Command::new("mount").args(["-t", "binfmt_misc", "binfmt_misc", FORMATS]))?;
        }
        let name = format!("rdmatop-{}", arch.name());
        let entry = Path::new(FORMATS).join(&name);
        let _ = fs::write(&entry, "-1");
        let number = match arch {
            Arch::X86_64 => r"\x3e",
            Arch::Aarch64 => r"\xb7",
        };
        // An ELF file of 64 bits and little endian, a program (ET_EXEC 2, ET_DYN 3), and the machine's
        // number.
        let (magic, mask) = (
            format!(r"\x7fELF\x02\x01\x01{}\x02\x00{number}\x00", r"\x00".repeat(9)),
            format!(r"{}\x00{}\xfe\xff\xff\xff", r"\xff".repeat(7), r"\xff".repeat(8)),
        );
        // F: the kernel opens QEMU now, so that it need not be in the root.
        let line = format!(":{name}:M::{magic}:{mask}:{}:F", emulator.display());
        fs::write(&register, line).context("the kernel takes no emulator (binfmt_misc)")?;
        Ok(Self(entry))
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "-1");
    }
}

/// Makes an empty package named like the other program called rdmatop.
fn other(work: &Path) -> Result<PathBuf> {
    let dir = work.join("other.deb.d");
    let control = "Package: rdmatop\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a test\n";
    tree::write(&dir.join("DEBIAN/control"), control.as_bytes())?;
    let file = work.join("other.deb");
    said_by(
        Command::new("dpkg-deb")
            .args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&dir)
            .arg(&file),
    )?;
    Ok(file)
}

/// Returns a fresh root directory of a suite, unpacked from a tarball in the cache.
fn fresh(suite: &str, arch: Arch, work: &Path) -> Result<PathBuf> {
    let name = format!("root-{suite}-{}", arch.debian());
    let tarball = paths::cache().join(format!("{name}.tar"));
    if !tarball.is_file() {
        let mirror = apt::Mirror::of_machine(&paths::cache().join("apt/lists"))?
            .context("no Debian archive among this machine's apt sources")?;
        let new = paths::cache().join(format!("{name}.new.tar"));
        let mut make = Command::new("mmdebstrap");
        // As in xtask/src/apt.rs: the signature of a mirror is checked but not its age.
        make.args([
            "--aptopt=Acquire::Check-Valid-Until \"false\"",
            "--variant=minbase",
            // It wants another package to find out what `Emulation` has seen to.
            "--skip=check/qemu",
            "--architectures",
            arch.debian(),
            suite,
        ])
        .arg(&new)
        .arg(&mirror.main);
        step::run(
            &format!("dist: make a root of {suite} for {}", arch.debian()),
            &mut make,
        )
        .context("Debian: apt-get install mmdebstrap")?;
        fs::rename(&new, &tarball).with_context(|| format!("cannot rename {}", new.display()))?;
    }
    let dir = work.join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    said_by(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(&tarball)
            .arg("--directory")
            .arg(&dir),
    )?;
    Ok(dir)
}

/// Runs the script in a root directory and returns its output.
fn in_root(root: &Path, packages: [&PathBuf; 3], tarball: &Path) -> Result<String> {
    let tried = root.join("try");
    fs::create_dir_all(&tried).with_context(|| format!("cannot create {}", tried.display()))?;
    // The script mounts /proc for a while, which goes with it.
    let mut chroot = Command::new("unshare");
    chroot
        .args(["--mount", "chroot"])
        .arg(root)
        .args(["sh", "-c", SCRIPT, "try"]);
    for (file, name) in packages.iter().zip(["this.deb", "next.deb", "other.deb"]) {
        fs::copy(file, tried.join(name)).with_context(|| format!("cannot copy {}", file.display()))?;
        chroot.arg(format!("/try/{name}"));
    }
    fs::copy(tarball, tried.join("this.tar.gz"))
        .with_context(|| format!("cannot copy {}", tarball.display()))?;
    chroot.args([&format!("{NEXT}-1"), "/try/this.tar.gz"]);
    passed(&mut chroot)
}

/// Runs the script of the RPM packages: this version and a newer one.
fn by_rpm(root: &Path, packages: &[PathBuf; 2]) -> Result<()> {
    let mut script = Command::new("sh");
    script.args(["-c", RPM_SCRIPT, "rpm"]).arg(root);
    passed(script.args(packages).arg(NEXT)).map(drop)
}

/// Returns what a script printed; an error has all of it.
fn passed(script: &mut Command) -> Result<String> {
    let output = script.output().context("cannot start a script")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "{}: {said}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(said)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn roots_of_a_machine_that_cannot_be_emulated_are_an_error() {
        for arch in [Arch::X86_64, Arch::Aarch64] {
            let made = emulated(arch, |_| Err::<(), _>(anyhow!("no QEMU")));
            if arch.is_here() {
                assert_eq!(made.unwrap(), None);
            } else {
                let said = format!("{:#}", made.unwrap_err());
                let remedy = format!("--arch {}", env::consts::ARCH);
                assert!(said.contains(&remedy) && said.ends_with("no QEMU"), "{said}");
            }
        }
    }

    #[test]
    fn the_scripts_are_shell() {
        for script in [SCRIPT, RPM_SCRIPT] {
            said_by(Command::new("sh").args(["-n", "-c", script])).unwrap();
        }
    }
}
