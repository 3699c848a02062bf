//! What readers say of what they read late or not at all, and what rdmatop knows of itself and of the host.

use super::{devices::Devices, groups::Groups, losses::Losses, programs::Programs};
use crate::{
    cause::{Cause, CauseId},
    input::{DevicesSample, EbpfReport, EbpfState, HealthSample},
    snapshot::Health,
    value::Shared,
};

/// The state of readers, of rdmatop itself and of the host.
#[derive(Debug, Default)]
pub(super) struct Readings {
    pub(super) health: HealthSample,
    /// What is missing on the machine, and what the programs do not see.
    notes: Shared<Cause>,
    device_notes: Vec<Cause>,
    /// Devices whose drivers answer late.
    pub(super) slow: Vec<Cause>,
    /// Processes whose answers are late.
    pub(super) slow_processes: Vec<Cause>,
    /// Why the processes of some TCP connections are unknown.
    pub(super) tcp_cut: Option<Box<Cause>>,
    /// Why the present round of reading has not ended, once it takes too long.
    pub(super) hangs: Option<Cause>,
    /// What could not be read of devices, and of QPs; each reading replaces the last.
    errors: [Vec<Cause>; 2],
}

impl Readings {
    /// Takes over the state of rdmatop itself and of the host.
    pub(super) fn apply(&mut self, sample: HealthSample, ebpf: &EbpfReport) {
        let other = sample.notes != self.health.notes;
        self.health = sample;
        if other {
            self.note(ebpf);
        }
    }

    /// Takes what a reading of all devices says of itself.
    pub(super) fn devices(&mut self, sample: &mut DevicesSample) {
        self.errors[0] = std::mem::take(&mut sample.errors);
        if !sample.unread {
            self.device_notes = std::mem::take(&mut sample.notes);
        }
    }

    /// Takes what could not be read in a dump of QPs.
    pub(super) fn qps(&mut self, errors: Vec<Cause>) {
        self.errors[1] = errors;
    }

    /// Composes the notes: why there is no eBPF, unless a note about the machine already explains it, what is
    /// missing on the machine, and what the programs do not see.
    pub(super) fn note(&mut self, ebpf: &EbpfReport) {
        let machine = &self.health.notes;
        let refused = refused(&ebpf.state, machine);
        let all = refused.into_iter().chain(machine.iter().cloned());
        self.notes = all.chain(ebpf.notes.iter().cloned()).collect();
    }

    /// What a snapshot says of all sources. `uncounted`: the notes about QPs that are not counted.
    pub(super) fn row(
        &self,
        programs: &Programs,
        losses: &Losses,
        devices: &Devices,
        groups: &Groups,
        uncounted: Vec<Cause>,
    ) -> Health {
        let ebpf = &programs.ebpf;
        let slow = self
            .slow
            .iter()
            .chain(&self.slow_processes)
            .chain(self.tcp_cut.as_deref());
        let mut first: Vec<Cause> = self.device_notes.iter().chain(slow).cloned().collect();
        first.extend(uncounted);
        first.extend(programs.uprobe_notes().cloned());
        first.extend(groups.hw_counters_notes());
        let elsewhere = groups
            .hw_counters
            .iter()
            .flat_map(|_| devices.uncounted_elsewhere());
        first.extend(elsewhere);
        // Without programs a 0 would say that nothing happened. What was counted before they went stays.
        let on = ebpf.state.is_on();
        let traced = |count: u64| (on || count > 0).then_some(count);
        let last = self.notes.iter().chain(devices.log_note());
        Health {
            ebpf: ebpf.state.clone(),
            lost_events: traced(losses.records()),
            losses: losses.rows(),
            floods: losses.floods.clone(),
            skipped: losses.skipped.clone(),
            uprobes: programs.uprobes.clone(),
            hw_counters: groups.hw_counters.clone(),
            events: traced(programs.events),
            work: programs.work,
            probes: ebpf.probes.clone(),
            follows_qps: programs.follow_qps(),
            looked_ns: 0,
            notes: if first.is_empty() && devices.log_note().is_none() {
                self.notes.clone()
            } else {
                first.into_iter().chain(last.cloned()).collect()
            },
            errors: self.errors.iter().flatten().chain(&self.hangs).cloned().collect(),
            self_cpu: self.health.self_cpu,
            self_rss: self.health.self_rss,
        }
    }
}

/// Why there is no eBPF, unless a note explains it: the live view has room for notes, not for a reason.
fn refused(state: &EbpfState, notes: &[Cause]) -> Option<Cause> {
    let EbpfState::Unavailable(unavailable) = state else {
        return None;
    };
    let why = unavailable.cause.id;
    if notes.iter().any(|note| note.id.denies_ebpf(why)) {
        return None;
    }
    let mut cause = unavailable.cause.clone();
    if cause.remedy.is_empty() && cause.id != CauseId::Defect {
        cause.remedy = "`rdmatop probes` and dmesg may say more".into();
    }
    Some(cause)
}
