//! Keeps a session alive and reads its ring buffer.
//!
//! A kprobe dies silently when the module it sits in is unloaded, and a module that is loaded later has none.
//! So the modules are watched; a change begins another session, which takes over from the one before ([`handover`]).

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use aya::maps::{MapData, RingBuf};
use rdmatop_common::event::{Record, decode};
use tokio::{io::unix::AsyncFd, sync::Notify, time::sleep};

use super::{
    handover,
    session::{Options, Session, SessionError},
    status::SharedStatus,
    sweep::{MapSweep, Prepared},
};
use crate::{
    model::input::{EbpfState, Input, Note},
    source::{
        privileges::Raised,
        seam::{Ended, Feed, Started},
    },
};

/// How often modules are looked at.
const WATCH: Duration = Duration::from_secs(1);
/// The nap after the ring buffer was found empty. The first record after a silence is read at once; in a storm the
/// reader, the engine and the writer wake a hundred times a second for hundreds of records, and not for each. A ring
/// buffer of 4 MiB holds what two million records a second bring meanwhile.
const NAP: Duration = Duration::from_millis(10);
/// Losses are read this often while records come.
const LOSSES_EVERY: Duration = Duration::from_millis(200);
/// Records handed on at a time: enough that a wake-up of the engine is shared by many.
const RECORDS_AT_A_TIME: usize = 256;
/// Batches between two looks at the end, the modules and the losses: a storm may never let the ring buffer be empty.
const BATCHES_AT_A_TIME: usize = 16;
/// Records taken at a time while two sessions count: more than a ring buffer of the default size holds.
const MOST_RECORDS: usize = 40_000;
/// Looks at the ring buffer of a session that is off: a record that a program is still writing hides those after it,
/// and a hypervisor can take the CPU from it.
const LAST_LOOKS: usize = 3;

/// Told what counts, or why nothing does.
type OnStart = Box<dyn FnOnce(&Result<Started, String>) + Send>;

/// Runs sessions until told to stop.
pub struct Manager {
    options: Options,
    status: SharedStatus,
    sweep: MapSweep,
    stop: Arc<Notify>,
    /// Told once, when the first session counts (or cannot).
    on_start: Option<OnStart>,
    /// The session before, switched off: each of its programs takes milliseconds to detach, during which the next one
    /// counts already.
    retired: Option<Session>,
}

/// Ends a manager: it drains what the kernel has, reads the losses once more, and lets go of the channel.
#[derive(Clone, Debug)]
pub struct StopHandle(Arc<Notify>);

impl StopHandle {
    /// Asks for the end; what was already recorded still comes.
    pub fn stop(&self) {
        // One permit is kept, so that a stop before the manager listens is not lost.
        self.0.notify_one();
    }
}

enum Why {
    Stopped,
    ModulesChanged,
    /// Modules changed, and this session has taken over.
    Next(Box<Live>, Generations),
}

/// A session that counts, or is ready to, and its ring buffer.
struct Live {
    session: Session,
    ring: AsyncFd<RingBuf<MapData>>,
}

impl Live {
    fn new(mut session: Session) -> Result<Self, String> {
        let ring = session.take_ring().ok_or("the object has no EVENTS map")?;
        // SAFETY: a RingBuf owns its map's descriptor and gives the same one until it is dropped, which the AsyncFd
        // does only after it has deregistered it.
        let ring = unsafe { AsyncFd::register(ring) };
        Ok(Self {
            session,
            ring: ring.map_err(|error| error.to_string())?,
        })
    }

    fn switch(&mut self, on: bool) -> Result<(), String> {
        self.session.set_enabled(on).map_err(|error| error.to_string())
    }
}

/// Loads and attaches: system calls and the verifier, so off the thread that reads.
fn start(options: &Options) -> tokio::task::JoinHandle<Result<Session, SessionError>> {
    let options = options.clone();
    tokio::task::spawn_blocking(move || {
        let _rights = Raised::for_attach();
        Session::start(&options)
    })
}

impl Manager {
    /// A manager that has not begun.
    pub fn new(options: Options, status: SharedStatus, sweep: MapSweep) -> Self {
        Self {
            options,
            status,
            sweep,
            stop: Arc::default(),
            on_start: None,
            retired: None,
        }
    }

    /// Calls `told` once, with what counts or why nothing does.
    #[must_use]
    pub fn on_start(mut self, told: impl FnOnce(&Result<Started, String>) + Send + 'static) -> Self {
        self.on_start = Some(Box::new(told));
        self
    }

    /// The way to end it.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.stop))
    }

    /// Attaches, reads, re-attaches, until stopped or the engine is gone.
    pub async fn run(mut self, feed: Feed) {
        let mut first = true;
        let mut next = None;
        loop {
            let (live, modules) = if let Some(next) = next.take() {
                next
            } else {
                let modules = self.generations();
                let live = match start(&self.options).await {
                    Ok(Ok(session)) => self.begin(session),
                    Ok(Err(error)) => match self.without(&error, &modules).await {
                        Why::ModulesChanged => continue,
                        _ => return,
                    },
                    Err(_) => return,
                };
                match live {
                    Ok(live) => (live, modules),
                    Err(why) => return self.no_ring(&why),
                }
            };
            match self.serve(live, &feed, modules, first).await {
                Ok(Why::ModulesChanged) => {}
                Ok(Why::Next(live, modules)) => next = Some((*live, modules)),
                Ok(Why::Stopped) | Err(Ended) => return,
            }
            first = false;
        }
    }

    fn generations(&self) -> Generations {
        module_generations(Path::new("/sys/module"), self.options.modules())
    }

    fn tell_start(&mut self, outcome: &Result<Started, String>) {
        if let Some(told) = self.on_start.take() {
            told(outcome);
        }
    }

    async fn without(&mut self, error: &SessionError, modules: &Generations) -> Why {
        self.let_go();
        let why = error.to_string();
        self.status.update(|status| {
            status.state = EbpfState::Unavailable { why: why.clone() };
            status.probes.clear();
        });
        self.tell_start(&Err(why));
        loop {
            tokio::select! {
                () = self.stop.notified() => return Why::Stopped,
                () = sleep(WATCH) => {}
            }
            if self.generations() != *modules {
                return Why::ModulesChanged;
            }
        }
    }

    /// Lets a session count that has none before it.
    fn begin(&self, mut session: Session) -> Result<Live, String> {
        let maps = MapSweep::prepare(&mut session).map_err(|error| error.to_string())?;
        let mut live = Live::new(session)?;
        self.sweep.adopt(maps);
        live.switch(true)?;
        Ok(live)
    }

    async fn serve(
        &mut self,
        mut live: Live,
        feed: &Feed,
        modules: Generations,
        first: bool,
    ) -> Result<Why, Ended> {
        let session = &live.session;
        let started = Started {
            programs: session.attached(),
            pinned: session.pinned(),
        };
        self.status.update(|status| {
            status.state = EbpfState::On {
                datapath: session.datapath().map(str::to_owned),
            };
            status.probes = session.verdicts().to_vec();
            status.notes = session.problems().iter().map(|why| no_offsets(why)).collect();
            status.notes.extend(pins(&started.pinned));
            if !first {
                status.notes.push(gap());
            }
        });
        self.let_go();
        self.tell_start(&Ok(started));
        let outcome = self.read(&mut live, feed, modules).await;
        if !matches!(outcome, Ok(Why::Next(..))) {
            self.sweep.release();
        }
        self.retired = Some(live.session);
        outcome
    }

    /// Detaches the session before. Not on this thread, on which records wait meanwhile.
    fn let_go(&mut self) {
        if let Some(session) = self.retired.take() {
            tokio::task::spawn_blocking(move || drop(session));
        }
    }

    fn no_ring(&mut self, why: &str) {
        let why = format!("cannot read the eBPF maps: {why}");
        self.status
            .update(|status| status.state = EbpfState::Unavailable { why: why.clone() });
        self.tell_start(&Err(why));
    }

    async fn read(&mut self, live: &mut Live, feed: &Feed, mut modules: Generations) -> Result<Why, Ended> {
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut losses_at = Instant::now();
        let mut records = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    // Off first: a storm that goes on would have no last record.
                    self.empty(live, feed).await?;
                    return Ok(Why::Stopped);
                }
                _ = watch.tick() => {
                    live.session.flush_log();
                    let now = self.generations();
                    if now != modules {
                        if let Some(why) = self.succeed(live, feed, now.clone()).await? {
                            return Ok(why);
                        }
                        // Not tried again until they change again.
                        modules = now;
                        records = true;
                    }
                }
                guard = live.ring.readable_mut(), if !records => {
                    let Ok(mut guard) = guard else { return Ok(Why::Stopped) };
                    // Before the drain: a record that comes after it raises a new readiness.
                    guard.clear_ready();
                    records = true;
                }
                () = std::future::ready(()), if records => {
                    records = drain(live.ring.get_mut(), feed).await?;
                    if losses_at.elapsed() >= LOSSES_EVERY {
                        losses_at = Instant::now();
                        feed.send(Input::Losses(self.sweep.losses())).await?;
                    }
                    if !records {
                        // Not tokio's sleep: that waits in epoll_wait(2), from which the next record would wake this
                        // thread for nothing. Nothing else runs on it.
                        std::thread::sleep(NAP);
                    }
                }
            }
        }
    }

    /// Switches a session off and takes what it still has. A refusal to switch it off leaves that to its end.
    async fn empty(&self, live: &mut Live, feed: &Feed) -> Result<(), Ended> {
        let _ = live.switch(false);
        while drain(live.ring.get_mut(), feed).await? {}
        feed.send(Input::Losses(self.sweep.final_losses())).await
    }
}

impl Manager {
    /// Attaches anew while the present programs go on, then lets one take over from the other. Nothing where that
    /// failed, and the present ones go on.
    async fn succeed(
        &mut self,
        live: &mut Live,
        feed: &Feed,
        modules: Generations,
    ) -> Result<Option<Why>, Ended> {
        let starting = start(&self.options);
        tokio::pin!(starting);
        let started = loop {
            tokio::select! {
                started = &mut starting => break started,
                () = sleep(NAP) => { drain(live.ring.get_mut(), feed).await?; }
            }
        };
        let ready = match started {
            Ok(Ok(session)) => ready(session),
            Ok(Err(SessionError::NoRdma)) | Err(_) => {
                self.empty(live, feed).await?;
                return Ok(Some(Why::ModulesChanged));
            }
            Ok(Err(error)) => Err(error.to_string()),
        };
        match ready {
            Ok((next, maps)) => {
                let next = self.overlap(live, next, maps, feed).await?;
                Ok(Some(Why::Next(Box::new(next), modules)))
            }
            Err(why) => {
                self.status.update(|status| status.notes.push(not_anew(&why)));
                Ok(None)
            }
        }
    }

    /// Lets both count for a moment. What only one of them has seen is told, what both have seen is told once.
    async fn overlap(
        &mut self,
        live: &mut Live,
        mut next: Live,
        maps: Prepared,
        feed: &Feed,
    ) -> Result<Live, Ended> {
        let began = Instant::now();
        let (mut before, mut after) = (Told::default(), Told::default());
        while began.elapsed() < handover::OVERLAP {
            sleep(NAP).await;
            before.collect(live.ring.get_mut());
            after.collect(next.ring.get_mut());
        }
        // While both count, and before the last look at the records of the one before: what it tells of until then the
        // next one may count as lost, and what is lost to both later is counted by the next.
        self.sweep.take_over(maps);
        let _ = live.switch(false);
        for _ in 0..LAST_LOOKS {
            sleep(NAP).await;
            before.collect(live.ring.get_mut());
        }
        // Last, so that no twin of the other's records is missing.
        after.collect(next.ring.get_mut());
        for records in handover::unite(before.records, after.records).chunks(RECORDS_AT_A_TIME) {
            feed.send(Input::Records(records.to_vec())).await?;
        }
        for _ in 0..before.bad + after.bad {
            feed.send(Input::BadRecord).await?;
        }
        feed.send(Input::Losses(self.sweep.losses())).await?;
        Ok(next)
    }
}

/// Lets a session count beside the one that it is to take over from.
fn ready(mut session: Session) -> Result<(Live, Prepared), String> {
    let maps = MapSweep::prepare(&mut session).map_err(|error| error.to_string())?;
    let mut next = Live::new(session)?;
    next.switch(true)?;
    Ok((next, maps))
}

/// Records that are kept for a moment.
#[derive(Default)]
struct Told {
    records: Vec<Record>,
    bad: usize,
}

impl Told {
    /// Takes what a ring buffer has; of one that is filled as fast as it is read, as much as it can hold at once.
    fn collect(&mut self, ring: &mut RingBuf<MapData>) {
        for _ in 0..MOST_RECORDS {
            let Some(item) = ring.next() else { return };
            match decode(&item) {
                Ok(record) => self.records.push(record),
                Err(_) => self.bad += 1,
            }
        }
    }
}

/// Hands records on. True when there may be more.
async fn drain(ring: &mut RingBuf<MapData>, feed: &Feed) -> Result<bool, Ended> {
    // The channel's room decides the pace: while it is full the ring buffer fills, and the kernel side counts
    // what that loses.
    let mut expected = 0;
    for _ in 0..BATCHES_AT_A_TIME {
        // A full batch is followed by one that is as full; a list that grows is copied eight times.
        let mut records = Vec::with_capacity(expected);
        let mut bad = false;
        while records.len() < RECORDS_AT_A_TIME && !bad {
            let Some(item) = ring.next() else { break };
            match decode(&item) {
                Ok(record) => records.push(record),
                Err(_) => bad = true,
            }
        }
        let more = bad || records.len() == RECORDS_AT_A_TIME;
        expected = records.len();
        if !records.is_empty() {
            feed.send(Input::Records(records)).await?;
        }
        if bad {
            feed.send(Input::BadRecord).await?;
        }
        if !more {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Each watched module and the inode of its directory: a reloaded module has a new one.
type Generations = BTreeMap<&'static str, Option<u64>>;

fn module_generations(root: &Path, modules: impl Iterator<Item = &'static str>) -> Generations {
    let mut found = Generations::new();
    for module in modules {
        // Asked once a second: once for each module, not once for each hook.
        found
            .entry(module)
            .or_insert_with(|| std::fs::metadata(root.join(module)).ok().map(|m| m.ino()));
    }
    found
}

fn no_offsets(why: &str) -> Note {
    Note {
        what: "struct offsets".into(),
        why: why.to_owned(),
        remedy: "Use a kernel with CONFIG_DEBUG_INFO_BTF; without it owners and QP numbers are unknown."
            .into(),
    }
}

/// What fentry costs the user; `None` where no module is pinned.
fn pins(modules: &[&str]) -> Option<Note> {
    (!modules.is_empty()).then(|| Note {
        what: format!("unloading of {}", modules.join(", ")),
        why: "--attach fentry keeps these modules loaded while rdmatop runs".into(),
        remedy: "End rdmatop before you unload them, or start it with --attach kprobe.".into(),
    })
}

fn gap() -> Note {
    Note {
        what: "events around the last module change".into(),
        why: "an RDMA module was loaded or unloaded, and the programs had to be attached anew".into(),
        remedy: "Nothing to do: what stayed loaded was followed all the time; events in the changed module may miss."
            .into(),
    }
}

fn not_anew(why: &str) -> Note {
    Note {
        what: "programs in a module that was loaded anew".into(),
        why: format!("they could not be attached again: {why}"),
        remedy: "Start rdmatop again. What sits in other modules is followed as before.".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pinned_modules_are_named_with_the_way_to_release_them() {
        assert_eq!(pins(&[]), None);
        let note = pins(&["ib_core", "rdma_rxe"]).unwrap().to_string();
        assert!(note.starts_with("unloading of ib_core, rdma_rxe: "), "{note}");
        assert!(note.contains("--attach kprobe"), "{note}");
    }

    #[test]
    fn a_module_that_comes_or_goes_changes_the_generations() {
        let dir = tempfile::tempdir().unwrap();
        let modules = || ["ib_core", "rdma_cm", "ib_core"].into_iter();
        let none = module_generations(dir.path(), modules());
        std::fs::create_dir(dir.path().join("ib_core")).unwrap();
        let one = module_generations(dir.path(), modules());
        assert_ne!(none, one);
        assert_eq!(one, module_generations(dir.path(), modules()));
    }
}
