//! Compares the tables with the rows that they describe, and docs/fields.md with the tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value as Json, json};

use super::*;
use crate::testkit::full;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/fields.md");

/// Returns a value's place in the JSON of a row; a counter that is a bound is in its `at_least` or `at_most`.
fn place<'a>(row: &'a Json, path: &str) -> Option<&'a Json> {
    let (mut at, mut keys) = (row, path.split('.').peekable());
    while let Some(key) = keys.next() {
        let mut bounds = ["at_least", "at_most"]
            .iter()
            .filter_map(|bound| at.get(bound)?.get(key));
        let known = bounds.find(|value| !value.is_null());
        at = match known.filter(|_| keys.peek().is_none()) {
            Some(value) => value,
            None => at.get(key)?,
        };
    }
    Some(at)
}

fn as_json(value: &Value<'_>) -> Json {
    match value {
        Value::Text(text) | Value::State(_, text) => json!(text),
        Value::List(list) => json!(list),
        Value::Flag(on) => json!(on),
        Value::Number(number) => json!(number),
        Value::Total(counter) => json!(counter.total),
        Value::Rate(counter) => json!(counter.rate),
        Value::Errnos(list) => json!(list),
        Value::Unknown | Value::Share(_) | Value::History(_) => Json::Null,
    }
}

fn fits(kind: Kind, value: &Value<'_>) -> bool {
    match value {
        Value::Unknown => true,
        Value::Text(_) => matches!(kind, Kind::Text | Kind::Object),
        Value::List(_) | Value::Errnos(_) => kind == Kind::Text,
        Value::State(..) => kind == Kind::State,
        Value::Flag(_) => kind == Kind::Flag,
        Value::Number(_) => kind == Kind::Gauge,
        Value::Total(_) => kind == Kind::Counter,
        Value::Rate(_) => kind == Kind::Rate,
        Value::Share(_) => kind == Kind::Share,
        Value::History(_) => kind == Kind::History,
    }
}

/// Compares every field of every row with serde's output, and every key of that output with the fields.
fn hold<'a, R: Serialize>(name: &str, table: Table<R>, rows: impl Iterator<Item = &'a R>, s: &'a Snapshot) {
    let json = |row| (row, serde_json::to_value(row).unwrap());
    hold_as(name, table, rows.map(json), s);
}

/// As [`hold`], with a given JSON for each row.
fn hold_as<'a, R>(name: &str, table: Table<R>, rows: impl Iterator<Item = (&'a R, Json)>, s: &'a Snapshot) {
    let (mut written, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (row, json) in rows {
        written.extend(json.as_object().unwrap().keys().cloned());
        for field in table {
            let (meta, value) = (&field.meta, (field.get)(row, s));
            assert!(fits(meta.kind, &value), "{name}.{}: {value:?}", meta.id);
            let there = Some(meta.json)
                .filter(|path| !path.is_empty())
                .and_then(|path| place(&json, path));
            if meta.kind != Kind::Object && !meta.json.is_empty() {
                assert_eq!(
                    there.unwrap_or(&Json::Null),
                    &as_json(&value),
                    "{name}.{}",
                    meta.id
                );
            }
            if there.is_some_and(|there| !there.is_null()) {
                seen.insert(meta.id);
            }
        }
    }
    let keys = table
        .iter()
        .map(|field| &field.meta.json)
        .filter(|path| !path.is_empty());
    let keys: BTreeSet<String> = keys
        .map(|path| path.split('.').next().unwrap().to_owned())
        .collect();
    assert_eq!(keys, written, "{name}: keys of the table, and of the JSON");
    let never = table.iter().map(|field| &field.meta);
    let never: Vec<_> = never
        .filter(|m| !m.json.is_empty() && !seen.contains(m.id))
        .map(|m| m.id)
        .collect();
    assert!(never.is_empty(), "{name}: never set in the fixture: {never:?}");
}

#[test]
fn each_field_is_what_json_says_at_its_place_and_each_key_has_a_field() {
    let s = full::snapshot();
    let events = full::events();
    hold("process", PROCESS, s.processes.iter(), &s);
    // Only the snapshot knows what is unknown about a QP.
    let Json::Array(qps) = serde_json::to_value(&s).unwrap()["qps"].take() else {
        panic!("no list")
    };
    hold_as("qp", QP, s.qps.iter().map(|row| &**row).zip(qps), &s);
    hold("port", PORT, s.ports.iter(), &s);
    hold("device", DEVICE, s.devices.iter(), &s);
    hold("verb", VERB, s.verbs.iter(), &s);
    hold("finding", FINDING, s.findings.iter(), &s);
    hold("event", EVENT, events.iter(), &s);
}

fn metas<R>(table: Table<R>) -> Vec<&'static Meta> {
    table.iter().map(|field| &field.meta).collect()
}

fn tables() -> [(&'static str, Vec<&'static Meta>); 7] {
    [
        ("Process", metas(PROCESS)),
        ("QP", metas(QP)),
        ("Port", metas(PORT)),
        ("Device", metas(DEVICE)),
        ("Verb", metas(VERB)),
        ("Finding", metas(FINDING)),
        ("Event", metas(EVENT)),
    ]
}

#[test]
fn a_table_names_each_field_and_each_place_once() {
    for (name, table) in tables() {
        let mut ids = BTreeSet::new();
        let mut places = BTreeSet::new();
        let (mut labels, mut details) = (BTreeSet::new(), BTreeSet::new());
        for meta in table {
            assert!(ids.insert(meta.id), "{name}: {} twice", meta.id);
            assert!(
                !meta.help.is_empty() && !meta.help.ends_with('.'),
                "{name}: {}",
                meta.help
            );
            if let Some(detail) = meta.detail {
                let named = labels.insert(detail.label) && details.insert(detail.place);
                assert!(named, "{name}: detail {detail:?} twice");
            }
            if let Some(page) = meta.page {
                assert!(places.insert(page.place), "{name}: place {} twice", page.place);
            }
        }
    }
    let mut words: BTreeMap<&str, &str> = BTreeMap::new();
    for (word, meta) in sort_words() {
        assert_eq!(words.insert(word, meta.id), None, "--sort {word} twice");
        assert_eq!(sorted_by(word).map(|field| field.meta.id), Some(meta.id));
    }
}

#[test]
fn processes_sort_largest_first_and_unknown_last_with_one_order_of_equals() {
    let order = |word: &str| -> Vec<u64> {
        let mut s = full::snapshot();
        let mut third = s.processes[0].clone();
        (third.uid, third.pid, third.comm, third.qps) = (3, Some(9), "aaa".into(), 7);
        third.traffic.tx_bytes = third.traffic.tx_bytes.map(|c| crate::value::Counter {
            rate: Some(1e12),
            ..c
        });
        (third.verb_errors, third.traffic.completion_errors) = (None, None);
        s.processes.push(third);
        sort_processes(&mut s, Some(word));
        s.processes.iter().map(|row| row.uid).collect()
    };
    assert_eq!(order("tx"), [3, 1, 2]);
    assert_eq!(order("qps"), [3, 1, 2]);
    assert_eq!(order("errors"), [1, 2, 3]);
    assert_eq!(order("pid"), [3, 1, 2]);
    assert_eq!(order("comm"), [2, 3, 1]);
    assert_eq!(order("wr"), [3, 1, 2]);
}

/// Makes the page from the tables.
fn page() -> String {
    let mut out = "# Fields of tables and of JSON\n\n\
        What rdmatop knows of each thing that has rows. `cargo test` writes this page anew with `RDMATOP_WRITE_DOCS=1`.\n\n\
        * Field: its name; of a column also in the settings ([config.md](config.md)), of a column of processes in `--sort`.\n\
        * Column: its heading in the live view; in parentheses: off until it is switched on.\n\
        * `--once`: its heading there.\n\
        * Detail: what the detail pane of the live view calls it.\n\
        * JSON: its place in the row ([json.md](json.md)); of a counter `total` or `rate`.\n\
        * Filter: the word before the colon in a filter of the live view, and other words for it.\n\
        * A rate is per second. What is not known is `-`, and null in JSON.\n"
        .to_owned();
    for (name, table) in tables() {
        let _ = write!(out, "\n## {name}\n\n");
        out.push_str("| field | what it is | kind, unit | column | `--once` | detail | JSON | filter |\n|---|---|---|---|---|---|---|---|\n");
        for meta in table {
            let code = |text: &str| {
                if text.is_empty() {
                    String::new()
                } else {
                    format!("`{text}`")
                }
            };
            let unit = match meta.unit {
                Unit::None | Unit::Count => "",
                Unit::Bytes | Unit::Memory => ", bytes",
                Unit::BytesOrPackets => ", bytes or packets",
                Unit::BitsPerSecond => ", bits/s",
                Unit::Nanoseconds | Unit::UpperNanoseconds | Unit::Age | Unit::Clock => ", ns",
            };
            let kind = format!("{:?}", meta.kind).to_lowercase();
            let column = match meta.screen {
                Some(screen) if screen.on => screen.title.to_owned(),
                Some(screen) => format!("({})", screen.title),
                None => String::new(),
            };
            let words: Vec<String> = meta.words.iter().map(|word| code(word)).collect();
            let _ = writeln!(
                out,
                "| `{}` | {} | {kind}{unit} | {column} | {} | {} | {} | {} |",
                meta.id,
                meta.help,
                meta.page.map_or("", |page| page.title),
                meta.detail.map_or("", |detail| detail.label),
                code(meta.json),
                words.join(" ")
            );
        }
    }
    out
}

#[test]
fn the_page_of_fields_is_that_of_the_tables() {
    if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, page()).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(written == page(), "run the test with RDMATOP_WRITE_DOCS=1");
}
