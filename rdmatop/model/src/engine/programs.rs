//! The state of our eBPF programs, and what depends on it.

use super::Engine;
use super::qp::Owner;
use crate::cause::{Cause, CauseId};
use crate::input::{EbpfReport, EbpfState};

impl Engine {
    /// Folds in a report of the programs.
    pub(super) fn programs(&mut self, report: EbpfReport, now_ns: u64) {
        let foreign = self.has_foreign_pids();
        if report.anew {
            self.losses.want_repair(now_ns);
        }
        self.ebpf = report;
        self.note();
        if self.has_foreign_pids() != foreign {
            self.renumber(now_ns);
        }
    }

    /// Whether PIDs of records belong to another namespace than those of dumps and of /proc. Until it is
    /// known whether there will be records, no PID is taken from a dump.
    pub(super) fn has_foreign_pids(&self) -> bool {
        let records = matches!(self.ebpf.state, EbpfState::Starting | EbpfState::On { .. });
        self.config.nested_pids && records
    }

    /// From now on PIDs are those of another namespace: the PIDs known until now name no process.
    fn renumber(&mut self, now_ns: u64) {
        let owned = self
            .qps
            .iter_mut()
            .filter(|qp| !qp.row().kernel && qp.row().pid.is_some());
        let owned: Vec<u64> = owned.map(|qp| qp.uid()).collect();
        for uid in owned {
            self.qps.set_owner(uid, Owner::default(), &mut self.processes);
        }
        self.processes.end_all(now_ns);
        self.losses.want_repair(now_ns);
    }

    /// Composes the notes: why there is no eBPF, unless a note about the machine already explains it, what is
    /// missing on the machine, and what the programs do not see.
    pub(super) fn note(&mut self) {
        let machine = &self.health.notes;
        let refused = refused(&self.ebpf.state, machine);
        let all = refused.into_iter().chain(machine.iter().cloned());
        self.notes = all.chain(self.ebpf.notes.iter().cloned()).collect();
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
