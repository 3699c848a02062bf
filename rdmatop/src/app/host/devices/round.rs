//! The results of one round of reading, and the inputs made from them.

use std::collections::BTreeMap;

use super::{job::DeviceAnswer, present::Present};
use rdmatop_model::{
    cause::Cause,
    input::{
        CountersSample, DeviceGroups, DeviceReading, DevicesSample, Input, PathReading, PsnReading, QpsSample,
    },
};
use rdmatop_sources::seam::Wants;

/// A round, or the answers that arrived late before it.
#[derive(Default)]
pub(super) struct Round {
    /// The beginning of the round.
    pub(super) before_ns: u64,
    /// The mode prints once: what is missing now stays missing.
    pub(super) once: bool,
    /// All devices were listed: a device that is not among them is gone.
    pub(super) complete: bool,
    /// A device is not the one that was listed.
    pub(super) other: bool,
    /// QPs are wanted, even where there are none.
    qps_wanted: bool,
    listed: Vec<DeviceReading>,
    counted: CountersSample,
    /// Number of devices whose regions are known with their owners.
    owned: usize,
    sums: Option<BTreeMap<u32, u64>>,
    dumps: Vec<QpsSample>,
    groups: Vec<DeviceGroups>,
    psns: Vec<PsnReading>,
    paths: Vec<PathReading>,
}

impl Round {
    /// A round that has found nothing yet.
    pub(super) fn new(before_ns: u64, wants: &Wants) -> Self {
        Self {
            before_ns,
            once: wants.once,
            qps_wanted: wants.qps,
            ..Self::default()
        }
    }

    /// Answers that arrived between two rounds.
    pub(super) fn late(before_ns: u64) -> Self {
        Self::new(before_ns, &Wants::default())
    }

    /// Whether there is nothing to send.
    pub(super) fn is_empty(&self) -> bool {
        !self.lists()
            && !self.qps_wanted
            && self.counted.ports.is_empty()
            && self.counted.changed.is_empty()
            && self.sums.is_none()
            && self.dumps.is_empty()
            && self.groups.is_empty()
            && self.psns.is_empty()
            && self.paths.is_empty()
    }

    /// Whether it sends which devices there are.
    pub(super) fn lists(&self) -> bool {
        self.complete || !self.listed.is_empty()
    }

    /// Counts a device at rest, which was not asked: it has no memory regions.
    pub(super) fn rests(&mut self) {
        self.owned += 1;
    }

    pub(super) fn add(&mut self, answer: DeviceAnswer) {
        self.other |= answer.other;
        self.listed.extend(answer.all);
        self.counted.changed.extend(answer.changed);
        self.counted.ports.extend(answer.ports);
        self.owned += usize::from(answer.rests || answer.mr_bytes.is_some());
        if let Some(of) = answer.mr_bytes {
            let sums = self.sums.get_or_insert_default();
            for (pid, bytes) in of {
                let sum = sums.entry(pid).or_insert(0_u64);
                *sum = sum.saturating_add(bytes);
            }
        }
        self.dumps.extend(answer.qps);
        self.groups.extend(answer.groups);
        self.psns.extend(answer.psns);
        self.paths.extend(answer.paths);
    }

    /// Sends everything; `settings`: why those of the subsystem are unknown.
    pub(super) fn send_all(
        mut self,
        mono_ns: u64,
        present: &Present,
        settings: Option<&Cause>,
        out: &mut dyn FnMut(Input),
    ) {
        let entries = || present.entries.iter();
        if self.lists() {
            let mut devices = present.held();
            let settings = settings.filter(|_| self.complete).into_iter();
            let errors = settings.chain(entries().flat_map(|entry| &entry.errors));
            for reading in std::mem::take(&mut self.listed) {
                if let Some(held) = devices.iter_mut().find(|held| held.index == reading.index) {
                    *held = reading;
                }
            }
            out(Input::Devices(Box::new(DevicesSample {
                mono_ns,
                devices,
                errors: errors.cloned().collect(),
                unread: false,
                notes: present.removals.notes(),
            })));
        }
        // A process's sum is complete only when every device was asked.
        self.counted.mr_bytes = self.sums.filter(|_| self.owned == present.entries.len());
        let counted = &self.counted;
        if !counted.ports.is_empty() || !counted.changed.is_empty() || counted.mr_bytes.is_some() {
            self.counted.mono_ns = mono_ns;
            out(Input::Counters(Box::new(self.counted)));
        }
        // Just after the counters that they are compared with.
        if !self.psns.is_empty() {
            out(Input::Psns(self.psns));
        }
        let qp_errors: Vec<Cause> = entries().flat_map(|entry| &entry.qp_errors).cloned().collect();
        let mut own = QpsSample {
            mono_ns: self.before_ns,
            ..QpsSample::default()
        };
        let mut some = self.qps_wanted;
        for mut dump in self.dumps {
            if dump.mono_ns == own.mono_ns {
                some = true;
                own.complete.extend(dump.complete);
                own.qps.append(&mut dump.qps);
            } else {
                // These come from an earlier round: records since then are newer.
                out(Input::Qps(Box::new(QpsSample {
                    errors: qp_errors.clone(),
                    ..dump
                })));
            }
        }
        if some {
            own.errors = qp_errors;
            out(Input::Qps(Box::new(own)));
        }
        if !self.paths.is_empty() {
            out(Input::Paths(self.paths));
        }
        // Sent after the dumps, so that the engine knows the QPs of the groups.
        if !self.groups.is_empty() {
            out(Input::Groups(self.groups));
        }
    }
}

/// The input where devices could not be listed, because of `error`. `None`: there is no RDMA.
pub(super) fn unread(mono_ns: u64, error: Option<Cause>) -> Input {
    Input::Devices(Box::new(DevicesSample {
        mono_ns,
        unread: error.is_some(),
        errors: error.into_iter().collect(),
        ..DevicesSample::default()
    }))
}
