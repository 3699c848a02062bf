//! The maps of the eBPF session, once a round.

use crate::app::source::{Polled, Wants};
use rdmatop_loader::MapSweep;
use rdmatop_model::input::{Input, Skipped};
use rdmatop_sources::clock::now;

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

    /// Sends what was lost, and which processes made more events than they may, if any did.
    fn tell_losses(&mut self, out: &mut dyn FnMut(Input)) {
        self.sweep.read_skips();
        let floods = self.sweep.floods();
        if !floods.is_empty() {
            out(Input::Floods(floods));
        }
        out(Input::Losses(self.sweep.losses()));
    }
}

/// Reads what SoftRoCE's programs have seen, before the devices are read; [`MapSource`] reads it again after
/// that. The driver's counters, read in between, can be compared with both.
pub struct SeenSource(pub MapSweep);

impl Polled for SeenSource {
    fn name(&self) -> &'static str {
        "what SoftRoCE's programs have seen"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_sample()
            && let Some(seen) = self.0.seen(now().mono_ns)
        {
            out(Input::Seen(seen));
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
        self.tell_losses(out);
        if self.sweep.uprobes_are_over() {
            out(Input::UprobesOver);
        }
        // Sent before the counts: where the probes have gone there are none any more.
        if let Some(report) = self.sweep.uprobes() {
            out(Input::Uprobes(Box::new(report)));
        }
        // Whether counters are wanted or not: a destroyed QP's slot becomes free only after it has been read.
        self.sweep.slots(now().mono_ns, &mut |slots| {
            if wants.counters {
                out(Input::Slots(Box::new(slots)));
            }
        });
        if wants.counters
            && let Some(verbs) = self.sweep.verbs(false)
        {
            out(Input::Verbs(Box::new(verbs)));
        }
        if wants.is_sample()
            && let Some(seen) = self.sweep.seen(now().mono_ns)
        {
            out(Input::Seen(seen));
        }
        if wants.last {
            // After the counts: any skip that a count lacks had happened before the count was read.
            self.tell_losses(out);
        }
        self.tell_skipped(out);
    }
}
