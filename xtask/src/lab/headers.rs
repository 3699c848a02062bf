//! The build tree of a lab kernel: Debian's header packages, unpacked into the cache and changed to work from
//! there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use super::kernel::{self, Kernel, Series};
use super::{archive, own_libc};
use crate::apt::PrivateApt;

/// What the modules of one kernel are built against.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    /// The directory for `make -C`.
    pub(super) tree: PathBuf,
    /// Debian's version of the kernel's packages, such as `6.12.107-1`.
    pub(super) version: String,
}

/// The directory of the headers of kernel `release`.
fn dir(release: &str) -> PathBuf {
    kernel::cache().join("headers").join(release)
}

fn cached(kernel: &Kernel) -> Option<Headers> {
    let dir = dir(&kernel.release);
    // The marker file is written last. It also names the directory, because files of the tree contain that
    // path: a cache that was moved is unpacked again.
    let marker = fs::read_to_string(dir.join("version")).ok()?;
    let (version, place) = marker.split_once('\n')?;
    (Path::new(place.trim_end()) == dir).then(|| Headers {
        tree: tree(&dir, &kernel.release),
        version: version.to_owned(),
    })
}

fn tree(dir: &Path, release: &str) -> PathBuf {
    dir.join("root/usr/src").join(format!("linux-headers-{release}"))
}

/// Whether the headers of `kernel` are in the cache.
pub(crate) fn is_cached(kernel: &Kernel) -> bool {
    cached(kernel).is_some()
}

/// Returns the headers of `kernel`; they are fetched if they are not in the cache.
pub(super) fn ensure(series: Series, kernel: &Kernel) -> Result<Headers> {
    let title = format!("lab: headers of Linux {}", kernel.release);
    archive::once(
        &format!("headers-{}", series.name),
        &title,
        || cached(kernel),
        || {
            archive::from_any(
                series.arch,
                series.suite,
                &format!("{}-headers", series.name),
                &title,
                |apt| fetch(series, kernel, &title, apt),
            )
        },
    )
}

/// Fetches the headers for a caller that does not use them itself.
pub(crate) fn fetch_if_missing(series: Series, kernel: &Kernel) -> Result<()> {
    ensure(series, kernel).map(drop)
}

fn fetch(series: Series, kernel: &Kernel, title: &str, apt: &PrivateApt) -> Result<Headers> {
    let packages = packages(apt, &kernel.release).with_context(|| {
        let old = kernel.dir.display();
        format!(
            "the archive may have moved on since Linux {} was fetched: `rm -r {old}` and `cargo xtask lab fetch --kernel {}` \
             fetch the kernel of today",
            kernel.release, series.name
        )
    })?;
    let files = apt.download(&format!("{title}: download"), &packages)?;
    let version = version(&files)?;
    let dir = dir(&kernel.release);
    ensure!(
        !dir.to_string_lossy().contains([' ', ':', '#', '$', '\'']),
        "{title}: the kernel's makefiles cannot work in {}: name another cache (RDMATOP_CACHE)",
        dir.display()
    );
    // Not unpacked elsewhere and renamed, because files of the tree contain their paths. The marker file
    // proves that it is complete.
    let _ = fs::remove_file(dir.join("version"));
    let root = dir.join("root");
    archive::unpack(title, &files, &root)?;
    relocate(&root, &tree(&dir, &kernel.release))?;
    own_libc::wrap(&root)?;
    fs::write(dir.join("version"), format!("{version}\n{}\n", dir.display()))?;
    cached(kernel).context("the headers were fetched and are not there")
}

/// Returns the packages of the build tree and the libraries that its tools need.
fn packages(apt: &PrivateApt, release: &str) -> Result<Vec<String>> {
    let main = format!("linux-headers-{release}");
    let mut packages: Vec<String> = apt
        .depends(&main)?
        .into_iter()
        .filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"))
        .collect();
    let Some(kbuild) = packages
        .iter()
        .find(|name| name.starts_with("linux-kbuild-"))
        .cloned()
    else {
        bail!("no package {main}");
    };
    let library = |name: &String| {
        ["libc6", "zlib1g", "libzstd1"].contains(&name.as_str()) || name.starts_with("libelf1")
    };
    let mut libraries: Vec<String> = apt.depends(&kbuild)?.into_iter().filter(library).collect();
    for name in libraries.clone() {
        if name.starts_with("libelf1") {
            libraries.extend(apt.depends(&name)?.into_iter().filter(library));
        }
    }
    packages.push(main);
    packages.extend(libraries);
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Returns the version of the header package among `files`.
fn version(files: &[PathBuf]) -> Result<String> {
    let named = |file: &&PathBuf| {
        file.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("linux-headers-"))
    };
    let file = files.iter().find(named).context("apt brought no headers")?;
    let output = Command::new("dpkg-deb")
        .arg("--field")
        .arg(file)
        .arg("Version")
        .output()
        .context("cannot start dpkg-deb")?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(!version.is_empty(), "{} has no version", file.display());
    Ok(version)
}

/// Corrects Debian's makefile, which names the other packages' directories as if installed.
fn relocate(root: &Path, tree: &Path) -> Result<()> {
    let makefile = tree.join("Makefile");
    let text =
        fs::read_to_string(&makefile).with_context(|| format!("cannot read {}", makefile.display()))?;
    let text = text.replace("/usr/src/", &format!("{}/usr/src/", root.display()));
    fs::write(&makefile, text).with_context(|| format!("cannot write {}", makefile.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_makefile_is_led_into_the_unpacked_tree() {
        let root = std::env::temp_dir().join(format!("rdmatop-headers-{}", std::process::id()));
        let tree = root.join("usr/src/linux-headers-7.2-amd64");
        fs::create_dir_all(&tree).unwrap();
        let text = "KBUILD_OUTPUT=/usr/src/linux-headers-7.2-amd64\ninclude /usr/src/linux-headers-7.2-common/Makefile\n";
        fs::write(tree.join("Makefile"), text).unwrap();
        relocate(&root, &tree).unwrap();
        let now = fs::read_to_string(tree.join("Makefile")).unwrap();
        let at = root.display();
        assert_eq!(
            now,
            format!(
                "KBUILD_OUTPUT={at}/usr/src/linux-headers-7.2-amd64\n\
                 include {at}/usr/src/linux-headers-7.2-common/Makefile\n"
            )
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
