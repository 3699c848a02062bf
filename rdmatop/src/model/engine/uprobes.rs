//! Probes on programs: what they say of themselves, and QPs that lose them.

use std::sync::Arc;

use super::Engine;
use crate::model::{cause::Cause, input::UprobesReport};

impl Engine {
    /// Folds in a report.
    pub(super) fn uprobes(&mut self, report: UprobesReport) {
        let off = report.off.is_some();
        if self.uprobes.as_deref() != Some(&report) {
            self.uprobes = Some(Arc::new(report));
        }
        if off {
            self.lose_probes();
        }
    }

    /// The user wants no more probes.
    pub(super) fn uprobes_over(&mut self) {
        self.uprobes = None;
        self.lose_probes();
    }

    /// Once the probes are off, what their QPs do is not known any more, and neither is any sum that they belong to.
    fn lose_probes(&mut self) {
        for qp in self.qps.iter_mut().filter(|qp| qp.probed) {
            qp.probed = false;
            qp.blind = true;
            qp.touch();
            let (process, device) = (qp.process(), qp.key.device);
            if let Some(process) = process.and_then(|uid| self.processes.get_mut(uid)) {
                process.flow.get_or_insert_default().short = true;
            }
            if let Some(device) = self.devices.get_mut(device) {
                device.flow.get_or_insert_default().short = true;
            }
        }
    }

    /// Why probes are off, and what cannot be probed.
    pub(super) fn uprobe_notes(&self) -> impl Iterator<Item = &Cause> {
        let report = self.uprobes.iter();
        report.flat_map(|report| report.off.iter().chain(&report.failures))
    }
}
