//! The live view in a tmux terminal, which can be asked for its text.

use std::{env, fs, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::{Context, Result};

use crate::{
    child::output,
    rdmatop::{self, END},
    wait,
};

/// Emulated machines need long for a frame, so polls are rare.
const POLL: Duration = Duration::from_millis(200);
/// A tmux server with its own settings, which ends with the test.
pub struct Screen {
    /// The directory of its settings.
    pub home: PathBuf,
}

impl Screen {
    fn tmux(args: &[&str]) -> Result<String> {
        output(Command::new("tmux").args(["-L", "rdmatop-live"]).args(args))
    }

    /// Opens the live view with 120 columns and 50 lines.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_with(name, "")
    }

    /// Opens a screen as [`Screen::open`] does, with options.
    pub fn open_with(name: &str, options: &str) -> Result<Self> {
        let home = env::temp_dir().join(format!("rdmatop-{name}-{}", std::process::id()));
        fs::create_dir_all(&home)?;
        let command = format!(
            "exec env XDG_CONFIG_HOME={} LC_ALL=C.UTF-8 {} {options}",
            home.display(),
            rdmatop::program()?.display()
        );
        Self::tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-s",
            "v",
            "-x",
            "120",
            "-y",
            "50",
            &command,
        ])?;
        Ok(Self { home })
    }

    /// Returns the PID of the view.
    pub fn pid() -> Result<u32> {
        Ok(Self::tmux(&["display-message", "-p", "-t", "v", "#{pane_pid}"])?
            .trim()
            .parse()?)
    }

    /// Presses keys, given by tmux's names.
    pub fn keys(keys: &[&str]) -> Result<()> {
        Self::tmux(&[&["send-keys", "-t", "v"], keys].concat()).map(drop)
    }

    /// Sends the mouse as a terminal does (SGR): button 0 pressed and released, or 64 and 65 for the wheel.
    pub fn mouse(button: u8, (column, line): (usize, usize)) -> Result<()> {
        for end in if button < 64 { "Mm" } else { "M" }.chars() {
            let text = format!("\x1b[<{button};{};{}{end}", column + 1, line + 1);
            let bytes: Vec<String> = text.bytes().map(|b| format!("{b:02x}")).collect();
            let bytes: Vec<&str> = bytes.iter().map(String::as_str).collect();
            Self::tmux(&[&["send-keys", "-t", "v", "-H"], bytes.as_slice()].concat())?;
        }
        Ok(())
    }

    /// Returns the text on the screen.
    pub fn text() -> Result<String> {
        Self::tmux(&["capture-pane", "-p", "-t", "v"])
    }

    /// Returns the screen once `ready` accepts it.
    pub fn once(what: &str, limit: Duration, ready: impl Fn(&str) -> bool) -> Result<String> {
        let mut last = String::new();
        let shown = wait::for_some(what, limit, || {
            thread::sleep(POLL);
            last = Self::text()?;
            Ok(ready(&last).then(|| last.clone()))
        });
        shown.with_context(|| format!("the screen:\n{last}"))
    }

    /// Returns the first position of `text`, in columns and lines from 0.
    pub fn find(screen: &str, text: &str) -> Result<(usize, usize)> {
        let found = screen.lines().enumerate().find_map(|(line, content)| {
            let at = content.find(text)?;
            Some((content[..at].chars().count(), line))
        });
        found.with_context(|| format!("no {text:?} on the screen:\n{screen}"))
    }

    /// Ends the view with `q`.
    pub fn leave() -> Result<()> {
        Self::keys(&["q"])?;
        wait::until("the end of the view", END, || {
            thread::sleep(POLL);
            Self::tmux(&["list-sessions"]).is_err()
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Self::tmux(&["kill-server"]);
        let _ = fs::remove_dir_all(&self.home);
    }
}

/// Returns the total in the line of a counter: name, rate, total, source.
pub fn total(screen: &str, counter: &str) -> Option<u64> {
    let line = screen.lines().find(|line| line.starts_with(counter))?;
    line.get(counter.len()..)?
        .split_whitespace()
        .nth(1)?
        .replace(',', "")
        .parse()
        .ok()
}
