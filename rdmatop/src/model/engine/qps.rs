//! The table of QPs. A QP is (device generation, number, creation): both its number and its address are used
//! again by others.

use std::{collections::VecDeque, sync::Arc};

use super::{
    hash::NumberMap,
    processes::Processes,
    qp::{INVERSION_NS, Key, Owner, Qp},
    table::Table,
};
use crate::model::{ib::QpState, value::Source};

/// The QPs there are, and for some time those there were.
#[derive(Debug, Default)]
pub(super) struct Qps {
    all: Table<Qp>,
    by_key: NumberMap<Key, u64>,
    by_object: NumberMap<u64, u64>,
    /// By address and number, those whose address another tenant has: a slot that is read after its QP has gone finds
    /// it here.
    by_birth: NumberMap<(u64, u32), u64>,
    /// Numbers of QPs that ended and are not forgotten, and when.
    ended_keys: NumberMap<Key, u64>,
    ended: VecDeque<(u64, u64)>,
    /// Latest end among those that had to be forgotten early.
    forgotten_ns: u64,
    last_uid: u64,
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

    /// The living QP of a number on a known device.
    pub(super) fn live_mut(&mut self, key: Key) -> Option<&mut Qp> {
        let uid = self.by_key.get(&key)?;
        self.all.get_mut(*uid)
    }

    /// The living QP of a number.
    pub(super) fn live(&self, key: Key) -> Option<u64> {
        // A QP whose device the kernel side could not tell has its number only.
        let nowhere = Key { device: 0, ..key };
        self.by_key
            .get(&key)
            .or_else(|| self.by_key.get(&nowhere))
            .copied()
            .or_else(|| self.live_special(key))
    }

    /// QP 0 or QP 1 where one side does not know the port: slots and records tell none, a dump does.
    fn live_special(&self, key: Key) -> Option<u64> {
        if key.qpn > 1 {
            return None;
        }
        let at = |port| self.by_key.get(&Key { port, ..key }).copied();
        if key.port == 0 {
            // Of two ports it could be either's.
            let mut found = (1..=u32::from(u8::MAX)).filter_map(at);
            return found.next().filter(|_| found.next().is_none());
        }
        let qp = self.all.get(at(0)?)?;
        qp.row()
            .port
            .is_none_or(|port| port == key.port)
            .then_some(qp.uid())
    }

    /// When the last QP of this number ended, if that is not long ago.
    pub(super) fn ended_at(&self, key: Key) -> Option<u64> {
        self.ended_keys.get(&key).copied()
    }

    /// Latest end that [`Qps::ended_at`] may not know any more.
    pub(super) fn forgotten_ns(&self) -> u64 {
        self.forgotten_ns
    }

    /// Generation of the device of the QP that had an address at `ts_ns`, if it is known.
    pub(super) fn device_of(&self, object: u64, ts_ns: u64) -> Option<u64> {
        let qp = self.all.get(*self.by_object.get(&object)?)?;
        let in_time = qp
            .ended_ns
            .is_none_or(|ended| ts_ns <= ended.saturating_add(INVERSION_NS));
        (in_time && qp.key.device != 0).then_some(qp.key.device)
    }

    /// The QP that has an address, when a record of `ts_ns` about that address and number is plainly about it: what
    /// nearly all records are. All that they could tell of it is known.
    pub(super) fn tenant(&self, object: u64, qpn: u32, ts_ns: u64) -> Option<u64> {
        let qp = self.all.get(*self.by_object.get(&object)?)?;
        let plain = object != 0
            && qp.object == object
            && qp.key.qpn == qpn
            && qp.key.device != 0
            && qp.ended_ns.is_none()
            && !qp.is_younger_than(ts_ns);
        plain.then_some(qp.uid())
    }

    /// The QP that a record or a slot of `ts_ns` is about. Ends those that it proves to be gone.
    pub(super) fn find(
        &mut self,
        object: u64,
        key: Option<Key>,
        ts_ns: u64,
        processes: &mut Processes,
    ) -> Option<u64> {
        if let Some(uid) = self.by_object.get(&object).copied().filter(|_| object != 0)
            && let Some(qp) = self.all.get(uid)
        {
            let same_number = key.is_none_or(|key| key.qpn == qp.key.qpn);
            let in_time = qp
                .ended_ns
                .is_none_or(|ended| ts_ns <= ended.saturating_add(INVERSION_NS));
            let younger = qp.is_younger_than(ts_ns);
            if !younger && same_number && in_time {
                return Some(uid);
            }
            // Told of late: the address has had another tenant since. A destroy is told of when it returns, after it
            // has freed the QP.
            let before = key.and_then(|key| self.by_birth.get(&(object, key.qpn)));
            if let Some(before) = before.and_then(|uid| self.all.get(*uid))
                && !before.is_younger_than(ts_ns)
                && before
                    .ended_ns
                    .is_none_or(|ended| ts_ns <= ended.saturating_add(INVERSION_NS))
            {
                return Some(before.uid());
            }
            if !younger {
                // The address has another tenant by now.
                self.end(uid, ts_ns, processes);
            }
        }
        let uid = self.live(key?)?;
        let qp = self.all.get(uid)?;
        if qp.is_younger_than(ts_ns) {
            return None;
        }
        if qp.object == 0 || object == 0 || qp.object == object {
            return Some(uid);
        }
        self.end(uid, ts_ns, processes);
        None
    }

    /// The QP that a create record of `ts_ns` tells of: known already from a dump, a slot or a later record, or
    /// `None` when it is new. Ends those that had its address or its number before.
    pub(super) fn find_created(
        &mut self,
        object: u64,
        key: Option<Key>,
        ts_ns: u64,
        processes: &mut Processes,
    ) -> Option<u64> {
        if let Some(uid) = self.by_object.get(&object).copied().filter(|_| object != 0)
            && let Some(qp) = self.all.get(uid)
        {
            let same_number = key.is_none_or(|key| key.qpn == qp.key.qpn);
            if same_number && !qp.created && ts_ns <= qp.first_ns.saturating_add(INVERSION_NS) {
                return Some(uid);
            }
            if !qp.is_younger_than(ts_ns) {
                self.end(uid, ts_ns, processes);
            }
        }
        let uid = self.live(key?)?;
        let qp = self.all.get(uid)?;
        // A dump can only have shown it if it was created before the dump was folded in.
        if qp.object == 0 && !qp.created && ts_ns <= qp.learnt_ns {
            return Some(uid);
        }
        if !qp.is_younger_than(ts_ns) {
            self.end(uid, ts_ns, processes);
        }
        None
    }

    /// Adds a QP that is known to have been there at `first_ns`. One told of so late that another has its number
    /// by now has ended.
    pub(super) fn insert(
        &mut self,
        object: u64,
        key: Key,
        first_ns: u64,
        learnt_ns: u64,
        processes: &mut Processes,
    ) -> u64 {
        self.last_uid += 1;
        let uid = self.last_uid;
        let living = self.by_key.get(&key).and_then(|uid| self.all.get(*uid));
        let younger = living
            .map(|qp| qp.first_ns)
            .filter(|other_ns| *other_ns > first_ns);
        if let Some(living) = living.map(Qp::uid)
            && younger.is_none()
        {
            self.end(living, first_ns, processes);
        }
        self.all.push(uid, Qp::new(uid, key, first_ns, learnt_ns));
        self.set_object(uid, object);
        if let Some(younger_ns) = younger {
            self.end(uid, younger_ns, processes);
        } else {
            self.by_key.insert(key, uid);
        }
        uid
    }

    /// Marks a QP as created at `ts_ns`.
    pub(super) fn created(&mut self, uid: u64, ts_ns: u64) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        qp.first_ns = ts_ns;
        qp.created = true;
        let state_ns = qp.state_ns;
        let row = qp.edit();
        row.born_mono_ns = Some(ts_ns);
        // Steps that a dump told of have the time at which the dump began, which may be before the birth.
        if row.timeline.iter().any(|step| step.mono_ns < ts_ns) {
            Arc::make_mut(&mut row.timeline).retain(|step| step.mono_ns >= ts_ns);
        }
        // What is known already is from a later time: a dump under way, or a record that overtook this one.
        let known = row
            .state
            .map(|state| (state, row.state_source, state_ns.max(ts_ns)));
        qp.enter(QpState(0), ts_ns, Source::Ebpf, None);
        if let Some((state, source, state_ns)) = known {
            qp.state_ns = state_ns;
            let row = qp.edit();
            (row.state, row.state_source) = (Some(state), source);
        }
    }

    /// Records the address of a QP known by its number only.
    pub(super) fn set_object(&mut self, uid: u64, object: u64) {
        let Some(first_ns) = self.all.get(uid).map(|qp| qp.first_ns).filter(|_| object != 0) else {
            return;
        };
        let holder = self
            .by_object
            .get(&object)
            .and_then(|holder| self.all.get(*holder))
            .filter(|holder| holder.uid() != uid)
            .map(|holder| (holder.uid(), holder.first_ns, (object, holder.key.qpn)));
        let Some(qp) = self.all.get_mut(uid) else { return };
        qp.object = object;
        match holder {
            Some((_, since_ns, _)) if since_ns > first_ns => {
                self.by_birth.insert((object, qp.key.qpn), uid);
            }
            Some((before, _, birth)) => {
                self.by_birth.insert(birth, before);
                self.by_object.insert(object, uid);
            }
            None => {
                self.by_object.insert(object, uid);
            }
        }
    }

    /// Records the device of a QP known without one.
    pub(super) fn set_device(&mut self, uid: u64, device: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get(uid) else { return };
        if qp.key.device != 0 || device == 0 {
            return;
        }
        let (first_ns, lives) = (qp.first_ns, qp.ended_ns.is_none());
        if let Some(other) = self
            .by_key
            .get(&Key { device, ..qp.key })
            .copied()
            .filter(|_| lives)
        {
            self.end(other, first_ns, processes);
        }
        let Some(qp) = self.all.get_mut(uid) else { return };
        let (before, after) = (qp.key, Key { device, ..qp.key });
        qp.key = after;
        qp.touch();
        if qp.ended_ns.is_none() {
            if let Some(process) = qp.process() {
                processes.unlink(process, before.device);
                processes.link(process, device);
            }
            self.by_key.remove(&before);
            self.by_key.insert(after, uid);
        }
    }

    /// Sets or corrects the owner.
    pub(super) fn set_owner(&mut self, uid: u64, owner: Owner, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        if qp.process() != owner.process {
            if qp.ended_ns.is_none() {
                if let Some(process) = qp.process() {
                    processes.unlink(process, qp.key.device);
                }
                if let Some(process) = owner.process {
                    processes.link(process, qp.key.device);
                }
            }
            if let (None, Some(process), Some(flow)) = (qp.process(), owner.process, &qp.flow) {
                processes.credit_old(process, flow.total());
            }
        }
        qp.set_owner(owner);
    }

    /// Ends a QP's life at `ts_ns`.
    pub(super) fn end(&mut self, uid: u64, ts_ns: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        if qp.ended_ns.is_some() {
            return;
        }
        qp.ended_ns = Some(ts_ns);
        qp.touch();
        if let Some(process) = qp.process() {
            processes.unlink(process, qp.key.device);
        }
        if self.by_key.get(&qp.key) == Some(&uid) {
            self.by_key.remove(&qp.key);
        }
        self.ended_keys.insert(qp.key, ts_ns);
        self.ended.push_back((ts_ns, uid));
    }

    /// Forgets rows whose time is over, and the oldest above `max_ended`.
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
                Some(qp) if qp.in_slot => qp.hidden = true,
                _ => self.remove(uid),
            }
        }
    }

    /// A slot was freed.
    pub(super) fn left_slot(&mut self, uid: u64) {
        let Some(qp) = self.all.get_mut(uid) else { return };
        qp.in_slot = false;
        if qp.hidden {
            self.remove(uid);
        }
    }

    fn remove(&mut self, uid: u64) {
        let Some(qp) = self.all.remove(uid) else { return };
        if self.by_object.get(&qp.object) == Some(&uid) {
            self.by_object.remove(&qp.object);
        }
        let birth = (qp.object, qp.key.qpn);
        if self.by_birth.get(&birth) == Some(&uid) {
            self.by_birth.remove(&birth);
        }
        if self.ended_keys.get(&qp.key).copied() == qp.ended_ns {
            self.ended_keys.remove(&qp.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::engine::qp::TIMELINE;

    #[test]
    fn a_timeline_without_end_keeps_birth_and_present() {
        let mut qps = Qps::default();
        let uid = qps.insert(1, Key::new(1, 5, None), 1, 1, &mut Processes::default());
        qps.created(uid, 1);
        let qp = qps.get_mut(uid).unwrap();
        for ts in 2..200 {
            qp.enter(QpState(4), ts, Source::Ebpf, None);
        }
        let timeline = &qp.row().timeline;
        assert_eq!(timeline.len(), TIMELINE);
        assert_eq!((timeline[0].mono_ns, timeline[TIMELINE - 1].mono_ns), (1, 199));
    }
}
