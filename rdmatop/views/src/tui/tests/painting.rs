//! What is sent to a terminal has to add up to the frame as it would be drawn whole.

use std::io;

use proptest::prelude::*;
use ratatui::backend::{Backend, ClearType, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};

use super::super::keys::BINDINGS;
use super::super::painter::Painter;
use super::super::text;
use super::*;

/// A terminal. A sign wider than a column takes the next column too, and is lost when either column is
/// overwritten.
#[derive(Default)]
struct Glass {
    cells: Buffer,
    sent: usize,
    cleared: usize,
}

/// Stands in the column that the wide sign before it covers.
const HALF: &str = "";

impl Glass {
    fn resize(&mut self, (width, height): (u16, u16)) {
        // After a change of size the old content may be anywhere.
        self.cells = Buffer::filled(Rect::new(0, 0, width, height), Cell::new("#"));
    }

    /// Removes the wide sign of which column `x` is a part, because that column is overwritten.
    fn split(&mut self, x: u16, y: u16) {
        if self.cells[(x, y)].symbol() == HALF {
            self.cells[(x - 1, y)].set_symbol(" ");
        }
        let next = self.cells.cell_mut((x + 1, y));
        if let Some(next) = next.filter(|next| next.symbol() == HALF) {
            next.set_symbol(" ");
        }
    }
}

impl Backend for Glass {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        for (x, y, cell) in content {
            self.sent += 1;
            self.split(x, y);
            self.cells[(x, y)] = cell.clone();
            if text::width(cell.symbol()) > 1 {
                self.split(x + 1, y);
                self.cells[(x + 1, y)] = Cell::new(HALF);
            }
        }
        Ok(())
    }

    fn clear(&mut self) -> io::Result<()> {
        self.cleared += 1;
        self.cells.reset();
        Ok(())
    }

    fn clear_region(&mut self, _: ClearType) -> io::Result<()> {
        self.clear()
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, _: P) -> io::Result<()> {
        Ok(())
    }

    fn size(&self) -> io::Result<Size> {
        Ok(self.cells.area.as_size())
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        let (columns_rows, pixels) = (self.size()?, Size::ZERO);
        Ok(WindowSize { columns_rows, pixels })
    }
}

/// A painter and the terminal it paints on.
#[derive(Default)]
struct Wall {
    painter: Painter,
    glass: Glass,
}

impl Wall {
    /// Paints as the loop does. Returns how many lines changed.
    fn paint(&mut self, state: &mut State) -> usize {
        state.refresh();
        if self.glass.cells.area.as_size() != Size::from(state.size) {
            self.glass.resize(state.size);
        }
        let paint = |canvas: &mut render::Canvas| render::draw(state, canvas);
        self.painter
            .paint(&mut self.glass, state.size, state.glyphs.ascii, paint)
            .unwrap()
            .1
    }

    /// Cells that differ from a frame drawn whole.
    fn stale(&self, state: &State) -> Vec<String> {
        let (whole, _) = draw(state);
        let mut stale = Vec::new();
        for y in 0..state.size.1 {
            let mut x = 0;
            while x < state.size.0 {
                let (shown, wanted) = (&self.glass.cells[(x, y)], &whole[(x, y)]);
                if shown != wanted {
                    stale.push(format!("{x},{y}: {shown:?} for {wanted:?}"));
                }
                // The terminal itself fills the other half of a wide sign.
                x += u16::try_from(text::width(wanted.symbol())).unwrap_or(1).max(1);
            }
        }
        stale
    }
}

#[derive(Clone, Debug)]
enum Step {
    Key(KeyCode, KeyModifiers),
    Click(u16, u16),
    Snapshot(usize),
    Idle(u64),
    Events,
    Size((u16, u16)),
    Clear,
}

fn step() -> impl Strategy<Value = Step> {
    let bound: Vec<_> = BINDINGS
        .iter()
        .flat_map(|b| b.keys)
        .map(|chord| Step::Key(chord.0, chord.1))
        .collect();
    prop_oneof![
        12 => proptest::sample::select(bound),
        2 => "[a-z0-9:日é ]".prop_map(|text| Step::Key(KeyCode::Char(text.chars().next().unwrap_or(' ')), KeyModifiers::NONE)),
        2 => (0u16..130, 0u16..45).prop_map(|(x, y)| Step::Click(x, y)),
        4 => (0usize..5).prop_map(Step::Snapshot),
        2 => (1u64..200).prop_map(Step::Idle),
        1 => Just(Step::Events),
        1 => proptest::sample::select(vec![(0, 0), (1, 1), (7, 3), (40, 12), (80, 24), (81, 24), (120, 40), (170, 45)]).prop_map(Step::Size),
        1 => Just(Step::Clear),
    ]
}

fn take(state: &mut State, wall: &mut Wall, step: &Step) {
    use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
    match step {
        Step::Key(code, modifiers) => {
            let effect = update::terminal_event(state, &TermEvent::Key(KeyEvent::new(*code, *modifiers)));
            if effect == Some(Effect::Redraw) {
                wall.painter.clear(&mut wall.glass).unwrap();
            }
        }
        Step::Click(column, row) => {
            let mouse = MouseEvent {
                kind: MouseEventKind::Down(MouseButton::Left),
                column: *column,
                row: *row,
                modifiers: KeyModifiers::NONE,
            };
            update::terminal_event(state, &TermEvent::Mouse(mouse));
        }
        Step::Snapshot(which) => {
            let snapshots = [
                testkit::empty,
                testkit::one_row,
                testkit::busy,
                testkit::degraded,
                testkit::hostile,
            ];
            state.take(Arc::new(snapshots[*which]().judged(None)));
        }
        Step::Idle(seconds) => state.take(Arc::new(later(&state.snapshot, *seconds))),
        Step::Events => state.take_events(testkit::events()),
        Step::Size(size) => update::resize(state, *size),
        Step::Clear => wall.painter.clear(&mut wall.glass).unwrap(),
    }
}

/// The same snapshot `seconds` later; nothing but the time has changed.
fn later(before: &Snapshot, seconds: u64) -> Snapshot {
    let mut after = before.clone();
    after.mono_ns += seconds * 1_000_000_000;
    after.time += seconds * 1_000_000_000;
    after.host.uptime_s = after.host.uptime_s.map(|up| up + seconds);
    after.health.self_cpu = Some(seconds as f64 / 1000.0);
    after.judged(Some(before))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn after_any_steps_the_terminal_equals_a_whole_frame(
        ascii: bool,
        steps in proptest::collection::vec(step(), 1..60),
    ) {
        let mut s = state(testkit::hostile(), Tab::Processes, (80, 24));
        if ascii {
            s.glyphs = &super::super::glyphs::ASCII;
        }
        let mut wall = Wall::default();
        wall.paint(&mut s);
        prop_assert_eq!(wall.stale(&s), Vec::<String>::new());
        for step in &steps {
            take(&mut s, &mut wall, step);
            wall.paint(&mut s);
            prop_assert_eq!(wall.stale(&s), Vec::<String>::new(), "after {:?}", step);
        }
    }
}

#[test]
fn a_second_of_time_alone_redraws_one_line_and_sends_what_changed() {
    for (tab, size) in [(Tab::Processes, (160, 50)), (Tab::Devices, (80, 24))] {
        let mut s = state(testkit::empty(), tab, size);
        s.snapshot = Arc::new(later(&s.snapshot, 1));
        let mut wall = Wall::default();
        assert_eq!(wall.paint(&mut s), usize::from(size.1));
        assert_eq!(wall.paint(&mut s), 0, "nothing changed");
        let sent = wall.glass.sent;
        // One digit of the load changes; the uptime is in hours and stays.
        s.take(Arc::new(later(&s.snapshot, 2)));
        assert_eq!(wall.paint(&mut s), 1, "the header's first line alone");
        assert_eq!(wall.glass.sent - sent, 1);
        assert_eq!(wall.glass.cleared, 1);
        assert_eq!(wall.stale(&s), Vec::<String>::new());
    }
}

#[test]
fn a_wide_sign_under_the_edge_of_a_popup_does_not_hide_the_edge() {
    let mut wide = 0;
    // The popup is in the middle, so over these widths its edge falls on every column of the names.
    for width in 70..130 {
        let mut snapshot = testkit::hostile();
        for process in &mut snapshot.processes {
            process.comm = "日本".repeat(20).into();
            process.cmdline = None;
        }
        let mut s = state(snapshot, Tab::Processes, (width, 24));
        for keys in ["s", "?"] {
            typed(&mut s, keys);
            let (frame, _) = draw(&s);
            for y in 0..s.size.1 {
                for x in 0..s.size.0 - 1 {
                    if text::width(frame[(x, y)].symbol()) > 1 {
                        wide += 1;
                        assert_eq!(frame[(x + 1, y)].symbol(), " ", "{keys}: at {x},{y}");
                    }
                }
            }
            code(&mut s, KeyCode::Esc);
        }
    }
    assert!(wide > 0, "no wide sign was on the screen");
}
