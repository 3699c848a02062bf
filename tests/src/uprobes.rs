//! Programs with probes on them (`--uprobes`): how to ask for the probes, and where they are.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::{
    child::Child,
    snapshot::Row,
    traffic::{Traffic, path},
};

/// Under emulation a hit costs ten times as much as on a machine.
pub const ARGS: [&str; 3] = ["--uprobes", "--uprobe-limit", "100000"];
/// The kernel side leaves SoftRoCE to the probes.
pub const ENV: [(&str, &str); 1] = [("RDMATOP_DATAPATHS", "0")];
/// How long probes may take until they stand.
pub const ATTACHED: Duration = Duration::from_mins(2);

/// A QP that stands before rdmatop starts, so that its functions are probed before others post.
pub fn standing() -> Result<Traffic> {
    let idle = Traffic::start("idle-qps", &["--qps", "1", "--processes", "1", "--state", "rts"])?;
    idle.ready()?;
    Ok(idle)
}

/// A file, by device and inode: in another mount namespace its name is another one.
pub type File = (u64, u64);

/// The identity of the file at a path.
pub fn identity(path: &Path) -> Result<File> {
    let file = fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// What a process has open.
fn files(pid: u32) -> impl Iterator<Item = PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.into_iter().flatten().flatten().map(|entry| entry.path())
}

/// How many functions of files of this name an rdmatop probes: it keeps the file open for each.
pub fn probed(rdmatop: u32, name: &str) -> usize {
    let targets = files(rdmatop).filter_map(|file| fs::read_link(file).ok());
    targets
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

/// How many functions of this file it probes.
pub fn probed_in(rdmatop: u32, file: File) -> usize {
    let opened = files(rdmatop).filter_map(|file| fs::metadata(file).ok());
    opened.filter(|open| (open.dev(), open.ino()) == file).count()
}

/// The library of SoftRoCE's provider that a program has mapped.
pub fn library(pid: u32) -> Result<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let path = maps
        .split_whitespace()
        .find(|word| word.starts_with('/') && word.contains("librxe"));
    Ok(path.with_context(|| format!("no librxe: {maps}"))?.into())
}

/// A program in a mount namespace where the provider's library is a file of its own.
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

/// The total of a counter, which must be known.
pub fn total(row: Row<'_>, key: &str) -> Result<u64> {
    row.field(key)["total"]
        .as_u64()
        .with_context(|| format!("no total of {key}: {row:?}"))
}
