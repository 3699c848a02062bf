//! Queue pairs.

use std::borrow::Cow;

use super::traffic::{self, Moves as _, with_traffic};
use super::{Field, Kind, Table, Unit, Value, counter, flag, gauge, object, state, text};
use crate::{
    ib::{Gid, QpState, QpType},
    snapshot::QpRow,
};

type Q = QpRow;

/// Fields of a QP.
#[rustfmt::skip] // a row of the table is a line or two
pub static QP: Table<QpRow> = with_traffic![QpRow;
    text("device", "device", |q: &Q, _| Value::Text(Cow::Borrowed(&q.device)))
        .words(&["dev", "device"]).screen("DEVICE", 0, (7, 14)).page(0, "QP"),
    gauge("qpn", "QP number", |q: &Q, _| Value::number(q.number())).words(&["qpn", "qp"]).screen("QPN", 0, (7, 8)),
    state("type", "QP type", |q: &Q, _| Value::word(q.qp_type, |t| t.0.into(), |t| QpType::name(*t)))
        .json("qp_type").words(&["type"]).screen("TYPE", 4, (4, 8)).page(10, "TYPE").detail(0, "type"),
    state("state", "state; ! stuck: ERR, SQE, 5 s in SQD or INIT, or repeats packets: Enter shows why",
        |q: &Q, _| Value::word(q.state, |s| s.0.into(), |s| QpState::name(*s)))
        .words(&["state"]).screen("STATE", 0, (5, 5)).page(20, "STATE").detail(10, "state"),
    gauge("pid", "process that created it", |q: &Q, _| Value::number(q.pid))
        .words(&["pid"]).screen("PID", 2, (7, 7)).page(30, "PID").detail(50, "pid"),
    text("owner", "name of its owner; brackets: a kernel consumer", |q: &Q, _| Value::text(q.comm.as_ref()))
        .json("comm").words(&["comm", "name"]).screen("OWNER", 1, (11, 30)).page(40, "COMM").detail(40, "owner"),
    gauge("remote", "peer's QP number", |q: &Q, _| Value::number(q.remote_qpn))
        .json("remote_qpn").screen("REMOTE", 6, (7, 8)).page(50, "PEER").detail(60, "remote QPN"),
    Field::new(Kind::Text, "peer", "process at the other end where that is on this host (~: likely, by the numbers of both), else its address",
        |q: &Q, s| s.peer(q).map_or(Value::Unknown, |peer| Value::Text(Cow::Owned(peer.name()))))
        .json("").words(&["peer"]).screen("PEER", 2, (12, 32)).detail(65, "peer"),
    state("rgid", "GID of the peer's port", |q: &Q, _| Value::word(q.remote_gid, |gid| Gid::host(*gid).into(), |_| None))
        .json("remote_gid").screen("RGID", 12, (39, 39)).off().detail(70, "remote GID"),
    gauge("mtu", "path MTU, bytes", |q: &Q, _| Value::number(q.path_mtu))
        .json("path_mtu").screen("MTU", 7, (4, 5)).page(60, "MTU").detail(80, "path MTU"),
    gauge("age", "since creation; -: older than rdmatop", |q: &Q, s| Value::number(q.age_ns(s.mono_ns)))
        .unit(Unit::Age).json("").screen("AGE", 4, (6, 7)).page(70, "AGE").detail(85, "age"),
    traffic::tx_wr(3, 100),
    traffic::rx_wr(6, 110),
    traffic::tx(1, 80),
    traffic::rx(1, 90),
    traffic::packets().screen("PKT/s", 8, (7, 8)),
    traffic::retx(2, 150),
    traffic::err(2, 140),
    traffic::p99(5, 160),
    Field::new(Kind::History, "history", "Tx and Rx together, newest right, each row to its own maximum",
        |q: &Q, _| Value::History(&q.history)).json("").screen("HISTORY", 9, (10, 30)),
    counter("tx_wr_total", "send WRs finished, total", |q: &Q, _| Value::total(q.traffic().tx_wr))
        .json("tx_wr.total").page(120, "TXWR"),
    counter("rx_wr_total", "receive WRs completed, total", |q: &Q, _| Value::total(q.traffic().rx_wr))
        .json("rx_wr.total").page(130, "RXWR"),
    traffic::completions(),
    gauge("uid", "unique in this run", |q: &Q, _| Value::number(Some(q.uid))),
    gauge("device_uid", "uid of its device", |q: &Q, _| Value::number(q.device_uid)),
    gauge("port", "port number", |q: &Q, _| Value::number(q.port)).detail(30, "port"),
    text("state_source", "source of the state",
        |q: &Q, _| q.state_source.map_or(Value::Unknown, |s| Value::Text(Cow::Owned(format!("{s:?}").to_lowercase())))).detail(20, "from"),
    gauge("process_uid", "uid of its owner", |q: &Q, _| Value::number(q.process_uid)),
    text("remote_gid_source", "source of the peer's GID",
        |q: &Q, _| q.remote_gid_source.map_or(Value::Unknown, |s| Value::Text(Cow::Owned(format!("{s:?}").to_lowercase())))).detail(72, "GID from"),
    flag("kernel", "owned by a kernel consumer", |q: &Q, _| Value::Flag(q.kernel)),
    flag("orphan", "its owner ended, another process still holds it; without a PID: the thread that made it ended", |q: &Q, _| Value::Flag(q.orphan)),
    flag("exited", "destroyed", |q: &Q, _| Value::Flag(q.exited)),
    flag("since_attach", "it existed before its work was counted", |q: &Q, _| Value::Flag(q.since_attach)),
    flag("uncounted", "it moves without a counter slot", |q: &Q, _| Value::Flag(q.uncounted)),
    gauge("born_mono_ns", "monotonic time of its creation", |q: &Q, _| Value::number(q.born_mono_ns)).unit(Unit::Nanoseconds),
    gauge("sq_psn", "send PSN", |q: &Q, _| Value::number(q.sq_psn)).detail(90, "SQ PSN"),
    gauge("rq_psn", "receive PSN", |q: &Q, _| Value::number(q.rq_psn)).detail(95, "RQ PSN"),
    object("timeline", "states and when they began"),
    object("unknown", "quantities that are unknown, with the ids of the causes; judgement.unobserved has the sentences"),
];
