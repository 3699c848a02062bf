//! The maps of the eBPF session, once a round.

use rdmatop_loader::MapSweep;
use rdmatop_model::input::{Input, Skipped};
use rdmatop_sources::clock::now;
use rdmatop_sources::seam::{Polled, Wants};

/// Reads losses and counters through `sweep`, which the manager fills.
pub fn maps(sweep: MapSweep) -> impl Polled {
    // The skipped programs that were sent last.
    let mut sent: Option<Vec<Skipped>> = None;
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| {
        if wants.only_processes {
            return;
        }
        tell_losses(&sweep, out);
        if sweep.uprobes_are_over() {
            out(Input::UprobesOver);
        }
        // Sent before the counts: where the probes have gone there are none any more.
        if let Some(report) = sweep.uprobes() {
            out(Input::Uprobes(Box::new(report)));
        }
        // Whether counters are wanted or not: a destroyed QP's slot becomes free only after it has been read.
        sweep.slots(now().mono_ns, &mut |slots| {
            if wants.counters {
                out(Input::Slots(Box::new(slots)));
            }
        });
        if wants.counters
            && let Some(verbs) = sweep.verbs(false)
        {
            out(Input::Verbs(Box::new(verbs)));
        }
        tell_seen(&sweep, wants, out);
        if wants.last {
            // After the counts: any skip that a count lacks had happened before the count was read.
            tell_losses(&sweep, out);
        }
        let skipped = sweep.skipped();
        if skipped != sent {
            sent.clone_from(&skipped);
            out(Input::Skipped(skipped));
        }
    };
    ("eBPF maps", poll)
}

/// Sends what was lost, and which processes made more events than they may, if any did.
fn tell_losses(sweep: &MapSweep, out: &mut dyn FnMut(Input)) {
    sweep.read_skips();
    let floods = sweep.floods();
    if !floods.is_empty() {
        out(Input::Floods(floods));
    }
    out(Input::Losses(sweep.losses()));
}

/// Sends what SoftRoCE's programs have seen.
fn tell_seen(sweep: &MapSweep, wants: &Wants, out: &mut dyn FnMut(Input)) {
    if wants.is_sample()
        && let Some(seen) = sweep.seen(now().mono_ns)
    {
        out(Input::Seen(seen));
    }
}

/// Reads what SoftRoCE's programs have seen, before the devices are read; [`maps`] reads it again after
/// that. The driver's counters, read in between, can be compared with both.
pub fn seen(sweep: MapSweep) -> impl Polled {
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| tell_seen(&sweep, wants, out);
    ("what SoftRoCE's programs have seen", poll)
}
