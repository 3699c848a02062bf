//! What a view shows of a watched QP at one time.

use super::{HALF, Request, SLOT_NS, SLOTS, STALL_NS, WatchState, Watched};
use crate::ib::WrRequest;

/// A watched QP at one time.
#[derive(Clone, Debug)]
pub struct Picture {
    /// `uid` of the QP.
    pub qp: u64,
    /// Whether work requests are seen.
    pub state: WatchState,
    /// The time of the picture, `CLOCK_MONOTONIC`, ns.
    pub mono_ns: u64,
    /// Send work requests that were posted and have not ended.
    pub outstanding: u64,
    /// The one that is outstanding longest.
    pub oldest: Option<Oldest>,
    /// What the QP does at present.
    pub moment: Moment,
    /// The longest stall on the timeline that is over.
    pub longest: Option<Wait>,
    /// Posts, ends and receives a second over the last second; `None` before there is one.
    pub posts: Option<f64>,
    /// Ends of send work requests.
    pub ends: Option<f64>,
    /// Receives that ended.
    pub receives: Option<f64>,
    /// Send work requests that were posted, and receives that ended, since the beginning.
    pub happened: u64,
    /// Records that found no room: the timeline has what they were, the list has not.
    pub full: u64,
    /// Posts and ends that no program saw in time.
    pub missed: u64,
    /// Records of ends of send work requests.
    pub end_records: u64,
    /// Those of them whose post no program saw at its doorbell: how long these took is unknown.
    pub untimed: u64,
    /// The timeline, oldest first, each [`SLOT_NS`] wide; the last is of now.
    pub slots: Vec<Slot>,
    /// The last work requests, newest first.
    pub requests: Vec<Request>,
    /// Requests that have left the list.
    pub forgotten: u64,
}

/// A slot of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// How many send work requests were posted.
    pub posts: u32,
    /// Ends of send work requests.
    pub ends: u32,
    /// Ends and receives without success.
    pub failed: u32,
    /// How many receives ended.
    pub receives: u32,
    /// The most that was outstanding when the slot began or ended.
    pub open: u64,
    /// The request is part of a stall.
    pub stalled: bool,
}

/// The oldest outstanding work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Oldest {
    /// The time since its post.
    pub age_ns: u64,
    /// The record of an older one's post found no room.
    pub at_least: bool,
    /// The program's number.
    pub wr_id: Option<u64>,
    /// What it asks for.
    pub opcode: WrRequest,
}

/// What a QP does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Something is outstanding, and nothing has ended for so long.
    Stalled(u64),
    /// Something is outstanding.
    Busy,
    /// Nothing is outstanding; so long since the last record, `None` before there is one.
    Idle(Option<u64>),
}

/// A stall that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// How long the wait was.
    pub length_ns: u64,
    /// The time since its end.
    pub ago_ns: u64,
}

impl Watched {
    /// How the QP looks at a time.
    pub fn picture(&self, mono_ns: u64) -> Picture {
        let outstanding = self.outstanding();
        let front = self.open.front();
        let oldest = front.and_then(|open| {
            Some(Oldest {
                age_ns: mono_ns.saturating_sub(open.posted_ns?),
                at_least: open.number != 0 && open.number != self.last_end.wrapping_add(1),
                wr_id: open.wr_id,
                opcode: open.opcode.unwrap_or(WrRequest(u8::MAX)),
            })
        });
        let since = front.and_then(|open| Some(open.posted_ns?.max(self.last_end_ns)));
        let waited = since.map(|since| mono_ns.saturating_sub(since));
        let moment = if outstanding == 0 {
            Moment::Idle((self.newest_ns > 0).then(|| mono_ns.saturating_sub(self.newest_ns)))
        } else {
            match waited.filter(|waited| *waited >= STALL_NS) {
                Some(waited) => Moment::Stalled(waited),
                None => Moment::Busy,
            }
        };
        let mut stalls: Vec<(u64, u64)> = self.waits.iter().copied().collect();
        if let (Moment::Stalled(_), Some(since)) = (moment, since) {
            stalls.push((since, mono_ns));
        }
        let (counts, first_slot) = self.until(mono_ns);
        let slots = shown(&counts, first_slot, outstanding, &stalls);
        let begin_ns = first_slot * SLOT_NS;
        let over = self.waits.iter().filter(|(_, end)| *end > begin_ns);
        let longest = over.max_by_key(|(from, end)| end - from).map(|(from, end)| Wait {
            length_ns: end - from,
            ago_ns: mono_ns.saturating_sub(*end),
        });
        let list = self.requests.iter().rev().map(|request| self.marked(*request));
        Picture {
            qp: self.qp,
            state: self.state.clone(),
            mono_ns,
            outstanding,
            oldest,
            moment,
            longest,
            posts: rate(&counts, |slot| slot.posts),
            ends: rate(&counts, |slot| slot.ends),
            receives: rate(&counts, |slot| slot.receives),
            happened: self.posted.saturating_add(self.received),
            full: self.full,
            missed: self.missed,
            end_records: self.end_records,
            untimed: self.untimed,
            slots,
            requests: list.collect(),
            forgotten: self.forgotten,
        }
    }

    /// A request of the list; one whose end is known from a later number alone has ended.
    fn marked(&self, request: Request) -> Request {
        let ended = match request.number {
            0 => self.outstanding() == 0,
            number => self.last_end.wrapping_sub(number) < HALF,
        };
        Request {
            unseen_end: request.is_outstanding() && ended,
            ..request
        }
    }

    /// The slots up to a time, and the number of the first.
    fn until(&self, mono_ns: u64) -> (Vec<Slot>, u64) {
        let last = mono_ns / SLOT_NS;
        let begun = self.slots.iter().zip(self.first_slot..);
        let mut counts: Vec<Slot> = begun
            .filter(|(_, number)| *number <= last)
            .map(|(counts, _)| *counts)
            .collect();
        if self.slots.is_empty() || last < self.first_slot {
            return (Vec::new(), last);
        }
        // Silence was seen too.
        let all = usize::try_from(last - self.first_slot + 1).unwrap_or(usize::MAX);
        let skip = all.saturating_sub(SLOTS);
        counts.drain(..skip.min(counts.len()));
        counts.resize(all.min(SLOTS), Slot::default());
        (counts, self.first_slot + skip as u64)
    }
}

/// The slots as they are shown: what was outstanding follows from what is now.
fn shown(counts: &[Slot], first_slot: u64, outstanding: u64, stalls: &[(u64, u64)]) -> Vec<Slot> {
    let mut after = outstanding;
    let mut slots: Vec<Slot> = counts
        .iter()
        .enumerate()
        .rev()
        .map(|(place, counts)| {
            let number = first_slot + place as u64;
            let before = after
                .saturating_add(counts.ends.into())
                .saturating_sub(counts.posts.into());
            let middle_ns = number * SLOT_NS + SLOT_NS / 2;
            let slot = Slot {
                open: before.max(after),
                stalled: stalls
                    .iter()
                    .any(|(from, end)| (*from..*end).contains(&middle_ns)),
                ..*counts
            };
            after = before;
            slot
        })
        .collect();
    slots.reverse();
    slots
}

/// Per second over the last whole slots, a second at most.
fn rate(counts: &[Slot], of: impl Fn(&Slot) -> u32) -> Option<f64> {
    const SECOND: usize = 20;
    let whole = &counts[..counts.len().saturating_sub(1)];
    let last = &whole[whole.len().saturating_sub(SECOND)..];
    if last.is_empty() {
        return None;
    }
    let sum: u64 = last.iter().map(|slot| u64::from(of(slot))).sum();
    Some(sum as f64 * 1e9 / (last.len() as u64 * SLOT_NS) as f64)
}
