//! Watches the work requests of one QP while the user looks at them. It uses a session of its own, with
//! programs, maps and a ring buffer, from the user's request until the user stops. The session that counts
//! goes on as it is.

use std::{
    sync::mpsc::{self, RecvTimeoutError},
    time::Duration,
};

use aya::maps::{MapData, RingBuf};
use rdmatop_common::{
    counters::loss,
    names::map,
    wr::{WrFilter, WrRecord, decode},
};

use super::{detach, switch};
use crate::{
    maps::mapped::Mapped,
    plan::{options::Options, scope::Scope},
    session::Session,
};
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    event::EventKind,
    input::{Input, WatchReport, WatchSample},
};
use rdmatop_sources::{
    limits::start_thread,
    seam::{Ended, Feed},
};

/// How often to look for records, which do not wake the reader.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of the ring buffer: some 1,400 records, which the reader takes twenty times a second. At higher
/// rates the kernel side drops records and counts them; the numbers of the requests show which are missing.
const RING_BYTES: u32 = 256 << 10;
/// The most records to pass on at a time.
const AT_A_TIME: usize = 512;
/// How many batches to read before looking for an order again: a ring buffer that is filled as fast as it is
/// read must not make an order wait.
const BATCHES: usize = 8;

/// Watches at most one QP at a time.
#[derive(Debug)]
pub struct Watcher {
    feed: Feed,
    watches: u64,
    /// An order detaches the programs; dropping it ends the watch.
    running: Option<mpsc::Sender<()>>,
}

impl Watcher {
    /// A watcher that has loaded nothing.
    pub fn new(feed: Feed) -> Self {
        Self {
            feed,
            watches: 0,
            running: None,
        }
    }

    /// Watches a QP from now on, or reports why it cannot. `filter` selects the QP.
    pub fn watch(&mut self, qp: u64, filter: Result<WrFilter, Obstacle>) {
        self.watches += 1;
        let (to, orders) = mpsc::channel();
        self.running = Some(to);
        let watch = Watch {
            feed: self.feed.clone(),
            number: self.watches,
            qp,
            orders,
        };
        let failed = (self.feed.clone(), self.watches);
        let spawned = start_thread("watch", move || {
            // If the engine has ended, the whole program ends, and the kernel detaches the programs.
            let _: Result<(), Ended> = watch.run(filter);
        });
        if let Err(obstacle) = spawned {
            let (feed, watch) = failed;
            let report = WatchReport::Off(obstacle);
            let _ = feed.offer(Input::Watch(Box::new(WatchSample { watch, qp, report })));
        }
    }

    /// Detaches the programs; what was seen stays.
    pub fn detach(&mut self) {
        if let Some(running) = &self.running {
            // The thread may have ended already, and then nothing is attached.
            let _ = running.send(());
        }
    }

    /// Ends the watch.
    pub fn stop(&mut self) {
        self.running = None;
    }
}

/// A watch, on a thread of its own.
struct Watch {
    feed: Feed,
    number: u64,
    qp: u64,
    /// See [`Watcher::running`].
    orders: mpsc::Receiver<()>,
}

impl Watch {
    fn report(&self, report: WatchReport) -> Result<(), Ended> {
        let (watch, qp) = (self.number, self.qp);
        self.feed
            .send_blocking(Input::Watch(Box::new(WatchSample { watch, qp, report })))
    }

    fn run(&self, filter: Result<WrFilter, Obstacle>) -> Result<(), Ended> {
        match filter {
            Err(obstacle) => self.report(WatchReport::Off(obstacle))?,
            Ok(filter) => {
                self.report(WatchReport::Starting)?;
                match Session::start(&options(filter)).and_then(AttachedSession::open) {
                    Ok(attached) => self.pass_on(attached)?,
                    Err(obstacle) => self.report(WatchReport::Off(obstacle))?,
                }
            }
        }
        // Wait until the user stops looking, which drops the sender.
        while self.orders.recv().is_ok() {}
        self.report(WatchReport::Over)
    }

    /// Passes records on until an order arrives or the sender is dropped; then detaches the programs.
    fn pass_on(&self, mut attached: AttachedSession) -> Result<(), Ended> {
        self.report(WatchReport::On)?;
        let mut reported = (0, 0);
        while let Err(RecvTimeoutError::Timeout) = self.orders.recv_timeout(LOOK) {
            for _ in 0..BATCHES {
                let records = attached.records();
                let (full, missed) = attached.lost();
                if records.is_empty() && (full, missed) == reported {
                    break;
                }
                reported = (full, missed);
                let more = records.len() == AT_A_TIME;
                self.report(WatchReport::Records {
                    records,
                    full,
                    missed,
                })?;
                if !more {
                    break;
                }
            }
        }
        detach(attached.session);
        Ok(())
    }
}

/// What the session loads: the programs of work requests and nothing else.
fn options(filter: WrFilter) -> Options {
    Options {
        ring_bytes: 4096,
        scope: Scope::Events(vec![EventKind::WrPost, EventKind::WrDone]),
        work: Some((filter, RING_BYTES)),
        ..Options::default()
    }
}

struct AttachedSession {
    ring: RingBuf<MapData>,
    losses: Mapped<u64>,
    session: Session,
}

impl AttachedSession {
    fn open(mut session: Session) -> Result<Self, Obstacle> {
        let defect = |why: &str| Obstacle::new(CauseId::Defect, why, "");
        let Some(ring) = session.take_work() else {
            return Err(session
                .why_no_work()
                .unwrap_or_else(|| defect("no program of work requests is attached")));
        };
        let losses = session.take_map(map::LOSSES);
        let losses = losses.ok_or_else(|| defect("the object has no LOSSES map"))?;
        let losses = Mapped::open(losses, map::LOSSES)
            .map_err(|error| Obstacle::new(CauseId::Unreadable, error.to_string(), ""))?;
        switch(&mut session, true)?;
        Ok(Self {
            ring,
            losses,
            session,
        })
    }

    fn records(&mut self) -> Vec<WrRecord> {
        let mut records = Vec::new();
        while records.len() < AT_A_TIME
            && let Some(item) = self.ring.next()
        {
            records.extend(decode(&item).ok());
        }
        records
    }

    /// The number of records that found no room, and of posts and ends that no program saw.
    fn lost(&self) -> (u64, u64) {
        (self.losses.read(loss::WR_RING), self.losses.read(loss::WR_MISSED))
    }
}
