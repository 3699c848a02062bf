//! A recording: every input of the engine, in order, so that another engine can be given the same.
//!
//! One JSON object a line. The first holds the version and the settings of the engine; each of the others is
//! an [`Entry`]. Nothing here does I/O: callers pass bytes in and take bytes out.

use std::{borrow::Cow, ops::Deref, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    engine::{Engine, EngineConfig, Needs},
    event::Event,
    findings::Change,
    input::{Now, Timed},
    numbers,
    snapshot::Snapshot,
};

/// Version of the format. A reader refuses every other one.
const VERSION: u32 = 2;

/// What was called on the engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry<'a> {
    /// [`Engine::fold`].
    Input(Cow<'a, Timed>),
    /// [`Engine::tick`]: the end of a round that gave a snapshot.
    Tick(Now),
    /// [`Engine::forget`]: the end of a round that gave none.
    Forget(Now),
    /// [`Engine::needs`] and its answer: the next round of reading followed from it.
    #[serde(rename = "lacks")]
    Needs(Cow<'a, Needs>),
}

#[derive(Serialize, Deserialize)]
struct Head {
    recording: u32,
    layout: Vec<usize>,
    engine: EngineConfig,
}

/// Why this version cannot play these bytes.
#[derive(Debug, thiserror::Error)]
pub enum Unplayable {
    /// The file is not a recording.
    #[error("this is no recording: its first line is not the head of one: {0}")]
    Head(serde_json::Error),
    /// Another version of the format.
    #[error("the recording has format {found}, this rdmatop reads format {VERSION}")]
    Version {
        /// The version of the recording.
        found: u32,
    },
    /// Records and counters of another layout.
    #[error("another version of rdmatop made the recording: its records and counters have another layout")]
    Layout,
    /// A line that is no entry, such as the last one of a recorder that was killed.
    #[error("line {number} of the recording is no entry: {error}")]
    Line {
        /// The line's number, from 1.
        number: usize,
        /// What serde says about the line.
        error: serde_json::Error,
    },
    /// In the replay the engine asks for something else than when it was recorded.
    #[error(
        "the engine asks for {now:?} and asked for {then:?} when it was recorded: this is a defect of rdmatop"
    )]
    Diverged {
        /// What it lacked when it was recorded.
        then: Needs,
        /// What it needs in the replay.
        now: Needs,
    },
}

/// Writes a recording.
#[derive(Debug)]
pub struct Recorder(Vec<u8>);

impl Recorder {
    /// The recording of an engine with these settings.
    pub fn new(engine: &EngineConfig) -> Self {
        let mut recorder = Self(Vec::new());
        recorder.line(&Head {
            recording: VERSION,
            layout: numbers::layout(),
            engine: engine.clone(),
        });
        recorder
    }

    /// Adds an entry.
    pub fn add(&mut self, entry: &Entry<'_>) {
        self.line(entry);
    }

    /// Takes the bytes that were written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }

    fn line(&mut self, line: &impl Serialize) {
        // Keys are text and all values can be written; a vector accepts every byte.
        if serde_json::to_writer(&mut self.0, line).is_ok() {
            self.0.push(b'\n');
        }
    }
}

/// Lines and their numbers, from 0.
type Lines<'a> = std::iter::Enumerate<std::slice::Split<'a, u8, fn(&u8) -> bool>>;

/// A recording that is being played.
#[derive(Debug)]
pub struct Player<'a> {
    engine: Engine,
    lines: Lines<'a>,
}

impl<'a> Player<'a> {
    /// Begins with an engine that has the settings of the recorded one.
    pub fn new(recording: &'a [u8]) -> Result<Self, Unplayable> {
        let is_end: fn(&u8) -> bool = |byte| *byte == b'\n';
        let mut lines = recording.split(is_end).enumerate();
        let head = lines.next().map_or(&[][..], |(_, line)| line);
        let head: Head = serde_json::from_slice(head).map_err(Unplayable::Head)?;
        if head.recording != VERSION {
            return Err(Unplayable::Version {
                found: head.recording,
            });
        }
        if head.layout != numbers::layout() {
            return Err(Unplayable::Layout);
        }
        Ok(Self {
            engine: Engine::new(head.engine),
            lines,
        })
    }

    /// Plays up to the next snapshot, and hands out the events on the way; `None` at the end.
    pub fn next(&mut self, out: &mut dyn FnMut(&Event)) -> Result<Option<Arc<Snapshot>>, Unplayable> {
        for (at, line) in self.lines.by_ref().filter(|(_, line)| !line.is_empty()) {
            let entry = serde_json::from_slice(line);
            match entry.map_err(|error| Unplayable::Line {
                number: at + 1,
                error,
            })? {
                Entry::Input(timed) => self.engine.fold(timed.into_owned(), out),
                Entry::Tick(now) => return Ok(Some(self.engine.tick(now))),
                Entry::Forget(now) => self.engine.forget(now),
                Entry::Needs(then) => {
                    let now = self.engine.needs();
                    if *then != now {
                        let then = then.into_owned();
                        return Err(Unplayable::Diverged { then, now });
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Receives what the engine is given while a recording is made.
pub type Tap = Box<dyn FnMut(&Entry<'_>) + Send>;

/// An engine, and the tap that sees its inputs.
#[derive(Default)]
pub struct Tee {
    engine: Engine,
    tap: Option<Tap>,
}

impl Tee {
    /// An engine that knows nothing yet. Without a tap nothing is copied.
    pub fn new(config: EngineConfig, tap: Option<Tap>) -> Self {
        Self {
            engine: Engine::new(config),
            tap,
        }
    }

    fn tap(&mut self, entry: &Entry<'_>) {
        if let Some(tap) = &mut self.tap {
            tap(entry);
        }
    }

    /// [`Engine::fold`].
    pub fn fold(&mut self, timed: Timed, out: &mut dyn FnMut(&Event)) {
        self.tap(&Entry::Input(Cow::Borrowed(&timed)));
        self.engine.fold(timed, out);
    }

    /// [`Engine::apply`].
    pub fn apply(&mut self, timed: Timed) -> Vec<Event> {
        self.tap(&Entry::Input(Cow::Borrowed(&timed)));
        self.engine.apply(timed)
    }

    /// [`Engine::tick`].
    pub fn tick(&mut self, now: Now) -> Arc<Snapshot> {
        self.tap(&Entry::Tick(now));
        self.engine.tick(now)
    }

    /// [`Engine::take_changes`]. It is not recorded: the snapshots decide what it says.
    pub fn take_changes(&mut self) -> Vec<Change> {
        self.engine.take_changes()
    }

    /// [`Engine::forget`].
    pub fn forget(&mut self, now: Now) {
        self.tap(&Entry::Forget(now));
        self.engine.forget(now);
    }

    /// [`Engine::needs`].
    pub fn needs(&mut self) -> Needs {
        let needs = self.engine.needs();
        self.tap(&Entry::Needs(Cow::Borrowed(&needs)));
        needs
    }
}

/// The engine, read only: every change goes through the tee.
impl Deref for Tee {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl std::fmt::Debug for Tee {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tee")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}
