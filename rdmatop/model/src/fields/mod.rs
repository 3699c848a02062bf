//! The fields of everything that has rows, in one static table each.
//!
//! An entry of a table holds everything about a field: its id, kind and unit, how it is read and sorted, its
//! place in JSON, the words that name it in filters and `--sort`, and how tables show it. The tables of the
//! screen and of `--once`, `--sort`, filters, docs/config.md and the keys of docs/json.md are made from them.

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
pub use finding::{FINDING, Mark, of_process as finding_of};
pub use port::PORT;
pub use probe::PROBE;
pub use process::{PROCESS, errors as process_errors};
pub use qp::QP;
pub use value::{Key, Value, compare};
pub use verb::VERB;

/// The sort of value that a field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One name or several.
    Text,
    /// One word of a small set.
    State,
    /// A value is yes or no.
    Flag,
    /// A number that rises and falls, or that is a name.
    Gauge,
    /// A count that only grows.
    Counter,
    /// How fast a counter grows.
    Rate,
    /// A share of a whole, shown as a bar.
    Share,
    /// The points of the last minutes.
    History,
    /// A list or an object of JSON, which no column shows.
    Object,
}

/// What a number counts; for a rate, per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// It is no number, or the help text says what it counts.
    None,
    /// Things; the number may be shortened.
    Count,
    /// Bytes of traffic.
    Bytes,
    /// Bytes of memory.
    Memory,
    /// Bytes, or packets if no port counts bytes.
    BytesOrPackets,
    /// Bits per second of a link.
    BitsPerSecond,
    /// A time in nanoseconds.
    Nanoseconds,
    /// Nanoseconds: the upper edge of the bucket of a histogram.
    UpperNanoseconds,
    /// Nanoseconds of age of long-lived objects.
    Age,
    /// Nanoseconds since the epoch.
    Clock,
}

/// The meaning of a value for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sense {
    /// The value has no direction.
    Plain,
    /// The value says what was sent.
    Sent,
    /// The value says what was received.
    Received,
    /// A count of faults, for which 0 is good.
    Fault,
}

/// A field as a column of the screen.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    /// Heading, without the unit, which the user chooses.
    pub title: &'static str,
    /// Columns with 0 are always shown; of the others, the one with the highest number is left out first.
    pub priority: u8,
    /// Minimum and maximum width.
    pub width: (u16, u16),
    /// Whether it is shown by default.
    pub on: bool,
}

/// A field as a column of `--once`.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    /// Columns are sorted by this number.
    pub place: u8,
    /// The heading of the column.
    pub title: &'static str,
}

/// The lowest [`Detail::place`] of the list of counters.
pub const COUNTERS: u8 = 100;

/// A field in the detail pane of the screen.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// Labels are sorted by this number. From [`COUNTERS`] on they are in the list of counters, with rate and
    /// total.
    pub place: u8,
    /// The label in the pane.
    pub label: &'static str,
}

/// Everything about a field except how it is read.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// Stable name, used in the settings and in `--sort`.
    pub id: &'static str,
    /// The sort of value.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// The meaning for the user.
    pub sense: Sense,
    /// The field's meaning in one sentence.
    pub help: &'static str,
    /// Its place in the JSON of its row, keys joined by points; empty if it has none.
    pub json: &'static str,
    /// Words that name it in a filter; the first one is shown.
    pub words: &'static [&'static str],
    /// Words that name it in `--sort`, in addition to its id.
    pub sort: &'static [&'static str],
    /// Whether `--sort` puts the smallest first.
    pub up: bool,
    /// The field's column of the screen.
    pub screen: Option<Screen>,
    /// The field's column of `--once`.
    pub page: Option<Page>,
    /// The field's line in the detail pane.
    pub detail: Option<Detail>,
}

impl Meta {
    /// Whether it is aligned to the left, like names; numbers are aligned to the right.
    pub fn is_left(&self) -> bool {
        !matches!(self.kind, Kind::Gauge | Kind::Counter | Kind::Rate) || self.unit == Unit::Clock
    }

    /// Whether `word` names it in `--sort`.
    fn sorts_by(&self, word: &str) -> bool {
        self.screen.is_some() && (self.id == word || self.sort.contains(&word))
    }
}

/// The function that reads a field; the snapshot is the one of the row.
pub type Get<R> = for<'a> fn(&'a R, &'a Snapshot) -> Value<'a>;

/// A field of rows `R`.
#[derive(Debug)]
pub struct Field<R: 'static> {
    /// Everything except how it is read.
    pub meta: Meta,
    /// How it is read.
    pub get: Get<R>,
}

/// Makes a setter for each of these members of [`Meta`].
macro_rules! setters {
    ($($name:ident: $type:ty,)*) => {$(
        const fn $name(mut self, $name: $type) -> Self {
            self.meta.$name = $name;
            self
        }
    )*};
}

impl<R> Field<R> {
    /// Makes a field; its place in JSON is its id unless [`Field::json`] changes it.
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

    /// Makes `--sort` put the smallest first.
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

    /// Makes it a column that is hidden by default.
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
        // Only a field with a rate and a total can be in the list of counters.
        assert!(place < COUNTERS || matches!(self.meta.kind, Kind::Counter | Kind::Rate));
        self.meta.detail = Some(Detail { place, label });
        self
    }
}

/// Makes a constructor for each kind of field.
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

/// Makes a list or an object, for JSON only.
const fn object<R>(id: &'static str, help: &'static str) -> Field<R> {
    Field::new(Kind::Object, id, help, |_, _| Value::Unknown)
}

/// The fields of one kind of row.
pub type Table<R> = &'static [Field<R>];

/// Returns the fields of a table that are in the detail pane, in the pane's order.
pub fn detailed<R>(table: Table<R>) -> Vec<(Detail, &'static Field<R>)> {
    let with = table.iter().filter_map(|field| Some((field.meta.detail?, field)));
    let mut with: Vec<_> = with.collect();
    with.sort_by_key(|(detail, _)| detail.place);
    with
}

/// Returns the words of `--sort`, ids and their synonyms, with the field of each.
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

/// Returns the field that a word of `--sort` names.
pub fn sorted_by(word: &str) -> Option<&'static Field<ProcessRow>> {
    PROCESS.iter().find(|field| field.meta.sorts_by(word))
}

/// Sorts rows by a key, largest first if `down`; unknown keys come last in both directions. `ties` orders
/// rows with equal keys.
pub fn order(rows: &mut [(usize, Key<'_>)], down: bool, ties: impl Fn(usize, usize) -> Ordering) {
    rows.sort_by(|(a, x), (b, y)| compare(x, y, down).then_with(|| ties(*a, *b)));
}

/// Orders processes with equal keys by PID and name, so that two runs give the same order.
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
    snapshot.facts.processes = sorted;
}
