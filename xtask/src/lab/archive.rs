//! What kernels, their headers and QEMU have in common: one process fetches, the others wait, and an archive
//! is looked for in several places.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel;
use crate::apt::{self, Mirror, PrivateApt};
use crate::{arch::Arch, step};

/// Returns what `have` finds in the cache, else makes it with `make`: one process at a time, the others wait
/// for it.
pub(crate) fn once<T>(
    name: &str,
    what: &str,
    have: impl Fn() -> Option<T>,
    make: impl FnOnce() -> Result<T>,
) -> Result<T> {
    if let Some(there) = have() {
        return Ok(there);
    }
    let cache = kernel::cache();
    fs::create_dir_all(&cache).with_context(|| format!("cannot create the cache {}", cache.display()))?;
    let lock_path = cache.join(format!("{name}.lock"));
    let lock = File::create(&lock_path).with_context(|| format!("cannot create {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        eprintln!("lab: another process is fetching {what}; waiting for it");
        lock.lock()
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    }
    // The other process may have done it meanwhile.
    have().map_or_else(make, Ok)
}

/// Calls `take` with one archive of the Debian suite `suite` after the other, each with its packages for
/// `arch`, until one has all that it wants.
///
/// `job` names the private apt's directory, so that two jobs of one suite do not share it.
pub(crate) fn from_any<T>(
    arch: Arch,
    suite: &str,
    job: &str,
    title: &str,
    mut take: impl FnMut(&PrivateApt) -> Result<T>,
) -> Result<T> {
    let Some(mirror) = Mirror::of_machine(&kernel::cache().join("apt").join("lists"))? else {
        bail!("{title}: no Debian archive among this machine's apt sources, from which the lab takes it");
    };
    for (uri, suite) in apt::candidates(&mirror, suite) {
        let work = kernel::cache().join("apt").join(format!("{suite}-{job}"));
        let _ = fs::remove_dir_all(&work);
        let taken = PrivateApt::new(work.clone(), arch, &uri, &suite)
            .with_context(|| title.to_owned())
            .and_then(|apt| {
                apt.update(&format!("{title}: package lists of {suite}"))?;
                take(&apt).with_context(|| format!("suite {suite} of {uri}"))
            });
        let _ = fs::remove_dir_all(&work);
        match taken {
            Ok(taken) => return Ok(taken),
            Err(error) => eprintln!("{error:#}"),
        }
    }
    bail!(
        "{title} cannot be had: with a network that has a Debian archive, `cargo xtask lab fetch` fetches it"
    )
}

/// Unpacks packages into `root`, which is made anew.
pub(crate) fn unpack(title: &str, files: &[PathBuf], root: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
    // One step for all: dpkg takes one package at a time.
    let mut command = Command::new("sh");
    command
        .args([
            "-ec",
            "root=$1; shift; for deb do dpkg -x \"$deb\" \"$root\"; done",
            "sh",
        ])
        .arg(root)
        .args(files);
    step::run(&format!("{title}: unpack"), &mut command).map(drop)
}
