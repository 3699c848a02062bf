//! Connections of rdma_cm: the events that their records make, and whose they are.

use std::net::{SocketAddr, SocketAddrV6};

use rdmatop_common::event::{CmRecord, cm};

use super::{
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
        let (src, dst) = (socket(&record.src), socket(&record.dst));
        let device = self.device_in(prefix, prefix.ts_ns);
        let mut owner = self.owner_in(prefix, 0);
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

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The address as the rdma_cma tracepoints carry it, the first 28 bytes of a `struct sockaddr`; `None` for
/// AF_IB (27), for none (0) and for what this version does not know.
///
/// Layouts: include/uapi/linux/in.h, in6.h. The family is in host order, the port in network order.
fn socket(raw: &[u8; 28]) -> Option<SocketAddr> {
    let port = u16::from_be_bytes([raw[2], raw[3]]);
    match u16::from_ne_bytes([raw[0], raw[1]]) {
        AF_INET => Some(([raw[4], raw[5], raw[6], raw[7]], port).into()),
        AF_INET6 => {
            let address: [u8; 16] = raw[8..24].try_into().ok()?;
            let scope = u32::from_ne_bytes([raw[24], raw[25], raw[26], raw[27]]);
            Some(SocketAddrV6::new(address.into(), port, 0, scope).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(family: u16, rest: &[u8]) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..2 + rest.len()].copy_from_slice(rest);
        bytes
    }

    #[test]
    fn both_ip_families_are_read_and_ib_addresses_are_unknown() {
        let v4 = raw(AF_INET, &[0x11, 0x5c, 10, 77, 0, 1]);
        assert_eq!(socket(&v4).unwrap().to_string(), "10.77.0.1:4444");
        let mut v6 = raw(AF_INET6, &[0x11, 0x5c]);
        v6[8] = 0xfe;
        v6[9] = 0x80;
        v6[23] = 1;
        v6[24..].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(socket(&v6).unwrap().to_string(), "[fe80::1%3]:4444");
        assert_eq!(socket(&raw(27, &[1, 2, 3])), None);
        assert_eq!(socket(&[0; 28]), None);
    }
}
