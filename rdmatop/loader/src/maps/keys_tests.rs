//! docs/identity.md names each map of the kernel side whose key stands for something that comes again, and no
//! map that there is not.

use rdmatop_base::order::Gather as _;
use std::{collections::BTreeSet, fs, path::Path};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../rdmatop-ebpf/src");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/identity.md");
/// Types without a key: ring buffers, lists of free numbers, single words, and the map without programs.
const KEYLESS: [&str; 5] = ["ProgramArray", "Queue", "RingBuf", "Stack", "Word"];
/// Types of constants, which are no maps.
const CONSTANTS: [&str; 2] = ["Global", "["];
/// Arrays whose places are constants of rdmatop-common: causes of loss, kinds of work, one word.
const OF_CONSTANTS: [&str; 4] = ["CONTROL", "LOSSES", "WR_COUNTS", "WR_FILTER"];

/// The statics in a source file: name and type without its parameters.
fn statics(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (_, declared) = line.split_once("static ")?;
        let (name, kind) = declared.split_once(": ")?;
        let kind = kind.trim_start();
        let end = kind.find(['<', ' ', ';']).unwrap_or(kind.len());
        let kind = if kind.starts_with('[') { "[" } else { &kind[..end] };
        let is_name = |c: char| c.is_ascii_uppercase() || c == '_' || c.is_ascii_digit();
        (!name.is_empty() && name.chars().all(is_name)).then_some((name, kind))
    })
}

/// Sources of the kernel side below a directory.
fn texts(directory: &Path, out: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            out.push(fs::read_to_string(path).unwrap());
        }
    }
}

/// The names in the first column of the table below a heading of the page.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    names.map(str::to_owned).gather()
}

#[test]
fn each_map_with_a_key_has_its_row_in_the_page_of_identities() {
    let mut sources = Vec::new();
    texts(Path::new(SOURCES), &mut sources);
    let all: Vec<(&str, &str)> = sources.iter().flat_map(|text| statics(text)).collect();
    let maps = all.iter().filter(|(name, kind)| {
        !KEYLESS.contains(kind) && !CONSTANTS.contains(kind) && !OF_CONSTANTS.contains(name)
    });
    let declared: BTreeSet<String> = maps.map(|(name, _)| (*name).to_owned()).gather();
    assert!(declared.len() > 30, "{declared:?}");
    let page = fs::read_to_string(PAGE).unwrap();
    let keys = listed(&page, "Maps of the kernel side");
    let unnamed: Vec<_> = declared.difference(&keys).collect();
    assert!(unnamed.is_empty(), "docs/identity.md lacks {unnamed:?}");
    let gone: Vec<_> = keys.difference(&declared).collect();
    assert!(
        gone.is_empty(),
        "docs/identity.md has {gone:?}, which are no maps"
    );
}

#[test]
fn each_map_that_refuses_entries_is_in_the_table_of_full_maps() {
    let mut sources = Vec::new();
    texts(Path::new(SOURCES), &mut sources);
    let all = sources.iter().flat_map(|text| statics(text));
    let tables = all.filter(|(_, kind)| matches!(*kind, "HashMap" | "LruHashMap"));
    // The row of `USER_SLOTS` is also that of the other maps of --uprobes.
    let declared = tables.filter(|(name, _)| !name.starts_with("USER_"));
    let declared: BTreeSet<String> = declared.map(|(name, _)| name.to_owned()).gather();
    let page = fs::read_to_string(PAGE).unwrap();
    let full = listed(&page, "When a map is full");
    let unnamed: Vec<_> = declared.difference(&full).collect();
    assert!(unnamed.is_empty(), "docs/identity.md lacks {unnamed:?}");
}
