//! Runs `rdmatop check` and reads its findings.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    child::Child,
    kernel,
    rdmatop::{self, END, Window},
    wait,
};

/// A running `rdmatop check`.
#[derive(Debug)]
pub struct Looking(Child);

/// Its output and exit code.
#[derive(Debug)]
pub struct Check {
    /// The document that it printed.
    pub document: Value,
    /// The exit code.
    pub code: Option<i32>,
}

impl Looking {
    /// Starts a check of this many seconds.
    pub fn begin(seconds: &str) -> Result<Self> {
        Self::begin_with(seconds, &[])
    }

    /// Starts a check like [`Self::begin`], with environment variables.
    pub fn begin_with(seconds: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = rdmatop::command(&["check", "--json", "--for", seconds])?;
        command.envs(variables.iter().copied());
        Ok(Self(Child::spawn(&mut command)?))
    }

    /// Starts a check like [`Self::begin`] and waits until its programs are attached. `check` does not report
    /// that, so this waits for as many probes as a window has, which reports when it counts.
    pub fn begin_attached(seconds: &str) -> Result<Self> {
        let window = Window::open(&[])?;
        let all = kernel::probes()?.len();
        window.close()?;
        ensure!(kernel::probes()?.is_empty(), "probes are left");
        let looking = Self::begin(seconds)?;
        wait::for_some("the probes of rdmatop check", END, || {
            Ok((kernel::probes()?.len() >= all).then_some(()))
        })?;
        Ok(looking)
    }

    /// Ends the check by Ctrl-C and returns what it has found so far.
    pub fn interrupt(self) -> Result<Check> {
        self.0.signal(libc::SIGINT)?;
        self.end()
    }

    /// Waits for the end and returns what was found.
    pub fn end(mut self) -> Result<Check> {
        let status = self.0.wait(END * 2)?;
        let text = self.0.out.text();
        let document =
            serde_json::from_str(&text).with_context(|| format!("{text}\n{}", self.0.err.text()))?;
        Ok(Check {
            document,
            code: status.code(),
        })
    }
}

impl Check {
    /// Runs a check of this many seconds.
    pub fn of(seconds: &str) -> Result<Self> {
        Looking::begin(seconds)?.end()
    }

    /// All findings.
    pub fn findings(&self) -> Result<&Vec<Value>> {
        self.document["findings"].as_array().context("no findings")
    }

    /// Fails unless this is the only finding and it names the process.
    pub fn is_only(&self, id: &str, code: i32, pid: Option<u32>) -> Result<&Value> {
        let [found] = &self.findings()?[..] else {
            anyhow::bail!("{id} is to be the only finding: {:#}", self.document);
        };
        ensure!(found["id"] == id, "{id}: {found:#}");
        ensure!(
            self.code == Some(code),
            "{id}: exit code {:?}: {found:#}",
            self.code
        );
        if let Some(pid) = pid {
            ensure!(found["pid"] == pid, "{id}: PID {pid}: {found:#}");
            let verdict = found["verdict"].as_str().context("no verdict")?;
            ensure!(verdict.contains(&format!("PID {pid}")), "{verdict}");
        }
        Ok(found)
    }
}
