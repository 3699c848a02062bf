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
    plan::CONTROL_PLANE,
    session::{Options, Session, SessionError},
    status::SharedStatus,
    sweep::MapSweep,
};
use crate::{
    model::input::{EbpfState, Input, Note},
    source::{
        clock,
        privileges::Raised,
        root::Root,
        seam::{Change, Ended, Feed, Started},
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

/// Told what counts, or why nothing does.
type OnStart = Box<dyn FnOnce(&Result<Started, String>) + Send>;

/// Told what became of it later.
type OnChange = Box<dyn Fn(Change) + Send>;

/// Runs sessions until told to stop.
pub struct Manager {
    options: Options,
    status: SharedStatus,
    sweep: MapSweep,
    stop: Arc<Notify>,
    /// Told once, when the first session counts (or cannot).
    on_start: Option<OnStart>,
    on_change: Option<OnChange>,
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

enum Why {
    Stopped,
    WorldChanged,
    /// It changed, and this session is attached to what there is now.
    Next(Box<Session>, World),
}

type Starting = oneshot::Receiver<Result<Session, SessionError>>;

/// Loads and attaches: system calls and the verifier, so off the thread that reads. Not by the runtime's
/// `spawn_blocking`, which panics where there can be no more threads.
fn start(options: &Options) -> Result<Starting, SessionError> {
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
        .map_err(SessionError::NoThread)?;
    Ok(starting)
}

/// As [`start`], waited for.
async fn started(options: &Options) -> Result<Session, SessionError> {
    let starting = start(options)?;
    starting.await.unwrap_or(Err(SessionError::Vanished))
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
            on_change: None,
            retired: None,
        }
    }

    /// Calls `told` once, with what counts or why nothing does.
    #[must_use]
    pub fn on_start(mut self, told: impl FnOnce(&Result<Started, String>) + Send + 'static) -> Self {
        self.on_start = Some(Box::new(told));
        self
    }

    /// Calls `told` at each change after the start.
    #[must_use]
    pub fn on_change(mut self, told: impl Fn(Change) + Send + 'static) -> Self {
        self.on_change = Some(Box::new(told));
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
            let (started, world) = if let Some((session, world)) = next.take() {
                (Ok(session), world)
            } else {
                let world = World::now();
                (started(&self.options).await, world)
            };
            let why = match started {
                // A gap is what lies between two sessions: before the first there was nothing to see.
                Ok(session) => {
                    self.serve(session, &feed, &world, std::mem::take(&mut first))
                        .await
                }
                Err(error) => self.without(&error, &world).await,
            };
            match why {
                Ok(Why::WorldChanged) => {}
                Ok(Why::Next(session, world)) => next = Some((*session, world)),
                Ok(Why::Stopped) | Err(Ended) => return,
            }
        }
    }

    /// Tells the start, or that it is another one.
    fn tell(&mut self, outcome: &Result<Started, String>) {
        if let Some(told) = self.on_start.take() {
            return told(outcome);
        }
        if let Some(told) = &self.on_change {
            told(match outcome {
                Ok(started) => Change::Again(started.clone()),
                Err(why) => Change::Blind(why.clone()),
            });
        }
    }

    async fn without(&mut self, error: &SessionError, world: &World) -> Result<Why, Ended> {
        self.let_go();
        let why = error.to_string();
        self.status.update(|status| {
            status.state = EbpfState::Unavailable { why: why.clone() };
            status.probes.clear();
        });
        self.tell(&Err(why));
        loop {
            tokio::select! {
                () = self.stop.notified() => return Ok(Why::Stopped),
                () = sleep(WATCH) => {}
            }
            if World::now() != *world {
                return Ok(Why::WorldChanged);
            }
        }
    }

    async fn serve(
        &mut self,
        mut session: Session,
        feed: &Feed,
        world: &World,
        first: bool,
    ) -> Result<Why, Ended> {
        if let Err(error) = self.sweep.adopt(&mut session) {
            return Ok(self.no_ring(&error.to_string()));
        }
        let started = self.counts(&session, first);
        let outcome = match session.take_ring() {
            // SAFETY: a RingBuf owns its map's descriptor and gives the same one until it is dropped, which the
            // AsyncFd does only after it has deregistered it.
            Ok(ring) => match unsafe { AsyncFd::register(ring) } {
                Ok(ring) => match session.set_enabled(true) {
                    Ok(()) => {
                        self.let_go();
                        self.tell(&Ok(started));
                        if !first {
                            feed.send(Input::Reattached).await?;
                        }
                        self.read(ring, &mut session, feed, world).await
                    }
                    Err(error) => Ok(self.no_ring(&error.to_string())),
                },
                Err(error) => Ok(self.no_ring(&error.to_string())),
            },
            Err(why) => Ok(self.no_ring(&why)),
        };
        self.sweep.release();
        self.retired = Some(session);
        outcome
    }

    /// Tells that a session counts.
    fn counts(&self, session: &Session, first: bool) -> Started {
        let started = Started {
            programs: session.attached(),
            pinned: session.pinned(),
            unseen: session.notes().iter().map(ToString::to_string).collect(),
        };
        self.status.update(|status| {
            status.state = EbpfState::On {
                datapath: session.datapath().map(str::to_owned),
            };
            status.probes = session.verdicts().to_vec();
            status.notes = session.notes().to_vec();
            status.notes.extend(pins(&started.pinned));
            if !first {
                status.notes.push(gap());
            }
        });
        started
    }

    /// The kernel's switch for kprobes was turned off. The programs stay: to detach them while it is off makes ftrace give
    /// itself up until the next boot (`__disarm_kprobe_ftrace` warns, 6.12). What they count once it is on again is no
    /// number: the times would hold the time that they were blind. So others take over then.
    fn blinded(&mut self, why: &'static str) {
        self.sweep.pause();
        let why = SessionError::Unarmed(why).to_string();
        self.status.update(|status| {
            status.state = EbpfState::Unavailable { why: why.clone() };
            status.probes.clear();
        });
        self.tell(&Err(why));
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

    fn no_ring(&mut self, why: &str) -> Why {
        let why = format!("cannot read the eBPF maps: {why}");
        self.status.update(|status| {
            status.state = EbpfState::Unavailable { why: why.clone() };
            status.probes.clear();
            status.notes.clear();
        });
        self.tell(&Err(why));
        Why::Stopped
    }

    async fn read(
        &mut self,
        mut ring: AsyncFd<RingBuf<MapData>>,
        session: &mut Session,
        feed: &Feed,
        world: &World,
    ) -> Result<Why, Ended> {
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut losses_at = Instant::now();
        let mut blind = world.unarmed;
        let mut records = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    // Off first: a storm that goes on would have no last record.
                    self.empty(ring.get_mut(), session, feed).await?;
                    return Ok(Why::Stopped);
                }
                _ = watch.tick() => {
                    session.flush_log();
                    self.sweep.make_room();
                    // Of some records the reader is not told: see `wakeup` in rdmatop-ebpf.
                    records |= drain(ring.get_mut(), feed).await?;
                    let now = World::now();
                    match now.unarmed {
                        Some(why) if blind != Some(why) => {
                            blind = Some(why);
                            self.blinded(why);
                        }
                        None if blind.is_some() || now.modules != world.modules => {
                            return self.succeed(ring, session, feed).await;
                        }
                        // While it is off, whatever else changes waits until programs can come and go again.
                        _ => {}
                    }
                }
                guard = ring.readable_mut(), if !records => {
                    let Ok(mut guard) = guard else { return Ok(Why::Stopped) };
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
    ) -> Result<Why, Ended> {
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
            Ok(next) => Why::Next(Box::new(next), world),
            _ => Why::WorldChanged,
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

/// Each watched module and the inode of its directory: a reloaded module has a new one.
type Generations = BTreeMap<&'static str, Option<u64>>;

fn module_generations(root: &Path) -> Generations {
    let hooks = CONTROL_PLANE.iter().chain(datapath::hooks());
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
    /// Why kprobes do not run. An administrator may flip that under a session, which sees nothing from then on.
    unarmed: Option<&'static str>,
}

impl World {
    fn now() -> Self {
        Self {
            modules: module_generations(Path::new("/sys/module")),
            unarmed: armed::why_not(&Root::default()),
        }
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
