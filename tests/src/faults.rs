//! Runs rdmatop on a machine on which something is missing.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    child::Child,
    rdmatop::{self, END},
    snapshot::Snapshot,
};

/// Runs `rdmatop ARGS` behind `words`, such as `prlimit --nofile=20`; returns the exit code and the output.
pub fn behind(words: &[&str], args: &[&str]) -> Result<(Option<i32>, Child)> {
    let program = rdmatop::program()?;
    let (first, rest) = words.split_first().context("no words")?;
    let mut command = Command::new(first);
    command.args(rest).arg(program).args(args).env("NO_COLOR", "1");
    let mut child = Child::spawn(&mut command)?;
    let status = child.wait(END)?;
    Ok((status.code(), child))
}

/// Takes one sample behind `words`.
pub fn sample(words: &[&str]) -> Result<Snapshot> {
    let (code, child) = behind(words, &["--once", "--json", "--delay", "0.2"])?;
    ensure!(code == Some(0), "{code:?}: {}", child.err.text());
    Snapshot::parse(&child.out.text())
}

/// Returns words that run a program in a mount namespace of its own after `script`.
pub fn after(script: &str) -> [String; 5] {
    let script = format!("{script} && exec \"$0\" \"$@\"");
    ["unshare", "-m", "sh", "-c", &script].map(str::to_owned)
}

/// Takes one sample after `script`, in a mount namespace of its own.
pub fn sample_after(script: &str) -> Result<Snapshot> {
    let words = after(script);
    sample(&words.each_ref().map(String::as_str))
}

/// Returns the notes in the form of the text of `--once`.
pub fn notes(sample: &Snapshot) -> Vec<String> {
    notes_of(&sample.value()["health"]["notes"])
}

/// Returns a list of notes as lines.
pub fn notes_of(list: &Value) -> Vec<String> {
    let part = |note: &Value, key: &str| note[key].as_str().unwrap_or_default().to_owned();
    list.as_array()
        .into_iter()
        .flatten()
        .map(|note| {
            let [what, why, remedy] = ["what", "why", "remedy"].map(|key| part(note, key));
            format!("{what}: {why}. {remedy}")
        })
        .collect()
}

/// Sets a switch of the kernel and restores the old value when dropped.
#[derive(Debug)]
pub struct Switch {
    path: &'static str,
    before: String,
}

impl Switch {
    /// Writes `value`.
    pub fn set(path: &'static str, value: &str) -> Result<Self> {
        let before = fs::read_to_string(path).context(path)?;
        fs::write(path, value).context(path)?;
        Ok(Self { path, before })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.before);
    }
}
