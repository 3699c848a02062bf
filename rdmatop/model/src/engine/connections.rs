//! Connections of rdma_cm: the events that their records make, and whose they are.

use rdmatop_common::event::{CmRecord, cm};

use super::{
    address,
    machine::Machine,
    qp::Key,
    qps::QpRef,
    records::{attribute, event_of, known},
};
use crate::{
    event::{Cm, Event, EventKind},
    ib::CmEvent,
    input::Now,
};

impl Machine {
    /// The event of a connection. Where `rdma_cm` has no BTF (Linux 5.10), a record that a worker makes names
    /// no owner.
    pub(super) fn cm_record(&mut self, record: &CmRecord, now: Now) -> Event {
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
        let device = self.device_in(prefix, prefix.ts_ns);
        let mut owner = self.owner_in(prefix);
        let key = device
            .as_ref()
            .zip(known(record.qpn).filter(|qpn| *qpn > 1))
            .map(|((device, _), qpn)| Key::new(*device, qpn, None));
        let there = key.and_then(|key| {
            self.qps.find(&QpRef {
                key: Some(key),
                ts_ns: prefix.ts_ns,
                ..QpRef::default()
            })
        });
        if let Some(qp) = there.and_then(|uid| self.qps.get(uid)) {
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
