//! The root directory of guests of another architecture, whose programs this machine does not have: Debian
//! packages, unpacked into the cache. Their programs do not run here, so no package script has run.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{archive, kernel};
use crate::arch::Arch;
use crate::step;

/// The suite of the lab's own machines: tests expect its perftest and its rdma-core.
const SUITE: &str = "bookworm";

/// What guests need, and what the test programs are linked with.
const PACKAGES: &[&str] = &[
    "base-files",
    "base-passwd",
    "bash",
    "busybox-static",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "ibverbs-providers",
    "ibverbs-utils",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libc-bin",
    "libibverbs-dev",
    "librdmacm-dev",
    "login",
    "mawk",
    "mount",
    "ncurses-base",
    "perftest",
    "procps",
    "rdma-core",
    "rdmacm-utils",
    "sed",
    "strace",
    "tar",
    "tmux",
    "util-linux",
    "xz-utils",
    "zstd",
];

/// Directories that are links since Debian merged /usr; the packages of this suite still use both paths.
const MERGED: [&str; 3] = ["bin", "sbin", "lib"];

fn dir(arch: Arch) -> PathBuf {
    kernel::cache().join("roots").join(arch.name())
}

/// Returns the root if it is in the cache with exactly these packages.
pub(super) fn cached(arch: Arch) -> Option<PathBuf> {
    let dir = dir(arch);
    let has = fs::read_to_string(dir.join("packages")).ok()?;
    (has == PACKAGES.join("\n")).then(|| dir.join("root"))
}

/// Returns the root, fetched first if it is not in the cache.
pub(crate) fn ensure(arch: Arch) -> Result<PathBuf> {
    let name = format!("root-{}", arch.name());
    let title = format!("lab: programs of Debian {SUITE} for {}", arch.name());
    archive::once(
        &name,
        &title,
        || cached(arch),
        || {
            archive::from_any(arch, SUITE, &name, &title, |apt| {
                let files = apt.download_whole(&format!("{title}: download"), PACKAGES)?;
                let new = dir(arch).with_extension("new");
                let _ = fs::remove_dir_all(&new);
                unpack(&title, &files, &new.join("root"))?;
                complete(&new.join("root"))?;
                fs::write(new.join("packages"), PACKAGES.join("\n"))?;
                let _ = fs::remove_dir_all(dir(arch));
                fs::rename(&new, dir(arch)).with_context(|| format!("cannot rename {}", new.display()))
            })?;
            cached(arch).context("the root was fetched and is not there")
        },
    )
}

/// Unpacks packages but keeps links to directories.
fn unpack(title: &str, files: &[PathBuf], root: &Path) -> Result<()> {
    for name in MERGED {
        let target = Path::new("usr").join(name);
        fs::create_dir_all(root.join(&target))
            .with_context(|| format!("cannot create {}", root.display()))?;
        symlink(&target, root.join(name))?;
    }
    let mut command = Command::new("sh");
    command
        .args([
            "-ec",
            "root=$1; shift
             for deb do dpkg-deb --fsys-tarfile \"$deb\" | tar --extract --keep-directory-symlink --directory \"$root\"; done",
            "sh",
        ])
        .arg(root)
        .args(files);
    step::run(&format!("{title}: unpack"), &mut command).map(drop)
}

/// Does what the package scripts would do, as far as a guest needs it.
fn complete(root: &Path) -> Result<()> {
    for name in ["passwd", "group"] {
        let master = root.join(format!("usr/share/base-passwd/{name}.master"));
        fs::copy(&master, root.join("etc").join(name))
            .with_context(|| format!("cannot copy {}", master.display()))?;
    }
    fs::write(root.join("etc/hosts"), "127.0.0.1 localhost lab\n")?;
    for (link, target) in [("awk", "mawk"), ("sh", "dash"), ("which", "which.debianutils")] {
        let link = root.join("usr/bin").join(link);
        if fs::symlink_metadata(&link).is_err() {
            symlink(target, &link).with_context(|| format!("cannot make {}", link.display()))?;
        }
    }
    Ok(())
}

/// Returns the directory below `root` where the linker finds the libraries of a guest.
pub(crate) fn libraries(root: &Path, arch: Arch) -> PathBuf {
    root.join("usr/lib").join(format!("{}-linux-gnu", arch.name()))
}

/// Returns QEMU's user-mode emulator, which runs programs of such a root on this machine; it is fetched if it
/// is not in the cache.
pub(crate) fn emulator(arch: Arch) -> Result<PathBuf> {
    const NAME: &str = "qemu-user";
    let title = format!("lab: QEMU of Debian {SUITE} for single programs");
    let dir = kernel::cache().join(NAME);
    let program = dir.join(format!("usr/bin/qemu-{}-static", arch.name()));
    let have = || program.is_file().then(|| program.clone());
    archive::once(NAME, &title, have, || {
        archive::from_any(Arch::X86_64, SUITE, NAME, &title, |apt| {
            let files = apt.download(&format!("{title}: download"), &["qemu-user-static".to_owned()])?;
            let new = dir.with_extension("new");
            archive::unpack(&title, &files, &new)?;
            fs::rename(&new, &dir).with_context(|| format!("cannot rename {}", new.display()))
        })?;
        have().context("QEMU was fetched and is not there")
    })
}
