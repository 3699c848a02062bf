//! Runs one long external step quietly: a line when it starts, the elapsed time while it runs,
//! its output only when it fails.

use std::error::Error;
use std::fmt;
use std::io::{IsTerminal, Read, Write, stderr};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// A failed step. A caller that knows how the program explains failures can search `output`.
#[derive(Debug)]
pub(crate) struct Failed {
    /// The name of the step.
    pub(crate) label: String,
    /// All output, of stdout and stderr together.
    pub(crate) output: String,
    program: String,
    status: ExitStatus,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            label,
            output,
            program,
            status,
        } = self;
        write!(f, "{label}: {program} failed ({status}):\n{}", tail(output, 15))
    }
}

impl Error for Failed {}

/// Held by the step that shows its clock: of steps that run at one time, the first alone does.
static CLOCK: Mutex<()> = Mutex::new(());

/// How often a step tells how far it is where stderr is no terminal.
const TOLD_EACH: u64 = 20;

/// Runs `command`, showing `label` and the elapsed time on stderr.
///
/// Returns what the command printed on stdout and stderr together.
pub(crate) fn run(label: &str, command: &mut Command) -> Result<String> {
    run_with(label, command, |_| String::new())
}

/// Like [`run`]. `share` tells from what the command has printed how far it is; what it returns stands behind
/// the elapsed time.
pub(crate) fn run_with(label: &str, command: &mut Command, share: impl Fn(&str) -> String) -> Result<String> {
    let live = stderr().is_terminal();
    let started = Instant::now();
    if !live {
        eprintln!("{label} ...");
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {program}"))?;
    let (sender, receiver) = mpsc::channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child
            .stdout
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
        child
            .stderr
            .take()
            .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>),
    ];
    for mut pipe in pipes.into_iter().flatten() {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut chunk = [0_u8; 8192];
            while let Ok(len) = pipe.read(&mut chunk) {
                if len == 0 || sender.send(chunk[..len].to_vec()).is_err() {
                    break;
                }
            }
        });
    }
    drop(sender);
    let mut output = Vec::new();
    let mut clock = None;
    let mut told = TOLD_EACH;
    loop {
        match receiver.recv_timeout(Duration::from_millis(500)) {
            Ok(chunk) => output.extend_from_slice(&chunk),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        let seconds = started.elapsed().as_secs();
        if live {
            clock = clock.or_else(|| CLOCK.try_lock().ok());
        }
        if clock.is_some() {
            let share = share(&String::from_utf8_lossy(&output));
            eprint!("\r{label} ... {seconds} s{share}\x1b[K");
            let _ = stderr().flush();
        } else if !live && seconds >= told {
            told += TOLD_EACH;
            let share = share(&String::from_utf8_lossy(&output));
            if !share.is_empty() {
                eprintln!("{label} ... {seconds} s{share}");
            }
        }
    }
    let status = child
        .wait()
        .with_context(|| format!("cannot wait for {program}"))?;
    let text = String::from_utf8_lossy(&output).into_owned();
    let seconds = started.elapsed().as_secs_f32();
    if status.success() {
        let start = if live { "\r" } else { "" };
        let end = if live { "\x1b[K" } else { "" };
        eprintln!("{start}{label}: done in {seconds:.1} s{end}");
        return Ok(text);
    }
    if live {
        eprintln!();
    }
    Err(Failed {
        label: label.to_owned(),
        output: text,
        program,
        status,
    }
    .into())
}

/// Returns the last `lines` lines of `text`.
pub(crate) fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_keeps_the_last_lines_and_a_short_text_whole() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 5), "a");
        assert_eq!(tail("", 5), "");
    }

    #[test]
    fn a_failing_step_reports_its_output() {
        let error = run("probe", Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert!(error.to_string().contains("why"), "{error}");
    }
}
