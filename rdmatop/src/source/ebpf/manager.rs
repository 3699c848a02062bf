//! Keeps a session alive and reads its ring buffer.
//!
//! A kprobe dies silently when the module it sits in is unloaded, and a module that is loaded later has none.
//! So the modules are watched; a change ends the session and begins another. The gap is told.

use std::{
    collections::BTreeMap,
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use aya::maps::{MapData, RingBuf};
use rdmatop_common::event::decode;
use rustix::time::ClockId;
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, oneshot},
    time::sleep,
};

use super::{
    armed, datapath,
    session::{self, Options, Session},
    sweep::MapSweep,
};
use crate::{
    model::{
        cause::{Cause, CauseId, Concerns, Obstacle},
        input::{EbpfReport, EbpfState, Input},
    },
    source::{
        clock, limits,
        privileges::Raised,
        root::Root,
        seam::{Ended, Feed},
        sysfs::has_hardware,
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

/// How long a session that could not be read is left alone before another one is tried: at first, and at most.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const TRY_AGAIN_AT_MOST: Duration = Duration::from_mins(2);

/// Runs sessions until told to stop.
pub struct Manager {
    options: Options,
    sweep: MapSweep,
    stop: Arc<Notify>,
    /// There was a session: the next one's programs are others.
    begun: bool,
    /// The pause after a session that could not be read.
    pause: Duration,
    /// The session before, switched off: each of its programs takes milliseconds to detach, in which the next one
    /// must count already.
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

/// How a session, or the time without one, ended.
enum After {
    Stopped,
    /// Another session is to be tried.
    Again,
    /// This one is attached already, to what there is now.
    Next(Box<Session>, World),
    /// What it counts could not be read.
    Unreadable(Obstacle),
}

type Starting = oneshot::Receiver<Result<Session, Obstacle>>;

/// Loads and attaches: system calls and the verifier, so off the thread that reads. Not by the runtime's
/// `spawn_blocking`, which panics where there can be no more threads.
fn start(options: &Options) -> Result<Starting, Obstacle> {
    let options = options.clone();
    let (told, starting) = oneshot::channel();
    let work = move || {
        let _rights = Raised::for_attach();
        // The manager may have ended meanwhile.
        drop(told.send(Session::start(&options)));
    };
    thread::Builder::new()
        .name("attach".to_owned())
        .spawn(work)
        .map_err(|error| {
            let why = format!("cannot start a thread: {error}");
            Obstacle::new(CauseId::NoThread, why, limits::threads())
        })?;
    Ok(starting)
}

/// As [`start`], waited for.
async fn started(options: &Options) -> Result<Session, Obstacle> {
    let starting = start(options)?;
    let vanished = || {
        Obstacle::new(
            CauseId::Defect,
            "attaching ended by itself: this is a defect of rdmatop",
            "",
        )
    };
    starting.await.unwrap_or_else(|_| Err(vanished()))
}

impl Manager {
    /// A manager that has not begun.
    pub fn new(options: Options, sweep: MapSweep) -> Self {
        Self {
            options,
            sweep,
            stop: Arc::default(),
            begun: false,
            pause: TRY_AGAIN,
            retired: None,
        }
    }

    /// The way to end it.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle(Arc::clone(&self.stop))
    }

    /// Attaches, reads, re-attaches, until stopped or the engine is gone.
    pub async fn run(mut self, feed: Feed) {
        let mut next = None;
        loop {
            let (started, world) = if let Some((session, world)) = next.take() {
                (Ok(session), world)
            } else {
                let world = World::now();
                (started(&self.options).await, world)
            };
            let mut after = match started {
                Ok(session) => self.serve(session, &feed, &world).await,
                Err(obstacle) => self.without(obstacle, &world, None, &feed).await,
            };
            if let Ok(After::Unreadable(obstacle)) = after {
                // Not for good: what the kernel refused now it may grant later.
                let pause = self.pause;
                self.pause = (pause * 2).min(TRY_AGAIN_AT_MOST);
                after = self.without(obstacle, &world, Some(pause), &feed).await;
            }
            match after {
                Ok(After::Again | After::Unreadable(_)) => {}
                Ok(After::Next(session, world)) => next = Some((*session, world)),
                Ok(After::Stopped) | Err(Ended) => return,
            }
        }
    }

    /// Reports that nothing counts, and waits for another world, or no longer than `pause`.
    async fn without(
        &mut self,
        obstacle: Obstacle,
        world: &World,
        pause: Option<Duration>,
        feed: &Feed,
    ) -> Result<After, Ended> {
        self.let_go();
        feed.send(not_started(obstacle)).await?;
        let since = Instant::now();
        loop {
            tokio::select! {
                () = self.stop.notified() => return Ok(After::Stopped),
                () = sleep(WATCH) => {}
            }
            if World::now() != *world || pause.is_some_and(|pause| since.elapsed() >= pause) {
                return Ok(After::Again);
            }
        }
    }

    async fn serve(&mut self, mut session: Session, feed: &Feed, world: &World) -> Result<After, Ended> {
        if let Err(error) = self.sweep.adopt(&mut session) {
            return Ok(unreadable(&error.to_string()));
        }
        let outcome = match watched_ring(&mut session) {
            Ok(ring) => {
                self.let_go();
                self.pause = TRY_AGAIN;
                let anew = std::mem::replace(&mut self.begun, true);
                feed.send(on(&session, anew)).await?;
                self.read(ring, &mut session, feed, world).await
            }
            Err(after) => Ok(after),
        };
        self.sweep.release();
        self.retired = Some(session);
        outcome
    }

    /// The kernel's switch for kprobes was turned off. The programs stay: to detach them while it is off makes ftrace give
    /// itself up until the next boot (`__disarm_kprobe_ftrace` warns, 6.12). What they count once it is on again is no
    /// number: the times would hold the time that they were blind. So others take over then.
    async fn blinded(&self, obstacle: Obstacle, feed: &Feed) -> Result<(), Ended> {
        self.sweep.pause();
        feed.send(not_started(session::would_not_run(obstacle))).await
    }

    /// Detaches the session before. Not on this thread, on which records wait meanwhile.
    fn let_go(&mut self) {
        if let Some(session) = self.retired.take() {
            // Without a thread the closure is dropped here, and the session with it.
            drop(
                thread::Builder::new()
                    .name("detach".to_owned())
                    .spawn(move || drop(session)),
            );
        }
    }

    async fn read(
        &mut self,
        mut ring: AsyncFd<RingBuf<MapData>>,
        session: &mut Session,
        feed: &Feed,
        world: &World,
    ) -> Result<After, Ended> {
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut losses_at = Instant::now();
        let mut blind = world.unarmed.clone();
        let mut records = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    // Off first: a storm that goes on would have no last record.
                    self.empty(ring.get_mut(), session, feed).await?;
                    return Ok(After::Stopped);
                }
                _ = watch.tick() => {
                    session.flush_log();
                    self.sweep.make_room();
                    // Of some records the reader is not told: see `wakeup` in rdmatop-ebpf.
                    records |= drain(ring.get_mut(), feed).await?;
                    let now = World::now();
                    match now.unarmed {
                        Some(obstacle) if blind.as_ref() != Some(&obstacle) => {
                            blind = Some(obstacle.clone());
                            self.blinded(obstacle, feed).await?;
                        }
                        None if blind.is_some() || now.modules != world.modules => {
                            return self.succeed(ring, session, feed).await;
                        }
                        // While it is off, whatever else changes waits until programs can come and go again.
                        _ => {}
                    }
                }
                guard = ring.readable_mut(), if !records => {
                    let mut guard = match guard {
                        Ok(guard) => guard,
                        Err(error) => return Ok(unreadable(&error.to_string())),
                    };
                    // Before the drain: a record that comes after it raises a new readiness.
                    guard.clear_ready();
                    records = true;
                }
                () = std::future::ready(()), if records => {
                    records = drain(ring.get_mut(), feed).await?;
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
    async fn empty(
        &self,
        ring: &mut RingBuf<MapData>,
        session: &mut Session,
        feed: &Feed,
    ) -> Result<(), Ended> {
        let _ = session.set_enabled(false);
        while drain(ring, feed).await? {}
        self.sweep.look_for_all_skips();
        feed.send(Input::Losses(self.sweep.losses())).await?;
        feed.send(Input::Skipped(self.sweep.skipped())).await
    }
}

impl Manager {
    /// Attaches anew while the present programs go on, then lets one take over from the other: probes in modules that
    /// stayed miss nothing but calls in flight at that moment.
    async fn succeed(
        &mut self,
        mut ring: AsyncFd<RingBuf<MapData>>,
        session: &mut Session,
        feed: &Feed,
    ) -> Result<After, Ended> {
        let world = World::now();
        let starting = started(&self.options);
        tokio::pin!(starting);
        let mut started = loop {
            tokio::select! {
                started = &mut starting => break started,
                () = sleep(NAP) => { drain(ring.get_mut(), feed).await?; }
            }
        };
        // Off before the next is on: an event must not come twice. Where slots are wanted these come first.
        let _ = session.set_enabled(false);
        if let Ok(next) = &mut started
            && !self.options.scope.counters()
        {
            let _ = next.set_enabled(true);
        }
        self.empty(ring.get_mut(), session, feed).await?;
        self.last_counts(feed).await?;
        Ok(match started {
            Ok(next) => After::Next(Box::new(next), world),
            _ => After::Again,
        })
    }
}

impl Manager {
    /// Hands on what QPs did since the last sweep: the next session counts from nothing.
    async fn last_counts(&self, feed: &Feed) -> Result<(), Ended> {
        let mut last = Vec::new();
        self.sweep
            .slots(clock::read(ClockId::Monotonic), &mut |sample| last.push(sample));
        for sample in last {
            feed.send(Input::Slots(Box::new(sample))).await?;
        }
        Ok(())
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

/// The ring buffer of a session that counts from now on.
fn watched_ring(session: &mut Session) -> Result<AsyncFd<RingBuf<MapData>>, After> {
    let ring = session
        .take_ring()
        .map_err(|obstacle| unreadable(&obstacle.why))?;
    // SAFETY: a RingBuf owns its map's descriptor and gives the same one until it is dropped, which the AsyncFd does only
    // after it has deregistered it.
    let ring = unsafe { AsyncFd::register(ring) }.map_err(|error| unreadable(&error.to_string()))?;
    session
        .set_enabled(true)
        .map_err(|obstacle| unreadable(&obstacle.why))?;
    Ok(ring)
}

fn unreadable(why: &str) -> After {
    let why = format!("cannot read the eBPF maps: {why}");
    After::Unreadable(Obstacle::new(CauseId::Unreadable, why, "It is tried again"))
}

/// The report that nothing counts.
pub(crate) fn not_started(obstacle: Obstacle) -> Input {
    Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::unavailable(obstacle),
        ..EbpfReport::default()
    }))
}

/// The report of a session that counts.
fn on(session: &Session, anew: bool) -> Input {
    let pinned = session.pinned();
    let mut notes = session.unseen().to_vec();
    notes.extend(pins(&pinned));
    notes.extend(anew.then(gap));
    Input::Ebpf(Box::new(EbpfReport {
        state: EbpfState::On {
            datapaths: session.datapaths().clone(),
        },
        probes: session.verdicts().into(),
        notes,
        programs: session.attached(),
        pinned: pinned.into_iter().map(str::to_owned).collect(),
        follows_qps: session.follows_qps(),
        anew,
    }))
}

/// Each watched module and the inode of its directory: a reloaded module has a new one.
type Generations = BTreeMap<&'static str, Option<u64>>;

fn module_generations(root: &Path) -> Generations {
    let hooks = datapath::all_hooks();
    let mut found = Generations::new();
    for hook in hooks {
        // Asked once a second: once for each module, not once for each hook.
        found
            .entry(hook.module)
            .or_insert_with(|| std::fs::metadata(root.join(hook.module)).ok().map(|m| m.ino()));
    }
    found
}

/// What a session is made for; when modules change another one is.
#[derive(Debug, PartialEq, Eq)]
struct World {
    modules: Generations,
    /// There is a device whose posts no program of ours counts.
    hardware: bool,
    /// Why kprobes do not run. An administrator may flip that under a session, which sees nothing from then on.
    unarmed: Option<Obstacle>,
}

impl World {
    fn now() -> Self {
        Self {
            modules: module_generations(Path::new("/sys/module")),
            hardware: has_hardware(&Root::default()),
            unarmed: armed::why_not(&Root::default()),
        }
    }
}

/// What fentry costs the user; `None` where no module is pinned.
fn pins(modules: &[&str]) -> Option<Cause> {
    (!modules.is_empty()).then(|| Cause {
        id: CauseId::Pinned,
        concerns: Concerns::Host,
        what: format!("unloading of {}", modules.join(", ")),
        why: "--attach fentry keeps these modules loaded while rdmatop runs".into(),
        remedy: "End rdmatop before you unload them, or start it with --attach kprobe.".into(),
    })
}

fn gap() -> Cause {
    Cause {
        id: CauseId::AttachedAnew,
        concerns: Concerns::Host,
        what: "events around the last change of modules or of kprobes".into(),
        why: "an RDMA module was loaded or unloaded, and the programs had to be attached anew, or kprobes were off".into(),
        remedy: "Nothing to do: an event at the very moment of the change may be missing, and so may those in the \
                 changed module, or while kprobes were off."
            .into(),
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
        let none = module_generations(dir.path());
        std::fs::create_dir(dir.path().join("ib_core")).unwrap();
        let one = module_generations(dir.path());
        assert_ne!(none, one);
        assert_eq!(one, module_generations(dir.path()));
    }
}
