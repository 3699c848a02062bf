//! `--once`: two samples, one print.

use std::{sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::pump::{Pump, Settings};
use super::writer::{self, Writer};
use super::{nothing_to_show, ready, say, signals, targets};
use super::{patience::stretched, plan::Plan};
use crate::exit::{Exit, Stop, Written};
use rdmatop_model::{cause::CauseId, engine::EngineConfig, fields, snapshot::Snapshot};
use rdmatop_sources::signals::{Ending, Signals};
use rdmatop_sources::{root::Root, seam::Sources};
use rdmatop_views::tui::TuiOptions;
use rdmatop_views::{json, line};

/// How long to wait for the programs: the verifier decides how long loading takes, on a slow machine some
/// seconds. After that the sample goes on without them.
const START_LIMIT: Duration = Duration::from_secs(15);

/// How long a reader may take nothing after the end was requested.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    let sources = ready::sources(plan);
    // From the start: loading takes seconds, and a user who interrupts it gets what is known so far.
    let mut signals = signals::take()?;
    let (snapshot, no_rdma, ending) = measure(plan, sources, &mut signals).await?;
    if let Some(line) = no_rdma {
        if plan.json {
            print(&snapshot, true, &mut signals, ending).await?;
        }
        return Err(Stop::nothing(line));
    }
    print(&snapshot, plan.json, &mut signals, ending).await?;
    // The measurement is worth printing where stdout is a file, even if the terminal is gone.
    ending.map_or(Ok(Exit::Ok), signals::outcome)
}

/// The snapshot, the line for a machine without RDMA, and the signal that ended the measurement early.
pub(super) type Measured = (Arc<Snapshot>, Option<String>, Option<Ending>);

/// The snapshot to print, and the line for a machine without RDMA.
pub(super) async fn measure(
    plan: &Plan,
    mut sources: Sources,
    signals: &mut Signals,
) -> Result<Measured, Stop> {
    let no_rdma = sources.no_rdma.take();
    if no_rdma.is_some() {
        // Nothing exists to attach to.
        sources.pushing = None;
    }
    let settings = Settings {
        engine: EngineConfig {
            limits: TuiOptions::limits(),
            ..EngineConfig::keep_all()
        },
        filter: plan.filter.clone(),
        counters: true,
        tcp: plan.beside_log,
        ..Settings::default()
    };
    let mut ending = None;
    let (mut pump, ebpf) = Pump::start(sources, settings)?;
    if let Some(mut ebpf) = ebpf {
        let loaded = async {
            tokio::select! {
                loaded = timeout(stretched(START_LIMIT), ebpf.started()) => loaded.is_ok(),
                signal = signals.next() => { ending = Some(signal); false }
            }
        };
        if !pump.wait(loaded).await {
            say("rdmatop: the eBPF programs are not loaded yet: counting by netlink and /sys only");
        }
    }
    pump.sample().await?;
    let latest = pump.latest();
    if let (true, None, Some(error)) = (latest.devices.is_empty(), &no_rdma, latest.health.errors.first()) {
        // This is not "no RDMA": it is unknown.
        return Err(Stop::failure(format!(
            "cannot list the RDMA devices: {}",
            error.line()
        )));
    }
    let elsewhere = latest.health.note(CauseId::OtherNamespace);
    let nothing = nothing_to_show(plan, no_rdma.as_ref().or(elsewhere), latest.devices.len());
    // Without RDMA, too, the processes of a job may move data by TCP.
    if nothing.is_none() || plan.beside_log {
        targets::device(&plan.filter, pump.latest())?;
        if plan.delay_given && ending.is_none() {
            // A user who chose the window may wait for its end or interrupt it.
            let seconds = plan.delay.as_secs_f64();
            say(&format!(
                "rdmatop: measuring for {seconds} s; Ctrl-C ends it early"
            ));
        }
        pump.sample_psns().await?;
        for left in (0..plan.looks).rev() {
            if ending.is_none() {
                let closed = async {
                    tokio::select! {
                        () = sleep(plan.delay) => None,
                        signal = signals.next() => Some(signal),
                    }
                };
                ending = pump.wait(closed).await;
            }
            if left == 0 || ending.is_some() {
                break;
            }
            pump.sample().await?;
        }
        pump.last_sample().await?;
        pump.complete().await;
        targets::rdma_process(&plan.filter, pump.latest(), &Root::default())?;
        if let Some(line) = targets::comm(&plan.filter, pump.latest()) {
            say(&format!("rdmatop: {line}"));
        }
    }
    let mut snapshot = pump.subscribe().borrow().clone();
    fields::sort_processes(Arc::make_mut(&mut snapshot), plan.sort.as_deref());
    Ok((snapshot, nothing, ending))
}

async fn print(
    snapshot: &Snapshot,
    as_json: bool,
    signals: &mut Signals,
    ending: Option<Ending>,
) -> Result<(), Stop> {
    let text = if as_json {
        json::snapshot(snapshot)
    } else {
        line::once::page(snapshot)
    };
    print_text(text, signals, ending).await
}

/// Writes to stdout from a thread that may wait for the reader.
pub(super) async fn print_text(
    text: String,
    signals: &mut Signals,
    ending: Option<Ending>,
) -> Result<(), Stop> {
    hand_over(
        writer::whole(writer::stdout()?, text.into_bytes())?,
        signals,
        ending,
    )
    .await
}

/// Waits for the reader until a signal asks for the end, and then as long as the reader goes on: tens of
/// thousands of QPs are tens of megabytes, for which a program that parses them needs its time.
async fn hand_over(writing: Writer, signals: &mut Signals, ending: Option<Ending>) -> Result<(), Stop> {
    let Writer { printed, outcome } = writing;
    let over = async {
        if ending.is_none() {
            signals.next().await;
        }
        writer::stalls(&printed, GRACE).await;
    };
    tokio::select! {
        biased;
        written = outcome => written.unwrap_or(Ok(Written::ReaderGone)).map(|_| ()),
        () = over => Err(Stop::failure(
            "a signal ended it before all was printed: no process reads its stdout",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::atomic::Ordering;

    #[tokio::test]
    async fn a_reader_that_does_not_read_does_not_delay_a_requested_end() {
        let (read, write) = io::pipe().unwrap();
        let writing = writer::whole(write, vec![b'x'; 1 << 20]).unwrap();
        let mut signals = signals::take().unwrap();
        // The pipe fills first: what it takes looks as if a program read it.
        let mut before = 0;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            let taken = writing.printed.load(Ordering::Relaxed);
            if taken > 0 && taken == std::mem::replace(&mut before, taken) {
                break;
            }
        }
        let begin = std::time::Instant::now();
        let outcome = hand_over(writing, &mut signals, Some(Ending::Asked)).await;
        assert!(outcome.unwrap_err().line.contains("no process reads"));
        assert!(begin.elapsed() < GRACE * 2, "{:?}", begin.elapsed());
        drop(read);
    }

    #[tokio::test]
    async fn a_reader_that_goes_on_reading_gets_all_after_a_requested_end() {
        const ALL: usize = 1 << 20;
        let (mut read, write) = io::pipe().unwrap();
        let writing = writer::whole(write, vec![b'x'; ALL]).unwrap();
        let began = std::time::Instant::now();
        // Longer than the wait for a reader that does not read.
        let reader = std::thread::spawn(move || {
            let (mut part, mut all) = (vec![0; ALL / 4], 0);
            while all < ALL {
                std::thread::sleep(GRACE / 3);
                let end = part.len().min(ALL - all);
                io::Read::read_exact(&mut read, &mut part[..end]).unwrap();
                all += end;
            }
            all
        });
        let mut signals = signals::take().unwrap();
        let outcome = hand_over(writing, &mut signals, Some(Ending::Asked)).await;
        assert_eq!(outcome, Ok(()));
        assert_eq!(reader.join().unwrap(), ALL);
        assert!(began.elapsed() > GRACE);
    }

    #[tokio::test]
    async fn a_slow_reader_gets_all() {
        let (mut read, write) = io::pipe().unwrap();
        let writing = writer::whole(write, vec![b'x'; 1 << 20]).unwrap();
        let reader = std::thread::spawn(move || io::copy(&mut read, &mut io::sink()).unwrap());
        let mut signals = signals::take().unwrap();
        assert_eq!(hand_over(writing, &mut signals, None).await, Ok(()));
        assert_eq!(reader.join().unwrap(), 1 << 20);
    }
}
