//! The list of keys, made from the table that handles them.

use std::fmt::Write as _;

use super::super::columns::Cell;
use super::super::keys::{self, BINDINGS};
use super::super::layout;
use super::super::state::{Mode, State};
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, more, popup_box, put};
use crate::line::once::unobserved_alike;
use rdmatop_model::judgement::Unobserved;

/// Width of the column of keys.
const KEYS: usize = 14;
/// Width of the longest text beside it: both fit on a screen of 80 columns.
const ABOUT: usize = 58;

/// Every key that works, and what the columns of the tab mean.
pub(in crate::tui) fn lines(state: &State) -> Vec<Cell> {
    let mut out = vec![Cell::new(
        format!("Columns of {}", state.tab.names()[0]),
        Tone::Title,
    )];
    let ctx = state.ctx();
    for column in state.spec().columns() {
        out.extend(wrapped(&column.heading(&ctx), column.about));
    }
    let mut groups: Vec<&str> = Vec::new();
    for binding in BINDINGS {
        if !groups.contains(&binding.group) {
            groups.push(binding.group);
        }
    }
    for group in groups {
        out.push(Cell::default());
        out.push(Cell::new(group, Tone::Title));
        for binding in BINDINGS.iter().filter(|b| b.group == group) {
            out.push(entry(&keys::names(binding), binding.about));
        }
    }
    out.push(Cell::default());
    out.push(Cell::new("Mouse", Tone::Title));
    out.push(entry(
        "click",
        "tab; row, again: detail; heading: sort, again: invert",
    ));
    out.push(entry("", "the line of a note: 6:Probes; beside a list: close it"));
    out.push(entry("wheel", "scroll what is below the pointer"));
    out.push(Cell::default());
    out.push(Cell::new("Signs", Tone::Title));
    out.push(entry("-", "not known or not observable; never a 0"));
    out.push(entry("0", "counted, and nothing happened"));
    out.extend(causes(state));
    out.extend(wrapped(
        "~",
        "in front of a number: derived, not counted; of a process's TX and RX within 5 %",
    ));
    out.push(entry("0-n", "between 0 and n: others may have moved a part of n"));
    out.push(entry(
        &format!("> {}", state.glyphs.at_least),
        "in front of a number: at least; a part of it is not known",
    ));
    let [cause, victim] = [state.glyphs.cause, state.glyphs.victim].map(|signs| signs.join(" "));
    out.extend(wrapped(
        &cause,
        "FINDING: this process is the cause, or the one to look at; critical, warning",
    ));
    out.extend(wrapped(
        &victim,
        "FINDING: it suffers from another process, a peer or a port; critical, warning",
    ));
    out.push(entry(state.glyphs.meant, "FINDING: what it does may be meant so"));
    out.extend(wrapped(
        &format!("2{}", state.glyphs.cause[1]),
        "the number of the finding in 7:Findings: rows with one number belong together",
    ));
    out.push(entry("4!", "QPS: some of these queue pairs are stuck"));
    out.extend(wrapped(
        "tracer lost",
        "events that rdmatop could not take from the kernel; no packets",
    ));
    out.push(entry("<16us", "upper edge of a histogram bucket"));
    out.push(entry("k M G", "1000; Ki Mi Gi: 1024"));
    out
}

/// Why some of it cannot be observed; devices with the same cause share an entry.
fn causes(state: &State) -> Vec<Cell> {
    const NAMED: usize = 3;
    let told = |(devices, unobserved): (Vec<&str>, &Unobserved)| {
        let more = devices.len().saturating_sub(NAMED);
        let named: Vec<&str> = devices.into_iter().take(NAMED).collect();
        let mut named = named.join(", ");
        if more > 0 {
            let _ = write!(named, " and {more} more");
        }
        wrapped("", &format!("{named}: {}", unobserved.what()))
    };
    unobserved_alike(&state.snapshot)
        .into_iter()
        .flat_map(told)
        .collect()
}

/// An entry whose text may take several lines.
fn wrapped(key: &str, about: &str) -> Vec<Cell> {
    let lines = text::wrap(about, ABOUT).into_iter().enumerate();
    lines
        .map(|(at, line)| entry(if at == 0 { key } else { "" }, &line))
        .collect()
}

fn entry(key: &str, about: &str) -> Cell {
    let pad = KEYS.saturating_sub(text::width(key));
    Cell::new(format!("  {key}{}", " ".repeat(pad)), Tone::Accent).and(format!(" {about}"), Tone::Normal)
}

/// Draws the list over the screen, in two columns if it is longer than the screen and both fit.
pub(super) fn draw(state: &State, canvas: &mut Canvas) {
    let Mode::Help(first) = state.mode else { return };
    let lines = lines(state);
    let number = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
    let room = (state.size.0, state.size.1.saturating_sub(1));
    let longest = lines.iter().map(Cell::width).max().unwrap_or(0);
    // Each column has two blanks beside it; the frame takes two more.
    let wide = |columns: usize| number((longest + 2) * columns + 2);
    let is_long = lines.len() + 2 > usize::from(room.1);
    let columns = if is_long && wide(2) <= room.0 { 2 } else { 1 };
    let wanted = (wide(columns), number(lines.len().div_ceil(columns) + 2));
    let area = layout::popup(room, wanted);
    let height = usize::from(area.height.saturating_sub(2));
    let fits = height * columns;
    let first = first.min(lines.len().saturating_sub(fits));
    let below = lines.len().saturating_sub(first + fits);
    let title = if below > 0 {
        format!("Keys   Down: {}", more(below))
    } else {
        "Keys".to_owned()
    };
    let mut column = popup_box(state, area, &title, canvas);
    column.width = column.width.min(number(longest));
    for part in lines[first..].chunks(height.max(1)).take(columns) {
        for (y, line) in part.iter().take(height).enumerate() {
            put(state, canvas, column, y, line);
        }
        column.x += number(longest + 2);
    }
}
