//! Draws the state. One file per region; nothing here changes anything.

mod banner;
mod footer;
mod header;
mod help;
mod menu;
mod table;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Modifier;

use super::columns::Cell;
use super::layout::Layout;
use super::state::{Detail, Mode, State};
use super::text;
use super::theme::{Paint, Tone};

pub(super) use help::lines as help_lines;

/// Lines of the detail pane for the selected row, at the pane's width.
pub(super) fn detail_lines(state: &State) -> Vec<Cell> {
    super::detail::lines(state, usize::from(inside(Layout::of(state).detail).width))
}

/// What a frame took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Rows of the table that were formatted.
    pub rows: usize,
    /// Cells that held a sign the terminal cannot show and that was replaced: those come from names only.
    pub replaced: usize,
}

/// Draws everything.
pub fn draw(state: &State, buf: &mut Buffer) -> Drawn {
    let mut drawn = Drawn::default();
    let layout = Layout::of(state);
    header::draw(state, &layout, buf);
    banner::draw(state, &layout, buf);
    table::draw_tabs(state, &layout, buf);
    if state.detail != Detail::Full {
        drawn.rows = table::draw(state, &layout, buf);
    }
    if state.detail != Detail::Closed {
        draw_detail(state, layout.detail, buf);
    }
    footer::draw(state, &layout, buf);
    match state.mode {
        Mode::Help(_) => help::draw(state, buf),
        Mode::Sort(_) | Mode::Columns(_) => menu::draw(state, buf),
        _ => {}
    }
    if state.glyphs.ascii {
        drawn.replaced = to_ascii(buf);
    }
    drawn
}

/// Writes `cell` from the left edge of line `y` of `area`, cut to its width. Returns the columns used.
fn put(buf: &mut Buffer, area: Rect, y: u16, cell: &Cell, paint: Paint, mark: &str) -> u16 {
    if y >= area.height {
        return 0;
    }
    let room = usize::from(area.width);
    let total: usize = cell.0.iter().map(|(t, _)| text::width(t)).sum();
    let mut used = 0;
    for (piece, tone) in &cell.0 {
        let wide = text::width(piece);
        // The mark must fit where the cut is: keep its place while later pieces will not fit.
        let left = room - used;
        let shown = if total <= room || used + wide < room {
            piece.clone()
        } else {
            text::cut(
                &format!(
                    "{piece}{}",
                    if used + wide == room && total > room {
                        " "
                    } else {
                        ""
                    }
                ),
                left,
                mark,
            )
        };
        let shown_wide = text::width(&shown);
        let x = area.x + u16::try_from(used).unwrap_or(u16::MAX);
        buf.set_stringn(x, area.y + y, &shown, left, paint.style(*tone));
        used += shown_wide;
        if used >= room {
            break;
        }
    }
    u16::try_from(used).unwrap_or(u16::MAX)
}

/// A line across `area` with a title in it.
fn rule(buf: &mut Buffer, state: &State, area: Rect, y: u16, title: &str) {
    let width = usize::from(area.width);
    let title = text::cut(&format!(" {title} "), width.saturating_sub(4), state.glyphs.cut);
    let rest = width.saturating_sub(text::width(&title) + 2);
    let cell = Cell::new(state.glyphs.rule.repeat(2), Tone::Title)
        .and(title, Tone::Strong)
        .and(state.glyphs.rule.repeat(rest), Tone::Title);
    put(buf, area, y, &cell, state.paint(), "");
}

/// The detail pane without its wall, which it has when it stands beside the table.
fn inside(area: Rect) -> Rect {
    let wall = if area.x > 0 { 2 } else { 0 };
    Rect {
        x: area.x + wall,
        width: area.width.saturating_sub(wall),
        ..area
    }
}

fn draw_detail(state: &State, area: Rect, buf: &mut Buffer) {
    if area.height == 0 {
        return;
    }
    // Beside the table, the pane needs a wall; below it, its title line is enough.
    let beside = area.x > 0;
    let inner = inside(area);
    if beside {
        for y in 0..area.height {
            buf.set_string(
                area.x,
                area.y + y,
                state.glyphs.wall,
                state.paint().style(Tone::Title),
            );
        }
    }
    let lines = super::detail::lines(state, usize::from(inner.width));
    let height = usize::from(area.height - 1);
    let first = state.detail_offset.min(lines.len().saturating_sub(height));
    let left = lines.len().saturating_sub(first + height);
    let title = super::detail::title(state);
    let title = if left > 0 {
        format!("{title}   ] [ scroll, {}", more(left))
    } else {
        title
    };
    rule(buf, state, inner, 0, &title);
    for (y, line) in lines.iter().skip(first).take(height).enumerate() {
        put(
            buf,
            inner,
            u16::try_from(y + 1).unwrap_or(u16::MAX),
            line,
            state.paint(),
            state.glyphs.cut,
        );
    }
}

/// `1 more line`, `7 more lines`.
fn more(lines: usize) -> String {
    format!("{lines} more line{}", if lines == 1 { "" } else { "s" })
}

/// Clears `area` and draws a box around it.
fn popup_box(state: &State, area: Rect, title: &str, buf: &mut Buffer) -> Rect {
    for y in area.y..area.bottom() {
        for x in area.x..area.right() {
            buf[(x, y)].reset();
        }
    }
    let style = state.paint().style(Tone::Title);
    rule(buf, state, area, 0, title);
    if area.height > 1 {
        let bottom = state.glyphs.rule.repeat(usize::from(area.width));
        buf.set_stringn(area.x, area.bottom() - 1, bottom, usize::from(area.width), style);
    }
    for y in area.y..area.bottom() {
        for x in [area.x, area.right().saturating_sub(1)] {
            let edge = y == area.y || y + 1 == area.bottom();
            let sign = match (state.glyphs.ascii, edge) {
                (_, false) => state.glyphs.wall,
                (true, true) => "+",
                (false, true) => state.glyphs.rule,
            };
            buf.set_stringn(x, y, sign, 1, style);
        }
    }
    Rect {
        x: area.x + 2,
        y: area.y + 1,
        width: area.width.saturating_sub(4),
        height: area.height.saturating_sub(2),
    }
}

/// Replaces what is not ASCII. Our own signs never are: what is left is names.
fn to_ascii(buf: &mut Buffer) -> usize {
    let mut replaced = 0;
    for cell in &mut buf.content {
        if !cell.symbol().is_ascii() {
            // One column: the other half of a wide sign is a cell of its own.
            cell.set_symbol("?");
            replaced += 1;
        }
    }
    replaced
}

/// Lights up the selected row.
fn select(buf: &mut Buffer, area: Rect, y: u16, paint: Paint) {
    let style = paint.selected();
    for x in area.x..area.right() {
        let cell = &mut buf[(x, area.y + y)];
        // Reversed colours of a dim or coloured cell are hard to read: plain text on one ground.
        let keep = cell.modifier & Modifier::BOLD;
        if style.add_modifier.contains(Modifier::REVERSED) {
            cell.fg = ratatui::style::Color::Reset;
            cell.modifier = keep;
        } else {
            cell.modifier.remove(Modifier::DIM);
        }
        cell.set_style(style);
    }
}
