//! The last line: a prompt, a message, or the most useful keys.

use super::super::columns::Cell;
use super::super::keys::{self, Scope};
use super::super::layout::Layout;
use super::super::state::{Detail, Mode, State};
use super::super::text;
use super::super::theme::Tone;
use super::{Canvas, put};

/// Draws the last line.
pub(super) fn draw(state: &State, layout: &Layout, canvas: &mut Canvas) {
    let width = usize::from(layout.footer.width);
    let cell = match &state.mode {
        Mode::Search(_) => prompt("Search: ", &state.search, width, state),
        Mode::Filter { input, .. } => prompt("Filter: ", input, width, state),
        _ => match &state.message {
            Some(message) => Cell::new(text::cut(message, width, state.glyphs.cut), Tone::Accent),
            None => hints(state, width),
        },
    };
    put(state, canvas, layout.footer, 0, &cell);
}

fn prompt(name: &'static str, input: &str, width: usize, state: &State) -> Cell {
    // The end of the typed text stays visible; the `_` stands for the cursor.
    let room = width.saturating_sub(text::width(name) + 1);
    let cell = Cell::new(name, Tone::Title)
        .and(text::cut_left(input, room, state.glyphs.cut), Tone::Strong)
        .and("_", Tone::Accent);
    let wide = cell.width();
    let help = match (&state.message, &state.mode) {
        (Some(message), Mode::Search(_)) => format!("   {message}   Enter:keep  Esc:undo  then n N"),
        (Some(message), _) => format!("   {message}"),
        (None, Mode::Filter { .. }) => {
            let names: Vec<_> = state.spec().words().map(|n| format!("{n}:")).collect();
            format!("   {}  !not  Enter:keep  Esc:undo", names.join(" "))
        }
        (None, _) => "   Enter:keep  Esc:undo  then n N".to_owned(),
    };
    if wide < width {
        cell.and(text::cut(&help, width - wide, state.glyphs.cut), Tone::Dim)
    } else {
        cell
    }
}

fn hints(state: &State, width: usize) -> Cell {
    let scope = state.mode.scope();
    let mut hints = keys::hints(scope);
    hints.retain(|(_, word)| *word != "Copy" || !state.snapshot.findings.is_empty());
    // The hint names what the key does in the present state.
    let enter = match state.detail {
        Detail::Closed => "Detail",
        Detail::Split => "Whole screen",
        Detail::Full => "Close",
    };
    let freeze = if state.frozen { "Go on" } else { "Freeze" };
    for (_, word) in hints.iter_mut().filter(|_| scope == Scope::View) {
        *word = match *word {
            "Detail" => enter,
            "Freeze" => freeze,
            word => word,
        };
    }
    // Room for the hint that tells how to leave is reserved, so it is never cut off.
    let wide = |key: &str, word: &str| text::width(key) + text::width(word) + 3;
    let Some((last_key, last_word)) = hints.pop() else {
        return Cell::default();
    };
    let mut room = width.saturating_sub(wide(&last_key, last_word));
    let mut out = Cell::default();
    let mut add = |key: String, word: &'static str| {
        out.0.push((key.into(), Tone::Accent));
        // As the tabs have it: without the colon a key's name and its word read as a sentence.
        let pieces = [":", word, "  "].map(|piece| (piece.into(), Tone::Normal));
        out.0.extend(pieces);
    };
    for (key, word) in hints {
        let wide = wide(&key, word);
        if wide > room {
            break;
        }
        room -= wide;
        add(key, word);
    }
    add(last_key, last_word);
    out
}
