//! Columns of the screen: fields of the model's tables, and how a cell of each is drawn.

mod devices;
mod findings;
mod probes;
mod processes;
mod qps;
pub(super) mod trace;
mod verbs;

pub(super) use processes::only_kernel;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use rdmatop_model::fields::{Field, Kind, Meta, Screen, Sense, Table, Unit, Value};
use rdmatop_model::findings::{About, FindingId};
use rdmatop_model::input::EbpfState;
use rdmatop_model::snapshot::{History, Snapshot};
use rdmatop_model::value::Counter;

use super::format::{self, Units};
use super::glyphs::Glyphs;
use super::tab::Tab;
use super::text;
use super::theme::Tone;
use super::trace_log::TraceLog;
pub use crate::line::table::Align;

/// What a cell is drawn from.
#[derive(Clone, Copy)]
pub struct Ctx<'a> {
    /// The snapshot that is on the screen.
    pub snapshot: &'a Snapshot,
    /// The events that are kept.
    pub trace: &'a TraceLog,
    /// Signs.
    pub glyphs: &'a Glyphs,
    /// Bits or bytes.
    pub units: Units,
}

/// A piece of a cell: a static text is borrowed, any other is owned.
pub type Piece = Cow<'static, str>;

/// Pieces of text, each with its tone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell(pub Vec<(Piece, Tone)>);

impl Cell {
    /// One piece.
    pub fn new(text: impl Into<Piece>, tone: Tone) -> Self {
        Self(vec![(text.into(), tone)])
    }

    /// A plain value; unknown is dim.
    pub fn value(text: impl Into<Piece>) -> Self {
        let text = text.into();
        let tone = if text == format::UNKNOWN {
            Tone::Dim
        } else {
            Tone::Normal
        };
        Self::new(text, tone)
    }

    /// A text in lines of at most `width` columns.
    pub fn lines(text: &str, width: usize, tone: Tone) -> Vec<Self> {
        let lines = text::wrap(text, width).into_iter();
        lines.map(|line| Self::new(line, tone)).collect()
    }

    /// Adds one more piece.
    #[must_use]
    pub fn and(mut self, text: impl Into<Piece>, tone: Tone) -> Self {
        self.0.push((text.into(), tone));
        self
    }

    /// Columns of the screen that it takes.
    pub fn width(&self) -> usize {
        self.0.iter().map(|(piece, _)| text::width(piece)).sum()
    }

    /// The text without tones.
    pub fn text(&self) -> String {
        self.0.iter().map(|(text, _)| text.as_ref()).collect()
    }
}

/// Reads a field of the row at a place of the table.
type Read = dyn for<'a> Fn(&Ctx<'a>, usize) -> Value<'a> + Send + Sync;

/// A field of a table, for the rows of a tab.
#[derive(Clone)]
pub struct Of {
    /// The field's description.
    pub meta: &'static Meta,
    read: Arc<Read>,
}

impl Of {
    /// The fields of a table whose rows `row` finds.
    fn all<R: 'static>(table: Table<R>, row: Row<R>) -> Vec<Self> {
        let of = |field: &'static Field<R>| Self {
            meta: &field.meta,
            read: Arc::new(move |c, at| {
                row(c, at).map_or(Value::Unknown, |row| (field.get)(row, c.snapshot))
            }),
        };
        table.iter().map(of).collect()
    }

    /// The field's value in row `at`.
    pub fn value<'a>(&self, c: &Ctx<'a>, at: usize) -> Value<'a> {
        (self.read)(c, at)
    }
}

/// Draws the cell of a row in this many columns.
type Draw<R> = fn(&Ctx<'_>, &R, usize) -> Cell;
/// As [`Draw`], of the row at this place.
type DrawAt = Box<dyn Fn(&Ctx<'_>, usize, usize) -> Cell + Send + Sync>;
/// Finds the row at a place of the table.
type Row<R> = for<'a> fn(&Ctx<'a>, usize) -> Option<&'a R>;

/// A column of a table.
pub struct Column {
    /// The field.
    pub of: Of,
    /// The column's stable name, in the settings.
    pub id: &'static str,
    /// Its place on the screen.
    pub screen: Screen,
    /// Alignment.
    pub align: Align,
    /// Rows can be sorted by it.
    pub sortable: bool,
    draw: Option<DrawAt>,
}

impl Column {
    fn new<R: 'static>(of: &Of, row: Row<R>, draws: &[(&str, Draw<R>)]) -> Option<Self> {
        let meta = of.meta;
        let screen = meta.screen?;
        let draw = draws.iter().find(|(id, _)| *id == meta.id).map(|(_, draw)| *draw);
        let draw_at = |draw: Draw<R>| -> DrawAt {
            Box::new(move |c, at, width| row(c, at).map_or_else(Cell::default, |row| draw(c, row, width)))
        };
        Some(Self {
            of: of.clone(),
            id: meta.id,
            screen,
            align: if meta.is_left() { Align::Left } else { Align::Right },
            sortable: true,
            draw: draw.map(draw_at),
        })
    }

    /// The heading as it is drawn: with the unit that the user chose, or what a full bar means.
    pub fn heading(&self, ctx: &Ctx<'_>) -> String {
        let (title, meta, scale) = (self.screen.title, self.of.meta, &ctx.snapshot.judgement.scale);
        match (meta.kind, meta.unit) {
            (Kind::Share, _) => format!("{title} {}", scale.name()),
            (Kind::Rate, Unit::BytesOrPackets) if scale.packets => format!("{title} pkt/s"),
            (Kind::Rate, Unit::Bytes | Unit::BytesOrPackets) => format!("{title} {}", ctx.units.per_second()),
            _ => title.to_owned(),
        }
    }

    /// The cell of a row, in `width` columns.
    pub fn cell(&self, ctx: &Ctx<'_>, at: usize, width: usize) -> Cell {
        match &self.draw {
            Some(draw) => draw(ctx, at, width),
            None => draw(ctx, self.of.meta, &self.of.value(ctx, at), width),
        }
    }
}

/// Formats a value by its kind and unit.
fn draw(c: &Ctx<'_>, meta: &Meta, value: &Value<'_>, width: usize) -> Cell {
    let tone = match meta.sense {
        Sense::Sent => Some(Tone::Tx),
        Sense::Received => Some(Tone::Rx),
        Sense::Plain | Sense::Fault => None,
    };
    match value {
        Value::Unknown | Value::List([]) => Cell::value(format::UNKNOWN),
        Value::Text(text) | Value::State(_, text) => Cell::value(text.clone().into_owned()),
        Value::List(list) => Cell::value(list.join(",")),
        Value::Flag(on) => Cell::value(if *on { "yes" } else { "no" }),
        Value::Number(number) => Cell::value(self::number(*number, meta.unit, width)),
        Value::Total(counter) if meta.sense == Sense::Fault => trouble(Some(counter), width),
        Value::Total(counter) => Cell::value(format::total_in(Some(counter), width)),
        Value::Rate(counter) => {
            let text = match meta.unit {
                Unit::Bytes => format::byte_rate(Some(counter), c.units),
                _ => format::rate(Some(counter)),
            };
            match tone {
                Some(tone) => flow(text, Some(counter), tone),
                None => Cell::value(text),
            }
        }
        Value::Share(share) => bar(c, *share, width, tone.unwrap_or(Tone::Normal)),
        Value::History(history) => spark(c, history, width),
        Value::Errnos(_) => Cell::default(),
    }
}

fn number(number: i64, unit: Unit, width: usize) -> String {
    let Ok(known) = u64::try_from(number) else {
        return number.to_string();
    };
    match unit {
        Unit::None => number.to_string(),
        Unit::Count => format::count_in(known, width),
        Unit::Bytes | Unit::BytesOrPackets | Unit::Memory => format::memory(known),
        Unit::BitsPerSecond => format::link(known),
        Unit::Nanoseconds => format::nanos(known),
        Unit::UpperNanoseconds => format::below(Some(known)),
        Unit::Age => format::age(known / 1_000_000_000),
        Unit::Clock => format::clock(known),
    }
}

/// A share as a bar.
pub(super) fn bar(c: &Ctx<'_>, share: f64, width: usize, tone: Tone) -> Cell {
    let (full, track) = c.glyphs.bar(share, width);
    // On the scale of the links a nearly full bar deserves attention. On a relative scale the bar of the
    // busiest port is always full.
    let tone = if c.snapshot.judgement.scale.link && share >= 0.9 {
        Tone::Bad
    } else {
        tone
    };
    if full.is_empty() {
        return Cell::new(track, Tone::Dim);
    }
    Cell::new(full, tone).and(track, Tone::Dim)
}

/// Identity of a row, so that the cursor stays on it when the table is sorted again.
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
    /// A finding.
    Finding(FindingId, About),
}

/// The columns and filter fields made from the fields of a table.
pub struct Fields {
    columns: Vec<Column>,
    /// Fields that a filter may name.
    named: Vec<Of>,
}

impl Fields {
    /// The columns of a table, in the order of the screen. `draws`: columns that are drawn in their own way.
    fn new<R: 'static>(table: Table<R>, row: Row<R>, draws: &[(&str, Draw<R>)]) -> Self {
        Self::of(Of::all(table, row), row, draws)
    }

    /// As [`Self::new`], of these fields.
    fn of<R: 'static>(fields: Vec<Of>, row: Row<R>, draws: &[(&str, Draw<R>)]) -> Self {
        let columns = fields.iter().filter_map(|of| Column::new(of, row, draws));
        let columns: Vec<Column> = columns.collect();
        debug_assert_eq!(columns.iter().filter(|c| c.draw.is_some()).count(), draws.len());
        let named = fields.into_iter().filter(|of| !of.meta.words.is_empty());
        Self {
            columns,
            named: named.collect(),
        }
    }
}

/// A table.
pub struct Spec {
    fields: LazyLock<Fields>,
    /// The initial order: the id of the column, and whether the largest comes first.
    pub sort: (&'static str, bool),
    /// Number of rows.
    pub len: fn(&Ctx<'_>) -> usize,
    /// Identity of a row.
    pub row: fn(&Ctx<'_>, usize) -> RowKey,
    /// The text of an empty table: why it is empty, and what to do.
    pub empty: fn(&Ctx<'_>) -> String,
}

impl Spec {
    /// Its columns, in the order of the screen.
    pub fn columns(&self) -> &[Column] {
        &self.fields.columns
    }

    /// A column by its id.
    pub fn column(&self, id: &str) -> Option<&Column> {
        self.columns().iter().find(|column| column.id == id)
    }

    /// The columns by which it can be in order: the log stays in that of its times.
    pub fn orders(&self) -> impl Iterator<Item = &Column> + Clone {
        self.columns()
            .iter()
            .filter(|column| column.sortable || column.id == self.sort.0)
    }

    /// Fields that a filter may name.
    pub fn named(&self) -> &[Of] {
        &self.fields.named
    }

    /// The first word of each of these fields.
    pub fn words(&self) -> impl Iterator<Item = &'static str> {
        self.named().iter().map(|of| of.meta.words[0])
    }
}

pub(super) use findings::tone as finding_tone;
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
        Tab::Findings => &findings::SPEC,
    }
}

/// Whether a row of a tab belongs to the past and is drawn dim.
pub(super) fn is_faded(tab: Tab, snapshot: &Snapshot, at: usize) -> bool {
    match tab {
        Tab::Processes => snapshot.processes[at].exited,
        Tab::Qps => snapshot.qps[at].exited,
        _ => false,
    }
}

/// The text of a table that has no rows because there is no device.
fn no_device(ctx: &Ctx<'_>) -> Option<String> {
    if !ctx.snapshot.devices.is_empty() {
        return None;
    }
    // The note says which driver is loaded, and whether the device may be in another network namespace.
    let mut notes = ctx.snapshot.health.notes.iter();
    let note = notes.find(|note| note.id.denies_rdma());
    let what = note.map_or_else(
        || {
            ". Load the driver of the NIC, or make a SoftRoCE device to try things on: sudo rdmatop lab up"
                .to_owned()
        },
        |note| format!(": {}", note.remedy.after(&note.why)),
    );
    Some(format!("No RDMA device here{what}"))
}

/// The text of a table whose rows come from eBPF while eBPF gives none.
fn no_ebpf(ctx: &Ctx<'_>, what: &str) -> Option<String> {
    match &ctx.snapshot.health.ebpf {
        EbpfState::On { .. } => None,
        EbpfState::Starting => Some(format!("{what} from eBPF, which is being attached.")),
        EbpfState::Disabled => Some(format!(
            "{what} from eBPF, which --no-ebpf leaves out. Start without it."
        )),
        EbpfState::Unavailable(no) => Some(format!(
            "{what} from eBPF, which is off: {}. The notes on 6:Probes say what to do.",
            no.why()
        )),
    }
}

/// A count of failures: plain at 0, conspicuous while it grows.
fn trouble(counter: Option<&Counter>, width: usize) -> Cell {
    let tone = match counter {
        None => Tone::Dim,
        Some(c) if c.rate.is_some_and(|r| r > 0.0) => Tone::Bad,
        Some(c) if c.total > 0 => Tone::Warn,
        Some(_) => Tone::Normal,
    };
    Cell::new(format::total_in(counter, width), tone)
}

/// A rate in the tone of its direction; zero and unknown stay plain.
fn flow(text: String, counter: Option<&Counter>, tone: Tone) -> Cell {
    match counter.and_then(|c| c.rate) {
        None => Cell::new(text, Tone::Dim),
        Some(rate) if rate > 0.0 => Cell::new(text, tone),
        Some(_) => Cell::value(text),
    }
}

/// The last points of a history, Tx and Rx together, in `width` cells.
fn spark(ctx: &Ctx<'_>, history: &History, width: usize) -> Cell {
    let len = history.tx.len().max(history.rx.len());
    let start = len.saturating_sub(width);
    let point = |at: usize| {
        let of = |side: &[Option<f64>]| side.get(at).copied().flatten();
        let both = [of(&history.tx), of(&history.rx)];
        both.iter()
            .any(Option::is_some)
            .then(|| both.into_iter().flatten().sum::<f64>())
    };
    let points: Vec<_> = (start..len).map(point).collect();
    let max = points.iter().flatten().copied().fold(0.0, f64::max);
    let mut text = " ".repeat(width.saturating_sub(points.len()));
    text.extend(points.iter().map(|p| ctx.glyphs.spark(*p, max)));
    Cell::new(text, Tone::Title)
}
