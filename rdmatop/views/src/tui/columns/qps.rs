//! Queue pairs.

use std::cmp::Ordering;
use std::sync::LazyLock;

use rdmatop_model::fields::QP;
use rdmatop_model::ib::QpState;
use rdmatop_model::judgement::{STUCK_MARK, Stuck};
use rdmatop_model::snapshot::{QpRow, Snapshot};

use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{Cell, Fields, Of, RowKey, Spec, all, no_device};

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
    let name = qp.comm.as_deref().unwrap_or("-").to_owned();
    let tone = if qp.kernel { Tone::Title } else { Tone::Normal };
    if qp.orphan {
        Cell::new(name, tone).and(" orphan", Tone::Warn)
    } else {
        Cell::new(name, tone)
    }
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        Fields::new(
            all(QP, Of::Qp),
            &[
                ("qpn", |c, i, _| {
                    Cell::new(row(c.snapshot, i).qpn.to_string(), Tone::Strong)
                }),
                ("state", |c, i, _| state(row(c.snapshot, i), c.snapshot.mono_ns)),
                ("owner", |c, i, _| owner(row(c.snapshot, i))),
            ],
        )
    }),
    sort: ("tx", true),
    ties: |_, _, _| Ordering::Equal,
    len: |c| c.snapshot.qps.len(),
    row: |c, i| RowKey::Qp(row(c.snapshot, i).uid),
    faded: |c, i| row(c.snapshot, i).exited,
    empty: |c| {
        no_device(c).unwrap_or_else(|| {
            "No QP is known yet. The kernel's own QPs (GSI) appear once a device has been read.".to_owned()
        })
    },
};
