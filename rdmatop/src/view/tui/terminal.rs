//! The terminal: taken over and given back, whatever happens in between.

use std::io::{self, Stdout, Write};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use crossterm::cursor::{Hide, Show};
use crossterm::event::DisableMouseCapture;
use crossterm::style::Print;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use crossterm::{execute, queue};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;

/// Buttons and the wheel (1000) in SGR form (1006, which knows columns beyond 223). Not 1002 or 1003: those
/// tell every movement of the pointer, which nothing here answers to.
const BUTTONS: &str = "\x1b[?1000h\x1b[?1006h";

/// Set while the terminal is ours: restoring twice does no harm, and a panic elsewhere restores only what is.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours. Dropping gives it back.
pub struct Guard {
    /// What ratatui draws on. Never dropped: its own drop complains on stderr when the terminal is gone, and
    /// what it would do is done by [`restore`].
    pub terminal: ManuallyDrop<Terminal<CrosstermBackend<Stdout>>>,
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
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| {
            let _ = restore();
        })?;
        Ok(Self {
            terminal: ManuallyDrop::new(terminal),
            mouse,
        })
    }

    /// Takes the terminal again after it was given back, and forgets what was on it.
    pub fn again(&mut self) -> io::Result<()> {
        take(self.mouse)?;
        self.terminal.clear()
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
