//! Storms of QP events: the cost of one printed event, and how many are lost.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::child::output;
use serde_json::Value;

use crate::{
    Bench, cpu, posts,
    report::Report,
    tracer::{PRINT_ALL, Tracer},
};

/// Two pages, which hold a few dozen records, so that losses are certain.
const TINY_RING: u32 = 8192;
const OURS: &str = "/tmp/bench-ours";
const BPFTRACE: &str = "/tmp/bench-bpftrace";

/// The result of one run of `qp-churn`.
struct Churn {
    events: f64,
    elapsed: f64,
    /// CPU time of the churning process alone.
    cpu: f64,
}

/// Creates, modifies three times and destroys `qps` QPs.
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

/// Returns the least result of `times` calls. The excess over it does not come from our programs, whose cost
/// the kernel accounts as equal (bpf_stats_enabled): with every second tracer the traced program takes 250
/// instructions more per event, and an untraced one sometimes too. With instructions as the clock a run
/// repeats this, so a single figure would blame the tracer.
fn least(times: u32, mut of: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..times {
        least = least.min(of()?);
    }
    Ok(least)
}

/// The number of tracers that run one after the other for one figure.
const TRACERS: u32 = 4;

/// The two ways in which the kernel enters rdmatop's programs.
const MODES: [&str; 2] = ["kprobe", "fentry"];

/// Starts rdmatop --trace in one of the modes.
fn ours(bench: &Bench, mode: &str, more: &[&str], ring: Option<u32>) -> Result<Tracer> {
    if mode == "fentry" {
        posts::ensure_fentry(bench)?;
    }
    Tracer::ours(bench, &[&["--attach", mode], more].concat(), ring, OURS)
}

/// Measures the CPU time per printed event of the tracer and of the traced program.
pub(crate) fn per_event(bench: &Bench, report: &mut Report) -> Result<()> {
    const QPS: u32 = 2000;
    // The first churn of a boot fills the kernel's caches, which costs 400 instructions per event, so it is
    // not used as the base.
    churn(QPS, 1, &[])?;
    let base = least(TRACERS, || churn(QPS, 1, &[]).map(|base| base.cpu / base.events))?;
    report.value("event.producer.none", base);
    // One tracer at a time, because a waiting one would still hold its probes.
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

/// Returns the cost of an event for the traced program. The cost for the tracer goes into the report, where
/// that of the last tracer stays.
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

/// Returns the number of events of all kinds: each thread also creates and destroys one CQ.
fn happened(done: &Churn, threads: u32) -> f64 {
    done.events + 2.0 * f64::from(threads)
}

/// Measures the cost of an event for the program that causes it, untraced and traced. For a guest with one
/// CPU: if two share the emulated core, a thread's CPU clock also runs while the other CPU executes, so it
/// would include the tracer's work.
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
            // A lost event costs less than a recorded one.
            ensure!(
                (printed - happened).abs() < 0.5,
                "{printed} of {happened} events were printed: what was lost would flatter the ratio"
            );
            Ok(done.cpu / done.events)
        });
        report.try_value(&format!("producers.{mode}{what}.cpu"), value);
    }
    // Shows how far two equal runs differ.
    let again = churn(QPS, THREADS, &[])?;
    report.value("producers.none_again.cpu", again.cpu / again.events);
    Ok(())
}

/// 200 000 events at full speed; fewer under SCHED_FIFO and with a tiny ring buffer.
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

/// Runs one storm (QPs, threads, options) with rdmatop; records the events that happened, were printed and
/// were reported lost. All kinds of events are traced, because a loss has no kind.
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
