//! The loop: terminal events, snapshots and events of the engine in, frames out.

pub(super) mod drive;
mod input;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use rdmatop_model::event::Event;
use rdmatop_model::findings::Limits;
use rdmatop_model::snapshot::Snapshot;
use rdmatop_output::say::say;

use super::glyphs;
use super::keep;
use super::settings::Settings;
use super::state::{Probing, State};
use super::tab::Tab;
use super::terminal::Guard;
use super::theme::Depth;
use drive::drive;
use input::{Reader, Signals};

/// How the view starts.
#[derive(Clone, Debug)]
pub struct TuiOptions {
    /// First tab.
    pub tab: Tab,
    /// Settings of this run, with the options of the command line.
    pub settings: Settings,
    /// The settings in the file. Options that hold only for this run must not get there.
    pub saved: Settings,
    /// Path of the settings file; `None`: nothing is saved.
    pub settings_path: Option<PathBuf>,
    /// Why the settings file was not understood; such a file must not be overwritten.
    pub settings_broken: Option<String>,
    /// Never use colour.
    pub no_color: bool,
    /// `--uprobes` was given.
    pub uprobes: bool,
}

impl TuiOptions {
    /// The limits of findings from the user's settings, for modes that print. [`TuiOptions::excluded`]
    /// reports a file that cannot be used.
    pub fn limits() -> Limits {
        read().unwrap_or_default().findings
    }

    /// The devices that the user's settings leave alone, or why that is not known.
    pub fn excluded() -> Result<Vec<String>, String> {
        Ok(read()?.exclude_device)
    }

    /// Reads the user's settings. A broken file gives the defaults and a message.
    pub fn load() -> Self {
        let read = read();
        let broken = read.as_ref().err().cloned();
        let settings = read.unwrap_or_default();
        Self {
            tab: Tab::default(),
            saved: settings.clone(),
            settings,
            settings_path: super::settings::path(env),
            settings_broken: broken,
            no_color: false,
            uprobes: false,
        }
    }

    /// Writes what the user changed in this run, without the options of this run.
    fn keep(&self, now: &Settings) -> Result<(), String> {
        let Some(path) = &self.settings_path else {
            return Ok(());
        };
        if let Some(why) = &self.settings_broken {
            return Err(format!("{why}; correct or remove the file"));
        }
        now.onto(&self.settings, &self.saved).save(path)
    }
}

/// What the view asks of the app.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Take samples at this interval.
    Refresh(Duration),
    /// Watch the work requests of the QP with this `uid`, or stop watching.
    Watch(Option<u64>),
    /// Probe the programs of the process with this PID, or of none.
    Probe(Option<u32>),
    /// The first rows have been drawn.
    Shown,
    /// The user leaves; `run` returns soon after.
    Quit,
}

/// Why the view could not go on. The terminal has been given back.
#[derive(Debug, thiserror::Error)]
pub enum TuiError {
    /// Output is no terminal.
    #[error("no terminal: standard output is not one; use --once, --json or --trace for plain output")]
    NotATerminal,
    /// No terminal to read keys from: without keys the user could not leave.
    #[error(
        "no keys: standard input is no terminal and there is no controlling one; start it from a terminal, or use --once \
         or --trace"
    )]
    NoKeys,
    /// The terminal went away (EIO, SIGHUP).
    #[error("the terminal went away; nothing more can be shown")]
    Gone,
    /// The terminal failed in another way.
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
/// The newest snapshot is shown. `events` is drained continuously, so that the engine never waits. Changed
/// settings are saved at the end. Drawing blocks: give the view a runtime (a
/// thread) of its own.
pub async fn run(
    opts: TuiOptions,
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    mut events: mpsc::Receiver<Event>,
    control: mpsc::Sender<Control>,
) -> Result<(), TuiError> {
    if !io::stdout().is_terminal() {
        return Err(TuiError::NotATerminal);
    }
    // Line mode and keys are those of standard input, or of the controlling terminal if that is none.
    if !io::stdin().is_terminal() && std::fs::File::open("/dev/tty").is_err() {
        return Err(TuiError::NoKeys);
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
    let broken = opts.settings_broken.as_ref();
    state.message = broken.map(|why| format!("{why}; defaults are in use"));
    if opts.uprobes {
        state.probing = Probing::Option;
    }
    let mut signals = Signals::new()?;
    let mut guard = Guard::enter(state.settings.mouse)?;
    let mut reader = Reader::start()?;
    signals.wake(&reader);
    let keys = &mut reader.events;
    let running = drive(
        &mut state,
        &mut guard,
        keys,
        &mut signals,
        &mut snapshots,
        &mut events,
        &control,
    );
    let outcome = running.await;
    drop(guard);
    let _ = control.try_send(Control::Quit);
    if state.settings != opts.settings
        && let Err(why) = keep::save_within(keep::PATIENCE, move || opts.keep(&state.settings))
    {
        // Leaving succeeds even if saving fails, but a user who changed something has to know.
        say(&format!("rdmatop: what you changed is not kept: {why}"));
    }
    outcome
}

/// The user's settings; without a home the defaults.
fn read() -> Result<Settings, String> {
    let settings = super::settings::path(env).as_deref().map(Settings::load);
    settings.unwrap_or_else(|| Ok(Settings::default()))
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(path: &std::path::Path, broken: Option<&str>) -> TuiOptions {
        TuiOptions {
            tab: Tab::default(),
            settings: Settings::default(),
            saved: Settings::default(),
            settings_path: Some(path.to_owned()),
            settings_broken: broken.map(str::to_owned),
            no_color: false,
            uprobes: false,
        }
    }

    #[test]
    fn a_file_that_was_not_understood_is_not_overwritten_and_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        std::fs::write(&path, "thme = 1").unwrap();
        let changed = Settings {
            tree: true,
            ..Settings::default()
        };
        let why = options(&path, Some("unknown field `thme`"))
            .keep(&changed)
            .unwrap_err();
        assert!(why.contains("thme") && why.contains("correct or remove"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "thme = 1");
        std::fs::remove_file(&path).unwrap();
        options(&path, None).keep(&changed).unwrap();
        assert!(Settings::load(&path).unwrap().tree);
    }
}
