//! Records of work requests: the events that they make. Nothing in the tables depends on them.

use std::sync::Arc;

use rdmatop_common::wr::{NO_OPCODE, NO_STATUS, WrRecord, flag, kind};

use super::{machine::Machine, records::known};
use crate::{
    event::{Event, EventKind, Work},
    ib::{Gid, QpType, WcStatus, WrRequest},
    input::Now,
};

/// A number as one of an enumeration of the kernel's; one without a name stays the number it is up to 255.
fn small(value: u32, none: u32) -> Option<u8> {
    (value != none).then(|| u8::try_from(value).unwrap_or(u8::MAX))
}

impl Machine {
    pub(super) fn work_request(&mut self, record: &WrRecord, now: Now) -> Event {
        let kind = if record.kind == kind::POST {
            EventKind::WrPost
        } else {
            EventKind::WrDone
        };
        let mut event = Event::new(kind, now.wall_of(record.ts_ns), record.ts_ns);
        let is = |bit| record.flags & bit != 0;
        if let Some(index) = known(record.device_index) {
            // The name that the kernel side compared with the filter: the list of devices may be older than
            // the QP.
            let name = Some(self.names.of(&record.device)).filter(|name| !name.is_empty());
            let uid = self.devices.resolve(index, name.as_ref(), record.ts_ns);
            event.device = name.or_else(|| self.devices.get(uid).map(|device| Arc::clone(&device.name)));
        }
        event.qpn = known(record.qpn);
        event.qp_type = known(record.qp_type)
            .and_then(|value| u8::try_from(value).ok())
            .map(QpType);
        if is(flag::OWNER_KERNEL) {
            event.kernel = true;
            event.comm = Some(self.names.kernel(&record.owner_comm));
        } else if is(flag::OWNER_TASK) {
            event.pid = Some(record.owner_pid).filter(|pid| *pid != 0);
            event.comm = Some(self.names.of(&record.owner_comm)).filter(|comm| !comm.is_empty());
        }
        event.tid = is(flag::THREAD)
            .then_some(record.tid)
            .filter(|_| kind == EventKind::WrPost);
        event.dest_qpn = known(record.dest_qpn);
        event.dest_gid = Gid::known(record.dest_gid);
        let mut work = Work {
            wr_id: is(flag::WR_ID).then_some(record.wr_id),
            opcode: small(record.opcode, NO_OPCODE).map(WrRequest),
            imm: is(flag::IMM).then_some(record.imm),
            ..Work::default()
        };
        if is(flag::DETAILS) {
            event.bytes = Some(record.bytes.into());
        }
        // Of a receive there is no choice.
        let chooses = is(flag::SIGNALED) || (is(flag::DETAILS) && !is(flag::SIGNALS_UNKNOWN));
        work.signaled = (chooses && !is(flag::RECEIVE)).then_some(is(flag::SIGNALED));
        if kind == EventKind::WrDone {
            work.wc_status = small(record.status, NO_STATUS).map(WcStatus);
            work.dropped = is(flag::DROPPED);
            work.cq_full = is(flag::CQ_FULL);
            let posted = Some(record.post_ns).filter(|post_ns| *post_ns != 0);
            event.duration_ns = posted.map(|post_ns| record.ts_ns.saturating_sub(post_ns));
        }
        event.work = Some(Box::new(work));
        event
    }
}

#[cfg(test)]
mod tests {
    use rdmatop_common::event::{COMM_LEN, UNKNOWN_U32};
    use zerocopy::FromZeros as _;

    use super::*;

    const NOW: Now = Now {
        mono_ns: 1_000,
        wall_ns: 5_000,
    };

    fn ended(flags: u16, status: u32) -> Event {
        let mut record = WrRecord::new_zeroed();
        record.kind = kind::DONE;
        record.flags = flags;
        record.status = status;
        (record.ts_ns, record.post_ns) = (900, 600);
        (record.opcode, record.bytes, record.wr_id, record.imm) = (4, 64, 7, 3);
        (record.qpn, record.owner_pid, record.dest_qpn) = (17, 231, UNKNOWN_U32);
        record.device_index = UNKNOWN_U32;
        record.owner_comm = *b"a\x1bb\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(record.owner_comm.len(), COMM_LEN);
        Machine::default().work_request(&record, NOW)
    }

    #[test]
    fn what_a_record_does_not_know_is_unknown_and_not_zero() {
        let event = ended(0, NO_STATUS);
        assert_eq!((event.ts_ns, event.mono_ns), (4_900, 900));
        assert_eq!(
            (
                event.work().wr_id,
                event.bytes,
                event.work().signaled,
                event.work().imm
            ),
            (None, None, None, None)
        );
        assert_eq!(
            (event.pid, event.comm.as_ref(), event.work().wc_status),
            (None, None, None)
        );
        assert_eq!((event.dest_qpn, event.dest_gid, event.device), (None, None, None));
    }

    #[test]
    fn what_it_knows_is_told_and_names_are_made_safe() {
        let all = flag::OWNER_TASK | flag::WR_ID | flag::DETAILS | flag::IMM | flag::SIGNALED;
        let event = ended(all, 5);
        assert_eq!(
            (event.work().wr_id, event.bytes, event.work().imm),
            (Some(7), Some(64), Some(3))
        );
        assert_eq!(
            (event.work().signaled, event.work().wc_status),
            (Some(true), Some(WcStatus(5)))
        );
        assert_eq!((event.pid, event.duration_ns), (Some(231), Some(300)));
        let comm = event.comm.unwrap();
        assert!(
            comm.starts_with('a') && !comm.chars().any(char::is_control),
            "{comm}"
        );
        assert_eq!(ended(all | flag::RECEIVE, 0).work().signaled, None);
        assert!(ended(flag::OWNER_KERNEL, 0).kernel);
    }
}
