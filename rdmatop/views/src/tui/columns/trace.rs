//! Events, one a line.

use std::sync::LazyLock;

use rdmatop_model::event::{Event, EventKind};
use rdmatop_model::fields::EVENT;
use rdmatop_model::ib::QpState;

use super::super::format;
use super::super::theme::Tone;
use super::{Cell, Fields, RowKey, Spec, finding_tone, no_ebpf};

/// Tone of an event: beginnings good, ends dim, faults loud.
pub(in crate::tui) fn tone(event: &Event) -> Tone {
    let work = event.work();
    let to = event.to.and_then(QpState::name);
    let failed = event.rc.is_some_and(|rc| rc < 0)
        || (event.event == EventKind::QpModify && matches!(to, Some("ERR" | "SQE")))
        || work.wc_status.is_some_and(|status| status.0 != 0)
        || work.cq_full;
    match event.event {
        EventKind::Lost | EventKind::QpError | EventKind::VerbError | EventKind::CmReject => Tone::Bad,
        _ if failed => Tone::Bad,
        EventKind::QpCreate | EventKind::CmConnect | EventKind::CmAccept | EventKind::FindingClear => {
            Tone::Good
        }
        EventKind::QpDestroy
        | EventKind::MrDereg
        | EventKind::CqDestroy
        | EventKind::DevxDestroy
        | EventKind::CmDisconnect => Tone::Dim,
        EventKind::WrDone if work.dropped => Tone::Dim,
        EventKind::QpModify | EventKind::WrPost => Tone::Tx,
        EventKind::CmEvent | EventKind::WrDone => Tone::Rx,
        EventKind::MrReg | EventKind::CqCreate | EventKind::DevxCreate => Tone::Title,
        EventKind::FindingRaise => {
            let finding = event.finding.as_ref();
            finding.map_or(Tone::Warn, |finding| finding_tone(finding.severity))
        }
    }
}

/// What the event says, without its process and its time: the words of its line in a trace.
pub(in crate::tui) fn what(e: &Event) -> Cell {
    let mut text = Vec::new();
    crate::line::detail::write_untimed(&mut text, e);
    let tone = if tone(e) == Tone::Bad {
        Tone::Bad
    } else {
        Tone::Normal
    };
    Cell::new(String::from_utf8_lossy(text.trim_ascii_end()).into_owned(), tone)
}

/// The table.
pub(super) static SPEC: Spec = Spec {
    fields: LazyLock::new(|| {
        let mut fields = Fields::new(
            EVENT,
            |c, i| c.trace.get(i),
            &[
                ("time", |_, e: &Event, width| {
                    let clock: String = format::clock(e.ts_ns).chars().take(width).collect();
                    Cell::new(clock, Tone::Dim)
                }),
                ("event", |_, e, _| Cell::new(e.event.name(), tone(e))),
                ("what", |_, e, _| what(e)),
            ],
        );
        // Events are always in the order of their times.
        fields
            .columns
            .iter_mut()
            .for_each(|column| column.sortable = false);
        fields
    }),
    sort: ("time", false),
    len: |c| c.trace.len(),
    row: |c, i| RowKey::Event(c.trace.number(i)),
    empty: |c| {
        no_ebpf(c, "Events come").unwrap_or_else(|| {
            "No event since the start. QPs, MRs, CQs and connections show here as they come and go."
                .to_owned()
        })
    },
};
