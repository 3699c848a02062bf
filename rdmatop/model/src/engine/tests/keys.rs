//! docs/identity.md names each table of the engine whose key stands for something that comes again, and no
//! table that there is not.

use std::{collections::BTreeMap, fs, path::Path};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/engine");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/identity.md");
/// Types of tables.
const TABLES: [&str; 3] = ["BTreeMap<", "HashMap<", "NumberMap<"];
/// Tables by what never comes again, or means the same for ever: `uid`s, and numbers of ports, verbs and
/// errnos of one row; texts.
const OF_CONSTANTS: [&str; 17] = [
    "Calls::errnos",
    "Device::ports",
    "Dump::passed",
    "Groups::gone",
    "Groups::read_at",
    "Makers::made",
    "Makers::without_dmabuf",
    "Paths::asked",
    "Process::qps",
    "Processes::all",
    "Rest::payload",
    "Shares::moved",
    "Shares::others",
    "Shares::totals",
    "Users::makers",
    "Users::ports",
    "Way::users",
];

/// The fields of the structs in a source file, each with its type.
fn fields(text: &str, out: &mut BTreeMap<String, String>) {
    let mut of = "";
    for line in text.lines() {
        let words = line
            .trim_start()
            .trim_start_matches("pub(super) ")
            .trim_start_matches("pub ");
        if let Some(name) = words.strip_prefix("struct ") {
            let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
            of = &name[..end];
        } else if line == "}" {
            of = "";
        } else if let Some((field, kind)) = words.split_once(": ").filter(|_| !of.is_empty()) {
            out.insert(format!("{of}::{field}"), kind.to_owned());
        }
    }
}

#[test]
fn each_table_with_a_key_has_its_row_in_the_page_of_identities() {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(Path::new(SOURCES)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fields(&fs::read_to_string(path).unwrap(), &mut all);
        }
    }
    let page = fs::read_to_string(PAGE).unwrap();
    let (_, section) = page.split_once("\n## Tables of the model\n").unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| "));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let listed: Vec<&str> = cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|name| name.contains("::"))
        .collect();
    let gone: Vec<_> = listed.iter().filter(|name| !all.contains_key(**name)).collect();
    assert!(
        gone.is_empty(),
        "docs/identity.md has {gone:?}, which are no fields"
    );
    let is_table = |kind: &str| TABLES.iter().any(|table| kind.starts_with(table));
    let tables = all.iter().filter(|(_, kind)| is_table(kind));
    let tables: Vec<&str> = tables.map(|(name, _)| name.as_str()).collect();
    assert!(tables.len() > 20, "{tables:?}");
    let known = |name: &&&str| listed.contains(name) || OF_CONSTANTS.contains(name);
    let unnamed: Vec<_> = tables.iter().filter(|name| !known(name)).collect();
    assert!(unnamed.is_empty(), "docs/identity.md lacks {unnamed:?}");
    assert!(OF_CONSTANTS.iter().all(|name| tables.contains(name)));
}
