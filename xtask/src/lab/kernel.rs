//! The lab's kernels: which there are, fetched as Debian packages, unpacked into the cache.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::archive;
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

/// The kernel of that name, or all of them for `all`.
pub(crate) fn named(name: &str) -> Result<Vec<Series>> {
    if name == "all" {
        return Ok(ALL.to_vec());
    }
    Ok(vec![find(name)?])
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

/// The kernel, if it is in the cache.
pub(crate) fn cached(series: Series) -> Option<Kernel> {
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
    let what = format!("Linux {}", series.name);
    archive::once(series.name, &what, || cached(series), || fetch(series))
}

fn fetch(series: Series) -> Result<Kernel> {
    let title = format!("lab: Linux {} (Debian {})", series.name, series.suite);
    archive::from_any(series.suite, series.name, &title, |apt| {
        fetch_from(series, &title, apt)
    })
}

fn fetch_from(series: Series, title: &str, apt: &PrivateApt) -> Result<Kernel> {
    let names = apt.search("^linux-(image|binary|modules|base)-[0-9].*-amd64$")?;
    let names = names.iter().map(String::as_str);
    let Some(picked) = apt::pick_kernel(&names, series.filter, apt::compare_versions) else {
        bail!(
            "{title}: no linux-image-{}*-amd64",
            series.filter.unwrap_or_default()
        );
    };
    let files = apt.download(
        &format!("{title}: download {}", picked.packages.join(" ")),
        &picked.packages,
    )?;
    unpack(series, title, &picked.release, &files)
}

fn unpack(series: Series, title: &str, release: &str, files: &[PathBuf]) -> Result<Kernel> {
    let parent = cache().join("kernels");
    let dir = parent.join(format!("{}.new", series.name));
    let root = dir.join("root");
    let _ = fs::remove_dir_all(&dir);
    archive::unpack(title, files, &root)?;
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
