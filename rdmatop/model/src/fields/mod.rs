//! The fields of all things that have rows: one static table for each.
//!
//! A row of a table holds everything about a field: its id, its kind, its unit, how it is read and ordered,
//! where it stands in JSON, the words that name it in filters and `--sort`, and how tables show it. The
//! tables of the screen and of `--once`, `--sort`, filters, docs/config.md and the keys of docs/json.md come
//! from them.

mod device;
mod event;
mod finding;
mod port;
mod probe;
mod process;
mod qp;
#[cfg(test)]
mod tests;
mod traffic;
mod value;
mod verb;

use std::cmp::Ordering;

use super::snapshot::{ProcessRow, Snapshot};

pub use device::DEVICE;
pub use event::EVENT;
pub use finding::{FINDING, of_process as finding_of};
pub use port::PORT;
pub use probe::PROBE;
pub use process::PROCESS;
pub use qp::QP;
pub use value::{Key, Value, compare};
pub use verb::VERB;

/// What sort of value a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One name or several.
    Text,
    /// One word of a small set.
    State,
    /// A value is yes or no.
    Flag,
    /// A number that goes up and down, or that names something.
    Gauge,
    /// A count that only grows.
    Counter,
    /// How fast a counter grows.
    Rate,
    /// A share of a whole, as a bar.
    Share,
    /// Points of the last minutes.
    History,
    /// A list or an object of JSON; no column shows it.
    Object,
}

impl Kind {
    /// The kind's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::State => "state",
            Self::Flag => "flag",
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Rate => "rate",
            Self::Share => "share",
            Self::History => "history",
            Self::Object => "object",
        }
    }
}

/// What a number counts; of a rate per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It is not a number, or the help says what it counts.
    None,
    /// Things: may be shortened.
    Count,
    /// Bytes of traffic.
    Bytes,
    /// Bytes of memory.
    Memory,
    /// Bytes, or packets where no port counts bytes.
    BytesOrPackets,
    /// Bits per second, of a link.
    BitsPerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Nanoseconds: the upper edge of the bucket of a histogram.
    UpperNanoseconds,
    /// Nanoseconds, of long-lived objects.
    Age,
    /// Nanoseconds since the epoch.
    Clock,
}

impl Unit {
    /// The unit's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None | Self::Count => "",
            Self::Bytes | Self::Memory => "bytes",
            Self::BytesOrPackets => "bytes or packets",
            Self::BitsPerSecond => "bits/s",
            Self::Nanoseconds | Self::UpperNanoseconds | Self::Age | Self::Clock => "ns",
        }
    }
}

/// What a value means to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// The value says nothing about a direction.
    Plain,
    /// Sent.
    Sent,
    /// Received.
    Received,
    /// It should not happen: 0 is good.
    Fault,
}

/// A field as a column of the screen.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Heading, without a unit that the user chooses.
    pub title: &'static str,
    /// A column with 0 is always shown; of the others the one with the highest number is left out first.
    pub priority: u8,
    /// Least and greatest width.
    pub width: (u16, u16),
    /// Shown unless the user says otherwise.
    pub on: bool,
}

/// A field as a column of `--once`.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Columns stand in the order of this number.
    pub place: u8,
    /// Heading.
    pub title: &'static str,
}

/// The first [`Detail::place`] of the list of counters.
pub const COUNTERS: u8 = 100;

/// A field in the detail pane of the screen.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// Labels stand in the order of this number. From [`COUNTERS`] on they stand in the list of counters,
    /// with rate and total.
    pub place: u8,
    /// What the pane calls it.
    pub label: &'static str,
}

/// Everything about a field except how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Stable name: in the settings, in `--sort`.
    pub id: &'static str,
    /// What sort of value.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// What it means to the user.
    pub sense: Sense,
    /// What it is, in one sentence.
    pub help: &'static str,
    /// Where it stands in the JSON of its row, keys joined by points; empty: nowhere.
    pub json: &'static str,
    /// Words that name it in a filter; the first is the one that is shown.
    pub words: &'static [&'static str],
    /// Words that name it in `--sort` beside its id.
    pub sort: &'static [&'static str],
    /// `--sort` puts the smallest first.
    pub up: bool,
    /// The field's column of the screen.
    pub screen: Option<Screen>,
    /// The field's column of `--once`.
    pub page: Option<Page>,
    /// The field's line in the detail pane.
    pub detail: Option<Detail>,
}

impl Meta {
    /// Stands at the left, as names do; numbers stand at the right.
    pub fn is_left(&self) -> bool {
        !matches!(self.kind, Kind::Gauge | Kind::Counter | Kind::Rate) || self.unit == Unit::Clock
    }

    /// Whether `--sort` knows it by `word`.
    fn sorts_by(&self, word: &str) -> bool {
        self.screen.is_some() && (self.id == word || self.sort.contains(&word))
    }
}

/// How a field is read; the snapshot is that of the row.
pub type Get<R> = for<'a> fn(&'a R, &'a Snapshot) -> Value<'a>;

/// A field of rows `R`.
#[derive(Debug)]
pub struct Field<R: 'static> {
    /// Everything but how it is read.
    pub meta: Meta,
    /// How it is read.
    pub get: Get<R>,
}

impl<R> Clone for Field<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Field<R> {}

/// Makes a function for each of these members of [`Meta`].
macro_rules! setters {
    ($($name:ident: $type:ty,)*) => {$(
        const fn $name(mut self, $name: $type) -> Self {
            self.meta.$name = $name;
            self
        }
    )*};
}

impl<R> Field<R> {
    /// A field; its place in JSON is its id until [`Field::json`] says otherwise.
    const fn new(kind: Kind, id: &'static str, help: &'static str, get: Get<R>) -> Self {
        let meta = Meta {
            id,
            kind,
            unit: Unit::None,
            sense: Sense::Plain,
            help,
            json: id,
            words: &[],
            sort: &[],
            up: false,
            screen: None,
            page: None,
            detail: None,
        };
        Self { meta, get }
    }

    setters! {
        unit: Unit,
        sense: Sense,
        json: &'static str,
        words: &'static [&'static str],
        sort: &'static [&'static str],
    }

    /// `--sort` puts the smallest first.
    const fn up(mut self) -> Self {
        self.meta.up = true;
        self
    }

    const fn screen(mut self, title: &'static str, priority: u8, width: (u16, u16)) -> Self {
        self.meta.screen = Some(Screen {
            title,
            priority,
            width,
            on: true,
        });
        self
    }

    /// A column of the screen that is hidden until the user shows it.
    const fn off(mut self) -> Self {
        if let Some(screen) = &mut self.meta.screen {
            screen.on = false;
        }
        self
    }

    const fn page(mut self, place: u8, title: &'static str) -> Self {
        self.meta.page = Some(Page { place, title });
        self
    }

    const fn detail(mut self, place: u8, label: &'static str) -> Self {
        // Only a field with a rate and a total can stand there.
        assert!(place < COUNTERS || matches!(self.meta.kind, Kind::Counter | Kind::Rate));
        self.meta.detail = Some(Detail { place, label });
        self
    }
}

/// Makes a function for each kind of field.
macro_rules! kinds {
    ($($name:ident: $kind:ident,)*) => {$(
        const fn $name<R>(id: &'static str, help: &'static str, get: Get<R>) -> Field<R> {
            Field::new(Kind::$kind, id, help, get)
        }
    )*};
}

kinds! {
    text: Text,
    state: State,
    flag: Flag,
    gauge: Gauge,
    counter: Counter,
    rate: Rate,
}

/// A list or an object, for JSON only.
const fn object<R>(id: &'static str, help: &'static str) -> Field<R> {
    Field::new(Kind::Object, id, help, |_, _| Value::Unknown)
}

/// The table of a thing that has rows.
pub type Table<R> = &'static [Field<R>];

/// The fields of a table that stand in the detail pane, in its order.
pub fn detailed<R>(table: Table<R>) -> Vec<(Detail, &'static Field<R>)> {
    let with = table.iter().filter_map(|field| Some((field.meta.detail?, field)));
    let mut with: Vec<_> = with.collect();
    with.sort_by_key(|(detail, _)| detail.place);
    with
}

/// The words of `--sort`, with what each orders by: ids, and other names of them.
pub fn sort_words() -> impl Iterator<Item = (&'static str, &'static Meta)> {
    let columns = PROCESS.iter().filter(|field| field.meta.screen.is_some());
    columns.flat_map(|field| {
        let meta = &field.meta;
        [meta.id]
            .into_iter()
            .chain(meta.sort.iter().copied())
            .map(move |word| (word, meta))
    })
}

/// The field that a word of `--sort` names.
pub fn sorted_by(word: &str) -> Option<&'static Field<ProcessRow>> {
    PROCESS.iter().find(|field| field.meta.sorts_by(word))
}

/// Rows by a key, largest first if `down`; unknown ones come last in both directions. Equal ones are in the
/// order of `ties`.
pub fn order(rows: &mut [(usize, Key<'_>)], down: bool, ties: impl Fn(usize, usize) -> Ordering) {
    rows.sort_by(|(a, x), (b, y)| compare(x, y, down).then_with(|| ties(*a, *b)));
}

/// Equal processes go by pid and name, so that two runs give one order.
pub fn process_ties(a: &ProcessRow, b: &ProcessRow) -> Ordering {
    a.pid.cmp(&b.pid).then_with(|| a.comm.cmp(&b.comm))
}

/// Sorts the processes of a snapshot by a word of `--sort`; the default is `tx`.
pub fn sort_processes(snapshot: &mut Snapshot, word: Option<&str>) {
    let Some(field) = sorted_by(word.unwrap_or("tx")) else {
        return;
    };
    let rows = &snapshot.processes;
    let values: Vec<Value<'_>> = rows.iter().map(|row| (field.get)(row, snapshot)).collect();
    let mut keys: Vec<(usize, Key<'_>)> = values.iter().map(Value::key).enumerate().collect();
    order(&mut keys, !field.meta.up, |a, b| process_ties(&rows[a], &rows[b]));
    let sorted = keys.iter().map(|(at, _)| rows[*at].clone()).collect();
    snapshot.processes = sorted;
}
