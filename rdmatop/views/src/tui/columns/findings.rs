//! What is wrong.

use std::sync::LazyLock;

use rdmatop_base::text;
use rdmatop_model::fields::FINDING;
use rdmatop_model::findings::{Finding, NoFindings, Severity};
use rdmatop_model::judgement::unseen_qps;
use rdmatop_model::snapshot::Snapshot;

use super::super::theme::Tone;
use super::{Cell, Fields, RowKey, Spec};
use crate::line::check::still_looks;

pub(in crate::tui) fn tone(severity: Severity) -> Tone {
    match severity {
        Severity::Critical => Tone::Bad,
        Severity::Warning => Tone::Warn,
        Severity::Info => Tone::Normal,
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        Fields::new(
            FINDING,
            |c, i| c.snapshot.findings.get(i),
            &[
                ("severity", |_, found: &Finding, _| {
                    Cell::new(found.severity.name(), tone(found.severity))
                }),
                ("verdict", |_, found, _| {
                    Cell::new(found.verdict.clone(), Tone::Strong)
                }),
            ],
        )
    }),
    sort: ("severity", false),
    len: |c| c.snapshot.findings.len(),
    row: |c, i| {
        let found = &c.snapshot.findings[i];
        RowKey::Finding(found.id, found.about.clone())
    },
    empty: |c| {
        let blind = (!c.snapshot.health.ebpf.is_on())
            .then_some(" Without eBPF only ports, states of QPs and removals are judged.");
        let quiet = match NoFindings::of(c.snapshot) {
            NoFindings::Whole => still_looking(c.snapshot)
                .unwrap_or_else(|| "Nothing is wrong as far as it can be seen.".to_owned()),
            NoFindings::Starting => "Nothing is found yet: eBPF programs are being attached.".to_owned(),
            NoFindings::Looking(seconds) => {
                format!(
                    "Nothing is found yet: rdmatop has looked for {seconds} s, and most rules need up to {} s.",
                    NoFindings::ENOUGH_S
                )
            }
        };
        let unseen = unseen_qps(c.snapshot);
        let unseen = unseen.map(|words| format!(" But {words}.")).unwrap_or_default();
        format!(
            "{quiet}{unseen}{} docs/findings.md lists what is looked for.",
            blind.unwrap_or_default()
        )
    },
};

/// Which rules have not looked for as long as they compare with, and when the last one has.
fn still_looking(snapshot: &Snapshot) -> Option<String> {
    let rules = still_looks(snapshot);
    let (last, seconds) = rules.iter().max_by_key(|(_, seconds)| *seconds)?;
    let names: Vec<&str> = rules.iter().map(|(id, _)| id.name()).collect();
    Some(format!(
        "Nothing is wrong so far. Rules that compare with minutes before still look: {}; {} until {} after the start.",
        names.join(", "),
        last.name(),
        text::age(*seconds)
    ))
}
