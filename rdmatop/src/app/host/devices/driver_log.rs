//! What drivers log while their devices are read.

use super::entry::Entry;
use rdmatop_model::{
    engine::concerns,
    input::{Input, LoggedError},
};
use rdmatop_sources::{clock::now, kernel_log::KernelLog};

/// Only what is logged within this time, ns, is taken for a result of reading: where reading takes most of
/// the time, whatever a driver logs comes while it is read.
const AMID: u64 = 100_000_000;

pub(super) struct DriverLog {
    log: KernelLog,
    /// Whether the log could be read at the last look; `None` before the first.
    logs: Option<bool>,
}

impl DriverLog {
    pub(super) fn of(log: KernelLog) -> Self {
        Self { log, logs: None }
    }

    /// Sends what drivers have logged; `read_ns`: since just before the devices were read, which was then.
    pub(super) fn look(&mut self, entries: &mut [Entry], read_ns: Option<u64>, out: &mut dyn FnMut(Input)) {
        let now_ns = now().mono_ns;
        // Lines that the last look left may be older than the reading.
        let is_behind = self.log.is_behind();
        let amid = !is_behind && read_ns.is_some_and(|read_ns| now_ns.saturating_sub(read_ns) < AMID);
        let mut errors = self.log.errors();
        let lines = errors.as_deref_mut().unwrap_or_default();
        for entry in entries {
            let of_it = |error: &LoggedError| concerns(error, &entry.shown, entry.pci.as_deref());
            let logged = lines.iter().any(of_it);
            if entry.harm.logged(amid, logged, now_ns) {
                // What is critical stays a finding: that a reading shows it does not make the device work.
                for error in &mut *lines {
                    error.ours |= of_it(error) && !error.critical;
                }
            }
        }
        let is_new = self.logs.replace(errors.is_ok()) != Some(errors.is_ok());
        if is_new || errors.as_ref().is_ok_and(|errors| !errors.is_empty()) {
            out(Input::Logged(errors.map_err(|cause| Box::new(cause.clone()))));
        }
    }
}
