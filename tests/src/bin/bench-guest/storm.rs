//! Storms of queue-pair events: what one printed event costs, and what is lost.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::child::output;
use serde_json::Value;

use crate::{
    Bench, cpu, posts,
    report::Report,
    tracer::{PRINT_ALL, Tracer},
};

/// Two pages hold a few dozen records: a loss is certain.
const TINY_RING: u32 = 8192;
const OURS: &str = "/tmp/bench-ours";
const BPFTRACE: &str = "/tmp/bench-bpftrace";

/// What a churn did.
struct Churn {
    events: f64,
    elapsed: f64,
    /// CPU time of the churning process alone.
    cpu: f64,
}

/// Makes, modifies three times and destroys `qps` queue pairs.
fn churn(qps: u32, threads: u32, more: &[&str]) -> Result<Churn> {
    let program = std::env::current_exe()?.with_file_name("qp-churn");
    let mut command = Command::new(program);
    command
        .args(["--count", &qps.to_string(), "--threads", &threads.to_string()])
        .args(more);
    let mut text = String::new();
    let cpu = cpu::of_children(|| {
        text = output(&mut command)?;
        Ok(())
    })?;
    let report: Value = serde_json::from_str(&text)?;
    let number = |name: &str| report[name].as_f64().with_context(|| format!("no {name}"));
    Ok(Churn {
        events: number("events")?,
        elapsed: number("elapsed_ns")?,
        cpu,
    })
}

/// The least that `times` calls give. What is above it is not our programs': the kernel's own account of them
/// (bpf_stats_enabled) is the same, and yet the traced program takes 250 instructions an event more while
/// every second tracer runs, and an untraced one now and then. Where instructions are the clock a run repeats
/// this, so one figure would take it for what the tracer costs.
fn least(times: u32, mut of: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..times {
        least = least.min(of()?);
    }
    Ok(least)
}

/// Tracers that are started one after the other for one figure.
const TRACERS: u32 = 4;

/// How rdmatop's programs are entered.
const MODES: [&str; 2] = ["kprobe", "fentry"];

/// rdmatop --trace by one of the modes.
fn ours(bench: &Bench, mode: &str, more: &[&str], ring: Option<u32>) -> Result<Tracer> {
    if mode == "fentry" {
        posts::ensure_fentry(bench)?;
    }
    Tracer::ours(bench, &[&["--attach", mode], more].concat(), ring, OURS)
}

/// CPU of the tracer per printed event, and of the traced program.
pub(crate) fn per_event(bench: &Bench, report: &mut Report) -> Result<()> {
    const QPS: u32 = 2000;
    // The first churn of a boot fills the kernel's caches, which takes 400 instructions an event: it is no
    // base.
    churn(QPS, 1, &[])?;
    let base = least(TRACERS, || churn(QPS, 1, &[]).map(|base| base.cpu / base.events))?;
    report.value("event.producer.none", base);
    // One after the other: a tracer that waits would still hold its probes.
    for name in [MODES[0], MODES[1], "bpftrace"] {
        let traced = least(TRACERS, || {
            let tracer = match name {
                "bpftrace" => Tracer::bpftrace(PRINT_ALL, BPFTRACE),
                mode => ours(bench, mode, &["--event", "qp"], None),
            };
            printed(tracer?, name, QPS, report)
        });
        match traced {
            Ok(cost) => report.value(format!("event.producer.{name}"), cost),
            Err(error) => report.missing(&format!("event.{name}"), &format!("{error:#}")),
        }
    }
    Ok(())
}

/// What an event costs the program that makes it. What it costs the tracer goes into the report, where the
/// last tracer's stays.
fn printed(tracer: Tracer, name: &str, qps: u32, report: &mut Report) -> Result<f64> {
    let before = tracer.idle()?;
    let threads = cpu::threads(tracer.pid())?;
    let done = churn(qps, 1, &[])?;
    let after = tracer.idle()?;
    let by_thread = cpu::threads(tracer.pid())?;
    let printed = tracer.stop()?;
    for (thread, time) in by_thread {
        let spent = time - threads.get(&thread).copied().unwrap_or_default();
        report.value(
            format!("event.{name}.thread.{thread}"),
            spent as f64 / printed.lines as f64,
        );
    }
    report.value(format!("event.{name}.lines"), printed.lines as f64);
    report.value(format!("event.{name}.lost"), printed.lost as f64);
    report.value(
        format!("event.{name}.tracer"),
        (after - before) as f64 / printed.lines as f64,
    );
    Ok(done.cpu / done.events)
}

/// Events of all kinds: each thread also makes and destroys one CQ.
fn happened(done: &Churn, threads: u32) -> f64 {
    done.events + 2.0 * f64::from(threads)
}

/// What an event costs the program that makes it, untraced and traced. For a guest of one CPU: where two
/// share the emulated core, a thread's CPU clock runs on while the other CPU executes, and the tracer's work
/// is in it.
pub(crate) fn producers(bench: &Bench, report: &mut Report) -> Result<()> {
    const QPS: u32 = 20_000;
    const THREADS: u32 = 4;
    let base = churn(QPS, THREADS, &[])?;
    report.value("producers.none.cpu", base.cpu / base.events);
    let all = MODES.map(|mode| (mode, "", &[][..]));
    let qps_alone = MODES.map(|mode| (mode, "_qp", &["--event", "qp"][..]));
    for (mode, what, filter) in all.into_iter().chain(qps_alone) {
        let value = ours(bench, mode, filter, None).and_then(|tracer| {
            let done = churn(QPS, THREADS, &[])?;
            tracer.idle()?;
            let printed = tracer.stop()?.lines as f64;
            let others = filter.is_empty();
            let happened = if others {
                happened(&done, THREADS)
            } else {
                done.events
            };
            // An event that is lost costs less than one that is recorded.
            ensure!(
                (printed - happened).abs() < 0.5,
                "{printed} of {happened} events were printed: what was lost would flatter the ratio"
            );
            Ok(done.cpu / done.events)
        });
        report.try_value(&format!("producers.{mode}{what}.cpu"), value);
    }
    // How far two runs of the same differ.
    let again = churn(QPS, THREADS, &[])?;
    report.value("producers.none_again.cpu", again.cpu / again.events);
    Ok(())
}

/// 200 000 events at full speed, and fewer under SCHED_FIFO and with a tiny ring buffer.
pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    const QPS: u32 = 40_000;
    const THREADS: u32 = 4;
    let base = churn(QPS, THREADS, &[])?;
    report.value("storm.none.elapsed", base.elapsed / base.events);

    for mode in MODES {
        let done = storm(bench, mode, report, mode, (QPS, THREADS, &[]), None).map(|done| {
            report.value(format!("storm.{mode}.elapsed"), done.elapsed / done.events);
        });
        if let Err(error) = done {
            report.missing(&format!("storm.{mode}"), &format!("{error:#}"));
        }
        report.write()?;
    }

    let bpftrace = Tracer::bpftrace(PRINT_ALL, BPFTRACE).and_then(|tracer| {
        let done = churn(QPS, THREADS, &[])?;
        tracer.idle()?;
        report.value("storm.bpftrace.elapsed", done.elapsed / done.events);
        report.value("storm.bpftrace.lost", tracer.stop()?.lost as f64);
        Ok(())
    });
    if let Err(error) = bpftrace {
        report.missing("storm.bpftrace", &format!("{error:#}"));
    }

    for mode in MODES {
        for (what, load, ring) in [
            ("tiny", (2000, 2, &[][..]), Some(TINY_RING)),
            ("fifo", (8000, 2, &["--fifo"][..]), None),
        ] {
            let name = format!("{mode}_{what}");
            if let Err(error) = storm(bench, mode, report, &name, load, ring) {
                report.missing(&format!("storm.{name}"), &format!("{error:#}"));
            }
        }
    }
    Ok(())
}

/// One storm (queue pairs, threads, options) with rdmatop: what happened, what was printed and what it says
/// it lost. All kinds of events are asked for: a loss does not say of which kind it was.
fn storm(
    bench: &Bench,
    mode: &str,
    report: &mut Report,
    name: &str,
    (qps, threads, more): (u32, u32, &[&str]),
    ring: Option<u32>,
) -> Result<Churn> {
    let tracer = ours(bench, mode, &[], ring)?;
    let done = churn(qps, threads, more)?;
    tracer.idle()?;
    let printed = tracer.stop()?;
    report.value(format!("storm.{name}.happened"), happened(&done, threads));
    report.value(format!("storm.{name}.lines"), printed.lines as f64);
    report.value(format!("storm.{name}.lost"), printed.lost as f64);
    Ok(done)
}
