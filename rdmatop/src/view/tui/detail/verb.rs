//! A verb of a process.

use crate::model::snapshot::VerbRow;

use super::super::columns::Cell;
use super::super::state::State;
use super::super::theme::Tone;
use super::super::{errno, format};
use super::{heading, traffic};

/// Lines for a verb.
pub(super) fn lines(state: &State, v: &VerbRow, width: usize) -> Vec<Cell> {
    let mut out = vec![
        heading(traffic::COUNTERS),
        traffic::counter("calls", &v.calls),
        traffic::counter("failed", &v.errors),
    ];
    if v.probe {
        out.push(Cell::new(
            "Libraries make this call to learn what the kernel can; it fails by design.",
            Tone::Dim,
        ));
    }
    for (number, count) in &v.errnos {
        let name = format!("{} ({number})", errno::text(*number));
        let tone = if v.probe { Tone::Dim } else { Tone::Bad };
        out.push(Cell::new(
            format!("  {name:<34}{:>17}", format::exact(*count)),
            tone,
        ));
    }
    out.extend(traffic::latency(state, "Time in the kernel", &v.latency, width));
    out
}
