//! What became of each eBPF program.

use crate::model::input::{ProbeVerdict, Verdict};
use crate::model::snapshot::Snapshot;

use super::super::theme::Tone;
use super::{Align, Cell, Column, Key, RowKey, Spec, Title, Value, no_ebpf};

fn row(s: &Snapshot, at: usize) -> &ProbeVerdict {
    &s.health.probes[at]
}

/// A verdict as a word and a tone.
pub(in crate::view::tui) fn word(verdict: Verdict) -> (&'static str, Tone) {
    match verdict {
        Verdict::Ok => ("ok", Tone::Good),
        Verdict::Partial => ("partial", Tone::Warn),
        Verdict::NotApplicable => ("no need", Tone::Dim),
        Verdict::Unsupported => ("unsupported", Tone::Warn),
        Verdict::Broken => ("broken", Tone::Bad),
    }
}

fn rank(verdict: Verdict) -> f64 {
    match verdict {
        Verdict::Broken => 0.0,
        Verdict::Unsupported => 1.0,
        Verdict::Partial => 2.0,
        Verdict::NotApplicable => 3.0,
        Verdict::Ok => 4.0,
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    columns: &[
        Column {
            id: "verdict",
            title: Title::Plain("VERDICT"),
            about: "ok, partial, no need (nothing here for it), unsupported, broken",
            priority: 0,
            width: (11, 11),
            align: Align::Left,
            on: true,
            cell: |c, i, _| {
                let (text, tone) = word(row(c.snapshot, i).verdict);
                Cell::new(text, tone)
            },
            key: Some(|c, i| Key::Num(rank(row(c.snapshot, i).verdict))),
        },
        Column {
            id: "program",
            title: Title::Plain("PROGRAM"),
            about: "eBPF program",
            priority: 1,
            width: (18, 26),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::new(row(c.snapshot, i).program.clone(), Tone::Strong),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).program)),
        },
        Column {
            id: "hook",
            title: Title::Plain("HOOK"),
            about: "what it hooks",
            priority: 4,
            width: (20, 36),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).hook.clone()),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).hook)),
        },
        Column {
            id: "gives",
            title: Title::Plain("GIVES"),
            about: "what it shows you",
            priority: 2,
            width: (20, 44),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::value(row(c.snapshot, i).gives.clone()),
            key: Some(|c, i| Key::Text(&row(c.snapshot, i).gives)),
        },
        Column {
            id: "reason",
            title: Title::Plain("REASON"),
            about: "why it is not ok",
            priority: 0,
            width: (14, 90),
            align: Align::Left,
            on: true,
            cell: |c, i, _| Cell::new(row(c.snapshot, i).reason().unwrap_or_default(), Tone::Warn),
            key: Some(|c, i| {
                let first = row(c.snapshot, i).causes.first();
                first.map_or(Key::None, |cause| Key::Text(&cause.why))
            }),
        },
    ],
    sort: ("verdict", false),
    len: |c| c.snapshot.health.probes.len(),
    row: |_, i| RowKey::Probe(i),
    fields: |c, i, visit| {
        let p = row(c.snapshot, i);
        let _ = visit("program", Value::Text(&p.program))
            && visit("hook", Value::Text(&p.hook))
            && visit("verdict", Value::Text(word(p.verdict).0));
    },
    field_names: &["program", "hook", "verdict"],
    faded: |_, _| false,
    empty: |c| {
        no_ebpf(c, "The programs of this table are").unwrap_or_else(|| "No program was planned.".to_owned())
    },
};
