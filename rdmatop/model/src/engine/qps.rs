//! The table of QPs. A QP is (device generation, number, creation): the kernel reuses both its number and its
//! address.
//!
//! Each record and each slot says which QP it belongs to: the address, and the time at which the kernel side
//! first saw the QP there. No two QPs share both, so this is a plain look-up. Only the first sign of a QP has
//! to be judged: the QP may already be known by its number alone, from a dump or from an earlier set of
//! programs.
//!
//! That judgement rests on one fact. A device gives a number to one QP at a time, and the time stamps of a QP
//! lie within that time: its birth after the number was given, the beginning of its destruction before the
//! number is free. So of two QPs with one number on one device, the first has ended before the second is
//! born. A table of the QPs that had a number, with the times at which they existed, therefore shows which QP
//! a time belongs to.
//!
//! A QP without a number ([`NO_NUMBER`]) has its address alone, and no dump lists it.

use std::{collections::VecDeque, sync::Arc};

use super::{
    hash::NumberMap,
    processes::Processes,
    qp::{Key, Owner, Qp, Slot},
    table::Table,
};
use crate::{
    ib::QpState,
    snapshot::{NO_NUMBER, Step},
};

/// The QP that a record or a slot is about.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QpRef {
    /// The QP's address, 0 when not known.
    pub(super) object: u64,
    /// When the kernel side first saw the QP at this address, 0 when not known.
    pub(super) born_ns: u64,
    /// The kernel side saw the QP's creation.
    pub(super) created: bool,
    pub(super) key: Option<Key>,
    /// The QP existed at this time.
    pub(super) ts_ns: u64,
    /// The process that created it and when that was started (0: not known), if the kernel side knows.
    pub(super) owner: Option<(u32, u64)>,
}

impl QpRef {
    /// The key that no other QP has.
    fn birth(&self) -> Option<(u64, u64)> {
        (self.object != 0 && self.born_ns != 0).then_some((self.object, self.born_ns))
    }

    /// The earliest time at which the QP is known to have been there.
    pub(super) fn at_ns(&self) -> u64 {
        if self.born_ns != 0 {
            self.born_ns
        } else {
            self.ts_ns
        }
    }
}

/// All QPs that exist, and for some time those that existed.
#[derive(Debug, Default)]
pub(super) struct Qps {
    pub(super) all: Table<Qp>,
    /// The latest QP at each address. With keys of its own: each record looks here.
    by_object: NumberMap<u64, u64>,
    /// By address and birth, as the kernel side knows them.
    by_birth: NumberMap<(u64, u64), u64>,
    /// The latest QP of each number, living or not. [`Qp::before`] leads to the earlier ones, each of which
    /// has ended.
    by_key: NumberMap<Key, u64>,
    ended: VecDeque<(u64, u64)>,
    /// Latest end among those that had to be forgotten early: [`Qps::ended_at`] may not know them any more.
    pub(super) forgotten_ns: u64,
    last_uid: u64,
    /// Since when it may be wrong, until a dump that began later.
    repair_since: Option<u64>,
    pub(super) dumps: u32,
    /// See [`Qp::observe`].
    pub(super) timeline: Arc<Vec<Step>>,
}

impl Qps {
    pub(super) fn get(&self, uid: u64) -> Option<&Qp> {
        self.all.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: u64) -> Option<&mut Qp> {
        self.all.get_mut(uid)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.all.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.all.values()
    }

    /// The table may be wrong about a time up to now.
    pub(super) fn want_repair(&mut self, now_ns: u64) {
        self.repair_since = Some(now_ns);
    }

    pub(super) fn repaired(&mut self, began_ns: u64) {
        if self.repair_since.is_some_and(|since| began_ns >= since) {
            self.repair_since = None;
        }
    }

    pub(super) fn wants_repair(&self) -> bool {
        self.repair_since.is_some()
    }

    /// The latest QP of a number.
    fn at_key(&self, key: Key) -> Option<u64> {
        self.by_key.get(&key).copied()
    }

    /// The living QP of a number on a known device.
    pub(super) fn live_mut(&mut self, key: Key) -> Option<&mut Qp> {
        let uid = self.at_key(key)?;
        self.all.get_mut(uid).filter(|qp| qp.lives())
    }

    /// The living QP of a number.
    pub(super) fn live(&self, key: Key) -> Option<u64> {
        self.last_of(key)
            .into_iter()
            .flatten()
            .find(|uid| self.all.get(*uid).is_some_and(Qp::lives))
    }

    /// The latest QPs of a number: on its device, on a device that the kernel side does not know, and for QP
    /// 0 and QP 1 where one side does not know the port.
    fn last_of(&self, key: Key) -> [Option<u64>; 3] {
        let of = |key| self.at_key(key);
        let nowhere = (key.device != 0).then_some(Key { device: 0, ..key });
        [of(key), nowhere.and_then(of), self.last_special(key)]
    }

    /// QP 0 or QP 1 where one side does not know the port: slots and records have none, a dump does.
    fn last_special(&self, key: Key) -> Option<u64> {
        if key.qpn > 1 {
            return None;
        }
        let at = |port| self.at_key(Key { port, ..key });
        if key.port == 0 {
            // With two ports it could be either's.
            let mut found = (1..=u32::from(u8::MAX)).filter_map(at);
            return found.next().filter(|_| found.next().is_none());
        }
        let qp = self.all.get(at(0)?)?;
        qp.row()
            .port
            .is_none_or(|port| port == key.port)
            .then_some(qp.uid())
    }

    /// When the last QP of this number ended, if it has and that is not long ago.
    pub(super) fn ended_at(&self, key: Key) -> Option<u64> {
        self.all.get(self.at_key(key)?)?.ended_ns()
    }

    /// The QP of this address and birth.
    pub(super) fn born_at(&self, object: u64, born_ns: u64) -> Option<u64> {
        self.by_birth.get(&(object, born_ns)).copied()
    }

    /// The QP that a record or a slot is about, `None` when it is new.
    pub(super) fn find(&self, seen: &QpRef) -> Option<u64> {
        if let Some((object, born_ns)) = seen.birth()
            && let Some(uid) = self.born_at(object, born_ns)
        {
            return Some(uid);
        }
        let (mut later, mut unlikely) = (None, None);
        let key = seen.key?;
        if key.qpn == NO_NUMBER {
            let same = self.by_object.get(&seen.object).copied()?;
            return self.all.get(same).filter(|qp| qp.may_be(seen)).map(Qp::uid);
        }
        for last in self.last_of(key).into_iter().flatten() {
            let mut next = Some(last);
            while let Some(qp) = next.and_then(|uid| self.all.get(uid)) {
                let was_there = qp.first_ns <= seen.at_ns();
                if qp.may_be(seen) {
                    if !qp.is_owned_as(seen) {
                        unlikely = Some(qp.uid());
                    } else if was_there {
                        return Some(qp.uid());
                    } else {
                        // It may have existed before its first sign, unless another QP had the number then.
                        later = Some(qp.uid());
                    }
                }
                if qp.seen_ns <= seen.at_ns() {
                    // The earlier ones had ended by then.
                    break;
                }
                next = Some(qp.before);
            }
        }
        later.or(unlikely)
    }

    /// Adds a QP that is known to have existed at `first_ns`, and at `seen_ns` at the latest.
    pub(super) fn insert(&mut self, key: Key, first_ns: u64, seen_ns: u64, processes: &mut Processes) -> u64 {
        self.last_uid += 1;
        let uid = self.last_uid;
        self.all.push(uid, Qp::new(uid, key, first_ns, seen_ns));
        self.place(uid, processes);
        uid
    }

    /// Puts a QP among those that had its number, in the order of time. An earlier QP with the number has
    /// ended; so has this one if its report came so late that another QP has the number by now.
    fn place(&mut self, uid: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get(uid) else { return };
        let (key, first_ns, seen_ns) = (qp.key, qp.first_ns, qp.seen_ns);
        if key.qpn == NO_NUMBER {
            return;
        }
        let mut younger: Option<(u64, u64, u64)> = None;
        let mut next = self.at_key(key);
        while let Some(other) = next.and_then(|uid| self.all.get(uid)) {
            if other.first_ns <= first_ns {
                break;
            }
            younger = Some((other.uid(), other.first_ns, other.seen_ns));
            next = Some(other.before);
        }
        let older = next.filter(|uid| self.all.get(*uid).is_some());
        if let Some(qp) = self.all.get_mut(uid) {
            qp.before = older.unwrap_or(0);
        }
        if let Some(older) = older {
            self.end_by(older, first_ns, seen_ns, processes);
        }
        match younger {
            Some((younger, since_ns, by_ns)) => {
                if let Some(younger) = self.all.get_mut(younger) {
                    younger.before = uid;
                }
                self.end_by(uid, since_ns, by_ns, processes);
            }
            None => _ = self.by_key.insert(key, uid),
        }
    }

    /// Takes a QP out of those that had its number.
    fn displace(&mut self, uid: u64) {
        let Some(qp) = self.all.get(uid) else { return };
        let (key, before) = (qp.key, qp.before);
        let Some(mut at) = self.at_key(key) else { return };
        if at == uid {
            // The QP before may be forgotten.
            if self.all.get(before).is_some() {
                self.by_key.insert(key, before);
            } else {
                self.by_key.remove(&key);
            }
            return;
        }
        while let Some(qp) = self.all.get_mut(at) {
            if qp.before == uid {
                qp.before = before;
                return;
            }
            at = qp.before;
        }
    }

    /// Records what the kernel side knows a QP by.
    pub(super) fn saw_qp(&mut self, uid: u64, seen: &QpRef, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        let new = seen.birth().filter(|birth| !qp.births.contains(birth));
        let moves_in = qp.object == 0 && seen.object != 0;
        if moves_in {
            qp.object = seen.object;
        }
        if let Some(birth) = new {
            // Nearly all QPs are seen by one set.
            qp.births.reserve_exact(1);
            qp.births.push(birth);
            self.by_birth.insert(birth, uid);
        }
        let at_ns = seen.at_ns();
        qp.seen_ns = qp.seen_ns.min(at_ns);
        if seen.created && !qp.created {
            qp.created = true;
            qp.first_ns = at_ns;
            qp.edit().born_mono_ns = Some(at_ns);
        } else if at_ns < qp.first_ns {
            qp.first_ns = at_ns;
        }
        let first_ns = qp.first_ns;
        if moves_in {
            self.move_in(uid, seen.object, first_ns, processes);
        }
    }

    /// From `first_ns` on the address belongs to this QP: the earlier one has ended, or this one, if its
    /// report came late.
    fn move_in(&mut self, uid: u64, object: u64, first_ns: u64, processes: &mut Processes) {
        let Some(other) = self.by_object.insert(object, uid) else {
            return;
        };
        let Some(qp) = self.all.get(other) else { return };
        if qp.first_ns > first_ns {
            let since_ns = qp.first_ns;
            self.by_object.insert(object, other);
            self.end(uid, since_ns, processes);
        } else {
            self.end(other, first_ns, processes);
        }
    }

    /// A QP begins its life at `ts_ns`: a record reports its creation. `timelines`: see `EngineConfig`.
    pub(super) fn created(&mut self, uid: u64, ts_ns: u64, timelines: bool) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        qp.first_ns = ts_ns;
        qp.created = true;
        let row = qp.row();
        // Steps from a dump have the time at which the dump began, which may be before the birth.
        if row.timeline.iter().any(|step| step.mono_ns < ts_ns) {
            Arc::make_mut(&mut qp.edit().timeline).retain(|step| step.mono_ns >= ts_ns);
        }
        // Later states are known already: from a dump under way, or from a record that arrived before this
        // one.
        let row = qp.row();
        let known = row
            .state
            .map(|state| (state, row.state_source, qp.state_ns.max(ts_ns)));
        let row = qp.step(QpState(0), ts_ns, None, timelines);
        row.born_mono_ns = Some(ts_ns);
        if let Some((state, source, state_ns)) = known {
            (row.state, row.state_source) = (Some(state), source);
            qp.state_ns = state_ns;
        }
    }

    /// Records the device of a QP known without one. True when it was not known before.
    pub(super) fn set_device(&mut self, uid: u64, device: u64, processes: &mut Processes) -> bool {
        let Some(qp) = self.all.get(uid) else { return false };
        if qp.key.device != 0 || device == 0 {
            return false;
        }
        self.displace(uid);
        let Some(qp) = self.all.get_mut(uid) else {
            return false;
        };
        let before = std::mem::replace(&mut qp.key.device, device);
        qp.touch();
        if let Some(process) = qp.process().filter(|_| qp.lives()) {
            processes.unlink(process, before);
            processes.link(process, device);
        }
        self.place(uid, processes);
        true
    }

    /// Sets or corrects the owner.
    pub(super) fn set_owner(&mut self, uid: u64, owner: Owner, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        if qp.process() != owner.process {
            if qp.lives() {
                if let Some(process) = qp.process() {
                    processes.unlink(process, qp.key.device);
                }
                if let Some(process) = owner.process {
                    processes.link(process, qp.key.device);
                }
            }
            // What the QP has done belongs to its owner, even when the owner becomes known later.
            if let Some(flow) = &qp.flow {
                let before = qp.process().and_then(|before| processes.get_mut(before));
                if let Some(sum) = before.and_then(|before| before.flow.as_mut()) {
                    sum.take_back(flow.total());
                }
                if let Some(process) = owner.process.and_then(|process| processes.get_mut(process)) {
                    process.flow.get_or_insert_default().add(flow.total(), true);
                }
            }
        }
        // The dump that named no task came before its owner was known.
        if qp.row().orphan && !processes.has_ended(owner.process) {
            qp.edit().orphan = false;
        }
        qp.set_owner(owner);
    }

    pub(super) fn end(&mut self, uid: u64, ts_ns: u64, processes: &mut Processes) {
        self.end_by(uid, ts_ns, ts_ns, processes);
    }

    /// As [`Qps::end`], when all that is known is that it had ended by `gone_ns`.
    pub(super) fn end_by(&mut self, uid: u64, ts_ns: u64, gone_ns: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        if !qp.lives() {
            return;
        }
        qp.end(ts_ns, gone_ns);
        if let Some(process) = qp.process() {
            processes.unlink(process, qp.key.device);
        }
        self.ended.push_back((ts_ns, uid));
    }

    /// Forgets rows whose time has passed, and the oldest above `max_ended`.
    pub(super) fn forget(&mut self, now_ns: u64, linger_ns: u64, max_ended: usize) {
        while let Some((ended_ns, uid)) = self.ended.front().copied() {
            let over = ended_ns.saturating_add(linger_ns) <= now_ns;
            if !over && self.ended.len() <= max_ended {
                return;
            }
            if !over {
                self.forgotten_ns = self.forgotten_ns.max(ended_ns);
            }
            self.ended.pop_front();
            match self.all.get_mut(uid) {
                Some(qp) if qp.slot == Slot::Held => qp.hidden = true,
                _ => self.remove(uid),
            }
        }
    }

    /// A record reports that the QP was given a slot. The slot may have been read for the last time already.
    pub(super) fn holds_slot(&mut self, uid: u64) {
        if let Some(qp) = self.all.get_mut(uid)
            && qp.slot == Slot::Unknown
        {
            qp.slot = Slot::Held;
        }
    }

    pub(super) fn left_slot(&mut self, uid: u64) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        qp.slot = Slot::Left;
        if qp.hidden {
            self.remove(uid);
        }
    }

    fn remove(&mut self, uid: u64) {
        let before = self.all.get(uid).map(|qp| qp.before);
        // An earlier QP of its number is kept longer while its last counts are not in, and must still be
        // found.
        if before.is_some_and(|before| self.all.get(before).is_some()) {
            self.displace(uid);
        }
        let Some(qp) = self.all.remove(uid) else { return };
        for birth in &qp.births {
            self.by_birth.remove(birth);
        }
        if self.by_object.get(&qp.object) == Some(&uid) {
            self.by_object.remove(&qp.object);
        }
        // A QP that is not the latest of its number stays at the end of a chain that is not searched further.
        if self.by_key.get(&qp.key) == Some(&uid) {
            self.by_key.remove(&qp.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::qp::TIMELINE;

    #[test]
    fn a_timeline_without_end_keeps_birth_and_present() {
        let mut qps = Qps::default();
        let uid = qps.insert(Key::new(1, 5, None), 1, 1, &mut Processes::default());
        qps.created(uid, 1, true);
        let qp = qps.get_mut(uid).unwrap();
        for ts in 2..200 {
            qp.step(QpState(4), ts, None, true);
        }
        let timeline = &qp.row().timeline;
        assert_eq!(timeline.len(), TIMELINE);
        assert_eq!((timeline[0].mono_ns, timeline[TIMELINE - 1].mono_ns), (1, 199));
    }
}
