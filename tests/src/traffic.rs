//! Runs the traffic programs of this package (src/bin) and reads the objects they print.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{child::Child, wait::PATIENCE};

/// The longest time that any of these programs takes.
pub const LIMIT: Duration = PATIENCE;

/// A running traffic program.
#[derive(Debug)]
pub struct Traffic {
    /// The process.
    pub child: Child,
}

impl Traffic {
    /// Starts program `name` with `args`.
    pub fn start(name: &str, args: &[&str]) -> Result<Self> {
        Ok(Self {
            child: Child::spawn(Command::new(path(name)?).args(args))?,
        })
    }

    /// Waits for its first object, which it prints when everything is set up.
    pub fn ready(&self) -> Result<Value> {
        let line = self
            .child
            .out
            .wait_for("first object", LIMIT, |line| line.starts_with('{'));
        Ok(serde_json::from_str(
            &line.with_context(|| self.child.err.text())?,
        )?)
    }

    /// Closes its stdin, waits for its end and reads its last object.
    pub fn finish(mut self) -> Result<Value> {
        self.child.close_stdin();
        self.child.succeed(LIMIT)?;
        let last = self.child.out.all().pop().context("it printed nothing")?;
        Ok(serde_json::from_str(&last)?)
    }
}

/// Runs program `name` to its end and reads its last object.
pub fn run(name: &str, args: &[&str]) -> Result<Value> {
    Traffic::start(name, args)?.finish()
}

/// An integer of an object.
pub fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("no {key} in {value}"))
}

/// A process id or a QPN of an object.
pub fn id(value: &Value, key: &str) -> Result<u32> {
    Ok(u32::try_from(number(value, key)?)?)
}

/// Returns a traffic program's path: tests are in target/PROFILE/deps, programs in target/PROFILE.
pub fn path(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(name))
        .find(|path: &PathBuf| path.is_file());
    found.with_context(|| {
        let dir = own
            .parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new(""))
            .display();
        format!("no {name} in {dir}: cargo build -p rdmatop-tests --bins")
    })
}
