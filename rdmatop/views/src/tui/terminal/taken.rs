//! What is needed to give the terminal back from anywhere, including a signal handler.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::getpgrp;
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use rustix::thread::gettid;

use rdmatop_output::outlet::Outlet;

/// The alternate screen, no cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Buttons and the wheel (1000) in SGR form (1006, which supports columns beyond 223). Not 1002 or 1003:
/// those report every movement of the pointer, which has no meaning here.
const BUTTONS: &[u8] = b"\x1b[?1000h\x1b[?1006h";
/// Restores colours, mouse, screen and cursor.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?1006l\x1b[?1000l\x1b[?1049l\x1b[?25h";
/// CAN ends a sequence that was cut off.
const CANCEL: &[u8] = b"\x18";
/// How long giving back may wait for a terminal that does not read: before its unread data is discarded, and
/// after.
const TURNS: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(200)];
/// The terminal, opened once.
static TERMINAL: OnceLock<Terminal> = OnceLock::new();
/// Its line mode before we took it; null while it is not ours. Never freed: a signal handler may read it.
static BEFORE: AtomicPtr<Termios> = AtomicPtr::new(std::ptr::null_mut());
/// The thread that is writing to it; 0: none.
static WRITER: AtomicI32 = AtomicI32::new(0);
/// The last write was not taken completely.
static CUT: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Terminal {
    /// The terminal whose line mode is changed: standard input, or the controlling terminal where that is
    /// something else.
    line: OwnedFd,
    screen: Outlet,
}

impl Terminal {
    fn open() -> io::Result<Self> {
        let line = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned()?
        } else {
            std::fs::File::open("/dev/tty")?.into()
        };
        let screen = Outlet::of(io::stdout())?;
        Ok(Self { line, screen })
    }

    fn get() -> io::Result<&'static Self> {
        if let Some(terminal) = TERMINAL.get() {
            return Ok(terminal);
        }
        let opened = Self::open()?;
        Ok(TERMINAL.get_or_init(|| opened))
    }

    /// A background process gets a SIGTTOU for changing the line mode, and the shell has set its own
    /// meanwhile. A terminal that is not the controlling one has no background.
    fn foreground(&self) -> bool {
        termios::tcgetpgrp(&self.line).map_or(true, |group| group == getpgrp())
    }
}

/// Whether this process may change the terminal at present.
pub(super) fn foreground() -> io::Result<bool> {
    Ok(Terminal::get()?.foreground())
}

/// Opens the terminal, and waits until this process may change it: in the background the process stops, as
/// every full-screen program does. Call it while signals have their default actions, so that SIGTERM ends the
/// process there.
pub fn await_foreground() -> io::Result<()> {
    while !Terminal::get()?.foreground() {
        stop();
    }
    Ok(())
}

/// Stops this process until a SIGCONT. SIGSTOP and not SIGTSTP, which has our handler; sent to this thread,
/// so that it goes no further before all are stopped.
pub(super) fn stop() {
    // SAFETY: raise(3) takes a number, and touches no memory.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// The sequence that makes the screen ours, before the first frame.
pub(super) fn signs(mouse: bool) -> Vec<u8> {
    if mouse {
        [ENTER, BUTTONS].concat()
    } else {
        ENTER.to_vec()
    }
}

/// Takes the terminal, even when it is ours already: it may have been given to another process meanwhile.
pub(super) fn take() -> io::Result<()> {
    let terminal = Terminal::get()?;
    let now = termios::tcgetattr(&terminal.line)?;
    let mut raw = now.clone();
    raw.make_raw();
    if BEFORE.load(Ordering::SeqCst).is_null() {
        // Before the change, so that a signal in between undoes it. Some bytes leak each time that a shell
        // resumes us.
        BEFORE.store(Box::into_raw(Box::new(now)), Ordering::SeqCst);
    }
    termios::tcsetattr(&terminal.line, OptionalActions::Now, &raw).map_err(|error| {
        let _ = restore();
        error.into()
    })
}

/// Writes what finds room within `limit` while the terminal is ours; returns how much that was.
pub(super) fn write(limit: Duration, bytes: &[u8]) -> io::Result<usize> {
    let terminal = Terminal::get()?;
    WRITER.store(gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    // After the store: a thread that gives the terminal back either sees this thread and waits, or is seen
    // here.
    let done = if BEFORE.load(Ordering::SeqCst).is_null() {
        Ok(bytes.len())
    } else {
        terminal.screen.within(limit, bytes)
    };
    CUT.store(
        done.as_ref().is_ok_and(|done| *done < bytes.len()),
        Ordering::SeqCst,
    );
    WRITER.store(0, Ordering::SeqCst);
    done
}

/// Gives the terminal back. May be called at any time, any number of times, from any thread and from a signal
/// handler: only system calls and atomics. Takes half a second at most, when the terminal does not read; two
/// seconds more on a machine that gives no CPU to a thread that was writing.
pub fn restore() -> io::Result<()> {
    let before = BEFORE.swap(std::ptr::null_mut(), Ordering::SeqCst);
    let (false, Some(terminal)) = (before.is_null(), TERMINAL.get()) else {
        return Ok(());
    };
    let own = gettid().as_raw_nonzero().get();
    // A write that had begun would end up behind the signs. None waits longer than a tenth of a second, but
    // where other programs have the CPUs its thread may not run for longer.
    for _ in 0..2000 {
        if [0, own].contains(&WRITER.load(Ordering::SeqCst)) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let foreground = terminal.foreground();
    // Every step is tried: a terminal that is half gone still gets its line mode back.
    let mode = if foreground {
        // SAFETY: it came from Box::into_raw in `take` and is never freed.
        let before = unsafe { &*before };
        termios::tcsetattr(&terminal.line, OptionalActions::Now, before)
    } else {
        Ok(())
    };
    let signs = leave(&terminal.screen, foreground);
    signs.and(mode.map_err(io::Error::from))
}

fn leave(screen: &Outlet, foreground: bool) -> io::Result<()> {
    let mut signs = [0; CANCEL.len() + LEAVE.len()];
    let (first, rest) = signs.split_at_mut(CANCEL.len());
    first.copy_from_slice(CANCEL);
    rest.copy_from_slice(LEAVE);
    let signs = if CUT.swap(false, Ordering::SeqCst) {
        &signs[..]
    } else {
        LEAVE
    };
    let mut done = 0;
    for (turn, limit) in TURNS.into_iter().enumerate() {
        if turn > 0 && foreground {
            // What the terminal has not read belongs to a screen that is gone; when it reads again, it gets
            // this. So all of the signs are written again: the first of them may be in what is thrown away.
            let _ = termios::tcflush(screen, QueueSelector::OFlush);
            done = 0;
        }
        done += screen.within(limit, signs.get(done..).unwrap_or_default())?;
        if done == signs.len() {
            return Ok(());
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}
