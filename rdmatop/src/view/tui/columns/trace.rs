//! Events, one a line.

use crate::model::event::{Event, EventKind};

use super::super::theme::Tone;
use super::super::{errno, format};
use super::{Align, Cell, Column, Ctx, RowKey, Spec, Title, Value, no_ebpf};

fn with(c: &Ctx<'_>, at: usize, cell: impl FnOnce(&Event) -> Cell) -> Cell {
    c.trace.get(at).map_or_else(Cell::default, cell)
}

/// Tone of an event: beginnings good, ends dim, faults loud.
pub(in crate::view::tui) fn tone(event: &Event) -> Tone {
    let failed = event.rc.is_some_and(|rc| rc < 0);
    match event.event {
        EventKind::Lost | EventKind::QpError | EventKind::VerbError | EventKind::CmReject => Tone::Bad,
        _ if failed => Tone::Bad,
        EventKind::QpModify
            if event
                .to
                .and_then(crate::model::ib::QpState::name)
                .is_some_and(|s| matches!(s, "ERR" | "SQE")) =>
        {
            Tone::Bad
        }
        EventKind::QpCreate | EventKind::CmConnect | EventKind::CmAccept => Tone::Good,
        EventKind::QpDestroy | EventKind::MrDereg | EventKind::CqDestroy | EventKind::CmDisconnect => {
            Tone::Dim
        }
        EventKind::QpModify => Tone::Tx,
        EventKind::CmEvent => Tone::Rx,
        EventKind::MrReg | EventKind::CqCreate => Tone::Title,
    }
}

/// What the event says besides who and when.
pub(in crate::view::tui) fn what(c: &Ctx<'_>, e: &Event) -> Cell {
    let mut cell = Cell::default();
    let mut add = |text: String, tone: Tone| {
        let gap = if cell.0.is_empty() { "" } else { " " };
        cell.0.push((format!("{gap}{text}"), tone));
    };
    if let Some(to) = e.to {
        let state = if e.event == EventKind::QpModify {
            tone(e)
        } else {
            Tone::Normal
        };
        let from = e
            .from
            .map(|from| format!("{from} {} ", c.glyphs.arrow))
            .unwrap_or_default();
        add(format!("{from}{to}"), state);
    } else if e.event == EventKind::QpModify {
        add("attributes only".to_owned(), Tone::Dim);
    }
    if let Some(verb) = &e.verb {
        add(verb.to_string(), Tone::Strong);
    }
    if let Some(rc) = e.rc.filter(|rc| *rc < 0) {
        add(format!("failed: {}", errno::text(rc.unsigned_abs())), Tone::Bad);
    }
    if let Some(event) = e.async_event {
        add(event.to_string(), Tone::Bad);
    }
    if let Some(event) = e.cm_event {
        add(event.to_string(), Tone::Normal);
    }
    if let Some(status) = e.status.filter(|s| *s != 0) {
        add(format!("status {status}"), Tone::Warn);
    }
    if let (EventKind::Lost, Some(count)) = (e.event, e.count) {
        add(
            format!(
                "{} records lost at {}",
                format::exact(count),
                e.lost_where.unwrap_or("?")
            ),
            Tone::Bad,
        );
    }
    let facts = [
        e.bytes.map(|b| format!("{}B", format::memory(b))),
        e.cqe.map(|n| format!("{n} entries")),
        e.dest_qpn.map(|n| format!("to QP {n}")),
        e.path_mtu.map(|m| format!("MTU {m}")),
        e.sgid_index.map(|g| format!("GID {g}")),
        e.timeout.map(|t| format!("timeout {t}")),
        e.retry_cnt.map(|n| format!("retry {n}")),
        e.rnr_retry.map(|n| format!("rnr {n}")),
        e.cm_id.map(|n| format!("id {n}")),
        e.src.map(|a| a.to_string()),
        e.dst.map(|a| format!("{} {a}", c.glyphs.arrow)),
        e.by_pid.map(|p| format!("by pid {p}")),
    ];
    facts
        .into_iter()
        .flatten()
        .for_each(|fact| add(fact, Tone::Normal));
    cell
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "time",
            title: Title::Plain("TIME UTC"),
            about: "time of day, UTC",
            priority: 1,
            width: (15, 15),
            align: Align::Left,
            on: true,
            cell: |c, i, width| {
                with(c, i, |e| {
                    Cell::new(
                        format::clock(e.ts_ns).chars().take(width).collect::<String>(),
                        Tone::Dim,
                    )
                })
            },
            key: None,
        },
        Column {
            id: "event",
            title: Title::Plain("EVENT"),
            about: "what happened",
            priority: 0,
            width: (11, 13),
            align: Align::Left,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::new(e.event.name(), tone(e))),
            key: None,
        },
        Column {
            id: "device",
            title: Title::Plain("DEVICE"),
            about: "device",
            priority: 3,
            width: (7, 13),
            align: Align::Left,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(e.device.as_deref().unwrap_or("-"))),
            key: None,
        },
        Column {
            id: "qpn",
            title: Title::Plain("QPN"),
            about: "QP number",
            priority: 1,
            width: (6, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(format::known(e.qpn, |n| n.to_string()))),
            key: None,
        },
        Column {
            id: "type",
            title: Title::Plain("TYPE"),
            about: "QP type",
            priority: 6,
            width: (4, 7),
            align: Align::Left,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(format::known(e.qp_type, |t| t.to_string()))),
            key: None,
        },
        Column {
            id: "pid",
            title: Title::Plain("PID"),
            about: "process that owns the object",
            priority: 4,
            width: (7, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(format::known(e.pid, |p| p.to_string()))),
            key: None,
        },
        Column {
            id: "comm",
            title: Title::Plain("OWNER"),
            about: "its name; brackets: a kernel consumer",
            priority: 2,
            width: (11, 15),
            align: Align::Left,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(e.comm.as_deref().unwrap_or("-"))),
            key: None,
        },
        Column {
            id: "took",
            title: Title::Plain("TOOK"),
            about: "time in the kernel function",
            priority: 5,
            width: (6, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, _| with(c, i, |e| Cell::value(format::known(e.duration_ns, format::nanos))),
            key: None,
        },
        Column {
            id: "what",
            title: Title::Plain("WHAT"),
            about: "states, errno, what was set",
            priority: 0,
            width: (25, 120),
            align: Align::Left,
            on: true,
            cell: |c, i, _| with(c, i, |e| what(c, e)),
            key: None,
        },
    ],
    sort: ("time", false),
    len: |c| c.trace.len(),
    row: |c, i| RowKey::Event(c.trace.number(i)),
    fields: |c, i, visit| {
        let Some(e) = c.trace.get(i) else { return };
        let _ = visit("event", Value::Text(e.event.name()))
            && e.device.as_ref().is_none_or(|d| visit("dev", Value::Text(d)))
            && e.comm.as_ref().is_none_or(|n| visit("comm", Value::Text(n)))
            && e.pid.is_none_or(|p| visit("pid", Value::Num(p.into())))
            && e.qpn.is_none_or(|q| visit("qpn", Value::Num(q.into())))
            && e.to
                .is_none_or(|s| visit("state", Value::Text(s.name().unwrap_or("?"))))
            && e.qp_type
                .is_none_or(|t| visit("type", Value::Text(t.name().unwrap_or("?"))))
            && e.verb.as_ref().is_none_or(|v| visit("verb", Value::Text(v)))
            && e.rc
                .filter(|rc| *rc < 0)
                .and_then(|rc| errno::name(rc.unsigned_abs()))
                .is_none_or(|n| visit("errno", Value::Text(n)));
    },
    field_names: &[
        "event", "dev", "comm", "pid", "qpn", "state", "type", "verb", "errno",
    ],
    faded: |_, _| false,
    empty: |c| {
        no_ebpf(c, "Events come").unwrap_or_else(|| {
            "No event since the start. QPs, MRs, CQs and connections show here as they come and go."
                .to_owned()
        })
    },
};
