//! Checks that another clone, in another directory, makes the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tree::said_by;
use crate::{paths, step};

/// The digests that a build writes beside its artefacts.
const SUMS: &str = "SHA256SUMS";

/// Fails if this source has uncommitted changes, which a clone would not have.
pub(super) fn possible() -> Result<()> {
    let dirty = said_by(
        Command::new("git")
            .args(["status", "--porcelain"])
            .current_dir(paths::repo()),
    )?;
    ensure!(
        dirty.is_empty(),
        "--twice compares with a clone, which has only what is committed: {}",
        String::from_utf8_lossy(&dirty).trim_end()
    );
    Ok(())
}

/// Clones this source into `work`, makes the artefacts there and compares them with those in `out`.
pub(super) fn compare(out: &Path, work: &Path, arch: &str, epoch: u64) -> Result<()> {
    // rpmbuild handles no paths with blanks.
    let clone = work.join("another-clone");
    said_by(
        Command::new("git")
            .args(["clone", "--quiet"])
            .arg(paths::repo())
            .arg(&clone),
    )?;
    let mut again = Command::new("cargo");
    again
        .args(["xtask", "dist", "--arch", arch])
        .current_dir(&clone)
        .env("CARGO_TARGET_DIR", clone.join("target"))
        // The two builds share downloaded files, but not what zig has compiled into its own cache.
        .env("RDMATOP_CACHE", paths::cache())
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        // The cargo that runs this program has set it.
        .env_remove("CARGO_MANIFEST_DIR");
    step::run("dist: make all again in another clone", &mut again)?;
    let (here, there) = (sums(out)?, sums(&clone.join("target/dist"))?);
    let differ = differences(&here, &there);
    // If they differ, the artefacts of the clone stay for inspection.
    ensure!(
        differ.is_empty(),
        "not equal in {}: {}",
        clone.display(),
        differ.join(", ")
    );
    println!(
        "made again in another clone: {} files are equal byte for byte",
        here.len()
    );
    fs::remove_dir_all(&clone).with_context(|| format!("cannot remove {}", clone.display()))
}

/// Name and digest of each file.
type Sums = BTreeMap<String, String>;

fn sums(dir: &Path) -> Result<Sums> {
    // sha256sum checks the files themselves.
    said_by(
        Command::new("sha256sum")
            .args(["--check", "--quiet", SUMS])
            .current_dir(dir),
    )?;
    let text =
        fs::read_to_string(dir.join(SUMS)).with_context(|| format!("no {SUMS} in {}", dir.display()))?;
    let line = |line: &str| {
        line.split_once("  ")
            .map(|(digest, name)| (name.to_owned(), digest.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Returns the names that do not have the same digest in both.
fn differences(here: &Sums, there: &Sums) -> Vec<String> {
    let mut names: Vec<&String> = here.keys().chain(there.keys()).collect();
    names.sort();
    names.dedup();
    names.retain(|name| here.get(*name) != there.get(*name));
    names.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_differs_or_is_in_one_of_them_alone_is_named() {
        let of = |list: &[(&str, &str)]| -> Sums {
            list.iter()
                .map(|(name, digest)| ((*name).to_owned(), (*digest).to_owned()))
                .collect()
        };
        let here = of(&[("a", "1"), ("b", "2"), ("c", "3")]);
        assert_eq!(differences(&here, &here), [""; 0]);
        assert_eq!(
            differences(&here, &of(&[("a", "1"), ("b", "9"), ("d", "4")])),
            ["b", "c", "d"]
        );
    }

    #[test]
    fn sums_are_read_only_if_the_files_have_them() {
        let dir = std::env::temp_dir().join(format!("xtask-twice-{}", std::process::id()));
        crate::dist::tree::write(&dir.join("a"), b"one\n").unwrap();
        let digest = "2c8b08da5ce60398e1f19af0e5dccc744df274b826abe585eaba68c525434806";
        fs::write(dir.join(SUMS), format!("{digest}  a\n")).unwrap();
        assert_eq!(sums(&dir).unwrap().get("a").map(String::as_str), Some(digest));
        fs::write(dir.join("a"), "two\n").unwrap();
        assert!(sums(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
