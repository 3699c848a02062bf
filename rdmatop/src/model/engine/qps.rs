//! The table of QPs. A QP is (device generation, number, creation): both its number and its address are used
//! again by others.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use super::{history::Series, meter::Meter, processes::Processes, tally::Flow};
use crate::model::{
    ib::{QpState, QpType},
    snapshot::{QP_HISTORY, QpRow, Step},
    value::Source,
};

/// How far apart two stamps of one moment may be: a slot and a record are stamped one after the other, and
/// records of two CPUs may change places.
const INVERSION_NS: u64 = 10_000_000;
/// Steps kept of a life. A QP may be modified without end.
const TIMELINE: usize = 32;

/// Where a QP's number is unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Generation of the device, 0 when the kernel side could not tell.
    pub(super) device: u64,
    pub(super) qpn: u32,
    /// QP 0 and QP 1 exist once a port.
    port: u32,
}

impl Key {
    pub(super) fn new(device: u64, qpn: u32, port: Option<u32>) -> Self {
        Self {
            device,
            qpn,
            port: if qpn <= 1 { port.unwrap_or(0) } else { 0 },
        }
    }
}

/// Who created an object.
#[derive(Clone, Debug, Default)]
pub(super) struct Owner {
    pub(super) process: Option<u64>,
    pub(super) pid: Option<u32>,
    pub(super) comm: Option<Arc<str>>,
    pub(super) kernel: bool,
}

impl Owner {
    pub(super) fn is_known(&self) -> bool {
        self.kernel || self.pid.is_some()
    }
}

/// Packets estimated from the movement of the send PSN.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Psn {
    last: Option<(u32, u64)>,
    pub(super) meter: Option<Meter>,
}

impl Psn {
    /// The QP was told where to start: no movement.
    pub(super) fn set(&mut self, psn: u32, at_ns: u64) {
        self.last = Some((psn, at_ns));
    }

    /// A reading. Half the 24-bit circle or more is a step back (the QP went back to an older packet), not
    /// eight million packets forward.
    pub(super) fn read(&mut self, psn: u32, at_ns: u64, min_interval_ns: u64) {
        const MASK: u32 = 0xff_ffff;
        let Some((before, since)) = self.last.replace((psn, at_ns)) else {
            return;
        };
        let moved = psn.wrapping_sub(before) & MASK;
        if moved > MASK / 2 {
            return;
        }
        // A PSN that has never moved may be one that the provider does not update.
        if moved > 0 && self.meter.is_none() {
            self.meter = Some(Meter::new(0, since));
        }
        if let Some(meter) = &mut self.meter {
            meter.add(moved.into(), at_ns, min_interval_ns);
        }
    }
}

/// A QP.
#[derive(Debug)]
#[expect(clippy::struct_field_names, reason = "qp_type is the kernel's name for it")]
pub(super) struct Qp {
    pub(super) uid: u64,
    pub(super) key: Key,
    pub(super) object: u64,
    /// Name of its device when that went away.
    pub(super) device_name: Option<Arc<str>>,
    pub(super) qp_type: Option<QpType>,
    pub(super) port: Option<u32>,
    pub(super) state: Option<(QpState, Source)>,
    state_ns: u64,
    pub(super) owner: Owner,
    pub(super) orphan: bool,
    pub(super) born_ns: Option<u64>,
    /// Earliest time at which it is known to have been there.
    first_ns: u64,
    /// When the engine learnt of it.
    learnt_ns: u64,
    /// Its create record was seen.
    created: bool,
    /// Time of the last record about it.
    pub(super) event_ns: u64,
    pub(super) ended_ns: Option<u64>,
    pub(super) since_attach: bool,
    pub(super) remote_qpn: Option<u32>,
    pub(super) path_mtu: Option<u32>,
    pub(super) sq_psn: Option<u32>,
    pub(super) rq_psn: Option<u32>,
    pub(super) psn: Psn,
    pub(super) timeline: Vec<Step>,
    pub(super) flow: Option<Box<Flow>>,
    /// The slot is still in use: the QP cannot be forgotten before its last counts are in.
    pub(super) in_slot: bool,
    /// Its row's time is over.
    pub(super) hidden: bool,
    /// An error was counted and the state was asked for.
    pub(super) error_seen: bool,
    pub(super) series: Series,
    /// The last row, while nothing has changed.
    pub(super) row: Option<Arc<QpRow>>,
}

impl Qp {
    /// Something in the row changed.
    pub(super) fn touch(&mut self) {
        self.row = None;
    }

    /// The state at `ts_ns`; an older one than known only fills the timeline.
    pub(super) fn enter(&mut self, state: QpState, ts_ns: u64, source: Source, duration_ns: Option<u64>) {
        if ts_ns >= self.state_ns || self.state.is_none() {
            self.state = Some((state, source));
            self.state_ns = ts_ns;
        }
        let at = self.timeline.partition_point(|step| step.mono_ns <= ts_ns);
        self.timeline.insert(
            at,
            Step {
                mono_ns: ts_ns,
                state,
                duration_ns,
            },
        );
        if self.timeline.len() > TIMELINE {
            // Birth and the present say most.
            self.timeline.remove(1);
        }
        self.touch();
    }

    /// Born after `ts_ns`: what is told of that time is about another.
    fn is_younger_than(&self, ts_ns: u64) -> bool {
        self.born_ns
            .is_some_and(|born_ns| ts_ns.saturating_add(INVERSION_NS) < born_ns)
    }

    /// Nothing about it is newer than a dump that began at `began_ns`.
    pub(super) fn is_older_than(&self, began_ns: u64) -> bool {
        self.first_ns <= began_ns
            && self.event_ns <= began_ns
            && self.born_ns.is_none_or(|born| born <= began_ns)
    }

    /// A state from a dump that began at `began_ns`: wins over what is older.
    pub(super) fn observe(&mut self, state: QpState, began_ns: u64) {
        if self.state.is_none_or(|_| began_ns >= self.state_ns)
            && self.state.map(|(known, _)| known) != Some(state)
        {
            self.enter(state, began_ns, Source::Netlink, None);
        }
    }
}

/// The QPs there are, and for some time those there were.
#[derive(Debug, Default)]
pub(super) struct Qps {
    all: BTreeMap<u64, Qp>,
    by_key: HashMap<Key, u64>,
    by_object: HashMap<u64, u64>,
    /// Numbers of QPs that ended and are not forgotten, and when.
    ended_keys: HashMap<Key, u64>,
    ended: VecDeque<(u64, u64)>,
    /// Latest end among those that had to be forgotten early.
    forgotten_ns: u64,
    last_uid: u64,
}

impl Qps {
    pub(super) fn get(&self, uid: u64) -> Option<&Qp> {
        self.all.get(&uid)
    }

    pub(super) fn get_mut(&mut self, uid: u64) -> Option<&mut Qp> {
        self.all.get_mut(&uid)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.all.values_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Qp> {
        self.all.values()
    }

    /// The living QP of a number.
    pub(super) fn live(&self, key: Key) -> Option<u64> {
        // A QP whose device the kernel side could not tell has its number only.
        let nowhere = Key { device: 0, ..key };
        self.by_key
            .get(&key)
            .or_else(|| self.by_key.get(&nowhere))
            .copied()
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
        let qp = self.all.get(self.by_object.get(&object)?)?;
        let in_time = qp
            .ended_ns
            .is_none_or(|ended| ts_ns <= ended.saturating_add(INVERSION_NS));
        (in_time && qp.key.device != 0).then_some(qp.key.device)
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
            && let Some(qp) = self.all.get(&uid)
        {
            let same_number = key.is_none_or(|key| key.qpn == qp.key.qpn);
            let in_time = qp
                .ended_ns
                .is_none_or(|ended| ts_ns <= ended.saturating_add(INVERSION_NS));
            if qp.is_younger_than(ts_ns) {
                // Told of late: the address has had another tenant since.
            } else if same_number && in_time {
                return Some(uid);
            } else {
                // The address has another tenant by now.
                self.end(uid, ts_ns, processes);
            }
        }
        let uid = self.live(key?)?;
        let qp = self.all.get(&uid)?;
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
            && let Some(qp) = self.all.get(&uid)
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
        let qp = self.all.get(&uid)?;
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
        let living = self.by_key.get(&key).and_then(|uid| self.all.get(uid));
        let younger = living
            .map(|qp| qp.first_ns)
            .filter(|other_ns| *other_ns > first_ns);
        if let Some(living) = living.map(|qp| qp.uid)
            && younger.is_none()
        {
            self.end(living, first_ns, processes);
        }
        self.all.insert(
            uid,
            Qp {
                uid,
                key,
                object: 0,
                device_name: None,
                qp_type: None,
                port: None,
                state: None,
                state_ns: 0,
                owner: Owner::default(),
                orphan: false,
                born_ns: None,
                first_ns,
                learnt_ns,
                created: false,
                event_ns: 0,
                ended_ns: None,
                since_attach: false,
                remote_qpn: None,
                path_mtu: None,
                sq_psn: None,
                rq_psn: None,
                psn: Psn::default(),
                timeline: Vec::new(),
                flow: None,
                in_slot: false,
                hidden: false,
                error_seen: false,
                series: Series::new(QP_HISTORY),
                row: None,
            },
        );
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
        let Some(qp) = self.all.get_mut(&uid) else { return };
        qp.born_ns = Some(ts_ns);
        qp.first_ns = ts_ns;
        qp.created = true;
        // Steps that a dump told of have the time at which the dump began, which may be before the birth.
        qp.timeline.retain(|step| step.mono_ns >= ts_ns);
        // What is known already is from a later time: a dump under way, or a record that overtook this one.
        let known = qp.state.map(|state| (state, qp.state_ns.max(ts_ns)));
        qp.enter(QpState(0), ts_ns, Source::Ebpf, None);
        if let Some((state, state_ns)) = known {
            qp.state = Some(state);
            qp.state_ns = state_ns;
        }
    }

    /// Records the address of a QP known by its number only.
    pub(super) fn set_object(&mut self, uid: u64, object: u64) {
        let Some(first_ns) = self.all.get(&uid).map(|qp| qp.first_ns).filter(|_| object != 0) else {
            return;
        };
        let holder = self
            .by_object
            .get(&object)
            .and_then(|holder| self.all.get(holder));
        let taken = holder.is_some_and(|holder| holder.uid != uid && holder.first_ns > first_ns);
        if !taken {
            self.by_object.insert(object, uid);
        }
        if let Some(qp) = self.all.get_mut(&uid) {
            qp.object = object;
        }
    }

    /// Records the device of a QP known without one.
    pub(super) fn set_device(&mut self, uid: u64, device: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get(&uid) else { return };
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
        let Some(qp) = self.all.get_mut(&uid) else { return };
        let (before, after) = (qp.key, Key { device, ..qp.key });
        qp.key = after;
        qp.touch();
        if qp.ended_ns.is_none() {
            if let Some(process) = qp.owner.process {
                processes.unlink(process, before.device);
                processes.link(process, device);
            }
            self.by_key.remove(&before);
            self.by_key.insert(after, uid);
        }
    }

    /// Sets or corrects the owner.
    pub(super) fn set_owner(&mut self, uid: u64, owner: Owner, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(&uid) else { return };
        if qp.owner.process != owner.process {
            if qp.ended_ns.is_none() {
                if let Some(process) = qp.owner.process {
                    processes.unlink(process, qp.key.device);
                }
                if let Some(process) = owner.process {
                    processes.link(process, qp.key.device);
                }
            }
            if let (None, Some(process), Some(flow)) = (qp.owner.process, owner.process, &qp.flow) {
                processes.credit_old(process, flow.total());
            }
        }
        qp.owner = owner;
        qp.touch();
    }

    /// Ends a QP's life at `ts_ns`.
    pub(super) fn end(&mut self, uid: u64, ts_ns: u64, processes: &mut Processes) {
        let Some(qp) = self.all.get_mut(&uid) else { return };
        if qp.ended_ns.is_some() {
            return;
        }
        qp.ended_ns = Some(ts_ns);
        qp.touch();
        if let Some(process) = qp.owner.process {
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
            match self.all.get_mut(&uid) {
                Some(qp) if qp.in_slot => qp.hidden = true,
                _ => self.remove(uid),
            }
        }
    }

    /// A slot was freed.
    pub(super) fn left_slot(&mut self, uid: u64) {
        let Some(qp) = self.all.get_mut(&uid) else { return };
        qp.in_slot = false;
        if qp.hidden {
            self.remove(uid);
        }
    }

    fn remove(&mut self, uid: u64) {
        let Some(qp) = self.all.remove(&uid) else { return };
        if self.by_object.get(&qp.object) == Some(&uid) {
            self.by_object.remove(&qp.object);
        }
        if self.ended_keys.get(&qp.key).copied() == qp.ended_ns {
            self.ended_keys.remove(&qp.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_psn_that_wraps_is_counted_through_the_wrap() {
        let mut psn = Psn::default();
        psn.read(0xff_fff0, SECOND, 1);
        assert!(psn.meter.is_none());
        psn.read(0x10, 2 * SECOND, 1);
        let counter = psn.meter.unwrap().counter(Source::Est, 2 * SECOND);
        assert_eq!((counter.total, counter.rate), (32, Some(32.0)));
    }

    #[test]
    fn a_psn_that_stands_still_or_goes_back_says_nothing() {
        let mut psn = Psn::default();
        psn.read(100, SECOND, 1);
        psn.read(100, 2 * SECOND, 1);
        psn.read(50, 3 * SECOND, 1);
        assert!(psn.meter.is_none());
    }

    #[test]
    fn a_timeline_without_end_keeps_birth_and_present() {
        let mut qps = Qps::default();
        let uid = qps.insert(1, Key::new(1, 5, None), 1, 1, &mut Processes::default());
        qps.created(uid, 1);
        let qp = qps.get_mut(uid).unwrap();
        for ts in 2..200 {
            qp.enter(QpState(4), ts, Source::Ebpf, None);
        }
        assert_eq!(qp.timeline.len(), TIMELINE);
        assert_eq!(
            (qp.timeline[0].mono_ns, qp.timeline[TIMELINE - 1].mono_ns),
            (1, 199)
        );
    }

    #[test]
    fn two_ports_have_two_general_service_qps() {
        assert_ne!(Key::new(1, 1, Some(1)), Key::new(1, 1, Some(2)));
        assert_eq!(Key::new(1, 17, Some(1)), Key::new(1, 17, None));
    }
}
