//! An event: what happened, and each field with its meaning.

use rdmatop_model::event::Event;
use rdmatop_model::fields::EVENT;

use super::super::columns::{Cell, trace};
use super::super::format;
use super::super::state::State;
use super::super::theme::Tone;

/// Fields that the first lines show, and those that are for programs alone.
const LEFT_OUT: [&str; 7] = ["time", "event", "what", "schema", "mono_ns", "qp_uid", "finding"];

pub(super) fn lines(state: &State, e: &Event, width: usize) -> Vec<Cell> {
    let mut out = vec![
        Cell::new(format!("{} ", e.event.name()), trace::tone(e))
            .and(format::clock(e.ts_ns), Tone::Dim)
            .and(" UTC", Tone::Dim),
        trace::what(&state.ctx(), e),
    ];
    // A field that the JSON object leaves out does not apply; one that is null there is not known.
    let applies = serde_json::to_value(e).unwrap_or_default();
    for field in EVENT.iter().filter(|field| !LEFT_OUT.contains(&field.meta.id)) {
        let value = super::plain_text(field.meta.unit, &(field.get)(e, &state.snapshot));
        if value != format::UNKNOWN || applies.get(field.meta.json).is_some() {
            let mut line = Cell::value(format!("{value:<18} "));
            line.0.push((field.meta.help.into(), Tone::Dim));
            out.push(line);
        }
    }
    if let Some(found) = &e.finding {
        out.extend(super::finding::lines(state, found, width));
    }
    out
}
