//! `--hw-counters` as a source that each round asks, so that devices that come later are set, too. The first
//! round comes after rdmatop handles signals, so that all that is set is taken back.

use crate::app::source::{Polled, Wants};
use rdmatop_model::input::Input;
use rdmatop_sources::hw_counters::HwCounters;

/// Sets ports that are new.
pub struct HwCountersSource(pub HwCounters);

impl Polled for HwCountersSource {
    fn name(&self) -> &'static str {
        "the modes of hardware counters"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if !wants.is_sample() {
            return;
        }
        if let Some(report) = self.0.look() {
            out(Input::HwCounters(Box::new(report)));
        }
    }
}
