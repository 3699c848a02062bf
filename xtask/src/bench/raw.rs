//! What the guest measured: named numbers, and the reasons why some are missing.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

/// The guest's report, of one stage or of all stages.
#[derive(Clone, Debug, Default)]
pub(crate) struct Raw {
    pub(crate) values: BTreeMap<String, f64>,
    pub(crate) missing: BTreeMap<String, String>,
}

impl Raw {
    /// Reads a report.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let report: Value = serde_json::from_str(text).context("the guest's report is no JSON")?;
        let part = |name: &str| {
            report[name]
                .as_object()
                .with_context(|| format!("the guest's report has no {name:?}"))
        };
        let mut raw = Self::default();
        for (name, value) in part("values")? {
            // A ratio that was NaN in the guest arrives as null, which is no value.
            match value.as_f64() {
                Some(value) => raw.values.insert(name.clone(), value).map(drop),
                None => raw.missing.insert(name.clone(), "no number".to_owned()).map(drop),
            };
        }
        for (name, why) in part("missing")? {
            let why = why.as_str().unwrap_or("unknown");
            raw.missing.insert(name.clone(), why.to_owned());
        }
        Ok(raw)
    }

    /// Adds another stage's report.
    pub(crate) fn merge(&mut self, other: Self) {
        self.values.extend(other.values);
        self.missing.extend(other.missing);
    }

    /// Returns a value, or why there is none: the reason given for the value itself or for its scenario.
    pub(crate) fn get(&self, name: &str) -> Result<f64, String> {
        if let Some(value) = self.values.get(name) {
            return Ok(*value);
        }
        let first_word = name.split('.').next().unwrap_or(name);
        let own = self.missing.get(name);
        let above = self.missing.iter().find(|(key, _)| {
            name.strip_prefix(key.as_str())
                .is_some_and(|rest| rest.starts_with('.'))
        });
        let scenario = self.missing.get(scenario(first_word));
        let stage = self.missing.iter().find(|(key, _)| key.starts_with("stage "));
        let why = own
            .or(above.map(|(_, why)| why))
            .or(scenario)
            .or(stage.map(|(_, why)| why));
        Err(why.map_or_else(|| format!("no value {name}"), |why| one_line(why)))
    }
}

/// Returns the guest's scenario that measures values with this first word.
fn scenario(first_word: &str) -> &str {
    match first_word {
        "post" => "posts",
        "event" => "events",
        "first_event" => "start",
        "ebpf" | "noebpf" | "peer" | "floor" => "refresh",
        other => other,
    }
}

/// Shortens a reason to one line of limited length for the table.
fn one_line(text: &str) -> String {
    const LIMIT: usize = 160;
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ").replace('|', "/");
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{} ...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_reasons_are_read() {
        let raw = Raw::parse(r#"{"values":{"a.b":1.5,"n":null},"missing":{"c":"no tool"}}"#).unwrap();
        assert_eq!(raw.get("a.b"), Ok(1.5));
        assert_eq!(raw.get("n"), Err("no number".to_owned()));
        assert_eq!(raw.get("c.d.e"), Err("no tool".to_owned()));
        assert_eq!(raw.get("zzz"), Err("no value zzz".to_owned()));
    }

    #[test]
    fn a_failed_scenario_or_stage_explains_its_values() {
        let raw = Raw::parse(r#"{"values":{},"missing":{"posts":"no\nQP"}}"#).unwrap();
        assert_eq!(raw.get("post.none"), Err("no QP".to_owned()));
        let raw = Raw::parse(r#"{"values":{},"missing":{"stage one":"guest died"}}"#).unwrap();
        assert_eq!(raw.get("ebpf.idle.cpu"), Err("guest died".to_owned()));
    }

    #[test]
    fn a_report_that_is_none_is_an_error() {
        assert!(Raw::parse("").is_err());
        assert!(Raw::parse(r#"{"values":{}}"#).is_err());
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let text = one_line(&"ä".repeat(400));
        assert!(text.ends_with(" ...") && text.chars().count() == 164);
    }
}
