//! `--hw-counters` as a source that each round asks, so that devices that come later are set, too. The first
//! round comes after rdmatop handles signals, so that all that is set is taken back.

use rdmatop_model::input::Input;
use rdmatop_sources::hw_counters::HwCounters;
use rdmatop_sources::seam::{Polled, Wants};

/// Sets ports that are new.
pub fn hw_counters(ports: HwCounters) -> impl Polled {
    let poll = move |wants: &Wants, out: &mut dyn FnMut(Input)| {
        if wants.is_sample()
            && let Some(report) = ports.look()
        {
            out(Input::HwCounters(Box::new(report)));
        }
    };
    ("the modes of hardware counters", poll)
}
