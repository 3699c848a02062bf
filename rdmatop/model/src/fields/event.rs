//! Events.

use std::{borrow::Cow, net::SocketAddr};

use super::{Field, Kind, Table, Unit, Value, flag, gauge, object, state, text};
use crate::{
    event::Event,
    ib::{AsyncEvent, CmEvent, QpState, QpType, WcStatus, WrRequest},
};
use rdmatop_base::errno;

fn qp_state(state: Option<QpState>) -> Value<'static> {
    Value::word(state, |s| s.0.into(), |s| QpState::name(*s))
}

fn address(address: Option<SocketAddr>) -> Value<'static> {
    address.map_or(Value::Unknown, |a| Value::Text(Cow::Owned(a.to_string())))
}

/// Returns the name of the errno with which a call failed.
fn failure(event: &Event) -> Value<'static> {
    let name = event
        .rc
        .filter(|rc| *rc < 0)
        .and_then(|rc| errno::name(rc.unsigned_abs()));
    name.map_or(Value::Unknown, |name| Value::Text(Cow::Borrowed(name)))
}

type E = Event;

/// Fields of an event. The log is sorted by time.
#[rustfmt::skip] // a row of the table is a line or two
pub static EVENT: Table<Event> = &[
    gauge("time", "time of day, UTC", |e: &E, _| Value::number(Some(e.ts_ns)))
        .unit(Unit::Clock).json("ts_ns").screen("TIME UTC", 1, (15, 15)),
    text("event", "what happened", |e: &E, _| Value::Text(Cow::Borrowed(e.event.name())))
        .words(&["event"]).screen("EVENT", 0, (13, 13)),
    text("device", "device", |e: &E, _| Value::text(e.device.as_ref())).words(&["dev", "device"]).screen("DEVICE", 3, (7, 13)),
    gauge("qpn", "QP number", |e: &E, _| Value::number(e.qpn)).words(&["qpn", "qp"]).screen("QPN", 1, (6, 8)),
    state("type", "QP type", |e: &E, _| Value::word(e.qp_type, |t| t.0.into(), |t| QpType::name(*t)))
        .json("qp_type").words(&["type"]).screen("TYPE", 6, (4, 7)),
    gauge("pid", "process that owns the object", |e: &E, _| Value::number(e.pid)).words(&["pid"]).screen("PID", 4, (7, 7)),
    text("comm", "its name; brackets: a kernel consumer", |e: &E, _| Value::text(e.comm.as_ref()))
        .words(&["comm", "name"]).screen("OWNER", 2, (11, 15)),
    gauge("took", "time in the kernel function, or from post to end of a work request", |e: &E, _| Value::number(e.duration_ns))
        .unit(Unit::Nanoseconds).json("duration_ns").screen("TOOK", 5, (6, 6)),
    Field::new(Kind::Object, "what", "states, errno, what was set", |e: &E, _| failure(e))
        .json("").words(&["errno"]).screen("WHAT", 0, (23, 120)),
    gauge("schema", "version of the object", |e: &E, _| Value::number(Some(e.schema))),
    gauge("mono_ns", "monotonic time", |e: &E, _| Value::number(Some(e.mono_ns))).unit(Unit::Nanoseconds),
    gauge("port", "port number", |e: &E, _| Value::number(e.port)),
    gauge("tid", "thread that made the call", |e: &E, _| Value::number(e.tid)),
    flag("kernel", "owned by a kernel consumer", |e: &E, _| if e.kernel { Value::Flag(true) } else { Value::Unknown }),
    gauge("by_pid", "process that made the call when it is not the owner", |e: &E, _| Value::number(e.by_pid)),
    state("from", "QP state before", |e: &E, _| qp_state(e.from)),
    state("to", "QP state after", |e: &E, _| qp_state(e.to)).words(&["state"]),
    gauge("attr_mask", "attributes that were set", |e: &E, _| Value::number(e.attr_mask)),
    gauge("dest_qpn", "peer's QP number", |e: &E, _| Value::number(e.dest_qpn)),
    state("dest_gid", "GID of the peer's port", |e: &E, _| Value::word(e.dest_gid, |gid| gid.host().into(), |_| None)),
    gauge("path_mtu", "path MTU, bytes", |e: &E, _| Value::number(e.path_mtu)),
    gauge("sgid_index", "index into the port's GID table", |e: &E, _| Value::number(e.sgid_index)),
    gauge("timeout", "exponent of the timeout", |e: &E, _| Value::number(e.timeout)),
    gauge("retry_cnt", "retries", |e: &E, _| Value::number(e.retry_cnt)),
    gauge("rnr_retry", "RNR retries", |e: &E, _| Value::number(e.rnr_retry)),
    state("async_event", "asynchronous event", |e: &E, _| {
        Value::word(e.async_event, |a| a.0.into(), |a| AsyncEvent::name(*a))
    }),
    state("cm_event", "event of rdma_cm", |e: &E, _| Value::word(e.cm().cm_event, |c| c.0.into(), |c| CmEvent::name(*c))),
    gauge("status", "errno or reason of the event", |e: &E, _| Value::number(e.cm().status)),
    gauge("cm_id", "rdma_cm id", |e: &E, _| Value::number(e.cm().cm_id)),
    text("src", "local address and port", |e: &E, _| address(e.cm().src)),
    text("dst", "address and port of the peer", |e: &E, _| address(e.cm().dst)),
    gauge("wr_id", "the program's number of the work request", |e: &E, _| Value::number(e.work().wr_id)).words(&["wr_id", "wr"]),
    state("opcode", "what the work request asks for", |e: &E, _| {
        Value::word(e.work().opcode, |o| o.0.into(), |o| WrRequest::name(*o))
    }).words(&["opcode"]),
    flag("signaled", "a completion was asked for", |e: &E, _| e.work().signaled.map_or(Value::Unknown, Value::Flag)),
    gauge("imm", "immediate data", |e: &E, _| Value::number(e.work().imm)),
    state("wc_status", "how the work request ended", |e: &E, _| {
        Value::word(e.work().wc_status, |s| s.0.into(), |s| WcStatus::name(*s))
    }).words(&["wc_status"]),
    flag("dropped", "its queue was emptied without a completion", |e: &E, _| {
        if e.work().dropped { Value::Flag(true) } else { Value::Unknown }
    }),
    flag("cq_full", "the CQ had no room for its completion", |e: &E, _| {
        if e.work().cq_full { Value::Flag(true) } else { Value::Unknown }
    }),
    gauge("bytes", "bytes of the MR or of the work request", |e: &E, _| Value::number(e.bytes)).unit(Unit::Memory),
    gauge("cqe", "entries of the CQ", |e: &E, _| Value::number(e.cqe)),
    text("devx", "what an object made past the kernel (DEVX) is", |e: &E, _| {
        e.devx.map_or(Value::Unknown, |kind| Value::Text(Cow::Borrowed(kind.name())))
    }).words(&["devx"]),
    text("verb", "verb that failed", |e: &E, _| Value::text(e.verb.as_ref())).words(&["verb"]),
    gauge("rc", "return code", |e: &E, _| Value::number(e.rc)),
    gauge("count", "records lost", |e: &E, _| Value::number(e.count)),
    text("where", "where records were lost", |e: &E, _| {
        e.lost_where.map_or(Value::Unknown, |at| Value::Text(Cow::Borrowed(at)))
    }),
    gauge("qp_uid", "the QP, unique in this run", |e: &E, _| Value::number(e.qp_uid)),
    object("finding", "the finding that was raised or cleared"),
];
