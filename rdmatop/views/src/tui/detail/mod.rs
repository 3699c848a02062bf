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
use super::columns::RowKey;
use super::format;
use super::state::State;
use super::text;
use super::theme::Tone;

/// Title of the pane.
pub fn title(state: &State) -> String {
    let snapshot = &state.snapshot;
    match (state.table().selected.as_ref(), state.selected()) {
        (Some(RowKey::Process(_)), Some(at)) => {
            let p = &snapshot.processes[at];
            p.pid
                .map_or_else(|| p.comm.to_string(), |pid| format!("{} ({pid})", p.comm))
        }
        (Some(RowKey::Qp(_)), Some(at)) => {
            let q = &snapshot.qps[at];
            format!("QP {}/{}", q.device, q.qpn)
        }
        (Some(RowKey::Port(..)), Some(at)) => {
            format!("{} port {}", snapshot.ports[at].device, snapshot.ports[at].port)
        }
        (Some(RowKey::Verb(..)), Some(at)) => {
            let v = &snapshot.verbs[at];
            format!("{} by {} ({})", v.verb, v.comm.as_deref().unwrap_or("-"), v.pid)
        }
        (Some(RowKey::Event(number)), Some(_)) => format!("event {number}"),
        (Some(RowKey::Probe(_)), Some(at)) => snapshot.health.probes[at].program.clone(),
        (Some(RowKey::Finding(id, _)), Some(_)) => id.name().to_owned(),
        _ => "nothing selected".to_owned(),
    }
}

/// Lines of the pane in `width` columns.
pub fn lines(state: &State, width: usize) -> Vec<Cell> {
    let snapshot = &state.snapshot;
    match (state.table().selected.as_ref(), state.selected()) {
        (Some(RowKey::Process(_)), Some(at)) => process::lines(state, &snapshot.processes[at], width),
        (Some(RowKey::Qp(_)), Some(at)) => qp::lines(state, &snapshot.qps[at], width),
        (Some(RowKey::Port(..)), Some(at)) => port::lines(state, &snapshot.ports[at], width),
        (Some(RowKey::Verb(..)), Some(at)) => verb::lines(state, &snapshot.verbs[at], width),
        (Some(RowKey::Event(_)), Some(at)) => state
            .trace
            .get(at)
            .map_or_else(Vec::new, |e| event::lines(state, e, width)),
        (Some(RowKey::Probe(_)), Some(at)) => probe::lines(state, Some(&snapshot.health.probes[at]), width),
        (Some(RowKey::Finding(..)), Some(at)) => finding::lines(state, &snapshot.findings[at], width),
        (None, _) if state.tab == super::tab::Tab::Probes => probe::lines(state, None, width),
        _ => Vec::new(),
    }
}

/// Label and value of a row's fields that are not in the list of counters.
fn facts_of<R>(state: &State, table: Table<R>, row: &R) -> Vec<(&'static str, String)> {
    let fields = fields::detailed(table).into_iter();
    let plain = fields.filter(|(detail, _)| detail.place < COUNTERS);
    let value = |field: &fields::Field<R>| plain_text(field.meta.unit, &(field.get)(row, &state.snapshot));
    plain
        .map(|(detail, field)| (detail.label, value(field)))
        .collect()
}

fn counters_of<R>(state: &State, table: Table<R>, row: &R) -> Vec<(&'static str, Option<Counter>)> {
    let fields = fields::detailed(table).into_iter();
    let counts = fields.filter(|(detail, _)| detail.place >= COUNTERS);
    let counter = |field: &fields::Field<R>| match (field.get)(row, &state.snapshot) {
        Value::Total(counter) | Value::Rate(counter) => Some(counter),
        _ => None,
    };
    counts
        .map(|(detail, field)| (detail.label, counter(field)))
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

/// `name value  name value ...`, broken into lines of `width`.
fn facts(width: usize, facts: &[(&str, String)]) -> Vec<Cell> {
    let mut out = Vec::new();
    let mut line = Cell::default();
    let mut used = 0;
    for (name, value) in facts {
        let wide = text::width(name) + 1 + text::width(value);
        if used > 0 && used + 2 + wide > width {
            out.push(std::mem::take(&mut line));
            used = 0;
        }
        if used > 0 {
            line.0.push(("  ".into(), Tone::Normal));
            used += 2;
        }
        line.0.push((format!("{name} ").into(), Tone::Dim));
        line.0.extend(Cell::value(value.clone()).0);
        used += wide;
    }
    if used > 0 {
        out.push(line);
    }
    out
}

/// A long value under its name, wrapped.
fn long(name: &str, value: &str, width: usize) -> Vec<Cell> {
    let indent = text::width(name) + 1;
    let lines = text::wrap(value, width.saturating_sub(indent));
    let heads = iter::once(name).chain(iter::repeat(""));
    heads
        .zip(lines)
        .map(|(head, line)| {
            // Padded by display columns and not by characters, because names may have wide ones.
            let room = indent - text::width(head);
            Cell::new(format!("{head}{:room$}", ""), Tone::Dim).and(line, Tone::Normal)
        })
        .collect()
}

fn heading(text: &'static str) -> Cell {
    Cell::new(text, Tone::Title)
}
