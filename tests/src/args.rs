//! Options of the traffic programs, only `--name value` and `--flag`.

use std::{io::Write, str::FromStr};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The arguments of this process.
#[derive(Debug)]
pub struct Args {
    left: Vec<String>,
}

impl Args {
    /// Takes the arguments of the process.
    pub fn from_env() -> Self {
        Self {
            left: std::env::args().skip(1).collect(),
        }
    }

    /// The value of `--name`, or `default`.
    pub fn value<T>(&mut self, name: &str, default: T) -> Result<T>
    where
        T: FromStr,
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let Some(at) = self.left.iter().position(|arg| arg == name) else {
            return Ok(default);
        };
        let value = self
            .left
            .get(at + 1)
            .with_context(|| format!("{name} needs a value"))?;
        let value = value.parse().with_context(|| format!("{name} {value}"))?;
        self.left.drain(at..=at + 1);
        Ok(value)
    }

    /// Whether `--name` was given.
    pub fn flag(&mut self, name: &str) -> bool {
        let before = self.left.len();
        self.left.retain(|arg| arg != name);
        self.left.len() != before
    }

    /// Fails if an argument was not understood.
    pub fn finish(self) -> Result<()> {
        match self.left.as_slice() {
            [] => Ok(()),
            rest => bail!("unknown arguments: {}", rest.join(" ")),
        }
    }
}

/// Prints one JSON object on one line of stdout and flushes it, because the reader waits for it.
pub fn report(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()?;
    Ok(())
}

/// Reads stdin until the other side closes it.
pub fn wait_for_stdin_end() -> Result<()> {
    std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
    Ok(())
}
