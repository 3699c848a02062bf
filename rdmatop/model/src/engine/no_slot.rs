//! QPs without a counter slot: those at rest, which have counted nothing, and those that found none left, or
//! no room in the tables of QPs, whose counts are not known. See `rdmatop_common::counters::place`.

use std::collections::BTreeSet;

use rdmatop_common::{counters::place, event::QpRecord};

use super::{
    flow::Flow,
    losses::Losses,
    machine::{Machine, credit},
    qp::{Qp, Slot},
    tally::Tally,
    traffic::Traffic,
};
use crate::{
    cause::{Cause, CauseId, Concerns},
    event::EventKind,
    input::{EbpfState, SlotsSample},
};
use rdmatop_base::{step::step, text::count};

/// QPs that a line names; the rows of all say it.
const NAMED: usize = 3;

/// QPs without a slot.
#[derive(Debug, Default)]
pub(super) struct NoSlot {
    /// QPs that moved and had none, as far as they live and have none.
    without: BTreeSet<u64>,
    /// How often the kernel side reported one.
    told: u64,
    /// QPs that found no room in the tables when they were made, as far as they live and have no slot.
    unlisted: BTreeSet<u64>,
    /// QPs may exist that are in no table (`SlotsSample::lacks_some`).
    lacks_some: bool,
    /// How many slots there are, 0 for not known.
    capacity: u32,
    /// A dump showed all QPs to the kernel side: those that are in no slot are at rest.
    shown: bool,
}

impl NoSlot {
    /// Notes what a sweep says of the slots and tables as such.
    pub(super) fn swept(&mut self, sample: &SlotsSample) {
        self.capacity = sample.capacity;
        self.lacks_some = sample.lacks_some;
    }

    pub(super) fn got_slot(&mut self, uid: u64) {
        self.without.remove(&uid);
        self.unlisted.remove(&uid);
    }

    /// A dump was folded in: while it was made the kernel side got to know each QP in it.
    pub(super) fn shown(&mut self, ebpf: &EbpfState) {
        let counts = matches!(ebpf, EbpfState::On { datapaths } if !datapaths.is_empty());
        self.shown |= counts;
    }

    /// More QPs found no slot than are known by name: a QP without one may be among them, so that its 0 is no
    /// fact.
    pub(super) fn is_in_doubt(&self, losses: &Losses) -> bool {
        losses.without_slot() > self.told
    }

    /// The lines about QPs that are not counted.
    pub(super) fn notes(&mut self, machine: &Machine, losses: &Losses) -> Vec<Cause> {
        let lives = |uid: &u64| machine.qps.get(*uid).is_some_and(Qp::lives);
        self.without.retain(lives);
        self.unlisted.retain(lives);
        let mut notes = Vec::new();
        let lost = losses.without_slot().max(self.told);
        if lost > 0 {
            notes.push(note(
                self.without.len() as u64,
                &names(&self.without, machine),
                lost,
                lost.saturating_sub(self.told),
                self.capacity,
            ));
        }
        // How many losses there were says nothing: each QP has one with most of what it does.
        if losses.without_place() > 0 || !self.unlisted.is_empty() || self.lacks_some {
            notes.push(unlisted(
                self.unlisted.len() as u64,
                &names(&self.unlisted, machine),
                self.lacks_some,
            ));
        }
        notes
    }
}

fn names(qps: &BTreeSet<u64>, machine: &Machine) -> Vec<String> {
    let named = qps.iter().take(NAMED).filter_map(|uid| machine.qps.get(*uid));
    let name = |qp: &Qp| {
        let device = machine
            .devices
            .get(qp.key.device)
            .map_or("?", |device| &device.name);
        format!("{device}/{}", qp.key.qpn)
    };
    named.map(name).collect()
}

impl Traffic {
    /// A record of a QP's birth says where it is counted.
    pub(super) fn placed(&mut self, uid: u64, record: &QpRecord, machine: &mut Machine) {
        match record.slot {
            place::AT_REST => self.rests(uid, false, machine),
            place::NONE_LEFT => {
                machine.is_short(uid);
                // Unknown until it has a slot: what it does before it is in a table is in no count.
                if let Some(qp) = machine.qps.get_mut(uid)
                    && qp.slot != Slot::Held
                {
                    qp.edit().uncounted = true;
                    self.no_slot.unlisted.insert(uid);
                }
            }
            _ => {}
        }
    }

    /// A QP moved and found no slot.
    pub(super) fn uncounted(&mut self, record: &QpRecord, machine: &mut Machine) {
        let Some(uid) = machine.qp_of(record, EventKind::QpModify) else {
            return;
        };
        self.no_slot.told += 1;
        let Some(qp) = machine.qps.get_mut(uid) else {
            return;
        };
        // Told of late, it may have found one since.
        if qp.slot != Slot::Held {
            qp.edit().uncounted = true;
            self.no_slot.without.insert(uid);
        }
        machine.is_short(uid);
    }

    /// A QP has counted nothing so far.
    fn rests(&mut self, uid: u64, since_attach: bool, machine: &mut Machine) {
        let Some(qp) = machine.qps.get_mut(uid) else {
            return;
        };
        if !may_rest(qp) {
            return;
        }
        let of = (qp.process(), qp.key.device);
        // What its driver's counts do not say of one that moves is not 0 of one that rests.
        let unknown = machine
            .devices
            .get(of.1)
            .map_or(0, |device| device.provider.unknown());
        let nothing = Tally::knowing_all_but(unknown);
        qp.flow = Some(Flow::at_rest(&nothing));
        qp.edit().since_attach |= since_attach;
        self.moving.push(uid);
        credit(&mut machine.processes, &mut machine.devices, of, &nothing, false);
    }

    /// A sweep was folded in: QPs of the last dump that are in no slot are at rest, where others of their
    /// device are in one.
    pub(super) fn settle_rest(&mut self, machine: &mut Machine, losses: &Losses) {
        // Of a QP that is in no table nothing is seen, whatever it does.
        if !self.no_slot.shown || self.no_slot.lacks_some || self.no_slot.is_in_doubt(losses) {
            return;
        }
        self.no_slot.shown = false;
        let rest: Vec<u64> = machine
            .qps
            .iter()
            .filter(|qp| may_rest(qp) && qp.dump == machine.qps.dumps && qp.row().born_mono_ns.is_none())
            .filter(|qp| {
                let device = machine.devices.get(qp.key.device);
                // Of others only QPs whose programs are probed have a flow, and it says nothing of the rest.
                device.is_some_and(|device| device.flow.is_some() && device.is_followed())
            })
            .map(Qp::uid)
            .collect();
        for uid in rest {
            self.rests(uid, true, machine);
        }
    }
}

fn may_rest(qp: &Qp) -> bool {
    qp.flow.is_none() && qp.slot != Slot::Held && !qp.row().uncounted && qp.lives()
}

/// So many QPs, with some of their names; `None` of none.
fn named(all: u64, names: &[String]) -> Option<String> {
    let (qps, list) = (count(all, "QP"), names.join(", "));
    match (names.is_empty(), all - names.len() as u64) {
        (true, 0) => None,
        (true, _) => Some(qps),
        (false, 0) => Some(format!("{qps} ({list})")),
        (false, more) => Some(format!("{qps} ({list} and {more} more)")),
    }
}

/// `now`: QPs that are not counted; if there are none, `past` were not.
fn what(now: Option<String>, past: &str) -> String {
    match now {
        Some(qps) => {
            format!("Not counted: work requests, bytes and latency of {qps}, and the sums they belong to")
        }
        None => format!("Not counted for a time: {past}, and the sums they belong to"),
    }
}

/// `now`: QPs that found no room in the tables and have no slot, some of them by name; `others`: there may be
/// more, or they may be in no table yet.
fn unlisted(now: u64, names: &[String], others: bool) -> Cause {
    let remedy = if others {
        "They are looked for as soon as there is room, and counted from then on. Started anew it makes room \
         for twice as many QPs as there are then, or for as many as --max-qps says"
    } else {
        "None is needed: there is room now, and each that still exists is counted from its next work request on"
    };
    Cause {
        id: CauseId::NoPlace,
        concerns: Concerns::Host,
        what: what(
            named(now, names).or_else(|| others.then(|| "some QPs".into())),
            "some QPs",
        ),
        why: "they found the tables of QPs full".into(),
        remedy: remedy.into(),
    }
}

/// `now`: QPs that are not counted now, some of them by name; `lost`: all that ever were; `nameless`: those
/// of which only the number is known. `capacity`: how many slots there are, 0 for not known.
fn note(now: u64, names: &[String], lost: u64, nameless: u64, capacity: u32) -> Cause {
    let slots = match capacity {
        0 => "all counter slots".to_owned(),
        n => format!("all {n} counter slots"),
    };
    let more = capacity.max(1).saturating_mul(2).next_power_of_two();
    Cause {
        id: CauseId::NoSlot,
        concerns: Concerns::Host,
        what: what(named(now + nameless, names), &count(lost, "QP")),
        why: format!("{slots} were taken by other QPs that had moved"),
        remedy: step!(
            "A QP is counted again once others are destroyed. `sudo rdmatop --max-qps={}` has room for more: each QP takes 3 KiB \
             of kernel memory",
            more
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
        assert!(one.remedy.contains("--max-qps=32768"), "{one}");
        let more = note(2, &names, 9, 7, 8).what;
        assert!(more.contains("of 9 QPs (rxe0/17, rxe0/18 and 7 more)"), "{more}");
        let over = note(0, &[], 1, 0, 8).what;
        assert_eq!(over, "Not counted for a time: 1 QP, and the sums they belong to");
    }

    #[test]
    fn the_line_about_the_tables_says_what_is_so_now_and_what_helps() {
        let names = ["rxe0/17".to_owned()];
        let said = |now, names: &[String], others| {
            let cause = unlisted(now, names, others);
            assert_eq!(cause.id, CauseId::NoPlace);
            assert_eq!(cause.remedy.contains("--max-qps"), others, "{cause}");
            cause.to_string()
        };
        let full = said(2, &names, true);
        assert!(
            full.contains("of 2 QPs (rxe0/17 and 1 more),") && full.contains("as soon as there is room"),
            "{full}"
        );
        let known = said(1, &names, false);
        assert!(
            known.contains("of 1 QP (rxe0/17),") && known.contains("next work request"),
            "{known}"
        );
        assert!(said(0, &[], true).contains("Not counted: work requests, bytes and latency of some QPs,"));
        assert!(said(0, &[], false).contains("Not counted for a time: some QPs,"));
    }
}
