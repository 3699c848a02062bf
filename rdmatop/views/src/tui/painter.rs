//! Brings a frame to a terminal: only cells that changed are sent.

use ratatui::backend::Backend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::render::Canvas;

/// The content of a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    /// What the terminal shows.
    shown: Buffer,
    /// The frame that is being made.
    canvas: Canvas,
}

impl Painter {
    /// Shows the frame that `draw` makes, and returns the result of `draw`.
    pub fn paint<B: Backend, T>(
        &mut self,
        backend: &mut B,
        size: (u16, u16),
        ascii: bool,
        draw: impl FnOnce(&mut Canvas) -> T,
    ) -> Result<T, B::Error> {
        let area = Rect::new(0, 0, size.0, size.1);
        if self.shown.area != area {
            // When a terminal changes its size, it wraps and joins lines in its own way.
            self.shown.resize(area);
            self.clear(backend)?;
        }
        self.canvas.begin(size);
        let drawn = draw(&mut self.canvas);
        let (next, _) = self.canvas.end(ascii);
        let mut cells = self.shown.diff_iter(next).peekable();
        if cells.peek().is_some() {
            backend.draw(cells)?;
            backend.flush()?;
        }
        std::mem::swap(&mut self.shown, next);
        Ok(drawn)
    }

    /// Clears the terminal, so that the next frame is sent completely.
    pub fn clear<B: Backend>(&mut self, backend: &mut B) -> Result<(), B::Error> {
        backend.clear()?;
        self.shown.reset();
        Ok(())
    }
}
