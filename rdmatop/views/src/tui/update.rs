//! What an action changes in the state, and what it asks of the outside.

mod copy;
mod mouse;
mod probe;
mod work;

use std::time::Duration;

use crossterm::event::{Event as TermEvent, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::filter::Filter;
use super::format::Units;
use super::keys::{self, Action, Erase, Scope};
use super::run::Control;
use super::settings::{FASTEST, SLOWEST};
use super::state::{Detail, Mode, Row, State};
use super::tab::Tab;
use super::table::Fit;
use super::trace_log::Follow;
use rdmatop_model::event::Event;

/// What the outside has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Leave.
    Quit,
    /// What the app has to do.
    Ask(Control),
    /// Put this text into the terminal's clipboard.
    Copy(String),
    /// Stop the process.
    Suspend,
    /// Draw everything again.
    Redraw,
    /// Nothing changed, so no frame is needed.
    Still,
}

/// Times between samples that `+` and `-` step through.
const STEPS: [u64; 10] = [100, 200, 500, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000];

/// Takes an event of the terminal. `None`: a frame has to be drawn, and nothing else done.
pub fn terminal_event(state: &mut State, event: &TermEvent) -> Option<Effect> {
    let before = state.work.as_ref().map(|work| work.qp);
    let effect = took(state, event);
    // Whatever opened or closed the pane: the programs that see its work requests have to come or go with it.
    let after = state.work.as_ref().map(|work| work.qp);
    match effect {
        None | Some(Effect::Still) if before != after => Some(Effect::Ask(Control::Watch(after))),
        _ => effect,
    }
}

fn took(state: &mut State, event: &TermEvent) -> Option<Effect> {
    match event {
        TermEvent::Key(key) if key.kind != KeyEventKind::Release => key_event(state, *key),
        TermEvent::Mouse(mouse) => mouse::event(state, *mouse),
        // SIGWINCH reports the size too, and may have come first.
        TermEvent::Resize(width, height) if state.size != (*width, *height) => {
            resize(state, (*width, *height));
            None
        }
        _ => Some(Effect::Still),
    }
}

/// Takes a new size of the terminal.
pub fn resize(state: &mut State, size: (u16, u16)) {
    state.size = size;
    state.show_cursor();
}

/// Takes a key.
pub fn key_event(state: &mut State, key: KeyEvent) -> Option<Effect> {
    let had_message = state.message.take().is_some();
    let scope = state.mode.scope();
    match (keys::action(scope, key), key.code) {
        (Some(action), _) => apply(state, action),
        (None, KeyCode::Char(c))
            if scope == Scope::Prompt && (key.modifiers - KeyModifiers::SHIFT).is_empty() =>
        {
            edit(state, |text| text.push(c));
            None
        }
        _ if had_message => None,
        _ => Some(Effect::Still),
    }
}

/// Does what `action` says.
pub fn apply(state: &mut State, action: Action) -> Option<Effect> {
    if state.work.is_some() && work::apply(state, action) {
        return None;
    }
    match action {
        Action::Quit => return Some(Effect::Quit),
        Action::Suspend => return Some(Effect::Suspend),
        Action::Redraw => return Some(Effect::Redraw),
        Action::Refresh(step) => return refresh(state, step),
        Action::Back => back(state),
        Action::Move(by) => move_by(state, by),
        Action::Page(by) => {
            let lines = page(state);
            move_by(state, by * lines);
        }
        Action::Top => to_row(state, 0),
        Action::Bottom => to_row(state, usize::MAX),
        Action::Scroll(by) => scroll(state, by),
        Action::Detail if state.detail == Detail::Closed && state.table().order.is_empty() => {
            let none = match state.tab {
                Tab::Findings => "nothing is found yet that Enter could show",
                _ => "no row has a detail here",
            };
            state.message = Some(none.to_owned());
        }
        Action::Detail => {
            state.detail = match state.detail {
                Detail::Closed => Detail::Split,
                Detail::Split => Detail::Full,
                Detail::Full => Detail::Closed,
            };
            state.detail_offset = 0;
            state.show_cursor();
        }
        Action::DetailScroll(by) => scroll_detail(state, by * 3),
        Action::Go(tab) => state.go(tab),
        Action::Step(by) => state.go(state.tab.step(by)),
        Action::Search => {
            state.search.clear();
            state.mode = Mode::Search(state.table().cursor);
        }
        Action::Match(by) => find(state, state.table().cursor, by, false),
        Action::Filter => {
            let text = state.filter.text().to_owned();
            state.mode = Mode::Filter {
                input: text.clone(),
                before: text,
            };
        }
        Action::SortMenu => sort_menu(state),
        Action::SortStep(by) => sort_step(state, by),
        Action::Invert => {
            let (by, down) = state.sort();
            state.set_sort(by.to_owned(), !down);
        }
        Action::ColumnMenu => state.mode = Mode::Columns(0),
        Action::Freeze => state.freeze(!state.frozen),
        Action::Theme => state.next_theme(),
        Action::Units => {
            state.settings.units = match state.settings.units {
                Units::Bits => Units::Bytes,
                Units::Bytes => Units::Bits,
            };
        }
        Action::Tree => {
            state.settings.tree ^= true;
            state.go(Tab::Processes);
            state.touch();
        }
        Action::Follow => follow(state),
        Action::Work => work::open(state),
        Action::Probe => return probe::switch(state),
        Action::Copy => return copy::next_step(state),
        Action::Clear => {
            state.trace.clear();
            state.touch();
        }
        Action::Help => state.mode = Mode::Help(0),
        Action::Pin => {
            state.settings.stuck_first ^= true;
            let place = ["where the order puts them", "first"][usize::from(state.settings.stuck_first)];
            state.message = Some(format!("rows with trouble stand {place}"));
            if !matches!(state.tab, Tab::Processes | Tab::Qps) {
                state.go(Tab::Qps);
            }
            state.touch();
        }
        Action::Accept | Action::Toggle => choose(state, action),
        Action::Erase(what) => edit(state, |text| erase(text, what)),
    }
    None
}

fn erase(text: &mut String, what: Erase) {
    match what {
        Erase::Char => {
            text.pop();
        }
        Erase::Word => {
            let kept = text.trim_end();
            let end = kept.rfind(char::is_whitespace).map_or(0, |at| at + 1);
            text.truncate(end);
        }
        Erase::All => text.clear(),
    }
}

fn page(state: &State) -> isize {
    let layout = state.layout();
    let lines = match (&state.mode, state.detail) {
        (Mode::Help(_), _) => state.size.1.saturating_sub(4),
        (_, Detail::Full) => layout.detail.height.saturating_sub(2),
        _ => layout.rows.height,
    };
    isize::from(lines.max(1).cast_signed())
}

fn move_by(state: &mut State, by: isize) {
    let lines = super::render::help_lines(state).len();
    let columns = state.spec().columns().len();
    match &mut state.mode {
        Mode::Help(at) => *at = at.saturating_add_signed(by).min(lines.saturating_sub(1)),
        Mode::Sort(at) | Mode::Columns(at) => {
            *at = at.saturating_add_signed(by).min(columns.saturating_sub(1));
        }
        _ if state.detail == Detail::Full => scroll_detail(state, by),
        _ => to_row(state, state.table().cursor.saturating_add_signed(by)),
    }
}

fn to_row(state: &mut State, row: usize) {
    state.put_cursor(row);
    if state.tab == Tab::Trace {
        state.tail = state.table().cursor + 1 >= state.table().order.len();
    }
}

fn scroll(state: &mut State, by: isize) {
    let layout = state.layout();
    let fit = state.fit(layout.heading.width);
    // Scrolling on gains nothing when no column is hidden on that side.
    let hidden = if by > 0 { fit.shed } else { fit.skipped };
    if hidden == 0 {
        let side = if by > 0 { "right" } else { "left" };
        state.message = Some(format!("no columns hidden on the {side}; ? lists the keys"));
        return;
    }
    // A column that had no room is not on the screen, so scrolling it away frees no room.
    let shown = |fit: &Fit| {
        fit.placed
            .iter()
            .map(|placed| placed.column.id)
            .collect::<Vec<_>>()
    };
    for _ in 0..state.spec().columns().len() {
        let table = state.table_mut();
        table.skip = table.skip.saturating_add_signed(by);
        if shown(&state.fit(layout.heading.width)) != shown(&fit) {
            break;
        }
    }
}

fn scroll_detail(state: &mut State, by: isize) {
    let lines = super::render::detail_lines(state).len();
    let height = usize::from(state.layout().detail.height).saturating_sub(1);
    let last = lines.saturating_sub(height);
    state.detail_offset = state.detail_offset.saturating_add_signed(by).min(last);
}

fn back(state: &mut State) {
    if state.mode != Mode::View {
        match std::mem::take(&mut state.mode) {
            Mode::Search(from) => {
                state.search.clear();
                to_row(state, from);
            }
            Mode::Filter { before, .. } => set_filter(state, &before),
            _ => {}
        }
    } else if state.detail != Detail::Closed {
        state.detail = Detail::Closed;
        state.show_cursor();
    } else if state.tab == Tab::Trace && state.follow.is_some() {
        state.follow = None;
        state.touch();
    } else if !state.filter.is_empty() {
        state.filter = Filter::default();
        state.touch();
    } else if !state.search.is_empty() {
        state.search.clear();
    } else {
        state.message = Some("q leaves".to_owned());
    }
}

fn refresh(state: &mut State, step: isize) -> Option<Effect> {
    let now = u64::try_from(state.settings.delay().as_millis()).unwrap_or(u64::MAX);
    // A faster refresh has a shorter interval.
    let next = if step > 0 {
        STEPS.iter().rev().find(|ms| **ms < now)
    } else {
        STEPS.iter().find(|ms| **ms > now)
    };
    let Some(next) = next else {
        let end = if step > 0 { "fastest" } else { "slowest" };
        state.message = Some(format!("{} s is the {end}", state.settings.delay().as_secs_f64()));
        return None;
    };
    let delay = Duration::from_millis(*next).clamp(FASTEST, SLOWEST);
    state.settings.delay = delay.as_secs_f64();
    state.message = Some(format!("refresh every {} s", delay.as_secs_f64()));
    Some(Effect::Ask(Control::Refresh(delay)))
}

fn sort_menu(state: &mut State) {
    if state.tab == Tab::Trace {
        state.message = Some("the log stays in the order of time; I turns it around".to_owned());
        return;
    }
    let at = state.spec().columns().iter().position(|c| c.id == state.sort().0);
    state.mode = Mode::Sort(at.unwrap_or(0));
}

fn sort_step(state: &mut State, by: isize) {
    // Only columns on the screen, so that the user sees the step.
    let fit = state.fit(state.layout().heading.width);
    let sortable: Vec<_> = fit
        .placed
        .iter()
        .map(|p| p.column)
        .filter(|c| c.sortable)
        .collect();
    if sortable.is_empty() {
        return;
    }
    let at = sortable.iter().position(|c| c.id == state.sort().0);
    let (from, len) = (at.map(usize::cast_signed), sortable.len().cast_signed());
    let next = from.map_or(0, |from| (from + by).rem_euclid(len).unsigned_abs());
    if at != Some(next) {
        state.sort_by(sortable[next]);
    }
}

fn choose(state: &mut State, action: Action) {
    match (state.mode.clone(), action) {
        (Mode::Sort(at), _) => {
            if let Some(column) = state.spec().columns().get(at) {
                if column.sortable {
                    state.sort_by(column);
                } else {
                    state.message = Some(format!("{} has no order", column.id));
                }
            }
            state.mode = Mode::View;
        }
        (Mode::Columns(at), Action::Toggle) => {
            if let Some(column) = state.spec().columns().get(at) {
                if column.screen.priority == 0 {
                    state.message = Some(format!("{} says what the row is and stays", column.id));
                } else {
                    state.switch_column(column);
                }
            }
        }
        _ => state.mode = Mode::View,
    }
}

fn follow(state: &mut State) {
    if state.tab == Tab::Trace && state.follow.take().is_some() {
        state.touch();
        return;
    }
    state.follow = match state.row() {
        Some(Row::Qp(qp)) => qp.number().map(|qpn| Follow::Qp(qp.uid, qp.device.clone(), qpn)),
        Some(Row::Process(p)) => p.pid.map(|pid| Follow::Process(pid, p.comm.clone())),
        Some(Row::Verb(v)) => {
            let comm = v.comm.clone().unwrap_or_else(|| "-".into());
            Some(Follow::Process(v.pid, comm))
        }
        Some(Row::Port(port)) => Some(Follow::Device(port.device.clone())),
        Some(Row::Event(_, e)) => of_event(e),
        Some(Row::Probe(_) | Row::Finding(_)) | None => None,
    };
    if state.follow.is_none() {
        state.message = Some("this row has no events of its own".to_owned());
        return;
    }
    state.detail = Detail::Closed;
    state.tail = true;
    state.go(Tab::Trace);
    state.touch();
}

fn of_event(e: &Event) -> Option<Follow> {
    match e.qp_uid {
        Some(uid) => Some(Follow::Qp(uid, e.device.clone()?, e.qpn?)),
        None => Some(Follow::Process(e.pid?, e.comm.clone()?)),
    }
}

fn edit(state: &mut State, change: impl FnOnce(&mut String)) {
    match &mut state.mode {
        Mode::Search(from) => {
            let from = *from;
            change(&mut state.search);
            find(state, from, 1, true);
        }
        Mode::Filter { input, .. } => {
            change(input);
            let text = input.clone();
            set_filter(state, &text);
        }
        _ => {}
    }
}

fn set_filter(state: &mut State, text: &str) {
    state.filter = Filter::parse(text);
    state.touch();
}

/// Puts the cursor on the next row that matches the search (with `here` also the present one), and says how
/// many rows do.
fn find(state: &mut State, from: usize, by: isize, here: bool) {
    let wanted = Filter::parse(&state.search);
    let len = state.table().order.len().cast_signed();
    if wanted.is_empty() || len == 0 {
        return;
    }
    let (ctx, spec) = (state.ctx(), state.spec());
    let rows = state.table().order.iter().enumerate();
    let matching: Vec<usize> = rows
        .filter(|(_, row)| wanted.matches(&ctx, spec, row.at))
        .map(|(at, _)| at)
        .collect();
    // Distance of a row from where the search begins, in the direction of the search.
    let first = isize::from(!here);
    let steps = |at: usize| (by * (at.cast_signed() - from.cast_signed()) - first).rem_euclid(len);
    let nearest = (0..matching.len()).min_by_key(|number| steps(matching[*number]));
    match nearest {
        Some(number) => {
            to_row(state, matching[number]);
            state.message = Some(format!("match {} of {}", number + 1, matching.len()));
        }
        None => state.message = Some(format!("no row matches {:?}", state.search)),
    }
}
