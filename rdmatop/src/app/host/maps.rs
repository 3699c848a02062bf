//! The maps of the eBPF session, once a round.

use crate::{
    app::{
        source::{Source, Wants},
        time::now,
    },
    model::input::Input,
    source::ebpf::MapSweep,
};

/// Sweeps losses and counters.
pub struct MapSource {
    sweep: MapSweep,
}

impl MapSource {
    /// Reads through `sweep`, which the manager fills.
    pub fn new(sweep: MapSweep) -> Self {
        Self { sweep }
    }
}

impl Source for MapSource {
    fn name(&self) -> &'static str {
        "eBPF maps"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        out(Input::Losses(self.sweep.losses()));
        if wants.counters
            && let Some(verbs) = self.sweep.verbs(now().mono_ns)
        {
            out(Input::Verbs(Box::new(verbs)));
        }
        // In a trace too: the sweep gives the slots of destroyed QPs back to the kernel side.
        if let Some(slots) = self.sweep.slots(now().mono_ns)
            && wants.counters
        {
            out(Input::Slots(Box::new(slots)));
        }
    }
}
