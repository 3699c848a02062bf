//! The crates of the program, as cargo resolves them for a target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::tree::said_by;
use crate::{ebpf_toolchain, paths};

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

/// What cargo resolves for a program and its target.
struct Resolved {
    /// The program's crate.
    root: &'static str,
    metadata: Value,
    /// Name and version of its crates.
    used: BTreeSet<(String, String)>,
}

/// Returns all crates that rdmatop is built from for a target, ordered by name and version: its own, and
/// those of the eBPF programs in it.
pub(super) fn of(triple: &str) -> Result<Vec<Crate>> {
    let ebpf = Resolved::of("rdmatop-ebpf", ebpf_toolchain::TARGET)?;
    resolved(&[Resolved::of("rdmatop", triple)?, ebpf])
}

impl Resolved {
    fn of(root: &'static str, target: &str) -> Result<Self> {
        let run = |args: &[&str]| {
            let mut cargo = Command::new("cargo");
            said_by(cargo.args(args).current_dir(paths::repo()))
        };
        // `cargo tree` has the features of this program alone; metadata has those of the whole workspace.
        let tree = [
            "tree",
            "--locked",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--format",
            "{p}",
        ];
        let tree = run(&[&tree[..], &["--package", root, "--target", target]].concat())?;
        let metadata = [
            "metadata",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            target,
        ];
        Ok(Self {
            root,
            metadata: serde_json::from_slice(&run(&metadata)?).context("cargo metadata")?,
            used: names(&String::from_utf8(tree).context("cargo tree")?),
        })
    }
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

/// Returns the crates of both. The second program is a part of the first.
fn resolved(programs: &[Resolved; 2]) -> Result<Vec<Crate>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut found: BTreeMap<(String, String), &Value> = BTreeMap::new();
    for program in programs {
        let packages = program.metadata["packages"]
            .as_array()
            .context("cargo metadata names no packages")?;
        for package in packages {
            let key = (text(&package["name"]), text(&package["version"]));
            if program.used.contains(&key) {
                found.insert(key, package);
            }
        }
    }
    let place: BTreeMap<&str, usize> = found
        .values()
        .enumerate()
        .filter_map(|(place, package)| Some((package["id"].as_str()?, place)))
        .collect();
    // For each crate, its dependencies, and whether each is needed by the program itself (not the build).
    let mut needs: Vec<BTreeMap<usize, bool>> = vec![BTreeMap::new(); found.len()];
    for program in programs {
        let nodes = program.metadata["resolve"]["nodes"]
            .as_array()
            .context("cargo metadata resolves nothing")?;
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
                    *needs[*at].entry(*to).or_default() |= normal;
                }
            }
        }
    }
    let packages: Vec<&Value> = found.into_values().collect();
    let root = |program: &Resolved| {
        packages
            .iter()
            .position(|package| package["name"] == program.root)
    };
    let [Some(whole), Some(part)] = programs.each_ref().map(root) else {
        bail!("cargo does not name the programs");
    };
    needs[whole].insert(part, true);
    let macros = |package: &Value| package["targets"][0]["kind"][0] == "proc-macro";
    let mut linked = vec![false; packages.len()];
    let mut next = vec![whole];
    while let Some(at) = next.pop() {
        if !linked[at] && !macros(packages[at]) {
            linked[at] = true;
            next.extend(needs[at].iter().filter(|(_, normal)| **normal).map(|(to, _)| to));
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
                needs: needs.into_keys().collect(),
            })
        });
    crates.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_crates_of_the_ebpf_programs_are_in_the_program() {
        let crates = of("x86_64-unknown-linux-gnu").unwrap();
        let linked = |name: &str| crates.iter().any(|one| one.name == name && one.linked);
        for name in ["aya", "aya-ebpf", "rdmatop", "rdmatop-ebpf"] {
            assert!(linked(name), "{name}");
        }
        assert!(!linked("aya-ebpf-macros"));
    }

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
        let used = |names: &[&str]| {
            names
                .iter()
                .map(|name| ((*name).to_owned(), "1.0.0".to_owned()))
                .collect()
        };
        let metadata = json!({
            "packages": [package("rdmatop", "lib"), package("derive", "proc-macro"), package("quote", "lib"), package("cc", "lib"),
                         package("serde", "lib"), package("elsewhere", "lib"), package("tests", "lib")],
            "resolve": {"nodes": [
                {"id": "rdmatop", "deps": [to("serde", Value::Null), to("cc", json!("build")), to("tests", json!("dev")),
                                           to("elsewhere", Value::Null)]},
                {"id": "serde", "deps": [to("derive", Value::Null)]},
                {"id": "derive", "deps": [to("quote", Value::Null)]}]}});
        let ebpf = json!({
            "packages": [package("rdmatop-ebpf", "bin"), package("aya-ebpf", "lib"), package("derive", "proc-macro"),
                         package("serde", "lib")],
            "resolve": {"nodes": [
                {"id": "rdmatop-ebpf", "deps": [to("aya-ebpf", Value::Null), to("derive", Value::Null)]}]}});
        let crates = resolved(&[
            Resolved {
                root: "rdmatop",
                metadata,
                used: used(&["rdmatop", "serde", "derive", "quote", "cc", "tests"]),
            },
            Resolved {
                root: "rdmatop-ebpf",
                metadata: ebpf,
                used: used(&["rdmatop-ebpf", "aya-ebpf", "derive"]),
            },
        ])
        .unwrap();
        let linked: Vec<_> = crates
            .iter()
            .map(|one| (one.name.as_str(), one.linked, one.needs.clone()))
            .collect();
        assert_eq!(
            linked,
            [
                ("aya-ebpf", true, vec![]),
                ("cc", false, vec![]),
                ("derive", false, vec![3]),
                ("quote", false, vec![]),
                ("rdmatop", true, vec![1, 5, 6]),
                ("rdmatop-ebpf", true, vec![0, 2]),
                ("serde", true, vec![2]),
                ("tests", false, vec![]),
            ]
        );
    }
}
