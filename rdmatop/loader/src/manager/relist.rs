//! Has the kernel list all QPs once some found no room in the tables and there may be room again. For each QP
//! of a list the kernel calls `ib_query_qp`, and the program there then remembers the QP. A QP that only
//! receives makes no other call from which the programs learn its address.

use std::{
    sync::atomic::Ordering,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::maps::sweep::MapSweep;
use rdmatop_sources::netlink::{client::Nldev, error::NetlinkError};

/// How long to wait after a list: at least `AGAIN`, or `SELDOM` times as long as the list took. A list takes
/// time quadratic in the number of QPs of a device.
const AGAIN: Duration = Duration::from_secs(1);
const SELDOM: u32 = 20;

/// Lists the QPs of all devices. Returns whether the lists are complete.
fn list_qps() -> Result<bool, NetlinkError> {
    let mut nldev = Nldev::open()?;
    let devices = nldev.devices()?;
    let mut complete = !devices.interrupted;
    for device in devices.items {
        complete &= !nldev.each_qp(device.index, &mut |_| ())?;
    }
    Ok(complete)
}

/// How long a list took, and whether it was complete.
type Listed = (Duration, bool);

/// Has QPs listed, on a thread that nobody waits for, because a driver may be slow to answer.
pub(super) struct Relister {
    thread: Option<JoinHandle<Listed>>,
    again: Instant,
    /// QPs may have ended since the last list began.
    room: bool,
}

impl Relister {
    pub(crate) fn new() -> Self {
        Self {
            thread: None,
            again: Instant::now(),
            room: true,
        }
    }

    /// Notes that QPs may have ended. If none has, a list would find the tables as full as the last one did.
    pub(super) fn qps_ended(&mut self) {
        self.room = true;
    }

    /// Starts a list if one is needed. Otherwise this costs little.
    pub(crate) fn list_if_needed(&mut self, sweep: &MapSweep) {
        if let Some(thread) = self.thread.take_if(|thread| thread.is_finished()) {
            let (took, complete) = thread.join().unwrap_or_default();
            self.again = Instant::now() + (took * SELDOM).max(AGAIN);
            self.room |= !complete;
        }
        if !self.room || self.thread.is_some() || Instant::now() < self.again {
            return;
        }
        let Some((refused, listed)) = sweep.unlisted() else {
            return;
        };
        let work = move || {
            let began = Instant::now();
            let complete = list_qps().unwrap_or(false);
            if complete {
                // If a listed QP finds no room either, the kernel side counts it as refused once more.
                listed.fetch_max(refused, Ordering::Relaxed);
            }
            (began.elapsed(), complete)
        };
        self.thread = thread::Builder::new().name("list".to_owned()).spawn(work).ok();
        self.room = self.thread.is_none();
        self.again = Instant::now() + AGAIN;
    }
}
