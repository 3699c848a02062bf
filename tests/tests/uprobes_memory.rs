//! `--uprobes --uprobes-memory`: once the word is found in which a provider counts posts, the probes go, and what is read from the
//! program's memory is what the kernel counts and what perftest says it did.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    perftest::{HANDSHAKE, Pair, Perftest},
    rdmatop::{END, Window},
    screen::{self, Screen},
    siw::{self, Siw},
    snapshot::Snapshot,
    table::say,
    traffic::{Traffic, id},
    uprobes::{ENV, probed, total},
    wait::{self, PATIENCE},
    work::list,
};
use serde_json::Value;

const ARGS: [&str; 4] = ["--uprobes", "--uprobes-memory", "--uprobe-limit", "100000"];
/// An index that wraps at the size of a ring has to be told from a count, which takes more than 65 536 of them. So many come until
/// then, and so many after it.
const POSTS: u64 = 160_000;

/// Starts a pair. Now and then one does not get through perftest's handshake with siw, also without rdmatop.
fn connect(perftest: &Perftest) -> Result<Pair> {
    for _ in 0..2 {
        let pair = perftest.start()?;
        match pair.connected_within(HANDSHAKE) {
            Ok(()) => return Ok(pair),
            Err(error) => say(&format!("not connected, once more: {error:#}")),
        }
    }
    perftest.start()
}

/// Runs a pair that goes on posting after the probes have gone, and compares.
fn counts(library: &str, perftest: &Perftest) -> Result<()> {
    let window = Window::open_with(&ARGS, &ENV)?;
    let kernel = Window::open(&[])?;
    let mut pair = connect(perftest)?;
    let begun = std::time::Instant::now();
    wait::until("probes on the provider", PATIENCE, || {
        probed(window.pid(), library) > 0
    })?;
    wait::until("the end of the probes", PATIENCE, || {
        probed(window.pid(), library) == 0
    })?;
    let gone = begun.elapsed();
    ensure!(
        pair.client.ended()?.is_none(),
        "the program had ended before its probes went: {}",
        pair.client.out.text()
    );
    let accounts = pair.finish()?;
    let whole = begun.elapsed();
    // What is left behind by a process that has ended.
    std::thread::sleep(Duration::from_secs(1));
    ensure!(probed(window.pid(), library) == 0, "they do not come again");
    let (sample, kernel) = (window.close()?, kernel.close()?);
    let uprobes = &sample.value()["health"]["uprobes"];
    let mut sum = 0;
    for qpn in &accounts.client.qpns {
        let row = sample.qp(accounts.client.pid, *qpn)?;
        let theirs = kernel.qp(accounts.client.pid, *qpn)?;
        ensure!(
            !row.is("since_attach"),
            "it posted before the probes stood: {row:?}"
        );
        for key in ["tx_wr", "tx_wr_posted"] {
            ensure!(row.field(key)["source"] == "memory", "{key}: {row:?}");
        }
        let (own, other) = (total(row, "tx_wr_posted")?, total(theirs, "tx_wr_posted")?);
        ensure!(own == other, "{own} from memory, {other} in the kernel");
        for unknown in ["tx_bytes", "rx_wr_posted", "rx_wr", "completions", "latency"] {
            ensure!(row.field(unknown).is_null(), "{unknown}: {row:?}");
        }
        ensure!(
            row.field("by_opcode").as_array().is_some_and(Vec::is_empty),
            "{row:?}"
        );
        sum += own;
    }
    let count = accounts.client.iterations;
    say(&format!(
        "{library}: {sum} from memory and in the kernel, perftest {count}; probes gone after {gone:?} of {whole:?}; {uprobes}"
    ));
    ensure!(sum == count, "{sum} of {count}");
    ensure!(uprobes["memory"]["gaps"] == 0, "{uprobes}");
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    let hits = uprobes["hits"].as_u64().context("no hits")?;
    ensure!(
        hits < 2 * count,
        "each post was probed at its entry and its return: {uprobes}"
    );
    Ok(())
}

#[test]
fn posts_on_soft_iwarp_are_read_from_memory_exactly() -> Result<()> {
    const NAME: &str = "uprobes memory: siw";
    let Some(_lab) = Lab::enter(NAME).filter(|_| siw::is_built(NAME)) else {
        return Ok(());
    };
    let _siw = Siw::up()?;
    let perftest = Perftest::new("ib_write_bw")
        .iwarp(siw::DEVICE)
        .iterations(POSTS)
        .size(64);
    counts("libsiw", &perftest)
}

/// A program that posts what it is told, before and after the probes of its two functions.
struct Told {
    program: Traffic,
    pid: u32,
    /// The first of its QPs that post, and what it posted to it.
    qpn: u32,
    posted: u64,
    /// All of them.
    qpns: Vec<u32>,
    all: Vec<u64>,
}

impl Told {
    fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    fn start_with(args: &[&str]) -> Result<Self> {
        let program = Traffic::start("told-posts", args)?;
        let ready = program.ready()?;
        let qpns = list(&ready, "qpns")?;
        let qpns = qpns.iter().filter_map(Value::as_u64);
        Ok(Self {
            pid: id(&ready, "pid")?,
            qpn: id(&ready, "qpn")?,
            posted: 0,
            qpns: qpns.map(u32::try_from).collect::<Result<_, _>>()?,
            all: Vec::new(),
            program,
        })
    }

    /// Tells it something and waits until it has done that.
    fn tell(&mut self, what: &str) -> Result<()> {
        let before = self.program.child.out.all().len();
        self.program.child.tell(what)?;
        let line = wait::for_some("the program's answer", PATIENCE, || {
            Ok(self.program.child.out.all().get(before).cloned())
        })?;
        let said: Value = serde_json::from_str(&line)?;
        let posted = list(&said, "posted")?;
        self.all = posted.iter().filter_map(Value::as_u64).collect();
        self.posted = *self.all.first().context("no QP posts")?;
        Ok(())
    }
}

/// Waits for the probes on a process's post_send and post_recv.
fn wait_probes(rdmatop: u32) -> Result<()> {
    wait::until("probes on post_send and post_recv", PATIENCE, || {
        probed(rdmatop, "librxe") == 2
    })?;
    // Attached, then told to the kernel side.
    std::thread::sleep(Duration::from_secs(2));
    Ok(())
}

fn wait_no_probes(rdmatop: u32) -> Result<()> {
    wait::until("the end of the probes", PATIENCE, || {
        probed(rdmatop, "librxe") == 0
    })
}

#[test]
fn posts_on_softroce_are_read_from_memory_exactly() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: rxe") else {
        return Ok(());
    };
    let (mut lives, mut ends, mut killed) = (Told::start()?, Told::start()?, Told::start()?);
    let window = Window::open_with(&ARGS, &ENV)?;
    wait::until("probes on three programs", PATIENCE, || {
        probed(window.pid(), "librxe") == 6
    })?;
    std::thread::sleep(Duration::from_secs(2));
    // The first one shows which word it is, in the others some posts that it is theirs.
    lives.tell("post 90000")?;
    for other in [&mut ends, &mut killed] {
        other.tell("post 3000")?;
    }
    wait_no_probes(window.pid())?;
    for program in [&mut lives, &mut ends, &mut killed] {
        program.tell("post 2500")?;
    }
    let (pid, qpn, posted) = (ends.pid, ends.qpn, ends.posted);
    ends.program.finish()?;
    killed.program.child.signal(libc::SIGKILL)?;
    let _ = killed.program.child.wait(PATIENCE)?;
    let sample = window.close()?;
    let uprobes = &sample.value()["health"]["uprobes"];
    for (what, pid, qpn, posted) in [
        ("lives", lives.pid, lives.qpn, lives.posted),
        ("has ended", pid, qpn, posted),
    ] {
        let row = sample.qp(pid, qpn)?;
        let counter = row.field("tx_wr_posted");
        println!("a program that {what}: {counter}, of its own {posted}");
        ensure!(
            counter["total"] == posted && counter["source"] == "memory",
            "{posted}: {row:?}"
        );
        // They had posted nothing before, which rdmatop has from the word.
        ensure!(!row.is("since_attach"), "{row:?}");
        ensure!(
            row.field("tx_bytes").is_null() && row.field("rx_wr_posted").is_null(),
            "{row:?}"
        );
    }
    let lost = sample.qp(killed.pid, killed.qpn)?;
    println!(
        "a program that was killed: {}, {uprobes}",
        lost.field("tx_wr_posted")
    );
    ensure!(lost.field("tx_wr_posted").is_null(), "{lost:?}");
    // Its other QP, to which nothing was posted, ended as well.
    ensure!(uprobes["memory"]["gaps"] == 2, "{uprobes}");
    ensure!(uprobes["memory"]["processes"] == 1, "{uprobes}");
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    lives.program.finish()?;
    Ok(())
}

/// What rdmatop and the kernel count of a program's posts, and what it posted itself.
fn agree(told: &Told, sample: &Snapshot, kernel: &Snapshot, source: &str) -> Result<()> {
    for (qpn, posted) in told.qpns.iter().zip(&told.all) {
        let (row, theirs) = (sample.qp(told.pid, *qpn)?, kernel.qp(told.pid, *qpn)?);
        let counter = row.field("tx_wr_posted");
        let in_kernel = total(theirs, "tx_wr_posted")?;
        say(&format!(
            "QP {qpn}: {counter}, in the kernel {in_kernel}, of the program {posted}"
        ));
        ensure!(
            counter["total"] == *posted && in_kernel == *posted && counter["source"] == source,
            "{posted}: {row:?}, {theirs:?}"
        );
    }
    let uprobes = &sample.value()["health"]["uprobes"];
    ensure!(
        uprobes["off"].is_null() && uprobes["missed"] == 0 && uprobes["memory"]["gaps"] == 0,
        "{uprobes}"
    );
    Ok(())
}

/// Runs a program of several threads from before its probes until after them.
fn threads(args: &[&str], commands: &[&str]) -> Result<()> {
    let mut program = Told::start_with(args)?;
    let window = Window::open_with(&ARGS, &ENV)?;
    let kernel = Window::open(&[])?;
    wait_probes(window.pid())?;
    for command in commands {
        program.tell(command)?;
    }
    wait_no_probes(window.pid())?;
    program.tell("post 2500")?;
    let (sample, kernel) = (window.close()?, kernel.close()?);
    agree(&program, &sample, &kernel, "memory")?;
    let failures = &sample.value()["health"]["uprobes"]["failures"];
    ensure!(failures.as_array().is_some_and(Vec::is_empty), "{failures}");
    program.program.finish()?;
    Ok(())
}

#[test]
fn four_threads_that_post_to_a_qp_each_are_read_from_memory_exactly() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: four threads") else {
        return Ok(());
    };
    threads(&["--pairs", "4"], &["post 20000", "lead 50000"])
}

#[test]
fn two_threads_that_post_to_one_qp_are_read_from_memory_exactly() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: two threads on a QP") else {
        return Ok(());
    };
    threads(&["--threads", "2"], &["post 90000"])
}

#[test]
fn posts_of_the_extended_calls_stay_with_their_probes() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: ibv_wr_*") else {
        return Ok(());
    };
    let mut program = Told::start_with(&["--extended"])?;
    let window = Window::open_with(&ARGS, &ENV)?;
    let kernel = Window::open(&[])?;
    // post_send and post_recv, wr_complete and wr_abort, six opcodes, four ways to give data.
    let all = || probed(window.pid(), "librxe");
    wait::until("probes on ibv_wr_*", PATIENCE, || all() >= 14)?;
    std::thread::sleep(Duration::from_secs(2));
    let functions = all();
    program.tell("post 70000")?;
    // librxe counts these, and does not take them back.
    program.tell("abort 8")?;
    program.tell("post 2500")?;
    std::thread::sleep(Duration::from_secs(3));
    ensure!(all() == functions, "{} probes of {functions} are left", all());
    let (sample, kernel) = (window.close()?, kernel.close()?);
    agree(&program, &sample, &kernel, "uprobe")?;
    let failures = sample.value()["health"]["uprobes"]["failures"].to_string();
    say(&failures);
    ensure!(failures.contains("ibv_wr_*"), "{failures}");
    program.program.finish()?;
    Ok(())
}

#[test]
fn a_word_that_reset_sets_back_brings_the_probes_back() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: RESET") else {
        return Ok(());
    };
    let mut program = Told::start()?;
    let _screen = Screen::open_in("memory", &ARGS.join(" "), "RDMATOP_DATAPATHS=0")?;
    let view = Screen::pid()?;
    wait_probes(view)?;
    program.tell("post 90000")?;
    wait_no_probes(view)?;
    Screen::once("that a count is read", END, |text| {
        text.contains("2 QPs read from memory")
    })?;
    program.tell("post 2500")?;
    Screen::keys(&["1", "f"])?;
    Screen::keys(&[&format!("pid:{}", program.pid), "Enter"])?;
    Screen::once("the row of the program alone", END, |text| {
        text.contains("told-posts") && !text.contains("ib_core")
    })?;
    Screen::keys(&["Enter"])?;
    let posted = program.posted;
    let shown = Screen::once("what the program has posted", END, |text| {
        screen::total(text, "send WRs posted") == Some(posted)
    })?;
    let line = shown.lines().find(|line| line.starts_with("send WRs posted"));
    println!("{line:?}");
    ensure!(line.is_some_and(|line| line.ends_with("memory")), "{shown}");
    program.tell("reset")?;
    wait_probes(view)?;
    program.tell("post 700")?;
    let posted = program.posted;
    // Nothing was posted meanwhile, but rdmatop cannot know: what it shows is a lower bound.
    let shown = Screen::once("what the program has posted since", END, |text| {
        let line = text.lines().find(|line| line.starts_with("send WRs posted"));
        let digits = line.map(|line| line.replace(',', ""));
        digits.is_some_and(|line| line.contains(&format!("{posted}")))
    })?;
    println!("{shown}");
    ensure!(!shown.contains("QPs read from memory"), "{shown}");
    Screen::leave()?;
    program.program.finish()?;
    Ok(())
}
