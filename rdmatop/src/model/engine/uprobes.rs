//! Probes on programs: what they say of themselves, and QPs that lose them.

use std::sync::Arc;

use rdmatop_common::counters::{QpSlot, slot_flag};

use super::{Engine, devices::Devices, processes::Processes, qp::Qp};
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
        let Self {
            qps,
            processes,
            devices,
            ..
        } = self;
        for qp in qps.iter_mut().filter(|qp| qp.probed) {
            qp.probed = false;
            lose(qp, processes, devices);
        }
    }

    /// A QP of which nothing counts posts now, and one of which something does again: what is missing stays missing.
    pub(super) fn follow_gaps(&mut self, uid: u64, slot: &QpSlot) {
        let Self {
            qps,
            processes,
            devices,
            ..
        } = self;
        let Some(qp) = qps.get_mut(uid).filter(|qp| qp.probed) else {
            return;
        };
        if slot.flags & slot_flag::GAP != 0 {
            lose(qp, processes, devices);
        } else if qp.blind {
            qp.blind = false;
            if let Some(flow) = &mut qp.flow {
                flow.blur();
            }
            qp.edit().since_attach = true;
        }
    }

    /// Why probes are off, and what cannot be probed.
    pub(super) fn uprobe_notes(&self) -> impl Iterator<Item = &Cause> {
        let report = self.uprobes.iter();
        report.flat_map(|report| report.off.iter().chain(&report.failures))
    }
}

/// From now on it is not known what a QP posts, and no sum that it belongs to is whole.
fn lose(qp: &mut Qp, processes: &mut Processes, devices: &mut Devices) {
    qp.blind = true;
    qp.touch();
    let (process, device) = (qp.process(), qp.key.device);
    if let Some(process) = process.and_then(|uid| processes.get_mut(uid)) {
        process.flow.get_or_insert_default().short = true;
    }
    if let Some(device) = devices.get_mut(device) {
        device.flow.get_or_insert_default().short = true;
    }
}
