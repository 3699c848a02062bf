//! The live view: the pump here, the screen on a thread of its own.

use std::{sync::Arc, thread, time::Duration};

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, interval_at, sleep, sleep_until, timeout},
};

use super::{
    heap,
    plan::{Mode, Plan},
    pump::{Pump, Settings},
    ready, signals,
    sink::{Sink, To},
    targets, work,
};
use crate::exit::{Exit, Stop};
use rdmatop_loader::{Prober, UserOptions, Watcher};
use rdmatop_model::{
    engine::EngineConfig,
    event::Event,
    snapshot::{QpRow, Snapshot},
    watched::{Picture, WatchState},
};
use rdmatop_sources::signals::{Ending, Signals};
use rdmatop_sources::{limits, seam::Sources};
use rdmatop_views::tui::{Control, Tab, TuiError, TuiOptions, settings::Sort, terminal};

/// Events between the engine and the screen. A screen that falls behind loses the oldest and shows their
/// number.
const EVENTS: usize = 8192;
/// The longest time that the eBPF side waits for the first rows. Loading and attaching programs would delay
/// the rows; but netlink may hang behind a driver, and then the programs are what still shows something.
const FIRST_ROWS: Duration = Duration::from_millis(100);
/// The longest time that the end may take.
const GRACE: Duration = Duration::from_secs(1);
/// The longest time that the screen may take to end. It receives the signals too and ends at once; one that
/// hangs is left behind.
const SCREEN: Duration = Duration::from_secs(2);

/// How long after the start rdmatop gives free memory back, and how often then. By the first time the
/// programs are attached; later, jobs come and go.
const TRIM: [Duration; 2] = [Duration::from_secs(8), Duration::from_mins(1)];

pub(super) async fn run(plan: &Plan) -> Result<Exit, Stop> {
    let options = options(plan);
    let settings = Settings {
        engine: EngineConfig {
            limits: options.settings.findings.clone(),
            ..EngineConfig::default()
        },
        filter: plan.filter.clone(),
        counters: true,
        feed: true,
        ..Settings::default()
    };
    // Done while all rights to open the terminal are held. Without a terminal the screen reports that.
    let _ = terminal::await_foreground();
    let (mut sources, prober) = ready::with_prober(plan, ready::begin(plan));
    let first_rows = hold_back(&mut sources, plan);
    let (mut pump, ebpf) = Pump::start(sources, settings)?;
    // The reports are not read here: the snapshots contain them.
    let stop_ebpf = ebpf.map(|ebpf| ebpf.stop);
    let mut on_request = OnRequest {
        first_rows,
        watcher: pump.take_feed().map(Watcher::new),
        prober,
        limit: plan.uprobe_limit,
    };
    let mut snapshots = pump.subscribe();
    let (to, events) = mpsc::channel(EVENTS);
    let (control, mut asked) = mpsc::channel(16);
    let (refresh, mut delay) =
        watch::channel(Duration::from_secs_f64(options.settings.delay.clamp(0.1, 3600.0)));
    let (end, mut ending) = watch::channel(None);
    let mut signals = signals::take()?;
    let mut screen = screen(options, pump.subscribe(), events, control)?;
    let mut sink = Sink::new(To::Live(to));
    let check = targets::check(plan.filter.clone());
    let deadline = plan.duration.map(|duration| Instant::now() + duration);
    let mut asked_to_end = None;
    let mut trim = interval_at(Instant::now() + TRIM[0], TRIM[1]);
    let (shown, failed) = {
        let late = late(&mut signals);
        tokio::pin!(late);
        let pumping = pump.run(&mut sink, &mut delay, &mut ending, check);
        tokio::pin!(pumping);
        let mut failed = None;
        let shown = loop {
            tokio::select! {
                done = &mut pumping, if failed.is_none() => {
                    // The screen ends with the snapshots, and must be gone before a line is printed.
                    failed = Some(done);
                    break None;
                }
                shown = &mut screen => break Some(shown),
                ending = &mut late => {
                    asked_to_end = Some(ending);
                    break None;
                }
                Some(control) = asked.recv() => {
                    on_request.obey(control, &refresh, &snapshots.borrow());
                }
                _ = trim.tick() => heap::trim(),
                Ok(()) = snapshots.changed() => on_request.let_go(&snapshots.borrow_and_update()),
                () = async { sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => break None,
            }
        };
        // `on_request` holds a feed, and an eBPF side that waits for the first rows holds another: the
        // channel ends when both are gone.
        drop(on_request);
        if let Some(stop) = stop_ebpf {
            stop();
        }
        if failed.is_none() {
            end.send_replace(Some(Instant::now() + GRACE));
            let _ = pumping.await;
        }
        (shown, failed)
    };
    drop(sink);
    drop(pump);
    // The wait for the screen gives the terminal back before anything is printed on it.
    let shown = match shown {
        Some(shown) => Some(shown),
        None => timeout(SCREEN, screen).await.ok(),
    };
    if shown.is_none() {
        let _ = terminal::restore();
    }
    match (failed, shown) {
        (Some(Err(stop)), _) => Err(stop),
        (_, None) => asked_to_end.map_or(Ok(Exit::Ok), signals::outcome),
        (_, Some(Ok(Ok(())))) => Ok(Exit::Ok),
        (_, Some(Ok(Err(error)))) => Err(Stop::failure(error.to_string())),
        (_, Some(Err(_))) => Err(Stop::failure(
            "the view ended by itself: this is a defect of rdmatop",
        )),
    }
}

/// Makes the eBPF side wait for the first rows, which the returned sender reports. Dropping the sender
/// cancels its start.
fn hold_back(sources: &mut Sources, plan: &Plan) -> Option<oneshot::Sender<()>> {
    // A trace shows events, which come from eBPF alone.
    if matches!(plan.mode, Mode::Live { trace: true }) {
        return None;
    }
    let ebpf = sources.pushing.take()?;
    let (shown, first_rows) = oneshot::channel();
    sources.pushing = Some(ebpf.after(first_rows, FIRST_ROWS));
    Some(shown)
}

/// What begins only when the screen asks for it.
struct OnRequest {
    first_rows: Option<oneshot::Sender<()>>,
    watcher: Option<Watcher>,
    prober: Option<Prober>,
    /// How much of a core the prober's probes may take.
    limit: f64,
}

impl OnRequest {
    /// Does what the screen asks for.
    fn obey(&mut self, control: Control, refresh: &watch::Sender<Duration>, all: &Snapshot) {
        match (control, &mut self.watcher) {
            (Control::Refresh(distance), _) => {
                refresh.send_replace(distance);
            }
            (Control::Watch(Some(uid)), Some(watcher)) => {
                if let Some(qp) = all.qps.iter().find(|qp| qp.uid == uid) {
                    watcher.watch(uid, work::watched(qp, all));
                }
            }
            (Control::Watch(None), Some(watcher)) => watcher.stop(),
            (Control::Probe(pid), _) => self.probe(pid, all),
            (Control::Shown, _) => {
                let _ = self.first_rows.take().map(|rows| rows.send(()));
            }
            (Control::Watch(_), None) | (Control::Quit, _) => {}
        }
    }

    /// Probes the programs of a process, or none.
    fn probe(&mut self, pid: Option<u32>, all: &Snapshot) {
        let Some(prober) = &mut self.prober else { return };
        let Some(pid) = pid else { return prober.stop() };
        let of = |qp: &&Arc<QpRow>| qp.pid == Some(pid) && !qp.exited;
        let qps = all.qps.iter().filter(of);
        let wanted = UserOptions {
            pid: Some(pid),
            limit: self.limit,
            ends: false,
        };
        // A query does not find a QP from before INIT, but its program still has to modify it, which shows
        // it.
        prober.probe(wanted, qps.map(|qp| (qp.device.to_string(), qp.qpn)).collect());
    }

    /// Detaches the programs that watch a QP once it is gone, and the probes once their process is.
    fn let_go(&mut self, all: &Snapshot) {
        let gone = |qp: &Picture| qp.state == WatchState::Gone;
        if let Some(watcher) = &mut self.watcher
            && all.watched.as_deref().is_some_and(gone)
        {
            watcher.detach();
        }
        let lives = |pid| {
            let mut processes = all.processes.iter();
            processes.any(|process| process.pid == Some(pid) && !process.exited)
        };
        if let Some(prober) = &mut self.prober
            && prober.pid().is_some_and(|pid| !lives(pid))
        {
            prober.stop();
        }
    }
}

/// Returns a signal when the screen has not ended for a while after it.
async fn late(signals: &mut Signals) -> Ending {
    let ending = signals.next().await;
    sleep(SCREEN).await;
    ending
}

/// The view's options from the command line; otherwise the user's settings.
fn options(plan: &Plan) -> TuiOptions {
    let mut options = TuiOptions::load();
    if matches!(plan.mode, Mode::Live { trace: true }) {
        options.tab = Tab::Trace;
    }
    if plan.delay_given {
        options.settings.delay = plan.delay.as_secs_f64();
    }
    if let Some(sort) = plan.sort.as_deref().and_then(Sort::of_processes) {
        options.settings.sort.insert(Tab::Processes, sort);
    }
    options.no_color |= !plan.color;
    options.uprobes = plan.uprobes.is_some();
    options
}

type Shown = Result<(), TuiError>;

/// The screen draws and waits for keys, on a thread and a runtime of its own.
fn screen(
    options: TuiOptions,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    events: mpsc::Receiver<Event>,
    control: mpsc::Sender<Control>,
) -> Result<oneshot::Receiver<Shown>, Stop> {
    let (done, screen) = oneshot::channel();
    let work = move || {
        let shown = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime.block_on(rdmatop_views::tui::run(options, snapshots, events, control)),
            Err(error) => Err(TuiError::Io(error)),
        };
        // The mode may have ended already.
        let _ = done.send(shown);
    };
    thread::Builder::new()
        .name("screen".to_owned())
        .spawn(work)
        .map_err(|e| {
            let remedy = limits::threads();
            Stop::failure(format!("cannot start the screen's thread: {e}; {remedy}"))
        })?;
    Ok(screen)
}
