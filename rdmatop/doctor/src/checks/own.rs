//! The needs of rdmatop itself.

use crate::{
    facts::Facts,
    line::{Lines, WITH_ROOT},
};
use rdmatop_model::cause::CauseId;

/// The causes that keep eBPF programs from running.
const EBPF: [CauseId; 8] = [
    CauseId::UserNamespace,
    CauseId::NoCapability,
    CauseId::PerfParanoid,
    CauseId::Memlock,
    CauseId::Lockdown,
    CauseId::NoKprobes,
    CauseId::OfedWithoutBtf,
    CauseId::ProbesOff,
];

const PROCESSES: [CauseId; 4] = [
    CauseId::NoProcfs,
    CauseId::PidNamespace,
    CauseId::Hidepid,
    CauseId::NoPtrace,
];

pub(crate) fn ebpf(facts: &Facts, out: &mut Lines) {
    let why = "Without them rdmatop shows no lifecycle of queue pairs and no rates per queue pair.";
    let refused = |id| facts.own.missing.iter().any(|cause| cause.id == id);
    // A file can have the capabilities (setcap), so that its users need not be root.
    if !facts.host.root && refused(CauseId::NoCapability) {
        return out.skip(
            "rdmatop's eBPF programs",
            "loading them takes root, or CAP_BPF and CAP_PERFMON",
            WITH_ROOT,
        );
    }
    for cause in facts.own.missing.iter().filter(|cause| EBPF.contains(&cause.id)) {
        out.warn(
            "",
            format!("rdmatop's eBPF programs: {}", cause.why),
            why,
            cause.remedy.clone(),
        );
    }
    match facts.own.btf {
        Some(false) => out.warn(
            "",
            "rdmatop's eBPF programs: the kernel has no BTF (/sys/kernel/btf/vmlinux)",
            why,
            "use a kernel with CONFIG_DEBUG_INFO_BTF, as distributions build it",
        ),
        None if out.is_empty() => out.unknown("", "rdmatop's eBPF programs", "/sys/kernel cannot be read"),
        _ if out.is_empty() => out.pass("", "rdmatop's eBPF programs can run (BTF, kprobes, rights)"),
        _ => {}
    }
}

pub(crate) fn processes(facts: &Facts, out: &mut Lines) {
    let hidden = facts
        .own
        .missing
        .iter()
        .filter(|cause| PROCESSES.contains(&cause.id));
    for cause in hidden {
        if !facts.host.root && matches!(cause.id, CauseId::NoPtrace | CauseId::Hidepid) {
            // The line about processes that could not be inspected reports this, if there are any.
            continue;
        }
        out.warn(
            "",
            cause.what.clone(),
            format!("{}.", cause.why),
            cause.remedy.clone(),
        );
    }
}
