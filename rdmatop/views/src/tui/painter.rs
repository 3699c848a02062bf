//! Brings a frame to a terminal: only changed lines are made into cells, and only changed cells are sent.

use ratatui::backend::Backend;
use ratatui::buffer::Buffer;

use super::render::Canvas;

/// The content of a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    size: (u16, u16),
    /// The frame on the terminal.
    last: Canvas,
    /// The frame that is being made.
    now: Canvas,
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
        let changed = (0..size.1).filter(|y| !self.now.same_line(&self.last, *y));
        // The cells on the terminal are computed again, because keeping them would take 48 bytes a cell.
        let lines = changed.map(|y| (self.last.cells(y, size.0), self.now.cells(y, size.0)));
        let lines: Vec<(Buffer, Buffer)> = lines.collect();
        let cells = lines.iter().flat_map(|(shown, next)| shown.diff_iter(next));
        let mut cells = cells.peekable();
        if cells.peek().is_some() {
            backend.draw(cells)?;
            backend.flush()?;
        }
        std::mem::swap(&mut self.now, &mut self.last);
        Ok((drawn, lines.len()))
    }

    /// Clears the terminal, so that the next frame is sent completely.
    pub fn clear<B: Backend>(&mut self, backend: &mut B) -> Result<(), B::Error> {
        backend.clear()?;
        // An empty frame: no line equals one of its lines, and its cells count as blank.
        self.last = Canvas::default();
        Ok(())
    }
}
