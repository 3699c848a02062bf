//! The lab's kernels: which there are, fetched as Debian packages, unpacked into the cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::apt::{self, PrivateApt};
use crate::{paths, step};

/// A kernel the lab knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Series {
    /// The name users say.
    pub(crate) name: &'static str,
    /// The Debian suite it comes from.
    pub(crate) suite: &'static str,
    /// Versions that count; `None`: whatever the suite's newest is, for unstable moves on.
    filter: Option<&'static str>,
}

/// All kernels of the lab, oldest first.
pub(crate) const ALL: [Series; 4] = [
    Series {
        name: "5.10",
        suite: "bullseye",
        filter: Some("5.10"),
    },
    Series {
        name: "6.1",
        suite: "bookworm",
        filter: Some("6.1"),
    },
    Series {
        name: "6.12",
        suite: "trixie",
        filter: Some("6.12"),
    },
    Series {
        name: "7.2",
        suite: "unstable",
        filter: None,
    },
];

/// Finds a kernel by version (`6.12`) or suite (`trixie`, `sid`).
pub(crate) fn find(name: &str) -> Result<Series> {
    let by_name = ALL
        .into_iter()
        .find(|series| series.name == name || series.suite == name);
    match by_name {
        Some(series) => Ok(series),
        None if name == "sid" => Ok(ALL[3]),
        None => {
            let names: Vec<&str> = ALL.iter().map(|series| series.name).collect();
            bail!(
                "no kernel `{name}` in the lab: choose one of {}",
                names.join(", ")
            )
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The version as `uname -r` gives it.
    pub(crate) release: String,
    /// Its directory in the cache.
    pub(crate) dir: PathBuf,
}

impl Kernel {
    /// The boot image.
    pub(crate) fn image(&self) -> PathBuf {
        self.dir.join("vmlinuz")
    }

    /// The module tree, `lib/modules/RELEASE`.
    pub(crate) fn modules(&self) -> PathBuf {
        self.dir.join("lib/modules").join(&self.release)
    }
}

/// The lab's directory in the cache.
pub(crate) fn cache() -> PathBuf {
    paths::cache().join("lab")
}

fn cached(series: Series) -> Option<Kernel> {
    let dir = cache().join("kernels").join(series.name);
    // The marker is written last, before the directory gets its name: it vouches for the rest.
    let release = fs::read_to_string(dir.join("release")).ok()?.trim().to_owned();
    Some(Kernel { release, dir })
}

/// Whether `series` is in the cache.
pub(crate) fn is_cached(series: Series) -> bool {
    cached(series).is_some()
}

/// Returns the kernel, fetching it first if it is not in the cache.
pub(crate) fn ensure(series: Series) -> Result<Kernel> {
    if let Some(kernel) = cached(series) {
        return Ok(kernel);
    }
    let cache = cache();
    fs::create_dir_all(&cache).with_context(|| format!("cannot create the cache {}", cache.display()))?;
    let lock_path = cache.join(format!("{}.lock", series.name));
    let lock = File::create(&lock_path).with_context(|| format!("cannot create {}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        eprintln!(
            "lab: another process is fetching Linux {}; waiting for it",
            series.name
        );
        lock.lock()
            .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    }
    // The other process may have done it meanwhile.
    match cached(series) {
        Some(kernel) => Ok(kernel),
        None => fetch(series),
    }
}

fn fetch(series: Series) -> Result<Kernel> {
    let title = format!("lab: Linux {} (Debian {})", series.name, series.suite);
    let sources = apt::machine_sources(Path::new("/etc/apt"));
    let Some(mirror) = apt::choose_mirror(&sources) else {
        bail!(
            "{title}: no Debian archive among this machine's apt sources; the lab takes its kernels from there"
        );
    };
    for (uri, suite) in apt::candidates(&mirror, series.suite) {
        match fetch_from(series, &title, &uri, &suite) {
            Ok(kernel) => return Ok(kernel),
            Err(error) => eprintln!("{error:#}"),
        }
    }
    bail!(
        "{title} cannot be had: with a network that has a Debian archive, `cargo xtask lab fetch --kernel {}` fetches it",
        series.name
    )
}

fn fetch_from(series: Series, title: &str, uri: &str, suite: &str) -> Result<Kernel> {
    let work = cache().join("apt").join(format!("{suite}-{}", series.name));
    let _ = fs::remove_dir_all(&work);
    let apt = PrivateApt::new(work.clone(), uri, suite).with_context(|| title.to_owned())?;
    apt.update(&format!("{title}: package lists of {suite}"))?;
    let names = apt.search("^linux-(image|binary|modules|base)-[0-9].*-amd64$")?;
    let names = names.iter().map(String::as_str);
    let Some(picked) = apt::pick_kernel(&names, series.filter) else {
        bail!(
            "{title}: suite {suite} of {uri} has no linux-image-{}*-amd64",
            series.filter.unwrap_or_default()
        );
    };
    let files = apt.download(
        &format!("{title}: download {}", picked.packages.join(" ")),
        &picked.packages,
    )?;
    let kernel = unpack(series, title, &picked.release, &files)?;
    let _ = fs::remove_dir_all(&work);
    Ok(kernel)
}

fn unpack(series: Series, title: &str, release: &str, files: &[PathBuf]) -> Result<Kernel> {
    let parent = cache().join("kernels");
    let dir = parent.join(format!("{}.new", series.name));
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    for file in files {
        step::run(
            &format!("{title}: unpack"),
            Command::new("dpkg").arg("-x").arg(file).arg(&root),
        )?;
    }
    let first_of = |candidates: [String; 2]| {
        let found = candidates
            .iter()
            .map(|path| root.join(path))
            .find(|path| path.exists());
        found.with_context(|| format!("the package has neither {} nor {}", candidates[0], candidates[1]))
    };
    let image = first_of([
        format!("boot/vmlinuz-{release}"),
        format!("usr/lib/modules/{release}/vmlinuz"),
    ])?;
    fs::copy(&image, dir.join("vmlinuz")).with_context(|| format!("cannot copy {}", image.display()))?;
    let modules = first_of([
        format!("lib/modules/{release}"),
        format!("usr/lib/modules/{release}"),
    ])?;
    fs::create_dir_all(dir.join("lib/modules"))?;
    fs::rename(&modules, dir.join("lib/modules").join(release))
        .with_context(|| format!("cannot move {}", modules.display()))?;
    fs::remove_dir_all(&root)?;
    let depmod = paths::find_tool(&["depmod"]).context("no depmod: `apt-get install kmod`")?;
    step::run(
        &format!("{title}: depmod"),
        Command::new(depmod).arg("-b").arg(&dir).arg(release),
    )?;
    fs::write(dir.join("release"), release)?;
    let final_dir = parent.join(series.name);
    let _ = fs::remove_dir_all(&final_dir);
    fs::rename(&dir, &final_dir).with_context(|| format!("cannot rename {}", dir.display()))?;
    Ok(Kernel {
        release: release.to_owned(),
        dir: final_dir,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_by_version_and_by_suite() {
        assert_eq!(find("6.12").unwrap().suite, "trixie");
        assert_eq!(find("bullseye").unwrap().name, "5.10");
        assert_eq!(find("sid").unwrap().suite, "unstable");
        assert!(find("4.19").unwrap_err().to_string().contains("6.12"));
    }
}
