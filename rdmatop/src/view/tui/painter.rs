//! Brings what a frame wants to a terminal: only lines that changed become cells, only cells that changed are sent.

use ratatui::backend::Backend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use super::render::Canvas;

/// What is on a terminal.
#[derive(Debug, Default)]
pub struct Painter {
    size: (u16, u16),
    /// The frame that is on it.
    last: Canvas,
    /// The frame that is made.
    now: Canvas,
    /// Its cells, line by line. Those of lines that did not change are old.
    next: Vec<Buffer>,
    /// The cells that are on it.
    shown: Vec<Buffer>,
}

impl Painter {
    /// Shows the frame that `draw` makes. Returns what `draw` does, and how many lines had to be made anew.
    pub fn paint<B: Backend, T>(
        &mut self,
        backend: &mut B,
        size: (u16, u16),
        ascii: bool,
        draw: impl FnOnce(&mut Canvas) -> T,
    ) -> Result<(T, usize), B::Error> {
        if self.size != size {
            // A terminal that changes its size breaks and joins lines as it likes.
            self.size = size;
            self.clear(backend)?;
        }
        self.now.begin(size, ascii);
        let drawn = draw(&mut self.now);
        let changed: Vec<u16> = (0..size.1)
            .filter(|y| !self.now.same_line(&self.last, *y))
            .collect();
        for y in &changed {
            let line = &mut self.next[usize::from(*y)];
            line.reset();
            self.now.cells(*y, line);
        }
        let mut cells = changed
            .iter()
            .map(|y| usize::from(*y))
            .flat_map(|y| self.shown[y].diff_iter(&self.next[y]))
            .peekable();
        if cells.peek().is_some() {
            backend.draw(cells)?;
            backend.flush()?;
        }
        for y in &changed {
            let y = usize::from(*y);
            std::mem::swap(&mut self.shown[y], &mut self.next[y]);
        }
        std::mem::swap(&mut self.now, &mut self.last);
        Ok((drawn, changed.len()))
    }

    /// Clears the terminal, so that the next frame is sent whole.
    pub fn clear<B: Backend>(&mut self, backend: &mut B) -> Result<(), B::Error> {
        backend.clear()?;
        let blank = |y| Buffer::empty(Rect::new(0, y, self.size.0, 1));
        self.shown = (0..self.size.1).map(blank).collect();
        self.next.clone_from(&self.shown);
        // No frame at all: none of its lines is the same as any.
        self.last = Canvas::default();
        Ok(())
    }
}
