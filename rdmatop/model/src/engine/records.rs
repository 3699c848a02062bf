//! Records: what one changes in the tables, and the event it makes.

use std::sync::Arc;

use rdmatop_common::counters::place;
use rdmatop_common::event::{
    ObjectRecord, Prefix, QpRecord, Record, UNKNOWN_U8, UNKNOWN_U32, VerbRecord, flag, kind,
};

use super::{
    Engine, driver_verbs,
    memory::{Ended, Region},
    qp::{Key, Owner, Qp},
    qps::QpRef,
    verbs::is_probe,
};
use crate::{
    event::{Event, EventKind},
    ib::{AsyncEvent, Gid, QpState, QpType, mtu_bytes},
    input::Now,
};

/// `IB_QP_STATE` of `enum ib_qp_attr_mask`: without it `qp_state` has no meaning.
const IB_QP_STATE: u32 = 1;

pub(super) fn known(value: u32) -> Option<u32> {
    (value != UNKNOWN_U32).then_some(value)
}

fn known8(value: u8) -> Option<u8> {
    (value != UNKNOWN_U8).then_some(value)
}

/// When the call that a record is about began.
fn call_ns(prefix: &Prefix) -> u64 {
    prefix.ts_ns.saturating_sub(prefix.duration_ns)
}

impl Engine {
    /// Folds a record in.
    pub(super) fn record(&mut self, record: &Record, now: Now, out: &mut dyn FnMut(&Event)) {
        if let Record::Qp(record) = record
            && record.prefix.kind == kind::QP_UNCOUNTED
        {
            // Nothing that happened to the QP.
            return self.uncounted(record);
        }
        self.events += 1;
        match record {
            Record::Qp(record) => self.qp_record(record, now, out),
            Record::Object(record) => out(&self.object_record(record, now)),
            Record::Cm(record) => out(&self.cm_record(record, now)),
            Record::Verb(record) => {
                if let Some(event) = self.verb_record(record, now) {
                    out(&event);
                }
            }
        }
    }

    pub(super) fn event(kind: EventKind, prefix: &Prefix, now: Now) -> Event {
        let mut event = Event::new(kind, now.wall_of(prefix.ts_ns), prefix.ts_ns);
        event.duration_ns = Some(prefix.duration_ns).filter(|ns| *ns > 0);
        event
    }

    /// What the record itself knows of the object's owner.
    pub(super) fn owner_in(&mut self, prefix: &Prefix) -> Owner {
        if prefix.flags & flag::OWNER_KERNEL != 0 {
            return Owner {
                comm: Some(self.names.kernel(&prefix.owner_comm)),
                kernel: true,
                ..Owner::default()
            };
        }
        if prefix.flags & flag::OWNER_TASK == 0 || prefix.owner_pid == 0 {
            return Owner::default();
        }
        Owner {
            pid: Some(prefix.owner_pid),
            comm: Some(self.names.comm(&prefix.owner_comm)).filter(|comm| !comm.is_empty()),
            ..Owner::default()
        }
    }

    /// Writes owner and caller into an event.
    pub(super) fn attribute(event: &mut Event, owner: Owner, prefix: &Prefix) {
        event.pid = owner.pid;
        event.comm = owner.comm;
        event.kernel = owner.kernel;
        if prefix.flags & flag::KTHREAD == 0 && prefix.pid != 0 {
            if owner.pid == Some(prefix.pid) {
                event.tid = Some(prefix.tid);
            } else {
                event.by_pid = Some(prefix.pid);
            }
        }
    }

    /// Generation and name of the device in a record, which was there at `ts_ns`.
    pub(super) fn device_in(&mut self, prefix: &Prefix, ts_ns: u64) -> Option<(u64, Arc<str>)> {
        if prefix.flags & flag::DEVICE == 0 {
            return None;
        }
        let name = Some(self.names.device(&prefix.device)).filter(|name| !name.is_empty());
        let uid = self.devices.resolve(prefix.device_index, name.as_ref(), ts_ns);
        let name = name.or_else(|| self.devices.get(uid).map(|device| Arc::clone(&device.name)))?;
        Some((uid, name))
    }

    /// Hands the event out itself: one that is returned is copied, and it has 300 bytes.
    fn qp_record(&mut self, record: &QpRecord, now: Now, out: &mut dyn FnMut(&Event)) {
        let prefix = &record.prefix;
        let kind = match prefix.kind {
            kind::QP_CREATE => EventKind::QpCreate,
            kind::QP_MODIFY => EventKind::QpModify,
            kind::QP_DESTROY => EventKind::QpDestroy,
            _ => EventKind::QpError,
        };
        let mut event = Self::event(kind, prefix, now);
        let mut owner = self.owner_in(prefix);
        owner.start_ns = record.owner_start_ns;
        let uid = self.qp_of(record, kind);
        if let Some(uid) = uid {
            self.describe_qp(uid, record, &owner);
            if kind == EventKind::QpCreate
                && let Some(process) = self.qps.get(uid).and_then(Qp::process)
            {
                self.named_by_its_first_thread(process, prefix);
            }
        }
        self.qp_before(&mut event, uid, record, owner);
        if let Some(uid) = uid {
            self.qp_step(uid, record, kind, now);
        }
        match kind {
            EventKind::QpCreate => event.rc = Some(0),
            EventKind::QpModify | EventKind::QpDestroy => event.rc = Some(prefix.rc),
            _ => {
                let number = known(record.event).and_then(|event| u8::try_from(event).ok());
                event.async_event = number.map(AsyncEvent);
            }
        }
        out(&event);
    }

    /// The creator of an object is the task that owns it, and the name in the record is that of its thread at
    /// that time.
    fn named_by_its_first_thread(&mut self, process: u64, prefix: &Prefix) {
        let is_first = prefix.flags & (flag::KTHREAD | flag::OWNER_KERNEL) == 0
            && prefix.tid == prefix.pid
            && prefix.pid == prefix.owner_pid;
        if !is_first {
            return;
        }
        let comm = self.names.comm(&prefix.owner_comm);
        if !comm.is_empty() {
            self.processes.called(process, &comm, prefix.ts_ns);
        }
    }

    /// The QP a record is about, made when it is new.
    pub(super) fn qp_of(&mut self, record: &QpRecord, kind: EventKind) -> Option<u64> {
        let prefix = &record.prefix;
        // The time at which the call began: the QP existed then. When the call returns, the number of a
        // destroyed QP can belong to another.
        let ts_ns = call_ns(prefix);
        if kind != EventKind::QpCreate
            && let Some(uid) = self.qps.born_at(prefix.object, record.born_ns)
        {
            return Some(uid);
        }
        let port = known8(record.port).filter(|port| *port > 0).map(u32::from);
        // A call can return after its device has gone.
        let there_ns = if record.born_ns == 0 {
            ts_ns
        } else {
            record.born_ns
        };
        let device = self.device_in(prefix, there_ns).map_or(0, |(uid, _)| uid);
        let is_owned = prefix.flags & flag::OWNER_TASK != 0 && prefix.owner_pid != 0;
        let uid = self.saw_qp(&QpRef {
            object: prefix.object,
            born_ns: record.born_ns,
            created: prefix.flags & flag::CREATED != 0,
            key: known(record.qpn).map(|qpn| Key::new(device, qpn, port)),
            ts_ns,
            owner: is_owned.then_some((prefix.owner_pid, record.owner_start_ns)),
        })?;
        if kind == EventKind::QpCreate {
            self.qps.created(uid, ts_ns, self.config.timelines);
            if record.slot < place::NONE_LEFT && self.traffic.has_swept() {
                self.qps.holds_slot(uid);
            }
        }
        Some(uid)
    }

    /// What every QP record contains about its QP, and its owner if the table has none.
    fn describe_qp(&mut self, uid: u64, record: &QpRecord, owner: &Owner) {
        let Some(qp) = self.qps.get_mut(uid) else { return };
        let qp_type = known(record.qp_type).and_then(|value| u8::try_from(value).ok());
        let port = known8(record.port).filter(|port| *port > 0).map(u32::from);
        let known = qp.row();
        let (qp_type, port) = (known.qp_type.or(qp_type.map(QpType)), port.or(known.port));
        if (qp_type, port) != (known.qp_type, known.port) {
            let row = qp.edit();
            (row.qp_type, row.port) = (qp_type, port);
        }
        let ts_ns = record.prefix.ts_ns;
        qp.event_ns = qp.event_ns.max(ts_ns);
        if !owner.is_known() {
            return;
        }
        if let Some(process) = qp.process().filter(|_| owner.kernel || qp.sure) {
            // A slot and a dump know the pid only.
            if let (None, Some(comm)) = (&qp.comm, &owner.comm) {
                self.processes.name(process, comm);
                qp.comm = Some(Arc::clone(comm));
            }
            return;
        }
        // It replaces a dump's owner: the dump knows only the PID, and whose it was when the dump ran.
        let ts_ns = qp.row().born_mono_ns.unwrap_or(ts_ns);
        let start_ns = owner.start_ns;
        let owner = self.processes.of(owner.clone(), ts_ns);
        self.qps.set_owner(uid, owner, &mut self.processes);
        if let Some(qp) = self.qps.get_mut(uid) {
            (qp.sure, qp.start_ns) = (true, start_ns);
        }
    }

    /// Fills the event with what is known before the step is taken.
    fn qp_before(&mut self, event: &mut Event, uid: Option<u64>, record: &QpRecord, owner: Owner) {
        let prefix = &record.prefix;
        let qp = uid.and_then(|uid| self.qps.get(uid));
        event.device = match qp.and_then(|qp| self.devices.get(qp.key.device)) {
            Some(device) => Some(Arc::clone(&device.name)),
            None if prefix.flags & flag::DEVICE != 0 => Some(self.names.device(&prefix.device)),
            None => None,
        };
        event.port = known8(record.port).filter(|port| *port > 0).map(u32::from);
        if prefix.kind != kind::QP_CREATE {
            // A dump can be read before the record of the create. It may name a port that only INIT has set.
            event.port = event.port.or(qp.and_then(|qp| qp.row().port));
        }
        event.qpn = known(record.qpn).or(qp.map(|qp| qp.key.qpn));
        event.qp_type = qp.and_then(|qp| qp.row().qp_type);
        event.qp_uid = uid;
        // The record's own values first: a name as it was at the time.
        if owner.is_known() {
            Self::attribute(event, owner, prefix);
        } else {
            Self::attribute(event, qp.map(Qp::owner).unwrap_or_default(), prefix);
        }
        event.dest_qpn = known(record.dest_qpn);
        event.dest_gid = Gid::known(record.dest_gid);
        event.path_mtu = known8(record.path_mtu).and_then(mtu_bytes);
        event.sgid_index = known8(record.sgid_index);
        event.timeout = known8(record.timeout);
        event.retry_cnt = known8(record.retry_cnt);
        event.rnr_retry = known8(record.rnr_retry);
        if prefix.kind == kind::QP_MODIFY {
            event.attr_mask = Some(record.attr_mask);
            if record.attr_mask & IB_QP_STATE != 0 {
                event.to = known8(record.to_state).map(QpState);
            }
        }
        if event.to.is_some() || prefix.kind != kind::QP_MODIFY && prefix.kind != kind::QP_CREATE {
            let recorded = known8(record.from_state).map(QpState);
            event.from = recorded.or_else(|| qp.and_then(|qp| qp.row().state));
        }
    }

    /// Takes the step that the record is about.
    fn qp_step(&mut self, uid: u64, record: &QpRecord, kind: EventKind, now: Now) {
        let prefix = &record.prefix;
        let ts_ns = prefix.ts_ns;
        match kind {
            EventKind::QpModify if prefix.rc >= 0 => {
                let Some(qp) = self.qps.get_mut(uid) else { return };
                let sq_psn = known(record.sq_psn);
                if let Some(psn) = sq_psn {
                    qp.psn.set(psn, ts_ns);
                }
                let state = known8(record.to_state).filter(|_| record.attr_mask & IB_QP_STATE != 0);
                let row = match state {
                    Some(state) => {
                        let duration_ns = Some(prefix.duration_ns);
                        qp.step(QpState(state), ts_ns, duration_ns, self.config.timelines)
                    }
                    None => qp.edit(),
                };
                row.remote_qpn = known(record.dest_qpn).or(row.remote_qpn);
                row.remote_gid = Gid::known(record.dest_gid).or(row.remote_gid);
                row.sgid_index = known8(record.sgid_index).or(row.sgid_index);
                row.path_mtu = known8(record.path_mtu).and_then(mtu_bytes).or(row.path_mtu);
                row.rq_psn = known(record.rq_psn).or(row.rq_psn);
                row.sq_psn = sq_psn.or(row.sq_psn);
            }
            EventKind::QpCreate => self.placed(uid, record),
            EventKind::QpDestroy if prefix.rc >= 0 => self.qps.end(uid, ts_ns, &mut self.processes),
            // The provider has moved the QP to ERR or SQE without a modify: only a dump shows which.
            EventKind::QpError if matches!(record.event, 1..=3) => self.losses.want_repair(now.mono_ns),
            _ => {}
        }
    }

    fn object_record(&mut self, record: &ObjectRecord, now: Now) -> Event {
        let prefix = &record.prefix;
        let kind = match prefix.kind {
            kind::MR_REG => EventKind::MrReg,
            kind::MR_DEREG => EventKind::MrDereg,
            kind::CQ_CREATE => EventKind::CqCreate,
            _ => EventKind::CqDestroy,
        };
        let mut event = Self::event(kind, prefix, now);
        event.rc = Some(prefix.rc);
        event.device = self.device_in(prefix, call_ns(prefix)).map(|(_, name)| name);
        let size = Some(record.size).filter(|size| *size != u64::MAX);
        let mut owner = self.owner_in(prefix);
        owner.start_ns = record.owner_start_ns;
        let owner = self.processes.of(owner, prefix.ts_ns);
        if let (EventKind::MrReg | EventKind::CqCreate, Some(process)) = (kind, owner.process) {
            self.named_by_its_first_thread(process, prefix);
        }
        let process = owner.process;
        Self::attribute(&mut event, owner, prefix);
        match kind {
            EventKind::MrReg => {
                event.bytes = size;
                let region = Region {
                    process,
                    bytes: size,
                    since_ns: prefix.ts_ns,
                };
                // The address had a region whose end was lost, or is told later.
                if let Some(lost) = self.regions.insert(prefix.object, region) {
                    self.remember(lost, -1, prefix.ts_ns);
                }
                self.remember(region, 1, prefix.ts_ns);
            }
            EventKind::MrDereg if prefix.rc >= 0 => {
                let region = match self.regions.remove(prefix.object, call_ns(prefix)) {
                    Ended::Seen(region) => Some(region),
                    Ended::Told => None,
                    Ended::Unseen => Some(Region {
                        process,
                        bytes: size,
                        since_ns: 0,
                    }),
                };
                event.bytes = size.or(region.and_then(|region| region.bytes));
                if let Some(region) = region {
                    self.remember(region, -1, prefix.ts_ns);
                }
            }
            EventKind::MrDereg => event.bytes = size,
            _ => event.cqe = size,
        }
        event
    }

    fn remember(&mut self, region: Region, sign: i128, ts_ns: u64) {
        if let Some(process) = region.process.and_then(|uid| self.processes.get_mut(uid)) {
            process
                .memory
                .change(region.bytes.map(|bytes| sign * i128::from(bytes)), ts_ns);
        }
    }

    fn verb_record(&mut self, record: &VerbRecord, now: Now) -> Option<Event> {
        let prefix = &record.prefix;
        if is_probe(record.verb, prefix.rc.unsigned_abs()) {
            return None;
        }
        let mut event = Self::event(EventKind::VerbError, prefix, now);
        let owner = Owner {
            pid: Some(prefix.pid).filter(|pid| *pid != 0),
            comm: Some(self.names.comm(&prefix.comm)).filter(|comm| !comm.is_empty()),
            ..Owner::default()
        };
        let owner = self.processes.of(owner, prefix.ts_ns);
        Self::attribute(&mut event, owner, prefix);
        let device = self.device_in(prefix, call_ns(prefix));
        let driver = device.as_ref().and_then(|(uid, _)| self.devices.get(*uid));
        let own = driver.and_then(|driver| driver_verbs::name(driver.provider(), record.verb));
        event.verb = Some(own.map_or_else(|| self.verb_names.of(record.verb), Into::into));
        event.device = device.map(|(_, name)| name);
        event.rc = Some(prefix.rc);
        Some(event)
    }
}
