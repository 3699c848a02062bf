//! The data path of soft iWARP: what rdmatop counts equals what perftest and rping report, and what this
//! provider cannot show is unknown.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    case::{Case, one_sided, ping_pong, two_sided},
    child::Child,
    ftrace::Runs,
    lab::Lab,
    perftest::{Accounts, HANDSHAKE, Pair, Perftest},
    rdmatop::{Trace, Window},
    siw::{self, Siw},
    snapshot::{Row, Snapshot},
    table::{Table, say},
    together::{Did, Together},
    traffic::{self, Traffic, id, number},
    wait::{self, PATIENCE},
    work::{sum, told},
};
use serde_json::Value;

/// The results of the workloads in the window.
#[derive(Debug)]
struct Workloads {
    kinds: Did<Vec<Accounts>>,
    /// With the number of times that the driver received an RDMA WRITE meanwhile.
    ways: Did<(Vec<Accounts>, u64)>,
    overflow: Did<Value>,
    beside_rxe: Did<Vec<Accounts>>,
    pings: Did<(u32, u32)>,
}

static TOGETHER: Together<(Workloads, Snapshot)> = Together::new();

fn together() -> Result<&'static (Workloads, Snapshot)> {
    TOGETHER.get(|| {
        let _siw = Siw::up()?;
        let window = Window::open(&[])?;
        let workloads = Workloads {
            kinds: Did::of_test("siw::every_kind_of_request_is_counted_exactly", || run(&kinds())),
            ways: Did::of_test("siw::every_way_of_posting_is_counted_exactly", || {
                // Four bytes at the end of a TCP segment are received at once.
                let writes = Runs::of("siw_proc_write")?;
                let ran = run(&ways())?;
                Ok((ran, writes.count()?))
            }),
            overflow: Did::of_test(
                "siw::a_completion_without_room_is_an_overflow_and_no_completion",
                || traffic::run("flushed-receives", &["--device", siw::DEVICE]),
            ),
            beside_rxe: Did::of_test(
                "siw::two_providers_are_counted_at_once_and_each_says_what_it_lacks",
                || {
                    let started: Result<Vec<_>> = beside_rxe().iter().map(connect).collect();
                    started?.into_iter().map(Pair::finish).collect()
                },
            ),
            pings: Did::of_test("siw::rping_reads_writes_and_sends_as_often_as_it_says", ping),
        };
        Ok((workloads, window.close()?))
    })
}

/// Runs pairs one after another.
fn run(cases: &[Case]) -> Result<Vec<Accounts>> {
    let run = |case: &Case| connect(case)?.finish().context(case.name);
    cases.iter().map(run).collect()
}

/// Rounds of rping.
const PINGS: u64 = 20;

fn perftest(program: &'static str) -> Perftest {
    Perftest::new(program).iwarp(siw::DEVICE)
}

/// A case as [`two_sided`] makes it, on siw0.
fn sends(name: &'static str, args: &[&str], n: u64, size: u64) -> Case {
    let mut case = two_sided(name, perftest("ib_send_bw").args(args), n, size);
    case.server.credits = true;
    case
}

/// Starts a pair. Sometimes a pair does not complete perftest's handshake with this driver, also without
/// rdmatop (with -q 2, 1 pair of 6 on Linux 7.2): it is refused or hangs. Nothing has been measured then, and
/// the next pair has new QPs.
fn connect(case: &Case) -> Result<Pair> {
    for _ in 0..2 {
        let pair = case.pair.start()?;
        match pair.connected_within(HANDSHAKE) {
            Ok(()) => return Ok(pair),
            Err(error) => say(&format!("{}: not connected, once more: {error:#}", case.name)),
        }
    }
    case.pair.start()
}

/// `writes`: runs of the function that receives RDMA WRITEs, for cases whose only WRITEs are credits.
fn compare(
    lab: &Lab,
    title: &str,
    cases: &[Case],
    ran: &[Accounts],
    sample: &Snapshot,
    writes: Option<u64>,
) -> Result<()> {
    let mut table = Table::default();
    for (case, accounts) in cases.iter().zip(ran) {
        case.compare(&mut table, sample, accounts, sample.skipped())?;
    }
    if let Some(writes) = writes {
        let mut credits = 0;
        for accounts in ran {
            for &qpn in &accounts.server.qpns {
                let row = sample.qp(accounts.server.pid, qpn)?;
                credits += row.opcode("rdma_write").map_or(0, |(wr, _)| wr);
            }
        }
        table.equal("all", "credits, against ftrace", writes, Some(credits));
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.equal("all", "WRs without opcode", 0, Some(sample.lost_at("walk")));
    table.check(lab, title);
    Ok(())
}

fn kinds() -> [Case; 4] {
    let mut send = sends("siw send", &[], 1000, 4096);
    // By default perftest asks for a completion every 100 requests.
    send.client.completions = Some(10);
    let mut read = one_sided("siw read", perftest("ib_read_bw"), 500, 4096, "rdma_read");
    read.client.completions = Some(5);
    [
        send,
        one_sided("siw write", perftest("ib_write_bw"), 1000, 4096, "rdma_write"),
        read,
        ping_pong("siw send_lat", perftest("ib_send_lat"), 300, 64),
    ]
}

#[test]
fn every_kind_of_request_is_counted_exactly() -> Result<()> {
    const NAME: &str = "siw: kinds of requests";
    let Some(lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let title = "Soft iWARP: kinds of requests";
    compare(&lab, title, &kinds(), did.kinds.get()?, sample, None)
}

fn ways() -> [Case; 4] {
    let mut signalled = sends("siw -Q 1", &["-Q", "1"], 500, 4096);
    signalled.client.completions = Some(500);
    [
        sends("siw -l 10", &["-l", "10"], 1000, 4096),
        signalled,
        sends("siw -q 2", &["-q", "2"], 500, 4096),
        // Without -e: with it perftest pairs sometimes hang on this driver, also without rdmatop (2 of 6 on
        // Linux 6.1, none of 24 with the other options; ib_send_lat -e as well). One cause is in perftest: a
        // sender without credits sleeps until an event, but credits cause none.
        sends("siw 5000 x 64", &[], 5000, 64),
    ]
}

#[test]
fn every_way_of_posting_is_counted_exactly() -> Result<()> {
    const NAME: &str = "siw: ways of posting";
    let Some(lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let (ran, writes) = did.ways.get()?;
    let title = "Soft iWARP: ways of posting";
    compare(&lab, title, &ways(), ran, sample, Some(*writes))
}

/// The driver checks for room under a lock, after the program that counts the completion.
#[test]
fn a_completion_without_room_is_an_overflow_and_no_completion() -> Result<()> {
    const NAME: &str = "siw: an overrun CQ";
    let Some(lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let done = did.overflow.get()?;
    let (capacity, flushed) = (number(done, "capacity")?, number(done, "flushed")?);
    let mut table = Table::default();
    table.equal("program", "CQEs polled", capacity, Some(flushed));
    // The driver stops working on the queue at the first request that finds no room.
    table.equal("program", "CQ_ERR", 1, Some(number(done, "cq_errors")?));
    let pid = id(done, "pid")?;
    for (name, row) in [
        ("QP", sample.qp(pid, id(done, "qpn")?)?),
        ("process", sample.process(pid)?),
    ] {
        for (counter, expected) in [
            ("cq_overflows", 1),
            ("completions", flushed),
            ("flushes", flushed),
            ("completion_errors", 0),
            ("rx_wr_posted", number(done, "posted")?),
            ("rx_wr", 0),
            ("rx_bytes", 0),
            ("tx_wr", 0),
        ] {
            table.equal(name, counter, expected, row.total(counter));
        }
    }
    table.equal("all", "lost_events", 0, sample.lost());
    table.check(&lab, "Soft iWARP: an overrun CQ");
    Ok(())
}

fn beside_rxe() -> [Case; 2] {
    [
        two_sided("rxe", Perftest::new("ib_send_bw"), 1000, 4096),
        sends("siw", &[], 1000, 4096),
    ]
}

#[test]
fn two_providers_are_counted_at_once_and_each_says_what_it_lacks() -> Result<()> {
    const NAME: &str = "siw beside rxe";
    let Some(lab) = Lab::enter_data_path(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let all = did.beside_rxe.get()?;
    let mut table = Table::default();
    for (case, accounts) in beside_rxe().iter().zip(all) {
        case.compare(&mut table, sample, accounts, sample.skipped())?;
    }
    for device in ["rxe0", siw::DEVICE] {
        ensure!(sample.datapath_of(device) == Some("kprobe"), "{device}");
    }
    let row = |case: usize| sample.qp(all[case].client.pid, all[case].client.qpns[0]);
    let unknown = |row: &Row<'_>| ["retransmits", "rnr_waits", "latency"].map(|key| row.field(key).is_null());
    for row in [row(1)?, sample.process(all[1].client.pid)?] {
        ensure!(unknown(&row) == [true; 3], "not 0 but unknown: {row:?}");
    }
    ensure!(unknown(&row(0)?) == [false; 3], "{:?}", row(0)?);
    let unobserved = sample.value()["judgement"]["unobserved"]
        .as_array()
        .context("no list")?;
    for what in ["retransmissions", "receiver_waits", "latency"] {
        let said = |device: &str| {
            unobserved
                .iter()
                .any(|line| line["device"] == device && line["what"] == what)
        };
        ensure!(said(siw::DEVICE) && !said("rxe0"), "{what}: {unobserved:?}");
    }
    table.check(&lab, "Soft iWARP beside SoftRoCE");
    Ok(())
}

/// Runs rping; returns the PIDs of server and client. In a ping the client sends its buffer's address, the
/// server READs it and sends, the client sends the next one, and the server WRITEs and sends.
fn ping() -> Result<(u32, u32)> {
    let rping = |side: &str| {
        let mut command = Command::new("rping");
        command.args([side, "-a", siw::ADDRESS, "-C", &PINGS.to_string(), "-S", "100"]);
        command
    };
    let mut server = Child::spawn(&mut rping("-s"))?;
    wait::for_some("a listening rping", PATIENCE, || {
        let ids = Command::new("rdma")
            .args(["resource", "show", "cm_id"])
            .output()?;
        Ok(String::from_utf8_lossy(&ids.stdout)
            .contains("LISTEN")
            .then_some(()))
    })?;
    let mut client = Child::spawn(&mut rping("-c"))?;
    client.succeed(PATIENCE)?;
    // The server ends with an error, because its peer has gone.
    server.wait(PATIENCE)?;
    Ok((server.pid(), client.pid()))
}

/// The kernel side makes no events for soft iWARP; probes on programs do.
#[test]
fn each_request_of_rping_is_an_event_by_probes() -> Result<()> {
    const NAME: &str = "siw: work requests as events";
    let Some(lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let _siw = Siw::up()?;
    // Its number is 1, which belongs to a management QP only on devices that have these.
    let idle = ["--device", siw::DEVICE, "--qps", "1", "--state", "init"];
    let idle = Traffic::start("idle-qps", &idle)?;
    idle.ready()?;
    // The limit is high because under emulation a hit costs ten times as much as on real hardware.
    let trace = Trace::start(&["--event", "wr", "--uprobes", "--uprobe-limit", "100000"])?;
    wait::until("probes on functions of the provider", PATIENCE, || {
        let lines = trace.child.err.all();
        lines
            .iter()
            .any(|line| line.ends_with("functions of programs are probed from now on"))
    })?;
    let (server, client) = ping()?;
    let traced = trace.stop()?;
    idle.finish()?;
    let all = sum(&traced)?;
    let of = |pid: u32, kind, opcode: &str| {
        let events = traced.events.kind(kind).filter(|event| {
            event["pid"] == pid && event["opcode"] == opcode && event["wc_status"] != "wr_flush_err"
        });
        Some(events.all().len() as u64)
    };
    let mut table = Table::default();
    for (who, pid, opcode, count) in [
        ("server", server, "rdma_read", PINGS),
        ("server", server, "rdma_write", PINGS),
        ("server", server, "send", 2 * PINGS),
        ("client", client, "send", 2 * PINGS),
    ] {
        table.equal(
            who,
            &format!("posts, {opcode}"),
            count,
            of(pid, "wr_post", opcode),
        );
    }
    for (who, pid) in [("server", server), ("client", client)] {
        table.equal(who, "ends of receives", 2 * PINGS, of(pid, "wr_done", "recv"));
    }
    table.equal("all", "lost", 0, Some(all.lost));
    // Each request asks for a completion, which has the time since its post if that post is known for
    // certain: a thread of rping polls, and may see the completion before the posting call has returned.
    let mut timed = 0;
    for (who, pid) in [("server", server), ("client", client)] {
        let of = |kind| {
            let all = traced.events.pid(pid).kind(kind);
            all.filter(|event| event["opcode"] != "recv" && event["wc_status"] != "wr_flush_err")
        };
        let known = told(&of("wr_post"), &of("wr_done"))?;
        println!("{who}: {known} ends have a time");
        timed += known;
    }
    table.equal("both", "some ends have a time", 1, Some(u64::from(timed > 0)));
    table.check(&lab, "Soft iWARP: work requests as events");
    Ok(())
}

#[test]
fn rping_reads_writes_and_sends_as_often_as_it_says() -> Result<()> {
    const NAME: &str = "siw: rping";
    let Some(lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let (did, sample) = together()?;
    let (server, client) = did.pings.get()?;
    let mut table = Table::default();
    let server = sample.process(*server)?;
    let client = sample.process(*client)?;
    for (opcode, count, bytes) in [
        ("rdma_read", PINGS, PINGS * 100),
        ("rdma_write", PINGS, PINGS * 100),
        ("send", 2 * PINGS, 2 * PINGS * 16),
    ] {
        let (wr, seen) = server.opcode(opcode).unzip();
        table.equal("server", opcode, count, wr);
        table.equal("server", &format!("{opcode} bytes"), bytes, seen);
    }
    let (sent, _) = client.opcode("send").unzip();
    table.equal("client", "send", 2 * PINGS, sent);
    table.equal("client", "rx_wr", 2 * PINGS, client.total("rx_wr"));
    table.equal("server", "rx_wr", 2 * PINGS, server.total("rx_wr"));
    table.check(&lab, "Soft iWARP: rping");
    Ok(())
}
