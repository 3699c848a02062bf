use std::collections::{BTreeMap, BTreeSet};

use super::*;
use rdmatop_common::event::{cm, decode};

/// A kind of record that the engine does not know would be shown as one of another.
#[test]
fn each_kind_of_record_has_events_of_its_own() {
    let mut kinds = BTreeMap::new();
    for kind in 0..=u16::MAX {
        let mut raw = [0; size_of::<CmRecord>()];
        let at = std::mem::offset_of!(Prefix, kind);
        raw[at..at + 2].copy_from_slice(&kind.to_ne_bytes());
        let Ok(record) = decode(&raw) else { continue };
        let events = Host::new().record(record);
        let shown: BTreeSet<_> = events.iter().map(|event| event.event.name()).collect();
        kinds.insert(kind, shown);
    }
    assert!(kinds.len() > 10, "{kinds:?}");
    for (kind, shown) in &kinds {
        let others = kinds.iter().filter(|(other, _)| *other != kind);
        for (other, theirs) in others {
            assert!(shown.is_disjoint(theirs), "{kind} and {other}: {shown:?}");
        }
    }
}

/// Programs compare with numbers, and views name them: both are of the same verbs.
#[test]
fn programs_and_views_have_the_same_numbers_of_verbs() {
    use crate::ib::{WcStatus, WrRequest};
    use rdmatop_common::ib::{FLUSHED, RECV, opcode, qp_type, state};
    let small = |number: u32| u8::try_from(number).unwrap();
    let states = [
        (state::RESET, "RESET"),
        (state::RTR, "RTR"),
        (state::RTS, "RTS"),
        (state::ERR, "ERR"),
    ];
    for (number, name) in states {
        assert_eq!(QpState(small(number)).name(), Some(name));
    }
    let types = [
        (qp_type::RC, "RC"),
        (qp_type::UC, "UC"),
        (qp_type::UD, "UD"),
        (qp_type::DRIVER, "DRIVER"),
    ];
    for (number, name) in types {
        assert_eq!(QpType(small(number)).name(), Some(name));
    }
    let requests = WrRequest::ALL
        .iter()
        .map(|request| (u32::from(request.0), request.name().unwrap()));
    for (number, name) in requests.filter(|(number, _)| *number < RECV) {
        assert_eq!(opcode::has_imm(number), name.ends_with("_imm"), "{name}");
        let has_data = !["local_inv", "bind_mw"].contains(&name) && !name.starts_with("reg_mr");
        assert_eq!(opcode::has_data(number), has_data, "{name}");
    }
    assert_eq!(WrRequest(small(RECV)).name(), Some("recv"));
    assert_eq!(WcStatus(small(FLUSHED)).name(), Some("wr_flush_err"));
}

fn cm_record(ts_ns: u64, what: u32, cm_id: u32) -> CmRecord {
    CmRecord {
        prefix: Prefix {
            flags: flag::KTHREAD,
            pid: 31,
            comm: bytes("kworker/0:2"),
            ..prefix(kind::CM, ts_ns, 0)
        },
        what,
        event: UNKNOWN_U32,
        status: 0,
        cm_id,
        src: [0; 28],
        dst: [0; 28],
        qpn: UNKNOWN_U32,
        reserved: 0,
    }
}

#[test]
fn a_connection_event_in_a_kworker_has_the_owner_of_its_record_alone() {
    let mut host = Host::new();
    let t = host.now;
    let between = |what, ts_ns| {
        let mut record = cm_record(ts_ns, what, 7);
        record.src[..8].copy_from_slice(&[2, 0, 0x1d, 0x0c, 10, 77, 0, 1]);
        record.dst[..8].copy_from_slice(&[2, 0, 0x1d, 0x0d, 10, 77, 0, 2]);
        record
    };
    let mut connect = between(cm::CONNECT, t);
    connect.prefix = by(prefix(kind::CM, t, 0), 291, "rping");
    let event = host.record(Record::Cm(connect)).remove(0);
    assert_eq!(
        (event.event.name(), event.cm().cm_id, event.tid),
        ("cm_connect", Some(7), Some(291))
    );
    let mut established = between(cm::EVENT, t + 1);
    (established.event, established.status) = (9, 0);
    let event = host.record(Record::Cm(established)).remove(0);
    assert_eq!((event.pid, event.comm, event.by_pid), (None, None, None));
    established.prefix.flags |= flag::OWNER_TASK;
    established.prefix.owner_pid = 291;
    established.prefix.owner_comm = bytes("rping");
    let event = host.record(Record::Cm(established)).remove(0);
    assert_eq!(
        (event.pid, event.comm.as_deref(), event.by_pid),
        (Some(291), Some("rping"), None)
    );
    assert_eq!(event.cm().cm_event.unwrap().to_string(), "ESTABLISHED");
    assert_eq!(event.cm().status, Some(0));
    // An address of InfiniBand is not shown.
    let mut native = between(cm::EVENT, t + 2);
    native.dst[..2].copy_from_slice(&27u16.to_ne_bytes());
    let event = host.record(Record::Cm(native)).remove(0);
    assert_eq!(
        (event.cm().src.unwrap().to_string().as_str(), event.cm().dst),
        ("10.77.0.1:7436", None)
    );
}

#[test]
fn a_connection_without_a_known_owner_says_so() {
    let mut host = Host::new();
    let event = host
        .record(Record::Cm(cm_record(host.now, cm::REJECT, 8)))
        .remove(0);
    assert_eq!(
        (event.event.name(), event.pid, event.comm),
        ("cm_reject", None, None)
    );
}

#[test]
fn a_connection_finds_its_owner_by_the_qp() {
    let mut host = Host::new();
    let t = host.now;
    let uid = host.qp(create(t, 0xa0, 17)).qp_uid;
    let mut accept = cm_record(t + 1, cm::ACCEPT, 9);
    accept.qpn = 17;
    accept.prefix.flags |= flag::DEVICE;
    let event = host.record(Record::Cm(accept)).remove(0);
    assert_eq!((event.pid, event.qp_uid, event.qpn), (Some(231), uid, Some(17)));
}

#[test]
fn a_completion_queue_has_its_entries() {
    let mut host = Host::new();
    let event = host
        .record(region(kind::CQ_CREATE, host.now, 0xc0, 231, 200))
        .remove(0);
    assert_eq!(
        (event.event.name(), event.cqe, event.bytes),
        ("cq_create", Some(200), None)
    );
}

#[test]
fn the_json_of_an_event_has_the_six_fields_and_no_unknowns() {
    let mut host = Host::new();
    let event = host.qp(create(host.now, 0xa0, 17));
    let json = serde_json::to_value(&event).unwrap();
    for field in ["device", "qpn", "pid", "tid", "comm", "rc"] {
        assert!(!json[field].is_null(), "{field}");
    }
    assert!(json.get("dest_qpn").is_none() && json.get("from").is_none());
    assert_eq!(json["event"], "qp_create");
}

#[test]
fn wall_time_follows_the_distance_of_the_clocks() {
    let mut host = Host::new();
    host.now = 100 * SECOND;
    let event = host.qp(create(99 * SECOND, 0xa0, 17));
    assert_eq!(event.ts_ns, WALL + 99 * SECOND);
}
