//! The mouse: click on a row, a tab, a heading; wheel.

use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Position;

use super::super::keys::Action;
use super::super::state::{Detail, Mode, State};
use super::super::tab::Tab;
use super::{Effect, apply, move_by, scroll_detail, to_row};

pub(super) fn event(state: &mut State, mouse: MouseEvent) -> Option<Effect> {
    let layout = state.layout();
    let at = Position::new(mouse.column, mouse.row);
    let wheel = match mouse.kind {
        MouseEventKind::ScrollDown => 3,
        MouseEventKind::ScrollUp => -3,
        MouseEventKind::Down(MouseButton::Left) => 0,
        // Movements, releases, and other buttons.
        _ => return Some(Effect::Still),
    };
    state.message = None;
    if wheel != 0 {
        if state.work.is_some() && !state.is_covered() {
            super::work::scroll(state, wheel);
        } else if !state.is_covered() && layout.detail.contains(at) {
            scroll_detail(state, wheel);
        } else {
            move_by(state, wheel);
        }
        return None;
    }
    if state.is_covered() {
        state.mode = Mode::View;
        return None;
    }
    let note = state.narrowing(&layout);
    if let Some((tab, ..)) = layout
        .labels(state.tab, &note)
        .into_iter()
        .find(|(_, rect, _)| rect.contains(at))
    {
        state.go(tab);
    } else if layout.heading.contains(at) {
        let fit = state.fit(layout.heading.width);
        let hit = fit
            .placed
            .iter()
            .find(|p| (p.x..p.x + p.width).contains(&(at.x - layout.heading.x)));
        if let Some(placed) = hit {
            state.sort_by(placed.column);
        }
    } else if layout.rows.contains(at) {
        let row = state.table().offset + usize::from(at.y - layout.rows.y);
        if row < state.table().order.len() {
            let again = row == state.table().cursor;
            to_row(state, row);
            if again && state.detail == Detail::Closed {
                let _ = apply(state, Action::Detail);
            }
        }
    } else if layout.banner.contains(at) {
        state.go(Tab::Probes);
    } else if layout.findings.contains(at) {
        state.go(Tab::Findings);
    }
    None
}
