//! Queue pairs.

use std::sync::LazyLock;

use rdmatop_model::fields::QP;
use rdmatop_model::ib::QpState;
use rdmatop_model::judgement::{STUCK_MARK, Stuck};
use rdmatop_model::snapshot::QpRow;

use super::super::format;
use super::super::theme::{Tone, stuck_tone};
use super::{Cell, Fields, RowKey, Spec, no_device};

/// The state; that of a stuck QP is coloured and has a mark, for eyes and terminals without colours.
fn state(qp: &QpRow, mono_ns: u64) -> Cell {
    let text = format::known(qp.state, |state| state.to_string());
    match (Stuck::of(qp, mono_ns), qp.state.and_then(QpState::name)) {
        (Some(stuck), _) => Cell::new(format!("{text:<4}{STUCK_MARK}"), stuck_tone(stuck)),
        (None, Some("RTS")) => Cell::new(text, Tone::Good),
        (None, Some("SQD")) => Cell::new(text, Tone::Warn),
        (None, _) => Cell::value(text),
    }
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
            QP,
            |c, i| c.snapshot.qps.get(i).map(|qp| &**qp),
            &[
                ("qpn", |_, qp: &QpRow, _| {
                    let number = qp.number().map_or_else(|| "-".to_owned(), |qpn| qpn.to_string());
                    Cell::new(number, Tone::Strong)
                }),
                ("state", |c, qp, _| state(qp, c.snapshot.mono_ns)),
                ("owner", |_, qp, _| owner(qp)),
            ],
        )
    }),
    sort: ("tx", true),
    len: |c| c.snapshot.qps.len(),
    row: |c, i| RowKey::Qp(c.snapshot.qps[i].uid),
    empty: |c| {
        no_device(c).unwrap_or_else(|| {
            "No QP is known yet. The kernel's own QPs (GSI) appear once a device has been read.".to_owned()
        })
    },
};
