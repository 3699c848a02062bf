//! Verb calls: process by verb.

use std::sync::LazyLock;

use rdmatop_base::errno;
use rdmatop_base::order::Ordered as _;
use rdmatop_model::fields::VERB;
use rdmatop_model::snapshot::VerbRow;

use super::super::format;
use super::super::theme::Tone;
use super::{Cell, Fields, RowKey, Spec, no_ebpf, trouble};

fn errors(v: &VerbRow, width: usize) -> Cell {
    let mut cell = trouble(v.errors.as_ref(), width);
    // A call that a library makes to probe fails by design: it is shown, but not as a fault.
    if v.probe && v.errors.is_some_and(|errors| errors.total > 0) {
        cell.0.iter_mut().for_each(|(_, tone)| *tone = Tone::Dim);
    }
    cell
}

fn errnos(v: &VerbRow) -> Cell {
    if v.errnos.is_empty() {
        return Cell::default();
    }
    let mut list: Vec<_> = v.errnos.iter().collect();
    list.order_by_key(|(_, n)| std::cmp::Reverse(*n));
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
    fields: LazyLock::new(|| {
        Fields::new(
            VERB,
            |c, i| c.snapshot.verbs.get(i),
            &[
                ("verb", |_, v: &VerbRow, _| {
                    Cell::new(v.verb.to_string(), Tone::Strong)
                }),
                ("errors", |_, v, width| errors(v, width)),
                ("errnos", |_, v, _| errnos(v)),
            ],
        )
    }),
    sort: ("rate", true),
    len: |c| c.snapshot.verbs.len(),
    row: |c, i| {
        let v = &c.snapshot.verbs[i];
        RowKey::Verb(v.process_uid, v.pid, v.verb.clone())
    },
    empty: |c| {
        no_ebpf(c, "Verb calls come").unwrap_or_else(|| {
            "No verb call seen since the start. A row appears when a process opens, makes or registers something."
                .to_owned()
        })
    },
};
