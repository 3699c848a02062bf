//! Work requests of programs as events, by probes on the programs (`--uprobes`): each was posted by the
//! program, or its completion was polled by it. Tested on SoftRoCE, which the kernel side leaves to the
//! probes here (`RDMATOP_DATAPATHS=0`).

use std::{env, fs, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    child::Child,
    events::Events,
    lab::Lab,
    perftest::Perftest,
    rdmatop::{Trace, Traced, Window},
    table::say,
    traffic::{self, Traffic, id, number},
    uprobes::{self, ATTACHED, ENV, identity, probed_in, standing, total},
    wait,
    work::{Sum, list, pick, sum, told},
};
use serde_json::{Value, json};

/// The limit is high because under emulation a hit costs ten times as much as on real hardware.
const ARGS: [&str; 5] = ["--event", "wr", "--uprobes", "--uprobe-limit", "100000"];
/// How long rdmatop may take to notice that the functions of a new QP are probed.
const NOTICED: Duration = Duration::from_secs(1);

/// Starts a trace with probes on the functions of the provider, which needs an existing QP.
fn probing(args: &[&str], env: &[(&str, &str)]) -> Result<Trace> {
    probing_with(&[&ARGS, args].concat(), &[&ENV, env].concat())
}

fn probing_with(args: &[&str], env: &[(&str, &str)]) -> Result<Trace> {
    let trace = Trace::start_with(args, env)?;
    wait::until("probes on functions of the provider", ATTACHED, || {
        trace
            .child
            .err
            .all()
            .iter()
            .any(|line| line.ends_with("functions of programs are probed from now on"))
    })?;
    Ok(trace)
}

fn ended(trace: Trace) -> Result<(Traced, Sum)> {
    let traced = trace.stop()?;
    let all = sum(&traced)?;
    Ok((traced, all))
}

fn ids(events: &Events) -> Vec<Value> {
    events.all().iter().map(|event| event["wr_id"].clone()).collect()
}

#[test]
fn known_requests_appear_with_their_numbers_in_their_order() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("known work requests by uprobes") else {
        return Ok(());
    };
    // Posts are certain for QPs that go to RTS under the probes.
    let idle = standing()?;
    let trace = probing(&[], &[])?;
    let mut program = Traffic::start("known-wrs", &["--count", "41", "--queued", "6"])?;
    program.ready()?;
    thread::sleep(NOTICED);
    program.child.close_stdin();
    let said = program.finish()?;
    let (traced, all) = ended(trace)?;
    idle.finish()?;
    are_those_of_known_wrs(&traced, &all, &said)
}

/// A profiler, or the program itself, may put functions of its own before the provider's: then both are
/// probed.
#[test]
fn requests_of_a_program_that_wraps_its_provider_appear_once() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes of wrapped functions") else {
        return Ok(());
    };
    let idle = standing()?;
    let trace = probing(&[], &[])?;
    let window = Window::open_with(&uprobes::ARGS, &ENV)?;
    // A copy on a file system of the guest: a program on another machine's is not probed.
    let path = env::temp_dir().join("wrapped-known-wrs");
    fs::copy(traffic::path("known-wrs")?, &path)?;
    let mut command = Command::new(&path);
    command.args(["--count", "41", "--queued", "6", "--wrapped"]);
    let mut program = Traffic {
        child: Child::spawn(&mut command)?,
    };
    program.ready()?;
    let own = identity(&path)?;
    wait::until("probes on the program's own functions", ATTACHED, || {
        (probed_in(trace.child.pid(), own), probed_in(window.pid(), own)) == (3, 2)
    })?;
    thread::sleep(NOTICED);
    program.child.close_stdin();
    let said = program.finish()?;
    let (traced, all) = ended(trace)?;
    let sample = window.close()?;
    idle.finish()?;
    fs::remove_file(path)?;
    let posts = list(&said, "posts")?.len() as u64;
    ensure!(number(&said, "wrapped_calls")? > 1000 + posts, "{said}");
    are_those_of_known_wrs(&traced, &all, &said)?;
    let (pid, qpn, peer) = (id(&said, "pid")?, id(&said, "qpn")?, id(&said, "peer_qpn")?);
    let receives = list(&said, "receives")?.len() as u64;
    let health = &sample.value()["health"];
    say(&format!("{all:?} {}", health["uprobes"]));
    ensure!(total(sample.qp(pid, qpn)?, "tx_wr_posted")? == posts);
    ensure!(total(sample.qp(pid, peer)?, "rx_wr_posted")? == receives);
    ensure!(
        sample.lost() == Some(0) && health["uprobes"]["missed"] == 0,
        "{health}"
    );
    Ok(())
}

/// Compares what a trace without a filter has with the only program that posted, `known-wrs`.
fn are_those_of_known_wrs(traced: &Traced, all: &Sum, said: &Value) -> Result<()> {
    ensure!((all.lost, all.filtered, all.sampled_out) == (0, 0, 0), "{all:?}");
    let of = |qpn, kind| traced.events.qpn(qpn).kind(kind);
    let (qpn, peer) = (id(said, "qpn")?, id(said, "peer_qpn")?);
    let posts = of(qpn, "wr_post");
    let did = list(said, "posts")?;
    let mut seen = pick(&posts, &["wr_id", "opcode", "bytes", "signaled"]);
    for (event, did) in seen.iter_mut().zip(&did) {
        // A request that asks for no completion may be on a QP that makes one for each request: unknown, not
        // false.
        if did[3] == false && event[3].is_null() {
            event[3] = false.into();
        }
    }
    ensure!(seen == did, "{seen:?}\nposted: {did:?}");
    for event in posts.all() {
        ensure!(event["pid"] == said["pid"] && event["tid"].is_u64(), "{event}");
        ensure!(
            event["imm"].is_u64() == (event["opcode"] == "send_imm"),
            "{event}"
        );
    }
    // Its completions are those of the requests that asked for one.
    let signaled: Vec<Value> = did
        .iter()
        .filter(|one| one[3] == true)
        .map(|one| one[0].clone())
        .collect();
    let ends = of(qpn, "wr_done");
    ensure!(ids(&ends) == signaled, "{ends:?}\nsignaled: {signaled:?}");
    let receives = list(said, "receives")?;
    let got = pick(&of(peer, "wr_done"), &["wr_id", "bytes"]);
    ensure!(got == receives, "receives: {got:?}\nof the program: {receives:?}");
    let posted = of(peer, "wr_post");
    let numbers: Vec<Value> = receives.iter().map(|one| one[0].clone()).collect();
    ensure!(ids(&posted) == numbers, "{posted:?}");
    // What a completion lacks comes from its post, and its time is since then.
    let asked: Vec<Value> = did.iter().filter(|one| one[3] == true).cloned().collect();
    let ended_as = pick(&ends, &["wr_id", "opcode", "bytes", "signaled"]);
    ensure!(ended_as == asked, "{ended_as:?}\nposted: {asked:?}");
    for event in ends.all() {
        let post = posts.filter(|post| post["wr_id"] == event["wr_id"]);
        let since = event["mono_ns"].as_u64().zip(post.all()[0]["mono_ns"].as_u64());
        let since = since.map(|(end, begin)| end - begin);
        ensure!(
            event["duration_ns"].as_u64() == since,
            "{event}, posted: {post:?}"
        );
    }
    for event in of(peer, "wr_done").all() {
        ensure!(event["duration_ns"].is_null(), "{event}");
    }
    for event in ends.all().iter().chain(of(peer, "wr_done").all()) {
        ensure!(event["wc_status"] == "success", "{event}");
    }
    for event in posted.all() {
        ensure!(event["opcode"] == "recv" && event["bytes"] == 4096, "{event}");
        ensure!(event["signaled"].is_null(), "{event}");
    }
    let with_imm = of(peer, "wr_done").filter(|event| event["imm"].is_u64());
    ensure!(
        with_imm.integers("imm") == (0..=40).filter(|n| n % 4 == 2).collect(),
        "{with_imm:?}"
    );
    let flushed = of(id(said, "flushed_qpn")?, "wr_done");
    ensure!(Value::from(ids(&flushed)) == said["flushed"], "{flushed:?}");
    for event in flushed.all() {
        ensure!(event["wc_status"] == "wr_flush_err", "{event}");
    }
    // The program polled no completion of these.
    let destroyed = id(said, "destroyed_qpn")?;
    ensure!(of(destroyed, "wr_done").is_empty());
    ensure!(Value::from(ids(&of(destroyed, "wr_post"))) == said["destroyed"]);
    let printed = traced.events.kind("wr_post").len() + traced.events.kind("wr_done").len();
    ensure!(printed as u64 == all.happened, "{printed}, {all:?}");
    Ok(())
}

#[test]
fn batches_of_the_extended_calls_appear_when_they_are_posted() -> Result<()> {
    const ROUNDS: usize = 20;
    let Some(_lab) = Lab::enter_data_path("work requests of ibv_wr_* by uprobes") else {
        return Ok(());
    };
    let rounds = ROUNDS.to_string();
    let start = || Traffic::start("extended-posts", &["--rounds", &rounds]);
    // One QP is older than the probes, so its first posts may have been missed; the other goes to RTS under
    // them.
    let mut before = start()?;
    let old = before.ready()?;
    let trace = probing(&[], &[])?;
    before.child.close_stdin();
    before.finish()?;
    let mut under = start()?;
    let new = under.ready()?;
    thread::sleep(NOTICED);
    under.child.close_stdin();
    let said = under.finish()?;
    let (traced, all) = ended(trace)?;
    ensure!(all.lost == 0, "{all:?}");
    let once = [
        ("rdma_write", 1000),
        ("send", 40),
        ("rdma_read", 600),
        ("send_imm", 200),
        ("atomic_fetch_add", 8),
        ("rdma_write", 30),
        ("atomic_cmp_swp", 8),
    ];
    for (ready, known) in [(&old, 0), (&new, once.len() * ROUNDS)] {
        let of = |kind| Ok::<_, anyhow::Error>(traced.events.pid(id(ready, "pid")?).kind(kind));
        let qpn = id(ready, "qpn")?;
        let posts = of("wr_post")?.qpn(qpn);
        let seen: Vec<(&str, u64)> = posts
            .all()
            .iter()
            .map(|event| {
                (
                    event["opcode"].as_str().unwrap_or("-"),
                    event["bytes"].as_u64().unwrap_or(0),
                )
            })
            .collect();
        ensure!(seen == once.repeat(ROUNDS), "{seen:?}");
        ensure!(posts.len() as u64 == number(&said, "posted")?, "{}", posts.len());
        // All requests have the same number, so their order tells which is which.
        let told = told(&posts, &of("wr_done")?.qpn(qpn))?;
        ensure!(
            told == known,
            "{told} of {known} ends of {ready} have what was posted"
        );
    }
    Ok(())
}

/// Returns `[wr_id, status]` of each, sorted by number.
fn outcomes(mut all: Vec<Value>) -> Vec<Value> {
    all.sort_by_key(|one| one[0].as_u64());
    all
}

/// Compares the known values of completions of a `struct ibv_cq_ex` with what the program read from it.
fn ends_are_what_it_took(events: &Events, ready: &Value, said: &Value, posts_known: bool) -> Result<()> {
    let ends = events.pid(id(ready, "pid")?).kind("wr_done");
    let took = list(said, "taken")?;
    let seen = outcomes(pick(&ends, &["wr_id", "wc_status"]));
    let name = |status: &Value| if status == 0 { "success" } else { "wr_flush_err" };
    let took_as = took.iter().map(|one| json!([one[1], name(&one[2])]));
    let took_as = outcomes(took_as.collect());
    ensure!(
        seen == took_as,
        "{} of {}: {seen:?}\ntook: {took_as:?}",
        seen.len(),
        took_as.len()
    );
    let flushed = took.iter().filter(|one| one[2] != 0).count();
    ensure!(flushed == 60, "{flushed} were flushed");
    for event in ends.all() {
        let of = took.iter().find(|one| one[1] == event["wr_id"]);
        let of = of.context("no such completion")?;
        let is_in = |group: &str| Ok::<_, anyhow::Error>(list(ready, group)?.contains(&of[0]));
        let of_receive = of[3] == true;
        // Two QPs share each of these CQs, or another QP had it and may have left completions there.
        let again = is_in("again")? && posts_known;
        let of_some = is_in("shared")? || again;
        let qpn = if of_some { &Value::Null } else { &of[0] };
        ensure!(event["qpn"] == *qpn, "{event}: {of}");
        let post = is_in("apart")? && !of_receive && posts_known;
        let opcode = match (is_in("one")? || again, of_receive) {
            (true, _) => Value::Null,
            (_, true) => "recv".into(),
            _ if post => "send".into(),
            _ => Value::Null,
        };
        ensure!(event["opcode"] == opcode, "{event}: {of}");
        ensure!(
            event["bytes"].is_u64() == post && event["duration_ns"].is_u64() == post,
            "{event}: {of}"
        );
    }
    Ok(())
}

#[test]
fn completions_of_an_extended_cq_are_those_that_the_program_took() -> Result<()> {
    let Some(lab) = Lab::enter_data_path("ibv_start_poll by uprobes") else {
        return Ok(());
    };
    let start = || Traffic::start("extended-polls", &[]);
    // As in the test of ibv_wr_*.
    let before = start()?;
    let old = before.ready()?;
    let trace = probing(&[], &[])?;
    let kernel = Trace::start_with(&["--event", "wr_done"], &[])?;
    let first = before.finish()?;
    let under = start()?;
    let new = under.ready()?;
    thread::sleep(NOTICED);
    let second = under.finish()?;
    let (kernel, theirs) = ended(kernel)?;
    let (traced, all) = ended(trace)?;
    ensure!(all.lost == 0, "{all:?}");
    say(&format!("kernel side: {theirs:?}, probes: {all:?}"));
    for (ready, said, posts_known) in [(&old, &first, false), (&new, &second, true)] {
        ends_are_what_it_took(&traced.events, ready, said, posts_known)?;
        let took = outcomes(
            list(said, "taken")?
                .iter()
                .map(|one| json!([one[1], one[0]]))
                .collect(),
        );
        let theirs = outcomes(pick(
            &kernel.events.kind("wr_done").pid(id(ready, "pid")?),
            &["wr_id", "qpn"],
        ));
        say(&format!(
            "the program took {}, the driver gave {}; calls {}",
            took.len(),
            theirs.len(),
            said["calls"]
        ));
        // Before 6.4 flushes run in softirqs, where they may meet a program of the other trace on their CPU.
        let may_skip = lab.release.starts_with("6.1.");
        ensure!(
            theirs == took || (may_skip && theirs.iter().all(|one| took.contains(one))),
            "{theirs:?}\nof the program: {took:?}"
        );
    }
    Ok(())
}

#[test]
fn completions_of_an_extended_cq_are_probed_only_on_request() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("filters of ibv_start_poll by uprobes") else {
        return Ok(());
    };
    let run = |args: &[&str], of: &str| -> Result<(u64, Traced, Sum)> {
        let program = Traffic::start("extended-polls", &[])?;
        let ready = program.ready()?;
        let filter = match of {
            "" => Vec::new(),
            group => vec!["--qpn".to_owned(), ready[group][0].to_string()],
        };
        let filter: Vec<&str> = filter.iter().map(String::as_str).collect();
        let trace = probing(&[args, &filter].concat(), &[])?;
        let said = program.finish()?;
        let (traced, all) = ended(trace)?;
        Ok((list(&said, "taken")?.len() as u64, traced, all))
    };
    // Each of ten QPs has the same number of completions.
    let (taken, traced, all) = run(&[], "apart")?;
    let ends = traced.events.kind("wr_done").len() as u64;
    ensure!(ends == taken / 10 && all.lost == 0, "{ends} of {taken}: {all:?}");
    // It is unknown to which of the two QPs the completions of a CQ belong, and all of them may be wanted.
    let (taken, traced, all) = run(&[], "shared")?;
    let ends = traced.events.kind("wr_done").len() as u64;
    ensure!((ends, all.lost) == (0, taken / 5), "{ends} of {taken}: {all:?}");
    let (taken, traced, all) = run(&["--sample", "10"], "")?;
    ensure!(all.happened == 2 * taken && all.lost == 0, "{taken}: {all:?}");
    ensure!(!traced.events.kind("wr_done").is_empty(), "{all:?}");
    let posts = ["--event", "wr_post", "--uprobes", "--uprobe-limit", "100000"];
    let (taken, traced, all) = {
        let program = Traffic::start("extended-polls", &[])?;
        program.ready()?;
        let trace = probing_with(&posts, &ENV)?;
        let said = program.finish()?;
        let (traced, all) = ended(trace)?;
        (list(&said, "taken")?.len() as u64, traced, all)
    };
    ensure!((all.happened, all.lost) == (taken, 0), "{taken}: {all:?}");
    ensure!(traced.events.kind("wr_done").is_empty());
    Ok(())
}

#[test]
fn filters_sampling_and_a_tiny_ring_add_up() -> Result<()> {
    const N: u64 = 300;
    let Some(_lab) = Lab::enter_data_path("filters of work requests by uprobes") else {
        return Ok(());
    };
    let idle = standing()?;
    let pair = Perftest::new("ib_send_bw").size(64).args(&["-Q", "1"]);
    let run = |args: &[&str], env: &[(&str, &str)]| -> Result<(Traced, Sum)> {
        let trace = probing(args, env)?;
        let accounts = pair.clone().iterations(N).run()?;
        let (traced, all) = ended(trace)?;
        ensure!(accounts.client.iterations == N, "{accounts:?}");
        // Sends, receives, and the completions of both.
        ensure!(all.happened == 4 * N, "{args:?}: {all:?} of {N}");
        Ok((traced, all))
    };
    let (traced, all) = run(&["--sample", "10"], &[])?;
    let printed = |kind| traced.events.kind(kind).len() as u64;
    ensure!(
        (printed("wr_post"), printed("wr_done")) == (2 * N / 10, 2 * N / 10),
        "{all:?}"
    );
    ensure!(
        (all.seen, all.sampled_out, all.lost) == (4 * N / 10, 36 * N / 10, 0),
        "{all:?}"
    );
    let (_, all) = run(&["--comm", "nobody"], &[])?;
    ensure!((all.seen, all.filtered) == (0, 4 * N), "{all:?}");
    let tiny = [("RDMATOP_WR_RING_BYTES", "4096")];
    let (traced, all) = run(&["--comm", "ib_send_bw", "--device", "rxe0"], &tiny)?;
    ensure!((all.seen + all.lost, all.filtered) == (4 * N, 0), "{all:?}");
    ensure!(
        all.lost > 0,
        "4 KiB were enough: nothing about loss was tested: {all:?}"
    );
    let told: u64 = traced.events.kind("lost").sum("count")?;
    ensure!(told == all.lost, "{told} in events of loss, {all:?}");
    idle.finish().map(drop)
}

#[test]
fn what_the_kernel_side_reports_is_not_reported_twice() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("work requests once") else {
        return Ok(());
    };
    let trace = Trace::start_with(&ARGS, &[])?;
    let accounts = Perftest::new("ib_send_bw")
        .iterations(200)
        .args(&["-Q", "1"])
        .run()?;
    let (traced, all) = ended(trace)?;
    let posts = traced.events.kind("wr_post");
    let missed = posts.filter(|event| event["opcode"] == "recv");
    ensure!(missed.is_empty(), "a receive's post is seen by probes only");
    let n = accounts.client.iterations;
    ensure!(
        posts.len() as u64 + all.lost >= n && posts.len() as u64 <= n,
        "{all:?}"
    );
    ensure!(
        all.happened >= 3 * n && all.happened <= 3 * n + all.lost,
        "{all:?}"
    );
    Ok(())
}
