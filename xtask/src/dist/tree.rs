//! The tree of installed files, as it lies below /usr or /usr/local.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{crates::Crate, licences};
use crate::paths;

/// The name of the packages. `rdmatop` is taken by another program.
pub(super) const PACKAGE: &str = "rdmatop-bpf";

/// Where each shell looks for completions of programs of the same prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/rdmatop"),
    ("zsh", "share/zsh/site-functions/_rdmatop"),
    ("fish", "share/fish/vendor_completions.d/rdmatop.fish"),
];

/// Where rdmatop looks for the traffic programs below its own prefix.
const TRAFFIC: &str = "lib/rdmatop";

/// Where systemd looks for units below /usr and /usr/local.
const UNITS: &str = "lib/systemd/system";

/// The units, which a package stops and disables when it goes.
pub(super) const SYSTEMD: [&str; 3] = [
    "rdmatop-check.service",
    "rdmatop-check.timer",
    "rdmatop-lab.service",
];

/// The inputs of [`lay`].
pub(super) struct Parts<'a> {
    /// rdmatop.
    pub(super) program: &'a Path,
    /// The words that run a program of the same source here, which writes the man pages and completions.
    pub(super) native: &'a [OsString],
    /// The directory of the traffic programs.
    pub(super) traffic: &'a Path,
    /// The crates that the program is built from.
    pub(super) crates: &'a [Crate],
}

/// Writes all files of the tree into `dir`.
pub(super) fn lay(dir: &Path, parts: &Parts<'_>) -> Result<()> {
    let native = || {
        let mut command = Command::new(&parts.native[0]);
        command.args(&parts.native[1..]);
        command
    };
    copy(parts.program, &dir.join("bin/rdmatop"))?;
    for file in files(parts.traffic)? {
        copy(
            &file,
            &dir.join(TRAFFIC).join(file.file_name().unwrap_or_default()),
        )?;
    }
    for unit in SYSTEMD {
        copy(
            &paths::repo().join("deploy/systemd").join(unit),
            &dir.join(UNITS).join(unit),
        )?;
    }
    let man = dir.join("share/man/man1");
    fs::create_dir_all(&man).with_context(|| format!("cannot create {}", man.display()))?;
    said_by(native().args(["man", "--out-dir"]).arg(&man))?;
    for page in fs::read_dir(&man)? {
        compress(&page?.path())?;
    }
    for (shell, file) in COMPLETIONS {
        write(&dir.join(file), &said_by(native().args(["completions", shell]))?)?;
    }
    let doc = dir.join("share/doc").join(PACKAGE);
    for file in [
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "LICENSE",
        "LICENSE-MIT",
        "LICENSE-APACHE",
    ] {
        let mut text =
            fs::read_to_string(paths::repo().join(file)).with_context(|| format!("cannot read {file}"))?;
        if file == "README.md" {
            text = says_where_pages_are(&text);
        }
        write(&doc.join(file), text.as_bytes())?;
    }
    write(
        &doc.join("THIRD-PARTY"),
        licences::of_dependencies(parts.crates)?.as_bytes(),
    )
}

/// Adds to the README, below its heading, why its links lead nowhere where it is installed.
fn says_where_pages_are(readme: &str) -> String {
    let (heading, rest) = readme.split_once('\n').unwrap_or((readme, ""));
    format!(
        "{heading}\n\nThe source of version {} has what this page refers to and a package has not: docs, deploy, examples, \
         ARCHITECTURE.md and CONTRIBUTING.md.\n{rest}",
        super::VERSION
    )
}

/// Writes a file and creates its parent directories.
pub(crate) fn write(file: &Path, content: &[u8]) -> Result<()> {
    create_parent(file)?;
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// Returns the entries of a directory, sorted by name.
pub(super) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    Ok(files)
}

fn create_parent(file: &Path) -> Result<()> {
    let dir = file.parent().context("a file without a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// Compresses a file in place, without its name and time.
pub(super) fn compress(file: &Path) -> Result<()> {
    said_by(
        Command::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .arg(file),
    )
    .map(drop)
}

/// Returns a command's output; an error if the command fails.
pub(crate) fn said_by(command: &mut Command) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_installed_readme_says_where_the_pages_are_that_it_refers_to() {
        let readme = fs::read_to_string(paths::repo().join("README.md")).unwrap();
        let installed = says_where_pages_are(&readme);
        let note = installed.lines().nth(2).unwrap();
        assert!(note.contains(super::super::VERSION), "{note}");
        let shipped = ["README.md", "CHANGELOG.md", "SECURITY.md", "LICENSE"];
        let links = installed
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split([')', '#']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            let (first, _) = link.split_once('/').unwrap_or((link, ""));
            assert!(
                shipped.contains(&link) || note.contains(first),
                "{link} in {note}"
            );
        }
        assert!(installed.ends_with(readme.split_once('\n').unwrap().1));
    }

    #[test]
    fn no_unit_is_left_out() {
        let mut there = files(&paths::repo().join("deploy/systemd")).unwrap();
        there.retain(|file| file.extension().is_none_or(|end| end != "md"));
        let names = there.iter().filter_map(|file| file.file_name()?.to_str());
        assert_eq!(names.collect::<Vec<_>>(), SYSTEMD);
    }
}
