//! `--uprobes --uprobes-memory`: once the word is found in which a provider counts posts, the probes go, and what is read from the
//! program's memory is what the kernel counts and what perftest says it did.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use rdmatop_tests::{
    lab::Lab,
    perftest::{HANDSHAKE, Pair, Perftest},
    rdmatop::Window,
    siw::{self, Siw},
    snapshot::Row,
    table::say,
    wait::{self, PATIENCE},
};

const ARGS: [&str; 4] = ["--uprobes", "--uprobes-memory", "--uprobe-limit", "100000"];
const ENV: [(&str, &str); 1] = [("RDMATOP_DATAPATHS", "0")];
/// An index that wraps at the size of a ring has to be told from a count, which takes more than 65 536 of them. So many come until
/// then, and so many after it.
const POSTS: u64 = 160_000;

/// How many functions of files of this name are probed: rdmatop keeps the file open for each.
fn probed(window: &Window, name: &str) -> usize {
    let open = fs::read_dir(format!("/proc/{}/fd", window.pid()));
    let files = open.into_iter().flatten().flatten().map(|entry| entry.path());
    files
        .filter_map(|file| fs::read_link(file).ok())
        .filter(|target| target.to_string_lossy().contains(name))
        .count()
}

fn total(row: Row<'_>, key: &str) -> Result<u64> {
    row.field(key)["total"]
        .as_u64()
        .with_context(|| format!("no total of {key}: {row:?}"))
}

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

/// Runs a pair that goes on posting after the probes have gone, and compares. Programs are probed one by one, so a pair may begin
/// before its probes stand; then another one is run.
fn counts(library: &str, perftest: &Perftest) -> Result<()> {
    for _ in 0..4 {
        if try_to_count(library, perftest)? {
            return Ok(());
        }
        say("it posted before its probes stood: once more");
    }
    bail!("each pair posted before its probes stood")
}

/// As [`counts`]; false if a QP says that it may have posted before its probes stood.
fn try_to_count(library: &str, perftest: &Perftest) -> Result<bool> {
    let window = Window::open_with(&ARGS, &ENV)?;
    let kernel = Window::open(&[])?;
    let mut pair = connect(perftest)?;
    let begun = std::time::Instant::now();
    wait::until("probes on the provider", PATIENCE, || {
        probed(&window, library) > 0
    })?;
    wait::until("the end of the probes", PATIENCE, || {
        probed(&window, library) == 0
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
    ensure!(probed(&window, library) == 0, "they do not come again");
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
    println!(
        "{library}: {sum} from memory and in the kernel, perftest {count}; probes gone after {gone:?} of {whole:?}; {uprobes}"
    );
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
    Ok(true)
}

#[test]
fn posts_on_soft_iwarp_are_read_from_memory_exactly() -> Result<()> {
    const NAME: &str = "uprobes memory: siw";
    let Some(_lab) = Lab::enter(NAME) else {
        return Ok(());
    };
    let Some(_siw) = Siw::up(NAME)? else {
        return Ok(());
    };
    let perftest = Perftest::new("ib_write_bw")
        .iwarp(siw::DEVICE)
        .iterations(POSTS)
        .size(64);
    counts("libsiw", &perftest)
}

#[test]
fn posts_on_softroce_are_read_from_memory_exactly() -> Result<()> {
    let Some(_lab) = Lab::enter_data_path("uprobes memory: rxe") else {
        return Ok(());
    };
    counts("librxe", &Perftest::new("ib_write_bw").iterations(POSTS).size(64))
}
