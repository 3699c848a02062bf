//! Shared by the fetching of kernels, their headers and QEMU: one process fetches while the others wait, and
//! several archives are tried.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::kernel;
use crate::apt::{self, Mirror, PrivateApt};
use crate::{arch::Arch, step};

/// Returns what `have` finds in the cache, or else the result of `make`. Only one process makes it; the
/// others wait for it.
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
    // Another process may have made it in the meantime.
    have().map_or_else(make, Ok)
}

/// Calls `take` with the archives of the Debian suite `suite` for `arch`, one after the other, until one has
/// all packages that it wants.
///
/// `job` names the directory of the private apt, so that two jobs for one suite do not share it.
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

/// Unpacks packages into the directory `root`, which is emptied first.
pub(crate) fn unpack(title: &str, files: &[PathBuf], root: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(root);
    fs::create_dir_all(root).with_context(|| format!("cannot create {}", root.display()))?;
    // One shell for all packages, because dpkg unpacks one at a time.
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

/// Returns a function that finds the first of two files or directories that an unpacked package has.
pub(crate) fn first_of(root: &Path) -> impl Fn([String; 2]) -> Result<PathBuf> {
    move |[one, other]| {
        let mut found = [&one, &other].into_iter().map(|path| root.join(path));
        found
            .find(|path| path.exists())
            .with_context(|| format!("the package has neither {one} nor {other}"))
    }
}
