//! The maps of the eBPF session, once a round.

use crate::{
    app::source::{Polled, Wants},
    model::input::{Input, Skipped},
    source::{clock::now, ebpf::MapSweep},
};

/// Reads losses and counters.
pub struct MapSource {
    sweep: MapSweep,
    /// The skipped programs that were sent last.
    skipped: Option<Vec<Skipped>>,
}

impl MapSource {
    /// Reads through `sweep`, which the manager fills.
    pub fn new(sweep: MapSweep) -> Self {
        Self { sweep, skipped: None }
    }

    /// Sends which programs were skipped, when that has changed.
    fn tell_skipped(&mut self, out: &mut dyn FnMut(Input)) {
        let skipped = self.sweep.skipped();
        if skipped != self.skipped {
            self.skipped.clone_from(&skipped);
            out(Input::Skipped(skipped));
        }
    }
}

impl Polled for MapSource {
    fn name(&self) -> &'static str {
        "eBPF maps"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.only_processes {
            return;
        }
        self.sweep.look_for_skips();
        out(Input::Losses(self.sweep.losses()));
        // Whether counters are wanted or not: a destroyed QP's slot becomes free only after it has been read.
        self.sweep.slots(now().mono_ns, &mut |slots| {
            if wants.counters {
                out(Input::Slots(Box::new(slots)));
            }
        });
        if wants.counters
            && let Some(verbs) = self.sweep.verbs()
        {
            out(Input::Verbs(Box::new(verbs)));
        }
        if wants.last {
            // After the counts: any skip that a count lacks had happened before the count was read.
            self.sweep.look_for_all_skips();
            out(Input::Losses(self.sweep.losses()));
        }
        self.tell_skipped(out);
    }
}
