//! A program's verdict, and the notes in full.

use rdmatop_model::fields::PROBE;
use rdmatop_model::input::ProbeVerdict;

use super::super::columns::{Cell, probe_word};
use super::super::state::State;
use super::super::theme::Tone;
use super::{facts_of, heading, long};

/// Lines for a program's verdict and the notes; without a program, the notes alone.
pub(super) fn lines(state: &State, probe: Option<&ProbeVerdict>, width: usize) -> Vec<Cell> {
    let mut out = Vec::new();
    if let Some(p) = probe {
        for (label, value) in facts_of(state, PROBE, p) {
            if label == "verdict" {
                out.push(Cell::new("verdict ", Tone::Dim).and(value, probe_word(p.verdict).1));
            } else {
                out.extend(long(label, &value, width));
            }
        }
    }
    let health = &state.snapshot.health;
    if !health.notes.is_empty() {
        out.push(heading("Notes: what is missing, why, the remedy"));
    }
    for note in &health.notes {
        out.extend(long(state.glyphs.alert, &note.what, width));
        out.extend(long("  why", &note.why, width));
        out.extend(long("  do", &note.remedy, width));
    }
    if !health.losses.is_empty() {
        out.push(heading("Losses by cause, of records or of counts"));
        out.extend(health.losses.iter().map(|loss| {
            let of = if loss.records { "records" } else { "counts" };
            Cell::new(format!("  {:<12}{:>12}  {of}", loss.at, loss.count), Tone::Bad)
        }));
    }
    if !health.floods.is_empty() {
        out.push(heading("Processes that make too many events"));
        let floods = health.floods.iter();
        out.extend(floods.flat_map(|flood| long(" ", &flood.to_string(), width)));
    }
    let skipped = || health.skipped.iter().flatten();
    if skipped().next().is_some() {
        out.push(heading("Programs that the kernel skipped"));
        out.extend(skipped().flat_map(|skipped| long(" ", &skipped.to_string(), width)));
    }
    if !health.errors.is_empty() {
        out.push(heading("Reads that failed in the last interval"));
        out.extend(health.errors.iter().flat_map(|e| long(" ", &e.line(), width)));
    }
    out
}
