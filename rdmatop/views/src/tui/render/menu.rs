//! The choosers: sort column, columns.

use super::super::columns::Cell;
use super::super::layout;
use super::super::state::{Mode, State};
use super::super::table;
use super::super::theme::Tone;
use super::{Canvas, popup_box, put, select};

/// Draws the chooser that is open.
pub(super) fn draw(state: &State, canvas: &mut Canvas) {
    let (cursor, title) = match state.mode {
        Mode::Sort(at) => (at, "Sort by"),
        Mode::Columns(at) => (at, "Columns"),
        _ => return,
    };
    let lines: Vec<Cell> = (0..state.spec().columns().len())
        .map(|at| line(state, at))
        .collect();
    let wide = lines.iter().map(Cell::width).max().unwrap_or(0) + 4;
    let wanted = [wide, lines.len() + 2].map(|wanted| u16::try_from(wanted).unwrap_or(u16::MAX));
    let room = (state.size.0, state.size.1.saturating_sub(1));
    let inner = popup_box(state, layout::popup(room, wanted.into()), title, canvas);
    let height = usize::from(inner.height);
    let first = table::window(0, cursor, lines.len(), height);
    for (y, (at, line)) in lines.iter().enumerate().skip(first).take(height).enumerate() {
        put(state, canvas, inner, y, line);
        if at == cursor {
            select(state, canvas, inner, y);
        }
    }
}

fn line(state: &State, at: usize) -> Cell {
    let column = &state.spec().columns()[at];
    let (by, down) = state.sort();
    let mark = match state.mode {
        Mode::Sort(_) if by == column.id => state.glyphs.sort[usize::from(down)],
        Mode::Sort(_) => " ",
        _ if column.screen.priority == 0 => "[=]",
        _ if state.column_on(column) => "[x]",
        _ => "[ ]",
    };
    let usable = column.sortable || !matches!(state.mode, Mode::Sort(_));
    let tone = if usable { Tone::Strong } else { Tone::Dim };
    Cell::new(format!("{mark} {:<12}", column.heading(&state.ctx())), tone)
        .and(column.of.meta.help, Tone::Dim)
}
