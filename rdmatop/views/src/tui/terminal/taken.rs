//! What is needed to give the terminal back from anywhere, including a signal handler.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::thread;
use std::time::Duration;

use libc::c_int;
use rustix::process::getpgrp;
use rustix::termios::{self, OptionalActions, QueueSelector, Termios};
use rustix::thread::gettid;

use rdmatop_output::outlet::Outlet;

/// Switches to the alternate screen and hides the cursor.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l";
/// Reports buttons and the wheel (1000) in SGR form (1006, which supports columns beyond 223). Modes 1002 and
/// 1003 would report every movement of the pointer, which has no meaning here.
const BUTTONS: &[u8] = b"\x1b[?1000h\x1b[?1006h";
/// Restores colours, mouse, screen and cursor.
const LEAVE: &[u8] = b"\x1b[0m\x1b[?1006l\x1b[?1000l\x1b[?1049l\x1b[?25h";
/// The character CAN, which ends an escape sequence that was cut off.
const CANCEL: &[u8] = b"\x18";
/// How long giving back may wait for a terminal that does not read: before its unread data is discarded, and
/// after that.
const WAITS: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(200)];
/// The terminal, opened once.
static TERMINAL: OnceLock<Terminal> = OnceLock::new();
/// Its line mode before we took it; null while it is not ours. Never freed: a signal handler may read it.
static BEFORE: AtomicPtr<Termios> = AtomicPtr::new(std::ptr::null_mut());
/// The thread that is writing to the terminal; 0: none.
static WRITER: AtomicI32 = AtomicI32::new(0);
/// Whether the terminal did not take the last write completely.
static CUT: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Terminal {
    /// The terminal whose line mode is changed: standard input, or the controlling terminal if standard input
    /// is something else.
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

    /// Whether this process may change the line mode: in the background it would get a SIGTTOU, and the shell
    /// has set a mode of its own by then. A terminal that is not the controlling one has no background.
    fn foreground(&self) -> bool {
        termios::tcgetpgrp(&self.line).map_or(true, |group| group == getpgrp())
    }
}

/// Whether this process may change the terminal at present.
pub(super) fn foreground() -> io::Result<bool> {
    Ok(Terminal::get()?.foreground())
}

/// Opens the terminal and waits until this process may change it. In the background the process stops, as
/// every full-screen program does. Call it while signals have their default actions, so that SIGTERM can end
/// the process there.
pub fn await_foreground() -> io::Result<()> {
    while !Terminal::get()?.foreground() {
        stop(libc::SIGSTOP);
    }
    Ok(())
}

/// Stops this process until a SIGCONT, by the default action of `signal`. It is sent to this thread, so that
/// this thread goes no further before all threads are stopped. By SIGTSTP the kernel stops nobody whom no
/// shell could resume (`is_current_pgrp_orphaned`, kernel/exit.c): rdmatop as the command of ssh, or in a
/// container.
pub(super) fn stop(signal: c_int) {
    // SAFETY: all zeroes is SIG_DFL without flags; the calls read and write the two actions alone. SIGTSTP
    // has a handler of ours, which is put back.
    unsafe {
        let mut before = std::mem::zeroed::<libc::sigaction>();
        let default = std::mem::zeroed::<libc::sigaction>();
        libc::sigaction(signal, &raw const default, &raw mut before);
        libc::raise(signal);
        libc::sigaction(signal, &raw const before, std::ptr::null_mut());
    }
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
        // Stored before the change, so that a signal in between undoes the change. Some bytes leak each time
        // a shell resumes the process.
        BEFORE.store(Box::into_raw(Box::new(now)), Ordering::SeqCst);
    }
    termios::tcsetattr(&terminal.line, OptionalActions::Now, &raw).map_err(|error| {
        let _ = restore();
        error.into()
    })
}

/// Writes what the terminal takes within `limit`, if the terminal is ours; returns how much that was.
pub(super) fn write(limit: Duration, bytes: &[u8]) -> io::Result<usize> {
    let terminal = Terminal::get()?;
    WRITER.store(gettid().as_raw_nonzero().get(), Ordering::SeqCst);
    // After the store to WRITER: a thread that gives the terminal back either sees this writer and waits, or
    // its swap of BEFORE is seen here.
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
/// handler: it uses only system calls and atomics. It takes at most half a second if the terminal does not
/// read, and two seconds more if another thread is writing and gets no CPU.
pub fn restore() -> io::Result<()> {
    let before = BEFORE.swap(std::ptr::null_mut(), Ordering::SeqCst);
    let (false, Some(terminal)) = (before.is_null(), TERMINAL.get()) else {
        return Ok(());
    };
    let own = gettid().as_raw_nonzero().get();
    // A write that has begun would put its bytes after the closing sequence. No write waits longer than a
    // tenth of a second, but its thread may get no CPU for longer when other programs are busy.
    for _ in 0..2000 {
        if [0, own].contains(&WRITER.load(Ordering::SeqCst)) {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    let foreground = terminal.foreground();
    // Every step is tried: even a terminal that is half gone gets its line mode back.
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
    for (turn, limit) in WAITS.into_iter().enumerate() {
        if turn > 0 && foreground {
            // The terminal's unread data belongs to a screen that is gone, so it is discarded. The first part
            // of the closing sequence may be in it, so the whole sequence is written again.
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
