//! An event, every field by its JSON name.

use rdmatop_model::event::Event;

use super::super::columns::{Cell, trace};
use super::super::format;
use super::super::state::State;
use super::super::theme::Tone;

/// Lines for an event.
pub(super) fn lines(state: &State, e: &Event, width: usize) -> Vec<Cell> {
    let mut out = vec![
        Cell::new(format!("{} ", e.event.name()), trace::tone(e))
            .and(format::clock(e.ts_ns), Tone::Dim)
            .and(" UTC", Tone::Dim),
        trace::what(&state.ctx(), e),
    ];
    // The JSON object is the complete list of fields; a field that it leaves out does not apply.
    if let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(e) {
        for (name, value) in fields.iter().filter(|(name, _)| *name != "finding") {
            let value = match value {
                serde_json::Value::Null => format::UNKNOWN.to_owned(),
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let mut line = Cell::new(format!("{name:<14}"), Tone::Dim);
            line.0.extend(Cell::value(value).0);
            out.push(line);
        }
    }
    if let Some(found) = &e.finding {
        out.extend(super::finding::lines(state, found, width));
    }
    out
}
