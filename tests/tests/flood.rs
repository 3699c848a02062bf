//! 50 000 QP events at full speed, and many refreshes. What this shows does not depend on the kernel: one kernel of a full
//! run.

use std::{env, fs, thread::sleep, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    kernel,
    lab::{DEVICE, Lab},
    pty::OnTerminal,
    rdmatop::{self, END, Trace, Window},
    storm::Storm,
    table::{Table, say},
    traffic::{self, Traffic, number},
};

#[test]
fn a_ring_of_8_kib_under_50_000_events_loses_many_and_tells_of_each() -> Result<()> {
    let Some(lab) = Lab::enter("flood") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    // 500 QPs with 101 events each: a create costs the emulated machine as much as fifty modifies. `cargo xtask
    // bench` has 200 000 events in a guest that does not mind.
    let args = ["--count", "500", "--laps", "25", "--threads", "4"];
    let done = traffic::run("qp-churn", &args)?;
    let storm = Storm::of(&trace.stop()?, &done)?;
    storm.check(&format!("Linux {}, a ring of 8 KiB", lab.release))?;
    ensure!(storm.happened > 50_000, "{done}");
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

/// For how many rounds QPs come and go: some 13 s each. RDMATOP_CHURN_ROUNDS=50 makes ten minutes of it.
fn rounds() -> Result<usize> {
    let rounds = env::var("RDMATOP_CHURN_ROUNDS").ok();
    let rounds = rounds.map_or(Ok(5), |rounds| rounds.parse())?;
    ensure!(rounds >= 5, "the first rounds bring every buffer to its size");
    Ok(rounds)
}

#[test]
fn hundreds_of_refreshes_while_qps_come_and_go_leave_memory_flat_and_the_table_as_netlink_has_it()
-> Result<()> {
    const LEAST: u64 = 1024;
    let Some(lab) = Lab::enter("flat memory") else {
        return Ok(());
    };
    let rounds = rounds()?;
    let rest = Traffic::start("idle-qps", &["--qps", "20"])?;
    rest.ready()?;
    let before = kernel::bpf_programs()?.len();
    let mut command = rdmatop::command(&["--delay", "0.1"])?;
    command.env("XDG_CONFIG_HOME", "/tmp/rdmatop-flat");
    let mut view = OnTerminal::start(&mut command)?;
    view.wait_for(DEVICE, END)?;
    kernel::await_programs(before)?;
    // The view keeps the last 10,000 events: from here on that list is full.
    let many = traffic::run("qp-churn", &["--count", "100", "--laps", "50"])?;
    ensure!(number(&many, "events")? > 10_000, "{many}");
    let window = Window::open(&[])?;
    let (mut seen, mut created) = (Vec::new(), 0);
    for _ in 0..rounds {
        let done = traffic::run("qp-churn", &["--count", "300"])?;
        created += number(&done, "created")?;
        // Rows of QPs that are gone stay for some seconds.
        sleep(Duration::from_secs(8));
        view.alive()?;
        seen.push(memory(view.pid())?);
    }
    say(&format!("KiB after each round: {seen:?}"));
    // The first rounds bring every buffer to its size.
    let last = seen.last().copied().unwrap_or(u64::MAX);
    ensure!(last <= seen[rounds / 3] + LEAST, "KiB after each round: {seen:?}");
    let there = kernel::user_qps()?;
    let sample = window.close()?;
    let mut table = Table::default();
    let gone = sample.qps().filter(|row| row.is("exited")).count() as u64;
    table.equal("churn", "QPs that came and went", created, Some(gone));
    table.equal("churn", "lost_events", 0, sample.lost());
    table.equal("idle", "QPs of the kernel's list", 20, Some(there.len() as u64));
    ensure!(sample.living_qps() == there, "the table is not the kernel's");
    table.check(&lab, "QPs that come and go");
    rest.finish()?;
    view.quit()
}
