//! The state of our eBPF programs and of probes on programs, and what depends on it.

use std::sync::Arc;

use rdmatop_common::wr::count;

use super::{EngineConfig, machine::Machine};
use crate::{
    cause::Cause,
    input::{EbpfReport, EbpfState, ProbeVerdict, UprobesReport, Verdict},
    snapshot::WorkRequests,
};

/// The state of rdmatop's eBPF programs and probes, as the loader reported it last.
#[derive(Debug, Default)]
pub(super) struct Programs {
    /// See `EngineConfig`.
    nested_pids: bool,
    pub(super) ebpf: EbpfReport,
    /// Since when programs see each call of a verb; `None` where they do not.
    pub(super) calls_ns: Option<u64>,
    /// Probes on programs.
    pub(super) uprobes: Option<Arc<UprobesReport>>,
    /// Records of what happened to objects.
    pub(super) events: u64,
    /// What became of work requests, where they are followed.
    pub(super) work: Option<WorkRequests>,
}

impl Programs {
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            nested_pids: config.nested_pids,
            ebpf: EbpfReport {
                state: config.ebpf.clone(),
                ..EbpfReport::default()
            },
            ..Self::default()
        }
    }

    pub(super) fn apply(&mut self, report: EbpfReport, now_ns: u64, machine: &mut Machine) {
        let foreign = self.has_foreign_pids();
        if report.anew {
            machine.qps.want_repair(now_ns);
        }
        if report.anew || !sees_calls(&report) {
            self.calls_ns = None;
        }
        if sees_calls(&report) {
            self.calls_ns.get_or_insert(now_ns);
        }
        self.ebpf = report;
        if self.has_foreign_pids() != foreign {
            machine.renumber(now_ns);
        }
    }

    pub(super) fn probes(&mut self, report: UprobesReport, machine: &mut Machine) {
        if report.off.is_some() {
            machine.lose_probes();
        }
        if self.uprobes.as_deref() != Some(&report) {
            self.uprobes = Some(Arc::new(report));
        }
    }

    /// The user wants no more probes.
    pub(super) fn probes_over(&mut self, machine: &mut Machine) {
        self.uprobes = None;
        machine.lose_probes();
    }

    /// What became of work requests.
    pub(super) fn work_counts(&mut self, counts: [u64; count::COUNT as usize]) {
        let of = |what: u32| counts.get(what as usize).copied().unwrap_or(0);
        self.work = Some(WorkRequests {
            happened: of(count::HAPPENED),
            filtered: of(count::FILTERED),
            sampled_out: of(count::SAMPLED_OUT),
        });
    }

    /// Records report everything that happens to QPs.
    pub(super) fn follow_qps(&self) -> bool {
        self.ebpf.state.is_on() && self.ebpf.follows_qps
    }

    /// Whether programs see each DMA-BUF that is registered, since they see each call.
    pub(super) fn see_dmabufs(&self) -> bool {
        self.calls_ns.is_some() && sees(&self.ebpf, ":ib_umem_dmabuf_map_pages")
    }

    /// Whether PIDs of records belong to another namespace than those of dumps and of /proc. Until it is
    /// known whether there will be records, no PID is taken from a dump.
    pub(super) fn has_foreign_pids(&self) -> bool {
        let records = matches!(self.ebpf.state, EbpfState::Starting | EbpfState::On { .. });
        self.nested_pids && records
    }

    /// Why probes are off, and what cannot be probed.
    pub(super) fn uprobe_notes(&self) -> impl Iterator<Item = &Cause> {
        let report = self.uprobes.iter();
        report.flat_map(|report| report.off.iter().chain(&report.failures))
    }
}

/// Whether programs see each ioctl that is a verb.
fn sees_calls(report: &EbpfReport) -> bool {
    sees(report, ":ib_uverbs_cmd_verbs")
}

/// Whether all programs that are for a function are on, and there are some.
fn sees(report: &EbpfReport, function: &str) -> bool {
    let there = |probe: &&ProbeVerdict| probe.hook.ends_with(function);
    let is_on = |probe: &ProbeVerdict| matches!(probe.verdict, Verdict::Ok | Verdict::Partial);
    report.state.is_on() && report.probes.iter().filter(there).map(is_on).min() == Some(true)
}
