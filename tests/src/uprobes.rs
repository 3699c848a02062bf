//! Probes on programs (`--uprobes`): how to ask for them, and where they are.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    child::{Child, output},
    snapshot::Row,
    traffic::{Traffic, path},
};

/// The limit is high because under emulation a hit costs ten times as much as on real hardware.
pub const ARGS: [&str; 3] = ["--uprobes", "--uprobe-limit", "100000"];
/// Disables the kernel programs of SoftRoCE's data path, so that only probes count.
pub const ENV: [(&str, &str); 1] = [("RDMATOP_DATAPATHS", "0")];
/// How long it may take until probes are attached.
pub const ATTACHED: Duration = Duration::from_mins(2);

/// Starts a QP before rdmatop, so that its provider's functions are probed before others post.
pub fn standing() -> Result<Traffic> {
    let idle = Traffic::start("idle-qps", &["--qps", "1", "--processes", "1", "--state", "rts"])?;
    idle.ready()?;
    Ok(idle)
}

/// A file by device and inode, because its name differs in another mount namespace.
pub type File = (u64, u64);

/// The identity of the file at a path.
pub fn identity(path: &Path) -> Result<File> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Returns the open files of a process.
fn files(pid: u32) -> impl Iterator<Item = PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// Returns how many functions of files with this name an rdmatop probes: it has one open file for each.
pub fn probed(rdmatop: u32, name: &str) -> usize {
    let targets = files(rdmatop).filter_map(|file| fs::read_link(file).ok());
    targets
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

/// Returns how many functions of this file it probes.
pub fn probed_in(rdmatop: u32, file: File) -> usize {
    let opened = files(rdmatop).filter_map(|file| fs::metadata(file).ok());
    opened.filter(|open| (open.dev(), open.ino()) == file).count()
}

/// Returns the library of SoftRoCE's provider that a program has mapped.
pub fn library(pid: u32) -> Result<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let path = maps
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("librxe"));
    Ok(path.with_context(|| format!("no librxe: {maps}"))?.into())
}

/// Starts a program in a mount namespace where the provider's library is a separate file.
pub fn with_a_copy(library: &Path, copy: &Path, program: &str, args: &str) -> Result<Traffic> {
    fs::copy(library, copy)?;
    let script = format!(
        "mount --bind {} {} && exec {} {args}",
        copy.display(),
        library.display(),
        path(program)?.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    Ok(Traffic {
        child: Child::spawn(&mut command)?,
    })
}

/// Returns the total of a counter; fails if it is unknown.
pub fn total(row: Row<'_>, key: &str) -> Result<u64> {
    row.field(key)["total"]
        .as_u64()
        .with_context(|| format!("no total of {key}: {row:?}"))
}

/// Starts a program in a mount namespace where it finds the provider's very file under another name, which
/// ends with `-rdmav34.so` as libibverbs expects.
pub fn with_another_name(library: &Path, name: &Path, program: &str, args: &str) -> Result<Traffic> {
    const SUFFIX: &str = "-rdmav34.so";
    let file = format!("{}{SUFFIX}", name.display());
    let script = format!(
        "touch {file} && mount --bind {} {file} && RDMAV_DRIVERS={} exec {} {args}",
        library.display(),
        name.display(),
        path(program)?.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    Ok(Traffic {
        child: Child::spawn(&mut command)?,
    })
}

/// The system's libraries as two containers of one image have them: two overlays over the same files, which
/// have other devices in each.
#[derive(Debug)]
pub struct Overlays {
    mounts: Vec<PathBuf>,
}

impl Overlays {
    /// Lays one over this directory, with files of its own: they are on a file system that is mounted here,
    /// where the guest's root is on one of another machine.
    pub fn over(libraries: &Path) -> Result<Self> {
        let files = std::env::temp_dir().join("image");
        let mut overlays = Self { mounts: Vec::new() };
        fs::create_dir_all(&files)?;
        overlays.mount(&files, &["-t", "tmpfs", "none"])?;
        fs::create_dir_all(files.join("upper"))?;
        let copy = [libraries, &files.join("lower")];
        output(Command::new("cp").arg("-a").args(copy))?;
        overlays.lay(&files, libraries)?;
        let beside = overlays.beside();
        fs::create_dir_all(&beside)?;
        overlays.lay(&files, &beside)?;
        Ok(overlays)
    }

    /// Where the other one is.
    pub fn beside(&self) -> PathBuf {
        std::env::temp_dir().join("beside")
    }

    fn lay(&mut self, files: &Path, at: &Path) -> Result<()> {
        let files = files.display();
        let layers = format!("lowerdir={files}/upper:{files}/lower");
        self.mount(at, &["-t", "overlay", "-o", &layers, "overlay"])
    }

    fn mount(&mut self, at: &Path, args: &[&str]) -> Result<()> {
        output(Command::new("mount").args(args).arg(at))?;
        self.mounts.push(at.into());
        Ok(())
    }
}

impl Drop for Overlays {
    fn drop(&mut self) {
        for mount in self.mounts.iter().rev() {
            let _ = output(Command::new("umount").arg("-l").arg(mount));
        }
    }
}
