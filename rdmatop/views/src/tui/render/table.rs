//! Tabs and the table: headings, and the rows that are on the screen.

use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::super::columns::{Align, Cell, Ctx, is_faded, only_kernel};
use super::super::filter::Filter;
use super::super::layout::Layout;
use super::super::state::State;
use super::super::tab::Tab;
use super::super::table::{Branch, Entry, Fit, Line};
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, line_of, put, select};

pub(super) fn draw_tabs(state: &State, layout: &Layout, canvas: &mut Canvas) {
    let paint = state.paint();
    let note = state.narrowing(layout);
    let labels = layout.labels(state.tab, &note);
    let end = labels.last().map_or(0, |(_, rect, _)| rect.right());
    for (tab, rect, label) in labels.into_iter().filter(|(_, rect, _)| !rect.is_empty()) {
        let mut style = paint.style(if tab == state.tab { Tone::Accent } else { Tone::Dim });
        if tab == state.tab {
            style = style.add_modifier(Modifier::REVERSED);
        }
        canvas.text(rect.x, rect.y, &label, usize::from(rect.width), style);
    }
    let width = u16::try_from(text::width(&note)).unwrap_or(u16::MAX);
    let x = layout.tabs.width.saturating_sub(width);
    if x >= end.saturating_add(2) {
        let at = Rect {
            x,
            width,
            ..layout.tabs
        };
        put(state, canvas, at, 0, &Cell::new(note, Tone::Accent));
    }
}

/// Draws headings and rows. Returns how many rows were formatted: those on the screen.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) -> usize {
    if layout.heading.height == 0 {
        return 0;
    }
    let fit = state.fit(layout.heading.width);
    headings(state, layout.heading, &fit, canvas);
    let table = state.table();
    if table.order.is_empty() {
        empty(state, layout.rows, canvas);
        return 0;
    }
    let ctx = state.ctx();
    let search = Filter::parse(&state.search);
    let shown = table
        .order
        .iter()
        .enumerate()
        .skip(table.offset)
        .take(usize::from(layout.rows.height));
    let mut formatted = 0;
    for (y, (at, entry)) in shown.enumerate() {
        row(state, &ctx, layout.rows, y, *entry, &fit, canvas);
        formatted += 1;
        if !search.is_empty() && search.matches(&ctx, state.spec(), entry.at) {
            canvas.style(
                line_of(layout.rows, y),
                Style::new().add_modifier(Modifier::UNDERLINED),
            );
        }
        if at == table.cursor {
            select(state, canvas, layout.rows, y);
        }
    }
    // Rows of kernel consumers alone look like traffic, although no job uses RDMA.
    if let (Tab::Processes, Some(text)) = (state.tab, only_kernel(&ctx)) {
        say(state, layout.rows, formatted + 1, &text, canvas);
    }
    formatted
}

fn headings(state: &State, area: Rect, fit: &Fit, canvas: &mut Canvas) {
    let (ctx, (by, down), paint) = (state.ctx(), state.sort(), state.paint());
    let underline = paint.style(Tone::Title).add_modifier(Modifier::UNDERLINED);
    canvas.style(area, underline);
    for placed in &fit.placed {
        let sorted = placed.column.id == by && placed.column.sortable;
        let mut title = placed.column.heading(&ctx);
        let mark = if sorted {
            state.glyphs.sort[usize::from(down)]
        } else {
            ""
        };
        let width = usize::from(placed.width);
        // The mark stands on the side where the text does not; without room it takes the gap between columns.
        let x = match placed.column.align {
            Align::Left => {
                title.push_str(mark);
                placed.x
            }
            Align::Right => {
                title.insert_str(0, mark);
                let pad = width.saturating_sub(text::width(&title));
                let over = u16::from(text::width(&title) > width && placed.x > 0);
                placed.x - over + u16::try_from(pad).unwrap_or(0)
            }
        };
        let style = if sorted {
            paint.style(Tone::Accent).add_modifier(Modifier::UNDERLINED)
        } else {
            underline.add_modifier(Modifier::BOLD)
        };
        let room = (width + 1).min(usize::from(area.width.saturating_sub(x)));
        canvas.text(area.x + x, area.y, &title, room, style);
    }
}

fn row(state: &State, ctx: &Ctx<'_>, area: Rect, y: usize, entry: Entry, fit: &Fit, canvas: &mut Canvas) {
    let faded = is_faded(state.tab, ctx.snapshot, entry.at);
    for placed in &fit.placed {
        let width = usize::from(placed.width);
        let mut cell = placed.column.cell(ctx, entry.at, width);
        if placed.column.id == "command" {
            cell.0.insert(0, (branch(state, entry.branch).into(), Tone::Dim));
        }
        if faded {
            cell.0.iter_mut().for_each(|(_, tone)| *tone = Tone::Dim);
        }
        let wide = cell.width();
        let pad = match placed.column.align {
            Align::Left => 0,
            Align::Right => width.saturating_sub(wide),
        };
        let pad = u16::try_from(pad).unwrap_or(0);
        let at = Rect {
            x: area.x + placed.x + pad,
            width: placed.width - pad,
            ..area
        };
        put(state, canvas, at, y, &cell);
    }
}

fn branch(state: &State, branch: Branch) -> String {
    let lines = &state.glyphs.tree;
    let sign = match branch.line {
        Line::None => "",
        Line::First => state.glyphs.group,
        Line::Middle => lines[0],
        Line::Last => lines[1],
    };
    let depth = usize::from(branch.depth).saturating_sub(1);
    format!("{}{sign}", "  ".repeat(depth))
}

fn empty(state: &State, area: Rect, canvas: &mut Canvas) {
    let all = (state.spec().len)(&state.ctx());
    let text = if all > 0 && !state.filter.is_empty() {
        let hint = state.filter.no_field().map_or_else(String::new, |name| {
            format!(
                " No field is called {name}; this tab has {}.",
                state.spec().words().collect::<Vec<_>>().join(", ")
            )
        });
        format!(
            "None of {all} rows matches the filter \"{}\".{hint} Esc drops it.",
            state.filter.text()
        )
    } else if all > 0 {
        "No event of what is followed yet. o or Esc shows all events.".to_owned()
    } else {
        (state.spec().empty)(&state.ctx())
    };
    say(state, area, usize::from(area.height > 3), &text, canvas);
}

/// Writes `text` from line `top` of the rows on.
fn say(state: &State, area: Rect, top: usize, text: &str, canvas: &mut Canvas) {
    let lines = text::wrap(text, usize::from(area.width).saturating_sub(4).min(76));
    for (y, line) in (top..).zip(lines) {
        put(
            state,
            canvas,
            area,
            y,
            &Cell::new(format!("  {line}"), Tone::Normal),
        );
    }
}
