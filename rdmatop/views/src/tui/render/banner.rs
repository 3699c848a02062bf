//! What is wrong, and what is missing: a line or two of each on every tab, all of it on Findings and on
//! Probes.

use super::super::columns::{Cell, finding_tone};
use super::super::layout::{self, Layout};
use super::super::state::State;
use super::super::theme::Tone;
use super::{Canvas, more, put, rule};

/// Draws the notes where the layout has room for them.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) {
    let alert = state.glyphs.alert;
    if let Some(worst) = state.snapshot.findings.first() {
        let area = layout.findings;
        let tone = finding_tone(worst.severity);
        for (y, line) in layout::finding_lines(state, area.width).into_iter().enumerate() {
            let (mark, tone) = if y == 0 {
                (alert, tone)
            } else {
                (" ", Tone::Normal)
            };
            let cell = Cell::new(format!("{mark} "), tone).and(line, tone);
            put(state, canvas, area, y, &cell);
        }
    }
    if state.snapshot.findings.is_empty() && layout.findings.height > 0 {
        let tone = if state.is_well() { Tone::Good } else { Tone::Normal };
        for line in layout::finding_lines(state, layout.findings.width) {
            let cell = Cell::new("  ", tone).and(line, tone);
            put(state, canvas, layout.findings, 0, &cell);
        }
    }
    let lines = layout::banner_lines(state, layout.banner.width, layout.banner.height);
    for (y, line) in lines.into_iter().enumerate() {
        let mark = if y == 0 { alert } else { " " };
        let cell = Cell::new(format!("{mark} "), Tone::Warn).and(line, Tone::Warn);
        put(state, canvas, layout.banner, y, &cell);
    }
    if layout.notes.height > 1 {
        let lines = layout::notes_lines(&state.snapshot.health.notes, layout.notes.width);
        let room = usize::from(layout.notes.height) - 1;
        let hidden = lines.len().saturating_sub(room);
        let title = if hidden > 0 {
            format!("Notes   Enter: {}", more(hidden))
        } else {
            "Notes".to_owned()
        };
        rule(state, canvas, layout.notes, &title);
        for (y, (line, begins)) in (1..).zip(lines.into_iter().take(room)) {
            let mark = if begins { alert } else { " " };
            let cell = Cell::new(format!("{mark} "), Tone::Warn).and(line, Tone::Normal);
            put(state, canvas, layout.notes, y, &cell);
        }
    }
}
