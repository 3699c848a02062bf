//! An event: what happened, and each field with its meaning.

use rdmatop_model::event::Event;
use rdmatop_model::fields::EVENT;

use super::super::columns::{Cell, trace};
use super::super::format;
use super::super::theme::Tone;
use super::Pane;

/// Fields that the first lines show, and those that are for programs alone.
const LEFT_OUT: [&str; 7] = ["time", "event", "what", "schema", "mono_ns", "qp_uid", "finding"];

pub(super) fn fill(pane: &mut Pane<'_>, e: &Event) {
    let head = Cell::new(format!("{} ", e.event.name()), trace::tone(e));
    pane.add(head.and(format!("{} UTC", format::clock(e.ts_ns)), Tone::Dim));
    pane.add(trace::what(e));
    // A field that the JSON object leaves out does not apply; one that is null there is not known.
    let applies = serde_json::to_value(e).unwrap_or_default();
    for field in EVENT.iter().filter(|field| !LEFT_OUT.contains(&field.meta.id)) {
        let value = super::plain_text(field.meta.unit, &(field.get)(e, &pane.state.snapshot));
        if value != format::UNKNOWN || applies.get(field.meta.json).is_some() {
            pane.add(Cell::value(format!("{value:<18} ")).and(field.meta.help, Tone::Dim));
        }
    }
    if let Some(found) = &e.finding {
        super::finding::fill(pane, found);
    }
}
