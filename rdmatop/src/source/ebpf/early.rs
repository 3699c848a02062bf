//! The first memory of growing maps, made while programs are loaded and attached.
//!
//! The kernel ends each change of an array of maps with a wait for a grace period, some 10 ms in which it
//! does nothing for us.

use std::{
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use aya::maps::MapData;

use super::growth::{Growth, lock};
use crate::model::cause::{CauseId, Obstacle};

/// Growing maps whose first memory may be under way.
pub(super) struct Early {
    work: Arc<Mutex<Work>>,
    thread: Option<JoinHandle<()>>,
}

struct Work {
    growth: Growth,
    /// The ring buffer, or why there is none, once that is known.
    ring: Option<Result<MapData, Obstacle>>,
}

impl Early {
    /// Maps without memory. Those of a session that counts no work requests begin now, with a ring buffer of
    /// `ring_bytes`: what others need depends on the programs that can be attached.
    pub(super) fn of(mut growth: Growth, ring_bytes: Option<u32>) -> Self {
        if ring_bytes.is_some() {
            growth.without_slots();
        }
        let work = Arc::new(Mutex::new(Work { growth, ring: None }));
        let thread = ring_bytes.and_then(|bytes| {
            let work = Arc::clone(&work);
            let run = move || {
                let mut work = lock(&work);
                let ring = work.growth.begin(bytes, 0);
                work.ring = Some(ring);
            };
            // If no thread can be started, `finish` does it.
            thread::Builder::new().name("grow".to_owned()).spawn(run).ok()
        });
        Self { work, thread }
    }

    /// The maps and the ring buffer. `begin` does what has not begun.
    pub(super) fn finish(
        self,
        begin: impl FnOnce(&mut Growth) -> Result<MapData, Obstacle>,
    ) -> Result<(Growth, MapData), Obstacle> {
        let ended = self.thread.map(JoinHandle::join);
        let work = Arc::into_inner(self.work).and_then(|work| work.into_inner().ok());
        let Some(Work { mut growth, ring }) = work.filter(|_| !matches!(ended, Some(Err(_)))) else {
            let why = "the thread that makes maps ended by itself: this is a defect of rdmatop";
            return Err(Obstacle::new(CauseId::Defect, why, ""));
        };
        let ring = match ring {
            Some(ring) => ring?,
            None => begin(&mut growth)?,
        };
        Ok((growth, ring))
    }
}
