//! Records: what one changes in the tables, and the event it makes.

use std::sync::Arc;

use rdmatop_common::counters::place;
use rdmatop_common::event::{ObjectRecord, Prefix, QpRecord, UNKNOWN_U8, UNKNOWN_U32, flag, kind};

use super::{
    machine::Machine,
    memory::Region,
    qp::{Key, Owner, Qp},
    qps::QpRef,
    traffic::Traffic,
};
use crate::{
    event::{Event, EventKind},
    ib::{AsyncEvent, Gid, QpState, QpType, mtu_bytes},
    input::Now,
    value::Source,
};

/// `IB_QP_STATE` of `enum ib_qp_attr_mask`: without it `qp_state` has no meaning.
const IB_QP_STATE: u32 = 1;

pub(super) fn known(value: u32) -> Option<u32> {
    (value != UNKNOWN_U32).then_some(value)
}

fn known8(value: u8) -> Option<u8> {
    (value != UNKNOWN_U8).then_some(value)
}

fn port_in(record: &QpRecord) -> Option<u32> {
    known8(record.port).filter(|port| *port > 0).map(u32::from)
}

fn type_in(record: &QpRecord) -> Option<QpType> {
    let number = known(record.qp_type)?;
    u8::try_from(number).ok().map(QpType)
}

/// When the call that a record is about began.
pub(super) fn call_ns(prefix: &Prefix) -> u64 {
    prefix.ts_ns.saturating_sub(prefix.duration_ns)
}

pub(super) fn event_of(kind: EventKind, prefix: &Prefix, now: Now) -> Event {
    let mut event = Event::new(kind, now.wall_of(prefix.ts_ns), prefix.ts_ns);
    event.duration_ns = Some(prefix.duration_ns).filter(|ns| *ns > 0);
    event
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

impl Machine {
    /// Folds in the record of something that happened to a QP. `timelines`: see `EngineConfig`.
    ///
    /// Hands the event out itself: one that is returned is copied once more, and it has 300 bytes.
    pub(super) fn qp_record(
        &mut self,
        record: &QpRecord,
        traffic: &mut Traffic,
        timelines: bool,
        now: Now,
        out: &mut dyn FnMut(Event),
    ) {
        let prefix = &record.prefix;
        let kind = match prefix.kind {
            kind::QP_CREATE => EventKind::QpCreate,
            kind::QP_MODIFY => EventKind::QpModify,
            kind::QP_DESTROY => EventKind::QpDestroy,
            _ => EventKind::QpError,
        };
        let mut event = event_of(kind, prefix, now);
        let owner = self.owner_in(prefix, record.owner_start_ns);
        let uid = self.qp_of(record, kind);
        if let Some(uid) = uid {
            if kind == EventKind::QpCreate {
                self.qps.created(uid, call_ns(prefix), timelines);
                if record.slot < place::NONE_LEFT && traffic.has_swept() {
                    self.qps.holds_slot(uid);
                }
            }
            self.describe_qp(uid, record, &owner);
            if kind == EventKind::QpCreate
                && let Some(process) = self.qps.get(uid).and_then(Qp::process)
            {
                self.named_by_its_first_thread(process, prefix);
            }
        }
        self.qp_before(&mut event, uid, record, owner);
        if let Some(uid) = uid {
            if let Some(qp) = self.qps.get(uid).filter(|_| kind == EventKind::QpCreate) {
                self.devices
                    .may_have(qp.key.device, kind, [record.event, UNKNOWN_U32]);
            }
            match kind {
                EventKind::QpModify if prefix.rc >= 0 => self.qp_modified(uid, record, timelines),
                EventKind::QpCreate => traffic.placed(uid, record, self),
                EventKind::QpDestroy if prefix.rc >= 0 => {
                    self.qps.end(uid, prefix.ts_ns, &mut self.processes);
                }
                // The provider has moved the QP to ERR or SQE without a modify: only a dump shows which.
                EventKind::QpError if matches!(record.event, 1..=3) => self.qps.want_repair(now.mono_ns),
                _ => {}
            }
        }
        match kind {
            EventKind::QpCreate => event.rc = Some(0),
            EventKind::QpModify | EventKind::QpDestroy => event.rc = Some(prefix.rc),
            _ => {
                let number = known(record.event).and_then(|event| u8::try_from(event).ok());
                event.async_event = number.map(AsyncEvent);
            }
        }
        out(event);
    }

    /// The creator of an object is the task that owns it, and the name in the record is that of its thread at
    /// that time.
    pub(super) fn named_by_its_first_thread(&mut self, process: u64, prefix: &Prefix) {
        let is_first = prefix.flags & (flag::KTHREAD | flag::OWNER_KERNEL) == 0
            && prefix.tid == prefix.pid
            && prefix.pid == prefix.owner_pid;
        if !is_first {
            return;
        }
        let comm = self.names.of(&prefix.owner_comm);
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
        let port = port_in(record);
        // A call can return after its device has gone.
        let there_ns = if record.born_ns == 0 {
            ts_ns
        } else {
            record.born_ns
        };
        let device = self.device_in(prefix, there_ns).map_or(0, |(uid, _)| uid);
        let is_owned = prefix.flags & flag::OWNER_TASK != 0 && prefix.owner_pid != 0;
        self.saw_qp(&QpRef {
            object: prefix.object,
            born_ns: record.born_ns,
            created: prefix.flags & flag::CREATED != 0,
            key: known(record.qpn).map(|qpn| {
                let qpn = self.devices.qp_number(device, qpn, type_in(record));
                Key::new(device, qpn, port)
            }),
            ts_ns,
            owner: is_owned.then_some((prefix.owner_pid, record.owner_start_ns)),
        })
    }

    /// What every QP record contains about its QP, and its owner if the table has none.
    fn describe_qp(&mut self, uid: u64, record: &QpRecord, owner: &Owner) {
        let Some(qp) = self.qps.get_mut(uid) else { return };
        let port = port_in(record);
        let known = qp.row();
        let (qp_type, port) = (known.qp_type.or(type_in(record)), port.or(known.port));
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
        self.own(uid, owner.clone(), ts_ns);
        if let Some(qp) = self.qps.get_mut(uid) {
            (qp.sure, qp.start_ns) = (true, owner.start_ns);
        }
    }

    /// Fills the event with what is known before the step is taken.
    fn qp_before(&mut self, event: &mut Event, uid: Option<u64>, record: &QpRecord, owner: Owner) {
        let prefix = &record.prefix;
        let qp = uid.and_then(|uid| self.qps.get(uid));
        event.device = match qp.and_then(|qp| self.devices.get(qp.key.device)) {
            Some(device) => Some(Arc::clone(&device.name)),
            None if prefix.flags & flag::DEVICE != 0 => Some(self.names.of(&prefix.device)),
            None => None,
        };
        event.port = port_in(record);
        if prefix.kind != kind::QP_CREATE {
            // A dump can be read before the record of the create. It may name a port that only INIT has set.
            event.port = event.port.or(qp.and_then(|qp| qp.row().port));
        }
        let device = qp.map_or(0, |qp| qp.key.device);
        let number = |qpn| self.devices.qp_number(device, qpn, type_in(record));
        let qpn = known(record.qpn).map(number);
        event.qpn = qpn.or(qp.map(|qp| qp.key.qpn)).and_then(known);
        event.qp_type = qp.and_then(|qp| qp.row().qp_type);
        event.qp_uid = uid;
        // The record's own values first: a name as it was at the time.
        if owner.is_known() {
            attribute(event, owner, prefix);
        } else {
            attribute(event, qp.map(Qp::owner).unwrap_or_default(), prefix);
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

    /// A process has changed attributes of a QP.
    fn qp_modified(&mut self, uid: u64, record: &QpRecord, timelines: bool) {
        let Some(qp) = self.qps.get_mut(uid) else { return };
        let prefix = &record.prefix;
        let sq_psn = known(record.sq_psn);
        if let Some(psn) = sq_psn {
            qp.psn.set(psn, prefix.ts_ns);
        }
        let state = known8(record.to_state).filter(|_| record.attr_mask & IB_QP_STATE != 0);
        let row = match state {
            Some(state) => {
                let duration_ns = Some(prefix.duration_ns);
                qp.step(QpState(state), prefix.ts_ns, duration_ns, timelines)
            }
            None => qp.edit(),
        };
        row.remote_qpn = known(record.dest_qpn).or(row.remote_qpn);
        if let Some(gid) = Gid::known(record.dest_gid) {
            (row.remote_gid, row.remote_gid_source) = (Some(gid), Some(Source::Ebpf));
        }
        row.sgid_index = known8(record.sgid_index).or(row.sgid_index);
        row.path_mtu = known8(record.path_mtu).and_then(mtu_bytes).or(row.path_mtu);
        row.rq_psn = known(record.rq_psn).or(row.rq_psn);
        row.sq_psn = sq_psn.or(row.sq_psn);
    }

    /// Folds in the record of an MR or a CQ.
    pub(super) fn object_record(&mut self, record: &ObjectRecord, now: Now) -> Event {
        let prefix = &record.prefix;
        let kind = match prefix.kind {
            kind::MR_REG => EventKind::MrReg,
            kind::MR_DEREG => EventKind::MrDereg,
            kind::CQ_CREATE => EventKind::CqCreate,
            _ => EventKind::CqDestroy,
        };
        let mut event = event_of(kind, prefix, now);
        event.rc = Some(prefix.rc);
        event.device = self.device_in(prefix, call_ns(prefix)).map(|(uid, name)| {
            self.devices.may_have(uid, kind, record.limits);
            name
        });
        let size = Some(record.size).filter(|size| *size != u64::MAX);
        let owner = self.owner_in(prefix, record.owner_start_ns);
        let owner = self.processes.of(owner, prefix.ts_ns);
        if let (EventKind::MrReg | EventKind::CqCreate, Some(process)) = (kind, owner.process) {
            self.named_by_its_first_thread(process, prefix);
        }
        let region = Region {
            process: owner.process,
            bytes: size,
        };
        attribute(&mut event, owner, prefix);
        match kind {
            EventKind::MrReg => {
                event.bytes = size;
                self.processes.registers(prefix.object, region, prefix.ts_ns);
            }
            EventKind::MrDereg if prefix.rc >= 0 => {
                let call = (call_ns(prefix), prefix.ts_ns);
                event.bytes = self.processes.deregisters(prefix.object, call, region);
            }
            EventKind::MrDereg => event.bytes = size,
            _ => event.cqe = size,
        }
        event
    }
}
