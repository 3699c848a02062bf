//! An event as JSON: the model's type is the schema.

use rdmatop_model::event::Event;

/// Appends one event as one line.
pub fn event(out: &mut Vec<u8>, event: &Event) {
    // Writing into memory cannot fail, and an event is always JSON.
    drop(serde_json::to_writer(&mut *out, event));
    out.push(b'\n');
}
