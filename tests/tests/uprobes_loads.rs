//! `--uprobes` and programs whose code changes: libraries that are unloaded and loaded again, and a process
//! that becomes another program. The probes' counts equal the program's posts and the counts of another
//! rdmatop's kernel side.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    lab::Lab,
    rdmatop::Window,
    snapshot::Snapshot,
    table::say,
    traffic::{self, Traffic, id, number},
    uprobes::{ARGS, ATTACHED, ENV, identity, library, probed_in, standing, total, with_a_copy},
    wait::{self, PATIENCE},
};
use serde_json::Value;

/// ibv_post_send and ibv_post_recv; these test programs request no `ibv_wr_*` calls.
const FUNCTIONS: usize = 2;
/// The bytes that each work request writes.
const LENGTH: u64 = 64;

/// Starts a QP, so that the functions of the machine's library are probed before others post; returns it,
/// that library, and rdmatop.
fn probing() -> Result<(Traffic, PathBuf, Window)> {
    let idle = standing()?;
    let library = library(idle.child.pid())?;
    let window = Window::open_with(&ARGS, &ENV)?;
    let file = identity(&library)?;
    wait::until("probes on functions of the provider", ATTACHED, || {
        probed_in(window.pid(), file) == FUNCTIONS
    })?;
    Ok((idle, library, window))
}

/// Returns the object that the program printed for this load.
fn told(program: &Traffic, key: &str, load: u64) -> Result<Value> {
    let is_it = |line: &str| {
        serde_json::from_str::<Value>(line)
            .is_ok_and(|value: Value| value[key] == load && (key != "load" || value["ready"] == true))
    };
    let line = program.child.out.wait_for(key, PATIENCE, is_it);
    Ok(serde_json::from_str(
        &line.with_context(|| program.child.err.text())?,
    )?)
}

/// Compares a QP's posts by probes with its program's account and the kernel side's count.
fn is_counted(probed: &Snapshot, kernel: &Snapshot, pid: u32, qpn: u32, posted: u64) -> Result<()> {
    let (ours, theirs) = (probed.qp(pid, qpn)?, kernel.qp(pid, qpn)?);
    ensure!(ours.field("tx_wr_posted")["source"] == "uprobe", "{ours:?}");
    ensure!(theirs.field("tx_wr_posted")["source"] == "ebpf", "{theirs:?}");
    let of = |row| Ok::<_, anyhow::Error>((total(row, "tx_wr_posted")?, total(row, "tx_bytes")?));
    let (ours, theirs) = (of(ours)?, of(theirs)?);
    say(&format!(
        "QP {qpn}: posted {posted}, by probes {ours:?}, in the kernel {theirs:?}"
    ));
    ensure!(ours == (posted, posted * LENGTH) && ours == theirs, "QP {qpn}");
    Ok(())
}

/// Fails unless the probes work without failures.
fn is_healthy(sample: &Snapshot) -> Result<()> {
    let uprobes = &sample.value()["health"]["uprobes"];
    say(&uprobes.to_string());
    ensure!(uprobes["off"].is_null() && uprobes["missed"] == 0, "{uprobes}");
    ensure!(
        uprobes["failures"].as_array().is_some_and(Vec::is_empty),
        "{uprobes}"
    );
    Ok(())
}

/// The file keeps its name, so its probes stay while nobody has it mapped, and nothing is missed at the next
/// load, at whatever address.
#[test]
fn a_library_loaded_again_elsewhere_is_counted_from_its_first_post() -> Result<()> {
    const LOADS: u64 = 3;
    const COUNT: u64 = 300;
    let Some(_lab) = Lab::enter_data_path("uprobes and dlclose") else {
        return Ok(());
    };
    let (idle, library, window) = probing()?;
    let kernel = Window::open(&[])?;
    let (loads, count) = (LOADS.to_string(), COUNT.to_string());
    let mut program = Traffic::start("reloaded-verbs", &["--loads", &loads, "--count", &count])?;
    let mut loaded = Vec::new();
    for load in 0..LOADS {
        loaded.push(told(&program, "load", load)?);
        program.child.tell("post")?;
        let posted = number(&told(&program, "unloaded", load)?, "posted")?;
        ensure!(posted == COUNT + load);
        program.child.tell("load again")?;
    }
    program.child.succeed(PATIENCE)?;
    ensure!(
        probed_in(window.pid(), identity(&library)?) == FUNCTIONS,
        "one file has one probe for each function"
    );
    let (probed, kernel) = (window.close()?, kernel.close()?);
    idle.finish()?;
    let mut places = Vec::new();
    for (load, ready) in (0..LOADS).zip(&loaded) {
        let (pid, qpn) = (id(ready, "pid")?, id(ready, "qpn")?);
        is_counted(&probed, &kernel, pid, qpn, COUNT + load)?;
        ensure!(
            !probed.qp(pid, qpn)?.is("since_attach"),
            "its file was probed before"
        );
        places.push(number(ready, "at")?);
    }
    places.sort_unstable();
    places.dedup();
    ensure!(
        places.len() == loaded.len(),
        "each load is at another address: {places:?}"
    );
    is_healthy(&probed)
}

/// The file has no name any more: once its QP is gone and it is unloaded, nobody can call it, so its probes
/// are removed while the process lives. The process can still get the file from its mount, and loads it
/// again.
#[test]
fn a_deleted_library_loses_its_probe_and_is_probed_at_its_next_load() -> Result<()> {
    const LOADS: u64 = 2;
    const COUNT: u64 = 200;
    let Some(_lab) = Lab::enter_data_path("uprobes and dlclose of a deleted file") else {
        return Ok(());
    };
    let (idle, library, window) = probing()?;
    let kernel = Window::open(&[])?;
    let copy = std::env::temp_dir().join("librxe-unloaded.so");
    let args = format!("--loads {LOADS} --count {COUNT}");
    let mut program = with_a_copy(&library, &copy, "reloaded-verbs", &args)?;
    let file = identity(&copy)?;
    let mut loaded = Vec::new();
    for load in 0..LOADS {
        loaded.push(told(&program, "load", load)?);
        if load == 0 {
            fs::remove_file(&copy)?;
        }
        wait::until("probes on its library", ATTACHED, || {
            probed_in(window.pid(), file) == FUNCTIONS
        })?;
        // The probes of the QP are complete once the last one is attached.
        std::thread::sleep(Duration::from_millis(500));
        program.child.tell("post")?;
        told(&program, "unloaded", load)?;
        wait::until("the end of the probes on it", PATIENCE, || {
            probed_in(window.pid(), file) == 0
        })?;
        ensure!(program.child.ended()?.is_none(), "the process itself lives");
        program.child.tell("load again")?;
    }
    program.child.succeed(PATIENCE)?;
    ensure!(
        probed_in(window.pid(), identity(&library)?) == FUNCTIONS,
        "the other file's probes stay"
    );
    let (probed, kernel) = (window.close()?, kernel.close()?);
    idle.finish()?;
    for (load, ready) in (0..LOADS).zip(&loaded) {
        let (pid, qpn) = (id(ready, "pid")?, id(ready, "qpn")?);
        is_counted(&probed, &kernel, pid, qpn, COUNT + load)?;
    }
    is_healthy(&probed)
}

/// With a living QP the process becomes another program, which has the library at another address and posts
/// at once.
#[test]
fn a_process_that_becomes_another_program_is_counted_in_both() -> Result<()> {
    const BEFORE: u64 = 250;
    const AFTER: u64 = 150;
    let Some(_lab) = Lab::enter_data_path("uprobes and exec") else {
        return Ok(());
    };
    let (idle, _, window) = probing()?;
    let kernel = Window::open(&[])?;
    let next = format!(
        "{} --count {AFTER} --size {LENGTH}",
        traffic::path("timed-posts")?.display()
    );
    let count = BEFORE.to_string();
    let args = ["--loads", "1", "--count", &count, "--then-exec", &next];
    let mut program = Traffic::start("reloaded-verbs", &args)?;
    let first = told(&program, "load", 0)?;
    program.child.tell("post, and become the other")?;
    let second = program.finish()?;
    let (pid, qpn) = (id(&first, "pid")?, id(&first, "qpn")?);
    ensure!(id(&second, "pid")? == pid, "{first} {second}");
    let (probed, kernel) = (window.close()?, kernel.close()?);
    idle.finish()?;
    is_counted(&probed, &kernel, pid, qpn, BEFORE)?;
    is_counted(&probed, &kernel, pid, id(&second, "qpn")?, AFTER)?;
    is_healthy(&probed)
}
