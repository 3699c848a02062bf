//! The files that are installed, as they lie below /usr or /usr/local.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::licences;
use crate::paths;

/// The name of the packages. `rdmatop` is that of another program.
pub(super) const PACKAGE: &str = "rdmatop-bpf";

/// Where each shell looks for completions of programs below its own prefix.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/rdmatop"),
    ("zsh", "share/zsh/site-functions/_rdmatop"),
    ("fish", "share/fish/vendor_completions.d/rdmatop.fish"),
];

/// Lays all files into `dir`. `native` are the words that run a program of the same source here: it writes
/// its pages.
pub(super) fn lay(dir: &Path, program: &Path, native: &[OsString], triple: &str) -> Result<()> {
    let native = || {
        let mut command = Command::new(&native[0]);
        command.args(&native[1..]);
        command
    };
    let bin = dir.join("bin/rdmatop");
    create_parent(&bin)?;
    fs::copy(program, &bin).with_context(|| format!("cannot copy {}", program.display()))?;
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
        let text = fs::read(paths::repo().join(file)).with_context(|| format!("cannot read {file}"))?;
        write(&doc.join(file), &text)?;
    }
    write(
        &doc.join("THIRD-PARTY"),
        licences::of_dependencies(triple)?.as_bytes(),
    )
}

/// Writes a file, and the directories that it lies in.
pub(super) fn write(file: &Path, content: &[u8]) -> Result<()> {
    create_parent(file)?;
    fs::write(file, content).with_context(|| format!("cannot write {}", file.display()))
}

fn create_parent(file: &Path) -> Result<()> {
    let dir = file.parent().context("a file without a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

/// Compresses a file in its place, without its name and time in the result.
pub(super) fn compress(file: &Path) -> Result<()> {
    said_by(
        Command::new("gzip")
            .args(["-9", "--no-name", "--force"])
            .arg(file),
    )
    .map(drop)
}

/// What a command prints; an error if it fails.
pub(super) fn said_by(command: &mut Command) -> Result<Vec<u8>> {
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
