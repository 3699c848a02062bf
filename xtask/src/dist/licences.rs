//! The licences of all crates that are linked into the program: most ask that their text goes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::tree::said_by;
use crate::paths;

/// How the files are called that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// What is linked in and is no crate.
const OTHERS: &str = "\
The program also contains Rust's standard library (MIT OR Apache-2.0, https://www.rust-lang.org), and LLVM's
libunwind and compiler-rt as zig brings them (Apache-2.0 WITH LLVM-exception, https://llvm.org).
";

/// A text with name, version and licence of each crate that rdmatop links for a target, then each licence
/// text once, with the crates that have it.
pub(super) fn of_dependencies(triple: &str) -> Result<String> {
    let mut tree = Command::new("cargo");
    tree.args([
        "tree",
        "--locked",
        "--package",
        "rdmatop",
        "--edges",
        "normal",
        "--prefix",
        "none",
    ])
    .args(["--format", "{p}", "--target", triple])
    .current_dir(paths::repo());
    let linked = String::from_utf8(said_by(&mut tree)?).context("cargo tree")?;
    let mut metadata = Command::new("cargo");
    metadata
        .args(["metadata", "--locked", "--format-version", "1"])
        .current_dir(paths::repo());
    let metadata: Value = serde_json::from_slice(&said_by(&mut metadata)?).context("cargo metadata")?;
    let linked = names(&linked);
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?
    {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let name = format!("{} {}", text("name"), text("version"));
        // Our own crates have no source, and their licences are files of their own.
        if package["source"].is_null() || !linked.contains(&name) {
            continue;
        }
        let _ = writeln!(list, "{name}: {}", text("license"));
        let dir = Path::new(text("manifest_path"))
            .parent()
            .context("a crate without a directory")?;
        for text in texts_in(dir)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut all = format!("rdmatop contains these crates:\n\n{list}\n{OTHERS}");
    for (text, mut crates) in texts {
        crates.dedup();
        let _ = write!(
            all,
            "\n{}\n{}:\n\n{}\n",
            "-".repeat(80),
            crates.join(", "),
            text.trim_end()
        );
    }
    Ok(all)
}

/// Name and version of each line of `cargo tree`: `clap v4.6.0 (*)`.
fn names(tree: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
    };
    tree.lines().filter_map(name).collect()
}

/// The texts of a crate's licences, in the order of their names.
fn texts_in(dir: &Path) -> Result<Vec<String>> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_uppercase();
            path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    let text = |file| fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
    files
        .iter()
        .map(|file| text(file).with_context(|| format!("cannot read {}", file.display())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_version_are_read_from_each_line_of_the_tree() {
        let tree = "rdmatop v0.1.0 (/a b/rdmatop)\nclap v4.6.0\nclap v4.6.0 (*)\nserde_derive v1.0.1 (proc-macro)\n\n";
        let wanted = ["clap 4.6.0", "rdmatop 0.1.0", "serde_derive 1.0.1"];
        assert_eq!(names(tree).into_iter().collect::<Vec<_>>(), wanted);
    }
}
