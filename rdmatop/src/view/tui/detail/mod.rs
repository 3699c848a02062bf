//! The detail pane: everything known about the selected row, as lines.

pub mod chart;
mod event;
mod finding;
mod port;
mod probe;
mod process;
mod qp;
mod traffic;
mod verb;

use super::columns::Cell;
use super::columns::RowKey;
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
            .map_or_else(Vec::new, |e| event::lines(state, e)),
        (Some(RowKey::Probe(_)), Some(at)) => probe::lines(state, Some(&snapshot.health.probes[at]), width),
        (Some(RowKey::Finding(..)), Some(at)) => finding::lines(state, &snapshot.findings[at], width),
        (None, _) if state.tab == super::tab::Tab::Probes => probe::lines(state, None, width),
        _ => Vec::new(),
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
            line.0.push(("  ".to_owned(), Tone::Normal));
            used += 2;
        }
        let tone = if value == super::format::UNKNOWN {
            Tone::Dim
        } else {
            Tone::Normal
        };
        line.0.push((format!("{name} "), Tone::Dim));
        line.0.push((value.clone(), tone));
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
    let head = |at: usize| {
        if at == 0 {
            format!("{name} ")
        } else {
            " ".repeat(indent)
        }
    };
    lines
        .into_iter()
        .enumerate()
        .map(|(at, line)| Cell::new(head(at), Tone::Dim).and(line, Tone::Normal))
        .collect()
}

fn heading(text: &str) -> Cell {
    Cell::new(text, Tone::Title)
}
