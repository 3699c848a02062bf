//! A program on a terminal of 160 columns and 50 rows, whose output is taken and thrown away.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

static SIZE: libc::winsize = libc::winsize {
    ws_row: 50,
    ws_col: 160,
    ws_xpixel: 0,
    ws_ypixel: 0,
};
/// "Where is the cursor?" (DSR 6, ECMA-48) and the answer. A program that asks waits seconds for a terminal that is
/// silent, which would be measured as its start.
const ASKED: &[u8] = b"\x1b[6n";
const ANSWER: &[u8] = b"\x1b[1;1R";
/// Enough of the output for the first screens; the rest only counts.
const KEPT: usize = 1 << 20;

#[derive(Default)]
struct Screen {
    bytes: Vec<u8>,
    ended: bool,
}

/// A running full-screen program; killed when dropped.
pub(crate) struct OnTerminal {
    child: Child,
    started: Instant,
    keys: File,
    screen: Arc<(Mutex<Screen>, Condvar)>,
}

impl OnTerminal {
    /// Starts `command` as the leader of a terminal of its own.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let (mut master, mut slave) = (0, 0);
        // SAFETY: two places for descriptors; name and modes may be null; the size is only read.
        let rc = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const SIZE,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error()).context("no terminal");
        }
        // SAFETY: just opened by openpty, owned by nobody else.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        // The child must not hold the master: its end would go unseen.
        // SAFETY: plain numbers.
        unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        command
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .stderr(slave)
            .env("TERM", "xterm-256color");
        // SAFETY: both calls are async-signal-safe; the terminal is the new session's stdin.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let screen = Arc::new((Mutex::new(Screen::default()), Condvar::new()));
        let writer = Arc::clone(&screen);
        let mut output = File::from(master.try_clone()?);
        let mut answers = File::from(master.try_clone()?);
        thread::spawn(move || {
            let mut chunk = [0_u8; 16 << 10];
            // EIO is how a terminal's end reads.
            while let Ok(got @ 1..) = output.read(&mut chunk) {
                if contains(&chunk[..got], ASKED) {
                    let _ = answers.write_all(ANSWER);
                }
                let mut screen = writer.0.lock().unwrap_or_else(PoisonError::into_inner);
                if screen.bytes.len() < KEPT {
                    screen.bytes.extend_from_slice(&chunk[..got]);
                    writer.1.notify_all();
                }
            }
            writer.0.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            writer.1.notify_all();
        });
        Ok(Self {
            child,
            started,
            keys: File::from(master),
            screen,
        })
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time from the start until `text` was written.
    pub(crate) fn wait_for(&self, text: &str, limit: Duration) -> Result<Duration> {
        let mut screen = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if contains(&screen.bytes, text.as_bytes()) {
                return Ok(self.started.elapsed());
            }
            let left = limit.saturating_sub(self.started.elapsed());
            if left.is_zero() || screen.ended {
                let end = screen.bytes.len().saturating_sub(300);
                bail!(
                    "{text:?} did not come on the screen; it ends with {:?}",
                    String::from_utf8_lossy(&screen.bytes[end..])
                );
            }
            screen = self
                .screen
                .1
                .wait_timeout(screen, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Fails when the program has ended by itself.
    pub(crate) fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let screen = self.screen.0.lock().unwrap_or_else(PoisonError::into_inner);
            bail!(
                "it ended with {status}: {}",
                String::from_utf8_lossy(&screen.bytes)
            );
        }
        Ok(())
    }

    /// Asks for the end by `q` and waits, so that what it attached is detached before the next measurement.
    pub(crate) fn quit(mut self) -> Result<()> {
        self.keys.write_all(b"q")?;
        let end = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() {
            if Instant::now() > end {
                // Drop kills it.
                return Ok(());
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}
