//! The eBPF programs and their verdicts.

use std::sync::LazyLock;

use rdmatop_model::fields::PROBE;
use rdmatop_model::input::{ProbeVerdict, Verdict};

use super::super::theme::Tone;
use super::{Cell, Fields, RowKey, Spec, no_ebpf};

pub(in crate::tui) fn word(verdict: Verdict) -> (&'static str, Tone) {
    match verdict {
        Verdict::Ok => ("ok", Tone::Good),
        Verdict::Partial => ("partial", Tone::Warn),
        Verdict::NotApplicable => ("no need", Tone::Dim),
        Verdict::Unsupported => ("unsupported", Tone::Warn),
        Verdict::Broken => ("broken", Tone::Bad),
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        Fields::new(
            PROBE,
            |c, i| c.snapshot.health.probes.get(i),
            &[
                ("verdict", |_, p: &ProbeVerdict, _| {
                    let (text, tone) = word(p.verdict);
                    Cell::new(text, tone)
                }),
                ("program", |_, p, _| Cell::new(p.program.clone(), Tone::Strong)),
                ("reason", |_, p, _| {
                    Cell::new(p.reason().unwrap_or_default(), Tone::Warn)
                }),
            ],
        )
    }),
    sort: ("verdict", false),
    len: |c| c.snapshot.health.probes.len(),
    row: |_, i| RowKey::Probe(i),
    empty: |c| {
        no_ebpf(c, "The programs of this table are").unwrap_or_else(|| "No program was planned.".to_owned())
    },
};
