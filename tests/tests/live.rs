//! The live view in a real terminal under real traffic: what the screen says is what perftest did.

use std::{process::Command, time::Duration};

use anyhow::{Result, ensure};
use rdmatop_tests::{
    child::output,
    lab::Lab,
    perftest::Perftest,
    rdmatop::{self, END},
    wait,
};

/// A tmux server of the test's own, ended with it.
struct Screen;

impl Screen {
    fn tmux(args: &[&str]) -> Result<String> {
        output(Command::new("tmux").args(["-L", "rdmatop-live"]).args(args))
    }

    fn open(command: &str) -> Result<Self> {
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
            command,
        ])?;
        Ok(Self)
    }

    fn keys(keys: &[&str]) -> Result<()> {
        Self::tmux(&[&["send-keys", "-t", "v"], keys].concat()).map(drop)
    }

    fn text() -> Result<String> {
        Self::tmux(&["capture-pane", "-p", "-t", "v"])
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = Self::tmux(&["kill-server"]);
    }
}

/// The total in the line of a counter: name, rate, total, source.
fn total(screen: &str, counter: &str) -> Option<u64> {
    let line = screen.lines().find(|line| line.starts_with(counter))?;
    line.get(counter.len()..)?
        .split_whitespace()
        .nth(1)?
        .replace(',', "")
        .parse()
        .ok()
}

#[test]
fn the_screen_shows_what_perftest_did() -> Result<()> {
    const WRS: u64 = 3000;
    const SIZE: u64 = 4096;
    let Some(_lab) = Lab::enter_data_path("live view") else {
        return Ok(());
    };
    let _screen = Screen::open(&rdmatop::program()?.display().to_string())?;
    wait::until("the live view with its programs", END * 3, || {
        Screen::text().is_ok_and(|text| text.contains("eBPF on"))
    })?;
    Screen::keys(&["2"])?;
    let accounts = Perftest::new("ib_write_bw").iterations(WRS).size(SIZE).run()?;
    let pid = accounts.client.pid.to_string();
    // The row stays for some seconds after its QP; the next refresh has the last counts. Then it is held.
    std::thread::sleep(Duration::from_millis(2500));
    Screen::keys(&["Space", "f"])?;
    Screen::keys(&[&format!("pid:{pid}"), "Enter", "Enter", "Enter"])?;
    let shown = wait::for_some("the detail of the sender's QP", END, || {
        Ok(Some(Screen::text()?).filter(|text| text.contains("send WRs finished")))
    })?;
    ensure!(shown.contains(&format!("pid {pid}")), "{shown}");
    ensure!(total(&shown, "send WRs finished") == Some(WRS), "{shown}");
    ensure!(total(&shown, "send WRs posted") == Some(WRS), "{shown}");
    ensure!(total(&shown, "bytes sent") == Some(WRS * SIZE), "{shown}");
    Screen::keys(&["q"])?;
    wait::until("the end of the view", END, || {
        Screen::tmux(&["list-sessions"]).is_err()
    })
}

#[test]
fn a_total_is_read_from_its_line() {
    let screen = "x\nsend WRs finished              15.0k        1,350,000  ebpf\n";
    assert_eq!(total(screen, "send WRs finished"), Some(1_350_000));
    assert_eq!(total(screen, "send WRs posted"), None);
}
