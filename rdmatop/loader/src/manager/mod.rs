//! Keeps a session alive and reads its ring buffer.
//!
//! A kprobe never runs again once its module is unloaded, and a module that is loaded later has none. So the
//! manager watches the modules; when they change, it replaces the session by a new one and reports the gap.
mod drain;
mod machine;
mod modules;
pub(crate) mod panicked;
mod relist;

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use aya::maps::{MapData, RingBuf};
use tokio::{
    io::unix::AsyncFd,
    sync::{Notify, oneshot},
    time::sleep,
};

use crate::{
    manager::{
        drain::{NAP, drain, drain_work, registered},
        machine::MachineState,
        modules::Generations,
        relist::Relister,
    },
    maps::sweep::MapSweep,
    plan::options::Options,
    session::{self, Session, armed::why_unarmed, report::not_started},
};
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    input::Input,
};
use rdmatop_sources::{
    clock,
    limits::start_thread,
    root::Root,
    seam::{Ended, Feed},
};

/// How often to check the modules.
const WATCH: Duration = Duration::from_secs(1);
/// How often to look for records of work requests. They do not wake the reader, because that would cost the
/// posting program more than the record does.
const LOOK_FOR_WORK: Duration = Duration::from_millis(10);
/// How often to read losses while records come.
const LOSSES_EVERY: Duration = Duration::from_millis(200);
/// How long to wait after a session that could not be read before trying another: at first, and at most.
const TRY_AGAIN: Duration = Duration::from_secs(2);
const TRY_AGAIN_AT_MOST: Duration = Duration::from_mins(2);

/// Runs sessions until it is stopped.
pub struct Manager {
    options: Options,
    sweep: MapSweep,
    stop: Arc<Notify>,
    /// There was a session before, so the next one attaches anew.
    begun: bool,
    /// How long to wait after the next session that cannot be read.
    pause: Duration,
    /// The previous session, switched off. Detaching takes milliseconds for each program, and the next
    /// session must count before that.
    retired: Option<Session>,
    relister: Relister,
    /// QPs may have ended whose slots have not been freed yet.
    may_free: bool,
}

/// How a session, or the time without a session, ended.
enum After {
    Stopped,
    /// The manager is to try another session.
    Again,
    Next(Box<Session>, MachineState),
    /// The session's counts could not be read.
    Unreadable(Obstacle),
}

type Starting = oneshot::Receiver<Result<Session, Obstacle>>;

/// Loads and attaches a session on a thread of its own, because that takes long. The runtime's
/// `spawn_blocking` would panic if no thread can be started.
fn start(options: &Options) -> Result<Starting, Obstacle> {
    let options = options.clone();
    let (result, starting) = oneshot::channel();
    // Sending fails if the manager has ended meanwhile.
    let work = move || drop(result.send(Session::start(&options)));
    start_thread("attach", work)?;
    Ok(starting)
}

/// As [`start`], and waits for the session.
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
            relister: Relister::new(),
            may_free: true,
        }
    }

    /// What asks the manager to stop. It then reads the remaining records, reads the losses once more, and
    /// closes its channel; records made before still arrive.
    pub fn stop(&self) -> impl FnOnce() + Send + use<> {
        let stop = Arc::clone(&self.stop);
        // notify_one keeps one permit, so a stop is not lost if the manager does not listen yet.
        move || stop.notify_one()
    }

    /// Attaches, reads, attaches again, until it is stopped or the engine ends.
    pub async fn run(mut self, feed: Feed) {
        let mut next = None;
        loop {
            let (started, machine) = if let Some((session, machine)) = next.take() {
                (Ok(session), machine)
            } else {
                let machine = MachineState::read();
                (started(&self.options).await, machine)
            };
            let mut after = match started {
                Ok(session) => self.serve(session, &feed, &machine).await,
                Err(obstacle) => self.without(obstacle, &machine, None, &feed).await,
            };
            if let Ok(After::Unreadable(obstacle)) = after {
                // Try again later: the kernel may then grant what it refused now.
                let pause = self.pause;
                self.pause = (pause * 2).min(TRY_AGAIN_AT_MOST);
                after = self.without(obstacle, &machine, Some(pause), &feed).await;
            }
            match after {
                Ok(After::Again | After::Unreadable(_)) => {}
                Ok(After::Next(session, machine)) => next = Some((*session, machine)),
                Ok(After::Stopped) | Err(Ended) => return,
            }
        }
    }

    /// Reports that nothing counts, and waits until the state of the machine changes, or for at most `pause`.
    async fn without(
        &mut self,
        obstacle: Obstacle,
        machine: &MachineState,
        pause: Option<Duration>,
        feed: &Feed,
    ) -> Result<After, Ended> {
        log::warn!(id:? = obstacle.id, why = obstacle.why.as_str(), remedy:% = obstacle.remedy; "nothing counts");
        self.let_go();
        feed.send(not_started(obstacle)).await?;
        let since = Instant::now();
        loop {
            tokio::select! {
                () = self.stop.notified() => return Ok(After::Stopped),
                () = sleep(WATCH) => {}
            }
            if MachineState::read() != *machine || pause.is_some_and(|pause| since.elapsed() >= pause) {
                return Ok(After::Again);
            }
        }
    }

    async fn serve(
        &mut self,
        mut session: Session,
        feed: &Feed,
        machine: &MachineState,
    ) -> Result<After, Ended> {
        if let Err(error) = self.sweep.adopt(&mut session) {
            return Ok(unreadable(&error.to_string()));
        }
        let outcome = match watched_ring(&mut session) {
            Ok(ring) => {
                self.let_go();
                self.pause = TRY_AGAIN;
                let anew = std::mem::replace(&mut self.begun, true);
                log::info!(anew, programs = session.attached(); "counting");
                feed.send(session.report(anew)).await?;
                let mut rings = Rings {
                    events: ring,
                    work: session.take_work(),
                };
                self.read(&mut rings, &mut session, feed, machine).await
            }
            Err(after) => Ok(after),
        };
        if let Ok(After::Unreadable(_)) = outcome {
            // The ring buffer cannot be read, but the counters can.
            let _ = session.set_enabled(false);
            self.last_counts(feed).await?;
        }
        self.sweep.release();
        self.retired = Some(session);
        outcome
    }

    /// Reports that the kernel's switch for kprobes was turned off. The programs stay attached, because
    /// detaching them while the switch is off disables ftrace until the next boot (`__disarm_kprobe_ftrace`
    /// warns, 6.12). After the switch is on again their counts are useless: the times of calls would include
    /// the time without programs. So a new session then replaces this one.
    async fn blinded(&self, obstacle: Obstacle, feed: &Feed) -> Result<(), Ended> {
        log::warn!(why = obstacle.why.as_str(); "programs do not run");
        // Read the counts now, because those so far are correct and later ones are not.
        self.last_counts(feed).await?;
        self.sweep.pause();
        feed.send(not_started(session::would_not_run(obstacle))).await
    }

    /// Detaches the previous session on another thread, because reading records must not wait for it.
    fn let_go(&mut self) {
        if let Some(session) = self.retired.take() {
            log::debug!(programs = session.attached(); "detach");
            // If no thread can be started, the closure is dropped here, and the session with it.
            drop(
                thread::Builder::new()
                    .name("detach".to_owned())
                    .spawn(move || drop(session)),
            );
        }
    }

    async fn read(
        &mut self,
        rings: &mut Rings,
        session: &mut Session,
        feed: &Feed,
        machine: &MachineState,
    ) -> Result<After, Ended> {
        let mut poll = tokio::time::interval(LOOK_FOR_WORK);
        poll.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut watch = tokio::time::interval(WATCH);
        watch.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut losses_at = Instant::now();
        let mut blind = machine.unarmed.clone();
        let mut records = false;
        loop {
            tokio::select! {
                biased;
                () = self.stop.notified() => {
                    // Switch off first, or a storm of records would never end.
                    self.empty(rings, session, feed).await?;
                    return Ok(After::Stopped);
                }
                _ = poll.tick(), if rings.work.is_some() => {
                    drain_work(rings.work.as_mut(), feed).await?;
                    if losses_at.elapsed() >= LOSSES_EVERY {
                        losses_at = Instant::now();
                        feed.send(Input::Losses(self.sweep.losses())).await?;
                    }
                }
                _ = watch.tick() => {
                    session.flush_log();
                    self.report_floods(feed).await?;
                    self.relister.list_if_needed(&self.sweep);
                    // Some records do not wake the reader: see `wakeup` in rdmatop-ebpf.
                    records |= self.drain(rings.events.get_mut(), feed).await?;
                    let root = Root::default();
                    let modules = Generations::read(&root.sys("module"));
                    match why_unarmed(&root) {
                        Some(obstacle) if blind.as_ref() != Some(&obstacle) => {
                            blind = Some(obstacle.clone());
                            self.blinded(obstacle, feed).await?;
                        }
                        None if blind.is_some() || modules != machine.modules => {
                            return self.succeed(rings, session, feed).await;
                        }
                        // While the switch is off, other changes must wait until programs can be attached and
                        // detached again.
                        _ => {}
                    }
                }
                guard = rings.events.readable_mut(), if !records => {
                    let mut guard = match guard {
                        Ok(guard) => guard,
                        Err(error) => return Ok(unreadable(&error.to_string())),
                    };
                    // Clear before reading: a record that comes after the last read then makes the descriptor
                    // ready again.
                    guard.clear_ready();
                    records = true;
                }
                () = std::future::ready(()), if records => {
                    records = self.drain(rings.events.get_mut(), feed).await?;
                    if losses_at.elapsed() >= LOSSES_EVERY {
                        losses_at = Instant::now();
                        feed.send(Input::Losses(self.sweep.losses())).await?;
                    }
                    if !records {
                        // Do not use tokio's sleep: it waits in epoll_wait(2), where the next record would
                        // wake this thread too early. Nothing else runs on this thread.
                        std::thread::sleep(NAP);
                    }
                }
            }
        }
    }

    /// Switches a session off and reads its remaining records. If the kernel refuses to switch it off, its
    /// programs run until they are detached.
    async fn empty(&mut self, rings: &mut Rings, session: &mut Session, feed: &Feed) -> Result<(), Ended> {
        let _ = session.set_enabled(false);
        while self.drain(rings.events.get_mut(), feed).await? {}
        while drain_work(rings.work.as_mut(), feed).await? {}
        self.sweep.read_skips();
        if let Some(counts) = self.sweep.work() {
            feed.send(Input::WorkCounts(counts)).await?;
        }
        self.report_floods(feed).await?;
        feed.send(Input::Losses(self.sweep.losses())).await?;
        feed.send(Input::Skipped(self.sweep.skipped())).await
    }

    /// Names the processes that made more events than they may.
    async fn report_floods(&self, feed: &Feed) -> Result<(), Ended> {
        let floods = self.sweep.floods();
        if floods.is_empty() {
            return Ok(());
        }
        feed.send(Input::Floods(floods)).await
    }

    /// Attaches a new session while the present one still counts, then switches from one to the other. Probes
    /// in modules that stayed loaded miss only calls that are under way at that moment.
    async fn succeed(
        &mut self,
        rings: &mut Rings,
        session: &mut Session,
        feed: &Feed,
    ) -> Result<After, Ended> {
        let machine = MachineState::read();
        log::info!(machine:? = machine; "modules or switches changed: attaching anew");
        let options = self.options.clone();
        let starting = started(&options);
        tokio::pin!(starting);
        let mut started = loop {
            tokio::select! {
                started = &mut starting => break started,
                () = sleep(NAP) => {
                    drain(rings.events.get_mut(), feed).await?;
                    drain_work(rings.work.as_mut(), feed).await?;
                }
            }
        };
        // Switch this session off before the next one is on, so that no event comes twice. If counters are
        // wanted, `serve` takes over the maps of the next session before it switches that session on.
        let _ = session.set_enabled(false);
        if let Ok(next) = &mut started
            && !self.options.scope.counters()
        {
            let _ = next.set_enabled(true);
        }
        self.empty(rings, session, feed).await?;
        self.last_counts(feed).await?;
        Ok(match started {
            Ok(next) => After::Next(Box::new(next), machine),
            _ => After::Again,
        })
    }

    /// As [`drain`], and frees slots of QPs that have ended.
    async fn drain(&mut self, ring: &mut RingBuf<MapData>, feed: &Feed) -> Result<bool, Ended> {
        let drained = drain(ring, feed).await?;
        // The end of a QP makes a record, so without a record there is no slot to free.
        if drained.any {
            self.may_free = true;
            self.relister.qps_ended();
        }
        if self.may_free {
            self.may_free = !self.sweep.make_room();
        }
        Ok(drained.more)
    }

    /// Passes on the counts of QPs since the last sweep, because those of the next session start at zero.
    async fn last_counts(&self, feed: &Feed) -> Result<(), Ended> {
        let mut last = Vec::new();
        self.sweep
            .slots(clock::monotonic(), &mut |sample| last.push(sample));
        for sample in last {
            feed.send(Input::Slots(Box::new(sample))).await?;
        }
        Ok(())
    }
}

/// The ring buffers of a session.
struct Rings {
    events: AsyncFd<RingBuf<MapData>>,
    /// Records of work requests, if a trace asks for them.
    work: Option<RingBuf<MapData>>,
}

/// Takes a session's ring buffer and switches the session on.
fn watched_ring(session: &mut Session) -> Result<AsyncFd<RingBuf<MapData>>, After> {
    let ring = session
        .take_ring()
        .map_err(|obstacle| unreadable(&obstacle.why))?;
    let ring = registered(ring).map_err(|obstacle| unreadable(&obstacle.why))?;
    session
        .set_enabled(true)
        .map_err(|obstacle| unreadable(&obstacle.why))?;
    Ok(ring)
}

fn unreadable(why: &str) -> After {
    let why = format!("cannot read the eBPF maps: {why}");
    After::Unreadable(Obstacle::new(CauseId::Unreadable, why, "it is tried again"))
}
