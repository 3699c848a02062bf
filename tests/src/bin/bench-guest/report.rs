//! The measured numbers by name, and the reasons of missing ones.

use std::{collections::BTreeMap, fs, io::Write, path::PathBuf};

use anyhow::{Context as _, Result};
use serde_json::json;

/// Named numbers, which the host reads.
pub(crate) struct Report {
    path: PathBuf,
    values: BTreeMap<String, f64>,
    missing: BTreeMap<String, String>,
}

impl Report {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            values: BTreeMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// Records a number.
    pub(crate) fn value(&mut self, name: impl Into<String>, value: f64) {
        let name = name.into();
        say(&format!("  {name} = {value}"));
        self.values.insert(name, value);
    }

    /// Records a number, or why there is none: the failure of one reading must not cost the others.
    pub(crate) fn try_value(&mut self, name: &str, value: Result<f64>) {
        match value {
            Ok(value) => self.value(name, value),
            Err(error) => self.missing(name, &format!("{error:#}")),
        }
    }

    /// Records why something was not measured.
    pub(crate) fn missing(&mut self, name: &str, why: &str) {
        say(&format!("  {name}: not measured: {why}"));
        self.missing.insert(name.to_owned(), why.to_owned());
    }

    /// Writes everything recorded so far.
    pub(crate) fn write(&self) -> Result<()> {
        let text = json!({"values": self.values, "missing": self.missing}).to_string();
        fs::write(&self.path, text).with_context(|| format!("write {}", self.path.display()))
    }
}

/// One line of progress on stderr.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "bench: {line}");
}
