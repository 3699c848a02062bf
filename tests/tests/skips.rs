//! Program runs that the kernel skips: what heals is still counted, and what does not is reported.
//!
//! The guest has one CPU, and its kernel preempts system calls, so the driver's work runs in the middle of
//! other programs' bpf(2) calls.

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    ftrace::Runs,
    kernel::{self, Preemption},
    lab::{self, DEVICE, Lab},
    perftest::Perftest,
    rdmatop::{Trace, Window},
    table::Table,
    traffic::{self, Traffic},
    wait,
    work::sum,
};

/// Programs that need no report: their return, or the object's next event, supplies the information.
const HEALS: [&str; 8] = [
    "modify_qp",
    "destroy_qp",
    "dereg_mr",
    "destroy_cq",
    "cmd_verbs",
    "uverbs_write",
    "ucma_write",
    "query_qp",
];

/// For how long maps are read while traffic flows.
const READING: Duration = Duration::from_millis(1500);

/// Whether the kernel counts skips of kprobes, as Linux does since 6.7.
fn counts_skips(lab: &Lab) -> bool {
    let mut numbers = lab
        .release
        .split('.')
        .map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(7))
}

/// Returns the skipped runs that must be reported.
fn to_report(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut programs = kernel::skipped_programs(pid)?;
    ensure!(!programs.is_empty(), "process {pid} has no program");
    programs.retain(|name, misses| *misses > 0 && !HEALS.contains(&name.as_str()));
    Ok(programs)
}

#[test]
fn every_program_that_the_kernel_skipped_is_named_in_the_last_sample() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("skipped programs") else {
        return Ok(());
    };
    let Some(_preempted) = Preemption::full("skipped programs")? else {
        return Ok(());
    };
    let (n, size) = (60_000, 64);
    let window = Window::open(&[])?;
    // Rings that do not wrap while the CPU runs no program, because nobody would see such a wrap.
    let pair = Perftest::new("ib_send_bw")
        .iterations(n)
        .size(size)
        .args(&["-t", "2048", "-r", "2048"])
        .start()?;
    // If the creation of the QPs is skipped, they have no rows.
    pair.wait_connected()?;
    let reader = Traffic::start("map-reader", &[])?;
    reader.ready()?;
    if counts_skips(&lab) {
        wait::until("a skipped completion", READING * 20, || {
            let skipped = kernel::skipped_programs(window.pid()).unwrap_or_default();
            skipped.get("kp_cq_post").is_some_and(|misses| *misses > 10)
        })?;
    } else {
        thread::sleep(READING);
    }
    reader.finish()?;
    let accounts = pair.finish()?;
    let truth = to_report(window.pid())?;
    let sample = window.close()?;
    let reported = sample.skipped_programs();
    let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
    let server = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    let mut table = Table::default();
    // Read from the rings' indices.
    table.equal("sender", "tx_wr", n, client.total("tx_wr"));
    table.equal("sender", "tx_wr_posted", n, client.total("tx_wr_posted"));
    // For this many requests the ring was overwritten before it was read again.
    let unread = sample.lost_at("walk") * size;
    let bytes = client.total("tx_bytes");
    table.equal_unless_skipped("sender", "tx_bytes", n * size, bytes, unread);
    table.equal("receiver", "rx_wr_posted", n, server.total("rx_wr_posted"));
    if counts_skips(&lab) {
        let missing = truth.get("kp_cq_post").copied().unwrap_or(0);
        let lost = sample.skipped();
        table.rule(
            "all",
            "losses, missed",
            ">= completions",
            Some(lost),
            lost >= missing,
        );
        let reported = reported.with_context(|| format!("no list of skipped programs; missed: {lost}"))?;
        for (program, misses) in &truth {
            table.equal(program, "skipped", *misses, reported.get(program).copied());
        }
        for program in reported.keys() {
            ensure!(
                truth.contains_key(program),
                "{program} was not skipped: {truth:?}"
            );
        }
        table.equal_unless_skipped("receiver", "rx_wr", n, server.total("rx_wr"), missing);
    } else {
        ensure!(reported.is_none(), "this kernel does not count: {reported:?}");
        // The driver does count: each receive that it saw but no program did is among the losses.
        let lost = sample.skipped();
        let seen = server.total("rx_wr").context("no rx_wr")?;
        let missing = n.checked_sub(seen);
        let some = missing.is_some_and(|missing| missing > 0);
        table.rule("receiver", "receives that no program saw", "> 0", missing, some);
        let rule = format!(">= {}", missing.unwrap_or(0));
        let reported = missing.is_some_and(|missing| lost >= missing);
        table.rule("all", "losses, missed", &rule, Some(lost), reported);
    }
    table.check(&lab, "Programs skipped by a reader of maps");
    Ok(())
}

#[test]
fn a_trace_names_at_its_end_what_the_kernel_skipped() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("skipped programs of a trace") else {
        return Ok(());
    };
    if !counts_skips(&lab) {
        lab::skip(
            "skipped programs of a trace",
            "Linux before 6.7 does not count what it skips",
        );
        return Ok(());
    }
    let Some(_preempted) = Preemption::full("skipped programs of a trace")? else {
        return Ok(());
    };
    let trace = Trace::start(&[])?;
    let reader = Traffic::start("map-reader", &[])?;
    reader.ready()?;
    traffic::run("qp-churn", &["--count", "600"])?;
    reader.finish()?;
    let truth = to_report(trace.child.pid())?;
    let said = trace.stop()?.stderr;
    ensure!(!truth.is_empty(), "the map's reader made the kernel skip nothing");
    let told = said
        .iter()
        .filter(|line| line.contains("the kernel skipped"))
        .count();
    ensure!(told == truth.len(), "{truth:?} was skipped; said was {said:#?}");
    for misses in truth.values() {
        let times = if *misses == 1 {
            " once: ".into()
        } else {
            format!(" {misses} times: ")
        };
        ensure!(
            said.iter().any(|line| line.contains(&times)),
            "{truth:?}: {said:#?}"
        );
    }
    Ok(())
}

#[test]
fn the_first_work_requests_of_a_qp_are_found_again_or_counted() -> Result<()> {
    let name = "skipped programs of first work requests";
    let Some(lab) = Lab::enter_data_path(name) else {
        return Ok(());
    };
    if !counts_skips(&lab) {
        lab::skip(name, "Linux before 6.7 does not count what it skips");
        return Ok(());
    }
    let Some(_preempted) = Preemption::full(name)? else {
        return Ok(());
    };
    let trace = Trace::start(&["--event", "wr"])?;
    let pairs = 200;
    let mut n = 0;
    loop {
        // The pairs are made while nothing is skipped, because the trace cannot tell the age of a QP whose
        // creation no program saw. Each posts once, because its ring is so small that it wraps with the
        // second request.
        let mut traffic = Traffic::start("paired-qps", &["--pairs", &pairs.to_string()])?;
        traffic.ready()?;
        let reader = Traffic::start("map-reader", &[])?;
        reader.ready()?;
        traffic.child.tell(&format!("post 0 {pairs} 1"))?;
        let done = |line: &str| line == "{\"done\":1}";
        traffic.child.out.wait_for("all posts", traffic::LIMIT, done)?;
        reader.finish()?;
        traffic.finish()?;
        n += pairs;
        let skipped = kernel::skipped_programs(trace.child.pid())?;
        let misses = |program| skipped.get(program).copied().unwrap_or(0);
        ensure!(misses("wr_created") == 0, "{skipped:?}");
        if misses("wr_post_send") > 10 && misses("wr_cq_post") > 10 {
            break;
        }
        ensure!(n < 20 * pairs, "of {n} work requests: {skipped:?}");
    }
    let all = sum(&trace.stop()?)?;
    // The end of a request whose completion was skipped may be both lost and found.
    ensure!(
        (3 * n..=3 * n + all.lost).contains(&all.happened),
        "{all:?} of {}",
        3 * n
    );
    Ok(())
}

#[test]
fn waits_for_a_receiver_are_the_runs_of_the_driver_s_timer() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("RNR waits") else {
        return Ok(());
    };
    let naks = || lab::hw_counter(DEVICE, "rcvd_rnr_err")?.context("no rcvd_rnr_err");
    let mut table = Table::default();
    // One receive at a time, so that nearly each message waits. Small messages, and some of so many packets
    // that the timer often interrupts a program.
    for (size, n) in [(64, 400), (65_536, 500)] {
        let runs = Runs::of("rnr_nak_timer")?;
        let window = Window::open(&[])?;
        let before = naks()?;
        let accounts = Perftest::new("ib_send_bw")
            .iterations(n)
            .size(size)
            .args(&["-r", "1"])
            .run()?;
        let (naks, runs) = (naks()? - before, runs.count()?);
        let sample = window.close()?;
        let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
        let waits = client.total("rnr_waits");
        let name = format!("{n} x {size}");
        table.rule(&name, "timer runs", "> 20", Some(runs), runs > 20);
        // The timer interrupts our programs; a later program that it does not interrupt counts its effect.
        // Before Linux 6.4, which does not count skips, the whole work of a wait may happen in that
        // interrupt.
        let skipped = if counts_skips(&lab) { 0 } else { sample.skipped() };
        table.equal_unless_skipped(&name, "rnr_waits = timer runs", runs, waits, skipped);
        // A NAK during a wait prolongs it.
        table.rule(
            &name,
            "rnr_waits",
            &format!("<= {naks} NAKs"),
            waits,
            waits <= Some(naks),
        );
        table.equal(&name, "tx_wr", n, client.total("tx_wr"));
    }
    table.check(&lab, "Waits for a receiver that has one receive posted");
    Ok(())
}
