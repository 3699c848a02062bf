//! Inputs of the loop: keys and sizes, which a thread reads from the terminal, and signals.

use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use crossterm::event::Event as TermEvent;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::getpgrp;
use rustix::termios::tcgetpgrp;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

pub(super) enum Asked {
    /// Leave, because of the signal with this number.
    Leave(i32),
    /// Give the terminal back and stop: a SIGTSTP.
    Stop,
    /// Take the terminal again.
    Continued,
    /// The terminal has another size.
    Resized,
}

/// Where signals come from.
pub(super) trait SignalSource {
    /// Waits for the next request.
    async fn next(&mut self) -> Asked;
    /// Waits for a signal that ends the program, and for no other; returns its number.
    async fn leave(&mut self) -> i32;
    /// Requests [`Asked::Continued`] after this time, if no SIGCONT does.
    fn continue_after(&mut self, time: Duration);
}

/// SIGCONT waits this long: a shell that ends a stopped job sends SIGTERM too, which must come first.
pub(super) const TOGETHER: Duration = Duration::from_millis(20);

/// The signals that the loop handles in order. For the other signals that end the process see `terminal`.
pub(super) struct Signals {
    hup: Signal,
    int: Signal,
    term: Signal,
    stop: Signal,
    cont: Signal,
    winch: Signal,
    /// The time at which a received SIGCONT is passed on.
    continued: Option<Instant>,
    /// Written to at each new size of the terminal.
    resized: Option<Arc<OwnedFd>>,
}

impl Signals {
    /// Takes over the signals.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
            cont: signal(SignalKind::from_raw(libc::SIGCONT))?,
            winch: signal(SignalKind::window_change())?,
            continued: None,
            resized: None,
        })
    }

    /// Makes a reader ask crossterm at each new size of the terminal.
    pub(super) fn wake(&mut self, reader: &Reader) {
        self.resized = Some(reader.look.clone());
    }
}

/// The signals that end the program, in this order.
async fn ending(hup: &mut Signal, int: &mut Signal, term: &mut Signal) -> i32 {
    tokio::select! {
        biased;
        _ = hup.recv() => libc::SIGHUP,
        _ = int.recv() => libc::SIGINT,
        _ = term.recv() => libc::SIGTERM,
    }
}

impl SignalSource for Signals {
    async fn leave(&mut self) -> i32 {
        ending(&mut self.hup, &mut self.int, &mut self.term).await
    }

    fn continue_after(&mut self, time: Duration) {
        self.continued = Some(Instant::now() + time);
    }

    async fn next(&mut self) -> Asked {
        loop {
            let due = self.continued;
            // The order matters: signals that end the program come first.
            tokio::select! {
                biased;
                number = ending(&mut self.hup, &mut self.int, &mut self.term) => return Asked::Leave(number),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.continued = None;
                    return Asked::Continued;
                }
                _ = self.cont.recv() => self.continued = Some(Instant::now() + TOGETHER),
                _ = self.stop.recv() => return Asked::Stop,
                _ = self.winch.recv() => {
                    if let Some(resized) = &self.resized {
                        raise(resized);
                    }
                    return Asked::Resized;
                }
            }
        }
    }
}

/// A thread that reads the terminal. It polls the descriptor itself before it asks crossterm, because
/// crossterm goes on reading a terminal that hung up as if no key were pressed.
pub(super) struct Reader {
    /// Keys, mouse events and sizes; an error is the last message.
    pub(super) events: mpsc::Receiver<io::Result<TermEvent>>,
    /// When this is readable, the thread stops.
    stop: Arc<OwnedFd>,
    /// When this is readable, the thread asks crossterm, whatever the state of the terminal.
    look: Arc<OwnedFd>,
}

fn raise(event: &OwnedFd) {
    // This fails only when the counter is full, and then the descriptor is readable anyway.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}

impl Reader {
    pub(super) fn start() -> io::Result<Self> {
        // As crossterm: standard input if it is a terminal, otherwise the controlling terminal.
        let tty: OwnedFd = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned()?
        } else {
            std::fs::File::open("/dev/tty")?.into()
        };
        let (sender, events) = mpsc::channel(256);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let look = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (stopping, looking) = (stop.clone(), look.clone());
        std::thread::Builder::new()
            .name("rdmatop-keys".to_owned())
            .spawn(move || read(&tty, &sender, &stopping, &looking))?;
        Ok(Self { events, stop, look })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        raise(&self.stop);
    }
}

/// Adds the events that crossterm has now.
fn take_events(found: &mut Vec<TermEvent>) -> io::Result<()> {
    while crossterm::event::poll(Duration::ZERO)? {
        found.push(crossterm::event::read()?);
    }
    Ok(())
}

/// Whether the terminal belongs to another process group, as that of a shell after bg(1).
fn in_background(tty: &OwnedFd) -> bool {
    tcgetpgrp(tty).is_ok_and(|group| group != getpgrp())
}

/// Has read(2) of the terminal fail with EIO in this thread while the process is in the background. Without
/// this the kernel sends a SIGTTIN, which stops the whole process (`__tty_check_change`, tty_jobctrl.c). A
/// shell's `kill` sends SIGTERM and SIGCONT to a stopped job: the read, started again, would stop the process
/// before the SIGTERM is handled.
fn block_sigttin() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset(3) writes the whole set before it is read; the calls change that set and the signal
    // mask of this thread alone.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTTIN);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

fn read(tty: &OwnedFd, sender: &mpsc::Sender<io::Result<TermEvent>>, stop: &OwnedFd, look: &OwnedFd) {
    block_sigttin();
    // crossterm handles SIGWINCH too. While it has not taken a SIGWINCH, the next key stays hidden: it waits
    // for edges, and loses the edge of the key while it reports the new size. So it is asked at each new
    // size, and from time to time, because its signal handler may run after the one that wakes this thread.
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: 500_000_000,
    };
    let step = || -> io::Result<Option<Vec<TermEvent>>> {
        let mut fds = [tty, stop, look].map(|fd| PollFd::new(fd, PollFlags::IN));
        match poll(&mut fds, Some(&wait)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Some(Vec::new())),
            Err(error) => return Err(error.into()),
        }
        if !fds[1].revents().is_empty() {
            return Ok(None);
        }
        let polled = fds[0].revents();
        if polled.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if !fds[2].revents().is_empty() {
            let _ = rustix::io::read(look, &mut [0; 8]);
        }
        if in_background(tty) {
            // What is typed is the shell's, and a readable terminal ends poll(2) at once.
            std::thread::sleep(Duration::from_millis(50));
            return Ok(Some(Vec::new()));
        }
        let mut found = Vec::new();
        match take_events(&mut found) {
            // The process went to the background after the question.
            Err(error) if error.raw_os_error() == Some(libc::EIO) && in_background(tty) => {}
            taken => taken?,
        }
        if found.is_empty() && polled.contains(PollFlags::IN) {
            // crossterm has half a sequence, or hides a key until the next one: poll(2) would return at once.
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Some(found))
    };
    loop {
        match step() {
            Ok(None) => return,
            Ok(Some(found)) => {
                for event in found {
                    if sender.blocking_send(Ok(event)).is_err() {
                        return;
                    }
                }
            }
            Err(error) => {
                let _ = sender.blocking_send(Err(error));
                return;
            }
        }
    }
}
