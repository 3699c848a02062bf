//! Work requests as events: those printed, lost and left out add up to what happened, which equals the
//! programs' own accounts.

use std::{cell::Cell, collections::BTreeMap, process::Command};

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    child::{Child, output},
    device::Device,
    kernel::{self, Preemption},
    lab::{self, DEVICE, Lab},
    perftest::{Accounts, Perftest},
    rdmatop::{END, Trace, Traced},
    table::{Table, say},
    traffic::{self, Traffic, id, number},
    work::{Sum, list, pick, sum},
};
use serde_json::Value;

fn start(args: &[&str], env: &[(&str, &str)]) -> Result<Trace> {
    Trace::start_with(&[&["--event", "wr"], args].concat(), env)
}

/// The most tries of a comparison in which the kernel skipped a program.
const TRIES: u32 = 5;

/// How often the kernel skipped programs of the traces in one try.
#[derive(Default)]
struct Skips(Cell<u64>);

impl Skips {
    /// Ends a trace.
    fn stop(&self, trace: Trace) -> Result<Traced> {
        let all: u64 = kernel::skipped_programs(trace.child.pid())?.values().sum();
        self.0.set(self.0.get() + all);
        trace.stop()
    }
}

/// Compares a trace with what programs did. The kernel runs no kprobe program inside another, such as when an
/// interrupt's work begins in one: then a completion has no status, or a receive is lost and counted. This
/// depends on the host's load. So a comparison that fails is repeated, but only if the kernel reports that it
/// skipped a program. Linux 6.1 does not count skips: there the first comparison must hold.
fn held(name: &str, attempt: impl Fn(&Skips) -> Result<()>) -> Result<()> {
    for try_number in 1.. {
        let skips = Skips::default();
        let Err(error) = attempt(&skips) else { break };
        let skipped = skips.0.get();
        if try_number == TRIES || skipped == 0 {
            return Err(error.context(format!("{name}: the kernel says that it skipped {skipped} runs")));
        }
        say(&format!(
            "{name}: once more, {skipped} skipped runs are known: {error:#}"
        ));
    }
    Ok(())
}

/// A pair and what it does.
struct Counted {
    name: &'static str,
    pair: Perftest,
    requests: u64,
    receives: u64,
    opcode: &'static str,
    bytes: u64,
    /// The server posts as many requests as the client does.
    both: bool,
}

/// Runs all pairs, one after another, in one trace.
fn all_counted(skips: &Skips) -> Result<()> {
    let kinds = kinds();
    let trace = start(&[], &[])?;
    let run = |kind: &Counted| kind.pair.run().context(kind.name);
    let accounts: Result<Vec<_>> = kinds.iter().map(run).collect();
    let accounts = accounts?;
    let traced = skips.stop(trace)?;
    let sum = sum(&traced)?;
    ensure!(sum.lost == 0, "lost {}", sum.lost);
    for (kind, accounts) in kinds.iter().zip(&accounts) {
        counted(&traced, kind, accounts)?;
    }
    Ok(())
}

/// Checks a pair: posts and ends of the client, receives of the server.
fn counted(traced: &Traced, kind: &Counted, accounts: &Accounts) -> Result<()> {
    let Counted {
        name,
        requests,
        receives,
        opcode,
        bytes,
        ..
    } = kind;
    let (requests, receives) = (*requests, *receives);
    let of = |pid, kind| traced.events.pid(pid).kind(kind);
    let posts = of(accounts.client.pid, "wr_post").filter(|event| event["opcode"] == *opcode);
    let ends = of(accounts.client.pid, "wr_done").filter(|event| event["opcode"] == *opcode);
    let taken = of(accounts.server.pid, "wr_done").filter(|event| event["opcode"] == "recv");
    ensure!(posts.len() as u64 == requests, "{name}: {} posts", posts.len());
    ensure!(ends.len() as u64 == requests, "{name}: {} ends", ends.len());
    if kind.both {
        for kind in ["wr_post", "wr_done"] {
            let theirs = of(accounts.server.pid, kind).filter(|event| event["opcode"] == *opcode);
            ensure!(
                theirs.len() as u64 == requests,
                "{name}: {} of {kind}",
                theirs.len()
            );
            ensure!(kind == "wr_post" || theirs.all().iter().all(|event| event["wc_status"] == "success"));
        }
    }
    ensure!(taken.len() as u64 == receives, "{name}: {} receives", taken.len());
    ensure!(posts.sum("bytes")? == requests * bytes, "{name}: bytes of posts");
    ensure!(ends.sum("bytes")? == requests * bytes, "{name}: bytes of ends");
    for event in ends.all().iter().chain(taken.all()) {
        ensure!(event["wc_status"] == "success", "{name}: {event}");
        ensure!(
            event["device"] == DEVICE && event["comm"].is_string(),
            "{name}: {event}"
        );
    }
    // A request that the driver's own task found before its doorbell has no thread, and its end no duration.
    for (event, key) in [(posts.all(), "tid"), (ends.all(), "duration_ns")] {
        let known = event.iter().filter(|event| event[key].is_u64()).count();
        ensure!(known > 0, "{name}: none has {key}");
    }
    for event in posts.all() {
        ensure!(event["dest_qpn"].is_u64(), "{name}: {event}");
    }
    Ok(())
}

#[test]
fn every_kind_of_request_has_one_line_for_its_post_and_one_for_its_end() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests of perftest") else {
        return Ok(());
    };
    held("kinds of work requests", all_counted)
}

fn kinds() -> [Counted; 9] {
    let new = Perftest::new;
    let all = |name, pair, requests, receives, opcode, bytes| Counted {
        name,
        pair,
        requests,
        receives,
        opcode,
        bytes,
        both: false,
    };
    // While one CPU reports the posts of a QP, the other has its completions.
    let busy = |pair: Perftest| pair.args(&["-Q", "1"]).iterations(1500);
    // Each request is two lines; exact.rs counts a thousand of each kind.
    let new = |program| new(program).iterations(400);
    let mut both = all(
        "both ways",
        busy(new("ib_write_bw").args(&["-b"])),
        1500,
        0,
        "rdma_write",
        4096,
    );
    both.both = true;
    let busy_ud = busy(new("ib_send_bw").args(&["-c", "UD"]).size(1024));
    let list = new("ib_read_bw").args(&["-l", "10"]);
    let ud = new("ib_send_bw").args(&["-c", "UD"]).size(1024);
    let inline = new("ib_send_bw").args(&["-I", "64"]).size(64);
    let srq = new("ib_send_bw").args(&["--use-srq"]);
    [
        all("send", new("ib_send_bw"), 400, 400, "send", 4096),
        all("write", new("ib_write_bw"), 400, 0, "rdma_write", 4096),
        all("read", list, 400, 0, "rdma_read", 4096),
        all("atomic", new("ib_atomic_bw"), 400, 0, "atomic_fetch_add", 8),
        all("UD", ud, 400, 400, "send", 1024),
        all("inline", inline, 400, 400, "send", 64),
        all("SRQ", srq, 400, 400, "send", 4096),
        all("UD, each signaled", busy_ud, 1500, 1500, "send", 1024),
        both,
    ]
}

#[test]
fn known_requests_appear_numbered_in_order_and_with_their_ends() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("known work requests") else {
        return Ok(());
    };
    held("known work requests", known_requests)
}

fn known_requests(skips: &Skips) -> Result<()> {
    let mut program = Traffic::start("known-wrs", &["--count", "41", "--queued", "6"])?;
    program.ready()?;
    let trace = start(&[], &[])?;
    program.child.close_stdin();
    let said = program.finish()?;
    let traced = skips.stop(trace)?;
    let all = sum(&traced)?;
    ensure!((all.lost, all.filtered, all.sampled_out) == (0, 0, 0), "{all:?}");
    let qpn = id(&said, "qpn")?;
    let of = |qpn, kind| traced.events.qpn(qpn).kind(kind);
    let keys = ["wr_id", "opcode", "bytes", "signaled"];
    for kind in ["wr_post", "wr_done"] {
        let (seen, did) = (pick(&of(qpn, kind), &keys), list(&said, "posts")?);
        ensure!(seen == did, "{kind}: {seen:?}\nposted: {did:?}");
    }
    for event in of(qpn, "wr_done").all() {
        ensure!(event["wc_status"] == "success", "{event}");
        ensure!(event["dest_qpn"] == said["peer_qpn"], "{event}");
        ensure!(
            event["imm"].is_u64() == (event["opcode"] == "send_imm"),
            "{event}"
        );
    }
    let peer = id(&said, "peer_qpn")?;
    let (seen, did) = (
        pick(&of(peer, "wr_done"), &["wr_id", "bytes"]),
        list(&said, "receives")?,
    );
    ensure!(seen == did, "receives: {seen:?}\nof the program: {did:?}");
    let with_imm = of(peer, "wr_done").filter(|event| event["imm"].is_u64());
    ensure!(
        with_imm.integers("imm") == (0..=40).filter(|n| n % 4 == 2).collect(),
        "{with_imm:?}"
    );
    let flushed = of(id(&said, "flushed_qpn")?, "wr_done");
    ensure!(
        Value::from(pick(&flushed, &["wr_id"]).concat_ids()) == said["flushed"],
        "{flushed:?}"
    );
    for event in flushed.all() {
        ensure!(event["wc_status"] == "wr_flush_err", "{event}");
    }
    let destroyed = of(id(&said, "destroyed_qpn")?, "wr_done");
    ensure!(
        Value::from(pick(&destroyed, &["wr_id"]).concat_ids()) == said["destroyed"],
        "{destroyed:?}"
    );
    for event in destroyed.all() {
        ensure!(
            event["dropped"] == true && event["wc_status"].is_null(),
            "{event}"
        );
    }
    Ok(())
}

trait Ids {
    fn concat_ids(self) -> Vec<Value>;
}

impl Ids for Vec<Value> {
    fn concat_ids(self) -> Vec<Value> {
        self.into_iter().map(|one| one[0].clone()).collect()
    }
}

#[test]
fn filters_and_sampling_leave_out_what_they_should_and_count_it() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("filters of work requests") else {
        return Ok(());
    };
    held("filters of work requests", filtered_and_sampled)
}

fn filtered_and_sampled(skips: &Skips) -> Result<()> {
    let pair = || Perftest::new("ib_send_bw").args(&["-Q", "1"]);
    let run = |args: &[&str]| -> Result<(Traced, Sum)> {
        let trace = start(args, &[])?;
        pair().run()?;
        let traced = skips.stop(trace)?;
        let sum = sum(&traced)?;
        ensure!(sum.lost == 0, "{sum:?}");
        Ok((traced, sum))
    };
    let (traced, all) = run(&["--sample", "10"])?;
    let printed = |kind| traced.events.kind(kind).len();
    ensure!(
        (all.happened, printed("wr_post"), printed("wr_done")) == (3000, 100, 200),
        "{all:?}"
    );
    ensure!(all.sampled_out == 2700, "{all:?}");
    let (_, all) = run(&["--comm", "nobody"])?;
    ensure!(
        (all.happened, all.filtered, all.seen) == (3000, 3000, 0),
        "{all:?}"
    );
    let (_, all) = run(&["--comm", "ib_send_bw", "--device", DEVICE])?;
    ensure!((all.happened, all.seen) == (3000, 3000), "{all:?}");
    let (_, all) = run(&["--qpn", "1"])?;
    ensure!(all.filtered == all.happened && all.happened >= 3000, "{all:?}");
    let mut program = Traffic::start("known-wrs", &[])?;
    let ready = program.ready()?;
    let (pid, qpn) = (number(&ready, "pid")?.to_string(), id(&ready, "qpn")?.to_string());
    let trace = start(&["--pid", &pid, "--qpn", &qpn], &[])?;
    pair().run()?;
    program.child.close_stdin();
    let said = program.finish()?;
    let traced = skips.stop(trace)?;
    let all = sum(&traced)?;
    let posts = list(&said, "posts")?.len() as u64;
    ensure!(all.seen == 2 * posts, "{all:?}, {posts} posts");
    Ok(())
}

#[test]
fn a_device_that_comes_late_again_or_under_another_name_is_named() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests of devices that come late") else {
        return Ok(());
    };
    held("work requests of devices that come late", late_devices)
}

fn late_devices(skips: &Skips) -> Result<()> {
    const NAME: &str = "rxelate";
    const OTHER: &str = "rxelater";
    let rename = |from: &str, to: &str| output(Command::new("rdma").args(["dev", "set", from, "name", to]));
    let all = start(&[], &[])?;
    let run = |name: &str| {
        let pair = Perftest::new("ib_send_bw").args(&["-Q", "1"]).iterations(50);
        pair.devices(name, name).run()
    };
    let device = Device::add(NAME, 8)?;
    let of_one = start(&["--device", NAME], &[])?;
    run(NAME)?;
    device.add_again()?;
    run(NAME)?;
    rename(NAME, OTHER)?;
    let renamed = run(OTHER);
    rename(OTHER, NAME)?;
    renamed?;
    let (all, of_one) = (skips.stop(all)?, skips.stop(of_one)?);
    // Posts and ends of the client, and receives of the server.
    for (name, count) in [(NAME, 300), (OTHER, 150)] {
        let seen = all.events.filter(|event| event["device"] == name).len();
        ensure!(seen == count, "{seen} of {name}");
    }
    let (whole, one) = (sum(&all)?, sum(&of_one)?);
    ensure!((whole.happened, whole.seen) == (450, 450), "{whole:?}");
    ensure!(
        (one.happened, one.seen, one.filtered) == (450, 300, 150),
        "{one:?}"
    );
    ensure!(of_one.events.len() == 300, "{} of one", of_one.events.len());
    Ok(())
}

#[test]
fn each_end_of_a_broken_qp_is_there_or_counted() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests of broken QPs") else {
        return Ok(());
    };
    for attach in ["kprobe", "fentry"] {
        broken(attach).context(attach)?;
    }
    Ok(())
}

/// Nothing is tried again here: whatever the kernel skips is counted.
fn broken(attach: &str) -> Result<()> {
    let trace = start(&["--attach", attach], &[])?;
    // With the first side's sends that are flushed or dropped: twelve per life. On 7.2 a RESET may flush.
    let cases = [("flush", 36), ("reset", 36), ("destroy", 12)];
    let said = cases.map(|(case, dropped)| (traffic::run("broken-qps", &["--case", case]), dropped));
    let traced = trace.stop()?;
    let all = sum(&traced)?;
    let (mut happened, mut events) = (0, 0);
    for (said, dropped) in said {
        let said = said?;
        for (side, dropped) in [(&said["qp"], dropped), (&said["peer"], 0)] {
            let of = |key| number(side, key);
            let received = of("rx_ok")? + of("rx_flushed")?;
            happened += 2 * of("posted")? + received;
            let of_qp = traced.events.pid(u32::try_from(number(&said, "pid")?)?);
            let ends = of_qp.qpn(id(side, "qpn")?).kind("wr_done");
            let receives = ends.filter(|event| event["opcode"] == "recv").len() as u64;
            ensure!(
                receives <= received && received - receives <= all.lost,
                "{side}: {receives}"
            );
            for end in ends.all() {
                ensure!(
                    all.lost > 0 || end["dropped"] == true || end["wc_status"].is_string(),
                    "neither dropped nor with a status: {end}"
                );
            }
            let flushed = |event: &Value| event["wc_status"] == "wr_flush_err";
            let told = ends
                .filter(|event| event["opcode"] != "recv")
                .filter(|event| event["dropped"] == true || flushed(event))
                .len();
            ensure!(
                all.lost > 0 || told == dropped,
                "{told} of {dropped} dropped or flushed: {said}"
            );
            events += of_qp.qpn(id(side, "qpn")?).len() as u64;
        }
    }
    ensure!(all.happened == happened, "{happened} happened: {all:?}");
    ensure!(events == all.seen, "{events} events: {all:?}");
    Ok(())
}

#[test]
fn a_tiny_ring_at_full_rate_loses_many_and_counts_each() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("a tiny ring of work requests") else {
        return Ok(());
    };
    held("a tiny ring of work requests", tiny_ring)
}

/// While nobody reads, one process posts more than the ring buffer holds.
#[test]
fn while_its_reader_stands_still_a_flood_of_posts_loses_its_own_records() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("a flood of posts") else {
        return Ok(());
    };
    held("a flood of posts", |skips| beside_posts(&lab, skips))
}

fn beside_posts(lab: &Lab, skips: &Skips) -> Result<()> {
    let trace = start(&[], &[("RDMATOP_WR_RING_BYTES", "262144")])?;
    trace.child.signal(libc::SIGSTOP)?;
    let posts = |count: &str| -> Result<Value> {
        let posting = Traffic::start("timed-posts", &["--wait", "--count", count])?;
        let ready = posting.ready()?;
        posting.finish()?;
        Ok(ready)
    };
    let flood = posts("3000")?;
    let beside = posts("20")?;
    trace.child.signal(libc::SIGCONT)?;
    let traced = skips.stop(trace)?;
    let all = sum(&traced)?;
    ensure!(all.lost > 0, "there was room for all: nothing was tested");
    let own = traced.events.pid(id(&beside, "pid")?);
    let mut table = Table::default();
    for kind in ["wr_post", "wr_done"] {
        table.equal("neighbour", kind, 20, Some(own.kind(kind).len() as u64));
    }
    table.check(lab, "work requests beside a flood");
    let told = format!(
        "process `timed-posts` ({}): {} records were lost",
        flood["pid"], all.lost
    );
    ensure!(
        traced.stderr.iter().any(|line| line.contains(&told)),
        "no {told:?} in {:?}",
        traced.stderr
    );
    Ok(())
}

/// Twenty-five processes, each of which keeps to its share, leave nothing together: their user has a share
/// too.
#[test]
fn many_posters_of_one_user_lose_their_own_records_alone() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("many posters of one user") else {
        return Ok(());
    };
    held("many posters of one user", |skips| beside_many(&lab, skips))
}

fn beside_many(lab: &Lab, skips: &Skips) -> Result<()> {
    let trace = start(&[], &[("RDMATOP_WR_RING_BYTES", "1048576")])?;
    trace.child.signal(libc::SIGSTOP)?;
    // Five at a time, which is enough: what they leave in the buffer stays, as nobody reads it.
    let script = "for lap in 1 2 3 4 5; do for n in 1 2 3 4 5; do \"$0\" --count 400 & done; wait; done";
    let mut command = Command::new("prlimit");
    command
        .args(["--memlock=unlimited", "setpriv", "--reuid=65534", "--regid=65534"])
        .args(["--clear-groups", "sh", "-c", script])
        .arg(traffic::path("timed-posts")?);
    let mut many = Child::spawn(&mut command)?;
    many.succeed(END * 2)?;
    let done = many.out.all().len();
    ensure!(done == 25, "{done} ended: {}", many.err.text());
    let neighbour = Traffic::start("timed-posts", &["--wait", "--count", "20"])?;
    let beside = neighbour.ready()?;
    neighbour.finish()?;
    trace.child.signal(libc::SIGCONT)?;
    let traced = skips.stop(trace)?;
    let all = sum(&traced)?;
    say(&format!("25 posters: {all:?}"));
    // A post and an end of each WRITE.
    ensure!(all.happened == 2 * (25 * 400 + 20), "{all:?}");
    ensure!(all.lost > 0, "there was room for all: nothing was tested");
    let own = traced.events.pid(id(&beside, "pid")?);
    let mut table = Table::default();
    for kind in ["wr_post", "wr_done"] {
        table.equal("neighbour", kind, 20, Some(own.kind(kind).len() as u64));
    }
    table.check(lab, "work requests beside many posters of another user");
    Ok(())
}

fn tiny_ring(skips: &Skips) -> Result<()> {
    let tiny = [("RDMATOP_WR_RING_BYTES", "4096")];
    let trace = Trace::start_with(&["--event", "wr,qp"], &tiny)?;
    let args = ["-Q", "1", "-q", "4"];
    let accounts = Perftest::new("ib_send_bw")
        .size(64)
        .args(&args)
        .iterations(2000)
        .run()?;
    let traced = skips.stop(trace)?;
    let all = sum(&traced)?;
    ensure!(
        all.happened == 3 * accounts.client.iterations,
        "{all:?}, {accounts:?}"
    );
    ensure!(all.lost > 0, "4 KiB were enough: nothing about loss was tested");
    let told: u64 = traced.events.kind("lost").sum("count")?;
    ensure!(told == all.lost, "{told} in events of loss, {all:?}");
    // Lost events of work requests displace no event of a QP.
    let mut lives: BTreeMap<u64, usize> = BTreeMap::new();
    for event in traced.events.kind("qp_create").all() {
        *lives.entry(event["qpn"].as_u64().context("no qpn")?).or_default() += 1;
    }
    let ends = traced.events.kind("qp_destroy").integers("qpn").len();
    ensure!(lives.len() >= 8 && ends >= 8, "{lives:?}, {ends}");
    Ok(())
}

#[test]
fn what_the_kernel_skips_is_found_again_or_counted() -> Result<()> {
    let name = "skipped programs of work requests";
    let Some(lab) = Lab::enter_data_path(name) else {
        return Ok(());
    };
    if lab.release.starts_with("6.1.") {
        lab::skip(name, "Linux before 6.7 does not count what it skips");
        return Ok(());
    }
    let Some(_preempted) = Preemption::full(name)? else {
        return Ok(());
    };
    let trace = start(&[], &[])?;
    let reader = Traffic::start("map-reader", &[])?;
    reader.ready()?;
    // Rings that do not wrap while the CPU runs no program, because nobody would see such a wrap.
    let args = ["-Q", "1", "-t", "2048", "-r", "2048"];
    let traffic = Perftest::new("ib_send_bw").size(64).iterations(20_000);
    let traffic = traffic.args(&args);
    // Repeated if the scheduler let the reader delay no program at the wrong moment.
    let mut n = 0;
    loop {
        traffic.run()?;
        n += 20_000;
        let skipped = kernel::skipped_programs(trace.child.pid()).unwrap_or_default();
        if skipped.get("wr_cq_post").is_some_and(|misses| *misses > 10) {
            break;
        }
        ensure!(n < 200_000, "of {n} work requests: {skipped:?}");
    }
    reader.finish()?;
    let traced = trace.stop()?;
    let all = sum(&traced)?;
    // The number of unseen requests is a bound: if the completion of a request was skipped just before its QP
    // ended, its event exists too.
    ensure!(
        (3 * n..=3 * n + all.lost).contains(&all.happened),
        "{all:?} of {}",
        3 * n
    );
    let posts = traced.events.kind("wr_post").len() as u64;
    ensure!(posts <= n && posts + all.lost >= n, "{posts} posts, {all:?}");
    Ok(())
}

#[test]
fn a_request_whose_completion_finds_no_room_says_so() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests and a full CQ") else {
        return Ok(());
    };
    held("work requests and a full CQ", without_room)
}

fn without_room(skips: &Skips) -> Result<()> {
    let trace = start(&[], &[])?;
    let said = traffic::run("cq-overflow", &["--extra", "20"])?;
    let traced = skips.stop(trace)?;
    let ends = traced.events.qpn(id(&said, "qpn")?).kind("wr_done");
    let full = ends.filter(|event| event["cq_full"] == true).len() as u64;
    let (posted, polled) = (number(&said, "posted")?, number(&said, "polled")?);
    ensure!(ends.len() as u64 == posted, "{} ends of {posted}", ends.len());
    ensure!(full == posted - polled, "{full} without room; {said}");
    sum(&traced).map(drop)
}

#[test]
fn without_being_asked_for_none_of_their_programs_is_there() -> Result<()> {
    let Some(_lab) = Lab::enter("no work requests") else {
        return Ok(());
    };
    let trace = Trace::start_with(&[], &[])?;
    Perftest::new("ib_send_bw").run()?;
    let traced = trace.stop()?;
    let work = traced.events.filter(|event| {
        event["event"]
            .as_str()
            .is_some_and(|kind| kind.starts_with("wr_"))
    });
    ensure!(work.is_empty() && !traced.events.is_empty(), "{work:?}");
    ensure!(
        !traced.stderr.iter().any(|line| line.contains("work requests")),
        "{:?}",
        traced.stderr
    );
    Ok(())
}
