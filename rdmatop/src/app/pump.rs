//! Turns messages into snapshots and events: the one place that owns the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::heap::{self, Settling};
use super::reorder::HOLD_NS;
use super::sampler::Sampler;
use super::sink::{End, Sink, Tally, asked, over};
use super::source::{Feed, Message, Sources, Wants};
use super::time::now;
use crate::exit::Stop;
use crate::model::engine::{Engine, EngineConfig};
use crate::model::filter::Filter;
use crate::model::input::{EbpfReport, EbpfState, Input};
use crate::model::snapshot::Snapshot;

/// Messages between the sources and the engine. The bulk are batches of records (`RECORDS_AT_A_TIME` in the eBPF
/// manager): some 4 MB of them at most.
const CHANNEL: usize = 64;
/// Messages taken at a time: snapshots and signals wait for no more than these.
const BATCH: usize = 8;
/// A round that takes longer has hung.
const HANG: Duration = if cfg!(test) {
    Duration::from_millis(200)
} else {
    Duration::from_secs(3)
};
/// After the end's grace, sources that send nothing for so long have nothing, or have hung.
const QUIET: Duration = Duration::from_millis(50);
/// Between the two samples of a one-shot mode new processes are looked up this often: a process that ends before the second
/// sample has left /proc by then.
const LOOK_UP: Duration = Duration::from_millis(200);
/// A one-shot mode gives up on a round after this.
const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// What an event may wait for others that happened before it.
const HOLD: Duration = Duration::from_nanos(HOLD_NS);

/// Events up to this time wait no longer: one has come that is younger by what they may wait.
fn settled(sink: &Sink) -> u64 {
    sink.newest_ns().saturating_sub(HOLD_NS)
}

/// How to run the engine.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Of the engine.
    pub(super) engine: EngineConfig,
    /// What the view gets to see.
    pub(super) filter: Filter,
    /// Counters are looked at.
    pub(super) counters: bool,
}

/// The part of the eBPF side that a mode holds.
pub(super) struct EbpfSide {
    /// Its state at each change, as the engine was given it. Not bounded: a module that is loaded or unloaded is one or
    /// two.
    pub(super) reports: mpsc::UnboundedReceiver<EbpfReport>,
    /// Asks it to hand over what it has and to end.
    pub(super) stop: Box<dyn FnOnce() + Send>,
}

impl EbpfSide {
    /// The first report: what counts, or why nothing does.
    pub(super) async fn started(&mut self) -> Option<EbpfReport> {
        self.reports.recv().await
    }
}

/// The engine and what it is fed from.
pub(super) struct Pump {
    engine: Engine,
    messages: mpsc::Receiver<Message>,
    sampler: Option<Sampler>,
    dropped: Arc<AtomicU64>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    settings: Settings,
    round: u64,
    ordered: Option<Instant>,
    latest: Arc<Snapshot>,
    /// The round that was ordered last reads next to nothing.
    light: bool,
    /// eBPF was on when the last round but one ended: the QP table has been dumped since.
    synced: bool,
    /// Lifecycle records seen when the last round was ordered.
    told_events: u64,
    /// The processes that the first round found were asked for.
    introduced: bool,
    /// A round that only looks up processes is under way: its end is the next one, and is no sample's.
    looking_up: bool,
    settling: Settling,
    /// What became of the events.
    pub(super) tally: Tally,
    /// For the mode: reports of the eBPF side.
    report: mpsc::UnboundedSender<EbpfReport>,
    /// One came since the last round was ordered.
    reported: bool,
}

impl Pump {
    /// Starts the sources. Nothing is asked of them yet.
    pub(super) fn start(sources: Sources, settings: Settings) -> Result<(Self, Option<EbpfSide>), Stop> {
        let (to, messages) = mpsc::channel(CHANNEL);
        let dropped = Arc::new(AtomicU64::new(0));
        // The pump keeps no feed: the channel ends when the last source has let go of its own.
        let feed = Feed::new(to, Arc::clone(&dropped));
        let sampler = Sampler::start(sources.polled, feed.clone())?;
        let (report, reports) = mpsc::unbounded_channel();
        let ebpf = sources.pushing.map(|pushing| {
            (pushing.start)(feed);
            EbpfSide {
                reports,
                stop: pushing.stop,
            }
        });
        let mut engine = Engine::new(EngineConfig {
            nested_pids: sources.nested_pids,
            ebpf: sources.ebpf,
            ..settings.engine.clone()
        });
        let latest = engine.tick(now());
        let pump = Self {
            engine,
            messages,
            sampler: Some(sampler),
            dropped,
            snapshots: watch::Sender::new(Arc::clone(&latest)),
            settings,
            round: 0,
            ordered: None,
            latest,
            light: false,
            synced: false,
            told_events: 0,
            introduced: false,
            looking_up: false,
            settling: Settling::default(),
            tally: Tally::default(),
            report,
            reported: false,
        };
        Ok((pump, ebpf))
    }

    /// Snapshots as the view gets them: filtered.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// The last snapshot, whole.
    pub(super) fn latest(&self) -> &Arc<Snapshot> {
        &self.latest
    }

    /// One round of sampling, waited for. For modes that print once.
    pub(super) async fn sample(&mut self) -> Result<(), Stop> {
        self.order(false, true);
        self.answer().await
    }

    /// As [`Pump::sample`], for the round after which nothing more is asked.
    pub(super) async fn last_sample(&mut self) -> Result<(), Stop> {
        self.order(true, true);
        self.answer().await
    }

    async fn answer(&mut self) -> Result<(), Stop> {
        let mut sink = Sink::Nobody;
        let (_nobody, mut end) = watch::channel(None);
        let answered = async {
            while let Some(message) = self.messages.recv().await {
                if self.take(message, &mut sink, &mut end).await {
                    return true;
                }
            }
            false
        };
        match timeout(ROUND_LIMIT, answered).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Stop::failure(
                "sampling ended by itself: this is a defect of rdmatop",
            )),
            Err(_) => Err(Stop::failure(format!(
                "no answer from {} for {} s; a driver may hold the kernel's RDMA lock, see dmesg",
                self.sampler.as_ref().map_or("sampling", Sampler::busy_with),
                ROUND_LIMIT.as_secs()
            ))),
        }
    }

    /// Takes messages until `until` is ready. For modes that print once.
    pub(super) async fn wait<T>(&mut self, until: impl Future<Output = T>) -> T {
        let mut sink = Sink::Nobody;
        let (_nobody, mut end) = watch::channel(None);
        tokio::pin!(until);
        let mut next = Instant::now() + LOOK_UP;
        loop {
            tokio::select! {
                biased;
                done = &mut until => return done,
                () = sleep_until(next) => {
                    next = Instant::now() + LOOK_UP;
                    self.look_up();
                }
                Some(message) = self.messages.recv() => {
                    self.take(message, &mut sink, &mut end).await;
                }
                else => return until.await,
            }
        }
    }

    /// Samples at `delay` and takes messages until the end is asked for; then takes what the sources still
    /// hand over until they have let go, or until the grace is over. `check` sees the first snapshot.
    pub(super) async fn run(
        &mut self,
        sink: &mut Sink,
        delay: &mut watch::Receiver<Duration>,
        end: &mut End,
        check: impl Fn(&Snapshot) -> Result<(), Stop>,
    ) -> Result<(), Stop> {
        let mut batch = Vec::with_capacity(BATCH);
        let mut checked = false;
        let mut next = Instant::now();
        let mut watch_delay = true;
        let mut ending = end.clone();
        // What the sink held at some moment has waited long enough at another.
        let (mut release, mut waited_ns) = (Instant::now(), 0);
        loop {
            tokio::select! {
                biased;
                () = asked(&mut ending) => break,
                () = sleep_until(release), if sink.holds() => {
                    sink.flush(waited_ns, &mut self.tally, end).await;
                    (release, waited_ns) = (Instant::now() + HOLD, sink.newest_ns());
                }
                () = sleep_until(next) => {
                    next = Instant::now() + *delay.borrow();
                    self.due();
                }
                changed = delay.changed(), if watch_delay => {
                    watch_delay = changed.is_ok();
                    next = next.min(Instant::now() + *delay.borrow_and_update());
                }
                taken = self.messages.recv_many(&mut batch, BATCH) => {
                    if taken == 0 {
                        return Err(Stop::failure("all sources ended by themselves: this is a defect of rdmatop"));
                    }
                    let (mut first, held) = (false, sink.holds());
                    for message in batch.drain(..) {
                        first |= self.take(message, sink, end).await && !checked;
                    }
                    sink.flush(settled(sink), &mut self.tally, end).await;
                    if !held {
                        (release, waited_ns) = (Instant::now() + HOLD, sink.newest_ns());
                    }
                    if first {
                        checked = true;
                        check(&self.latest)?;
                    }
                }
            }
        }
        self.drain(sink, end, &mut ending).await;
        Ok(())
    }

    async fn drain(&mut self, sink: &mut Sink, end: &mut End, over_at: &mut End) {
        self.sampler = None;
        loop {
            tokio::select! {
                biased;
                message = self.messages.recv() => match message {
                    Some(message) => { self.take(message, sink, end).await; }
                    None => break,
                },
                () = over(over_at) => break,
            }
        }
        // Nothing waits any more: what is still on its way is seen, and refused where the view takes nothing.
        while let Ok(Some(message)) = timeout(QUIET, self.messages.recv()).await {
            self.take(message, sink, end).await;
            sink.flush(settled(sink), &mut self.tally, end).await;
        }
        self.tick(sink, end).await;
        sink.flush(u64::MAX, &mut self.tally, end).await;
    }

    /// It is time for a round: orders one, or says that the one before has hung.
    fn due(&mut self) {
        let Some(since) = self.ordered else {
            return self.order(false, false);
        };
        if since.elapsed() < HANG {
            return;
        }
        let name = self.sampler.as_ref().map_or("sampling", Sampler::busy_with);
        let line = format!(
            "no answer from {name} for {} s: values below are old",
            since.elapsed().as_secs()
        );
        let mut snapshot = self.engine.tick(now());
        Arc::make_mut(&mut snapshot).health.errors.push(line);
        self.publish(snapshot);
    }

    fn order(&mut self, last: bool, once: bool) {
        let on = self.latest.health.follows_qps;
        let repair = self.round == 0 || (on && !self.synced) || self.engine.wants_repair();
        let mut wants = Wants {
            round: self.round,
            qps: repair || !on,
            repair,
            machine: std::mem::take(&mut self.reported),
            objects: self.told_events != self.latest.health.events,
            counters: self.settings.counters,
            last,
            once,
            processes: Arc::default(),
            only_processes: false,
        };
        self.told_events = self.latest.health.events;
        self.light = wants.is_light();
        if !self.light {
            wants.processes = self.engine.wants_process().into();
        }
        // A dump that began before the programs counted may miss what came between.
        self.synced = on;
        self.send(wants);
    }

    fn send(&mut self, wants: Wants) {
        self.round += 1;
        self.ordered = Some(Instant::now());
        if let Some(sampler) = &self.sampler {
            sampler.order(wants);
        }
    }

    /// Asks who the processes are that the first round found; true when there are any. The first snapshot then has
    /// their names: ten thousand rows that get them with the second would be in memory twice.
    fn introduce(&mut self) -> bool {
        let mut wants = Wants {
            round: self.round,
            counters: self.settings.counters,
            ..Wants::default()
        };
        // A light round would not look at processes.
        if std::mem::replace(&mut self.introduced, true) || wants.is_light() {
            return false;
        }
        wants.processes = self.engine.wants_process().into();
        if wants.processes.is_empty() {
            return false;
        }
        self.send(wants);
        true
    }

    /// Asks who the processes are that appeared since the last round, outside of a sample.
    fn look_up(&mut self) {
        if self.ordered.is_some() || self.looking_up || !self.settings.counters {
            return;
        }
        let wants = Wants {
            round: self.round,
            counters: true,
            processes: self.engine.wants_process().into(),
            only_processes: true,
            ..Wants::default()
        };
        if let Some(sampler) = self.sampler.as_ref().filter(|_| !wants.processes.is_empty()) {
            self.looking_up = true;
            sampler.order(wants);
        }
    }

    /// True when a round is done.
    async fn take(&mut self, message: Message, sink: &mut Sink, end: &mut End) -> bool {
        match message {
            Message::Input(input) => {
                if let Input::Ebpf(report) = &input {
                    self.reported = true;
                    // A mode that does not listen has the notes.
                    let _ = self.report.send((**report).clone());
                }
                self.apply(input, sink, end).await;
                false
            }
            Message::RoundDone if self.looking_up => {
                self.looking_up = false;
                false
            }
            Message::RoundDone => {
                self.ordered = None;
                if self.introduce() {
                    return false;
                }
                if self.light {
                    self.engine.forget(now());
                } else {
                    self.tick(sink, end).await;
                }
                true
            }
        }
    }

    async fn apply(&mut self, input: Input, sink: &mut Sink, end: &mut End) {
        let Self {
            engine,
            settings,
            tally,
            ..
        } = self;
        engine.fold(input, now(), &mut |event| {
            sink.give(event, &settings.filter, tally);
        });
        if sink.is_full() {
            sink.flush(settled(sink), tally, end).await;
        }
    }

    async fn tick(&mut self, sink: &mut Sink, end: &mut End) {
        // What the live view refused is lost to the user as much as what found our own channel full.
        let live = matches!(sink, Sink::Drop(_));
        let refused = if live { self.tally.refused } else { 0 };
        let dropped = self.dropped.load(Ordering::Relaxed) + refused;
        if dropped > 0 {
            self.apply(Input::ChannelDropped(dropped), sink, end).await;
        }
        let snapshot = self.engine.tick(now());
        let started = snapshot.health.ebpf != EbpfState::Starting;
        let rows = snapshot.qps.len();
        self.publish(snapshot);
        if live && self.settling.is_due(rows, self.engine.rows_remade(), started) {
            heap::give_back();
        }
    }

    fn publish(&mut self, snapshot: Arc<Snapshot>) {
        let filter = &self.settings.filter;
        let rows = Filter {
            events: Vec::new(),
            ..filter.clone()
        };
        let shown = if rows.is_empty() {
            Arc::clone(&snapshot)
        } else {
            Arc::new(rows.apply(&snapshot))
        };
        self.latest = snapshot;
        self.snapshots.send_replace(shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::fake::{Fake, devices};
    use crate::app::source::Source;
    use crate::model::input::{QpReading, QpsSample};

    fn pump(source: Fake, filter: Filter) -> Pump {
        let polled: Vec<Box<dyn Source>> = vec![Box::new(source)];
        let sources = Sources {
            polled,
            subsystem: true,
            ..Sources::default()
        };
        let settings = Settings {
            filter,
            counters: true,
            ..Settings::default()
        };
        Pump::start(sources, settings).map(|(pump, _)| pump).unwrap()
    }

    fn programs(follows_qps: bool) -> Input {
        Input::Ebpf(Box::new(EbpfReport {
            state: EbpfState::On {
                datapaths: crate::model::input::DataPaths::default(),
            },
            follows_qps,
            ..EbpfReport::default()
        }))
    }

    fn on() -> Vec<Input> {
        vec![programs(true)]
    }

    fn named(name: &str) -> Filter {
        Filter {
            device: Some(name.to_owned()),
            ..Filter::default()
        }
    }

    #[tokio::test]
    async fn the_view_gets_what_the_filter_lets_and_the_mode_sees_all() {
        let mut pump = pump(Fake::new(vec![vec![devices(&["rxe0", "rxe1"])]]), named("rxe1"));
        pump.sample().await.unwrap();
        assert_eq!(pump.latest().devices.len(), 2);
        let shown = pump.subscribe().borrow().clone();
        assert_eq!(
            shown.devices.iter().map(|d| &*d.name).collect::<Vec<_>>(),
            ["rxe1"]
        );
    }

    #[tokio::test]
    async fn without_programs_every_round_dumps_the_queue_pairs() {
        let source = Fake::new(Vec::new());
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        for _ in 0..3 {
            pump.sample().await.unwrap();
        }
        let asked = asked.lock().unwrap();
        assert_eq!(
            asked.iter().map(|w| (w.round, w.qps)).collect::<Vec<_>>(),
            [(0, true), (1, true), (2, true)]
        );
    }

    #[tokio::test]
    async fn the_last_round_is_told_that_it_is_the_last() {
        let source = Fake::new(Vec::new());
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        pump.sample().await.unwrap();
        pump.last_sample().await.unwrap();
        let asked = asked.lock().unwrap();
        assert_eq!(asked.iter().map(|w| w.last).collect::<Vec<_>>(), [false, true]);
    }

    /// A dump in which `pid` owns QP 17.
    fn dump_of(pid: u32) -> QpsSample {
        let reading = QpReading {
            device_index: 0,
            port: None,
            qpn: 17,
            qp_type: None,
            state: None,
            remote_qpn: None,
            sq_psn: None,
            rq_psn: None,
            pid: Some(pid),
            kern_name: None,
        };
        QpsSample {
            mono_ns: 1,
            qps: vec![reading],
            ..QpsSample::default()
        }
    }

    #[tokio::test]
    async fn the_first_snapshot_knows_who_the_processes_of_the_first_round_are() {
        use crate::model::input::ProcessFacts;
        let dump = dump_of(231);
        let facts = ProcessFacts {
            pid: 231,
            comm: Some("ib_send_bw".to_owned()),
            ..ProcessFacts::default()
        };
        let rounds = vec![
            vec![Input::Qps(Box::new(dump))],
            vec![Input::Process(Box::new(facts))],
        ];
        let source = Fake::new(rounds);
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        pump.sample().await.unwrap();
        assert_eq!(pump.latest().qps[0].comm.as_deref(), Some("ib_send_bw"));
        pump.sample().await.unwrap();
        let asked = asked.lock().unwrap();
        let processes: Vec<&[u32]> = asked.iter().map(|wants| &*wants.processes).collect();
        assert_eq!(processes, [&[][..], &[231], &[]]);
        assert_eq!(
            asked.iter().map(|wants| wants.round).collect::<Vec<_>>(),
            [0, 1, 2]
        );
    }

    #[tokio::test]
    async fn a_process_of_the_window_is_looked_up_before_the_window_closes_and_that_is_no_sample() {
        let dump = dump_of(231);
        let source = Fake::new(Vec::new());
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        pump.sample().await.unwrap();
        let first = Arc::clone(pump.latest());
        // As a record of a QP's creation would.
        pump.engine.apply(Input::Qps(Box::new(dump)), now());
        pump.wait(tokio::time::sleep(LOOK_UP * 3)).await;
        {
            let asked = asked.lock().unwrap();
            let looked: Vec<_> = asked.iter().filter(|wants| wants.only_processes).collect();
            assert_eq!(
                looked.iter().map(|wants| &*wants.processes).collect::<Vec<_>>(),
                [&[231]]
            );
        }
        assert!(
            Arc::ptr_eq(&first, pump.latest()),
            "rates would be of a part of the window"
        );
        pump.sample().await.unwrap();
        assert!(!Arc::ptr_eq(&first, pump.latest()));
    }

    #[tokio::test]
    async fn with_programs_a_dump_follows_the_attach_and_then_none() {
        let source = Fake::new(vec![on(), on(), on(), on()]);
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        for _ in 0..4 {
            pump.sample().await.unwrap();
        }
        let qps: Vec<bool> = asked.lock().unwrap().iter().map(|w| w.qps).collect();
        assert_eq!(qps, [true, true, false, false]);
    }

    #[tokio::test]
    async fn a_report_reaches_engine_and_mode_and_has_the_machine_looked_at_again() {
        let source = Fake::new(vec![Vec::new(), Vec::new(), Vec::new()]);
        let asked = Arc::clone(&source.asked);
        let start = |feed: Feed| feed.offer(programs(true)).unwrap();
        let sources = Sources {
            polled: vec![Box::new(source)],
            pushing: Some(crate::app::source::Pushing {
                start: Box::new(start),
                stop: Box::new(|| ()),
            }),
            ..Sources::default()
        };
        let (mut pump, ebpf) = Pump::start(sources, Settings::default()).unwrap();
        assert_eq!(pump.latest().health.ebpf, EbpfState::Starting);
        let mut ebpf = ebpf.unwrap();
        let told = pump.wait(ebpf.started()).await.unwrap();
        assert!(told.state.is_on());
        for _ in 0..2 {
            pump.sample().await.unwrap();
        }
        assert!(pump.latest().health.ebpf.is_on() && pump.latest().health.follows_qps);
        let looked: Vec<bool> = asked.lock().unwrap().iter().map(|wants| wants.machine).collect();
        assert_eq!(looked, [true, false]);
    }

    #[tokio::test]
    async fn programs_that_see_no_qp_come_do_not_stand_in_for_the_dump() {
        let half = || vec![programs(false)];
        let source = Fake::new((0..4).map(|_| half()).collect());
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        for _ in 0..4 {
            pump.sample().await.unwrap();
        }
        assert!(asked.lock().unwrap().iter().all(|wants| wants.qps));
    }

    #[tokio::test]
    async fn a_trace_reads_devices_and_processes_until_it_is_in_step_and_then_once_in_a_while() {
        let source = Fake::new((0..40).map(|_| on()).collect());
        let asked = Arc::clone(&source.asked);
        let mut pump = pump(source, Filter::default());
        pump.settings.counters = false;
        for _ in 0..32 {
            pump.sample().await.unwrap();
        }
        // What was lost must be found out in the next round.
        pump.engine.apply(Input::BadRecord, now());
        pump.sample().await.unwrap();
        let asked = asked.lock().unwrap();
        let full: Vec<u64> = asked.iter().filter(|w| !w.is_light()).map(|w| w.round).collect();
        assert_eq!(full, [0, 1, 30, 32]);
    }

    #[tokio::test]
    async fn what_the_writer_takes_no_more_at_the_end_is_counted_all_the_same() {
        use crate::app::sink::Lines;
        use crate::app::source::Pushing;
        use crate::app::writer::Format;
        use rdmatop_common::event::{ObjectRecord, Record, kind};
        use zerocopy::FromZeros;
        let start = move |feed: Feed| {
            std::thread::spawn(move || {
                let mut record = ObjectRecord::new_zeroed();
                record.prefix.kind = kind::CQ_CREATE;
                for _ in 0..400 {
                    let batch = Input::Records(vec![Record::Object(record); 100]);
                    feed.send_blocking(batch).unwrap();
                }
            });
        };
        let sources = Sources {
            pushing: Some(Pushing {
                start: Box::new(start),
                stop: Box::new(|| ()),
            }),
            subsystem: true,
            ..Sources::default()
        };
        let (mut pump, _ebpf) = Pump::start(sources, Settings::default()).unwrap();
        // Nobody reads: one page finds room, the rest waits and then gives up.
        let (to, mut pages) = mpsc::channel(1);
        let mut sink = Sink::Lines(Lines::new(Format::Lines, to));
        let (_end, mut ending) = watch::channel(Some(Instant::now() + Duration::from_millis(100)));
        let (_delay, mut delay) = watch::channel(HANG);
        pump.run(&mut sink, &mut delay, &mut ending, |_| Ok(()))
            .await
            .unwrap();
        let taken = pages.try_recv().unwrap().events;
        assert_eq!((pump.tally.seen, pump.tally.refused), (40_000, 40_000 - taken));
    }

    #[tokio::test]
    async fn a_round_that_hangs_is_told_with_its_name_and_does_not_stop_the_view() {
        let mut pump = pump(Fake::hanging(HANG * 4), Filter::default());
        let mut shown = pump.subscribe();
        let (end, mut ending) = watch::channel(None);
        let (_delay, mut delay) = watch::channel(HANG / 2);
        let mut sink = Sink::Nobody;
        let told = async {
            let mut errors = Vec::new();
            while errors.is_empty() {
                shown.changed().await.unwrap();
                errors.clone_from(&shown.borrow_and_update().health.errors);
            }
            end.send_replace(Some(Instant::now()));
            errors
        };
        let (_, errors) = tokio::join!(pump.run(&mut sink, &mut delay, &mut ending, |_| Ok(())), told);
        assert!(errors[0].starts_with("no answer from the fake for"), "{errors:?}");
    }
}
