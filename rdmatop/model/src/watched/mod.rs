//! The work requests of one QP as they go by: what is outstanding, when nothing ended, the last of them. No
//! I/O, no clock.
//!
//! Records carry the number of their request on its send queue, so posts and ends are counted exactly even
//! where records found no room: the next record tells how many happened in between. Requests of a send queue
//! end in their order.

use std::collections::VecDeque;

use rdmatop_common::wr::{NO_OPCODE, NO_STATUS, WrRecord, flag, kind};

use super::{
    cause::Obstacle,
    ib::{WcStatus, WrRequest},
    input::{Now, WatchReport},
};

mod picture;
#[cfg(test)]
mod tests;

pub use picture::{Moment, Oldest, Picture, Slot, Wait};

/// Work requests kept for the list.
pub const KEPT: usize = 256;
/// Width of a slot of the timeline.
pub const SLOT_NS: u64 = 50_000_000;
/// Slots of the timeline: 16 s.
pub const SLOTS: usize = 320;
/// So long without an end while something is outstanding is a stall.
pub const STALL_NS: u64 = 500_000_000;
/// Outstanding requests whose posts are remembered.
const MOST_OPEN: usize = 4096;
/// Stalls remembered.
const MOST_WAITS: usize = 32;
/// A number this far ahead of another one is behind it: numbers have 32 bits and wrap.
const HALF: u32 = 1 << 31;

/// Whether work requests are seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchState {
    /// The programs are not attached yet.
    #[default]
    Starting,
    /// The programs are attached.
    On,
    /// The programs are not attached, and this is why.
    Off(Obstacle),
    /// The QP is gone: what was seen of it stays.
    Gone,
}

/// A work request in the list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Request {
    number: u32,
    /// The request is of the receive queue.
    pub receive: bool,
    /// Post, `CLOCK_MONOTONIC`, ns; `None` for a receive, and where no program saw the post.
    pub posted_ns: Option<u64>,
    /// When it ended, `CLOCK_MONOTONIC`, ns; `None` while it is outstanding.
    pub ended_ns: Option<u64>,
    /// The same as wall-clock time: of the post where that is known, else of the end.
    pub wall_ns: u64,
    /// The program's number.
    pub wr_id: Option<u64>,
    /// What it asks for.
    pub opcode: Option<WrRequest>,
    /// How many bytes it moves, where that is known.
    pub bytes: Option<u32>,
    /// A completion was asked for; `None` for a receive.
    pub signaled: Option<bool>,
    /// How it ended.
    pub status: Option<WcStatus>,
    /// Its queue was emptied without a completion.
    pub dropped: bool,
    /// The CQ had no room for the completion.
    pub cq_full: bool,
    /// The time from post to end.
    pub took_ns: Option<u64>,
    /// It has ended, by the end of a later one, and the record of its own end found no room.
    pub unseen_end: bool,
}

impl Request {
    /// Whether it was posted and has not ended.
    pub fn is_outstanding(&self) -> bool {
        !self.receive && self.ended_ns.is_none() && !self.unseen_end
    }

    fn of(record: &WrRecord, now: Now) -> Self {
        let is = |bit| record.flags & bit != 0;
        let receive = is(flag::RECEIVE);
        let small = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let mut request = Self {
            number: record.number,
            receive,
            wall_ns: now.wall_of(record.ts_ns),
            wr_id: is(flag::WR_ID).then_some(record.wr_id),
            opcode: (record.opcode != NO_OPCODE).then(|| WrRequest(small(record.opcode))),
            bytes: is(flag::DETAILS).then_some(record.bytes),
            signaled: (is(flag::DETAILS) && !receive).then_some(is(flag::SIGNALED)),
            ..Self::default()
        };
        if record.kind == kind::POST {
            request.posted_ns = Some(record.ts_ns);
        } else {
            request.end(record);
            if record.post_ns != 0 && !receive {
                request.posted_ns = Some(record.post_ns);
                request.wall_ns = now.wall_of(record.post_ns);
            }
        }
        request
    }

    fn end(&mut self, record: &WrRecord) {
        self.ended_ns = Some(record.ts_ns);
        self.status =
            (record.status != NO_STATUS).then(|| WcStatus(u8::try_from(record.status).unwrap_or(u8::MAX)));
        self.dropped = record.flags & flag::DROPPED != 0;
        self.cq_full = record.flags & flag::CQ_FULL != 0;
        self.took_ns = (record.post_ns != 0).then(|| record.ts_ns.saturating_sub(record.post_ns));
        self.unseen_end = false;
    }
}

/// The state of a watched QP.
#[derive(Debug, Default)]
pub struct Watched {
    watch: u64,
    qp: u64,
    state: WatchState,
    /// The last of them, oldest first.
    requests: VecDeque<Request>,
    /// Requests that have left the list.
    forgotten: u64,
    /// Outstanding requests, oldest first.
    open: VecDeque<Request>,
    posted: u64,
    ended: u64,
    received: u64,
    /// Numbers of the last post and of the last end.
    last_post: u32,
    last_end: u32,
    full: u64,
    missed: u64,
    /// Records of ends of send work requests, and those of them without the time of the post.
    end_records: u64,
    untimed: u64,
    last_end_ns: u64,
    /// Time of the last record.
    newest_ns: u64,
    /// Intervals without an end while something was outstanding, of [`STALL_NS`] or more.
    waits: VecDeque<(u64, u64)>,
    first_slot: u64,
    /// Without what only a picture has.
    slots: VecDeque<Slot>,
}

impl Watched {
    /// The beginning of a watch.
    pub fn new(watch: u64, qp: u64) -> Self {
        Self {
            watch,
            qp,
            ..Self::default()
        }
    }

    /// The number of the watch.
    pub fn watch(&self) -> u64 {
        self.watch
    }

    /// `uid` of the QP.
    pub fn qp(&self) -> u64 {
        self.qp
    }

    /// The QP is gone.
    pub fn is_gone(&self) -> bool {
        self.state == WatchState::Gone
    }

    /// Send work requests that were posted and have not ended.
    pub fn outstanding(&self) -> u64 {
        self.posted.saturating_sub(self.ended)
    }

    /// Takes a report. What comes after the end of the QP is of another one.
    pub fn take(&mut self, report: WatchReport, now: Now) {
        if self.is_gone() {
            return;
        }
        match report {
            WatchReport::Starting => self.state = WatchState::Starting,
            WatchReport::Off(obstacle) => self.state = WatchState::Off(obstacle),
            WatchReport::On => {
                self.state = WatchState::On;
                self.slot(now.mono_ns);
            }
            WatchReport::Records {
                records,
                full,
                missed,
            } => {
                for record in &records {
                    self.record(record, now);
                }
                (self.full, self.missed) = (full, missed);
            }
            WatchReport::Over => {}
        }
    }

    /// The QP is gone.
    pub fn end(&mut self) {
        self.state = WatchState::Gone;
    }

    /// What the counters of the QP say is outstanding, read when the last record was long ago. Where records
    /// found no room, those of the last posts and ends may be among them, and no later number tells.
    pub fn settle(&mut self, outstanding: u64, now_ns: u64) {
        const QUIET_NS: u64 = 1_000_000_000;
        let quiet = now_ns.saturating_sub(self.newest_ns) > QUIET_NS;
        if !quiet || self.full + self.missed == 0 || self.outstanding() == outstanding {
            return;
        }
        if outstanding < self.outstanding() {
            self.ended = self.posted - outstanding;
            self.last_end = self
                .last_post
                .wrapping_sub(u32::try_from(outstanding).unwrap_or(u32::MAX));
            self.close_up_to(self.last_end);
            self.last_end_ns = self.newest_ns;
        } else {
            self.posted = self.ended.saturating_add(outstanding);
        }
        self.bound_open();
    }

    fn record(&mut self, record: &WrRecord, now: Now) {
        let at_ns = record.ts_ns.min(now.mono_ns);
        self.newest_ns = self.newest_ns.max(at_ns);
        if record.flags & flag::RECEIVE != 0 {
            self.received += 1;
            if let Some(slot) = self.slot(at_ns) {
                slot.receives = slot.receives.saturating_add(1);
                slot.failed = slot.failed.saturating_add(u32::from(record.status != 0));
            }
            self.list(Request::of(record, now));
        } else if record.kind == kind::POST {
            let request = Request::of(record, now);
            self.post(request, at_ns);
            self.list(request);
        } else {
            self.done(record, at_ns, now);
        }
    }

    fn post(&mut self, request: Request, at_ns: u64) {
        let mut step = 1;
        if request.number != 0 {
            step = request.number.wrapping_sub(self.last_post);
            if step == 0 || step >= HALF {
                // The kernel side began anew: another QP has the number.
                self.open.clear();
                (self.posted, self.ended, self.last_end) = (0, 0, 0);
                step = request.number;
            }
            self.last_post = request.number;
        }
        self.posted = self.posted.saturating_add(step.into());
        if let Some(slot) = self.slot(at_ns) {
            slot.posts = slot.posts.saturating_add(step);
        }
        // The oldest are the ones that matter.
        if self.open.len() < MOST_OPEN {
            self.open.push_back(request);
        }
        self.bound_open();
    }

    fn done(&mut self, record: &WrRecord, at_ns: u64, now: Now) {
        let number = record.number;
        let mut step = 1;
        if number != 0 {
            step = number.wrapping_sub(self.last_end);
            if step == 0 || step >= HALF {
                return;
            }
        }
        let oldest = self.open.front().and_then(|open| open.posted_ns);
        if number != 0 {
            self.last_end = number;
            if number.wrapping_sub(self.last_post) < HALF {
                self.last_post = number;
            }
            self.close_up_to(number);
        } else {
            let same = self.open.iter().position(|open| open.wr_id == Some(record.wr_id));
            let _ = self.open.remove(same.unwrap_or(0));
        }
        self.ended = self.ended.saturating_add(step.into());
        // The post of what has ended happened too.
        self.posted = self.posted.max(self.ended);
        self.bound_open();
        let since = oldest.map(|oldest| oldest.max(self.last_end_ns));
        if let Some(since) = since.filter(|since| at_ns.saturating_sub(*since) >= STALL_NS) {
            self.waits.push_back((since, at_ns));
            while self.waits.len() > MOST_WAITS {
                self.waits.pop_front();
            }
        }
        self.last_end_ns = self.last_end_ns.max(at_ns);
        self.end_records += 1;
        self.untimed += u64::from(record.post_ns == 0);
        let bad = record.status != 0 || record.flags & flag::DROPPED != 0;
        if let Some(slot) = self.slot(at_ns) {
            slot.ends = slot.ends.saturating_add(step);
            slot.failed = slot.failed.saturating_add(u32::from(bad));
        }
        self.list_end(record, now);
    }

    /// Forgets outstanding requests up to a number.
    fn close_up_to(&mut self, number: u32) {
        while let Some(open) = self.open.front()
            && number.wrapping_sub(open.number) < HALF
        {
            self.open.pop_front();
        }
    }

    /// No more requests are remembered as outstanding than are.
    fn bound_open(&mut self) {
        while self.open.len() as u64 > self.outstanding() {
            self.open.pop_front();
        }
    }

    fn list(&mut self, request: Request) {
        self.requests.push_back(request);
        while self.requests.len() > KEPT {
            self.requests.pop_front();
            self.forgotten += 1;
        }
    }

    fn list_end(&mut self, record: &WrRecord, now: Now) {
        let is_it = |request: &Request| {
            request.is_outstanding()
                && match record.number {
                    0 => request.number == 0 && request.wr_id == Some(record.wr_id),
                    number => request.number == number,
                }
        };
        match self.requests.iter_mut().find(|request| is_it(request)) {
            Some(request) => request.end(record),
            None => self.list(Request::of(record, now)),
        }
    }

    /// The slot of a time; `None` when it is too old.
    fn slot(&mut self, at_ns: u64) -> Option<&mut Slot> {
        let number = at_ns / SLOT_NS;
        if self.slots.is_empty() {
            self.first_slot = number;
        }
        let place = usize::try_from(number.checked_sub(self.first_slot)?).unwrap_or(usize::MAX);
        if place >= self.slots.len().saturating_add(SLOTS) {
            self.slots.clear();
            self.first_slot = number;
            self.slots.push_back(Slot::default());
            return self.slots.back_mut();
        }
        while self.slots.len() <= place {
            self.slots.push_back(Slot::default());
        }
        while self.slots.len() > SLOTS {
            self.slots.pop_front();
            self.first_slot += 1;
        }
        let place = usize::try_from(number.checked_sub(self.first_slot)?).ok()?;
        self.slots.get_mut(place)
    }
}
