//! Keys of the pane of work requests.

use super::super::keys::Action;
use super::super::state::{Mode, Row, State, WorkPane};
use super::page;

/// Opens the pane for the selected QP.
pub(super) fn open(state: &mut State) {
    let Some(Row::Qp(row)) = state.row() else {
        state.message = Some("w shows the work requests of a QP: choose one in 2:QPs".to_owned());
        return;
    };
    let Some(qpn) = row.number() else {
        state.message =
            Some("the kernel knows no number of this QP, and so no work requests of it".to_owned());
        return;
    };
    state.work = Some(WorkPane {
        qp: row.uid,
        device: row.device.clone(),
        qpn,
        first: 0,
    });
    // A frozen screen would show nothing of the work requests.
    if state.frozen {
        state.freeze(false);
    }
}

/// Handles a key while the pane is open. False: the key does what it does elsewhere.
pub(super) fn apply(state: &mut State, action: Action) -> bool {
    if state.mode != Mode::View {
        return false;
    }
    match action {
        Action::Back | Action::Work => close(state),
        Action::Move(by) | Action::DetailScroll(by) => scroll(state, by),
        Action::Page(by) => {
            let lines = page(state);
            scroll(state, by * lines);
        }
        Action::Top => scroll(state, isize::MIN),
        Action::Bottom => scroll(state, isize::MAX),
        Action::Go(_) | Action::Step(_) => {
            close(state);
            return false;
        }
        Action::Quit
        | Action::Suspend
        | Action::Redraw
        | Action::Refresh(_)
        | Action::Freeze
        | Action::Theme
        | Action::Units
        | Action::Help => return false,
        _ => state.message = Some("Esc closes the work requests first".to_owned()),
    }
    true
}

fn close(state: &mut State) {
    state.work = None;
    state.show_cursor();
}

pub(super) fn scroll(state: &mut State, by: isize) {
    let all = state.snapshot.watched.as_ref().map_or(0, |qp| qp.requests.len());
    if let Some(work) = &mut state.work {
        work.first = work.first.saturating_add_signed(by).min(all.saturating_sub(1));
    }
}
