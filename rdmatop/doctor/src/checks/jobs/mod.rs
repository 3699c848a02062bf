//! Settings of processes, checked against what this machine has.

mod hca;
mod names;
mod value;

use std::collections::BTreeSet;

use super::limits::subject;
use crate::{
    facts::{Facts, Process, Reading},
    line::{Lines, WITH_ROOT},
    words::{count, group, names as names_of, setting},
};
use rdmatop_base::{
    step::step,
    variables::{is_of_nccl, lacks_efa_plugin, nccl_ignores, without_rdma},
};

pub(crate) use hca::{devices, gid};
pub(crate) use names::names;

/// Processes with the same settings, which find the same devices.
struct Job<'a> {
    subject: String,
    first: &'a Process,
    all: Vec<&'a Process>,
    environ: &'a [(String, String)],
}

impl Job<'_> {
    fn get(&self, name: &str) -> Option<&str> {
        let found = self.environ.iter().find(|(known, _)| known == name);
        found
            .map(|(_, value)| value.trim())
            .filter(|value| !value.is_empty())
    }

    /// Why a setting that keeps UCX or libfabric to TCP does not keep the job to it.
    fn has_rdma_beside(&self, name: &str, verbs: bool) -> Option<(&'static str, &'static str)> {
        let library = match name {
            "UCX_TLS" => "UCX",
            "FI_PROVIDER" => "libfabric",
            _ => return None,
        };
        if self.all.iter().any(|process| process.has_qps) {
            return Some((library, "and RDMA all the same: the job has queue pairs"));
        }
        // Settings of /etc/nccl.conf do not say that this process uses NCCL.
        let own = self.environ.len().saturating_sub(self.first.from_conf);
        let ignored = is_of_nccl(&self.environ[..own]) && nccl_ignores(name, self.environ, verbs);
        ignored.then_some((library, "which NCCL does not read"))
    }
}

/// Whether a variable is the same for all ranks of a job.
pub(super) fn shared(name: &str) -> bool {
    const PREFIXES: [&str; 6] = ["NCCL_", "UCX_", "FI_", "NVSHMEM_", "GLOO_", "RCCL_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

fn jobs(facts: &Facts) -> Vec<Job<'_>> {
    type Settings<'a> = BTreeSet<&'a (String, String)>;
    type Found<'a, T> = &'a Reading<Vec<(String, T)>>;
    type Key<'a> = (Settings<'a>, Found<'a, bool>, Found<'a, Option<bool>>);
    let mut groups: Vec<(Key<'_>, Vec<&Process>)> = Vec::new();
    for process in &facts.processes {
        let Some(environ) = process.environ.known() else {
            continue;
        };
        let settings: Settings<'_> = environ.iter().filter(|(name, _)| shared(name)).collect();
        let key = (settings, &process.sees, &process.nodes);
        group(&mut groups, key, process);
    }
    groups
        .into_iter()
        .filter_map(|(_, processes)| {
            let first = *processes.first()?;
            Some(Job {
                subject: subject(&processes),
                first,
                environ: first.environ.known()?,
                all: processes,
            })
        })
        .collect()
}

pub(crate) fn disabled(facts: &Facts, out: &mut Lines) {
    const WHY: &str = "The job uses TCP although this machine has RDMA.";
    // Without devices, turning RDMA off changes nothing.
    if facts.answering().next().is_none() {
        return;
    }
    let verbs = facts.has_verbs_nic();
    for job in jobs(facts) {
        let subject = &job.subject;
        for (name, value) in without_rdma(job.environ, verbs) {
            if let Some((library, why)) = job.has_rdma_beside(name, verbs) {
                let set = setting(name, value);
                out.pass("", format!("{subject}: {library} by TCP ({set}), {why}"));
                continue;
            }
            out.fail(
                subject,
                format!("{subject}: {} turns RDMA off", setting(name, value)),
                WHY,
                step!("start the job without {}", name),
            );
        }
    }
    for process in facts.processes.iter().filter(|_| !verbs) {
        let subject = subject(&[process]);
        let what = format!("{subject}: what libraries it has loaded");
        let libraries = out.known(&process.libraries, &subject, what, WITH_ROOT);
        let lacks = libraries.is_some_and(|all| lacks_efa_plugin(all.iter().map(String::as_str)));
        if lacks && !process.has_qps {
            // Its own transport cannot use EFA. A process may stay at this point for minutes, without a
            // fault.
            let text = format!(
                "{subject}: NCCL has loaded no plug-in for EFA so far: it does so with its first communicator; if it has one, install \
                 aws-ofi-nccl (libnccl-net-ofi.so) where the job runs: NCCL uses TCP"
            );
            out.pass(&subject, text);
        }
    }
}

pub(crate) fn interface(facts: &Facts, out: &mut Lines) {
    for job in jobs(facts) {
        let subject = &job.subject;
        for (name, exact) in [("NCCL_SOCKET_IFNAME", false), ("GLOO_SOCKET_IFNAME", true)] {
            let Some(value) = job.get(name) else { continue };
            let what = format!("{subject}: what {} names", setting(name, value));
            let Some(interfaces) = out.known(&job.first.interfaces, subject, what, WITH_ROOT) else {
                continue;
            };
            let list = value::List::parse(value, exact);
            let used: Vec<&str> = interfaces
                .iter()
                .map(String::as_str)
                .filter(|interface| list.takes(interface))
                .collect();
            if used.is_empty() {
                out.fail(
                    subject,
                    format!(
                        "{subject}: {} names no network interface that it has",
                        setting(name, value)
                    ),
                    "Ranks find each other over it; the job ends or hangs at its start.",
                    step!("ip -br link; start the job with {}=INTERFACE", name),
                );
            } else {
                out.pass("", format!("{} names {}", setting(name, value), names_of(&used)));
            }
        }
    }
}

pub(crate) fn sharers(facts: &Facts, out: &mut Lines) {
    let process = &facts.view;
    let what = "which processes share its verbs files";
    let Some(sharers) = out.known(&process.sharers, "", what, WITH_ROOT) else {
        return;
    };
    let subject = subject(&[process]);
    if !sharers.found.is_empty() {
        let named: Vec<String> = sharers
            .found
            .iter()
            .map(|(pid, comm)| format!("PID {pid} ({comm})"))
            .collect();
        let text = format!(
            "{subject} shares verbs files with {}: its queue pairs last until all have closed them",
            names_of(&named)
        );
        out.pass(&subject, text);
    }
    if sharers.partial {
        out.unknown_until(
            "whether further processes share its verbs files",
            "not all processes could be looked at",
            WITH_ROOT,
        );
    } else if sharers.found.is_empty() {
        out.pass(
            &subject,
            format!("{subject} shares no verbs file with another process"),
        );
    }
}

pub(crate) fn hidden(facts: &Facts, out: &mut Lines) {
    if facts.hidden_processes > 0 {
        out.unknown_until(
            format!(
                "settings and limits of {}",
                count(facts.hidden_processes, "process")
            ),
            "other users' processes show them to root only",
            WITH_ROOT,
        );
    } else if let Some(why) = facts
        .processes
        .iter()
        .find_map(|process| process.environ.unreadable())
    {
        out.unknown_until("settings of processes", why, WITH_ROOT);
    }
    for process in &facts.processes {
        let subject = subject(&[process]);
        if let Some(why) = process.environ.unknown() {
            out.unknown(&subject, format!("settings of {subject}"), why);
        }
        if let Some(why) = process.conf.unknown() {
            out.unknown(
                &subject,
                format!("settings of {subject} in its /etc/nccl.conf"),
                why,
            );
        }
    }
    if facts.left_out > 0 {
        let what = format!(
            "settings and limits of {}",
            count(facts.left_out, "further process")
        );
        let why = format!(
            "one run looks at {}; `rdmatop doctor --pid PID` looks at one",
            facts.processes.len()
        );
        out.unknown("", what, why);
    }
}
