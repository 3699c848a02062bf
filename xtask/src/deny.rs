//! Checks the crates against deny.toml: licences, versions, sources. cargo-deny reads the same file and
//! checks more, but takes longer to build than all tests take to run, so only the public CI uses it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;
use std::process::Command;
use std::str::SplitWhitespace;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use toml::Table;

use crate::{dist::tree::said_by, paths};

/// What Cargo writes in Cargo.lock for a crate of its own registry, wherever this machine's configuration
/// takes such crates from. Without `allow-registry` in deny.toml cargo-deny allows it alone, too.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Fails with everything that deny.toml forbids, one violation per line.
pub(crate) fn check() -> Result<()> {
    let read = |name: &str| {
        fs::read_to_string(paths::repo().join(name)).with_context(|| format!("cannot read {name}"))
    };
    let policy: Table = read("deny.toml")?.parse().context("deny.toml")?;
    let mut crates = BTreeSet::new();
    for target in strings(&policy, "graph", "targets")? {
        let mut tree = Command::new("cargo");
        tree.args([
            "tree",
            "--locked",
            "--workspace",
            "--all-features",
            "--prefix",
            "none",
            "--target",
            &target,
        ])
        .args(["--format", "{p}\t{l}"])
        .current_dir(paths::repo());
        crates.extend(listed(
            &String::from_utf8(said_by(&mut tree)?).context("cargo tree")?,
        ));
    }
    let mut wrong = versions(&crates, &skipped(&policy)?);
    wrong.extend(licences(&crates, &strings(&policy, "licenses", "allow")?));
    wrong.extend(sources(&read("Cargo.lock")?));
    let mut manifests = Command::new("cargo");
    manifests
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(paths::repo());
    let manifests = serde_json::from_slice(&said_by(&mut manifests)?).context("cargo metadata")?;
    wrong.extend(wildcards(&manifests));
    ensure!(wrong.is_empty(), "deny.toml forbids:\n{}", wrong.join("\n"));
    Ok(())
}

/// A crate in use: name, version, licence.
type Used = (String, String, String);

/// Returns the crates that `cargo tree` lists. A line is `name v1.0.0 (remarks)`, a tab and the licence. The
/// remark of our own crates is their directory.
fn listed(tree: &str) -> impl Iterator<Item = Used> {
    tree.lines().filter_map(|line| {
        let (name, licence) = line.split_once('\t')?;
        let mut words = name.split_whitespace();
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        let ours = words.any(|word| word.starts_with("(/"));
        let licence = licence.trim_end_matches(" (*)");
        (!ours).then(|| (name.to_owned(), version.to_owned(), licence.to_owned()))
    })
}

fn strings(policy: &Table, section: &str, key: &str) -> Result<Vec<String>> {
    let list = policy
        .get(section)
        .and_then(|section| section.get(key)?.as_array());
    let list = list.with_context(|| format!("deny.toml has no list {key} in [{section}]"))?;
    Ok(list
        .iter()
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect())
}

/// Crate names, each with the beginning of a version that is allowed beside another version.
fn skipped(policy: &Table) -> Result<Vec<(String, String)>> {
    let list = policy.get("bans").and_then(|bans| bans.get("skip")?.as_array());
    let of = |entry: &toml::Value| {
        entry
            .get("crate")?
            .as_str()?
            .split_once('@')
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
    };
    list.context("deny.toml has no list skip in [bans]")?
        .iter()
        .map(|entry| of(entry).with_context(|| format!("deny.toml: no name@version in {entry}")))
        .collect()
}

/// Returns the crates that occur in several versions.
fn versions(crates: &BTreeSet<Used>, skipped: &[(String, String)]) -> Vec<String> {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, version, _) in crates {
        let begins = |beginning: &str| version == beginning || version.starts_with(&format!("{beginning}."));
        if !skipped
            .iter()
            .any(|(skip, beginning)| skip == name && begins(beginning))
        {
            all.entry(name).or_default().insert(version);
        }
    }
    all.retain(|_, versions| versions.len() > 1);
    let line = |(name, versions): (_, BTreeSet<&str>)| {
        format!(
            "{name} in versions {}",
            versions.into_iter().collect::<Vec<_>>().join(" and ")
        )
    };
    all.into_iter().map(line).collect()
}

fn licences(crates: &BTreeSet<Used>, allowed: &[String]) -> Vec<String> {
    let forbidden = crates.iter().filter(|(_, _, licence)| !may(licence, allowed));
    forbidden
        .map(|(name, version, licence)| format!("the licence of {name} {version}: {licence:?}"))
        .collect()
}

/// The rest of an expression, while it is parsed.
type Words<'a> = Peekable<SplitWhitespace<'a>>;

/// Whether the allowed licences can satisfy an SPDX expression. In the syntax before SPDX, `/` meant `OR`.
fn may(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words, allowed) == Some(true) && words.next().is_none()
}

/// Parses alternatives (`OR`), which bind weaker than `AND`; `None` if this is no expression.
fn any(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut met = all(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        met |= all(words, allowed)?;
    }
    Some(met)
}

fn all(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut met = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        met &= one(words, allowed)?;
    }
    Some(met)
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> Option<bool> {
    let mut name = words.next()?.to_owned();
    if name == "(" {
        let met = any(words, allowed)?;
        return words.next_if_eq(&")").map(|_| met);
    }
    if words.next_if_eq(&"WITH").is_some() {
        name = format!("{name} WITH {}", words.next()?);
    }
    Some(allowed.contains(&name))
}

/// Returns the sources in the lock file that are not Cargo's own registry. Our own crates have no source.
fn sources(lock: &str) -> Vec<String> {
    let named = |line: &'_ str| Some(line.strip_prefix("source = \"")?.strip_suffix('"')?.to_owned());
    let all: BTreeSet<String> = lock.lines().filter_map(named).collect();
    all.into_iter()
        .filter(|source| source != REGISTRY)
        .map(|source| format!("the source {source}"))
        .collect()
}

/// Returns the dependencies of which our manifests, as `cargo metadata` has them, take any version. That of a
/// crate beside them is its directory, whose version nobody chooses.
fn wildcards(manifests: &Value) -> Vec<String> {
    let each = |value: &'_ Value, key| value[key].as_array().cloned().unwrap_or_default();
    let packages = each(manifests, "packages");
    let any = packages.iter().flat_map(|package| {
        let dependencies = each(package, "dependencies");
        let any = dependencies
            .into_iter()
            .filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null());
        any.map(|dependency| format!("any version of {} for {}", dependency["name"], package["name"]))
    });
    any.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_crates_of_this_source_are_what_its_policy_allows() {
        check().unwrap();
    }

    #[test]
    fn an_expression_of_licences_is_met_by_what_is_allowed() {
        let allowed = ["MIT", "Zlib", "Unicode-3.0"].map(str::to_owned);
        for met in [
            "MIT",
            "GPL-3.0 OR MIT",
            "Apache-2.0/MIT",
            "Apache-2.0 WITH LLVM-exception OR MIT",
            "(GPL-3.0 OR MIT) AND Unicode-3.0",
            "GPL-3.0 AND X OR Zlib",
        ] {
            assert!(may(met, &allowed), "{met}");
        }
        for not in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "MIT WITH exception",
            "GPL-3.0 AND (MIT OR Zlib)",
            "(MIT",
            "MIT MIT",
            "MIT OR",
        ] {
            assert!(!may(not, &allowed), "{not}");
        }
    }

    #[test]
    fn what_is_forbidden_is_named() {
        let tree = "ours v0.1.0 (/a b/ours)\tGPL-3.0\none v1.2.0\tMIT (*)\none v1.2.0\tMIT\none v2.0.0 (proc-macro)\tMIT\nbad v1.0.0\tGPL-3.0\n";
        let crates: BTreeSet<Used> = listed(tree).collect();
        assert_eq!(crates.len(), 3, "{crates:?}");
        assert_eq!(versions(&crates, &[]), ["one in versions 1.2.0 and 2.0.0"]);
        let skip = |version: &str| [("one".to_owned(), version.to_owned())];
        assert!(versions(&crates, &skip("1")).is_empty());
        assert_eq!(versions(&crates, &skip("1.20")).len(), 1, "1.20 is not 1.2.0");
        assert_eq!(
            licences(&crates, &["MIT".to_owned()]),
            ["the licence of bad 1.0.0: \"GPL-3.0\""]
        );
    }

    #[test]
    fn crates_come_from_cargo_s_own_registry_alone() {
        let own = format!("source = \"{REGISTRY}\"\n");
        let lock = format!("{own}source = \"git+one\"\nsource = \"registry+two\"\n{own}");
        assert_eq!(sources(&lock), ["the source git+one", "the source registry+two"]);
        assert!(sources(&own).is_empty());
        // One registry for all crates is no better than one for some.
        let mirror = "source = \"registry+two\"\nsource = \"registry+two\"\n";
        assert_eq!(sources(mirror), ["the source registry+two"]);
        let lock = fs::read_to_string(paths::repo().join("Cargo.lock")).unwrap();
        assert!(lock.contains(&own), "no crate is of the registry that is allowed");
    }

    #[test]
    fn no_manifest_takes_any_version_of_a_crate() {
        let of =
            |name: &str, req: &str, path: Option<&str>| json!({ "name": name, "req": req, "path": path });
        let dependencies = [
            of("any", "*", None),
            of("one", "^1.2", None),
            of("beside", "*", Some("/ours/beside")),
        ];
        let manifests = json!({ "packages": [
            { "name": "ours", "dependencies": dependencies },
            { "name": "alone", "dependencies": [] },
        ] });
        assert_eq!(wildcards(&manifests), [r#"any version of "any" for "ours""#]);
    }
}
