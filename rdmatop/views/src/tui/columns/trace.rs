//! Events, one a line.

use std::cmp::Ordering;
use std::sync::LazyLock;

use rdmatop_base::errno;
use rdmatop_model::event::{BUDGET, Event, EventKind};
use rdmatop_model::fields::EVENT;

use super::super::format;
use super::super::theme::Tone;
use super::{Cell, Ctx, Fields, Of, RowKey, Spec, all, finding_tone, no_ebpf};

/// Tone of an event: beginnings good, ends dim, faults loud.
pub(in crate::tui) fn tone(event: &Event) -> Tone {
    let failed = event.rc.is_some_and(|rc| rc < 0);
    match event.event {
        EventKind::Lost | EventKind::QpError | EventKind::VerbError | EventKind::CmReject => Tone::Bad,
        _ if failed => Tone::Bad,
        EventKind::QpModify
            if event
                .to
                .and_then(rdmatop_model::ib::QpState::name)
                .is_some_and(|s| matches!(s, "ERR" | "SQE")) =>
        {
            Tone::Bad
        }
        EventKind::QpCreate | EventKind::CmConnect | EventKind::CmAccept | EventKind::FindingClear => {
            Tone::Good
        }
        EventKind::QpDestroy
        | EventKind::MrDereg
        | EventKind::CqDestroy
        | EventKind::DevxDestroy
        | EventKind::CmDisconnect => Tone::Dim,
        EventKind::WrDone
            if event.work().wc_status.is_some_and(|status| status.0 != 0) || event.work().cq_full =>
        {
            Tone::Bad
        }
        EventKind::WrDone if event.work().dropped => Tone::Dim,
        EventKind::QpModify | EventKind::WrPost => Tone::Tx,
        EventKind::CmEvent | EventKind::WrDone => Tone::Rx,
        EventKind::MrReg | EventKind::CqCreate | EventKind::DevxCreate => Tone::Title,
        EventKind::FindingRaise => {
            let finding = event.finding.as_ref();
            finding.map_or(Tone::Warn, |finding| finding_tone(finding.severity))
        }
    }
}

/// A work request, as in its event line but without the time.
fn work(event: &Event) -> String {
    let mut text = Vec::new();
    let without_time = Event {
        duration_ns: None,
        ..event.clone()
    };
    crate::line::detail::write(&mut text, &without_time);
    String::from_utf8_lossy(&text).into_owned()
}

/// What the event says, without its process and its time.
pub(in crate::tui) fn what(c: &Ctx<'_>, e: &Event) -> Cell {
    let mut cell = Cell::default();
    let mut add = |text: String, tone: Tone| {
        let gap = if cell.0.is_empty() { "" } else { " " };
        cell.0.push((format!("{gap}{text}").into(), tone));
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
    if e.event.is_on_request() {
        add(work(e), Tone::Normal);
    }
    if let Some(kind) = e.devx {
        add(kind.name().to_owned(), Tone::Normal);
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
    if let Some(event) = e.cm().cm_event {
        add(event.to_string(), Tone::Normal);
    }
    if let Some(status) = e.cm().status.filter(|s| *s != 0) {
        add(format!("status {status}"), Tone::Warn);
    }
    if let (EventKind::Lost, Some(count)) = (e.event, e.count) {
        add(
            if e.lost_where == Some(BUDGET) {
                format!("{} failed calls not shown one by one", format::exact(count))
            } else {
                format!(
                    "{} records lost at {}",
                    format::exact(count),
                    e.lost_where.unwrap_or("?")
                )
            },
            Tone::Bad,
        );
    }
    if let Some(finding) = &e.finding {
        if e.event == EventKind::FindingClear {
            let lasted = rdmatop_base::text::age(finding.lasted_s(e.mono_ns));
            add(format!("over after {lasted}:"), Tone::Good);
        }
        add(finding.verdict.clone(), Tone::Normal);
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
        e.cm().cm_id.map(|n| format!("id {n}")),
        e.cm().src.map(|a| a.to_string()),
        e.cm().dst.map(|a| format!("{} {a}", c.glyphs.arrow)),
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
    fields: LazyLock::new(|| {
        Fields::new(
            all(EVENT, Of::Event),
            |c, i| c.trace.get(i),
            &[
                ("time", |_, e: &Event, width| {
                    let clock: String = format::clock(e.ts_ns).chars().take(width).collect();
                    Cell::new(clock, Tone::Dim)
                }),
                ("event", |_, e, _| Cell::new(e.event.name(), tone(e))),
                ("what", |c, e, _| what(c, e)),
            ],
        )
    }),
    sort: ("time", false),
    ties: |_, _, _| Ordering::Equal,
    len: |c| c.trace.len(),
    row: |c, i| RowKey::Event(c.trace.number(i)),
    faded: |_, _| false,
    empty: |c| {
        no_ebpf(c, "Events come").unwrap_or_else(|| {
            "No event since the start. QPs, MRs, CQs and connections show here as they come and go."
                .to_owned()
        })
    },
};
