//! The data path of SoftRoCE: what rdmatop counts equals what perftest reports.
//!
//! All workloads run in one window of `rdmatop --once --json --delay N`: rows of QPs that were destroyed in
//! it must still be in the sample (`exited`). Lossless pairs must be equal; lossy ones must obey sum rules.

use std::time::Duration;

use anyhow::{Context, Result};
use rdmatop_tests::{
    case::{Case, one_sided, ping_pong, two_sided},
    lab::{self, DEVICE, Lab},
    perftest::{self, Accounts, Pair, Perftest},
    rdmatop::{Trace, Window},
    snapshot::{Row, Snapshot},
    table::Table,
    together::{Did, Together},
    traffic::{self, Traffic, id, number},
    wire::{self, Wire},
};
use serde_json::Value;

/// A UD receive completion counts the 40 bytes of GRH, in the kernel and therefore in rdmatop.
const GRH: u64 = 40;
/// For how long a receiver is stopped.
const STOPPED: Duration = Duration::from_secs(3);
/// Messages to the stopped receiver, and over the lossy wire.
const TO_STOPPED: u64 = 10_000;
const OVER_LOSSY: u64 = 500;
/// READs over the lossy wire, and bytes of each. Once with one outstanding READ, of which a part may have
/// arrived, and once with eight, so that a repeated READ is behind others.
const READS: u64 = 300;
const READ_SIZE: u64 = 16_384;
const OUTSTANDING: [&str; 2] = ["1", "8"];
/// Operations of the programs that had begun before the window.
const MID_WAY: [&str; 2] = ["write", "send"];

/// Pairs that ran one after another over loopback on the lab's device, and the driver's counts meanwhile.
#[derive(Debug)]
struct Pairs {
    accounts: Vec<Accounts>,
    /// Packets that arrived twice; `None` if the driver does not count them.
    duplicates: Option<u64>,
    /// Packets that were refused because no receive was posted.
    naks: Option<u64>,
}

/// A pair over the wire, and the packets that both ends counted meanwhile.
#[derive(Debug)]
struct Lossy {
    accounts: Accounts,
    sent: u64,
    arrived: u64,
}

/// The results of all workloads.
#[derive(Debug)]
struct Workloads {
    mid_way: Did<Vec<(Value, Value)>>,
    kinds: Did<Pairs>,
    ways: Did<Pairs>,
    two: Did<Vec<Accounts>>,
    timed: Did<Value>,
    stopped: Did<(Accounts, u64)>,
    lossy: Did<Lossy>,
    reads: Did<Vec<Lossy>>,
    dead: Did<Pair>,
    beside_a_trace: Did<Pairs>,
}

static TOGETHER: Together<(Workloads, Snapshot)> = Together::new();

fn together() -> Result<&'static (Workloads, Snapshot)> {
    TOGETHER.get(|| {
        let begun = Did::of_test("exact::attached_mid_way_it_counts_what_came_after", begin_mid_way);
        let window = Window::open(&[])?;
        let workloads = Workloads {
            mid_way: Did::of(|| finish_mid_way(begun)),
            kinds: Did::of_test(
                "exact::every_kind_of_request_is_counted_exactly",
                || run(&kinds()),
            ),
            ways: Did::of_test("exact::every_way_of_posting_is_counted_exactly", || run(&ways())),
            two: Did::of_test("exact::two_pairs_at_once_are_told_apart", run_two),
            timed: Did::of_test("exact::latencies_agree_with_the_program_s_own_clock", || {
                traffic::run("timed-posts", &["--count", "1000", "--op", "write"])
            }),
            stopped: Did::of_test(
                "exact::a_stopped_receiver_shows_as_rnr_waits_and_loses_no_count",
                run_stopped,
            ),
            lossy: Did::of_test(
                "exact::loss_on_the_wire_shows_as_retransmissions_and_loses_no_count",
                || {
                    let wire = Wire::up()?;
                    let loss = wire.lose("1%")?;
                    let pair = Perftest::new("ib_send_bw").iterations(OVER_LOSSY);
                    let ran = run_lossy(&pair);
                    drop(loss);
                    ran
                },
            ),
            reads: Did::of_test(
                "exact::reads_that_are_asked_for_again_are_retransmissions",
                run_reads,
            ),
            dead: Did::of_test(
                "exact::a_dead_peer_ends_in_one_retry_error_and_flushes_that_add_up",
                perftest::with_killed_server,
            ),
            beside_a_trace: Did::of_test("exact::a_trace_beside_a_window_changes_no_count", || {
                let trace = Trace::start(&[])?;
                let ran = run(&beside_a_trace())?;
                trace.stop()?;
                Ok(ran)
            }),
        };
        Ok((workloads, window.close()?))
    })
}

/// Runs pairs one after another.
fn run(cases: &[Case]) -> Result<Pairs> {
    let counters = || -> Result<_> {
        Ok((
            lab::hw_counter(DEVICE, "duplicate_request")?,
            lab::hw_counter(DEVICE, "rcvd_rnr_err")?,
        ))
    };
    let before = counters()?;
    let mut accounts = Vec::new();
    for case in cases {
        accounts.push(case.pair.run().with_context(|| case.name)?);
    }
    let after = counters()?;
    let rise = |after: Option<u64>, before: Option<u64>| after.zip(before).map(|(now, then)| now - then);
    Ok(Pairs {
        accounts,
        duplicates: rise(after.0, before.0),
        naks: rise(after.1, before.1),
    })
}

/// Compares each pair's rows, and the retransmitted packets with those that arrived twice.
fn compare(lab: &Lab, title: &str, cases: &[Case], ran: &Pairs, sample: &Snapshot) -> Result<()> {
    let mut table = Table::default();
    for (case, accounts) in cases.iter().zip(&ran.accounts) {
        case.compare(&mut table, sample, accounts, sample.skipped())?;
    }
    // Nothing is lost inside one device, so a retransmitted packet arrives twice. An exception is a receiver
    // that was not ready: it drops that packet and, without counting each, those behind it (check_psn), which
    // then arrive only once.
    if let Some(duplicates) = ran.duplicates {
        let sides = ran.accounts.iter().flat_map(|pair| [&pair.client, &pair.server]);
        let pids: Vec<u32> = sides.map(|side| side.pid).collect();
        let own = |qp: &Row<'_>| pids.iter().any(|pid| qp.field("pid") == *pid);
        let again: u64 = sample
            .qps()
            .filter(own)
            .filter_map(|qp| qp.total("retransmits"))
            .sum();
        if ran.naks == Some(0) {
            let skipped = sample.skipped();
            table.equal_unless_skipped(
                "all",
                "retransmits = duplicate_request",
                duplicates,
                Some(again),
                skipped,
            );
        } else {
            let least = duplicates + ran.naks.unwrap_or(0);
            let what = "retransmits, RNR waits among them";
            table.rule("all", what, &format!(">= {least}"), Some(again), again >= least);
        }
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(lab, title);
    Ok(())
}

/// Compares the counts of a receiver of `n` messages of `size` bytes.
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

fn kinds() -> [Case; 6] {
    let mut send = two_sided("send", Perftest::new("ib_send_bw"), 1000, 4096);
    // By default perftest asks for a completion every 100 requests.
    send.client.completions = Some(10);
    let mut ud = two_sided(
        "send UD",
        Perftest::new("ib_send_bw").args(&["-c", "UD"]),
        1000,
        1024,
    );
    ud.server.rx_extra = GRH;
    [
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
    ]
}

#[test]
fn every_kind_of_request_is_counted_exactly() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("kinds of requests") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    compare(&lab, "Kinds of requests", &kinds(), did.kinds.get()?, sample)
}

fn ways() -> [Case; 6] {
    let send = |args: &[&str]| Perftest::new("ib_send_bw").args(args);
    let mut signalled = two_sided("-Q 1", send(&["-Q", "1"]), 1000, 4096);
    signalled.client.completions = Some(1000);
    [
        two_sided("-l 10", send(&["-l", "10"]), 1000, 4096),
        signalled,
        two_sided("-q 4", send(&["-q", "4"]), 1000, 4096),
        two_sided("-e", send(&["-e"]), 1000, 4096),
        two_sided("-R", send(&[]).cm(), 1000, 4096),
        two_sided("5000 x 64", send(&[]), 5000, 64),
    ]
}

#[test]
fn every_way_of_posting_is_counted_exactly() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("ways of posting") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    compare(&lab, "Ways of posting", &ways(), did.ways.get()?, sample)
}

fn two_cases() -> [Case; 2] {
    [
        two_sided("first", Perftest::new("ib_send_bw"), 3000, 1024),
        one_sided("second", Perftest::new("ib_write_bw"), 2000, 2048, "rdma_write"),
    ]
}

fn run_two() -> Result<Vec<Accounts>> {
    let started: Result<Vec<_>> = two_cases().iter().map(|case| case.pair.start()).collect();
    started?.into_iter().map(Pair::finish).collect()
}

#[test]
fn two_pairs_at_once_are_told_apart() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("two pairs") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let mut table = Table::default();
    for (case, accounts) in two_cases().iter().zip(did.two.get()?) {
        case.compare(&mut table, sample, accounts, sample.skipped())?;
    }
    table.check(&lab, "Two pairs at once");
    Ok(())
}

/// Starts programs that post before the window and then wait for it to open.
fn begin_mid_way() -> Result<Vec<(Value, Traffic)>> {
    let begin = |op| {
        let args = ["--before", "300", "--count", "500", "--size", "64", "--op", op];
        let posts = Traffic::start("timed-posts", &args)?;
        Ok((posts.ready()?, posts))
    };
    MID_WAY.into_iter().map(begin).collect()
}

/// Returns what each program printed first and at its end.
fn finish_mid_way(begun: Did<Vec<(Value, Traffic)>>) -> Result<Vec<(Value, Value)>> {
    let finish = |(ready, posts): (Value, Traffic)| Ok((ready, posts.finish()?));
    begun.into_inner()?.into_iter().map(finish).collect()
}

#[test]
fn attached_mid_way_it_counts_what_came_after() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("mid-way") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let mut table = Table::default();
    for (op, (ready, done)) in MID_WAY.into_iter().zip(did.mid_way.get()?) {
        let pid = id(ready, "pid")?;
        let qp = sample.qp(pid, id(ready, "qpn")?)?;
        let peer = sample.qp(pid, id(ready, "peer_qpn")?)?;
        assert!(qp.is("since_attach") && peer.is("since_attach"), "{qp:?}");
        // No program saw the modify that named the peer.
        assert_eq!(qp.field("remote_gid"), &lab::gid(DEVICE)?, "{qp:?}");
        table.equal(op, "tx_wr after attach", 500, qp.total("tx_wr"));
        table.equal(
            op,
            "tx_bytes after attach",
            number(done, "bytes")?,
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
    let (did, sample) = together()?;
    let done = did.timed.get()?;
    let qp = sample.qp(id(done, "pid")?, id(done, "qpn")?)?;
    let seen = qp.field("latency");
    let own = &done["latency"];
    let mut table = Table::default();
    let (count, early) = (seen["count"].as_u64(), seen["early"].as_u64());
    let covered = count.zip(early).map(|(count, early)| count + early);
    table.equal("write", "latency count + early", 1000, covered);
    // The kernel's time begins after the program's and ends before it. The difference depends on who else
    // used the CPU between completion and poll. One request in a hundred can change mean and maximum, but not
    // the median.
    for key in ["mean_ns", "max_ns"] {
        let (ours, theirs) = (seen[key].as_u64(), number(own, key)?);
        let ok = ours.is_some_and(|ours| ours > 0 && ours <= theirs);
        table.rule("write", key, &format!("<= {theirs}"), ours, ok);
    }
    let (ours, theirs) = (seen["p50_ns"].as_u64(), number(own, "p50_ns")?);
    // Our value is the upper edge of its bucket: the median itself is more than half of it.
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

/// Runs a pair whose receiver is stopped for a while; returns how many packets its driver refused then.
fn run_stopped() -> Result<(Accounts, u64)> {
    let naks = || lab::hw_counter(DEVICE, "rcvd_rnr_err")?.context("no rcvd_rnr_err");
    let before = naks()?;
    let pair = perftest::with_stopped_receiver(TO_STOPPED, 1024, STOPPED)?;
    let accounts = pair.finish()?;
    Ok((accounts, naks()? - before))
}

#[test]
fn a_stopped_receiver_shows_as_rnr_waits_and_loses_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("stopped receiver") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let (accounts, naks) = did.stopped.get()?;
    let (n, naks) = (TO_STOPPED, *naks);
    let mut table = Table::default();
    let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
    let server = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    table.equal("sender", "tx_wr", n, client.total("tx_wr"));
    table.equal("sender", "tx_wr_posted", n, client.total("tx_wr_posted"));
    receiver(&mut table, sample, server, n, 1024);
    let waits = client.total("rnr_waits");
    // A timer that is restarted before it expires merges two NAKs into one wait.
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

/// Runs a pair from one end of the wire to the other.
fn run_lossy(pair: &Perftest) -> Result<Lossy> {
    let read = |device, name| -> Result<u64> {
        lab::hw_counter(device, name)?.with_context(|| format!("{device} has no {name}"))
    };
    let before = [read(wire::CLIENT, "sent_pkts")?, read(wire::SERVER, "rcvd_pkts")?];
    let pair = pair.clone().devices(wire::SERVER, wire::CLIENT);
    Ok(Lossy {
        accounts: pair.run()?,
        sent: read(wire::CLIENT, "sent_pkts")? - before[0],
        arrived: read(wire::SERVER, "rcvd_pkts")? - before[1],
    })
}

#[test]
fn loss_on_the_wire_shows_as_retransmissions_and_loses_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("loss") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let Lossy {
        accounts,
        sent,
        arrived,
    } = did.lossy.get()?;
    let n = OVER_LOSSY;
    let client = sample.qp(accounts.client.pid, accounts.client.qpns[0])?;
    let server = sample.qp(accounts.server.pid, accounts.server.qpns[0])?;
    let mut table = Table::default();
    table.equal("sender", "tx_wr", n, client.total("tx_wr"));
    table.equal("sender", "tx_wr_posted", n, client.total("tx_wr_posted"));
    receiver(&mut table, sample, server, n, 4096);
    // The client sends only requests: 4 packets of 1024 bytes per message, and retransmissions.
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

fn run_reads() -> Result<Vec<Lossy>> {
    let wire = Wire::up()?;
    let loss = wire.lose_both("2%")?;
    let run = |outstanding: &&str| {
        let pair = Perftest::new("ib_read_bw").args(&["-o", outstanding]);
        run_lossy(&pair.iterations(READS).size(READ_SIZE))
    };
    let ran = OUTSTANDING.iter().map(run).collect();
    drop(loss);
    ran
}

#[test]
fn reads_that_are_asked_for_again_are_retransmissions() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("lost READs") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let mut table = Table::default();
    for (outstanding, ran) in OUTSTANDING.iter().zip(did.reads.get()?) {
        let client = &ran.accounts.client;
        let client = sample.qp(client.pid, client.qpns[0])?;
        let name = format!("-o {outstanding}");
        table.equal(&name, "tx_wr", READS, client.total("tx_wr"));
        table.equal(&name, "tx_bytes", READS * READ_SIZE, client.total("tx_bytes"));
        // The client sends only requests, one packet each.
        let (sent, again) = (ran.sent, client.total("retransmits"));
        let (first, skipped) = ("retransmits = sent_pkts - first ones", sample.skipped());
        table.equal_unless_skipped(&name, first, sent - READS, again, skipped);
        table.rule(&name, "sent again", "> 0", Some(sent - READS), sent > READS);
    }
    table.check(&lab, "READs over a wire that loses 2 % each way");
    Ok(())
}

#[test]
fn a_dead_peer_ends_in_one_retry_error_and_flushes_that_add_up() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("dead peer") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let pair = did.dead.get()?;
    let (_, qpns) = pair.qpns();
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

fn beside_a_trace() -> [Case; 1] {
    [two_sided("send", Perftest::new("ib_send_bw"), 1000, 4096)]
}

#[test]
fn a_trace_beside_a_window_changes_no_count() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("trace beside window") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let ran = did.beside_a_trace.get()?;
    compare(&lab, "A trace beside it", &beside_a_trace(), ran, sample)
}
