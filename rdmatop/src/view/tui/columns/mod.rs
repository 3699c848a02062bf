//! Columns as data: what a table shows, how wide, in what order it gives way, how it sorts.

mod devices;
mod probes;
mod processes;
mod qps;
pub(super) mod trace;
mod verbs;

pub(super) use processes::only_kernel;

use std::sync::Arc;

use crate::model::input::EbpfState;
use crate::model::snapshot::{History, Snapshot};
use crate::model::value::Counter;

use super::format::{self, Units};
use super::glyphs::Glyphs;
use super::summary::Summary;
use super::tab::Tab;
use super::theme::Tone;
use super::trace_log::TraceLog;

/// What a cell may look at.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// The snapshot on the screen.
    pub snapshot: &'a Snapshot,
    /// Sums over it.
    pub summary: &'a Summary,
    /// Events kept.
    pub trace: &'a TraceLog,
    /// Signs.
    pub glyphs: &'a Glyphs,
    /// Bits or bytes.
    pub units: Units,
}

/// Pieces of text, each with its tone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell(pub Vec<(String, Tone)>);

impl Cell {
    /// One piece.
    pub fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self(vec![(text.into(), tone)])
    }

    /// A plain value; unknown is dim.
    pub fn value(text: impl Into<String>) -> Self {
        let text = text.into();
        let tone = if text == format::UNKNOWN {
            Tone::Dim
        } else {
            Tone::Normal
        };
        Self::new(text, tone)
    }

    /// With one more piece.
    #[must_use]
    pub fn and(mut self, text: impl Into<String>, tone: Tone) -> Self {
        self.0.push((text.into(), tone));
        self
    }

    /// The text without tones.
    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_str()).collect()
    }
}

/// What a row sorts by. Unknown comes last in both directions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Key<'a> {
    /// Unknown.
    None,
    /// A number.
    Num(f64),
    /// A text.
    Text(&'a str),
}

impl<'a> Key<'a> {
    fn text(text: Option<&'a Arc<str>>) -> Self {
        text.map_or(Self::None, |t| Self::Text(t))
    }

    fn num<T: Into<f64>>(value: Option<T>) -> Self {
        value.map_or(Self::None, |v| Self::Num(v.into()))
    }

    fn rate(counter: Option<&Counter>) -> Self {
        Self::num(counter.and_then(|c| c.rate))
    }

    fn total(counter: Option<&Counter>) -> Self {
        counter.map_or(Self::None, |c| Self::Num(c.total as f64))
    }
}

/// The heading of a column.
#[derive(Clone, Copy, Debug)]
pub enum Title {
    /// As it is.
    Plain(&'static str),
    /// With the unit of traffic behind it.
    Traffic(&'static str),
    /// Of a bar, with what a full bar means behind it.
    Bar(&'static str),
    /// With what ports are counted in.
    Ports(&'static str),
}

/// Where the text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// A column of a table.
pub struct Column {
    /// Stable name, in the settings.
    pub id: &'static str,
    /// Heading.
    pub title: Title,
    /// What it shows, with its unit.
    pub about: &'static str,
    /// 0 never gives way; of the others the highest goes first.
    pub priority: u8,
    /// Least and greatest width.
    pub width: (u16, u16),
    /// Alignment.
    pub align: Align,
    /// Shown unless the user says otherwise.
    pub on: bool,
    /// The cell of a row, in `width` columns.
    pub cell: fn(&Ctx<'_>, usize, usize) -> Cell,
    /// What the row sorts by; `None` where sorting makes no sense.
    pub key: Option<for<'a> fn(&Ctx<'a>, usize) -> Key<'a>>,
}

impl Column {
    /// The heading as it is drawn.
    pub fn heading(&self, ctx: &Ctx<'_>) -> String {
        match self.title {
            Title::Plain(text) => text.to_owned(),
            Title::Bar(text) => format!("{text} {}", ctx.summary.scale.name()),
            Title::Ports(text) if ctx.summary.scale.packets => format!("{text} pkt/s"),
            Title::Traffic(text) | Title::Ports(text) => format!("{text} {}", ctx.units.per_second()),
        }
    }
}

/// Identity of a row, so that the cursor stays on it when the table is sorted anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKey {
    /// A process.
    Process(u64),
    /// A QP.
    Qp(u64),
    /// A port of a device.
    Port(u64, u32),
    /// A verb of a process.
    Verb(Option<u64>, u32, Arc<str>),
    /// An event, by its number in the log.
    Event(u64),
    /// A program.
    Probe(usize),
}

/// A field a filter may name.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// Matches by a part of it.
    Text(&'a str),
    /// Matches whole when named, by its beginning otherwise.
    Num(u64),
}

/// Called with a field's name and value; tells whether to go on.
pub type Visit<'v> = &'v mut dyn FnMut(&'static str, Value<'_>) -> bool;

/// A table.
pub struct Spec {
    /// Its columns, in the order of the screen.
    pub columns: &'static [Column],
    /// Sorted by this at first: column, downwards.
    pub sort: (&'static str, bool),
    /// Rows there are.
    pub len: fn(&Ctx<'_>) -> usize,
    /// Identity of a row.
    pub row: fn(&Ctx<'_>, usize) -> RowKey,
    /// Fields of a row, for filter and search.
    pub fields: fn(&Ctx<'_>, usize, Visit<'_>),
    /// Names of the fields it has.
    pub field_names: &'static [&'static str],
    /// A row that is past: drawn dim.
    pub faded: fn(&Ctx<'_>, usize) -> bool,
    /// What an empty table says: why it is empty, and what to do.
    pub empty: fn(&Ctx<'_>) -> String,
}

pub(super) use probes::word as probe_word;

/// The table of a tab.
pub fn spec(tab: Tab) -> &'static Spec {
    match tab {
        Tab::Processes => &processes::SPEC,
        Tab::Qps => &qps::SPEC,
        Tab::Devices => &devices::SPEC,
        Tab::Verbs => &verbs::SPEC,
        Tab::Trace => &trace::SPEC,
        Tab::Probes => &probes::SPEC,
    }
}

/// What a table says that has no rows because there is no device.
fn no_device(ctx: &Ctx<'_>) -> Option<String> {
    if !ctx.snapshot.devices.is_empty() {
        return None;
    }
    // The note knows which driver is loaded, and whether another network namespace may have the device.
    let mut notes = ctx.snapshot.health.notes.iter();
    let note = notes.find(|note| note.id.denies_rdma());
    let told = note.map(|note| format!("No RDMA device here: {}. {}", note.why, note.remedy));
    told.or_else(|| {
        let plain = "No RDMA device here. Load the driver of the NIC, or make a SoftRoCE device to try things on: sudo rdmatop lab up";
        Some(plain.to_owned())
    })
}

/// What a table says whose rows come from eBPF, while that gives none.
fn no_ebpf(ctx: &Ctx<'_>, what: &str) -> Option<String> {
    match &ctx.snapshot.health.ebpf {
        EbpfState::On { .. } => None,
        EbpfState::Starting => Some(format!("{what} from eBPF, which is being attached.")),
        EbpfState::Disabled => Some(format!(
            "{what} from eBPF, which --no-ebpf leaves out. Start without it."
        )),
        EbpfState::Unavailable(no) => Some(format!(
            "{what} from eBPF, which is off: {}. The notes on 6 Probes say what to do.",
            no.why()
        )),
    }
}

/// A count of things that should not happen: plain at 0, loud while it grows.
fn trouble(counter: Option<&Counter>, width: usize) -> Cell {
    let tone = match counter {
        None => Tone::Dim,
        Some(c) if c.rate.is_some_and(|r| r > 0.0) => Tone::Bad,
        Some(c) if c.total > 0 => Tone::Warn,
        Some(_) => Tone::Normal,
    };
    Cell::new(format::total_in(counter, width), tone)
}

/// A rate in the tone of its direction; zero and unknown stay quiet.
fn flow(text: String, counter: Option<&Counter>, tone: Tone) -> Cell {
    match counter.and_then(|c| c.rate) {
        None => Cell::new(text, Tone::Dim),
        Some(rate) if rate > 0.0 => Cell::new(text, tone),
        Some(_) => Cell::value(text),
    }
}

/// What a history adds up to; what moves nothing comes last.
fn moved(history: &History) -> Key<'static> {
    let sum: f64 = history.tx.iter().chain(&history.rx).flatten().sum();
    if sum > 0.0 { Key::Num(sum) } else { Key::None }
}

/// The last points of a history, Tx and Rx together, in `width` cells.
fn spark(ctx: &Ctx<'_>, history: &History, width: usize) -> Cell {
    let len = history.tx.len().max(history.rx.len());
    let start = len.saturating_sub(width);
    let point = |at: usize| {
        let (tx, rx) = (
            history.tx.get(at).copied().flatten(),
            history.rx.get(at).copied().flatten(),
        );
        match (tx, rx) {
            (None, None) => None,
            (tx, rx) => Some(tx.unwrap_or(0.0) + rx.unwrap_or(0.0)),
        }
    };
    let points: Vec<_> = (start..len).map(point).collect();
    let max = points.iter().flatten().copied().fold(0.0, f64::max);
    let mut text = " ".repeat(width.saturating_sub(points.len()));
    text.extend(points.iter().map(|p| ctx.glyphs.spark(*p, max)));
    Cell::new(text, Tone::Title)
}
