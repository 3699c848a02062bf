//! A program's verdict, and the notes in full.

use rdmatop_model::fields::PROBE;
use rdmatop_model::input::ProbeVerdict;

use super::super::columns::{Cell, probe_word};
use super::super::theme::Tone;
use super::{Pane, facts_of};

/// Lines for a program's verdict and the notes; without a program, the notes alone.
pub(super) fn fill(pane: &mut Pane<'_>, probe: Option<&ProbeVerdict>) {
    let state = pane.state;
    if let Some(p) = probe {
        for (label, value) in facts_of(state, PROBE, p) {
            if label == "verdict" {
                pane.add(Cell::new("verdict ", Tone::Dim).and(value, probe_word(p.verdict).1));
            } else {
                pane.long(label, &value);
            }
        }
    }
    let health = &state.snapshot.health;
    if !health.notes.is_empty() {
        pane.heading("Notes: what is missing, why, the remedy");
    }
    for note in &health.notes {
        pane.long(state.glyphs.alert, &note.what);
        pane.long("  why", &note.why);
        pane.long("  do", &note.remedy);
    }
    if !health.losses.is_empty() {
        pane.heading("Losses by cause, of records or of counts");
    }
    for loss in &health.losses {
        let of = if loss.records { "records" } else { "counts" };
        pane.add(Cell::new(
            format!("  {:<12}{:>12}  {of}", loss.at, loss.count),
            Tone::Bad,
        ));
    }
    if !health.floods.is_empty() {
        pane.heading("Processes that make too many events");
    }
    for flood in &health.floods {
        pane.long(" ", &flood.to_string());
    }
    let skipped = || health.skipped.iter().flatten();
    if skipped().next().is_some() {
        pane.heading("Programs that the kernel skipped");
    }
    for skipped in skipped() {
        pane.long(" ", &skipped.to_string());
    }
    if !health.errors.is_empty() {
        pane.heading("Reads that failed in the last interval");
    }
    for error in &health.errors {
        pane.long(" ", &error.line());
    }
}
