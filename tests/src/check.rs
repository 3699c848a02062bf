//! `rdmatop check`: what it finds.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::{
    child::Child,
    kernel,
    rdmatop::{self, END, Window},
    wait,
};

/// One that looks.
#[derive(Debug)]
pub struct Looking(Child);

/// What it says, and its exit code.
#[derive(Debug)]
pub struct Check {
    /// What it printed.
    pub document: Value,
    /// The exit code.
    pub code: Option<i32>,
}

impl Looking {
    /// It begins, and looks for some seconds.
    pub fn begin(seconds: &str) -> Result<Self> {
        Self::begin_with(seconds, &[])
    }

    /// As [`Self::begin`], with variables of the environment.
    pub fn begin_with(seconds: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let mut command = rdmatop::command(&["check", "--json", "--for", seconds])?;
        command.envs(variables.iter().copied());
        Ok(Self(Child::spawn(&mut command)?))
    }

    /// As [`Self::begin`], and waits until its programs are attached. It does not say when: it has as many
    /// probes as a window then, which says when it counts.
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

    /// Ends it by Ctrl-C: what it has found until now.
    pub fn interrupt(self) -> Result<Check> {
        self.0.signal(libc::SIGINT)?;
        self.end()
    }

    /// What it has found.
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
    /// Looks for some seconds.
    pub fn of(seconds: &str) -> Result<Self> {
        Looking::begin(seconds)?.end()
    }

    /// All findings.
    pub fn findings(&self) -> Result<&Vec<Value>> {
        self.document["findings"].as_array().context("no findings")
    }

    /// There is this finding and no other; it names the process.
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
