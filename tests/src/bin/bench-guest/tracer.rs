//! Event tracers that print to a file: rdmatop --trace and bpftrace.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::wait;

use crate::{Bench, cpu};

const ATTACH: Duration = Duration::from_mins(3);
const END: Duration = Duration::from_mins(1);
/// A tracer that has used no CPU for this long has printed everything.
const QUIET: Duration = Duration::from_millis(600);

/// The bpftrace script that prints each QP event, on the functions that rdmatop hooks.
pub(crate) const PRINT_ALL: &str = r#"
BEGIN { printf("READY\n"); }
kprobe:rdma_restrack_add { printf("%llu %s %d create\n", nsecs, comm, pid); }
kprobe:_ib_modify_qp { printf("%llu %s %d modify\n", nsecs, comm, pid); }
kprobe:ib_destroy_qp_user { printf("%llu %s %d destroy\n", nsecs, comm, pid); }
"#;

/// A running tracer.
pub(crate) struct Tracer {
    child: Child,
    out: String,
    err: String,
}

/// What the tracer printed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Printed {
    /// Lines with events.
    pub(crate) lines: u64,
    /// Events that it reported lost.
    pub(crate) lost: u64,
}

impl Tracer {
    /// Starts rdmatop --trace with more options; returns when it counts.
    pub(crate) fn ours(bench: &Bench, args: &[&str], ring: Option<u32>, file: &str) -> Result<Self> {
        let mut command = Command::new(&bench.ours);
        command.arg("--trace").args(args).env("NO_COLOR", "1");
        if let Some(bytes) = ring {
            command.env("RDMATOP_RING_BYTES", bytes.to_string());
        }
        let tracer = Self::spawn(&mut command, file)?;
        let ready = |line: &str| line.starts_with("rdmatop: tracing");
        tracer.wait_line(&tracer.err, "the line that tracing has begun", ready)?;
        Ok(tracer)
    }

    /// Starts bpftrace with a script that prints READY at BEGIN, which runs after everything is attached.
    pub(crate) fn bpftrace(script: &str, file: &str) -> Result<Self> {
        let tracer = Self::spawn(Command::new("bpftrace").args(["-e", script]), file)?;
        tracer.wait_line(&tracer.out, "READY of bpftrace", |line| line == "READY")?;
        Ok(tracer)
    }

    fn spawn(command: &mut Command, file: &str) -> Result<Self> {
        let (out, err) = (format!("{file}.out"), format!("{file}.err"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()
            .with_context(|| format!("start {command:?}"))?;
        Ok(Self { child, out, err })
    }

    fn wait_line(&self, file: &str, what: &str, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let pid = self.child.id();
        wait::for_some(what, ATTACH, || {
            let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if state.is_empty() || state.contains(") Z ") {
                bail!("it ended: {}", std::fs::read_to_string(&self.err)?.trim());
            }
            let text = std::fs::read_to_string(file)?;
            Ok(text.lines().any(&wanted).then_some(()))
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the tracer has processed its backlog; returns its CPU time so far.
    pub(crate) fn idle(&self) -> Result<u64> {
        // A tracer may sample at intervals, so a little CPU time now and then is no backlog.
        const LITTLE: u64 = 2_000_000;
        let mut last = cpu::process(self.pid())?;
        for _ in 0..200 {
            thread::sleep(QUIET);
            let now = cpu::process(self.pid())?;
            if now - last < LITTLE {
                return Ok(now);
            }
            last = now;
        }
        bail!("it did not come to rest in two minutes")
    }

    /// Ends the tracer by Ctrl-C, which makes it flush, and counts its output.
    pub(crate) fn stop(mut self) -> Result<Printed> {
        let pid = libc::pid_t::try_from(self.child.id())?;
        // SAFETY: it is our own child and was not waited for yet.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let ended = wait::for_some("the end of a tracer", END, || Ok(self.child.try_wait()?));
        let status = ended
            .with_context(|| std::fs::read_to_string(format!("/proc/{pid}/stack")).unwrap_or_default())?;
        let err = std::fs::read_to_string(&self.err)?;
        ensure!(status.success(), "it ended with {status}: {}", err.trim());
        let mut lines = 0;
        let mut text = err;
        for line in BufReader::new(File::open(&self.out)?).lines() {
            let line = line?;
            if is_event(&line) {
                lines += 1;
            } else {
                text.push_str(&line);
                text.push('\n');
            }
        }
        Ok(Printed {
            lines,
            lost: lost(&text),
        })
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether a line is an event, and not a heading, bpftrace's own message or rdmatop's line about a loss.
fn is_event(line: &str) -> bool {
    let own = ["READY", "Attaching", "Lost", "@", "TIME"];
    !line.is_empty() && !own.iter().any(|word| line.starts_with(word)) && !line.contains(" lost ")
}

/// Sums bpftrace's `Lost N events`, or takes the number of rdmatop's last line, `..., N lost in 1.5s`.
fn lost(text: &str) -> u64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().ok();
    words
        .windows(3)
        .filter_map(|three| match three {
            ["Lost", count, "events"] | [count, "lost", "in"] => number(count),
            _ => None,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_both_tracers_are_read() {
        assert_eq!(lost("Lost 12 events\nLost 3 events\n"), 15);
        assert_eq!(lost("rdmatop: 9 events seen, 9 printed, 4 lost in 1.50s\n"), 4);
        assert_eq!(lost("rdmatop: tracing 9 programs\n"), 0);
    }

    #[test]
    fn what_a_tracer_says_of_itself_is_no_event() {
        assert!(!is_event("Attaching 3 probes..."));
        assert!(!is_event("READY"));
        assert!(!is_event(""));
        assert!(is_event("12:00:01.5 qp_create rxe0 17"));
    }
}
