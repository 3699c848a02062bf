//! Verb calls: process by verb.

use crate::model::snapshot::{Latency, Snapshot, VerbRow};

use super::super::theme::Tone;
use super::super::{errno, format};
use super::{Align, Cell, Column, Key, RowKey, Spec, Title, Value, no_ebpf};

fn row(s: &Snapshot, at: usize) -> &VerbRow {
    &s.verbs[at]
}

fn errors(v: &VerbRow, width: usize) -> Cell {
    // A library's probe fails by design: shown, but not as a fault.
    let tone = match &v.errors {
        None => Tone::Dim,
        Some(errors) if errors.total == 0 => Tone::Normal,
        Some(_) if v.probe => Tone::Dim,
        Some(errors) if errors.rate.is_some_and(|r| r > 0.0) => Tone::Bad,
        Some(_) => Tone::Warn,
    };
    Cell::new(format::total_in(v.errors.as_ref(), width), tone)
}

fn time(s: &Snapshot, at: usize, of: fn(&Latency) -> Option<u64>) -> Option<u64> {
    row(s, at).latency.as_ref().and_then(of)
}

fn errnos(v: &VerbRow) -> Cell {
    if v.errnos.is_empty() {
        return Cell::default();
    }
    let mut list: Vec<_> = v.errnos.iter().collect();
    list.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let text: Vec<_> = list
        .iter()
        .map(|(e, n)| format!("{} x{}", errno::text(*e), format::count(*n)))
        .collect();
    let probe = if v.probe { "probe: " } else { "" };
    Cell::new(
        format!("{probe}{}", text.join(" ")),
        if v.probe { Tone::Dim } else { Tone::Warn },
    )
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "pid",
            title: Title::Plain("PID"),
            about: "process id",
            priority: 1,
            width: (7, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).pid.to_string()),
            key: Some(|c, i| Key::Num(row(c.snapshot, i).pid.into())),
        },
        Column {
            id: "comm",
            title: Title::Plain("COMMAND"),
            about: "process name",
            priority: 0,
            width: (11, 24),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).comm.as_deref().unwrap_or("-")),
            key: Some(|c, i| Key::text(row(c.snapshot, i).comm.as_ref())),
        },
        Column {
            id: "verb",
            title: Title::Plain("VERB"),
            about: "verb",
            priority: 0,
            width: (14, 28),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::new(row(c.snapshot, i).verb.to_string(), Tone::Strong),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).verb)),
        },
        Column {
            id: "rate",
            title: Title::Plain("CALL/s"),
            about: "calls per second",
            priority: 0,
            width: (6, 8),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::rate(Some(&row(c.snapshot, i).calls))),
            key: Some(|c, i| Key::rate(Some(&row(c.snapshot, i).calls))),
        },
        Column {
            id: "calls",
            title: Title::Plain("CALLS"),
            about: "calls, total",
            priority: 2,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, w| Cell::value(format::count_in(row(c.snapshot, i).calls.total, w)),
            key: Some(|c, i| Key::Num(row(c.snapshot, i).calls.total as f64)),
        },
        Column {
            id: "mean",
            title: Title::Plain("MEAN"),
            about: "mean time in the kernel",
            priority: 3,
            width: (6, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(time(c.snapshot, i, |l| l.mean_ns), format::nanos)),
            key: Some(|c, i| Key::num(time(c.snapshot, i, |l| l.mean_ns).map(|n| n as f64))),
        },
        Column {
            id: "p99",
            title: Title::Plain("P99"),
            about: "time in the kernel: 99 of 100 take less",
            priority: 3,
            width: (6, 7),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::below(time(c.snapshot, i, |l| l.p99_ns))),
            key: Some(|c, i| Key::num(time(c.snapshot, i, |l| l.p99_ns).map(|n| n as f64))),
        },
        Column {
            id: "max",
            title: Title::Plain("MAX"),
            about: "longest time in the kernel",
            priority: 5,
            width: (6, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, _| Cell::value(format::known(time(c.snapshot, i, |l| l.max_ns), format::nanos)),
            key: Some(|c, i| Key::num(time(c.snapshot, i, |l| l.max_ns).map(|n| n as f64))),
        },
        Column {
            id: "errors",
            title: Title::Plain("ERR"),
            about: "calls that failed, total; - where only calls are counted",
            priority: 1,
            width: (4, 6),
            align: Align::Right,
            on: true,
            cell: |c, i, w| errors(row(c.snapshot, i), w),
            key: Some(|c, i| Key::total(row(c.snapshot, i).errors.as_ref())),
        },
        Column {
            id: "errnos",
            title: Title::Plain("ERRNO"),
            about: "why they failed; probe: fails by design",
            priority: 2,
            width: (8, 60),
            align: Align::Left,
            on: true,
            cell: |c, i, _| errnos(row(c.snapshot, i)),
            key: Some(|c, i| Key::total(row(c.snapshot, i).errors.as_ref())),
        },
    ],
    sort: ("rate", true),
    len: |c| c.snapshot.verbs.len(),
    row: |c, i| {
        let v = row(c.snapshot, i);
        RowKey::Verb(v.process_uid, v.pid, v.verb.clone())
    },
    fields: |c, i, visit| {
        let v = row(c.snapshot, i);
        let _ = visit("pid", Value::Num(v.pid.into()))
            && visit("verb", Value::Text(&v.verb))
            && v.comm.as_ref().is_none_or(|n| visit("comm", Value::Text(n)))
            && v.errnos
                .iter()
                .all(|(e, _)| errno::name(*e).is_none_or(|n| visit("errno", Value::Text(n))));
    },
    field_names: &["pid", "verb", "comm", "errno"],
    faded: |_, _| false,
    empty: |c| {
        no_ebpf(c, "Verb calls come").unwrap_or_else(|| {
            "No verb call seen since the start. A row appears when a process opens, makes or registers something."
                .to_owned()
        })
    },
};
