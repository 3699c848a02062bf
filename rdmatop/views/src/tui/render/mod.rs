//! Draws the state. One file for each part of the screen; nothing here changes the state.

mod banner;
mod canvas;
mod footer;
mod header;
mod help;
mod legend;
mod menu;
mod rails;
mod table;
mod work;

use ratatui::layout::Rect;

use super::columns::Cell;
use super::state::{Detail, Mode, State};
use super::text;
use super::theme::Tone;

pub use canvas::Canvas;
pub(super) use help::lines as help_lines;

/// Lines of the detail pane for the selected row, at the pane's width.
pub(super) fn detail_lines(state: &State) -> Vec<Cell> {
    super::detail::lines(state, usize::from(inside(state.layout().detail).width))
}

/// Draws everything. Returns how many rows of the table were formatted.
pub fn draw(state: &State, canvas: &mut Canvas) -> usize {
    let mut rows = 0;
    let layout = state.layout();
    header::draw(state, &layout, canvas);
    rails::draw(state, &layout, canvas);
    banner::draw(state, &layout, canvas);
    table::draw_tabs(state, &layout, canvas);
    if let Some(pane) = &state.work {
        work::draw(state, pane, layout.detail, canvas);
    } else if state.detail != Detail::Full {
        rows = table::draw(state, &layout, canvas);
    }
    if state.detail != Detail::Closed && state.work.is_none() {
        draw_detail(state, layout.detail, canvas);
    }
    legend::draw(state, &layout, canvas);
    footer::draw(state, &layout, canvas);
    match state.mode {
        Mode::Help(_) => help::draw(state, canvas),
        Mode::Sort(_) | Mode::Columns(_) => menu::draw(state, canvas),
        _ => {}
    }
    rows
}

/// Writes `cell` from the left edge of line `y` of `area`, cut to its width.
fn put(state: &State, canvas: &mut Canvas, area: Rect, y: usize, cell: &Cell) {
    if y >= usize::from(area.height) {
        return;
    }
    let (paint, y) = (state.paint(), area.y + u16::try_from(y).unwrap_or(u16::MAX));
    let (room, mut used) = (usize::from(area.width), 0);
    let fits = cell.width() <= room;
    for (piece, tone) in &cell.0 {
        let (left, wide) = (room - used, text::width(piece));
        let x = area.x.saturating_add(u16::try_from(used).unwrap_or(u16::MAX));
        // Room for the mark is reserved as long as later pieces might not fit.
        if fits || wide < left {
            canvas.text(x, y, piece, left, paint.style(*tone));
            used += wide;
            continue;
        }
        let more = if wide == left { " " } else { "" };
        let cut = text::cut(&format!("{piece}{more}"), left, state.glyphs.cut);
        canvas.text(x, y, &cut, left, paint.style(*tone));
        used += text::width(&cut);
        if used >= room {
            break;
        }
    }
}

/// The first line of `area`, with a title in it.
fn rule(state: &State, canvas: &mut Canvas, area: Rect, title: &str) {
    let width = usize::from(area.width);
    let title = text::cut(&format!(" {title} "), width.saturating_sub(4), state.glyphs.cut);
    let rest = width.saturating_sub(text::width(&title) + 2);
    let cell = Cell::new(state.glyphs.rule.repeat(2), Tone::Title)
        .and(title, Tone::Strong)
        .and(state.glyphs.rule.repeat(rest), Tone::Title);
    put(state, canvas, area, 0, &cell);
}

/// The area of the detail pane without the wall that it has beside the table.
fn inside(area: Rect) -> Rect {
    let wall = if area.x > 0 { 2 } else { 0 };
    Rect {
        x: area.x + wall,
        width: area.width.saturating_sub(wall),
        ..area
    }
}

fn draw_detail(state: &State, area: Rect, canvas: &mut Canvas) {
    if area.height == 0 {
        return;
    }
    // Beside the table, the pane needs a wall; below the table, its title line is enough.
    let inner = inside(area);
    if area.x > 0 {
        for y in 0..area.height {
            let style = state.paint().style(Tone::Title);
            canvas.text(area.x, area.y + y, state.glyphs.wall, 1, style);
        }
    }
    let lines = super::detail::lines(state, usize::from(inner.width));
    let height = usize::from(area.height - 1);
    let first = state.detail_offset.min(lines.len().saturating_sub(height));
    let left = lines.len().saturating_sub(first + height);
    let title = super::detail::title(state);
    let title = if left > 0 {
        format!("{title}   ] down, [ up: {}", more(left))
    } else {
        title
    };
    rule(state, canvas, inner, &title);
    for (y, line) in (1..).zip(lines.iter().skip(first).take(height)) {
        put(state, canvas, inner, y, line);
    }
}

/// `1 more line`, `7 more lines`.
fn more(lines: usize) -> String {
    rdmatop_base::text::count(lines, "more line")
}

/// Clears `area` and draws a box around it.
fn popup_box(state: &State, area: Rect, title: &str, canvas: &mut Canvas) -> Rect {
    canvas.blank(area);
    let style = state.paint().style(Tone::Title);
    rule(state, canvas, area, title);
    if area.height > 1 {
        let bottom = state.glyphs.rule.repeat(usize::from(area.width));
        canvas.text(area.x, area.bottom() - 1, &bottom, usize::from(area.width), style);
    }
    for y in area.y + 1..area.bottom().saturating_sub(1) {
        for x in [area.x, area.right().saturating_sub(1)] {
            canvas.text(x, y, state.glyphs.wall, 1, style);
        }
    }
    Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    }
}

/// Highlights line `y` of `area`, the selected row.
fn select(state: &State, canvas: &mut Canvas, area: Rect, y: usize) {
    canvas.select(line_of(area, y), state.paint().selected());
}

fn line_of(area: Rect, y: usize) -> Rect {
    let y = area.y.saturating_add(u16::try_from(y).unwrap_or(u16::MAX));
    Rect { y, height: 1, ..area }
}
