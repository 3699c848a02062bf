//! The detail pane: everything known about the selected row.

pub mod chart;
mod event;
mod finding;
mod port;
mod probe;
mod process;
mod qp;
mod traffic;
mod verb;

use std::iter;

use rdmatop_model::fields::{self, COUNTERS, Table, Unit, Value};
use rdmatop_model::value::Counter;

use super::columns::Cell;
use super::format;
use super::state::{Row, State};
use super::text;
use super::theme::Tone;

/// Title of the pane.
pub fn title(state: &State) -> String {
    match state.row() {
        Some(Row::Process(p)) => format::process(&p.comm, p.pid),
        Some(Row::Qp(q)) => format!("QP {}", q.name()),
        Some(Row::Port(p)) => format!("{} port {}", p.device, p.port),
        Some(Row::Verb(v)) => {
            let of = format::process(v.comm.as_deref().unwrap_or("-"), Some(v.pid));
            format!("{} by {of}", v.verb)
        }
        Some(Row::Event(number, _)) => format!("event {number}"),
        Some(Row::Probe(p)) => p.program.clone(),
        Some(Row::Finding(found)) => found.id.name().to_owned(),
        None => "nothing selected".to_owned(),
    }
}

/// The lines of the pane, while they are made.
pub struct Pane<'a> {
    state: &'a State,
    width: usize,
    lines: Vec<Cell>,
}

/// Lines of the pane in `width` columns.
pub fn lines(state: &State, width: usize) -> Vec<Cell> {
    filled(state, width, fill)
}

fn filled(state: &State, width: usize, fill: impl FnOnce(&mut Pane<'_>)) -> Vec<Cell> {
    let lines = Vec::new();
    let mut pane = Pane { state, width, lines };
    fill(&mut pane);
    pane.lines
}

fn fill(pane: &mut Pane<'_>) {
    match pane.state.row() {
        Some(Row::Process(p)) => process::fill(pane, p),
        Some(Row::Qp(q)) => qp::fill(pane, q),
        Some(Row::Port(p)) => port::fill(pane, p),
        Some(Row::Verb(v)) => verb::fill(pane, v),
        Some(Row::Event(_, event)) => event::fill(pane, event),
        Some(Row::Probe(p)) => probe::fill(pane, Some(p)),
        Some(Row::Finding(found)) => finding::fill(pane, found),
        None if pane.state.tab == super::tab::Tab::Probes => probe::fill(pane, None),
        None => {}
    }
}

impl Pane<'_> {
    fn add(&mut self, line: Cell) {
        self.lines.push(line);
    }

    fn heading(&mut self, text: &'static str) {
        self.add(Cell::new(text, Tone::Title));
    }

    /// A text, in as many lines as it takes.
    fn say(&mut self, text: &str, tone: Tone) {
        self.lines.extend(Cell::lines(text, self.width, tone));
    }

    /// `name value  name value ...`.
    fn facts(&mut self, facts: &[(&str, String)]) {
        let fact = |(name, value): &(&str, String)| {
            let mut fact = Cell::new(format!("{name} "), Tone::Dim);
            fact.0.extend(Cell::value(value.clone()).0);
            fact
        };
        self.row("  ", facts.iter().map(fact));
    }

    /// Pieces side by side, broken into lines.
    fn row(&mut self, gap: &'static str, pieces: impl Iterator<Item = Cell>) {
        let mut line = Cell::default();
        for piece in pieces {
            let used = line.width();
            if used > 0 && used + gap.len() + piece.width() > self.width {
                self.add(std::mem::take(&mut line));
            } else if used > 0 {
                line = line.and(gap, Tone::Normal);
            }
            line.0.extend(piece.0);
        }
        self.lines.extend((line.width() > 0).then_some(line));
    }

    /// A long value under its name, wrapped.
    fn long(&mut self, name: &str, value: &str) {
        self.under(name, value, text::wrap);
    }

    /// As [`Self::long`], in the lines that `wrap` makes.
    fn under(&mut self, name: &str, value: &str, wrap: fn(&str, usize) -> Vec<String>) {
        let indent = text::width(name) + 1;
        let lines = wrap(value, self.width.saturating_sub(indent));
        for (head, line) in iter::once(name).chain(iter::repeat("")).zip(lines) {
            // Padded by display columns and not by characters, because names may have wide ones.
            let room = indent - text::width(head);
            self.add(Cell::new(format!("{head}{:room$}", ""), Tone::Dim).and(line, Tone::Normal));
        }
    }
}

/// Labels and fields of a table: those of the list of counters, or all others.
fn detailed<R>(
    table: Table<R>,
    counters: bool,
) -> impl Iterator<Item = (&'static str, &'static fields::Field<R>)> {
    let fields = fields::detailed(table).into_iter();
    let fields = fields.filter(move |(detail, _)| (detail.place >= COUNTERS) == counters);
    fields.map(|(detail, field)| (detail.label, field))
}

/// Label and value of a row's fields that are not in the list of counters.
fn facts_of<R>(state: &State, table: Table<R>, row: &R) -> Vec<(&'static str, String)> {
    let value = |field: &fields::Field<R>| plain_text(field.meta.unit, &(field.get)(row, &state.snapshot));
    detailed(table, false)
        .map(|(label, field)| (label, value(field)))
        .collect()
}

fn counters_of<R>(state: &State, table: Table<R>, row: &R) -> Vec<(&'static str, Option<Counter>)> {
    let counter = |field: &fields::Field<R>| match (field.get)(row, &state.snapshot) {
        Value::Total(counter) | Value::Rate(counter) => Some(counter),
        _ => None,
    };
    detailed(table, true)
        .map(|(label, field)| (label, counter(field)))
        .collect()
}

/// A value in full length, for which the pane has room.
fn plain_text(unit: Unit, value: &Value<'_>) -> String {
    match value {
        Value::Text(text) | Value::State(_, text) => text.clone().into_owned(),
        Value::List(list) if !list.is_empty() => list.join(" "),
        Value::Flag(on) => if *on { "yes" } else { "no" }.to_owned(),
        Value::Total(counter) => format::total(Some(counter)),
        Value::Number(number) => match (unit, u64::try_from(*number)) {
            (Unit::Count, Ok(known)) => format::exact(known),
            (Unit::Memory, Ok(known)) => format!("{}B", format::memory(known)),
            (Unit::BitsPerSecond, Ok(known)) => format!("{}b/s", format::link(known)),
            (Unit::Nanoseconds, Ok(known)) => format::nanos(known),
            (Unit::Age, Ok(known)) => format::age(known / 1_000_000_000),
            _ => number.to_string(),
        },
        _ => format::UNKNOWN.to_owned(),
    }
}
