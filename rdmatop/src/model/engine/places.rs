//! QPs without a counter slot: those at rest, which have counted nothing, and those that found none left, whose counts
//! are not known. See `rdmatop_common::counters::place`.

use std::collections::BTreeSet;

use rdmatop_common::{counters::place, event::QpRecord};

use super::{
    Engine,
    devices::Device,
    qp::{Qp, Slot},
    tally::{Flow, Tally},
};
use crate::model::{
    cause::{Cause, CauseId, Concerns},
    event::EventKind,
    input::EbpfState,
};

/// QPs that a line names; the rows of all say it.
const NAMED: usize = 3;

/// QPs without a slot.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// QPs that moved and had none, as far as they live and have none.
    without: BTreeSet<u64>,
    /// How often the kernel side reported one.
    told: u64,
    /// How many slots there are, 0 for not known.
    pub(super) capacity: u32,
    /// A dump showed all QPs to the kernel side: those that are in no slot are at rest.
    shown: bool,
    /// What [`Engine::places_in_doubt`] said last.
    doubted: bool,
}

impl Engine {
    /// A record of a QP's birth says where it is counted.
    pub(super) fn placed(&mut self, uid: u64, record: &QpRecord) {
        match record.slot {
            place::AT_REST => self.rests(uid, false),
            place::NONE_LEFT => self.goes_without(uid),
            _ => {}
        }
    }

    /// A QP moved and found no slot.
    pub(super) fn uncounted(&mut self, record: &QpRecord) {
        if let Some(uid) = self.qp_of(record, EventKind::QpModify) {
            self.goes_without(uid);
        }
    }

    fn goes_without(&mut self, uid: u64) {
        self.places.told += 1;
        let Some(qp) = self.qps.get_mut(uid) else { return };
        // Told of late, it may have found one since.
        if qp.slot != Slot::Held {
            qp.edit().uncounted = true;
            self.places.without.insert(uid);
        }
        let (process, device) = (qp.process(), qp.key.device);
        // What it did meanwhile is in no sum, now or later.
        if let Some(process) = process.and_then(|uid| self.processes.get_mut(uid)) {
            process.flow.get_or_insert_default().short = true;
        }
        if let Some(device) = self.devices.get_mut(device) {
            device.flow.get_or_insert_default().short = true;
        }
    }

    /// A QP got a slot.
    pub(super) fn got_slot(&mut self, uid: u64) {
        self.places.without.remove(&uid);
        let Some(qp) = self.qps.get_mut(uid) else { return };
        if qp.row().uncounted {
            qp.edit().uncounted = false;
        }
        if let Some(flow) = &mut qp.flow {
            flow.resting = false;
        }
    }

    /// A QP has counted nothing so far.
    fn rests(&mut self, uid: u64, since_attach: bool) {
        let Some(qp) = self.qps.get_mut(uid) else { return };
        if !may_rest(qp) {
            return;
        }
        let (process, device) = (qp.process(), qp.key.device);
        // What its driver's counts do not say of one that moves is not 0 of one that rests.
        let unknown = self.devices.get(device).map_or(0, Device::unknown);
        let nothing = Tally::knowing_all_but(unknown);
        qp.flow = Some(Flow::at_rest(&nothing));
        qp.edit().since_attach |= since_attach;
        self.traffic.moves(uid);
        self.credit(process, device, &nothing, false);
    }

    /// A dump was folded in: while it was made the kernel side got to know each QP in it.
    pub(super) fn shown(&mut self) {
        let counts = matches!(&self.ebpf.state, EbpfState::On { datapaths } if !datapaths.is_empty());
        self.places.shown |= counts;
    }

    /// A sweep was folded in: QPs of the last dump that are in no slot are at rest, where others of their device are
    /// in one.
    pub(super) fn settle_rest(&mut self) {
        if !self.places.shown || self.places_in_doubt() {
            return;
        }
        self.places.shown = false;
        let rest: Vec<u64> = self
            .qps
            .iter()
            .filter(|qp| may_rest(qp) && qp.dump == self.dumps && qp.row().born_mono_ns.is_none())
            .filter(|qp| {
                let device = self.devices.get(qp.key.device);
                device.is_some_and(|device| device.flow.is_some())
            })
            .map(Qp::uid)
            .collect();
        for uid in rest {
            self.rests(uid, true);
        }
    }

    /// More QPs found no slot than are known by name: a QP without one may be among them, so that its 0 is no fact.
    pub(super) fn places_in_doubt(&self) -> bool {
        self.losses.without_slot() > self.places.told
    }

    /// Whether [`Engine::places_in_doubt`] has changed since this was last asked.
    pub(super) fn doubts_turned(&mut self) -> bool {
        let doubt = self.places_in_doubt();
        std::mem::replace(&mut self.places.doubted, doubt) != doubt
    }

    /// The line about QPs that are not counted.
    pub(super) fn uncounted_note(&mut self) -> Option<Cause> {
        let (qps, devices) = (&self.qps, &self.devices);
        self.places
            .without
            .retain(|uid| qps.get(*uid).is_some_and(|qp| qp.ended_ns.is_none()));
        let lost = self.losses.without_slot().max(self.places.told);
        if lost == 0 {
            return None;
        }
        let names: Vec<String> = self
            .places
            .without
            .iter()
            .take(NAMED)
            .filter_map(|uid| qps.get(*uid))
            .map(|qp| {
                let device = devices.get(qp.key.device).map_or("?", |device| &device.name);
                format!("{device}/{}", qp.key.qpn)
            })
            .collect();
        Some(note(
            self.places.without.len() as u64,
            &names,
            lost,
            lost.saturating_sub(self.places.told),
            self.places.capacity,
        ))
    }
}

fn may_rest(qp: &Qp) -> bool {
    qp.flow.is_none() && qp.slot != Slot::Held && !qp.row().uncounted && qp.ended_ns.is_none()
}

/// `now`: QPs that are not counted now, some of them by name; `lost`: all that ever were; `nameless`: those of which only
/// the number is known.
fn note(now: u64, names: &[String], lost: u64, nameless: u64, capacity: u32) -> Cause {
    let count = |n: u64| {
        if n == 1 {
            "1 QP".to_owned()
        } else {
            format!("{n} QPs")
        }
    };
    let slots = match capacity {
        0 => "all counter slots".to_owned(),
        n => format!("all {n} counter slots"),
    };
    let what = if now + nameless > 0 {
        let more = now + nameless - names.len() as u64;
        let named = match (names.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!(" ({})", names.join(", ")),
            (false, more) => format!(" ({} and {more} more)", names.join(", ")),
        };
        format!(
            "Not counted: work requests, bytes and latency of {}{named}, and the sums they belong to",
            count(now + nameless)
        )
    } else {
        format!(
            "Not counted for a time: {}, and the sums they belong to",
            count(lost)
        )
    };
    let why = if nameless > 0 && now == 0 {
        format!("{slots} were taken by QPs that had moved, or more QPs exist than rdmatop can remember")
    } else {
        format!("{slots} were taken by other QPs that had moved")
    };
    let more = capacity.max(1).saturating_mul(2).next_power_of_two();
    Cause {
        id: CauseId::NoSlot,
        concerns: Concerns::Host,
        what,
        why,
        remedy: format!(
            "A QP is counted again once others are destroyed. Start rdmatop with RDMATOP_SLOTS={more}: each slot takes \
             3 KiB of kernel memory"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_names_some_says_how_many_and_what_helps() {
        let names = ["rxe0/17".to_owned(), "rxe0/18".to_owned()];
        let one = note(2, &names, 5, 0, 16_384);
        assert_eq!(
            one.what,
            "Not counted: work requests, bytes and latency of 2 QPs (rxe0/17, rxe0/18), and the sums they belong to"
        );
        assert!(one.why.contains("all 16384 counter slots"), "{one}");
        assert!(one.remedy.contains("RDMATOP_SLOTS=32768"), "{one}");
        let more = note(2, &names, 9, 7, 8).what;
        assert!(more.contains("of 9 QPs (rxe0/17, rxe0/18 and 7 more)"), "{more}");
        let over = note(0, &[], 1, 0, 8).what;
        assert_eq!(over, "Not counted for a time: 1 QP, and the sums they belong to");
        assert!(note(0, &[], 3, 3, 0).why.contains("can remember"));
    }
}
