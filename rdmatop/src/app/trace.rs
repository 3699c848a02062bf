//! `--trace` as lines or JSON.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::plan::{Mode, Plan};
use super::pump::{EbpfSide, Pump, Settings};
use super::signals::{Ending, Signals};
use super::sink::Sink;
use super::source::Sources;
use super::writer::{self, Format};
use super::{ready, say, summary, targets};
use crate::exit::{Exit, Stop, Written};
use crate::model::engine::EngineConfig;
use crate::model::snapshot::Snapshot;
use crate::source::root::Root;

/// What the end may take: the sources hand over what they have, the writer writes it.
const GRACE: Duration = Duration::from_secs(2);
/// How often an idle trace looks whether anybody still reads.
const LOOK: Duration = Duration::from_millis(500);

/// Why a trace ended.
enum Why {
    Signal(Ending),
    Duration,
    Reader(Result<Written, Stop>),
    Pump(Result<(), Stop>),
    NoEvents(String),
}

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    let sources = ready::sources(plan);
    let stdout = io::stdout()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| Stop::failure(format!("cannot use stdout: {e}")))?;
    follow(plan, sources, File::from(stdout)).await
}

/// Follows until something ends it; `out` takes the lines.
async fn follow(plan: &Plan, sources: Sources, out: File) -> Result<Exit, Stop> {
    if !sources.subsystem {
        let line = super::nothing_to_show(plan, sources.no_rdma.as_deref(), 0).unwrap_or_default();
        return Err(Stop::nothing(line));
    }
    if let Some(line) = &sources.no_rdma {
        say(&format!("rdmatop: {line}; waiting for one"));
    }
    let format = match plan.mode {
        Mode::Lines { json: true } => Format::Json,
        _ => Format::Lines,
    };
    let mut signals = Signals::take()?;
    let look_at = out
        .try_clone()
        .map_err(|e| Stop::failure(format!("cannot use stdout: {e}")))?;
    let (to, mut writer) = writer::start(format, out)?;
    let settings = Settings {
        engine: EngineConfig::default(),
        filter: plan.filter.clone(),
        counters: false,
    };
    let (mut pump, ebpf) = Pump::start(sources, settings)?;
    let Some(EbpfSide { mut started, stop }) = ebpf else {
        return Err(Stop::usage("--trace needs eBPF"));
    };
    let begin = Instant::now();
    let (end, mut ending) = watch::channel(None);
    let (_delay, mut delay) = watch::channel(plan.delay);
    let sink = Sink::Wait(to);
    let filter = plan.filter.clone();
    let check = move |all: &Snapshot| {
        targets::device(&filter, all)?;
        targets::process(&filter, all, &Root::default())
    };
    let why = {
        let pumping = pump.run(&sink, &mut delay, &mut ending, check);
        let deadline = deadline(begin, plan.duration);
        let unread = unread(look_at.as_fd());
        tokio::pin!(pumping, deadline, unread);
        let mut starting = true;
        let why = loop {
            tokio::select! {
                done = &mut pumping => break Why::Pump(done),
                signal = signals.next() => break Why::Signal(signal),
                () = &mut deadline => break Why::Duration,
                () = &mut unread => break Why::Reader(Ok(Written::ReaderGone)),
                written = &mut writer.outcome => break Why::Reader(written.unwrap_or(Ok(Written::ReaderGone))),
                outcome = &mut started, if starting => match outcome {
                    Ok(Ok(programs)) => {
                        starting = false;
                        say(&format!("rdmatop: tracing with {programs} programs; Ctrl-C ends"));
                    }
                    Ok(Err(why)) => break Why::NoEvents(why),
                    Err(_) => break Why::NoEvents("its thread did not start; are there too many threads?".to_owned()),
                },
            }
        };
        // Every way out asks the sources for what they still have, and waits for no more than the grace.
        stop();
        if !matches!(why, Why::Pump(_)) {
            end.send_replace(Some(Instant::now() + GRACE));
            // It can only fail on what the first snapshot says, and an end that was asked for wins over that.
            let _ = pumping.await;
        }
        why
    };
    // The last sender: the writer prints what it has and ends.
    drop(sink);
    let why = match why {
        Why::Reader(written) => Why::Reader(written),
        other => match timeout(GRACE, &mut writer.outcome).await {
            Ok(Ok(Err(stop))) => Why::Reader(Err(stop)),
            _ => other,
        },
    };
    let lost = pump.latest().health.lost_events;
    let printed = writer.printed.load(Ordering::Relaxed);
    if !matches!(why, Why::NoEvents(_) | Why::Pump(Err(_))) {
        say(&summary::line(pump.tally, printed, lost, begin.elapsed()));
    }
    why.outcome()
}

impl Why {
    fn outcome(self) -> Result<Exit, Stop> {
        match self {
            Self::Signal(ending) => ending.outcome(),
            Self::Duration | Self::Pump(Ok(())) => Ok(Exit::Ok),
            Self::Reader(written) => written.map(|_| Exit::Ok),
            Self::Pump(Err(stop)) => Err(stop),
            Self::NoEvents(why) => Err(Stop::failure(format!("no events without eBPF: {why}"))),
        }
    }
}

async fn deadline(begin: Instant, duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep_until(begin + duration).await,
        None => std::future::pending().await,
    }
}

/// Waits until nobody reads `out` any more. Only a write would tell, and an idle trace writes nothing.
async fn unread(out: BorrowedFd<'_>) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        // No event is asked for: poll(2) gives POLLERR all the same when the read end of a pipe is closed.
        let mut ends = [PollFd::from_borrowed_fd(out, PollFlags::empty())];
        if poll(&mut ends, Some(&now)).is_ok() && ends[0].revents().contains(PollFlags::ERR) {
            return;
        }
        sleep(LOOK).await;
    }
}
