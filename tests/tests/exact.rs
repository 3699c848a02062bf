//! The data path of SoftRoCE: what rdmatop counts equals what perftest says it did.
//!
//! Each window is one `rdmatop --once --json --delay N`: the rows of QPs that were destroyed inside of it must
//! still be in the sample (`exited`). Lossless pairs are held to equality; lossy ones to sum rules.

use std::time::Duration;

use anyhow::{Context, Result};
use rdmatop_tests::{
    case::{Case, one_sided, ping_pong, two_sided},
    lab::{self, DEVICE, Lab},
    perftest::{self, Perftest},
    rdmatop::{Trace, Window},
    snapshot::{Row, Snapshot},
    table::Table,
    traffic::{self, Traffic, id, number},
    wire::{self, Wire},
};

/// A receive completion of UD counts the 40 bytes of GRH, in the kernel and so in rdmatop.
const GRH: u64 = 40;
/// How long a receiver is stopped.
const STOPPED: Duration = Duration::from_secs(3);

fn run(lab: &Lab, title: &str, cases: &[Case]) -> Result<()> {
    let window = Window::open(&[])?;
    let duplicates = lab::hw_counter(DEVICE, "duplicate_request")?;
    let naks = lab::hw_counter(DEVICE, "rcvd_rnr_err")?;
    let mut all = Vec::new();
    for case in cases {
        all.push(case.pair.run().with_context(|| case.name)?);
    }
    let duplicates = lab::hw_counter(DEVICE, "duplicate_request")?
        .zip(duplicates)
        .map(|(now, then)| now - then);
    let sample = window.close()?;
    let mut table = Table::default();
    for (case, accounts) in cases.iter().zip(&all) {
        case.compare(&mut table, &sample, accounts, sample.skipped())?;
    }
    let naks = lab::hw_counter(DEVICE, "rcvd_rnr_err")?
        .zip(naks)
        .map(|(now, then)| now - then);
    // Nothing is lost inside one device: whatever was sent again arrived twice. Unless a receiver was not ready: it
    // drops that packet and, without counting each, those behind it (check_psn), which then arrive only once.
    if let Some(duplicates) = duplicates {
        // A QP that moved nothing in the window (the kernel's own) is not counted at all.
        let again: u64 = sample.qps().filter_map(|qp| qp.total("retransmits")).sum();
        if naks == Some(0) {
            let skipped = sample.skipped();
            table.equal_unless_skipped(
                "all",
                "retransmits = duplicate_request",
                duplicates,
                Some(again),
                skipped,
            );
        } else {
            let least = duplicates + naks.unwrap_or(0);
            let what = "retransmits, RNR waits among them";
            table.rule("all", what, &format!(">= {least}"), Some(again), again >= least);
        }
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(lab, title);
    Ok(())
}

/// Compares what a receiver of `n` messages of `size` bytes has received.
fn receiver(table: &mut Table, sample: &Snapshot, row: Row<'_>, n: u64, size: u64) {
    let skipped = sample.skipped();
    table.equal_unless_skipped("receiver", "rx_wr", n, row.total("rx_wr"), skipped);
    table.equal_unless_skipped(
        "receiver",
        "rx_bytes",
        n * size,
        row.total("rx_bytes"),
        skipped * size,
    );
}

#[test]
fn every_kind_of_request_is_counted_exactly() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("kinds of requests") else {
        return Ok(());
    };
    let mut send = two_sided("send", Perftest::new("ib_send_bw"), 1000, 4096);
    // perftest's default asks for a completion every 100 requests.
    send.client.completions = Some(10);
    let mut ud = two_sided(
        "send UD",
        Perftest::new("ib_send_bw").args(&["-c", "UD"]),
        1000,
        1024,
    );
    ud.server.rx_extra = GRH;
    run(
        &lab,
        "Kinds of requests",
        &[
            send,
            one_sided("write", Perftest::new("ib_write_bw"), 1000, 4096, "rdma_write"),
            one_sided("read", Perftest::new("ib_read_bw"), 1000, 4096, "rdma_read"),
            one_sided(
                "atomic",
                Perftest::new("ib_atomic_bw"),
                1000,
                8,
                "atomic_fetch_add",
            ),
            ud,
            ping_pong("send_lat", Perftest::new("ib_send_lat"), 1000, 64),
        ],
    )
}

#[test]
fn every_way_of_posting_is_counted_exactly() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("ways of posting") else {
        return Ok(());
    };
    let mut signalled = two_sided("-Q 1", Perftest::new("ib_send_bw").args(&["-Q", "1"]), 1000, 4096);
    signalled.client.completions = Some(1000);
    run(
        &lab,
        "Ways of posting",
        &[
            two_sided(
                "-l 10",
                Perftest::new("ib_send_bw").args(&["-l", "10"]),
                1000,
                4096,
            ),
            signalled,
            two_sided("-q 4", Perftest::new("ib_send_bw").args(&["-q", "4"]), 1000, 4096),
            two_sided("-e", Perftest::new("ib_send_bw").args(&["-e"]), 1000, 4096),
            two_sided("-R", Perftest::new("ib_send_bw").cm(), 1000, 4096),
            two_sided("20000 x 64", Perftest::new("ib_send_bw"), 20_000, 64),
        ],
    )
}

#[test]
fn two_pairs_at_once_are_told_apart() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("two pairs") else {
        return Ok(());
    };
    let cases = [
        two_sided("first", Perftest::new("ib_send_bw"), 3000, 1024),
        one_sided("second", Perftest::new("ib_write_bw"), 2000, 2048, "rdma_write"),
    ];
    let window = Window::open(&[])?;
    let started: Result<Vec<_>> = cases.iter().map(|case| case.pair.start()).collect();
    let all: Result<Vec<_>> = started?.into_iter().map(perftest::Pair::finish).collect();
    let sample = window.close()?;
    let mut table = Table::default();
    for (case, accounts) in cases.iter().zip(&all?) {
        case.compare(&mut table, &sample, accounts, sample.skipped())?;
    }
    table.check(&lab, "Two pairs at once");
    Ok(())
}

#[test]
fn attached_mid_way_it_counts_what_came_after() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("mid-way") else {
        return Ok(());
    };
    let mut table = Table::default();
    for op in ["write", "send"] {
        let posts = Traffic::start(
            "timed-posts",
            &["--before", "300", "--count", "500", "--size", "64", "--op", op],
        )?;
        let ready = posts.ready()?;
        let window = Window::open(&[])?;
        let done = posts.finish()?;
        let sample = window.close()?;
        let pid = id(&ready, "pid")?;
        let qp = sample.qp(pid, id(&ready, "qpn")?)?;
        let peer = sample.qp(pid, id(&ready, "peer_qpn")?)?;
        assert!(qp.is("since_attach") && peer.is("since_attach"), "{qp:?}");
        table.equal(op, "tx_wr after attach", 500, qp.total("tx_wr"));
        table.equal(
            op,
            "tx_bytes after attach",
            number(&done, "bytes")?,
            qp.total("tx_bytes"),
        );
        table.equal(
            op,
            "peer's rx_wr after attach",
            if op == "send" { 500 } else { 0 },
            peer.total("rx_wr"),
        );
    }
    table.check(&lab, "Attached mid-way");
    Ok(())
}

#[test]
fn latencies_agree_with_the_program_s_own_clock() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("latency") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let done = traffic::run("timed-posts", &["--count", "1000", "--op", "write"])?;
    let sample = window.close()?;
    let qp = sample.qp(id(&done, "pid")?, id(&done, "qpn")?)?;
    let seen = qp.field("latency");
    let own = &done["latency"];
    let mut table = Table::default();
    let (count, early) = (seen["count"].as_u64(), seen["early"].as_u64());
    let covered = count.zip(early).map(|(count, early)| count + early);
    table.equal("write", "latency count + early", 1000, covered);
    // The kernel's time begins after the program's and ends before it. By how much less it is depends on who else
    // wanted the CPU between the completion and the poll, which one request in a hundred can show in the mean and in
    // the maximum, but not in the median.
    for key in ["mean_ns", "max_ns"] {
        let (ours, theirs) = (seen[key].as_u64(), number(own, key)?);
        let ok = ours.is_some_and(|ours| ours > 0 && ours <= theirs);
        table.rule("write", key, &format!("<= {theirs}"), ours, ok);
    }
    let (ours, theirs) = (seen["p50_ns"].as_u64(), number(own, "p50_ns")?);
    // Ours is the upper edge of its bucket: the median itself is more than half of that.
    let ok = ours.is_some_and(|ours| ours / 2 <= theirs && ours >= theirs / 4);
    table.rule(
        "write",
        "p50_ns",
        &format!("{}..={}", theirs / 4, 2 * theirs),
        ours,
        ok,
    );
    let buckets = seen["buckets"].as_array().context("no buckets")?;
    let sum: Option<u64> = buckets.iter().map(serde_json::Value::as_u64).sum();
    table.equal("write", "sum of buckets", count.unwrap_or(0), sum);
    table.check(&lab, "Post to completion against clock_gettime");
    Ok(())
}

#[test]
fn a_stopped_receiver_shows_as_rnr_waits_and_loses_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("stopped receiver") else {
        return Ok(());
    };
    let n = 20_000;
    let window = Window::open(&[])?;
    let naks = lab::hw_counter(DEVICE, "rcvd_rnr_err")?.context("no rcvd_rnr_err")?;
    let pair = perftest::with_stopped_receiver(n, 1024, STOPPED)?;
    let accounts = pair.finish()?;
    let naks = lab::hw_counter(DEVICE, "rcvd_rnr_err")?.context("no rcvd_rnr_err")? - naks;
    let sample = window.close()?;
    let mut table = Table::default();
    let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
    let server = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    table.equal("sender", "tx_wr", n, client.total("tx_wr"));
    table.equal("sender", "tx_wr_posted", n, client.total("tx_wr_posted"));
    receiver(&mut table, &sample, server, n, 1024);
    let waits = client.total("rnr_waits");
    // A timer that is started again before it ran out merges two NAKs into one wait.
    let fits = waits.is_some_and(|waits| waits > 0 && waits <= naks);
    table.rule("sender", "rnr_waits", &format!("1..={naks} NAKs"), waits, fits);
    let again = client.total("retransmits");
    table.rule(
        "sender",
        "retransmits",
        "> 0",
        again,
        again.is_some_and(|again| again > 0),
    );
    table.check(&lab, "A receiver stopped for 3 s");
    Ok(())
}

#[test]
fn loss_on_the_wire_shows_as_retransmissions_and_loses_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("loss") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    let n = 2000;
    let window = Window::open(&[])?;
    let read = |device, name| -> Result<u64> {
        lab::hw_counter(device, name)?.with_context(|| format!("{device} has no {name}"))
    };
    let before = [read(wire::CLIENT, "sent_pkts")?, read(wire::SERVER, "rcvd_pkts")?];
    let loss = wire.lose("1%")?;
    let accounts = Perftest::new("ib_send_bw")
        .iterations(n)
        .devices(wire::SERVER, wire::CLIENT)
        .run()?;
    drop(loss);
    let sent = read(wire::CLIENT, "sent_pkts")? - before[0];
    let arrived = read(wire::SERVER, "rcvd_pkts")? - before[1];
    let sample = window.close()?;
    let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
    let server = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    let mut table = Table::default();
    table.equal("sender", "tx_wr", n, client.total("tx_wr"));
    table.equal("sender", "tx_wr_posted", n, client.total("tx_wr_posted"));
    receiver(&mut table, &sample, server, n, 4096);
    // The client sends nothing but requests: 4 packets of 1024 bytes a message, and what was sent again.
    table.equal_unless_skipped(
        "sender",
        "retransmits = sent_pkts - first ones",
        sent - n * 4,
        client.total("retransmits"),
        sample.skipped(),
    );
    table.rule(
        "kernel",
        "packets lost",
        "> 0",
        Some(sent - arrived),
        sent > arrived,
    );
    table.check(&lab, "1 % loss on the wire");
    Ok(())
}

#[test]
fn reads_that_are_asked_for_again_are_retransmissions() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("lost READs") else {
        return Ok(());
    };
    let wire = Wire::up()?;
    let mut table = Table::default();
    let n = 300;
    // One READ at a time, of which a part may have come; and eight, so that one that is asked for again is behind others.
    for outstanding in ["1", "8"] {
        let window = Window::open(&[])?;
        let sent = || lab::hw_counter(wire::CLIENT, "sent_pkts")?.context("no sent_pkts");
        let before = sent()?;
        let loss = wire.lose_both("2%")?;
        let accounts = Perftest::new("ib_read_bw")
            .args(&["-o", outstanding])
            .iterations(n)
            .size(16_384)
            .devices(wire::SERVER, wire::CLIENT)
            .run()?;
        drop(loss);
        let sent = sent()? - before;
        let sample = window.close()?;
        let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
        let name = format!("-o {outstanding}");
        table.equal(&name, "tx_wr", n, client.total("tx_wr"));
        table.equal(&name, "tx_bytes", n * 16_384, client.total("tx_bytes"));
        // The client sends nothing but requests, one packet each.
        let again = client.total("retransmits");
        let (first, skipped) = ("retransmits = sent_pkts - first ones", sample.skipped());
        table.equal_unless_skipped(&name, first, sent - n, again, skipped);
        table.rule(&name, "sent again", "> 0", Some(sent - n), sent > n);
    }
    table.check(&lab, "READs over a wire that loses 2 % each way");
    Ok(())
}

#[test]
fn a_dead_peer_ends_in_one_retry_error_and_flushes_that_add_up() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("dead peer") else {
        return Ok(());
    };
    let window = Window::open(&[])?;
    let pair = perftest::with_killed_server()?;
    let (_, qpns) = pair.qpns();
    let sample = window.close()?;
    let qp = sample.qp(pair.client.pid(), qpns[0])?;
    let mut table = Table::default();
    let retry = qp.status("retry_exc_err");
    table.equal("sender", "retry_exc_err", 1, retry);
    table.equal("sender", "completion_errors", 1, qp.total("completion_errors"));
    table.equal(
        "sender",
        "perftest's status",
        12,
        Some(u64::from(perftest::printed_status(&pair.client)?)),
    );
    let flushes = qp.total("flushes");
    table.rule(
        "sender",
        "flushes = wr_flush_err",
        "equal",
        flushes,
        flushes == qp.status("wr_flush_err"),
    );
    let posted = qp.total("tx_wr_posted").context("no tx_wr_posted")?;
    table.equal(
        "sender",
        "completions, ok and not = posted",
        posted,
        qp.total("completions"),
    );
    table.check(&lab, "A peer killed");
    Ok(())
}

#[test]
fn a_trace_beside_a_window_changes_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("trace beside window") else {
        return Ok(());
    };
    let trace = Trace::start(&[])?;
    run(
        &lab,
        "A trace beside it",
        &[two_sided("send", Perftest::new("ib_send_bw"), 1000, 4096)],
    )?;
    trace.stop().map(drop)
}
