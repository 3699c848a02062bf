//! 200 000 QP events at full speed, and many refreshes. What this shows does not depend on the kernel: one kernel of a full
//! run.

use std::{fs, thread::sleep, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    kernel,
    lab::{DEVICE, Lab},
    pty::OnTerminal,
    rdmatop::{self, END, Trace},
    storm::Storm,
    traffic,
};

#[test]
fn a_ring_of_8_kib_under_200_000_events_loses_many_and_tells_of_each() -> Result<()> {
    let Some(lab) = Lab::enter("flood") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    // 2000 QPs with 101 events each: a create costs the emulated machine as much as fifty modifies. `cargo xtask
    // bench` has 40 000 QPs in a guest that does not mind.
    let args = ["--count", "2000", "--laps", "25", "--threads", "4"];
    let done = traffic::run("qp-churn", &args)?;
    let storm = Storm::of(&trace.stop()?, &done)?;
    storm.check(&format!("Linux {}, a ring of 8 KiB", lab.release))?;
    ensure!(storm.happened > 200_000, "{done}");
    ensure!(storm.lost > 0, "8 KiB were enough: nothing about loss was tested");
    ensure!(storm.printed > 0, "nothing was printed");
    Ok(())
}

/// Resident memory in KiB, and what of it is not the program's file: that comes in as it is used.
fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    Ok(words.context("no RssAnon")?.parse()?)
}

#[test]
fn hundreds_of_refreshes_while_qps_come_and_go_leave_the_memory_flat() -> Result<()> {
    const LEAST: u64 = 2048;
    let Some(_lab) = Lab::enter("flat memory") else {
        return Ok(());
    };
    let before = kernel::bpf_programs()?.len();
    let mut command = rdmatop::command(&["--delay", "0.1"])?;
    command.env("XDG_CONFIG_HOME", "/tmp/rdmatop-flat");
    let mut view = OnTerminal::start(&mut command)?;
    view.wait_for(DEVICE, END)?;
    kernel::await_programs(before)?;
    let mut seen = Vec::new();
    for _ in 0..5 {
        traffic::run("qp-churn", &["--count", "300"])?;
        // Rows of QPs that are gone stay for some seconds.
        sleep(Duration::from_secs(8));
        view.alive()?;
        seen.push(memory(view.pid())?);
    }
    // The first rounds bring every buffer to its size.
    ensure!(seen[4] <= seen[1] + LEAST, "KiB after each round: {seen:?}");
    view.quit()
}
