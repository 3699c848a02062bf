//! Probes on programs: what they say of themselves, and QPs that lose them.

use std::sync::Arc;

use rdmatop_common::counters::QpSlot;

use super::{Engine, qp::Owner, traffic::sums};
use crate::{cause::Cause, input::UprobesReport};

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

    /// Once the probes are off, what their QPs do is not known any more, and neither is any sum that they
    /// belong to.
    fn lose_probes(&mut self) {
        for qp in self.qps.iter_mut().filter(|qp| qp.probed) {
            qp.probed = false;
            qp.blind = true;
            qp.touch();
            let of = (qp.process(), qp.key.device);
            sums(&mut self.processes, &mut self.devices, of).for_each(|sum| sum.short = true);
        }
    }

    /// The last reading of a QP in whose counts something is missing, or in which nothing was counted at all
    /// although it may have posted: so it is with the sum of its process from now on.
    pub(super) fn left_short(&mut self, slot: &QpSlot) {
        let uid = self.qps.born_at(slot.qp, slot.born_ns);
        let process = if let Some(qp) = uid.and_then(|uid| self.qps.get(uid)) {
            qp.process()
        } else {
            let owner = Owner {
                pid: Some(slot.owner_pid).filter(|pid| *pid != 0),
                start_ns: slot.owner_start_ns,
                ..Owner::default()
            };
            self.processes.of(owner, slot.born_ns).process
        };
        if let Some(process) = process.and_then(|uid| self.processes.get_mut(uid)) {
            process.lacks = true;
        }
    }

    /// Why probes are off, and what cannot be probed.
    pub(super) fn uprobe_notes(&self) -> impl Iterator<Item = &Cause> {
        let report = self.uprobes.iter();
        report.flat_map(|report| report.off.iter().chain(&report.failures))
    }
}
