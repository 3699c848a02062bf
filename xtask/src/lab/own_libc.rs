//! Runs Debian's kernel build tools (fixdep, modpost, objtool) with the C library of their suite.
//!
//! The machine's may be older than the one they are linked with: those of trixie do not start on bookworm.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const LOADER: &str = "ld-linux-x86-64.so.2";

/// Puts a script in front of each program of the `linux-kbuild` package in `root`, which also has the C
/// library.
pub(super) fn wrap(root: &Path) -> Result<()> {
    let libraries: Vec<PathBuf> = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|dir| root.join(dir))
        .into_iter()
        .filter(|dir| dir.is_dir())
        .collect();
    let loader = libraries
        .iter()
        .map(|dir| dir.join(LOADER))
        .find(|file| file.is_file());
    let loader = loader.with_context(|| format!("no {LOADER} in {}", root.display()))?;
    let mut programs = Vec::new();
    for entry in list(&root.join("usr/lib"))? {
        if name(&entry).starts_with("linux-kbuild-") {
            find(&entry, &mut programs)?;
        }
    }
    for program in programs {
        let real = with_suffix(&program);
        fs::rename(&program, &real).with_context(|| format!("cannot rename {}", program.display()))?;
        fs::write(&program, script(&loader, &libraries))?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// `$0` is the program's path, because make starts the tools by path. A tool that looks for others in its own
/// directory still finds them.
fn script(loader: &Path, libraries: &[PathBuf]) -> String {
    let libraries: Vec<String> = libraries.iter().map(|dir| dir.display().to_string()).collect();
    format!(
        "#!/bin/sh\nexec '{}' --library-path '{}' --argv0 \"$0\" \"$0.elf\" \"$@\"\n",
        loader.display(),
        libraries.join(":")
    )
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".elf");
    name.into()
}

/// Collects the programs with a loader below `dir`. Links are skipped, because they lead to one of these.
fn find(dir: &Path, programs: &mut Vec<PathBuf>) -> Result<()> {
    for entry in list(dir)? {
        let meta = fs::symlink_metadata(&entry)?;
        if meta.is_dir() {
            find(&entry, programs)?;
        } else if meta.is_file() && meta.permissions().mode() & 0o111 != 0 && is_dynamic(&entry)? {
            programs.push(entry);
        }
    }
    Ok(())
}

/// Whether a file is ELF and names a loader, which is near its beginning.
fn is_dynamic(path: &Path) -> Result<bool> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(4096).read_to_end(&mut head)?;
    Ok(head.starts_with(b"\x7fELF")
        && head
            .windows(LOADER.len())
            .any(|window| window == LOADER.as_bytes()))
}

fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_wrapped_program_runs_with_the_other_library_and_keeps_its_arguments() {
        let root = std::env::temp_dir().join(format!("rdmatop-wrap-{}", std::process::id()));
        let (lib, tools) = (
            root.join("usr/lib/x86_64-linux-gnu"),
            root.join("usr/lib/linux-kbuild-1/scripts"),
        );
        fs::create_dir_all(&lib).unwrap();
        fs::create_dir_all(&tools).unwrap();
        // In place of the real loader, a script prints its arguments.
        fs::write(lib.join(LOADER), "#!/bin/sh\necho \"$@\"\n").unwrap();
        fs::set_permissions(lib.join(LOADER), fs::Permissions::from_mode(0o755)).unwrap();
        let program = tools.join("fixdep");
        fs::write(&program, format!("\x7fELF...../lib64/{LOADER}....")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(tools.join("script.sh"), "#!/bin/sh\n").unwrap();
        wrap(&root).unwrap();
        let output = Command::new(&program).args(["a b", "c"]).output().unwrap();
        let (lib, program) = (lib.display(), program.display());
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            format!("--library-path {lib} --argv0 {program} {program}.elf a b c")
        );
        assert!(tools.join("fixdep.elf").is_file());
        assert!(!tools.join("script.sh.elf").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
