//! `--trace` as lines or JSON.

use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::plan::Plan;
use super::pump::{EbpfSide, Pump, Settings};
use super::sink::{EventCounts, Sink, To};
use super::summary::{self, spell, why_unprinted};
use super::writer::{self, Format, Writer};
use super::{heap, ready, say, signals, targets, work};
use crate::exit::{Exit, Stop, Written};
use rdmatop_model::cause::CauseId;
use rdmatop_model::engine::EngineConfig;
use rdmatop_model::findings::Limits;
use rdmatop_model::input::{EbpfReport, EbpfState};
use rdmatop_model::snapshot::Health;
use rdmatop_sources::seam::Sources;
use rdmatop_sources::signals::Ending;
use rdmatop_views::tui::TuiOptions;

/// The longest time that the end may take: the sources hand over the rest, the writer writes it.
const GRACE: Duration = Duration::from_secs(2);
/// When the writer has written nothing for this long, its reader does not read.
const STALL: Duration = Duration::from_millis(500);
/// How often an idle trace checks whether its output is still read.
const LOOK: Duration = Duration::from_millis(500);

/// Why a trace ended.
enum Finish {
    Signal(Ending),
    Duration,
    Reader(Result<Written, Stop>),
    Pump(Result<(), Stop>),
    NoEvents(String),
}

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    heap::settle_for_trace();
    let sources = ready::sources(plan);
    follow(plan, sources, writer::stdout()?).await
}

/// Runs until something ends it; `out` takes the lines.
async fn follow(plan: &Plan, sources: Sources, out: File) -> Result<Exit, Stop> {
    if !sources.subsystem {
        let line = super::nothing_to_show(plan, sources.no_rdma.as_ref(), 0).unwrap_or_default();
        return Err(Stop::nothing(line));
    }
    if let Some(cause) = &sources.no_rdma {
        say(&format!("rdmatop: {}; waiting for one", cause.line()));
    }
    let format = if plan.json { Format::Json } else { Format::Lines };
    let mut signals = signals::take()?;
    let look_at = out
        .try_clone()
        .map_err(|e| Stop::failure(format!("cannot use stdout: {e}")))?;
    let (to, mut writer) = writer::start(format, out)?;
    let (mut pump, ebpf) = Pump::start(sources, settings(plan))?;
    let Some(EbpfSide { mut reports, stop }) = ebpf else {
        return Err(Stop::usage("--trace needs eBPF"));
    };
    let begin = Instant::now();
    let mut snapshots = pump.subscribe();
    let mut gap = Gap::default();
    let (end, mut ending) = watch::channel(None);
    let (_delay, mut delay) = watch::channel(plan.delay);
    let mut sink = Sink::new(To::Lines(format, to));
    let check = targets::check(plan.filter.clone());
    let mut probes = work::ProbeLines::of(plan);
    let why = {
        let pumping = pump.run(&mut sink, &mut delay, &mut ending, check);
        let unread = unread(look_at.as_fd());
        tokio::pin!(pumping, unread);
        let mut starting = true;
        // Printed once the QPs from before are known, too: from then on an event has the state of its QP.
        let (mut attached, mut synced) = (None, false);
        // Counted from the attach: loading may take seconds, in which no event is shown.
        let mut until = None;
        let why = loop {
            tokio::select! {
                done = &mut pumping => break Finish::Pump(done),
                signal = signals.next() => break Finish::Signal(signal),
                () = reached(until) => break Finish::Duration,
                () = &mut unread => break Finish::Reader(Ok(Written::ReaderGone)),
                written = &mut writer.outcome => break Finish::Reader(written.unwrap_or(Ok(Written::ReaderGone))),
                Some(report) = reports.recv() => match &report.state {
                    _ if !starting => gap.announce(&report),
                    EbpfState::Unavailable(no) => break Finish::NoEvents(no.why()),
                    _ => {
                        starting = false;
                        until = plan.duration.map(|duration| Instant::now() + duration);
                        attached = Some(report);
                    }
                },
                // The first round, or the report that it hangs.
                _ = snapshots.changed(), if !synced || probes.watches => synced = true,
            }
            if synced && !starting {
                say_probes(&mut probes, &snapshots.borrow().health);
            }
            if synced && let Some(programs) = attached.take() {
                say(&first_line(&programs));
                say_unseen(&programs);
                let unseen = plan.wants_work().then(|| work::unseen(plan, &snapshots.borrow()));
                unseen.iter().flatten().for_each(|line| say(line));
            }
        };
        // Every way out asks the sources for the rest, and waits no longer than the grace.
        stop();
        if !matches!(why, Finish::Pump(_)) {
            // Before the attach no event can be outstanding.
            let grace = if starting { Duration::ZERO } else { GRACE };
            end.send_replace(Some(Instant::now() + grace));
            // It can only fail because of the first snapshot, and a requested end takes precedence.
            let _ = pumping.await;
        }
        why
    };
    // The last sender: the writer prints the rest and ends.
    drop(sink);
    let (why, unprinted) = written(why, &mut writer).await;
    let health = &pump.latest().health;
    let printed = writer.printed.load(Ordering::Relaxed);
    if !matches!(why, Finish::NoEvents(_) | Finish::Pump(Err(_))) {
        let end = summary::End {
            printed,
            lost: health.lost_events,
            left_out: health.floods.iter().map(|flood| flood.failures).sum(),
            ran: begin.elapsed(),
            blind: gap.total(Instant::now()),
            unprinted,
        };
        say(&summary::line(pump.counts, &end));
        say_probes(&mut probes, health);
        say_left_out(health, pump.counts);
    }
    why.outcome()
}

/// Waits for the last pages, unless the writer has ended. Returns why the trace ends, and what was not
/// printed.
async fn written(why: Finish, writer: &mut Writer) -> (Finish, &'static str) {
    let outcome = match &why {
        Finish::Reader(written) => Some(written.clone()),
        _ => last_pages(writer).await,
    };
    let unprinted = why_unprinted(outcome.as_ref());
    match outcome {
        Some(Err(stop)) => (Finish::Reader(Err(stop)), unprinted),
        _ => (why, unprinted),
    }
}

/// How the engine runs: findings need limits, which the user may have set.
fn settings(plan: &Plan) -> Settings {
    let findings = plan.filter.shows_findings();
    let limits = if findings {
        TuiOptions::limits()
    } else {
        Limits::default()
    };
    Settings {
        engine: EngineConfig {
            limits,
            timelines: findings,
            ..EngineConfig::default()
        },
        filter: plan.filter.clone(),
        counters: false,
        findings,
        ..Settings::default()
    }
}

/// Prints what is new about probes on programs.
fn say_probes(probes: &mut work::ProbeLines, health: &Health) {
    for line in probes.anew(health) {
        say(&line);
    }
}

/// Prints what became of work requests, which processes made too many events, and what the kernel skipped.
fn say_left_out(health: &Health, counts: EventCounts) {
    if let Some(line) = work::summary(health, counts) {
        say(&line);
    }
    for flood in &health.floods {
        say(&format!("rdmatop: {flood}"));
    }
    for skipped in health.skipped.iter().flatten() {
        say(&format!("rdmatop: {skipped}"));
    }
}

/// Waits for the writer as long as it writes pages, and no longer than the grace. `None`: it has not ended.
async fn last_pages(writer: &mut Writer) -> Option<Result<Written, Stop>> {
    tokio::select! {
        biased;
        written = &mut writer.outcome => written.ok(),
        () = writer::stalls(&writer.printed, STALL) => None,
        () = sleep(GRACE) => None,
    }
}

impl Finish {
    fn outcome(self) -> Result<Exit, Stop> {
        match self {
            Self::Signal(ending) => signals::outcome(ending),
            Self::Duration | Self::Pump(Ok(())) => Ok(Exit::Ok),
            Self::Reader(written) => written.map(|_| Exit::Ok),
            Self::Pump(Err(stop)) => Err(stop),
            Self::NoEvents(why) => Err(Stop::failure(format!("no events without eBPF: {why}"))),
        }
    }
}

/// The time in which nothing was attached: events in it cannot be counted.
#[derive(Debug, Default)]
struct Gap {
    since: Option<Instant>,
    before: Duration,
}

impl Gap {
    /// Prints what changed, and what is no longer seen.
    fn announce(&mut self, report: &EbpfReport) {
        say(&self.change(report, Instant::now()));
        if report.state.is_on() {
            say_unseen(report);
        }
    }

    fn change(&mut self, report: &EbpfReport, now: Instant) -> String {
        if let EbpfState::Unavailable(no) = &report.state {
            self.since.get_or_insert(now);
            return format!("rdmatop: no events from now on: {}", no.why());
        }
        let line = attached(report);
        let Some(since) = self.since.take() else {
            return format!(
                "{line}, again, because an RDMA module was loaded or unloaded; an event at that moment may be missing"
            );
        };
        let blind = now.duration_since(since);
        self.before += blind;
        format!("{line}, again; events of {} are missing", spell(blind))
    }

    fn total(&self, now: Instant) -> Duration {
        let present = self.since.map(|since| now.duration_since(since));
        self.before + present.unwrap_or_default()
    }
}

/// Prints what is not seen, but for two causes: the first line names the modules that stay loaded, and the
/// line about a change says that programs were attached anew.
fn say_unseen(report: &EbpfReport) {
    let said = |id| matches!(id, CauseId::Pinned | CauseId::AttachedAnew);
    for cause in report.notes.iter().filter(|cause| !said(cause.id)) {
        say(&format!("rdmatop: {cause}"));
    }
}

fn attached(report: &EbpfReport) -> String {
    format!("rdmatop: tracing, programs attached: {}", report.programs)
}

/// The lines of a trace on stderr once it counts.
fn first_line(report: &EbpfReport) -> String {
    let ends = match report.pinned.as_slice() {
        [] => "Ctrl-C ends".to_owned(),
        modules => format!(
            "{} cannot be unloaded until Ctrl-C ends it (--attach fentry)",
            modules.join(", ")
        ),
    };
    format!("{}; {ends}", attached(report))
}

async fn reached(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Waits until no process reads `out` any more. Only a write would show that, and an idle trace writes
/// nothing.
async fn unread(out: BorrowedFd<'_>) {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        // No event is requested: poll(2) returns POLLERR all the same when the read end of a pipe is closed.
        let mut ends = [PollFd::from_borrowed_fd(out, PollFlags::empty())];
        if poll(&mut ends, Some(&now)).is_ok() && ends[0].revents().contains(PollFlags::ERR) {
            return;
        }
        sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::plan::{Terminal, plan};
    use crate::app::testkit::{Fake, devices};
    use crate::cli::Cli;
    use clap::Parser;
    use rdmatop_common::event::{QpRecord, Record, flag, kind};
    use rdmatop_model::cause::{Concerns, Obstacle};
    use rdmatop_model::ib::PortState;
    use rdmatop_model::input::{DeviceReading, DevicesSample, Input, PortReading, QpReading, QpsSample};
    use rdmatop_sources::clock::now;
    use rdmatop_sources::seam::{Feed, Pushing};
    use std::io::{self, Read};
    use std::sync::mpsc;
    use zerocopy::FromZeros;

    fn created(qpn: u32) -> Input {
        let mut record = QpRecord::new_zeroed();
        record.prefix.kind = kind::QP_CREATE;
        record.prefix.ts_ns = u64::from(qpn);
        record.prefix.object = u64::from(qpn) * 64;
        record.prefix.flags = flag::DEVICE | flag::OWNER_TASK;
        record.prefix.device[..4].copy_from_slice(b"rxe0");
        record.prefix.owner_pid = std::process::id();
        record.qpn = qpn;
        record.qp_type = 2;
        Input::Records(vec![Record::Qp(record)])
    }

    fn on(programs: usize) -> EbpfReport {
        EbpfReport {
            state: EbpfState::On {
                datapaths: rdmatop_model::input::DataPaths::default(),
            },
            programs,
            ..EbpfReport::default()
        }
    }

    fn off(why: &str) -> EbpfReport {
        EbpfReport {
            state: EbpfState::unavailable(Obstacle::new(CauseId::NoCapability, why, "")),
            ..EbpfReport::default()
        }
    }

    /// An eBPF side that sends this many records, half of them only when it is asked to stop.
    fn records(count: u32) -> Pushing {
        let (stop, stopped) = mpsc::channel();
        let start = move |feed: Feed| {
            std::thread::spawn(move || {
                feed.send_blocking(Input::Ebpf(Box::new(on(0)))).unwrap();
                for qpn in 1..=count {
                    if qpn == count / 2 {
                        stopped.recv().unwrap();
                    }
                    feed.send_blocking(created(qpn)).unwrap();
                }
            });
        };
        Pushing {
            start: Box::new(start),
            stop: Box::new(move || stop.send(()).unwrap()),
        }
    }

    fn planned(args: &[&str]) -> Plan {
        let cli = Cli::try_parse_from(["rdmatop", "--trace"].iter().chain(args)).unwrap();
        plan(&cli, Terminal::default()).unwrap()
    }

    fn machine(pushing: Pushing) -> Sources {
        Sources {
            polled: vec![Box::new(Fake::new(vec![vec![devices(&["rxe0"])]]))],
            pushing: Some(pushing),
            subsystem: true,
            ..Sources::default()
        }
    }

    async fn traced(args: &[&str], sources: Sources) -> (Result<Exit, Stop>, String) {
        let mut page = tempfile::tempfile().unwrap();
        let outcome = follow(&planned(args), sources, page.try_clone().unwrap()).await;
        let mut text = String::new();
        io::Seek::rewind(&mut page).unwrap();
        page.read_to_string(&mut text).unwrap();
        (outcome, text)
    }

    #[tokio::test]
    async fn what_the_sources_hand_over_at_the_end_is_printed_too() {
        let (outcome, text) = traced(&["--json", "--for", "0.3"], machine(records(5000))).await;
        assert_eq!(outcome, Ok(Exit::Ok));
        let qpns: Vec<u64> = text
            .lines()
            .map(|line| {
                serde_json::from_str::<serde_json::Value>(line).unwrap()["qpn"]
                    .as_u64()
                    .unwrap()
            })
            .collect();
        assert_eq!(qpns, (1..=5000).collect::<Vec<u64>>());
    }

    /// A device whose only port is in this state, under a QP of a process.
    fn port(state: u8) -> Vec<Input> {
        let mut devices = DevicesSample {
            mono_ns: now().mono_ns,
            devices: vec![DeviceReading {
                index: 0,
                name: "rxe0".to_owned(),
                ports: vec![PortReading {
                    number: 1,
                    state: Some(PortState(state)),
                    ..PortReading::default()
                }],
                ..DeviceReading::default()
            }],
            ..DevicesSample::default()
        };
        devices.devices[0].resources.insert("qp".to_owned(), 1);
        let qp = QpReading {
            device_index: 0,
            port: Some(1),
            qpn: 17,
            qp_type: None,
            state: None,
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: Some(std::process::id()),
            kern_name: None,
        };
        let qps = QpsSample {
            mono_ns: now().mono_ns,
            qps: vec![qp],
            ..QpsSample::default()
        };
        vec![Input::Devices(Box::new(devices)), Input::Qps(Box::new(qps))]
    }

    /// The events of a trace of 14 s in which the port is down for 2.4 s, longer on a busy machine, by name.
    async fn with_a_port_that_goes_down(args: &[&str]) -> (Vec<serde_json::Value>, u64) {
        let mut rounds: Vec<Vec<Input>> = (0..24).map(|_| port(1)).collect();
        rounds.push(port(4));
        let mut sources = machine(records(4));
        let source = Fake::new(rounds);
        let asked = std::sync::Arc::clone(&source.asked);
        sources.polled = vec![Box::new(source)];
        let args = [&["--json", "--delay", "0.1", "--for", "14"], args].concat();
        let (outcome, text) = traced(&args, sources).await;
        assert_eq!(outcome, Ok(Exit::Ok));
        let looks = asked
            .lock()
            .unwrap()
            .iter()
            .filter(|wants| wants.counters)
            .count();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        (lines.collect(), looks as u64)
    }

    #[tokio::test]
    async fn a_finding_is_a_line_when_it_is_raised_and_one_when_it_is_cleared() {
        let (lines, looks) = with_a_port_that_goes_down(&[]).await;
        let found: Vec<_> = lines.iter().filter(|line| !line["finding"].is_null()).collect();
        let [raised, cleared] = &found[..] else {
            panic!("{found:#?}")
        };
        assert_eq!(
            (&raised["event"], &cleared["event"]),
            (&"finding_raise".into(), &"finding_clear".into())
        );
        for line in [raised, cleared] {
            assert_eq!(line["finding"]["id"], "port-down");
            assert_eq!(
                (&line["device"], &line["pid"]),
                (&"rxe0".into(), &std::process::id().into())
            );
        }
        assert!(looks > 10, "{looks}");
        assert_eq!(lines.len(), 6, "four records");
    }

    #[tokio::test]
    async fn a_trace_looks_for_no_findings_of_events_or_processes_that_it_lacks() {
        let ((events, looks), (findings, _)) = tokio::join!(
            with_a_port_that_goes_down(&["--event", "qp"]),
            with_a_port_that_goes_down(&["--event", "finding"]),
        );
        assert_eq!((events.len(), looks), (4, 0), "{events:#?}");
        assert_eq!(findings.len(), 2, "{findings:#?}");
    }

    #[test]
    fn the_first_line_names_the_modules_that_stay_loaded() {
        let mut started = on(5);
        assert_eq!(
            first_line(&started),
            "rdmatop: tracing, programs attached: 5; Ctrl-C ends"
        );
        started.pinned = ["ib_core", "ib_uverbs"].map(str::to_owned).into();
        assert_eq!(
            first_line(&started),
            "rdmatop: tracing, programs attached: 5; ib_core, ib_uverbs cannot be unloaded until Ctrl-C ends it \
             (--attach fentry)"
        );
    }

    #[test]
    fn a_time_without_programs_is_reported_at_both_ends_and_in_the_sum() {
        let (mut gap, begin) = (Gap::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let anew = gap.change(&on(5), begin);
        assert!(
            anew.contains("attached: 5, again, because") && anew.contains("may be missing"),
            "{anew}"
        );
        assert_eq!(gap.total(at(9)), Duration::ZERO);
        let blind = gap.change(&off("too many open files"), at(1));
        assert_eq!(blind, "rdmatop: no events from now on: too many open files");
        gap.change(&off("still"), at(2));
        assert_eq!(gap.total(at(4)), Duration::from_secs(3));
        let again = gap.change(&on(5), at(5));
        assert!(again.ends_with("again; events of 4.00s are missing"), "{again}");
        assert_eq!(gap.total(at(9)), Duration::from_secs(4));
    }

    #[tokio::test]
    async fn lines_stand_under_a_header() {
        let (outcome, text) = traced(&["--for", "0.2"], machine(records(4))).await;
        assert_eq!(outcome, Ok(Exit::Ok));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(
            lines[0].starts_with("TIME(UTC)") && lines[4].contains("qp_create"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn an_unknown_device_ends_the_trace_and_names_the_known() {
        let (outcome, _) = traced(&["--device", "rxe9"], machine(records(4))).await;
        let line = outcome.unwrap_err().line;
        assert_eq!(line, "--device rxe9: no such RDMA device; there is rxe0");
    }

    #[tokio::test]
    async fn without_programs_a_line_says_that_there_are_no_events() {
        let pushing = Pushing {
            start: Box::new(|feed| {
                feed.offer(Input::Ebpf(Box::new(off("CAP_BPF missing")))).unwrap();
            }),
            stop: Box::new(|| ()),
        };
        let (outcome, _) = traced(&[], machine(pushing)).await;
        assert_eq!(
            outcome,
            Err(Stop::failure("no events without eBPF: CAP_BPF missing"))
        );
    }

    #[tokio::test]
    async fn a_machine_without_rdma_has_nothing_to_trace() {
        let mut sources = machine(records(0));
        let cause = Obstacle::new(CauseId::NoRdmaSubsystem, "x", "").takes("No RDMA", Concerns::Host);
        (sources.subsystem, sources.no_rdma) = (false, Some(cause));
        let (outcome, text) = traced(&[], sources).await;
        assert_eq!((outcome, text.as_str()), (Err(Stop::nothing("No RDMA: x")), ""));
    }

    #[tokio::test]
    async fn a_reader_that_does_not_read_does_not_keep_the_end() {
        let (read, write) = io::pipe().unwrap();
        let begin = Instant::now();
        let outcome = follow(
            &planned(&["--for", "0.2"]),
            machine(records(20_000)),
            std::os::fd::OwnedFd::from(write).into(),
        )
        .await;
        assert_eq!(outcome, Ok(Exit::Ok));
        // Without a bound it would never end; how long the bounds take depends on the machine's load.
        assert!(begin.elapsed() < Duration::from_mins(1), "{:?}", begin.elapsed());
        drop(read);
    }

    #[tokio::test]
    async fn a_closed_pipe_ends_an_idle_trace() {
        let (read, write) = io::pipe().unwrap();
        drop(read);
        let begin = Instant::now();
        let outcome = follow(
            &planned(&[]),
            machine(records(3)),
            std::os::fd::OwnedFd::from(write).into(),
        )
        .await;
        assert_eq!(outcome, Ok(Exit::Ok));
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}
