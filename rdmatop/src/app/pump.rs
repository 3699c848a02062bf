//! Turns messages into snapshots and events: the one place that owns the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::sink::{End, EventCounts, Sink, To, asked, over};
use super::{noted::Noted, reorder::HOLD_NS, sampler::Sampler};
use crate::exit::Stop;
use rdmatop_model::cause::{Cause, CauseId, Concerns, Obstacle};
use rdmatop_model::engine::{Engine, EngineConfig, Needs};
use rdmatop_model::input::{EbpfReport, Input, Timed};
use rdmatop_model::{event::Event, filter::Filter, snapshot::Snapshot};
use rdmatop_sources::clock::now;
use rdmatop_sources::seam::{Feed, Message, Sources, Wants};

#[cfg(test)]
mod tests;

/// Messages between the sources and the engine. Most are batches of records (`RECORDS_AT_A_TIME` in the eBPF
/// manager): some 4 MB at most.
const CHANNEL: usize = 64;
/// Messages taken at a time: snapshots and signals wait for no more than these.
const BATCH: usize = 8;
/// A round that takes longer counts as hung.
const HANG: Duration = if cfg!(test) {
    Duration::from_millis(200)
} else {
    Duration::from_secs(3)
};
/// After the end's grace: sources that have sent nothing for this long have nothing more, or hang.
const QUIET: Duration = Duration::from_millis(50);
/// Between the two samples of a one-shot mode new processes are looked up this often: a process that ends
/// before the second sample has left /proc by then.
const PROCESSES_EVERY: Duration = Duration::from_millis(200);
/// A mode that shows findings and no counters reads what findings need this often: some read rates, and most
/// last for seconds before they are raised.
const FINDINGS_EVERY: Duration = if cfg!(test) {
    Duration::from_millis(90)
} else {
    Duration::from_millis(1900)
};
/// A one-shot mode gives up on a round after this.
const ROUND_LIMIT: Duration = Duration::from_secs(30);

/// While the user watches a QP, the screen gets its picture this often.
const GLANCE: Duration = Duration::from_millis(250);

/// How long an event may wait for earlier ones.
const HOLD: Duration = Duration::from_nanos(HOLD_NS);

/// Events up to this time are released: an event has arrived that is younger by the holding time.
fn settled(sink: &Sink) -> u64 {
    sink.newest_ns().saturating_sub(HOLD_NS)
}

/// How to run the engine.
#[derive(Default)]
pub(super) struct Settings {
    pub(super) engine: EngineConfig,
    /// What the view may see.
    pub(super) filter: Filter,
    /// Whether counters are shown.
    pub(super) counters: bool,
    /// Whether findings are shown where counters are not: what they need is read every [`FINDINGS_EVERY`].
    pub(super) findings: bool,
    /// Each sample has TCP connections, not only the last.
    pub(super) tcp: bool,
    /// The mode wants [`Pump::take_feed`].
    pub(super) feed: bool,
}

/// A mode's handle on the eBPF source.
pub(super) struct EbpfSide {
    /// Its state at each change, as the engine was given it. Not bounded: loading or unloading a module makes
    /// one or two.
    pub(super) reports: mpsc::UnboundedReceiver<EbpfReport>,
    /// Asks it to hand over the rest and to end.
    pub(super) stop: Box<dyn FnOnce() + Send>,
}

impl EbpfSide {
    /// The first report: what is counted, or why nothing is.
    pub(super) async fn started(&mut self) -> Option<EbpfReport> {
        self.reports.recv().await
    }
}

/// The engine and its channel.
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
    /// The round ordered last reads next to nothing.
    light: bool,
    /// eBPF was on when the last round was ordered: the QP table has been dumped since.
    synced: bool,
    /// Lifecycle records seen when the last round was ordered.
    told_events: Option<u64>,
    /// The processes that the first round found have been requested.
    introduced: bool,
    /// A round that only looks up processes is under way: its end counts as no sample.
    looking_up: bool,
    /// When what findings need was last read, in a mode without counters.
    read_for_findings: Option<Instant>,
    /// A way into the channel, for a source that the mode starts later.
    feed: Option<Feed>,
    pub(super) counts: EventCounts,
    report: mpsc::UnboundedSender<EbpfReport>,
    /// A report arrived since the last round was ordered.
    reported: bool,
    /// The engine was informed that the present round hangs.
    hung: bool,
    /// In a mode that prints once: the PSNs that were read first, and are read again at the end.
    psns: Arc<BTreeMap<u32, Vec<u32>>>,
    /// What the log of the maintainer has.
    noted: Noted,
}

/// The cause that a round has not ended.
fn hanging(name: &str, waited: Duration) -> Cause {
    let why = format!("no answer from {name} for {} s", waited.as_secs());
    Obstacle::new(CauseId::NoAnswer, why, "").takes("Values are old", Concerns::Host)
}

impl Pump {
    /// Starts the sources. Nothing is requested yet.
    pub(super) fn start(sources: Sources, settings: Settings) -> Result<(Self, Option<EbpfSide>), Stop> {
        let (to, messages) = mpsc::channel(CHANNEL);
        let dropped = Arc::new(AtomicU64::new(0));
        // The pump keeps no feed: the channel ends when the last source has dropped its own.
        let feed = Feed::new(to, Arc::clone(&dropped));
        let sampler = Sampler::start(sources.polled, feed.clone())?;
        let (report, reports) = mpsc::unbounded_channel();
        let kept = settings.feed.then(|| feed.clone());
        let ebpf = sources.pushing.map(|pushing| {
            (pushing.start)(feed);
            EbpfSide {
                reports,
                stop: pushing.stop,
            }
        });
        let config = EngineConfig {
            nested_pids: sources.nested_pids,
            ebpf: sources.ebpf,
            ..settings.engine.clone()
        };
        let mut engine = Engine::new(config);
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
            told_events: None,
            introduced: false,
            looking_up: false,
            read_for_findings: None,
            feed: kept,
            counts: EventCounts::default(),
            report,
            reported: false,
            hung: false,
            psns: Arc::default(),
            noted: Noted::default(),
        };
        Ok((pump, ebpf))
    }

    /// A way into the channel, once. The channel ends when its taker has dropped it.
    pub(super) fn take_feed(&mut self) -> Option<Feed> {
        self.feed.take()
    }

    /// Snapshots for the view: filtered.
    pub(super) fn subscribe(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.snapshots.subscribe()
    }

    /// The last snapshot, unfiltered.
    pub(super) fn latest(&self) -> &Arc<Snapshot> {
        &self.latest
    }

    /// Runs one round of sampling to its end. For modes that print once.
    pub(super) async fn sample(&mut self) -> Result<(), Stop> {
        self.order(false, true);
        self.answer().await
    }

    /// As [`Pump::sample`], for the last round of all.
    pub(super) async fn last_sample(&mut self) -> Result<(), Stop> {
        self.order(true, true);
        self.answer().await
    }

    /// After the last sample: looks for the openers that it asks for, and shows the same sample with them.
    pub(super) async fn complete(&mut self) {
        if !self.engine.needs_openers() {
            return;
        }
        let wants = Wants {
            round: self.round,
            counters: true,
            openers: true,
            only_processes: true,
            ..Wants::default()
        };
        self.looking_up = true;
        if let Some(sampler) = &self.sampler {
            sampler.order(wants);
        }
        let found = async {
            let (mut sink, (_nobody, mut end)) = (Sink::new(To::Nobody), watch::channel(None));
            while self.looking_up {
                match self.messages.recv().await {
                    Some(message) => _ = self.take(message, &mut sink, &mut end).await,
                    None => return,
                }
            }
        };
        // Without the answer the sample is as good as it was.
        let _ = timeout(ROUND_LIMIT, found).await;
        if let Some(snapshot) = self.engine.with_openers(&self.latest) {
            self.publish(Arc::new(snapshot));
        }
    }

    /// As [`Pump::sample`], if the last sample shows that PSNs are of use: what they say takes two readings.
    pub(super) async fn sample_psns(&mut self) -> Result<(), Stop> {
        let psns = self.engine.psns();
        if psns.is_empty() {
            return Ok(());
        }
        self.sample().await?;
        self.psns = psns;
        Ok(())
    }

    async fn answer(&mut self) -> Result<(), Stop> {
        let (mut sink, (_nobody, mut end)) = (Sink::new(To::Nobody), watch::channel(None));
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
            // What may wait for a driver or for a process has a limit of its own, and is named there.
            Err(_) => Err(Stop::failure(format!(
                "no answer from {} for {} s; sudo cat /proc/{}/task/*/stack shows what rdmatop waits for",
                self.sampler.as_ref().map_or("sampling", Sampler::busy_with),
                ROUND_LIMIT.as_secs(),
                std::process::id()
            ))),
        }
    }

    /// Takes messages until `until` is ready. For modes that print once.
    pub(super) async fn wait<T>(&mut self, until: impl Future<Output = T>) -> T {
        let (mut sink, (_nobody, mut end)) = (Sink::new(To::Nobody), watch::channel(None));
        tokio::pin!(until);
        let mut next = Instant::now() + PROCESSES_EVERY;
        loop {
            tokio::select! {
                biased;
                done = &mut until => return done,
                () = sleep_until(next) => {
                    next = Instant::now() + PROCESSES_EVERY;
                    self.look_up();
                }
                Some(message) = self.messages.recv() => {
                    self.take(message, &mut sink, &mut end).await;
                }
                else => return until.await,
            }
        }
    }

    /// Samples at `delay` and takes messages until the end is requested; then takes what the sources still
    /// send until they have ended, or until the grace is over. `check` sees the first snapshot.
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
        let mut glance = Instant::now();
        let mut ending = end.clone();
        // At each moment the sink releases what has waited long enough.
        let (mut release, mut waited_ns) = (Instant::now(), 0);
        loop {
            tokio::select! {
                biased;
                () = asked(&mut ending) => break,
                () = sleep_until(release), if sink.holds() => {
                    sink.flush(waited_ns, &mut self.counts, end).await;
                    (release, waited_ns) = (Instant::now() + HOLD, sink.newest_ns());
                }
                () = sleep_until(next) => {
                    next = Instant::now() + *delay.borrow();
                    self.due();
                }
                () = sleep_until(glance), if self.engine.is_watching() => {
                    glance = Instant::now() + GLANCE;
                    self.glance();
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
                    sink.flush(settled(sink), &mut self.counts, end).await;
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

    /// Shows the watched QP as it looks now, beside the rows of the last round.
    fn glance(&mut self) {
        if let Some(snapshot) = self.engine.glance(&self.latest, now()) {
            self.publish(Arc::new(snapshot));
        }
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
        // From now on no event waits: those still on their way are counted, and refused where the view
        // accepts none.
        while let Ok(Some(message)) = timeout(QUIET, self.messages.recv()).await {
            self.take(message, sink, end).await;
            sink.flush(settled(sink), &mut self.counts, end).await;
        }
        self.tick(sink, end).await;
        sink.flush(u64::MAX, &mut self.counts, end).await;
    }

    /// It is time for a round: orders one, or reports that the one before hangs.
    fn due(&mut self) {
        let Some(since) = self.ordered else {
            return self.order(false, false);
        };
        if since.elapsed() < HANG {
            return;
        }
        let name = self.sampler.as_ref().map_or("sampling", Sampler::busy_with);
        self.hangs(Some(hanging(name, since.elapsed())));
        let snapshot = self.engine.tick(now());
        self.publish(snapshot);
    }

    /// Tells the engine that the round hangs, or no longer does. This makes no event.
    fn hangs(&mut self, cause: Option<Cause>) {
        self.hung = cause.is_some();
        let input = Input::RoundHangs(cause.map(Box::new));
        self.engine.fold(input.at(now()), &mut |_| ());
    }

    fn order(&mut self, last: bool, once: bool) {
        let on = self.latest.health.follows_qps;
        let repair = self.round == 0 || (on && !self.synced) || self.engine.wants_repair();
        let look = self.settings.findings
            && self
                .read_for_findings
                .is_none_or(|at| at.elapsed() >= FINDINGS_EVERY);
        if look {
            self.read_for_findings = Some(Instant::now());
        }
        let mut wants = Wants {
            round: self.round,
            qps: repair || !on,
            repair,
            machine: std::mem::take(&mut self.reported),
            objects: self.told_events != self.latest.health.events,
            counters: self.settings.counters || look,
            last,
            once,
            tcp: self.settings.tcp,
            ..Wants::default()
        };
        self.told_events = self.latest.health.events;
        self.light = wants.is_light();
        if !self.light {
            let needs = self.ask_of_processes(&mut wants);
            wants.openers = wants.counters && needs.openers;
            if wants.counters {
                // What is due next is of other queue pairs, or is none: a second has not passed.
                let again = last && !self.psns.is_empty();
                wants.psns = if again { Arc::clone(&self.psns) } else { needs.psns };
                wants.paths = needs.paths;
            }
        }
        // A dump that began before the programs counted may miss QPs created in between.
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

    /// Has a round bring what the engine needs of processes. The engine names each in one answer only.
    fn ask_of_processes(&mut self, wants: &mut Wants) -> Needs {
        let mut needs = self.engine.needs();
        wants.processes = std::mem::take(&mut needs.processes).into();
        wants.locked = std::mem::take(&mut needs.locked).into();
        needs
    }

    /// Requests the facts of the processes that the first round found; true when there are any. The first
    /// snapshot then has their names: ten thousand rows that got them with the second would be in memory
    /// twice.
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
        self.ask_of_processes(&mut wants);
        if !wants.is_of_processes() {
            return false;
        }
        self.send(wants);
        true
    }

    /// Requests the facts of processes that appeared since the last round, outside of a sample.
    fn look_up(&mut self) {
        if self.ordered.is_some() || self.looking_up || !self.settings.counters {
            return;
        }
        let mut wants = Wants {
            round: self.round,
            counters: true,
            only_processes: true,
            ..Wants::default()
        };
        self.ask_of_processes(&mut wants);
        if let Some(sampler) = self.sampler.as_ref().filter(|_| wants.is_of_processes()) {
            self.looking_up = true;
            sampler.order(wants);
        }
    }

    /// True when a round is done.
    async fn take(&mut self, message: Message, sink: &mut Sink, end: &mut End) -> bool {
        match message {
            Message::Input(timed) => {
                if let Input::Ebpf(report) = &timed.input {
                    self.reported = true;
                    // A mode that does not listen gets the notes of the snapshots.
                    let _ = self.report.send((**report).clone());
                }
                self.apply(timed, sink, end).await;
                false
            }
            Message::RoundDone if self.looking_up => {
                self.looking_up = false;
                false
            }
            Message::RoundDone => {
                self.ordered = None;
                if self.hung {
                    self.hangs(None);
                }
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

    async fn apply(&mut self, timed: Timed, sink: &mut Sink, end: &mut End) {
        let Self {
            engine,
            settings,
            counts,
            ..
        } = self;
        engine.fold(timed, &mut |event| {
            sink.give(event, &settings.filter, counts);
        });
        if sink.is_full() {
            sink.flush(settled(sink), counts, end).await;
        }
    }

    async fn tick(&mut self, sink: &mut Sink, end: &mut End) {
        // What the live view refused is lost to the user like what found our own channel full.
        let live = sink.is_live();
        let refused = if live { self.counts.refused } else { 0 };
        let dropped = self.dropped.load(Ordering::Relaxed) + refused;
        if dropped > 0 {
            let input = Input::ChannelDropped(dropped);
            self.apply(input.at(now()), sink, end).await;
        }
        let snapshot = self.engine.tick(now());
        for change in self.engine.take_changes() {
            let event = Event::of_change(change, snapshot.time, snapshot.mono_ns);
            if self.settings.filter.matches_change(&event, &snapshot) {
                sink.take(event);
            }
        }
        self.publish(snapshot);
    }

    fn publish(&mut self, snapshot: Arc<Snapshot>) {
        self.noted.see(&snapshot);
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
