//! Queue pairs.

use crate::model::ib::{Gid, QpState};
use crate::model::snapshot::{QpRow, Snapshot};

use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{Align, Cell, Column, Key, RowKey, Spec, Title, Value, flow, moved, no_device, spark, trouble};
use crate::model::judgement::{STUCK_MARK, Stuck};

fn row(s: &Snapshot, at: usize) -> &QpRow {
    &s.qps[at]
}

/// The state; a stuck one is loud, and marked for eyes and terminals without colours.
fn state(qp: &QpRow, mono_ns: u64) -> Cell {
    let text = state_text(qp.state);
    match (Stuck::of(qp, mono_ns), qp.state.and_then(QpState::name)) {
        (Some(stuck), _) => Cell::new(format!("{text:<4}{STUCK_MARK}"), stuck_tone(stuck)),
        (None, Some("RTS")) => Cell::new(text, Tone::Good),
        (None, Some("SQD")) => Cell::new(text, Tone::Warn),
        (None, _) => Cell::value(text),
    }
}

fn state_text(state: Option<QpState>) -> String {
    format::known(state, |s| s.to_string())
}

fn owner(qp: &QpRow) -> Cell {
    let name = qp.comm.as_deref().unwrap_or("-");
    let tone = if qp.kernel { Tone::Title } else { Tone::Normal };
    if qp.orphan {
        Cell::new(name, tone).and(" orphan", Tone::Warn)
    } else {
        Cell::new(name, tone)
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "device",
            title: Title::Plain("DEVICE"),
            about: "device",
            priority: 0,
            width: (7, 14),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).device.to_string()),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).device)),
        },
        Column {
            id: "qpn",
            title: Title::Plain("QPN"),
            about: "QP number",
            priority: 0,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::new(row(c.snapshot, i).qpn.to_string(), Tone::Strong),
            key: Some(|c, i| Key::Num(row(c.snapshot, i).qpn.into())),
        },
        Column {
            id: "type",
            title: Title::Plain("TYPE"),
            about: "QP type",
            priority: 3,
            width: (4, 8),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).qp_type, |t| t.to_string())),
            key: Some(|c, i| Key::num(row(c.snapshot, i).qp_type.map(|t| t.0))),
        },
        Column {
            id: "state",
            title: Title::Plain("STATE"),
            about: "state; ! stuck: ERR, SQE, 5 s in SQD or INIT, or sends the same again: Enter says why",
            priority: 0,
            width: (5, 5),
            align: Align::Left,
            on: true,
            cell: |c, i, _| state(row(c.snapshot, i), c.snapshot.mono_ns),
            key: Some(|c, i| Key::num(row(c.snapshot, i).state.map(|s| s.0))),
        },
        Column {
            id: "pid",
            title: Title::Plain("PID"),
            about: "process that created it",
            priority: 3,
            width: (7, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).pid, |p| p.to_string())),
            key: Some(|c, i| Key::num(row(c.snapshot, i).pid)),
        },
        Column {
            id: "owner",
            title: Title::Plain("OWNER"),
            about: "name of its owner; brackets: a kernel consumer",
            priority: 1,
            width: (11, 30),
            align: Align::Left,
            on: true,
            cell: |c, i, _| owner(row(c.snapshot, i)),
            key: Some(|c, i| Key::text(row(c.snapshot, i).comm.as_ref())),
        },
        Column {
            id: "remote",
            title: Title::Plain("REMOTE"),
            about: "peer's QP number",
            priority: 6,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).remote_qpn, |n| n.to_string())),
            key: Some(|c, i| Key::num(row(c.snapshot, i).remote_qpn)),
        },
        Column {
            id: "rgid",
            title: Title::Plain("RGID"),
            about: "GID of the peer's port",
            priority: 12,
            width: (39, 39),
            align: Align::Left,
            on: false,
            cell: |c, i, _| {
                Cell::value(format::known(row(c.snapshot, i).remote_gid, |gid| {
                    gid.to_string()
                }))
            },
            key: Some(|c, i| Key::num(row(c.snapshot, i).remote_gid.map(Gid::host))),
        },
        Column {
            id: "mtu",
            title: Title::Plain("MTU"),
            about: "path MTU, bytes",
            priority: 7,
            width: (4, 5),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(row(c.snapshot, i).path_mtu, |m| m.to_string())),
            key: Some(|c, i| Key::num(row(c.snapshot, i).path_mtu)),
        },
        Column {
            id: "age",
            title: Title::Plain("AGE"),
            about: "since creation; -: older than rdmatop",
            priority: 4,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                Cell::value(format::known(
                    row(c.snapshot, i).age_ns(c.snapshot.mono_ns),
                    |ns| format::age(ns / 1_000_000_000),
                ))
            },
            key: Some(|c, i| Key::num(row(c.snapshot, i).age_ns(c.snapshot.mono_ns).map(|ns| ns as f64))),
        },
        Column {
            id: "tx_wr",
            title: Title::Plain("TX WR/s"),
            about: "send WRs finished per second",
            priority: 2,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let wr = row(c.snapshot, i).traffic.tx_wr.as_ref();
                flow(format::rate(wr), wr, Tone::Tx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.tx_wr.as_ref())),
        },
        Column {
            id: "rx_wr",
            title: Title::Plain("RX WR/s"),
            about: "receive WRs completed per second",
            priority: 6,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let wr = row(c.snapshot, i).traffic.rx_wr.as_ref();
                flow(format::rate(wr), wr, Tone::Rx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.rx_wr.as_ref())),
        },
        Column {
            id: "tx",
            title: Title::Traffic("TX"),
            about: "traffic of send-side WRs; of an RDMA READ what it asks for",
            priority: 1,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let bytes = row(c.snapshot, i).traffic.tx_bytes.as_ref();
                flow(format::byte_rate(bytes, c.units), bytes, Tone::Tx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.tx_bytes.as_ref())),
        },
        Column {
            id: "rx",
            title: Title::Traffic("RX"),
            about: "traffic of receive completions",
            priority: 1,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                let bytes = row(c.snapshot, i).traffic.rx_bytes.as_ref();
                flow(format::byte_rate(bytes, c.units), bytes, Tone::Rx)
            },
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.rx_bytes.as_ref())),
        },
        Column {
            id: "packets",
            title: Title::Plain("PKT/s"),
            about: "packets sent per second, from the movement of the send PSN",
            priority: 8,
            width: (7, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::rate(row(c.snapshot, i).traffic.tx_packets.as_ref())),
            key: Some(|c, i| Key::rate(row(c.snapshot, i).traffic.tx_packets.as_ref())),
        },
        Column {
            id: "retx",
            title: Title::Plain("RETX"),
            about: "request packets sent again, total",
            priority: 2,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).traffic.retransmits.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).traffic.retransmits.as_ref())),
        },
        Column {
            id: "err",
            title: Title::Plain("ERR"),
            about: "completions with an error, total",
            priority: 2,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| trouble(row(c.snapshot, i).traffic.completion_errors.as_ref(), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).traffic.completion_errors.as_ref())),
        },
        Column {
            id: "p99",
            title: Title::Plain("P99"),
            about: "post to completion: 99 of 100 take less",
            priority: 5,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| {
                Cell::value(format::below(
                    row(c.snapshot, i).traffic.latency.as_ref().and_then(|l| l.p99_ns),
                ))
            },
            key: Some(|c, i| {
                let p99 = row(c.snapshot, i).traffic.latency.as_ref().and_then(|l| l.p99_ns);
                Key::num(p99.map(|ns| ns as f64))
            }),
        },
        Column {
            id: "history",
            title: Title::Plain("HISTORY"),
            about: "Tx and Rx together, newest right, each row to its own maximum",
            priority: 9,
            width: (10, 30),
            align: Align::Left,
            on: true,
            cell: |c, i, width| spark(c, &row(c.snapshot, i).history, width),
            key: Some(|c, i| moved(&row(c.snapshot, i).history)),
        },
    ],
    sort: ("tx", true),
    len: |c| c.snapshot.qps.len(),
    row: |c, i| RowKey::Qp(row(c.snapshot, i).uid),
    fields: |c, i, visit| {
        let q = row(c.snapshot, i);
        let _ = visit("dev", Value::Text(&q.device))
            && visit("qpn", Value::Num(q.qpn.into()))
            && q.pid.is_none_or(|pid| visit("pid", Value::Num(pid.into())))
            && q.comm.as_ref().is_none_or(|n| visit("comm", Value::Text(n)))
            && q.state
                .is_none_or(|s| visit("state", Value::Text(s.name().unwrap_or("?"))))
            && q.qp_type
                .is_none_or(|t| visit("type", Value::Text(t.name().unwrap_or("?"))));
    },
    field_names: &["dev", "qpn", "pid", "comm", "state", "type"],
    faded: |c, i| row(c.snapshot, i).exited,
    empty: |c| {
        no_device(c).unwrap_or_else(|| {
            "No QP is known yet. The kernel's own (GSI) show as soon as a device was read.".to_owned()
        })
    },
};
