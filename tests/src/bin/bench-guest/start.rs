//! The cost from the start of a program to its first useful output.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    child::Child,
    lab::DEVICE,
    verbs::{Context, Cq, Pd, Qp},
};

use crate::{Bench, cpu, live::View, report::Report};

const RUNS: usize = 3;
const LIMIT: Duration = Duration::from_mins(3);

/// Wall time and CPU time in nanoseconds.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

pub(crate) fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for view in [View::Ours, View::OursNoEbpf, View::Peer] {
        let name = format!("start.{}", view.name());
        best(report, &name, || {
            let Some((running, row)) = view.start(bench)? else {
                return Ok(None);
            };
            let cpu = cpu::process(running.pid())? as f64;
            let wall = row.as_nanos() as f64;
            running.quit()?;
            Ok(Some(Took { wall, cpu }))
        });
    }
    let pinger = Pinger::start()?;
    best(report, "first_event.ours", || {
        let mut command = Command::new(&bench.ours);
        command
            .args(["--trace", "--event", "qp_modify"])
            .env("NO_COLOR", "1");
        first_line(&mut command, |line| line.contains(DEVICE)).map(|(took, _)| Some(took))
    });
    for kind in ["kprobe", "kfunc"] {
        let script = format!("{kind}:_ib_modify_qp {{ printf(\"EVENT %d %s\\n\", pid, comm); }}");
        let mut resident = None;
        best(report, &format!("first_event.bpftrace_{kind}"), || {
            let mut command = Command::new("bpftrace");
            let (took, rss) = first_line(command.args(["-e", &script]), |line| line.starts_with("EVENT"))?;
            resident = Some(rss);
            Ok(Some(took))
        });
        if let Some(resident) = resident {
            report.value(format!("bpftrace_{kind}.rss"), resident);
        }
    }
    pinger.stop()
}

/// Records the least of a few runs; the first has to fetch the program's pages from the host. Each run is
/// recorded too: what a start races with may end before or after its first draw, which the least alone does
/// not show.
fn best(report: &mut Report, name: &str, mut once: impl FnMut() -> Result<Option<Took>>) {
    let mut least: Option<Took> = None;
    for run in 1..=RUNS {
        match once() {
            Ok(Some(took)) => {
                report.value(format!("{name}.run{run}.wall"), took.wall);
                report.value(format!("{name}.run{run}.cpu"), took.cpu);
                least = Some(least.map_or(took, |least| Took {
                    wall: least.wall.min(took.wall),
                    cpu: least.cpu.min(took.cpu),
                }));
            }
            Ok(None) => return,
            Err(error) => return report.missing(name, &format!("{error:#}")),
        }
    }
    if let Some(least) = least {
        report.value(format!("{name}.wall"), least.wall);
        report.value(format!("{name}.cpu"), least.cpu);
    }
}

/// Runs `command` until its stdout has a wanted line, and then ends it.
fn first_line(command: &mut Command, wanted: impl Fn(&str) -> bool) -> Result<(Took, f64)> {
    let start = Instant::now();
    let mut child = Child::spawn(command)?;
    let line = child.out.wait_for("line of an event", LIMIT, wanted);
    let wall = start.elapsed().as_nanos() as f64;
    line.with_context(|| child.err.text())?;
    let cpu = cpu::process(child.pid())? as f64;
    let resident = cpu::memory(child.pid(), "VmRSS")?;
    child.signal(libc::SIGINT)?;
    let _ = child.wait(Duration::from_secs(30));
    Ok((Took { wall, cpu }, resident))
}

/// Modifies a QP every few milliseconds, so that a tracer sees an event as soon as it listens.
struct Pinger {
    end: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Pinger {
    fn start() -> Result<Self> {
        let context = Context::open(DEVICE)?;
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = thread::spawn(move || {
            let pd = Pd::new(&context)?;
            let cq = Cq::new(&context, 16)?;
            while !ended.load(Ordering::Relaxed) {
                let qp = Qp::new(&pd, &cq, 1)?;
                qp.to_init()?;
                thread::sleep(Duration::from_millis(5));
            }
            Ok(())
        });
        Ok(Self { end, thread })
    }

    fn stop(self) -> Result<()> {
        self.end.store(true, Ordering::Relaxed);
        self.thread
            .join()
            .map_err(|_| anyhow::anyhow!("the pinger panicked"))?
    }
}
