//! Child processes that cannot outlive the test: threads collect the output, drop kills the child, and each
//! wait has a limit.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::wait::{self, PATIENCE};

/// Lines in the order of arrival, shared with the thread that reads.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    inner: Arc<(Mutex<Collected>, Condvar)>,
}

#[derive(Debug, Default)]
struct Collected {
    lines: Vec<String>,
    ended: bool,
}

impl Lines {
    fn none() -> Self {
        let lines = Self::default();
        lines.change(|collected| collected.ended = true);
        lines
    }

    fn collect(stream: impl Read + Send + 'static) -> Self {
        let lines = Self::default();
        let writer = lines.clone();
        thread::spawn(move || {
            let mut reader = BufReader::new(stream);
            let mut raw = Vec::new();
            while matches!(reader.read_until(b'\n', &mut raw), Ok(1..)) {
                let line = String::from_utf8_lossy(&raw).trim_end_matches('\n').to_owned();
                raw.clear();
                writer.change(|collected| collected.lines.push(line));
            }
            writer.change(|collected| collected.ended = true);
        });
        lines
    }

    fn change(&self, change: impl FnOnce(&mut Collected)) {
        change(&mut self.inner.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.inner.1.notify_all();
    }

    /// Returns all lines so far.
    pub fn all(&self) -> Vec<String> {
        self.inner
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .lines
            .clone()
    }

    /// Returns all lines so far as one text.
    pub fn text(&self) -> String {
        self.all().join("\n")
    }

    /// Returns the first line for which `wanted` is true; fails when the stream ends or the time is over
    /// before that.
    pub fn wait_for(&self, what: &str, limit: Duration, wanted: impl Fn(&str) -> bool) -> Result<String> {
        let end = Instant::now() + limit;
        let mut collected = self.inner.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(line) = collected.lines.iter().find(|line| wanted(line)) {
                return Ok(line.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if collected.ended || left.is_zero() {
                let why = if collected.ended {
                    "the output ended"
                } else {
                    "time is up"
                };
                bail!("no {what}: {why}; output was:\n{}", collected.lines.join("\n"));
            }
            collected = self
                .inner
                .1
                .wait_timeout(collected, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn wait_end(&self, limit: Duration) -> Result<()> {
        wait::until("the end of a child's output", limit, || {
            self.inner.0.lock().unwrap_or_else(PoisonError::into_inner).ended
        })
    }
}

/// A child with collected output.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    name: String,
    /// The child's standard output.
    pub out: Lines,
    /// The child's standard error.
    pub err: Lines,
}

impl Child {
    /// Starts `command` with a piped stdin and both outputs collected.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        Self::spawn_into(command, Stdio::piped(), Stdio::piped())
    }

    /// Starts a child like [`Self::spawn`], but its outputs go elsewhere and are empty here.
    pub fn spawn_into(
        command: &mut Command,
        stdout: impl Into<Stdio>,
        stderr: impl Into<Stdio>,
    ) -> Result<Self> {
        let name = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("start {name}"))?;
        // Otherwise the command would keep the other ends open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let out = child.stdout.take().map_or_else(Lines::none, Lines::collect);
        let err = child.stderr.take().map_or_else(Lines::none, Lines::collect);
        Ok(Self {
            process: child,
            name,
            out,
            err,
        })
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let pid = i32::try_from(self.process.id())?;
        // SAFETY: it is our own child and not waited for yet, so the PID is still its own.
        if unsafe { libc::kill(pid, signal) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error()).with_context(|| format!("signal {signal} to {}", self.name))
        }
    }

    /// Lowers the child's priority: a polling program keeps the CPU busy on which others start.
    pub fn step_back(&self) -> Result<()> {
        // SAFETY: no memory is passed; our own child was not waited for yet, so the PID is still its own.
        if unsafe { libc::setpriority(libc::PRIO_PROCESS, self.process.id(), 19) } == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error()).with_context(|| format!("the priority of {}", self.name))
        }
    }

    /// Writes a line to its stdin.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let stdin = self.process.stdin.as_mut().context("stdin is closed")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    /// Closes its stdin.
    pub fn close_stdin(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.process.try_wait()?)
    }

    /// Waits at most `limit` for its end; after that kills it and fails.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        let status = wait::for_some(&what, limit, || Ok(self.process.try_wait()?));
        if status.is_err() {
            let _ = self.process.kill();
        }
        let status =
            status.with_context(|| format!("its output:\n{}\n{}", self.out.text(), self.err.text()))?;
        self.out.wait_end(PATIENCE)?;
        self.err.wait_end(PATIENCE)?;
        Ok(status)
    }

    /// Waits for its end and fails unless the exit status is 0.
    pub fn succeed(&mut self, limit: Duration) -> Result<()> {
        let status = self.wait(limit)?;
        if status.success() {
            return Ok(());
        }
        let how = status
            .signal()
            .map_or_else(|| format!("{status}"), |signal| format!("signal {signal}"));
        bail!(
            "{} ended with {how}:\n{}\n{}",
            self.name,
            self.out.text(),
            self.err.text()
        )
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

/// Runs `command` to its end and returns its stdout; if it fails, the error has its stderr.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!(
            "{command:?}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
