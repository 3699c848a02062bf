//! What the screen shows and what keys do, without a terminal.

mod agreement;
mod keys;
mod painting;
mod screens;
mod situations;
mod styles;
mod svg;
mod tables;
mod work;

use std::sync::Arc;

use crossterm::event::{Event as TermEvent, KeyCode, KeyEvent, KeyModifiers};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use rdmatop_model::snapshot::Snapshot;

use super::render;
use super::settings::Settings;
use super::state::State;
use super::tab::Tab;
use super::theme::Depth;
use super::update::{self, Effect};
use rdmatop_model::testkit;

const SIZES: [(u16, u16); 4] = [(40, 12), (80, 24), (120, 40), (200, 50)];

fn state(snapshot: Snapshot, tab: Tab, size: (u16, u16)) -> State {
    let mut state = State::new(
        Arc::new(snapshot.judged(None)),
        Settings::default(),
        tab,
        true,
        Depth::True,
    );
    state.take_events(testkit::events());
    state.touch();
    update::resize(&mut state, size);
    state
}

/// The frame, and how many of its cells are not ASCII, which an ASCII terminal gets as `?`.
fn draw(state: &State) -> (Buffer, usize) {
    let frame = |ascii| {
        let mut canvas = render::Canvas::default();
        canvas.begin(state.size, ascii);
        render::draw(state, &mut canvas);
        let mut buf = Buffer::empty(Rect::new(0, 0, state.size.0, state.size.1));
        (0..state.size.1).for_each(|y| buf.merge(&canvas.cells(y, state.size.0)));
        buf
    };
    let whole = frame(false);
    let replaced = whole.content.iter().filter(|cell| !cell.symbol().is_ascii());
    (frame(state.glyphs.ascii), replaced.count())
}

/// Symbols only: styles have their own tests, so that a changed colour does not touch every screen.
fn screen(state: &State) -> String {
    let (buf, _) = draw(state);
    let mut out = String::new();
    for y in 0..buf.area.height {
        let mut line = String::new();
        let mut x = 0;
        while x < buf.area.width {
            let symbol = buf[(x, y)].symbol();
            line.push_str(symbol);
            x += u16::try_from(super::text::width(symbol)).unwrap_or(1).max(1);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn code(state: &mut State, code: KeyCode) -> Option<Effect> {
    update::terminal_event(state, &TermEvent::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

/// Types characters.
fn typed(state: &mut State, text: &str) -> Option<Effect> {
    text.chars()
        .map(|c| code(state, KeyCode::Char(c)))
        .last()
        .flatten()
}
