//! The list of keys, made from the table that handles them.

use super::super::columns::Cell;
use super::super::keys::{self, BINDINGS};
use super::super::layout;
use super::super::state::{Mode, State};
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, more, popup_box, put};
use crate::line::once::unobserved_alike;
use rdmatop_base::text::names;

/// Width of the column of keys.
const KEYS: usize = 14;
/// Width of the longest text beside it: both fit on a screen of 80 columns.
const ABOUT: usize = 58;

/// Every key that works, and what the columns of the tab mean.
pub(in crate::tui) fn lines(state: &State) -> Vec<Cell> {
    let (ctx, glyphs) = (state.ctx(), state.glyphs);
    let mut out = vec![Cell::new(
        format!("Columns of {}", state.tab.names()[0]),
        Tone::Title,
    )];
    for column in state.spec().columns() {
        entry(&mut out, &column.heading(&ctx), column.of.meta.help);
    }
    let title = |title: &'static str| [Cell::default(), Cell::new(title, Tone::Title)];
    let mut group = "";
    for binding in BINDINGS {
        if binding.group != group {
            group = binding.group;
            out.extend(title(group));
        }
        entry(&mut out, &keys::names(binding), binding.about);
    }
    out.extend(title("Mouse"));
    for (key, about) in [
        ("click", "tab; row, again: detail; heading: sort, again: invert"),
        ("", "the line of a note: 6:Probes; beside a list: close it"),
        ("wheel", "scroll what is below the pointer"),
    ] {
        entry(&mut out, key, about);
    }
    out.extend(title("Signs"));
    entry(&mut out, "-", "not known or not observable; never a 0");
    entry(&mut out, "0", "counted, and nothing happened");
    // Why some of it cannot be observed; devices with the same cause share an entry.
    for (devices, unobserved) in unobserved_alike(&state.snapshot) {
        let about = format!("{}: {}", names(&devices), unobserved.what());
        entry(&mut out, "", &about);
    }
    let [cause, victim] = [glyphs.cause, glyphs.victim].map(|signs| signs.join(" "));
    let (least, number) = (format!("> {}", glyphs.at_least), format!("2{}", glyphs.cause[1]));
    for (key, about) in [
        (
            "~",
            "in front of a number: derived, not counted; of a process's TX and RX within 5 %",
        ),
        ("0-n", "between 0 and n: others may have moved a part of n"),
        (
            least.as_str(),
            "in front of a number: at least; a part of it is not known",
        ),
        (
            cause.as_str(),
            "FINDING: this process is the cause, or the one to look at; critical, warning",
        ),
        (
            victim.as_str(),
            "FINDING: it suffers from another process, a peer or a port; critical, warning",
        ),
        (glyphs.meant, "FINDING: what it does may be meant so"),
        (
            number.as_str(),
            "the number of the finding in 7:Findings: rows with one number belong together",
        ),
        ("4!", "QPS: some of these queue pairs are stuck"),
        (
            "tracer lost",
            "events that rdmatop could not take from the kernel; no packets",
        ),
        ("<16us", "upper edge of a histogram bucket"),
        ("k M G", "1000; Ki Mi Gi: 1024"),
    ] {
        entry(&mut out, key, about);
    }
    out
}

/// Adds an entry, whose text may take several lines.
fn entry(out: &mut Vec<Cell>, key: &str, about: &str) {
    let keys = std::iter::once(key).chain(std::iter::repeat(""));
    for (key, line) in keys.zip(text::wrap(about, ABOUT)) {
        let pad = KEYS.saturating_sub(text::width(key));
        let head = Cell::new(format!("  {key}{}", " ".repeat(pad)), Tone::Accent);
        out.push(head.and(format!(" {line}"), Tone::Normal));
    }
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
