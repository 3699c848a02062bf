//! The user's terminal: size, raw mode, and the way out of a hung guest.

use std::io::{IsTerminal, stdin};
use std::process::{Command, Stdio};

/// The number of successive Ctrl-] that ends the guest.
const ESCAPES: u8 = 3;
const CTRL_BRACKET: u8 = 0x1d;

fn stty(args: &[&str]) -> Option<String> {
    let output = Command::new("stty")
        .args(args)
        .stdin(Stdio::inherit())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Rows and columns of the terminal on stdin.
pub(crate) fn size() -> Option<(u16, u16)> {
    if !stdin().is_terminal() {
        return None;
    }
    parse_size(&stty(&["size"])?)
}

fn parse_size(text: &str) -> Option<(u16, u16)> {
    let (rows, cols) = text.split_once(' ')?;
    let size = (rows.parse().ok()?, cols.parse().ok()?);
    // A terminal whose size was never set reports 0 0.
    (size.0 > 0 && size.1 > 0).then_some(size)
}

/// Keeps the terminal on stdin in raw mode until dropped.
pub(crate) struct RawMode {
    saved: Option<String>,
}

impl RawMode {
    /// Does nothing if stdin is no terminal.
    pub(crate) fn enter() -> Self {
        let saved = if stdin().is_terminal() {
            stty(&["-g"])
        } else {
            None
        };
        if saved.is_some() {
            let _ = stty(&["raw", "-echo"]);
        }
        Self { saved }
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(saved) = &self.saved {
            let _ = stty(&[saved]);
        }
    }
}

/// Watches the typed bytes for the escape sequence.
#[derive(Default)]
pub(crate) struct Escape {
    seen: u8,
}

impl Escape {
    /// Takes typed bytes; returns true once Ctrl-] was typed three times in succession.
    pub(crate) fn feed(&mut self, typed: &[u8]) -> bool {
        for &byte in typed {
            self.seen = if byte == CTRL_BRACKET { self.seen + 1 } else { 0 };
            if self.seen >= ESCAPES {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_has_none() {
        assert_eq!(parse_size("50 160"), Some((50, 160)));
        assert_eq!(parse_size("0 0"), None);
        assert_eq!(parse_size("stty: not a tty"), None);
    }

    #[test]
    fn the_escape_is_three_in_a_row_over_any_number_of_reads() {
        let mut escape = Escape::default();
        assert!(!escape.feed(b"\x1d\x1dx\x1d"));
        assert!(!escape.feed(b"\x1d"));
        assert!(escape.feed(b"\x1d"));
    }
}
