//! Unusual queues: shared, full, older than rdmatop, or with another kind of program on their data path.

use std::{collections::BTreeSet, process::Command};

use anyhow::{Context, Result};
use rdmatop_tests::{
    case::{Case, one_sided, ping_pong, two_sided},
    child::output,
    lab::Lab,
    perftest::{Accounts, Perftest},
    rdmatop::Window,
    snapshot::Snapshot,
    table::Table,
    together::{Did, Together},
    traffic::{self, Traffic, id, number},
};
use serde_json::Value;

/// The results of the workloads in the window with kprobes.
#[derive(Debug)]
struct Workloads {
    before_attach: Did<BeforeAttach>,
    ways: Did<Vec<Accounts>>,
    shared: Did<Vec<Accounts>>,
    overflow: Did<Value>,
    broken: Did<Vec<Value>>,
}

/// Programs that are older than the window.
#[derive(Debug)]
struct BeforeAttach {
    /// What the idle QPs and the pair printed when they were set up.
    idle: Value,
    pair: Value,
    /// What the pair did in the window.
    done: Value,
}

const BROKEN: [&str; 5] = ["flush", "reset", "destroy", "refill", "greedy"];

static TOGETHER: Together<(Workloads, Snapshot)> = Together::new();

fn together() -> Result<&'static (Workloads, Snapshot)> {
    TOGETHER.get(|| {
        let begin = |name, args: &[&str]| {
            let traffic = Traffic::start(name, args)?;
            Ok((traffic.ready()?, traffic))
        };
        let idle = Did::of(|| begin("idle-qps", &["--qps", "6", "--processes", "2"]));
        let posts = Did::of(|| begin("timed-posts", &["--wait", "--count", "200", "--op", "send"]));
        let window = Window::open(&["--attach", "kprobe"])?;
        let posted = Did::of(|| {
            let (pair, posts) = posts.into_inner()?;
            Ok((pair, posts.finish()?))
        });
        let mut workloads = Workloads {
            before_attach: Did::of(|| anyhow::bail!("not yet")),
            ways: Did::of_test("queues::kprobe_and_fentry_count_the_same", || run(&ways())),
            shared: Did::of_test(
                "queues::receives_from_a_shared_queue_are_counted_and_their_posts_are_unknown",
                || run(&shared()),
            ),
            overflow: Did::of_test(
                "queues::completions_that_find_the_cq_full_are_counted_apart",
                || traffic::run("cq-overflow", &["--extra", "20"]),
            ),
            broken: Did::of_test(
                "queues::what_is_flushed_dropped_or_posted_at_the_last_moment_is_counted_once",
                || {
                    let run =
                        |case: &'static str| traffic::run("broken-qps", &["--case", case]).context(case);
                    BROKEN.into_iter().map(run).collect()
                },
            ),
        };
        let sample = window.close()?;
        workloads.before_attach = Did::of(|| {
            let ((idle, holder), (pair, done)) = (idle.into_inner()?, posted.into_inner()?);
            holder.finish()?;
            Ok(BeforeAttach { idle, pair, done })
        });
        Ok((workloads, sample))
    })
}

/// Runs pairs one after another.
fn run(cases: &[Case]) -> Result<Vec<Accounts>> {
    let run = |case: &Case| case.pair.run().context(case.name);
    cases.iter().map(run).collect()
}

/// Compares the rows of pairs.
fn compare(table: &mut Table, sample: &Snapshot, cases: &[Case], ran: &[Accounts]) -> Result<()> {
    for (case, accounts) in cases.iter().zip(ran) {
        case.compare(table, sample, accounts, sample.skipped())?;
    }
    table.equal("all", "lost_events", 0, sample.lost());
    Ok(())
}

fn ways() -> [Case; 4] {
    let mut cases = [
        two_sided("send", Perftest::new("ib_send_bw"), 1000, 4096),
        one_sided("write", Perftest::new("ib_write_bw"), 1000, 4096, "rdma_write"),
        two_sided(
            "-l 10",
            Perftest::new("ib_send_bw").args(&["-l", "10"]),
            1000,
            4096,
        ),
        ping_pong("send_lat", Perftest::new("ib_send_lat"), 1000, 64),
    ];
    for case in &mut cases {
        // A list of posts rings one doorbell.
        case.client.doorbells = Some(if case.name == "-l 10" { 100 } else { 1000 });
    }
    cases
}

fn is_equal_by(lab: &Lab, mode: &str, sample: &Snapshot, ran: &[Accounts]) -> Result<()> {
    let mut table = Table::default();
    compare(&mut table, sample, &ways(), ran)?;
    assert_eq!(sample.datapath(), Some(mode), "{}", sample.value()["health"]);
    table.check(lab, &format!("--attach {mode}"));
    Ok(())
}

#[test]
fn kprobe_and_fentry_count_the_same() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("kprobe and fentry") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    is_equal_by(&lab, "kprobe", sample, did.ways.get()?)?;
    let window = Window::open(&["--attach", "fentry"])?;
    let ran = run(&ways())?;
    is_equal_by(&lab, "fentry", &window.close()?, &ran)
}

fn shared() -> [Case; 2] {
    let shared = |name, pair: Perftest| {
        let mut case = two_sided(name, pair.args(&["--use-srq"]), 1000, 2048);
        case.server.srq = true;
        case
    };
    [
        shared("SRQ", Perftest::new("ib_send_bw")),
        shared("SRQ -q 2", Perftest::new("ib_send_bw").args(&["-q", "2"])),
    ]
}

#[test]
fn receives_from_a_shared_queue_are_counted_and_their_posts_are_unknown() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("SRQ") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let mut table = Table::default();
    compare(&mut table, sample, &shared(), did.shared.get()?)?;
    // Devices say how many objects they may have, and libibverbs asks them too.
    let devices = sample.value()["devices"].as_array().context("devices")?;
    let used = devices.iter().filter(|device| !device["max_cq"].is_null());
    for device in used.clone() {
        let name = device["name"].as_str().context("name")?;
        let said = output(Command::new("ibv_devinfo").args(["-v", "-d", name]))?;
        for limit in ["max_qp", "max_cq", "max_mr", "max_pd", "max_srq"] {
            let value = |line: &str| {
                line.trim()
                    .strip_prefix(limit)?
                    .strip_prefix(':')?
                    .trim()
                    .parse()
                    .ok()
            };
            let expected = said
                .lines()
                .find_map(value)
                .with_context(|| format!("{name}: {limit}"))?;
            table.equal(name, limit, expected, device[limit].as_u64());
        }
    }
    assert!(used.count() > 0, "{devices:?}");
    table.check(&lab, "A shared receive queue");
    Ok(())
}

#[test]
fn completions_that_find_the_cq_full_are_counted_apart() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("CQ overflow") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let done = did.overflow.get()?;
    let pid = id(done, "pid")?;
    let posted = number(done, "posted")?;
    let mut table = Table::default();
    // First the program's own results: the CQ took no more than it holds.
    table.equal(
        "program",
        "CQEs polled",
        number(done, "capacity")?,
        Some(number(done, "polled")?),
    );
    for (name, row) in [
        ("QP", sample.qp(pid, id(done, "qpn")?)?),
        ("process", sample.process(pid)?),
    ] {
        table.equal(
            name,
            "cq_overflows",
            number(done, "cq_errors")?,
            row.total("cq_overflows"),
        );
        table.equal(
            name,
            "completions",
            number(done, "polled")?,
            row.total("completions"),
        );
        table.equal(name, "tx_wr", posted, row.total("tx_wr"));
        table.equal(name, "tx_wr_posted", posted, row.total("tx_wr_posted"));
        table.equal(name, "tx_bytes", number(done, "bytes")?, row.total("tx_bytes"));
        table.equal(name, "completion_errors", 0, row.total("completion_errors"));
        table.equal(name, "flushes", 0, row.total("flushes"));
        table.equal(name, "rx_wr", 0, row.total("rx_wr"));
        table.equal(name, "retransmits", 0, row.total("retransmits"));
    }
    let peer = sample.qp(pid, id(done, "peer_qpn")?)?;
    for counter in ["tx_wr", "rx_wr", "completions", "cq_overflows"] {
        table.equal("peer", counter, 0, peer.total(counter));
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(&lab, "A CQ that nobody polls");
    Ok(())
}

#[test]
fn what_is_flushed_dropped_or_posted_at_the_last_moment_is_counted_once() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("broken QPs") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let skipped = sample.skipped();
    let mut table = Table::default();
    for (case, done) in BROKEN.iter().zip(did.broken.get()?) {
        for side in ["qp", "peer"] {
            let own = &done[side];
            let row = sample.qp(id(done, "pid")?, id(own, "qpn")?)?;
            let name = format!("{case}, {side}");
            // From the rings' indices, so they are right whatever the kernel skips. Everything posted has
            // finished, with success or not.
            for (counter, key) in [
                ("tx_wr_posted", "posted"),
                ("tx_wr", "posted"),
                ("tx_bytes", "bytes"),
                ("rx_wr_posted", "rx_posted"),
            ] {
                table.equal(&name, counter, number(own, key)?, row.total(counter));
            }
            let [ok, errors, flushed, rx_ok, rx_flushed] =
                ["ok", "errors", "flushed", "rx_ok", "rx_flushed"].map(|key| number(own, key));
            let (ok, errors, flushes) = (ok?, errors?, flushed? + rx_flushed?);
            for (counter, count, each) in [
                ("rx_wr", rx_ok?, 1),
                ("rx_bytes", number(own, "rx_bytes")?, 1000),
                ("completions", ok + errors + number(own, "rx_ok")? + flushes, 1),
                ("completion_errors", errors, 1),
            ] {
                table.equal_unless_skipped(&name, counter, count, row.total(counter), skipped * each);
            }
            if *case == "refill" {
                // This QP breaks by itself: on 6.1 the kernel may skip the program at its flush.
                table.equal_unless_skipped(&name, "flushes", flushes, row.total("flushes"), skipped);
            } else {
                table.equal(&name, "flushes", flushes, row.total("flushes"));
            }
            // A request that was flushed or dropped has no latency.
            let latency = row.field("latency");
            let times = latency["count"].as_u64().zip(latency["early"].as_u64());
            table.equal(
                &name,
                "latency count + early",
                ok,
                times.map(|(count, early)| count + early),
            );
        }
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(&lab, "Flushed, dropped, and posted at the last moment");
    Ok(())
}

#[test]
fn earlier_qps_have_an_owner_and_count_from_their_next_request() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("before attach") else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let BeforeAttach { idle, pair, done } = did.before_attach.get()?;
    let mut table = Table::default();
    let list = |key: &str| -> Result<BTreeSet<u64>> {
        let list = idle[key].as_array().with_context(|| format!("no {key}"))?;
        Ok(list.iter().filter_map(serde_json::Value::as_u64).collect())
    };
    let (pids, qpns) = (list("pids")?, list("qpns")?);
    let rows: Vec<_> = sample
        .qps()
        .filter(|qp| qp.field("pid").as_u64().is_some_and(|pid| pids.contains(&pid)))
        .collect();
    let found: BTreeSet<u64> = rows.iter().filter_map(|qp| qp.field("qpn").as_u64()).collect();
    assert_eq!(found, qpns, "idle QPs that were there before");
    for qp in &rows {
        assert_eq!(qp.field("comm"), "idle-qps");
        assert_eq!(qp.field("state"), "RTS");
        assert!(qp.is("since_attach") && !qp.is("exited"), "{qp:?}");
        // They are counted, but nothing happened: 0, with a source.
        for counter in ["tx_wr", "tx_wr_posted", "rx_wr", "completions"] {
            table.equal("idle", counter, 0, qp.total(counter));
            assert_eq!(qp.source(counter), Some("ebpf"), "{qp:?}");
        }
    }
    let pid = id(pair, "pid")?;
    let (qp, peer) = (
        sample.qp(pid, id(pair, "qpn")?)?,
        sample.qp(pid, id(pair, "peer_qpn")?)?,
    );
    assert!(qp.is("since_attach") && peer.is("since_attach"), "{qp:?}");
    let bytes = number(done, "bytes")?;
    for counter in ["tx_wr", "tx_wr_posted", "completions", "doorbells"] {
        table.equal("first sends", counter, 200, qp.total(counter));
    }
    table.equal("first sends", "tx_bytes", bytes, qp.total("tx_bytes"));
    table.equal("their receiver", "rx_wr", 200, peer.total("rx_wr"));
    table.equal("their receiver", "rx_bytes", bytes, peer.total("rx_bytes"));
    table.check(&lab, "QPs from before attach");
    Ok(())
}
