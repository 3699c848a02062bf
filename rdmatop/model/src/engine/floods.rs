//! Processes that make more events than one may.

use std::sync::Arc;

use crate::{
    event::{BUDGET, Event, EventKind},
    input::{Flood, Now},
};

use super::Engine;

impl Engine {
    /// Takes over what was left out of each process, cumulative. Returns an event for each process of which
    /// more failed calls were left out: those are in no other loss. Records that were refused are among those
    /// lost in the ring buffer.
    pub(super) fn floods(&mut self, floods: Vec<Flood>, now: Now) -> Vec<Event> {
        let mut events = Vec::new();
        let total = |floods: &[Flood]| {
            floods.iter().fold(0_u64, |sum, flood| {
                sum.saturating_add(flood.failures).saturating_add(flood.records)
            })
        };
        // Two threads read the counts, and what the slower one read comes late.
        if total(&floods) <= total(&self.floods) {
            return events;
        }
        for flood in &floods {
            let before = self
                .floods
                .iter()
                .find(|known| (known.pid, &known.comm) == (flood.pid, &flood.comm));
            let more = flood
                .failures
                .saturating_sub(before.map_or(0, |known| known.failures));
            if more > 0 {
                events.push(Event {
                    count: Some(more),
                    lost_where: Some(BUDGET),
                    pid: flood.pid,
                    comm: flood.comm.as_deref().map(Arc::from),
                    ..Event::new(EventKind::Lost, now.wall_ns, now.mono_ns)
                });
            }
        }
        self.floods = floods.into();
        events
    }
}
