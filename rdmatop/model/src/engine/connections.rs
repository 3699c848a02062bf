//! Connections of rdma_cm: the events that their records make, and whose they are.

use std::{collections::HashMap, net::SocketAddr};

use rdmatop_common::event::{CmRecord, cm};

use super::{
    address,
    machine::Machine,
    qp::{Key, Owner},
    qps::QpRef,
    records::{attribute, event_of, known},
};
use crate::{
    event::{Cm, Event, EventKind},
    ib::CmEvent,
    input::Now,
};

/// Ids whose owner is remembered.
const MOST: usize = 65_536;

/// An id as a tracepoint names it, where the module has no BTF. The kernel numbers ids for each device from
/// 1, so two devices have ids of one number at the same time; the two addresses with their ports tell them
/// apart. Two connections can agree in all of this if they are in different network namespaces, or one came
/// after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Id {
    number: u32,
    src: SocketAddr,
    dst: SocketAddr,
}

/// Owners of connections, for records that name none because a worker was running.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// `None`: several processes have used an id of this key, so that nobody knows which of them a worker
    /// works for.
    owners: HashMap<Id, Option<Owner>>,
}

impl Connections {
    /// Learns the owner that a record names, or finds the one of a record that names none.
    fn owner(&mut self, id: Option<Id>, named: Owner) -> Owner {
        let Some(id) = id else { return named };
        if !named.is_known() {
            return self.owners.get(&id).cloned().flatten().unwrap_or(named);
        }
        if self.owners.len() >= MOST && !self.owners.contains_key(&id) {
            self.owners.clear();
        }
        let known = self.owners.entry(id).or_insert_with(|| Some(named.clone()));
        if known.as_ref().is_some_and(|known| known.pid != named.pid) {
            *known = None;
        }
        named
    }

    pub(super) fn apply(&mut self, record: &CmRecord, machine: &mut Machine, now: Now) -> Event {
        let prefix = &record.prefix;
        let kind = match record.what {
            cm::CONNECT => EventKind::CmConnect,
            cm::ACCEPT => EventKind::CmAccept,
            cm::DISCONNECT => EventKind::CmDisconnect,
            cm::REJECT => EventKind::CmReject,
            _ => EventKind::CmEvent,
        };
        let mut event = event_of(kind, prefix, now);
        let (src, dst) = (address::socket(&record.src), address::socket(&record.dst));
        let device = machine.device_in(prefix, prefix.ts_ns);
        let mut owner = machine.owner_in(prefix);
        if prefix.object == 0 {
            let id = src.zip(dst).map(|(src, dst)| Id {
                number: record.cm_id,
                src,
                dst,
            });
            owner = self.owner(id, owner);
        }
        let key = device
            .as_ref()
            .zip(known(record.qpn).filter(|qpn| *qpn > 1))
            .map(|((device, _), qpn)| Key::new(*device, qpn, None));
        let there = key.and_then(|key| {
            machine.qps.find(&QpRef {
                key: Some(key),
                ts_ns: prefix.ts_ns,
                ..QpRef::default()
            })
        });
        if let Some(qp) = there.and_then(|uid| machine.qps.get(uid)) {
            event.qp_uid = Some(qp.uid());
            if !owner.is_known() {
                owner = qp.owner();
            }
        }
        attribute(&mut event, owner, prefix);
        event.device = device.map(|(_, name)| name);
        event.qpn = known(record.qpn).filter(|qpn| *qpn > 0);
        let mut cm = Cm {
            cm_id: known(record.cm_id),
            src,
            dst,
            ..Cm::default()
        };
        if kind == EventKind::CmEvent {
            cm.cm_event = known(record.event)
                .and_then(|value| u8::try_from(value).ok())
                .map(CmEvent);
            cm.status = Some(record.status);
        }
        event.cm = Some(Box::new(cm));
        event
    }
}
