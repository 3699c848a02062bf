//! The cost of a traced `ibv_post_send`: instructions from before the call to after it.

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::child::output;
use serde_json::Value;

use crate::{Bench, live::View, report::Report, tracer::Tracer};

const POSTS: &str = "3000";
/// rdmatop goes on attaching after it shows the first row.
const ATTACH: Duration = Duration::from_secs(8);
/// The doorbell of a SoftRoCE send queue.
const DOORBELL: &str = "ib_uverbs_write";

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    report.value("post.clock", clock());
    report.value("post.none", posts()?);
    for view in [View::OursKprobe, View::OursFentry, View::OursVerbTimes] {
        let name = format!("post.{}", view.name());
        match traced(bench, view) {
            Ok(value) => report.value(name, value),
            Err(error) => report.missing(&name, &format!("{error:#}")),
        }
    }
    for kind in ["kfunc", "kprobe"] {
        let script = format!("BEGIN {{ printf(\"READY\\n\"); }} {kind}:{DOORBELL} {{ @[pid] = count(); }}");
        let value = Tracer::bpftrace(&script, "/tmp/bench-posts").and_then(|tracer| {
            let value = posts();
            tracer.stop()?;
            value
        });
        report.try_value(&format!("post.bpftrace_{kind}"), value);
    }
    // Shows how far two equal runs differ.
    report.value("post.none_again", posts()?);
    Ok(())
}

/// Returns what reading the clock adds to each timed post: the median of timings of nothing.
fn clock() -> f64 {
    let mut times: Vec<u128> = (0..3000)
        .map(|_| std::hint::black_box(Instant::now()).elapsed().as_nanos())
        .collect();
    times.sort_unstable();
    times[times.len() / 2] as f64
}

/// Returns the median, because the mean would include timer ticks that fell into a post.
fn posts() -> Result<f64> {
    let program = std::env::current_exe()?.with_file_name("timed-posts");
    let text = output(Command::new(program).args(["--count", POSTS]))?;
    let report: Value = serde_json::from_str(&text)?;
    report["post"]["p50_ns"].as_f64().context("no time of a post")
}

fn traced(bench: &Bench, view: View) -> Result<f64> {
    let how = if view == View::OursFentry {
        "fentry"
    } else {
        "kprobe"
    };
    let attached = data_path(bench, how)?;
    ensure!(
        attached > 0,
        "this rdmatop attaches no SoftRoCE data path by {how}"
    );
    let (mut running, _) = view.start(bench)?.context("no such view")?;
    thread::sleep(ATTACH);
    let value = posts()?;
    running.alive().context("while it was measured")?;
    running.quit()?;
    Ok(value)
}

/// Returns the number of programs attached to functions of rdma_rxe.
fn data_path(bench: &Bench, how: &str) -> Result<usize> {
    count(bench, how, |probe| probe.to_string().contains("rxe_"))
}

/// Fails if `--attach fentry` leaves the control plane to kprobes, whose numbers it would then be.
pub(crate) fn ensure_fentry(bench: &Bench) -> Result<()> {
    let entered = |probe: &Value| probe["hook"] == "fentry:_ib_modify_qp";
    ensure!(
        count(bench, "fentry", entered)? > 0,
        "this rdmatop enters no control plane by fentry on this kernel; rdmatop probes --attach fentry says why"
    );
    Ok(())
}

/// Returns the number of all attached programs.
pub(crate) fn attached(bench: &Bench) -> Result<usize> {
    count(bench, "auto", |_| true)
}

fn count(bench: &Bench, how: &str, wanted: impl Fn(&Value) -> bool) -> Result<usize> {
    let text = output(Command::new(&bench.ours).args(["probes", "--json", "--attach", how]))?;
    let table: Value = serde_json::from_str(&text)?;
    let probes = table["probes"].as_array().context("no list of probes")?;
    let on = |probe: &&Value| wanted(probe) && (probe["verdict"] == "ok" || probe["verdict"] == "partial");
    Ok(probes.iter().filter(on).count())
}
