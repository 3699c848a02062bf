//! How much memory processes may lock, and RDMA cgroups.

use super::jobs;
use crate::{
    facts::{Facts, Process},
    line::{Lines, WITH_ROOT},
    words::{bytes, group, names},
};
use rdmatop_base::{
    locked,
    step::{NextStep, ShellWord, step},
};

/// Enough for the buffers of most jobs, bytes.
pub const MEMLOCK_WARN: u64 = 1 << 30;
/// The kernel's default before 5.16: too little for any job.
pub(crate) const MEMLOCK_FAIL: u64 = 64 << 10;
/// Percentage of a cgroup's limit that gives a warning.
pub(crate) const CGROUP_WARN: u64 = 90;

const WHY: &str = "RDMA locks its buffers in memory; beyond the limit registration fails (ENOMEM).";

/// Processes in the words of a line: `PID 7 (python3)`, or their number.
pub(crate) fn subject(processes: &[&Process]) -> String {
    if let [one] = processes {
        return format!("PID {} ({})", one.pid, one.comm);
    }
    format!("PIDs {}", names(processes.iter().map(|process| process.pid)))
}

/// Whether the limit of a process matters. Monitors and X servers have GPUs open, and do no RDMA.
fn does_rdma(facts: &Facts, process: &Process) -> bool {
    let is_set_up = process.environ.known().is_none_or(|environ| {
        let own = &environ[..environ.len().saturating_sub(process.from_conf)];
        own.iter()
            .any(|(name, _)| jobs::shared(name) && name != "NCCL_VERSION")
    });
    let has_devices = facts.answering().next().is_some();
    process.has_open || process.has_qps || has_devices && (is_set_up || facts.pid.is_some())
}

pub(crate) fn memlock(facts: &Facts, out: &mut Lines) {
    let mut low: Vec<(u64, Vec<&Process>)> = Vec::new();
    let mut fine = Vec::new();
    for process in facts.processes.iter().filter(|process| does_rdma(facts, process)) {
        let whose = subject(&[process]);
        match out.known(
            &process.memlock,
            &whose,
            format!("locked memory of {whose}"),
            WITH_ROOT,
        ) {
            Some(Some(limit)) if *limit < MEMLOCK_WARN && !process.may_lock => {
                group(&mut low, *limit, process);
            }
            Some(_) => fine.push(process),
            None => {}
        }
    }
    for (limit, processes) in &low {
        let text = format!("{} may lock {} of memory", subject(processes), bytes(*limit));
        // The remedy must suit all of them: what one process runs in says nothing about the others.
        let mut ways: Vec<NextStep> = processes
            .iter()
            .map(|process| locked::raise(process.cgroup.as_deref()))
            .collect();
        ways.dedup();
        let remedy = match (processes.as_slice(), ways.as_slice()) {
            ([one], [way]) => step!(
                "sudo prlimit --pid {} --memlock=unlimited   # for what it registers from now on; for its next start: {}",
                one.pid,
                *way
            ),
            (_, [way]) => way.clone(),
            _ => step!(
                "sudo rdmatop doctor --pid {}, as of each of them: each runs in something else",
                processes[0].pid
            ),
        };
        if *limit <= MEMLOCK_FAIL {
            out.fail(&subject(processes), text, WHY, remedy);
        } else {
            out.warn(&subject(processes), text, WHY, remedy);
        }
    }
    if out.is_empty() && !fine.is_empty() {
        out.pass("", format!("{} may lock enough memory", subject(&fine)));
    }
}

pub(crate) fn default(facts: &Facts, out: &mut Lines) {
    if facts.hardware().next().is_none() || facts.pid.is_some() {
        return;
    }
    let mut fine = Vec::new();
    for service in &facts.services {
        match service.memlock {
            Some(limit) if limit < MEMLOCK_WARN && !service.exempt => {
                let unit = if service.shell {
                    step!(
                        "ulimit -Hl   # unlimited -> ulimit -l unlimited   # less, or for all -> {}",
                        of_shell(facts)
                    )
                } else {
                    step!(
                        "LimitMEMLOCK=infinity by: sudo systemctl edit {}; it counts from its next start on",
                        ShellWord::new(service.unit.as_ref().unwrap_or(&service.comm), "UNIT")
                    )
                };
                out.warn(
                    &service.comm,
                    format!(
                        "{} hands on a limit of {} of locked memory",
                        service.comm,
                        bytes(limit)
                    ),
                    WHY,
                    unit,
                );
            }
            _ => fine.push(service.comm.as_str()),
        }
    }
    if out.is_empty() && !fine.is_empty() {
        out.pass("", format!("jobs of {} may lock enough memory", names(&fine)));
    }
}

/// The remedy for all that starts where rdmatop did. A container often does not see its own place among the
/// machine's cgroups.
fn of_shell(facts: &Facts) -> NextStep {
    let by_cgroup = locked::raise(facts.view.cgroup.as_deref());
    match (by_cgroup == locked::raise(None), facts.host.container) {
        (false, _) => by_cgroup,
        (true, true) => "start the container with --ulimit memlock=-1 (Kubernetes: the limit of the node's containerd or CRI-O)".into(),
        (true, false) => "'* - memlock unlimited' in /etc/security/limits.conf; log in anew".into(),
    }
}

pub(crate) fn cgroup(facts: &Facts, out: &mut Lines) {
    let Some(limits) = out.known(&facts.view.rdma_limits, "", "RDMA limits of the cgroup", "") else {
        return;
    };
    for limit in limits {
        let Some(current) = limit.current else { continue };
        let text = format!(
            "{current} of {} {} of {} are in use in cgroup {}",
            limit.max,
            locked::counted_as(&limit.resource),
            limit.device,
            limit.cgroup
        );
        let why = "At the limit, queue pairs and memory regions cannot be made (EAGAIN).";
        let remedy = locked::without_rdma_limit(&limit.device, &limit.resource, &limit.cgroup);
        if current >= limit.max {
            out.fail(&limit.device, text, why, remedy);
        } else if u128::from(current) * 100 >= u128::from(limit.max) * u128::from(CGROUP_WARN) {
            out.warn(&limit.device, text, why, remedy);
        }
    }
    if out.is_empty() && !limits.is_empty() {
        out.pass("", "RDMA limits of the cgroup are not reached");
    }
}
