//! Processes: read once when they are new, watched for their end.

use std::collections::BTreeSet;

use rustix::time::ClockId;

use super::limits::Limits;

use crate::{
    app::source::{Polled, Wants},
    model::input::{Input, LockedMemory, ProcessFacts},
    source::{
        clock,
        proc::{
            ProcBasic, ProcCache, ProcDetail, ProcKey, Users, Workload, clock_ticks, lives, locked::locked,
            read_basic, read_detail, start_offset,
        },
        root::Root,
    },
};

/// Answers for the processes the engine asks for, and reports when one is gone.
pub struct ProcessSource {
    root: Root,
    cache: ProcCache,
    watched: BTreeSet<u32>,
    limits: Limits,
    /// See [`start_offset`].
    start_offset: i64,
}

impl ProcessSource {
    /// Reads under `root`.
    pub fn new(root: Root) -> Self {
        Self {
            start_offset: offset(&root),
            root,
            cache: ProcCache::default(),
            watched: BTreeSet::new(),
            limits: Limits::default(),
        }
    }
}

impl Polled for ProcessSource {
    fn name(&self) -> &'static str {
        "processes"
    }

    fn poll(&mut self, wants: &Wants, out: &mut dyn FnMut(Input)) {
        if wants.is_light() {
            return;
        }
        self.watched.extend(wants.processes.iter());
        let read_ns = clock::read(ClockId::Monotonic);
        let changes = self.cache.refresh(&self.root, self.watched.iter().copied());
        for key in changes.gone {
            // A reused number is both gone and new: the engine gets both inputs, in this order.
            if self.cache.get(key.pid).is_none() {
                self.watched.remove(&key.pid);
            }
            out(Input::ProcessGone {
                pid: key.pid,
                start_ticks: Some(key.start.saturating_sub_signed(self.start_offset)),
            });
        }
        // After an exec it is another program with the same resources.
        for key in changes.new.into_iter().chain(changes.renamed) {
            if let Some(process) = self.cache.get(key.pid) {
                let detail = wants.counters.then(|| read_detail(&self.root, key)).flatten();
                out(Input::Process(Box::new(facts(
                    process,
                    detail,
                    self.start_offset,
                    read_ns,
                ))));
            }
        }
        if wants.counters && !wants.only_processes {
            let Self {
                watched,
                cache,
                limits,
                root,
                ..
            } = self;
            let path = |pid: &u32| Some((*pid, cache.get(*pid)?.cgroup.as_ref()?.path.as_str()));
            limits.look(root, read_ns, watched.iter().filter_map(path), out);
        }
        let locked: Vec<LockedMemory> = wants
            .locked
            .iter()
            .filter_map(|pid| {
                let found = locked(&self.root, *pid)?;
                Some(LockedMemory {
                    pid: *pid,
                    limit: found.limit,
                    exempt: found.exempt,
                    pinned: found.pinned,
                })
            })
            .collect();
        if !locked.is_empty() {
            out(Input::Locked(locked));
        }
        for pid in wants.processes.iter() {
            if self.cache.get(*pid).is_none() {
                self.watched.remove(pid);
                if !lives(&self.root, *pid) {
                    out(Input::ProcessGone {
                        pid: *pid,
                        start_ticks: None,
                    });
                }
            }
        }
    }
}

/// The facts about exactly this process, read now; `None` when it ended.
pub(super) fn read_facts(root: &Root, key: ProcKey, start_offset: i64) -> Option<ProcessFacts> {
    let read_ns = clock::read(ClockId::Monotonic);
    let process = read_basic(root, &Users::read(root), key.pid).filter(|process| process.key() == key)?;
    Some(facts(&process, read_detail(root, key), start_offset, read_ns))
}

/// What to add to start times; see [`start_offset`].
pub(super) fn offset(root: &Root) -> i64 {
    clock_ticks(root).map_or(0, |ticks| start_offset(root, ticks))
}

fn facts(process: &ProcBasic, detail: Option<ProcDetail>, start_offset: i64, read_ns: u64) -> ProcessFacts {
    let (libraries, environ) = detail.map_or((None, None), |d| (d.libraries, d.environ));
    ProcessFacts {
        pid: process.stat.pid,
        start_ticks: process.stat.start.saturating_sub_signed(start_offset),
        read_ns,
        comm: Some(process.stat.comm.clone()),
        cmdline: process.cmdline.clone(),
        uid: process.uid,
        user: process.user.clone(),
        cgroup: process.cgroup.as_ref().map(|c| c.path.clone()),
        workload: process.cgroup.as_ref().and_then(|c| spell(&c.workload)),
        workload_claimed: process.cgroup.as_ref().is_some_and(|c| c.workload.claimed),
        ppid: Some(process.stat.ppid),
        libraries,
        environ,
        verbs_files: None,
    }
}

/// A workload in one or two words, the innermost that is known. A claim ends with `?`, so it is never the name of what root named.
fn spell(workload: &Workload) -> Option<String> {
    let name = name(workload)?;
    Some(if workload.claimed {
        format!("{name}?")
    } else {
        name
    })
}

fn name(workload: &Workload) -> Option<String> {
    if let Some(slurm) = &workload.slurm {
        let step = slurm
            .step
            .as_deref()
            .map_or_else(String::new, |step| format!(".{step}"));
        return Some(format!("slurm {}{step}", slurm.job));
    }
    if let Some(pod) = &workload.pod {
        return Some(format!("pod {}", pod.uid));
    }
    if let Some(container) = &workload.container {
        // Container tools show and accept twelve digits.
        return Some(format!(
            "container {}",
            container.id.get(..12).unwrap_or(&container.id)
        ));
    }
    workload.machine.as_ref().map(|machine| format!("vm {machine}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_takes_precedence_over_its_container() {
        let slurm = Workload::from_path("/system.slice/slurmstepd.scope/job_211/step_0/user/task_0");
        assert_eq!(spell(&slurm).as_deref(), Some("slurm 211.0"));
        let id = "a".repeat(64);
        let docker = Workload::from_path(&format!("/docker/{id}"));
        assert_eq!(spell(&docker).as_deref(), Some("container aaaaaaaaaaaa"));
        let claim = Workload::from_path("/user.slice/user@1000.service/slurmstepd.scope/job_211/step_0");
        assert_eq!(spell(&claim).as_deref(), Some("slurm 211.0?"));
        assert_eq!(spell(&Workload::default()), None);
    }
}
