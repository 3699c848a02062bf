//! Reads ring buffers and passes their records on.

use std::time::Duration;

use aya::maps::{MapData, RingBuf};
use rdmatop_common::{event, wr};
use tokio::io::unix::AsyncFd;

use rdmatop_model::{
    cause::{CauseId, Obstacle},
    input::Input,
};
use rdmatop_sources::seam::{Ended, Feed};

/// How long to sleep after the ring buffer was found empty. The first record after a silence is read at once.
/// In a storm the reader, the engine and the writer wake a hundred times a second, each time for hundreds of
/// records.
pub(super) const NAP: Duration = Duration::from_millis(10);
/// How many records to pass on at a time, so that many share one wake-up of the engine.
const RECORDS_AT_A_TIME: usize = 256;
/// How many batches to read before the caller checks for a stop, the modules and the losses again: in a storm
/// the ring buffer may never be empty.
const BATCHES_AT_A_TIME: usize = 16;

/// What a ring buffer held.
#[derive(Default)]
pub(super) struct Drained {
    /// The ring buffer may have more records.
    pub(crate) more: bool,
    /// The ring buffer had records.
    pub(crate) any: bool,
}

/// Passes lifecycle records on.
pub(crate) async fn drain(ring: &mut RingBuf<MapData>, feed: &Feed) -> Result<Drained, Ended> {
    pass(ring, feed, event::decode, Input::Records).await
}

/// Passes records of work requests on. Returns true if the ring buffer may have more.
pub(super) async fn drain_work(ring: Option<&mut RingBuf<MapData>>, feed: &Feed) -> Result<bool, Ended> {
    let Some(ring) = ring else { return Ok(false) };
    Ok(pass(ring, feed, wr::decode, Input::WorkRequests).await?.more)
}

async fn pass<R, E>(
    ring: &mut RingBuf<MapData>,
    feed: &Feed,
    decode: impl Fn(&[u8]) -> Result<R, E>,
    input: impl Fn(Vec<R>) -> Input,
) -> Result<Drained, Ended> {
    let mut drained = Drained::default();
    // The channel sets the pace. While it is full, the ring buffer fills up, and the kernel side counts the
    // records that find no room.
    let mut expected = 0;
    for _ in 0..BATCHES_AT_A_TIME {
        // After a full batch the next one is usually full too; growing the list would copy it eight times.
        let mut records = Vec::with_capacity(expected);
        let mut bad = false;
        while records.len() < RECORDS_AT_A_TIME && !bad {
            let Some(item) = ring.next() else { break };
            drained.any = true;
            match decode(&item) {
                Ok(record) => records.push(record),
                Err(_) => bad = true,
            }
        }
        let more = bad || records.len() == RECORDS_AT_A_TIME;
        expected = records.len();
        if !records.is_empty() {
            feed.send(input(records)).await?;
        }
        if bad {
            feed.send(Input::BadRecord).await?;
        }
        if !more {
            return Ok(drained);
        }
    }
    drained.more = true;
    Ok(drained)
}

pub(super) fn registered(ring: RingBuf<MapData>) -> Result<AsyncFd<RingBuf<MapData>>, Obstacle> {
    // SAFETY: a RingBuf owns its map's descriptor and returns the same one until it is dropped; the AsyncFd
    // deregisters the descriptor before that.
    unsafe { AsyncFd::register(ring) }
        .map_err(|error| Obstacle::new(CauseId::Unreadable, error.to_string(), ""))
}
