//! Runs the rdmatop binary as a stream of events or for one sample.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{
    child::Child,
    events::Events,
    lab,
    snapshot::Snapshot,
    wait::{self, PATIENCE},
};

/// How long a clean end may take, which first detaches every program.
pub const END: Duration = PATIENCE;
/// The length of a window in seconds: longer than any traffic, after which it is closed.
const WINDOW: &str = "600";

/// Returns the rdmatop binary: `$RDMATOP`, or the one built beside the tests. In the lab it is a copy that
/// every user can execute, because the repository may lie below a directory that only its owner can enter,
/// such as root's home.
pub fn program() -> Result<PathBuf> {
    let built = built()?;
    if !lab::is_here() {
        return Ok(built);
    }
    let copy = PathBuf::from("/run/rdmatop-tests/rdmatop");
    let made = |path: &Path| -> Result<_> {
        let meta = fs::metadata(path).with_context(|| path.display().to_string())?;
        Ok((meta.len(), meta.modified()?))
    };
    let wanted = made(&built)?;
    // One copy serves all tests of a guest.
    if made(&copy).is_ok_and(|there| there == wanted) {
        return Ok(copy);
    }
    let dir = copy.parent().context("no directory")?;
    fs::create_dir_all(dir)?;
    // Written under another name first, so that a test running in parallel sees no partial file.
    let part = dir.join(format!("rdmatop.{}", std::process::id()));
    fs::copy(&built, &part).with_context(|| format!("cannot copy {}", built.display()))?;
    fs::File::options()
        .write(true)
        .open(&part)?
        .set_modified(wanted.1)?;
    for path in [dir, &part] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    fs::rename(&part, &copy)?;
    Ok(copy)
}

/// Returns the path where it was built.
fn built() -> Result<PathBuf> {
    if let Some(path) = env::var_os("RDMATOP") {
        return Ok(path.into());
    }
    let own = env::current_exe()?;
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("rdmatop"))
        .find(|path| path.is_file());
    found.context("no rdmatop binary: cargo build -p rdmatop, or set RDMATOP to its path")
}

/// Returns `rdmatop` with `args`, without colour.
pub fn command(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(program()?);
    command.args(args).env("NO_COLOR", "1");
    Ok(command)
}

/// Waits for the line on stderr that reports the start of counting: `rdmatop: tracing, ...`, or `rdmatop:
/// measuring ...` of a window.
pub fn wait_counting(child: &Child) -> Result<String> {
    child
        .err
        .wait_for("line `rdmatop: tracing ...` on stderr", PATIENCE, |line| {
            line.starts_with("rdmatop: tracing") || line.starts_with("rdmatop: measuring")
        })
}

/// A running `rdmatop --trace --json` that has attached everything.
#[derive(Debug)]
pub struct Trace {
    /// The process.
    pub child: Child,
}

/// The complete output of a trace.
#[derive(Debug)]
pub struct Traced {
    /// The events.
    pub events: Events,
    /// The lines of stderr, with the summary at the end.
    pub stderr: Vec<String>,
    /// How it ended.
    pub status: ExitStatus,
}

impl Traced {
    /// Returns the lines that say which programs the kernel skipped, and how often.
    pub fn skips(&self) -> Vec<&str> {
        let lines = self.stderr.iter().map(String::as_str);
        lines
            .filter(|line| line.starts_with("rdmatop: the kernel skipped "))
            .collect()
    }

    /// Returns the events, of which none may be lost.
    ///
    /// # Panics
    ///
    /// If some were lost; the message says which, and what rdmatop reported about them.
    pub fn whole(&self) -> &Events {
        let lost = self.events.kind("lost");
        assert!(
            lost.is_empty(),
            "events were lost: {:?}\n{}",
            lost.all(),
            self.stderr.join("\n")
        );
        &self.events
    }
}

impl Trace {
    /// Starts a trace with more options and waits until it counts.
    pub fn start(args: &[&str]) -> Result<Self> {
        Self::start_with(args, &[])
    }

    /// As [`Self::start`], with more variables in its environment.
    pub fn start_with(args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let mut command = command(&["--trace", "--json"])?;
        command.args(args).envs(env.iter().copied());
        let child = Child::spawn(&mut command)?;
        wait_counting(&child)?;
        Ok(Self { child })
    }

    /// Returns the events so far.
    pub fn events(&self) -> Result<Events> {
        Events::parse(&self.child.out.all())
    }

    /// Ends the trace by Ctrl-C and returns its output, which must have all that happened before.
    pub fn stop(mut self) -> Result<Traced> {
        self.child.signal(libc::SIGINT)?;
        let status = self.child.wait(END)?;
        let stderr = self.child.err.all();
        ensure!(
            status.success(),
            "rdmatop ended with {status}: {}",
            stderr.join("\n")
        );
        Ok(Traced {
            events: self.events()?,
            stderr,
            status,
        })
    }
}

/// A running `rdmatop --once --json --delay N` whose window is open.
#[derive(Debug)]
pub struct Window {
    child: Child,
}

impl Window {
    /// Opens a window and waits until it counts.
    pub fn open(args: &[&str]) -> Result<Self> {
        Self::open_with(args, &[])
    }

    /// As [`Self::open`], with more variables in its environment.
    pub fn open_with(args: &[&str], env: &[(&str, &str)]) -> Result<Self> {
        let mut command = command(&["--once", "--json", "--delay", WINDOW])?;
        let child = Child::spawn(command.args(args).envs(env.iter().copied()))?;
        wait_counting(&child)?;
        Ok(Self { child })
    }

    /// Opens a window like [`Self::open`], run by a program in front of it.
    pub fn open_under(front: &[&str]) -> Result<Self> {
        let once = command(&["--once", "--json", "--delay", WINDOW])?;
        let mut command = Command::new(front[0]);
        command
            .args(&front[1..])
            .arg(once.get_program())
            .args(once.get_args());
        for (name, value) in once.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        let child = Child::spawn(&mut command)?;
        wait_counting(&child)?;
        Ok(Self { child })
    }

    /// The child process, to be stopped and continued.
    pub fn child(&self) -> &Child {
        &self.child
    }

    /// Sends rdmatop a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        self.child.signal(signal)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// Waits until its main thread has gone to sleep `times` more times. While the window is open it wakes
    /// every 200 ms to look up new processes, which takes as long as the machine needs.
    pub fn wait_looks(&self, times: u64) -> Result<()> {
        let slept = || -> Result<u64> {
            let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            Ok(line.context("no count of switches")?.trim().parse()?)
        };
        let before = slept()?;
        wait::for_some("the looks of rdmatop", PATIENCE, || {
            Ok((slept()? >= before + times).then_some(()))
        })
    }

    /// Ends the window and reads the sample. The traffic must be over: a window that closed earlier would
    /// count less, and the test would blame the counters.
    pub fn close(mut self) -> Result<Snapshot> {
        ensure!(
            self.child.ended()?.is_none(),
            "the window of {WINDOW} s closed before the traffic ended: {}",
            self.child.err.text()
        );
        self.child.signal(libc::SIGINT)?;
        self.child.succeed(END)?;
        Snapshot::parse(&self.child.out.text())
    }
}

/// Runs `rdmatop --once --json` with more options.
pub fn once(args: &[&str]) -> Result<Snapshot> {
    let mut child = Child::spawn(command(&["--once", "--json"])?.args(args))?;
    child.succeed(PATIENCE)?;
    Snapshot::parse(&child.out.text())
}

/// Runs `rdmatop probes --json` with more options.
pub fn probes(args: &[&str]) -> Result<Value> {
    let mut child = Child::spawn(command(&["probes", "--json"])?.args(args))?;
    child.succeed(PATIENCE)?;
    Ok(serde_json::from_str(&child.out.text())?)
}
