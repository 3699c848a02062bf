//! The crates of the program, as cargo resolves them for a target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::tree::said_by;
use crate::paths;

/// A crate of the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Crate {
    pub(super) name: String,
    pub(super) version: String,
    /// The licence in its manifest.
    pub(super) licence: String,
    /// The directory of its source.
    pub(super) dir: PathBuf,
    /// Whether it belongs to this workspace.
    pub(super) ours: bool,
    /// Whether it is linked into the program and not only run during the build.
    pub(super) linked: bool,
    /// Indices of the crates that it depends on.
    pub(super) needs: Vec<usize>,
}

/// Returns all crates that rdmatop is built from for a target, ordered by name and version.
pub(super) fn of(triple: &str) -> Result<Vec<Crate>> {
    let run = |args: &[&str]| {
        let mut cargo = Command::new("cargo");
        said_by(cargo.args(args).current_dir(paths::repo()))
    };
    // `cargo tree` has the features of rdmatop alone; cargo's metadata has those of the whole workspace.
    let tree = [
        "tree",
        "--locked",
        "--package",
        "rdmatop",
        "--edges",
        "normal,build",
        "--prefix",
        "none",
    ];
    let tree = run(&[&tree[..], &["--format", "{p}", "--target", triple]].concat())?;
    let metadata = [
        "metadata",
        "--locked",
        "--format-version",
        "1",
        "--filter-platform",
        triple,
    ];
    let metadata: Value = serde_json::from_slice(&run(&metadata)?).context("cargo metadata")?;
    resolved(&metadata, &names(&String::from_utf8(tree).context("cargo tree")?))
}

/// Returns name and version of each line of `cargo tree`: `clap v4.6.0 (*)`.
fn names(tree: &str) -> BTreeSet<(String, String)> {
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some((
            words.next()?.to_owned(),
            words.next()?.strip_prefix('v')?.to_owned(),
        ))
    };
    tree.lines().filter_map(name).collect()
}

/// Returns the crates of cargo's metadata that are also in `used`.
fn resolved(metadata: &Value, used: &BTreeSet<(String, String)>) -> Result<Vec<Crate>> {
    let packages = metadata["packages"]
        .as_array()
        .context("cargo metadata names no packages")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let key = |package: &Value| (text(&package["name"]), text(&package["version"]));
    let mut packages: Vec<&Value> = packages
        .iter()
        .filter(|package| used.contains(&key(package)))
        .collect();
    packages.sort_by_key(|package| key(package));
    let place: BTreeMap<&str, usize> = packages
        .iter()
        .enumerate()
        .filter_map(|(place, package)| Some((package["id"].as_str()?, place)))
        .collect();
    let nodes = metadata["resolve"]["nodes"]
        .as_array()
        .context("cargo metadata resolves nothing")?;
    // For each crate, its dependencies, and whether each is needed by the program itself (not the build).
    let mut needs: Vec<Vec<(usize, bool)>> = vec![Vec::new(); packages.len()];
    for node in nodes {
        let Some(at) = node["id"].as_str().and_then(|id| place.get(id)) else {
            continue;
        };
        for other in node["deps"].as_array().into_iter().flatten() {
            let Some(to) = other["pkg"].as_str().and_then(|id| place.get(id)) else {
                continue;
            };
            let kinds: Vec<&Value> = other["dep_kinds"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|kind| &kind["kind"])
                .collect();
            let normal = kinds.iter().any(|kind| kind.is_null());
            if normal || kinds.iter().any(|kind| *kind == "build") {
                needs[*at].push((*to, normal));
            }
        }
        needs[*at].sort_unstable();
    }
    let macros = |package: &Value| package["targets"][0]["kind"][0] == "proc-macro";
    let mut linked = vec![false; packages.len()];
    let mut next: Vec<usize> = (0..packages.len())
        .filter(|at| packages[*at]["name"] == "rdmatop")
        .collect();
    while let Some(at) = next.pop() {
        if !linked[at] && !macros(packages[at]) {
            linked[at] = true;
            next.extend(needs[at].iter().filter(|(_, normal)| *normal).map(|(to, _)| to));
        }
    }
    let crates = packages
        .iter()
        .zip(linked)
        .zip(needs)
        .map(|((package, linked), needs)| {
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            Ok(Crate {
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: text(&package["license"]),
                dir: manifest
                    .parent()
                    .context("a crate without a directory")?
                    .to_owned(),
                ours: package["source"].is_null(),
                linked,
                needs: needs.into_iter().map(|(to, _)| to).collect(),
            })
        });
    crates.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn name_and_version_are_read_from_each_line_of_the_tree() {
        let tree = "rdmatop v0.1.0 (/a b/rdmatop)\nclap v4.6.0\nclap v4.6.0 (*)\nserde_derive v1.0.1 (proc-macro)\n\n";
        let wanted = [("clap", "4.6.0"), ("rdmatop", "0.1.0"), ("serde_derive", "1.0.1")];
        let wanted = wanted.map(|(name, version)| (name.to_owned(), version.to_owned()));
        assert_eq!(names(tree).into_iter().collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn a_crate_is_linked_if_the_way_to_it_runs_through_no_macro_and_no_build() {
        let package = |name: &str, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "manifest_path": format!("/{name}/Cargo.toml"),
                   "license": "MIT", "source": "registry", "targets": [{"kind": [kind]}]})
        };
        let to = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let metadata = json!({
            "packages": [package("rdmatop", "lib"), package("derive", "proc-macro"), package("quote", "lib"), package("cc", "lib"),
                         package("serde", "lib"), package("elsewhere", "lib"), package("tests", "lib")],
            "resolve": {"nodes": [
                {"id": "rdmatop", "deps": [to("serde", Value::Null), to("cc", json!("build")), to("tests", json!("dev")),
                                           to("elsewhere", Value::Null)]},
                {"id": "serde", "deps": [to("derive", Value::Null)]},
                {"id": "derive", "deps": [to("quote", Value::Null)]}]}});
        let used = ["rdmatop", "serde", "derive", "quote", "cc", "tests"]
            .map(|name| (name.to_owned(), "1.0.0".to_owned()));
        let crates = resolved(&metadata, &used.into()).unwrap();
        let linked: Vec<_> = crates
            .iter()
            .map(|one| (one.name.as_str(), one.linked, one.needs.clone()))
            .collect();
        assert_eq!(
            linked,
            [
                ("cc", false, vec![]),
                ("derive", false, vec![2]),
                ("quote", false, vec![]),
                ("rdmatop", true, vec![0, 4]),
                ("serde", true, vec![1]),
                ("tests", false, vec![]),
            ]
        );
    }
}
