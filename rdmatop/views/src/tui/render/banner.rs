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
    let mut line = |area, y, mark: &str, tone, text: String, of_text| {
        let cell = Cell::new(format!("{mark} "), tone).and(text, of_text);
        put(state, canvas, area, y, &cell);
    };
    if layout.findings.height > 0 {
        let (mark, tone) = match state.snapshot.findings.first() {
            Some(worst) => (alert, finding_tone(worst.severity)),
            None if state.is_well() => (" ", Tone::Good),
            None => (" ", Tone::Normal),
        };
        let lines = layout::finding_lines(state, layout.findings.width);
        for (y, text) in lines.into_iter().enumerate() {
            let (mark, tone) = if y == 0 { (mark, tone) } else { (" ", Tone::Normal) };
            line(layout.findings, y, mark, tone, text, tone);
        }
    }
    let lines = layout::banner_lines(state, layout.banner.width, layout.banner.height);
    for (y, text) in lines.into_iter().enumerate() {
        let mark = if y == 0 { alert } else { " " };
        line(layout.banner, y, mark, Tone::Warn, text, Tone::Warn);
    }
    if layout.notes.height > 1 {
        let lines = layout::notes_lines(&state.snapshot.health.notes, layout.notes.width);
        let room = usize::from(layout.notes.height) - 1;
        let hidden = lines.len().saturating_sub(room);
        for (y, (text, begins)) in (1..).zip(lines.into_iter().take(room)) {
            let mark = if begins { alert } else { " " };
            line(layout.notes, y, mark, Tone::Warn, text, Tone::Normal);
        }
        let title = if hidden > 0 {
            format!("Notes   Enter: {}", more(hidden))
        } else {
            "Notes".to_owned()
        };
        rule(state, canvas, layout.notes, &title);
    }
}
