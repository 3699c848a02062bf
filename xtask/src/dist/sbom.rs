//! Writes the list of crates as a file beside the artefacts, in the form of CycloneDX, which scanners read.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use super::crates::Crate;
use super::tree::{PACKAGE, said_by, write};

/// Writes the list of `crates` into `file`. `epoch` is the time in it.
pub(super) fn make(crates: &[Crate], epoch: u64, file: &Path) -> Result<()> {
    let at = format!("--date=@{epoch}");
    let time = said_by(Command::new("date").args(["--utc", &at, "+%FT%TZ"]))?;
    let text = serde_json::to_string_pretty(&document(crates, String::from_utf8_lossy(&time).trim()))?;
    write(file, format!("{text}\n").as_bytes())
}

fn document(crates: &[Crate], time: &str) -> Value {
    let program = crates.iter().find(|one| one.name == "rdmatop");
    let others = crates.iter().filter(|one| one.name != "rdmatop");
    let dependencies = crates.iter().map(|one| {
        let needs: Vec<String> = one.needs.iter().map(|at| reference(&crates[*at])).collect();
        json!({"ref": reference(one), "dependsOn": needs})
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": program.map(|one| component(one, "application"))},
        "components": others.map(|one| component(one, "library")).collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    })
}

fn component(one: &Crate, kind: &str) -> Value {
    // Before SPDX had expressions, cargo's manifests had a slash for OR.
    let licence = one.licence.replace('/', " OR ");
    let words: Vec<&str> = licence.split_whitespace().collect();
    let mut component = json!({
        "type": kind,
        "bom-ref": reference(one),
        "name": if one.name == "rdmatop" { PACKAGE } else { &one.name },
        "version": one.version,
        "scope": if one.linked { "required" } else { "excluded" },
        "licenses": [{"expression": words.join(" ")}],
    });
    // Ours are in no registry. On crates.io another program has the name rdmatop.
    if !one.ours {
        component["purl"] = format!("pkg:cargo/{}@{}", one.name, one.version).into();
    }
    component
}

fn reference(one: &Crate) -> String {
    format!("{}@{}", one.name, one.version)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn each_crate_is_a_component_with_an_address_if_the_registry_has_it() {
        let one = |name: &str, ours, linked, needs: &[usize]| Crate {
            name: name.to_owned(),
            version: "1.2.3".to_owned(),
            licence: "MIT / Apache-2.0".to_owned(),
            dir: PathBuf::new(),
            ours,
            linked,
            needs: needs.to_vec(),
        };
        let crates = [one("cc", false, false, &[]), one("rdmatop", true, true, &[0])];
        let made = document(&crates, "2026-01-02T03:04:05Z");
        let licences = json!([{"expression": "MIT OR Apache-2.0"}]);
        assert_eq!(
            made["components"],
            json!([{"type": "library", "bom-ref": "cc@1.2.3", "name": "cc", "version": "1.2.3", "scope": "excluded",
                    "licenses": licences, "purl": "pkg:cargo/cc@1.2.3"}])
        );
        assert_eq!(
            made["metadata"],
            json!({"timestamp": "2026-01-02T03:04:05Z",
                   "component": {"type": "application", "bom-ref": "rdmatop@1.2.3", "name": "rdmatop-bpf", "version": "1.2.3",
                                 "scope": "required", "licenses": licences}})
        );
        assert_eq!(
            made["dependencies"],
            json!([{"ref": "cc@1.2.3", "dependsOn": []}, {"ref": "rdmatop@1.2.3", "dependsOn": ["cc@1.2.3"]}])
        );
    }
}
