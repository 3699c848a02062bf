//! Brings a frame to a terminal: only changed lines are made into cells, and only changed cells are sent.

use ratatui::backend::Backend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::render::Canvas;

/// Lines kept for reuse. More lines change at once only when the user acts.
const SPARE: usize = 8;

/// The content of a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    size: (u16, u16),
    /// The frame on the terminal.
    last: Canvas,
    /// The frame that is being made.
    now: Canvas,
    /// Room for the cells of the changed lines.
    changes: Vec<Change>,
}

/// The cells of a changed line. Those on the terminal are computed again when they are needed, because
/// keeping them would take 48 bytes a cell.
#[derive(Debug)]
struct Change {
    shown: Buffer,
    next: Buffer,
}

impl Change {
    fn new(width: u16) -> Self {
        let blank = || Buffer::empty(Rect::new(0, 0, width, 1));
        Self {
            shown: blank(),
            next: blank(),
        }
    }

    /// Makes the cells of line `y` of the frame on the terminal and of the next one.
    fn fill(&mut self, y: u16, last: &Canvas, now: &Canvas) {
        for (frame, line) in [(last, &mut self.shown), (now, &mut self.next)] {
            line.area.y = y;
            line.reset();
            frame.cells(y, line);
        }
    }
}

impl Painter {
    /// Shows the frame that `draw` makes. Returns the result of `draw`, and how many lines changed.
    pub fn paint<B: Backend, T>(
        &mut self,
        backend: &mut B,
        size: (u16, u16),
        ascii: bool,
        draw: impl FnOnce(&mut Canvas) -> T,
    ) -> Result<(T, usize), B::Error> {
        if self.size != size {
            // When a terminal changes its size, it wraps and joins lines in its own way.
            self.size = size;
            self.clear(backend)?;
        }
        self.now.begin(size, ascii);
        let drawn = draw(&mut self.now);
        let changed: Vec<u16> = (0..size.1)
            .filter(|y| !self.now.same_line(&self.last, *y))
            .collect();
        if self.changes.len() < changed.len() {
            self.changes.resize_with(changed.len(), || Change::new(size.0));
        }
        let changes = &mut self.changes[..changed.len()];
        for (y, change) in changed.iter().zip(&mut *changes) {
            change.fill(*y, &self.last, &self.now);
        }
        let mut cells = changes
            .iter()
            .flat_map(|change| change.shown.diff_iter(&change.next))
            .peekable();
        if cells.peek().is_some() {
            backend.draw(cells)?;
            backend.flush()?;
        }
        self.changes.truncate(SPARE);
        std::mem::swap(&mut self.now, &mut self.last);
        Ok((drawn, changed.len()))
    }

    /// Clears the terminal, so that the next frame is sent completely.
    pub fn clear<B: Backend>(&mut self, backend: &mut B) -> Result<(), B::Error> {
        backend.clear()?;
        // These have the old width.
        self.changes.clear();
        // An empty frame: no line equals one of its lines, and its cells count as blank.
        self.last = Canvas::default();
        Ok(())
    }
}
