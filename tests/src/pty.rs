//! Runs a program on a terminal of its own with 160 columns and 50 rows, whose output is read, or left unread
//! for a while.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Child, Command, ExitStatus},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::wait::{self, PATIENCE};

/// Columns and rows at the start.
pub const SIZE: (u16, u16) = (160, 50);
/// The question for the cursor's position (DSR 6, ECMA-48) and the answer. A program that asks waits seconds
/// for a terminal that does not answer, and this would be measured as its start.
const ASKED: &[u8] = b"\x1b[6n";
const ANSWER: &[u8] = b"\x1b[1;1R";
/// How often, in milliseconds, the reader checks whether to go on.
const LOOK: libc::c_int = 50;
/// The bytes of output that are kept, enough for the first screens; the rest is only counted.
const KEPT: usize = 1 << 20;

#[derive(Default)]
struct Screen {
    bytes: Vec<u8>,
    ended: bool,
    stalled: bool,
    closed: bool,
}

/// A running full-screen program; killed when dropped.
pub struct OnTerminal {
    child: Child,
    started: Instant,
    keys: Option<File>,
    reader: Option<JoinHandle<()>>,
    screen: Arc<(Mutex<Screen>, Condvar)>,
}

/// Reads output until the terminal ends or is closed.
fn read(shared: &(Mutex<Screen>, Condvar), mut terminal: File) {
    let lock = || shared.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut chunk = [0_u8; 16 << 10];
    loop {
        let mut screen = lock();
        while screen.stalled && !screen.closed {
            screen = shared.1.wait(screen).unwrap_or_else(PoisonError::into_inner);
        }
        if screen.closed {
            return;
        }
        drop(screen);
        let mut ready = libc::pollfd {
            fd: terminal.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor of ours is passed.
        if unsafe { libc::poll(&raw mut ready, 1, LOOK) } == 0 {
            continue;
        }
        if lock().stalled {
            continue;
        }
        // Reading returns EIO at a terminal's end.
        let Ok(got @ 1..) = terminal.read(&mut chunk) else {
            break;
        };
        if contains(&chunk[..got], ASKED) {
            let _ = terminal.write_all(ANSWER);
        }
        let mut screen = lock();
        let room = KEPT.saturating_sub(screen.bytes.len()).min(got);
        screen.bytes.extend_from_slice(&chunk[..room]);
        drop(screen);
        shared.1.notify_all();
    }
    lock().ended = true;
    shared.1.notify_all();
}

fn window((columns, rows): (u16, u16)) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

impl OnTerminal {
    /// Starts `command` as the session leader of a terminal of its own.
    pub fn start(command: &mut Command) -> Result<Self> {
        Self::start_on(command, true)
    }

    /// Starts it like [`Self::start`]; with `errors` stderr is the terminal too, else as `command` has it.
    pub fn start_on(command: &mut Command, errors: bool) -> Result<Self> {
        let (mut master, mut slave) = (0, 0);
        let size = window(SIZE);
        // SAFETY: two places for descriptors; name and modes may be null; the size is only read.
        let rc = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error()).context("no terminal");
        }
        // SAFETY: openpty has just opened them, and they have no other owner.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        // If the child held the master, the end of the terminal would not be noticed.
        // SAFETY: only numbers are passed.
        unsafe { libc::fcntl(master.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        command
            .stdin(slave.try_clone()?)
            .stdout(slave.try_clone()?)
            .env("TERM", "xterm-256color");
        if errors {
            command.stderr(slave);
        }
        let last = libc::SIGRTMAX();
        // SAFETY: all these calls are async-signal-safe; stdin of the new session is the terminal.
        unsafe {
            command.pre_exec(move || {
                // As login does: a shell without job control ignores SIGINT and SIGQUIT for programs started
                // with `&`, nohup ignores SIGHUP, and programs inherit that. SIGKILL and SIGSTOP cannot be
                // set.
                for signal in 1..=last {
                    libc::signal(signal, libc::SIG_DFL);
                }
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("start {command:?}"))?;
        // Otherwise our own copies would hide the terminal's end.
        command
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let screen = Arc::new((Mutex::new(Screen::default()), Condvar::new()));
        let shared = Arc::clone(&screen);
        let terminal = File::from(master.try_clone()?);
        let reader = thread::spawn(move || read(&shared, terminal));
        Ok(Self {
            child,
            started,
            keys: Some(File::from(master)),
            reader: Some(reader),
            screen,
        })
    }

    fn keys(&self) -> Result<&File> {
        self.keys.as_ref().context("the terminal was closed")
    }

    fn screen(&self) -> MutexGuard<'_, Screen> {
        self.screen.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `text` was written; returns the time since the start.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<Duration> {
        let begin = Instant::now();
        let mut screen = self.screen();
        loop {
            if contains(&screen.bytes, text.as_bytes()) {
                return Ok(self.started.elapsed());
            }
            let left = limit.saturating_sub(begin.elapsed());
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

    /// Returns everything written since the start or [`Self::forget`].
    pub fn output(&self) -> Vec<u8> {
        self.screen().bytes.clone()
    }

    /// Forgets what was written so far.
    pub fn forget(&self) {
        self.screen().bytes.clear();
    }

    /// Stops reading until [`Self::resume`], so that output fills the terminal.
    pub fn stall(&self) {
        self.screen().stalled = true;
    }

    /// Reads again after [`Self::stall`].
    pub fn resume(&self) {
        self.screen().stalled = false;
        self.screen.1.notify_all();
    }

    /// Presses keys.
    pub fn press(&mut self, keys: &[u8]) -> Result<()> {
        Ok(self.keys()?.write_all(keys)?)
    }

    /// Gives the terminal another size.
    pub fn resize(&self, size: (u16, u16)) -> Result<()> {
        let size = window(size);
        // SAFETY: the size is only read.
        let rc = unsafe { libc::ioctl(self.keys()?.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        if rc == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error()).context("no new size")
        }
    }

    /// Returns the terminal's line mode: input, output, control and local flags.
    pub fn mode(&self) -> Result<[u32; 4]> {
        // SAFETY: all zeroes is a valid termios, which the kernel fills.
        let (rc, mode) = unsafe {
            let mut mode = std::mem::zeroed::<libc::termios>();
            let rc = libc::tcgetattr(self.keys()?.as_raw_fd(), &raw mut mode);
            (rc, mode)
        };
        if rc != 0 {
            return Err(io::Error::last_os_error()).context("no line mode");
        }
        Ok([mode.c_iflag, mode.c_oflag, mode.c_cflag, mode.c_lflag])
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        let pid = i32::try_from(self.child.id())?;
        // SAFETY: our own child, not yet waited for, so the PID is still its own.
        if unsafe { libc::kill(pid, signal) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error()).with_context(|| format!("signal {signal}"))
        }
    }

    /// Waits for the end of the program and returns its exit status.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        wait::for_some("the end of the program on the terminal", limit, || {
            Ok(self.child.try_wait()?)
        })
    }

    /// Waits until all output of the program, which must have ended, is in [`Self::output`].
    pub fn drain(&self, limit: Duration) -> Result<()> {
        wait::until("the end of the terminal", limit, || self.screen().ended)
    }

    /// Closes our side like a closed window: the program gets SIGHUP, and its writes fail.
    pub fn hang_up(&mut self) {
        self.screen().closed = true;
        self.screen.1.notify_all();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        self.keys = None;
    }

    /// Fails if the program has ended by itself.
    pub fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!(
                "it ended with {status}: {}",
                String::from_utf8_lossy(&self.output())
            );
        }
        Ok(())
    }

    /// Ends the program with `q` and waits, so that its probes are detached before the next measurement.
    pub fn quit(mut self) -> Result<()> {
        self.press(b"q")?;
        // If it does not end, drop kills it.
        let _ = self.wait(PATIENCE);
        Ok(())
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.resume();
    }
}

fn contains(text: &[u8], wanted: &[u8]) -> bool {
    text.windows(wanted.len()).any(|window| window == wanted)
}
