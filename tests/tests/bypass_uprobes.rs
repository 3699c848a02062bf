//! `--uprobes` on a NIC to which programs post without entering the kernel (`cargo xtask lab --nic pvrdma`):
//! what probes count is what the programs report.

use std::time::Duration;

use anyhow::{Result, ensure};
use rdmatop_tests::{
    kernel,
    perftest::{Account, Perftest},
    pvrdma::{DEVICE, enter},
    rdmatop::{END, Trace, Window},
    screen::{self, Screen},
    snapshot::Row,
    traffic::{Traffic, id},
    uprobes::probed,
    wait::{self, PATIENCE},
    work::{sum, told},
};

/// The driver's library.
const LIBRARY: &str = "libvmw_pvrdma";

fn total(row: Row<'_>, key: &str) -> Option<u64> {
    row.field(key)["total"].as_u64()
}

#[test]
fn posts_that_bypass_the_kernel_are_counted_as_the_program_counts_them() -> Result<()> {
    let Some(_lab) = enter("uprobes on pvrdma") else {
        return Ok(());
    };
    let window = Window::open(&["--uprobes", "--uprobe-limit", "100000"])?;
    // -Q 1: this device also completes requests that ask for no completion, and perftest would count these.
    let pair = Perftest::new("ib_send_bw")
        .devices(DEVICE, DEVICE)
        .args(&["-x", "0", "-Q", "1"]);
    // rdmatop finds the library with the first pair; its probes are attached before the second pair posts.
    let first = pair.start()?;
    std::thread::sleep(Duration::from_secs(10));
    let early = first.finish()?;
    let accounts = pair.clone().iterations(1500).run()?;
    let lists = pair.args(&["-l", "4", "-q", "2"]).run()?;
    let sample = window.close()?;
    let sums = |side: &Account| -> Result<[u64; 3]> {
        let mut sums = [0; 3];
        for qpn in &side.qpns {
            let row = sample.qp(side.pid, *qpn)?;
            ensure!(!row.is("since_attach") && !row.is("uncounted"), "{row:?}");
            for (sum, key) in sums.iter_mut().zip(["tx_wr_posted", "tx_bytes", "rx_wr_posted"]) {
                ensure!(row.field(key)["source"] == "uprobe", "{key}: {row:?}");
                *sum += total(row, key).unwrap_or(0);
            }
        }
        Ok(sums)
    };
    for (name, run) in [("one by one", &accounts), ("lists", &lists)] {
        let (client, server) = (sums(&run.client)?, sums(&run.server)?);
        let count = run.client.iterations;
        println!(
            "{name}: client {client:?}, server {server:?}, perftest {count} of {} bytes",
            run.client.size
        );
        ensure!(
            client[0] == count && client[1] == count * run.client.size,
            "{name}"
        );
        // A receiver posts one receive per message, which includes those that fill its queue.
        ensure!(server == [0, 0, count], "{name}");
    }
    for side in [&early.client, &early.server] {
        for qpn in &side.qpns {
            let row = sample.qp(side.pid, *qpn)?;
            // The QP was gone before its library was known, or was counted from then on, or from its first
            // post on. A partial count must never be shown as the whole.
            let sent = total(row, "tx_wr_posted");
            let whole = side != &early.client || sent == Some(side.iterations);
            ensure!(sent.is_none() || row.is("since_attach") || whole, "{row:?}");
        }
    }
    println!("{}", sample.value()["health"]["uprobes"]);
    Ok(())
}

#[test]
fn posts_that_bypass_the_kernel_are_events_one_by_one() -> Result<()> {
    let Some(_lab) = enter("work requests of pvrdma") else {
        return Ok(());
    };
    let plain = Trace::start(&["--event", "wr"])?.stop()?;
    let line = format!(
        "no work requests of {DEVICE}: programs post to it without entering the kernel; on Linux 5.17"
    );
    let says = plain.stderr.iter().any(|said| said.contains(&line));
    ensure!(says && plain.events.is_empty(), "{plain:?}");
    let args = ["--event", "wr", "--uprobes", "--uprobe-limit", "100000"];
    let trace = Trace::start(&args)?;
    let pair = Perftest::new("ib_send_bw")
        .devices(DEVICE, DEVICE)
        .args(&["-x", "0", "-Q", "1"]);
    // rdmatop finds the library with the first of these pairs.
    let first = pair.clone().iterations(200).start()?;
    wait::until("probes on the provider", PATIENCE, || {
        let said = trace.child.err.all();
        said.iter()
            .any(|line| line.ends_with("functions of programs are probed from now on"))
    })?;
    first.finish()?;
    // Only 20 ms or more after a QP's creation is it known that its functions are probed; until then its
    // completions come without their posts. So many requests take ten times as long.
    let run = pair.iterations(4000).args(&["-l", "4", "-q", "2"]).run()?;
    let traced = trace.stop()?;
    let all = sum(&traced)?;
    ensure!((all.lost, all.filtered, all.sampled_out) == (0, 0, 0), "{all:?}");
    let count = run.client.iterations;
    let of = |side: &Account, kind, receives: bool| {
        let events = traced.events.pid(side.pid).kind(kind);
        events.filter(|event| (event["opcode"] == "recv") == receives)
    };
    let posts = of(&run.client, "wr_post", false);
    ensure!(posts.len() as u64 == count, "{} posts of {count}", posts.len());
    ensure!(posts.sum("bytes")? == count * run.client.size);
    for event in posts.all() {
        ensure!(event["opcode"] == "send" && event["device"] == DEVICE, "{event}");
        ensure!(event["signaled"] == true && event["tid"].is_u64(), "{event}");
        ensure!(event["dest_qpn"].is_u64() && event["wr_id"].is_u64(), "{event}");
    }
    let ends = of(&run.client, "wr_done", false);
    ensure!(ends.len() as u64 == count, "{} ends of {count}", ends.len());
    for qpn in &run.client.qpns {
        // perftest's `wr_id` tells only the QP, so the order tells which request is which.
        let known = told(&posts.qpn(*qpn), &ends.qpn(*qpn))?;
        println!("QP {qpn}: {known} ends have what was posted");
        ensure!(known > 0);
    }
    let taken = of(&run.server, "wr_done", true);
    ensure!(taken.len() as u64 == count, "{} receives of {count}", taken.len());
    ensure!(taken.sum("bytes")? == count * run.client.size);
    let offered = of(&run.server, "wr_post", true);
    ensure!(
        offered.len() as u64 == count,
        "{} receives posted of {count}",
        offered.len()
    );
    for event in ends.all().iter().chain(taken.all()) {
        ensure!(event["wc_status"] == "success", "{event}");
    }
    println!("{all:?} of {count}");
    Ok(())
}

#[test]
fn a_key_counts_the_posts_of_one_process_until_it_is_pressed_again() -> Result<()> {
    const POSTS: u64 = 400;
    let Some(_lab) = enter("probes by a key on pvrdma") else {
        return Ok(());
    };
    // Both programs do the same, so that counts of the probed one cannot be taken for the other's.
    let count = POSTS.to_string();
    let args = [
        "--device", DEVICE, "--op", "send", "--count", &count, "--wait", "--hold",
    ];
    let (mut mine, mut other) = (
        Traffic::start("timed-posts", &args)?,
        Traffic::start("timed-posts", &args)?,
    );
    let (pid, others) = (id(&mine.ready()?, "pid")?, id(&other.ready()?, "pid")?);
    let _screen = Screen::open_with("key", "--uprobe-limit 100000")?;
    let view = Screen::pid()?;
    Screen::once("the live view with its programs", END, |text| {
        text.contains("eBPF on") && text.contains("timed-posts")
    })?;
    let before = kernel::bpf_programs()?;
    ensure!(probed(view, LIBRARY) == 0, "nobody has asked for probes");
    Screen::keys(&["1", "f"])?;
    Screen::keys(&[&format!("pid:{pid}"), "Enter"])?;
    Screen::once("the row of the process alone", END, |text| {
        text.contains(&format!("{pid}")) && !text.contains(&format!(" {others} "))
    })?;
    Screen::keys(&["U"])?;
    Screen::once("that there are probes, and whose", END, |text| {
        text.contains(&format!("uprobes on {pid} "))
    })?;
    wait::until("probes on post_send and post_recv", PATIENCE, || {
        probed(view, LIBRARY) == 2
    })?;
    // The probes are attached first, and then the kernel side is told.
    std::thread::sleep(Duration::from_secs(2));
    for program in [&mut mine, &mut other] {
        program.child.tell("go")?;
        let done = |line: &str| line.contains("\"count\"");
        program.child.out.wait_for("its own count", PATIENCE, done)?;
    }
    Screen::keys(&["Enter"])?;
    let shown = Screen::once("what the process has posted", END, |text| {
        screen::total(text, "send WRs posted") == Some(POSTS)
    })?;
    println!("{shown}");
    let line = shown.lines().find(|line| line.starts_with("send WRs posted"));
    ensure!(line.is_some_and(|line| line.ends_with("uprobe")), "{shown}");
    ensure!(
        screen::total(&shown, "receive WRs posted") == Some(POSTS),
        "its other QP posts the receives:\n{shown}"
    );
    ensure!(shown.contains(" of a core"), "what they cost:\n{shown}");
    Screen::keys(&["U"])?;
    let begun = std::time::Instant::now();
    Screen::once("an answer", END, |text| text.contains("the probes are removed"))?;
    println!("the view answered after {:?}", begun.elapsed());
    Screen::once("no counts and no probes", END, |text| {
        screen::total(text, "send WRs posted").is_none() && !text.contains("uprobes on")
    })?;
    wait::until("the end of the probes", PATIENCE, || {
        probed(view, LIBRARY) == 0 && kernel::bpf_programs().is_ok_and(|now| now == before)
    })?;
    // Once more; then the probes must end with their process.
    Screen::keys(&["U"])?;
    wait::until("probes again", PATIENCE, || probed(view, LIBRARY) == 2)?;
    mine.finish()?;
    wait::until("the end of the probes with the process", PATIENCE, || {
        probed(view, LIBRARY) == 0 && kernel::bpf_programs().is_ok_and(|now| now == before)
    })?;
    other.finish()?;
    Screen::leave()
}
