//! The cells of a frame, and what is drawn on them.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::super::text;

/// The frame that is being drawn. What lies outside of it is left out.
#[derive(Debug, Default)]
pub struct Canvas(Buffer);

impl Canvas {
    /// Begins a blank frame of `size`.
    pub fn begin(&mut self, size: (u16, u16)) {
        self.0.resize(Rect::new(0, 0, size.0, size.1));
        self.0.reset();
    }

    /// Writes `text` at `x` of line `y`, in at most `room` columns and not beyond the right edge.
    pub(super) fn text(&mut self, x: u16, y: u16, text: &str, room: usize, style: Style) {
        if self.0.area.contains((x, y).into()) {
            self.0.set_stringn(x, y, text, room, style);
        }
    }

    /// Sets `style` for `area`.
    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.0.set_style(area, style);
    }

    /// Erases `area`.
    pub(super) fn blank(&mut self, area: Rect) {
        for at in self.0.area.intersection(area).positions() {
            self.0[at].reset();
        }
    }

    /// Draws `area` in the style of the selected row.
    pub(super) fn select(&mut self, area: Rect, style: Style) {
        for at in self.0.area.intersection(area).positions() {
            let cell = &mut self.0[at];
            // Dim or coloured cells are hard to read reversed, so the row is plain text on one background.
            if style.add_modifier.contains(Modifier::REVERSED) {
                cell.fg = Color::Reset;
                cell.modifier &= Modifier::BOLD;
            } else {
                cell.modifier.remove(Modifier::DIM);
            }
            cell.set_style(style);
        }
    }

    /// Ends the frame. With `ascii`, other characters become `?`; the second result is how many did. Symbols of
    /// the view are ASCII then, so only names are affected.
    pub fn end(&mut self, ascii: bool) -> (&mut Buffer, usize) {
        let mut replaced = 0;
        for at in self.0.area.positions() {
            if self.0[at].symbol().is_ascii() {
                continue;
            }
            // A terminal shows a wide character completely or not at all, so one whose right half is covered goes.
            let wide = u16::try_from(text::width(self.0[at].symbol())).unwrap_or(1);
            let covered = (at.x + 1..at.x.saturating_add(wide)).any(|x| {
                let half = self.0.cell((x, at.y));
                half.is_none_or(|half| half.symbol() != " ")
            });
            if covered {
                self.0[at].set_symbol(" ");
            } else if ascii {
                // Only one column: the other half of a wide character is a cell of its own.
                self.0[at].set_symbol("?");
                replaced += 1;
            }
        }
        (&mut self.0, replaced)
    }
}
