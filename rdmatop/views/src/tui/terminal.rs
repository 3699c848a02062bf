//! Takes the terminal over, and gives it back whatever happens in between.

mod fatal;
mod taken;

use std::io;
use std::time::{Duration, Instant};

use crossterm::{clipboard::CopyToClipboard, queue};
use ratatui::backend::CrosstermBackend;

use super::painter::Painter;
use super::render::{self, Canvas};
use super::run::drive::Screen;
use super::state::State;
use super::update;
use rdmatop_output::say;

use taken::foreground;
pub use taken::{await_foreground, restore};

/// How long a frame may wait for a slow terminal: short, as the thread that draws also handles signals.
const PATIENCE: Duration = Duration::from_millis(20);
/// How much of a frame's buffer is kept for the next.
const FRAME: usize = 64 << 10;
/// A terminal that took nothing for this long is reported.
const LONG: Duration = Duration::from_secs(2);

/// The terminal while it is ours. Dropping gives it back.
///
/// A terminal that does not read gets the rest of the last frame before anything else: a frame that is cut
/// within an escape sequence would show garbage. Frames meanwhile are dropped and counted, and the next frame
/// that is drawn contains all changes.
pub struct Guard {
    painter: Painter,
    mouse: bool,
    /// The last frame, of which the terminal has taken `sent` bytes.
    frame: Vec<u8>,
    sent: usize,
    stall: Option<Stall>,
}

/// A time in which the terminal took nothing.
#[derive(Clone, Copy, Debug)]
struct Stall {
    since: Instant,
    dropped: u64,
}

impl Guard {
    /// Takes the terminal over. A panic and each signal that ends the process give it back.
    pub fn enter(mouse: bool) -> io::Result<Self> {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                let _ = restore();
                // If nothing reads stderr, a thread that panics must not wait for a reader: others wait for
                // this thread.
                if say::heard() {
                    before(info);
                }
            }));
            fatal::watch();
        });
        taken::take()?;
        let mut guard = Self {
            painter: Painter::default(),
            mouse,
            frame: taken::signs(mouse),
            sent: 0,
            stall: None,
        };
        guard.send()?;
        Ok(guard)
    }

    /// Writes the rest of the last frame; true when the terminal has taken all of it.
    fn send(&mut self) -> io::Result<bool> {
        if self.behind() {
            self.sent += taken::write(PATIENCE, self.frame.get(self.sent..).unwrap_or_default())?;
        }
        if self.behind() {
            let since = Instant::now();
            self.stall.get_or_insert(Stall { since, dropped: 0 });
            return Ok(false);
        }
        self.frame.clear();
        self.frame.shrink_to(FRAME);
        self.sent = 0;
        Ok(true)
    }
}

impl Screen for Guard {
    fn draw(&mut self, state: &mut State) -> io::Result<()> {
        let size = size()?;
        if state.size != size {
            update::resize(state, size);
        }
        state.refresh();
        if !self.send()? {
            if let Some(stall) = &mut self.stall {
                stall.dropped += 1;
            }
            return Ok(());
        }
        if let Some(stall) = self.stall.take()
            && stall.dropped > 0
            && stall.since.elapsed() >= LONG
        {
            state.message = Some(format!(
                "the terminal took nothing for {} s: {} frames were not drawn",
                stall.since.elapsed().as_secs(),
                stall.dropped
            ));
        }
        let mut backend = CrosstermBackend::new(&mut self.frame);
        let draw = |canvas: &mut Canvas| render::draw(state, canvas);
        self.painter.paint(&mut backend, size, state.glyphs.ascii, draw)?;
        self.send().map(drop)
    }

    fn behind(&self) -> bool {
        self.sent < self.frame.len()
    }

    fn pour(&mut self) -> io::Result<bool> {
        Ok(self.send()? && self.stall.is_some_and(|stall| stall.dropped > 0))
    }

    fn clear(&mut self) -> io::Result<()> {
        // Appended to what the terminal has not taken yet.
        self.painter.clear(&mut CrosstermBackend::new(&mut self.frame))?;
        self.send().map(drop)
    }

    /// Copies by OSC 52, which carries the text in base64.
    fn copy(&mut self, text: &str) -> io::Result<()> {
        // Appended to what the terminal has not taken yet.
        queue!(self.frame, CopyToClipboard::to_clipboard_from(text))?;
        self.send().map(drop)
    }

    fn give_back(&mut self) {
        // A terminal that does not read may not take all of it; what follows is done all the same.
        let _ = restore();
    }

    fn stop(&mut self, signal: i32) {
        taken::stop(signal);
    }

    fn again(&mut self) -> io::Result<bool> {
        if !foreground()? {
            // Whoever continued it by a signal alone: the shell has the terminal, and frames go nowhere.
            self.give_back();
            return Ok(false);
        }
        taken::take()?;
        // Replaces the rest of the old frame, which was for the screen before.
        self.frame = taken::signs(self.mouse);
        self.sent = 0;
        self.clear()?;
        Ok(true)
    }
}

/// The terminal's present columns and lines: one ioctl, so that each frame can ask. SIGWINCH alone is not
/// enough, because only the foreground process group gets it.
fn size() -> io::Result<(u16, u16)> {
    match rustix::termios::tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Ok((size.ws_col, size.ws_row)),
        // Serial lines do not know their size, but terminfo may.
        _ => crossterm::terminal::size(),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = restore();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use rdmatop_tests::pty::OnTerminal;

    use super::*;

    /// Tells the test's executable, run once more on a terminal, how to end.
    const HOW: &str = "RDMATOP_TEST_END";
    const LONG: Duration = Duration::from_mins(1);
    const DRAWN: &str = "\x1b[?1049h";

    /// Recurses until the stack is full.
    fn deeper(at: u64) -> u64 {
        let page = std::hint::black_box([at; 512]);
        if page[0] == 0 {
            return 0;
        }
        page[7] ^ deeper(page[3].rotate_left(1))
    }

    #[test]
    fn after_any_failure_the_terminal_is_given_back_and_shows_the_reason() {
        if let Some(how) = std::env::var_os(HOW) {
            let _guard = Guard::enter(true).unwrap();
            match how.to_str() {
                Some("panic") => panic!("a defect"),
                Some("abort") => std::process::abort(),
                _ => drop(deeper(1)),
            }
            return;
        }
        // That of a terminal which nobody has changed: this one's may be changed before it is asked.
        let before = OnTerminal::start(Command::new("sleep").arg("60"))
            .and_then(|on| on.mode())
            .unwrap();
        for (how, signal, said) in [
            ("panic", None, "a defect"),
            ("abort", Some(libc::SIGABRT), ""),
            ("overflow", Some(libc::SIGABRT), "has overflowed its stack"),
        ] {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again
                .args(["--exact", "--nocapture"])
                .arg(concat!(
                    "tui::terminal::tests::",
                    "after_any_failure_the_terminal_is_given_back_and_shows_the_reason"
                ))
                .env(HOW, how);
            let mut on = OnTerminal::start(&mut again).unwrap();
            on.wait_for(DRAWN, LONG).unwrap();
            let status = on.wait(LONG).unwrap();
            assert_eq!(status.signal(), signal, "{how}: {status}");
            assert_eq!(on.mode().unwrap(), before, "{how}");
            on.drain(LONG).unwrap();
            let text = String::from_utf8_lossy(&on.output()).into_owned();
            let (_, after) = text.rsplit_once("\x1b[?1049l\x1b[?25h").expect(how);
            assert!(
                after.contains(said) && !after.contains('\x1b'),
                "{how}: {after:?}"
            );
        }
    }
}
