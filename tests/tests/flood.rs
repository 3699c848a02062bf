//! 50 000 QP events at full speed, and many refreshes. The results do not depend on the kernel, so a full run
//! needs only one kernel.

use std::{env, fs, process::Command, thread::sleep, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::Child,
    kernel,
    lab::{DEVICE, Lab},
    perftest::Perftest,
    pty::OnTerminal,
    rdmatop::{self, END, Trace, Window},
    storm::Storm,
    table::{Table, say},
    traffic::{self, Traffic, id, number},
};
use serde_json::{Value, json};

#[test]
fn a_ring_of_8_kib_under_50_000_events_loses_many_and_tells_of_each() -> Result<()> {
    let Some(lab) = Lab::enter("flood") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "8192")])?;
    // 500 QPs with 101 events each: on the emulated machine a create costs as much as fifty modifies. `cargo
    // xtask bench` uses 200 000 events in a guest where that does not matter.
    let args = ["--count", "500", "--laps", "25", "--threads", "4"];
    let done = traffic::run("qp-churn", &args)?;
    let storm = Storm::of(&trace.stop()?, &done)?;
    storm.check(&format!("Linux {}, a ring of 8 KiB", lab.release))?;
    ensure!(storm.happened > 50_000, "{done}");
    ensure!(storm.lost > 0, "8 KiB were enough: nothing about loss was tested");
    ensure!(storm.printed > 0, "nothing was printed");
    Ok(())
}

/// While calls of another user fail without end, a neighbour creates and destroys 20 QPs. Returns what both
/// report.
fn beside_failing_calls() -> Result<(Value, Value)> {
    let failing = Traffic::start("failing-calls", &[])?;
    failing.ready()?;
    sleep(Duration::from_secs(2));
    let neighbour = Traffic::start("idle-qps", &["--qps", "20"])?;
    let beside = neighbour.ready()?;
    neighbour.finish()?;
    Ok((failing.finish()?, beside))
}

#[test]
fn one_user_s_failing_calls_take_no_event_and_no_verb_of_another() -> Result<()> {
    let Some(lab) = Lab::enter("failing calls") else {
        return Ok(());
    };
    let mut table = Table::default();
    let trace = Trace::start(&[])?;
    let (did, beside) = beside_failing_calls()?;
    let traced = trace.stop()?;
    let (pid, neighbour) = (id(&did, "pid")?, beside["pids"][0].as_u64());
    let neighbour = u32::try_from(neighbour.context("no pid")?)?;
    let own = traced.events.pid(neighbour);
    for kind in ["qp_create", "qp_destroy"] {
        table.equal("neighbour", kind, 20, Some(own.kind(kind).len() as u64));
    }
    let of_budget = |event: &Value| event["where"] == "budget";
    let (left_out, lost) = (
        traced.events.filter(of_budget),
        traced.events.kind("lost").filter(|event| !of_budget(event)),
    );
    table.equal("all", "records lost", 0, Some(lost.lost()));
    ensure!(
        left_out
            .all()
            .iter()
            .all(|event| event["pid"] == pid && event["comm"] == "failing-calls"),
        "{left_out:?}"
    );
    let failed = number(&did, "unknown")? + number(&did, "known")?;
    // Opening the device also makes some failing calls, because libraries ask for more than there is.
    let printed = traced.events.pid(pid).kind("verb_error").len() as u64;
    say(&format!(
        "{failed} calls failed: {printed} printed, {} told as left out",
        left_out.lost()
    ));
    table.equal("flood", "failures", failed, Some(printed + left_out.lost()));
    ensure!(
        left_out.lost() > 0,
        "the calls were too few to test anything: {did}"
    );
    let told = format!(
        "process `failing-calls` ({pid}): {} failed calls were not printed one by one",
        left_out.lost()
    );
    ensure!(
        traced.stderr.iter().any(|line| line.contains(&told)),
        "no {told:?} in {:?}",
        traced.stderr
    );

    let window = Window::open(&[])?;
    let (did, beside) = beside_failing_calls()?;
    let sample = window.close()?;
    let pid = id(&did, "pid")?;
    let calls = |pid: &Value, verb: &str| {
        let mut rows = sample.verbs();
        let row = rows.find(|row| row.field("pid") == pid && row.field("verb") == verb);
        row.and_then(|row| row.total("calls"))
    };
    for (verb, made) in [("create_qp", 20), ("destroy_qp", 20), ("modify_qp", 60)] {
        table.equal("neighbour", verb, made, calls(&beside["pids"][0], verb));
    }
    for (verb, count) in [("unknown_method", "unknown"), ("query_port", "known")] {
        table.equal("flood", verb, number(&did, count)?, calls(&did["pid"], verb));
    }
    table.equal("all", "calls without counters", 0, Some(sample.lost_at("verb")));
    let rows = sample.verbs().filter(|row| row.field("pid") == pid).count();
    ensure!(rows < 20, "{rows} verbs of the process whose calls fail");
    let floods = &sample.value()["health"]["floods"];
    ensure!(
        floods
            .as_array()
            .is_some_and(|floods| floods.iter().any(|flood| flood["pid"] == pid)),
        "{floods}"
    );
    table.check(&lab, "another user's failing calls");
    Ok(())
}

/// SoftRoCE has a thousand places for GIDs, nearly all of them empty, and perftest reads each one when it
/// begins: calls that fail by design. They would take the budget of those that fail.
#[test]
fn calls_that_fail_by_design_are_counted_and_are_no_flood() -> Result<()> {
    let Some(lab) = Lab::enter("a search in a table of GIDs") else {
        return Ok(());
    };
    let (trace, window) = (Trace::start(&[])?, Window::open(&[])?);
    let pair = Perftest::new("ib_write_bw").any_gid().run()?;
    let (traced, sample) = (trace.stop()?, window.close()?);
    for side in [&pair.client, &pair.server] {
        let failed = traced.events.pid(side.pid).kind("verb_error");
        ensure!(failed.is_empty(), "{:?}", failed.all());
        let mut rows = sample.verbs();
        let row = rows.find(|row| row.field("pid") == side.pid && row.field("verb") == "query_gid_entry");
        let empty = row.and_then(|row| row.total("errors"));
        say(&format!("Linux {}: {empty:?} empty places", lab.release));
        ensure!(empty > Some(1000), "too few to test anything: {empty:?}");
    }
    let left_out = traced.events.filter(|event| event["where"] == "budget");
    ensure!(left_out.is_empty(), "{:?}", left_out.all());
    let floods = &sample.value()["health"]["floods"];
    ensure!(floods.as_array().is_some_and(Vec::is_empty), "{floods}");
    Ok(())
}

#[test]
fn while_its_reader_stands_still_a_flood_loses_its_own_events_alone() -> Result<()> {
    let Some(lab) = Lab::enter("a reader that stands still") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", "1048576")])?;
    trace.child.signal(libc::SIGSTOP)?;
    let done = traffic::run("qp-churn", &["--count", "1500", "--threads", "2"])?;
    let neighbour = Traffic::start("idle-qps", &["--qps", "20"])?;
    let beside = neighbour.ready()?;
    neighbour.finish()?;
    trace.child.signal(libc::SIGCONT)?;
    let traced = trace.stop()?;
    let storm = Storm::of(&traced, &done)?;
    storm.check(&format!("Linux {}, a reader that stood still", lab.release))?;
    ensure!(storm.lost > 0, "there was room for all: nothing was tested");
    let mut table = Table::default();
    let neighbour = beside["pids"][0].as_u64().context("no pid")?;
    let own = traced.events.pid(u32::try_from(neighbour)?);
    for (kind, count) in [
        ("qp_create", 20),
        ("qp_modify", 60),
        ("qp_destroy", 20),
        ("cq_create", 1),
    ] {
        table.equal("neighbour", kind, count, Some(own.kind(kind).len() as u64));
    }
    table.check(&lab, "events beside a flood");
    let told = format!(
        "process `qp-churn` ({}): {} records were lost",
        done["pid"], storm.lost
    );
    ensure!(
        traced.stderr.iter().any(|line| line.contains(&told)),
        "no {told:?} in {:?}",
        traced.stderr
    );
    Ok(())
}

/// Fifty processes, each of which keeps to its share, leave nothing together: their user has a share too.
#[test]
fn many_processes_of_one_user_lose_their_own_events_alone() -> Result<()> {
    const RING: u64 = 4 << 20;
    let Some(lab) = Lab::enter("many processes of one user") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[("RDMATOP_RING_BYTES", &RING.to_string())])?;
    trace.child.signal(libc::SIGSTOP)?;
    // Ten at a time, which is enough: what they leave in the buffer stays, as nobody reads it.
    let script = "for lap in 1 2 3 4 5; do for n in 1 2 3 4 5 6 7 8 9 10; do \
                  \"$0\" --count 8 --laps 20 & done; wait; done";
    let mut command = Command::new("prlimit");
    command
        .args(["--memlock=unlimited", "setpriv", "--reuid=65534", "--regid=65534"])
        .args(["--clear-groups", "sh", "-c", script])
        .arg(traffic::path("qp-churn")?);
    let mut many = Child::spawn(&mut command)?;
    many.succeed(END * 2)?;
    let lines = many.out.all();
    let done: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_str(line))
        .collect::<Result<_, _>>()?;
    ensure!(done.len() == 50, "{}", many.err.text());
    let neighbour = Traffic::start("idle-qps", &["--qps", "20"])?;
    let beside = neighbour.ready()?;
    neighbour.finish()?;
    trace.child.signal(libc::SIGCONT)?;
    let traced = trace.stop()?;
    let mut table = Table::default();
    let (mut happened, mut printed) = (0, 0);
    for done in &done {
        happened += number(done, "events")? + 2 * number(done, "cqs")?;
        let own = traced.events.pid(id(done, "pid")?);
        let counted = own.filter(|event| {
            let kind = event["event"].as_str().unwrap_or_default();
            kind.starts_with("qp_") || kind.starts_with("cq_")
        });
        printed += counted.len() as u64;
    }
    let lost = traced.events.lost();
    say(&format!(
        "{happened} events happened: {printed} printed, {lost} records lost"
    ));
    // The lost ones may also be those of an MR, or of a call that fails.
    ensure!(
        (happened..happened + 500).contains(&(printed + lost)),
        "not all are counted"
    );
    ensure!(lost > 0, "there was room for all: nothing was tested");
    let own = traced.events.pid(id(&json!({"pid": beside["pids"][0]}), "pid")?);
    for (kind, count) in [("qp_create", 20), ("qp_modify", 60), ("qp_destroy", 20)] {
        table.equal("neighbour", kind, count, Some(own.kind(kind).len() as u64));
    }
    table.check(&lab, "events beside fifty processes of another user");
    let told = traced
        .stderr
        .iter()
        .filter(|line| line.contains("process `qp-churn`"));
    ensure!(told.count() > 1, "{:?}", traced.stderr);
    Ok(())
}

/// Returns the resident anonymous memory in KiB: pages of the program's file come in as they are used.
fn memory(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let words = line.and_then(|line| line.split_whitespace().next());
    Ok(words.context("no RssAnon")?.parse()?)
}

/// The number of churn rounds, about 13 s each. RDMATOP_CHURN_ROUNDS=50 takes ten minutes.
fn rounds() -> Result<usize> {
    let rounds = env::var("RDMATOP_CHURN_ROUNDS").ok();
    let rounds = rounds.map_or(Ok(5), |rounds| rounds.parse())?;
    ensure!(rounds >= 5, "the first rounds bring every buffer to its size");
    Ok(rounds)
}

#[test]
fn refreshes_under_churn_leave_memory_flat_and_the_table_as_netlink_s() -> Result<()> {
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
    // The view keeps the last 10,000 events, so that this list is now full.
    let many = traffic::run("qp-churn", &["--count", "100", "--laps", "50"])?;
    ensure!(number(&many, "events")? > 10_000, "{many}");
    let window = Window::open(&[])?;
    let (mut seen, mut created) = (Vec::new(), 0);
    for _ in 0..rounds {
        let done = traffic::run("qp-churn", &["--count", "300"])?;
        created += number(&done, "created")?;
        // Rows of destroyed QPs stay for some seconds.
        sleep(Duration::from_secs(8));
        view.alive()?;
        seen.push(memory(view.pid())?);
    }
    say(&format!("KiB after each round: {seen:?}"));
    // In the first rounds every buffer grows to its size.
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
