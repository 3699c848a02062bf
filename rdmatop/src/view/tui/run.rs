//! The loop: terminal events, snapshots and events of the engine in, frames out.

use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossterm::event::Event as TermEvent;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};

use crate::model::event::Event;
use crate::model::snapshot::Snapshot;

use super::glyphs;
use super::render;
use super::settings::{Settings, SettingsError};
use super::state::State;
use super::tab::Tab;
use super::terminal::{self, Guard};
use super::theme::Depth;
use super::update::{self, Effect};

/// Shortest time between frames that nobody asked for with a key.
const FRAME: Duration = Duration::from_millis(100);
/// Events taken at once, so that a storm of events does not keep a key waiting.
const BATCH: usize = 1024;

/// How the view starts.
#[derive(Clone, Debug)]
pub struct TuiOptions {
    /// First tab.
    pub tab: Tab,
    /// First filter.
    pub filter: String,
    /// Settings of this run: put the flags of the command line in here.
    pub settings: Settings,
    /// Settings as they are in the file: flags must not end up there.
    pub saved: Settings,
    /// Where it is saved; `None`: nowhere.
    pub settings_path: Option<PathBuf>,
    /// A line to begin with, such as why settings were not read.
    pub message: Option<String>,
    /// Never use colour.
    pub no_color: bool,
}

impl TuiOptions {
    /// Reads the settings of the user. A broken file is a message and the defaults.
    pub fn load() -> Self {
        let path = super::settings::path(env);
        let (settings, error) = match path.as_deref().map(Settings::load) {
            None => (Settings::default(), None),
            Some(Ok(settings)) => (settings, None),
            Some(Err(error)) => (Settings::default(), Some(error)),
        };
        Self {
            tab: Tab::default(),
            filter: String::new(),
            saved: settings.clone(),
            settings,
            // A file that was not understood is not overwritten with defaults.
            settings_path: if error.is_some() { None } else { path },
            message: error.map(|e| e.to_string()),
            no_color: false,
        }
    }
}

/// What the view asks of the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Sample at this distance.
    Refresh(Duration),
    /// The user leaves; `run` returns right after.
    Quit,
}

/// How the view ended.
#[derive(Debug)]
pub enum Outcome {
    /// The user left.
    Quit,
    /// A signal asked for it: its number.
    Signal(i32),
    /// The engine ended.
    Ended,
}

/// Why the view could not go on. The terminal has been given back.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    /// Output is no terminal.
    #[error("no terminal: standard output is not one; use --once, --json or --trace for plain output")]
    NotATerminal,
    /// The terminal went away (EIO, SIGHUP).
    #[error("the terminal went away; nothing more can be shown")]
    Gone,
    /// Anything else that failed on the terminal.
    #[error("terminal: {0}")]
    Io(#[source] io::Error),
}

impl From<io::Error> for TuiError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EIO | libc::EPIPE | libc::ENXIO | libc::EBADF) => Self::Gone,
            _ => Self::Io(error),
        }
    }
}

/// Runs the view until the user leaves, a signal comes, or the engine ends.
///
/// The newest snapshot is shown; `events` is drained all the time so that the engine never waits. Settings
/// that changed are saved at the end. Drawing blocks: give the view a runtime (a thread) of its own.
pub async fn run(
    opts: TuiOptions,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    mut events: mpsc::Receiver<Event>,
    control: mpsc::Sender<Control>,
) -> Result<Outcome, TuiError> {
    if !io::stdout().is_terminal() {
        return Err(TuiError::NotATerminal);
    }
    let depth = if opts.no_color {
        Depth::Mono
    } else {
        Depth::detect(env)
    };
    let first = snapshots.borrow_and_update().clone();
    let mut state = State::new(
        first,
        opts.settings.clone(),
        opts.tab,
        glyphs::utf8_terminal(env),
        depth,
    );
    state.message = opts.message;
    state.filter = super::filter::Filter::parse(&opts.filter);
    state.touch();
    let mut signals = Signals::new()?;
    let mut guard = Guard::enter(state.settings.mouse)?;
    let reader = Reader::start()?;
    let outcome = drive(
        &mut state,
        &mut guard,
        reader,
        &mut signals,
        &mut snapshots,
        &mut events,
        &control,
    )
    .await;
    drop(guard);
    let _ = control.try_send(Control::Quit);
    if state.settings_changed
        && let Some(path) = &opts.settings_path
    {
        // Leaving succeeds without it; a user who changed something still wants to know.
        if let Err(SettingsError::Io { path, source }) =
            state.settings.onto(&opts.settings, &opts.saved).save(path)
        {
            use std::io::Write as _;
            let _ = writeln!(
                io::stderr(),
                "rdmatop: settings not saved to {}: {source}",
                path.display()
            );
        }
    }
    outcome
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

async fn drive(
    state: &mut State,
    guard: &mut Guard,
    mut reader: Reader,
    signals: &mut Signals,
    snapshots: &mut watch::Receiver<Arc<Snapshot>>,
    events: &mut mpsc::Receiver<Event>,
    control: &mpsc::Sender<Control>,
) -> Result<Outcome, TuiError> {
    let (mut dirty, mut events_open) = (true, true);
    let mut drawn: Option<Instant> = None;
    let mut empty = true;
    let mut batch = Vec::with_capacity(BATCH);
    loop {
        let due = drawn.map_or_else(Instant::now, |at| at + FRAME);
        tokio::select! {
            biased;
            input = reader.events.recv() => {
                match input {
                    Some(Ok(event)) => {
                        let effect = update::terminal_event(state, &event);
                        if let Some(outcome) = act(effect, state, guard, control)? {
                            return Ok(outcome);
                        }
                        // A held key or a wheel brings many events: one frame for all that are here.
                        if reader.events.is_empty() {
                            draw(state, guard)?;
                            (dirty, drawn) = (false, Some(Instant::now()));
                        } else {
                            dirty = true;
                        }
                    }
                    Some(Err(error)) => return Err(error.into()),
                    None => return Err(TuiError::Gone),
                }
            }
            told = signals.next() => match told {
                Told::Leave(libc::SIGHUP) => return Err(TuiError::Gone),
                Told::Leave(number) => return Ok(Outcome::Signal(number)),
                Told::Stop => suspend(guard)?,
                Told::Continued => { guard.again()?; dirty = true; }
                Told::Resized => { draw(state, guard)?; (dirty, drawn) = (false, Some(Instant::now())); }
            },
            // Before the channels: a storm of events must not keep the screen from being drawn.
            () = tokio::time::sleep_until(due.into()), if dirty => {
                draw(state, guard)?;
                (dirty, drawn) = (false, Some(Instant::now()));
            }
            changed = snapshots.changed() => {
                if changed.is_err() {
                    return Ok(Outcome::Ended);
                }
                state.take(snapshots.borrow_and_update().clone());
                dirty |= !state.frozen;
                // Until now there was nothing to see: the first rows do not wait for the next frame.
                if std::mem::take(&mut empty) {
                    drawn = None;
                }
            }
            count = events.recv_many(&mut batch, BATCH), if events_open => {
                events_open = count > 0;
                state.take_events(batch.drain(..));
                dirty |= state.tab == Tab::Trace;
            }
        }
    }
}

fn act(
    effect: Option<Effect>,
    state: &State,
    guard: &mut Guard,
    control: &mpsc::Sender<Control>,
) -> Result<Option<Outcome>, TuiError> {
    match effect {
        None => {}
        Some(Effect::Quit) => return Ok(Some(Outcome::Quit)),
        // A full channel means that the app is behind; the newest wish is the state's and goes with the next.
        Some(Effect::Refresh(_)) => {
            let _ = control.try_send(Control::Refresh(state.delay));
        }
        Some(Effect::Suspend) => suspend(guard)?,
        Some(Effect::Redraw) => guard.terminal.clear()?,
    }
    Ok(None)
}

/// Gives the terminal back, stops this process as the shell expects, and takes the terminal on `fg`.
fn suspend(guard: &mut Guard) -> Result<(), TuiError> {
    terminal::restore()?;
    // SIGSTOP and not SIGTSTP: that one has our handler.
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)
        .map_err(io::Error::from)?;
    guard.again()?;
    Ok(())
}

fn draw(state: &mut State, guard: &mut Guard) -> Result<(), TuiError> {
    guard.terminal.autoresize()?;
    let size = guard.terminal.size()?;
    if state.size != (size.width, size.height) {
        update::resize(state, (size.width, size.height));
    }
    state.refresh();
    guard.terminal.draw(|frame| {
        render::draw(state, frame.buffer_mut());
    })?;
    Ok(())
}

enum Told {
    Leave(i32),
    Stop,
    Continued,
    Resized,
}

struct Signals {
    hup: Signal,
    int: Signal,
    quit: Signal,
    term: Signal,
    stop: Signal,
    cont: Signal,
    winch: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            hup: signal(SignalKind::hangup())?,
            int: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            term: signal(SignalKind::terminate())?,
            stop: signal(SignalKind::from_raw(libc::SIGTSTP))?,
            cont: signal(SignalKind::from_raw(libc::SIGCONT))?,
            winch: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> Told {
        tokio::select! {
            _ = self.hup.recv() => Told::Leave(libc::SIGHUP),
            _ = self.int.recv() => Told::Leave(libc::SIGINT),
            _ = self.quit.recv() => Told::Leave(libc::SIGQUIT),
            _ = self.term.recv() => Told::Leave(libc::SIGTERM),
            _ = self.stop.recv() => Told::Stop,
            _ = self.cont.recv() => Told::Continued,
            _ = self.winch.recv() => Told::Resized,
        }
    }
}

/// A thread that reads the terminal. It looks at the descriptor itself first, because crossterm keeps reading
/// a terminal that hung up as if there were just no key.
struct Reader {
    events: mpsc::Receiver<io::Result<TermEvent>>,
    stop: Arc<AtomicBool>,
}

impl Reader {
    fn start() -> io::Result<Self> {
        // What crossterm reads: standard input where it is a terminal, else the controlling terminal.
        let tty: OwnedFd = if io::stdin().is_terminal() {
            io::stdin().as_fd().try_clone_to_owned()?
        } else {
            std::fs::File::open("/dev/tty")?.into()
        };
        let (sender, events) = mpsc::channel(256);
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        std::thread::Builder::new()
            .name("rdmatop-keys".to_owned())
            .spawn(move || read(&tty, &sender, &told))?;
        Ok(Self { events, stop })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn read(tty: &OwnedFd, sender: &mpsc::Sender<io::Result<TermEvent>>, stop: &AtomicBool) {
    let wait = Timespec {
        tv_sec: 0,
        tv_nsec: 500_000_000,
    };
    let step = || -> io::Result<Vec<TermEvent>> {
        let mut fds = [PollFd::new(tty, PollFlags::IN)];
        match poll(&mut fds, Some(&wait)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let told = fds[0].revents();
        if told.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut found = Vec::new();
        while crossterm::event::poll(Duration::ZERO)? {
            found.push(crossterm::event::read()?);
        }
        Ok(found)
    };
    while !stop.load(Ordering::Relaxed) {
        match step() {
            Ok(found) => {
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
