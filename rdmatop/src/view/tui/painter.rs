//! Brings a frame to a terminal: only changed lines become cells, only changed cells are sent.

use ratatui::backend::Backend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::render::Canvas;

/// Lines kept for reuse: more change at once only when the user acts.
const SPARE: usize = 8;

/// The content of a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    size: (u16, u16),
    /// The frame on the terminal.
    last: Canvas,
    /// The frame that is being made.
    now: Canvas,
    /// Space for the cells of its changed lines.
    next: Vec<Buffer>,
    /// The cells on the terminal.
    shown: Vec<Buffer>,
}

impl Painter {
    /// Shows the frame that `draw` makes. Returns the result of `draw`, and how many lines had to be made again.
    pub fn paint<B: Backend, T>(
        &mut self,
        backend: &mut B,
        size: (u16, u16),
        ascii: bool,
        draw: impl FnOnce(&mut Canvas) -> T,
    ) -> Result<(T, usize), B::Error> {
        if self.size != size {
            // A terminal that changes its size wraps and joins lines in its own way.
            self.size = size;
            self.clear(backend)?;
        }
        self.now.begin(size, ascii);
        let drawn = draw(&mut self.now);
        let changed: Vec<u16> = (0..size.1)
            .filter(|y| !self.now.same_line(&self.last, *y))
            .collect();
        for (number, y) in changed.iter().enumerate() {
            if number == self.next.len() {
                self.next.push(blank(size.0, *y));
            }
            let line = &mut self.next[number];
            line.area.y = *y;
            line.reset();
            self.now.cells(*y, line);
        }
        let mut cells = changed
            .iter()
            .zip(&self.next)
            .flat_map(|(y, line)| self.shown[usize::from(*y)].diff_iter(line))
            .peekable();
        if cells.peek().is_some() {
            backend.draw(cells)?;
            backend.flush()?;
        }
        for (y, line) in changed.iter().zip(&mut self.next) {
            std::mem::swap(&mut self.shown[usize::from(*y)], line);
        }
        self.next.truncate(SPARE);
        std::mem::swap(&mut self.now, &mut self.last);
        Ok((drawn, changed.len()))
    }

    /// Clears the terminal, so that the next frame is sent completely.
    pub fn clear<B: Backend>(&mut self, backend: &mut B) -> Result<(), B::Error> {
        backend.clear()?;
        self.shown = (0..self.size.1).map(|y| blank(self.size.0, y)).collect();
        // Those of another width.
        self.next.clear();
        // An empty frame: none of its lines equals any other.
        self.last = Canvas::default();
        Ok(())
    }
}

/// An empty line.
fn blank(width: u16, y: u16) -> Buffer {
    Buffer::empty(Rect::new(0, y, width, 1))
}
