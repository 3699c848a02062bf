//! The terminal: taken over and given back, whatever happens in between.

use std::io::{self, BufWriter, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::DisableMouseCapture;
use crossterm::style::Print;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{execute, queue};
use ratatui::backend::CrosstermBackend;

use super::painter::Painter;
use super::render::Canvas;

/// Buttons and the wheel (1000) in SGR form (1006, which knows columns beyond 223). Not 1002 or 1003: those
/// tell every movement of the pointer, which nothing here answers to.
const BUTTONS: &str = "\x1b[?1000h\x1b[?1006h";

/// Room for a frame, so that it is one write(2): a terminal that draws between two shows halves.
const FRAME: usize = 64 << 10;

/// Set while the terminal is ours: restoring twice does no harm, and a panic elsewhere restores only what is.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours. Dropping gives it back.
pub struct Guard {
    /// Never dropped: what a frame that failed left behind must not come when the terminal was given back.
    backend: ManuallyDrop<CrosstermBackend<BufWriter<Stdout>>>,
    painter: Painter,
    mouse: bool,
}

impl Guard {
    /// Takes the terminal over. A panic gives it back before its message is printed.
    pub fn enter(mouse: bool) -> io::Result<Self> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                let _ = restore();
                before(info);
            }));
        });
        take(mouse)?;
        Ok(Self {
            backend: ManuallyDrop::new(CrosstermBackend::new(BufWriter::with_capacity(
                FRAME,
                io::stdout(),
            ))),
            painter: Painter::default(),
            mouse,
        })
    }

    /// Shows the frame that `draw` makes, of `size`.
    pub fn paint(&mut self, size: (u16, u16), ascii: bool, draw: impl FnOnce(&mut Canvas)) -> io::Result<()> {
        self.painter.paint(&mut *self.backend, size, ascii, draw)?;
        Ok(())
    }

    /// Clears the screen, so that the next frame is drawn whole.
    pub fn clear(&mut self) -> io::Result<()> {
        self.painter.clear(&mut *self.backend)
    }

    /// Takes the terminal again after it was given back, and forgets what was on it.
    pub fn again(&mut self) -> io::Result<()> {
        take(self.mouse)?;
        self.clear()
    }
}

/// Columns and lines of the terminal now: one ioctl, so that it can be asked for each frame. SIGWINCH alone does
/// not do: only the foreground process group gets it.
pub fn size() -> io::Result<(u16, u16)> {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Ok((size.ws_col, size.ws_row)),
        // Serial lines do not know theirs; terminfo may.
        _ => crossterm::terminal::size(),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = restore();
    }
}

fn take(mouse: bool) -> io::Result<()> {
    enable_raw_mode()?;
    TAKEN.store(true, Ordering::SeqCst);
    let entered = (|| {
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        if mouse {
            execute!(io::stdout(), Print(BUTTONS))
        } else {
            Ok(())
        }
    })();
    entered.inspect_err(|_| {
        let _ = restore();
    })
}

/// Gives the terminal back. May be called at any time, any number of times.
pub fn restore() -> io::Result<()> {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return Ok(());
    }
    let mut out = io::stdout();
    // Every step is tried: a terminal that is half gone still gets its line mode back.
    let signs = queue!(out, DisableMouseCapture, LeaveAlternateScreen, Show).and_then(|()| out.flush());
    let mode = disable_raw_mode();
    signs.and(mode)
}
