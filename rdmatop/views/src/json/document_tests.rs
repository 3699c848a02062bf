//! Holds docs/json.md to the code: the keys of objects in which everything is set, against the tables.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use rdmatop_base::order::Gather as _;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_model::input::EbpfState;
use rdmatop_model::judgement::Totals;
use rdmatop_model::testkit::full;

const DOCUMENT: &str = include_str!("../../../../docs/json.md");

type Keys = BTreeMap<String, BTreeSet<String>>;

/// The keys of every section. A row without a type, a source or a meaning of null fails here.
fn documented() -> Keys {
    let mut sections = Keys::new();
    let mut section = String::new();
    for line in DOCUMENT.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        } else if let Some(row) = line.strip_prefix("| `").filter(|_| !section.is_empty()) {
            let (key, rest) = row.split_once('`').expect("a closed key");
            let cells: Vec<&str> = rest.split('|').map(str::trim).collect();
            assert_eq!(cells.len(), 5, "{section}: {line}");
            assert!(!cells[1].is_empty() && !cells[3].is_empty(), "{section}: {line}");
            let keys = sections.entry(section.clone()).or_default();
            assert!(keys.insert(key.to_owned()), "{section}: {key} twice");
        }
    }
    sections
}

#[derive(Default)]
struct Written(Keys);

impl Written {
    /// Adds the keys of an object, or of the objects of a list.
    fn add(&mut self, section: &str, value: &Value) {
        match value {
            Value::Array(list) => {
                assert!(!list.is_empty(), "{section}: the fixture leaves this list empty");
                for value in list {
                    self.add(section, value);
                }
            }
            Value::Object(object) => {
                let keys = self.0.entry(section.to_owned()).or_default();
                keys.extend(object.keys().cloned());
            }
            other => panic!("{section}: no object: {other}"),
        }
    }

    /// As [`Written::add`], but the keys of `Traffic` go to a section of their own.
    fn add_with_traffic(&mut self, section: &str, value: &Value, traffic: &BTreeSet<String>) {
        let Value::Array(list) = value else {
            panic!("{section}: no list")
        };
        for row in list.iter().filter_map(Value::as_object) {
            let (shared, own): (Vec<_>, Vec<_>) = row.keys().cloned().partition(|key| traffic.contains(key));
            self.0.entry(section.to_owned()).or_default().extend(own);
            self.0.entry("Traffic".to_owned()).or_default().extend(shared);
        }
    }
}

fn written() -> Keys {
    let json = |value: &dyn erased::Json| value.json();
    let mut all = Written::default();
    for event in full::events() {
        all.add("Event", &json(&event));
    }
    let snapshot = json(&full::snapshot());
    all.add("Snapshot", &snapshot);
    for (section, place) in [
        ("Host", "/host"),
        ("Health", "/health"),
        ("eBPF", "/health/ebpf"),
        ("Loss", "/health/losses"),
        ("Flood", "/health/floods"),
        ("Skipped", "/health/skipped"),
        ("Uprobes", "/health/uprobes"),
        ("Hardware counters", "/health/hw_counters"),
        ("Hardware port", "/health/hw_counters/ports"),
        ("Note", "/health/hw_counters/ports/1/why"),
        ("DEVX objects", "/processes/0/devx"),
        ("Counter group", "/processes/0/hw_counters"),
        ("Named counter", "/processes/0/hw_counters/0/counters"),
        ("Probe", "/health/probes"),
        ("Note", "/health/notes"),
        ("Note", "/health/errors"),
        ("Judgement", "/judgement"),
        ("Finding", "/findings"),
        ("Bound", "/processes/0/bound"),
        ("Bound", "/processes/1/bound"),
        ("GPU use", "/processes/0/bound/gpu"),
        ("TCP", "/processes/0/tcp"),
        ("Totals", "/judgement/totals"),
        ("Sum", "/judgement/totals/tx"),
        ("Sum", "/judgement/totals/wr"),
        ("State count", "/judgement/totals/states"),
        ("Stuck QP", "/judgement/stuck"),
        ("Unobserved", "/judgement/unobserved"),
        ("Unexplained", "/judgement/unexplained"),
        ("Note", "/judgement/unexplained/0/cause"),
        ("Candidate", "/judgement/unexplained/0/candidates"),
        ("Note", "/judgement/unobserved/0/cause"),
        ("Note", "/health/probes/1/causes"),
        ("Device", "/devices"),
        ("Port", "/ports"),
        ("Counter", "/ports/0/tx_bytes"),
        ("Counter", "/ports/0/congestion"),
        ("Counter", "/processes/0/verb_errors"),
        ("Counter", "/processes/1/rx_bytes"),
        ("Named counter", "/ports/0/counters"),
        ("Gauge", "/ports/0/gauges"),
        ("Opcode", "/qps/0/by_opcode"),
        ("Counter", "/qps/0/by_opcode/0/wr"),
        ("Status", "/qps/0/by_status"),
        ("Latency", "/qps/0/latency"),
        ("Counter", "/verbs/0/errors"),
        ("Latency", "/verbs/0/latency"),
        ("Step", "/qps/0/timeline"),
        ("Bond", "/ports/0/bond"),
        ("Member", "/ports/0/bond/members"),
        ("Counter", "/ports/0/bond/members/0/tx_bytes"),
        ("Verb", "/verbs"),
    ] {
        all.add(section, snapshot.pointer(place).expect(place));
    }
    let partial = Totals {
        qps_are_partial: true,
        ..Totals::default()
    };
    all.add("Totals", &json(&partial));
    let unavailable = EbpfState::unavailable(Obstacle::new(CauseId::Refused, "x", "y"));
    all.add("eBPF", &json(&unavailable));
    let traffic = json(&rdmatop_model::snapshot::Traffic::default());
    let traffic = traffic.as_object().expect("an object").keys().cloned().collect();
    all.add_with_traffic("Process", &snapshot["processes"], &traffic);
    all.add_with_traffic("QP", &snapshot["qps"], &traffic);
    let probes = super::probes(&full::snapshot().health);
    all.add("Probes", &serde_json::from_str(&probes).expect("JSON"));
    all.0
}

/// A `Serialize` that can be borrowed as a trait object.
mod erased {
    pub(super) trait Json {
        fn json(&self) -> serde_json::Value;
    }

    impl<T: serde::Serialize> Json for T {
        fn json(&self) -> serde_json::Value {
            serde_json::to_value(self).expect("it serialises")
        }
    }
}

#[test]
fn every_key_is_documented_and_every_documented_key_exists() {
    let (documented, written) = (documented(), written());
    let sections: BTreeSet<_> = documented.keys().chain(written.keys()).gather();
    let none = BTreeSet::new();
    for section in sections {
        let in_document = documented.get(section).unwrap_or(&none);
        let in_code = written.get(section).unwrap_or(&none);
        let missing: Vec<_> = in_code.difference(in_document).collect();
        let stale: Vec<_> = in_document.difference(in_code).collect();
        assert!(
            missing.is_empty() && stale.is_empty(),
            "{section}: not in docs/json.md: {missing:?}; only in docs/json.md: {stale:?}"
        );
    }
}

/// Compares the page's description of a row with the table of its fields, in both directions.
#[test]
fn every_key_of_a_row_has_its_field_and_every_field_its_key() {
    use rdmatop_model::fields::{self, Table};
    fn keys<R>(table: Table<R>) -> BTreeSet<String> {
        let paths = table
            .iter()
            .map(|field| field.meta.json)
            .filter(|path| !path.is_empty());
        paths
            .filter_map(|path| path.split('.').next())
            .map(str::to_owned)
            .gather()
    }
    let page = documented();
    let with_traffic = |section: &str| page[section].union(&page["Traffic"]).cloned().collect();
    assert_eq!(keys(fields::PROCESS), with_traffic("Process"));
    assert_eq!(keys(fields::QP), with_traffic("QP"));
    assert_eq!(keys(fields::PORT), page["Port"]);
    assert_eq!(keys(fields::DEVICE), page["Device"]);
    assert_eq!(keys(fields::VERB), page["Verb"]);
    assert_eq!(keys(fields::FINDING), page["Finding"]);
    assert_eq!(keys(fields::EVENT), page["Event"]);
}

#[test]
fn every_word_of_an_enumeration_is_documented() {
    use rdmatop_model::event::EventKind;
    let section = |title: &str| {
        let from = DOCUMENT.find(&format!("\n## {title}\n")).expect("the section");
        let rest = &DOCUMENT[from + 4..];
        &rest[..rest.find("\n## ").unwrap_or(rest.len())]
    };
    for kind in EventKind::ALL {
        assert!(
            section("Event").contains(&format!("`{}`", kind.name())),
            "{kind:?}"
        );
    }
    for word in rdmatop_common::counters::loss::NAMES
        .into_iter()
        .chain(["decode", "channel"])
    {
        assert!(section("Loss").contains(&format!("`{word}`")), "{word}");
    }
    for id in rdmatop_model::cause::CauseId::ALL {
        let word = serde_json::to_value(id).expect("a word");
        let word = word.as_str().expect("a word");
        assert!(section("Note").contains(&format!("* `{word}`: ")), "{word}");
    }
    for word in ["ok", "partial", "not_applicable", "unsupported", "broken"] {
        assert!(section("Probe").contains(&format!("`{word}`")), "{word}");
    }
}

#[test]
fn every_link_of_the_document_has_its_section() {
    let anchors: BTreeSet<String> = DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("## "))
        .map(|title| title.to_lowercase().replace(' ', "-"))
        .gather();
    for link in DOCUMENT.split("](#").skip(1) {
        let anchor = link.split(')').next().expect("a closed link");
        assert!(anchors.contains(anchor), "{anchor}");
    }
}
