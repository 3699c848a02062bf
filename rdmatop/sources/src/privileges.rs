//! Least privilege: rdmatop gives up at once what it does not need, and raises what only attaching needs only
//! while it attaches.
//!
//! Capabilities belong to threads and are inherited by threads started later, so [`shed`] runs before any
//! other thread exists. Afterwards every thread, also one that parses data of the kernel and of processes,
//! has `KEPT` in effect and no more. The thread that attaches raises the rest with [`Raised`] and lowers it
//! again. The rest has to stay permitted, because a reloaded module makes rdmatop attach again.

use super::syscalls;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_no_new_privs,
};

/// In effect all the time. CAP_BPF: kernels with `unprivileged_bpf_disabled` refuse even a map look-up
/// without it. The other two: names, environments and libraries of other users' processes in /proc.
const KEPT: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::DAC_READ_SEARCH);

/// In effect while attaching. CAP_SYS_ADMIN: kprobes where `perf_event_paranoid` is above 2 (Debian's
/// default), and descriptors of modules' BTF. CAP_SYS_RESOURCE: the locked-memory limit before 5.11.
const ATTACH: CapabilitySet = KEPT
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_RESOURCE);

/// Rights of the process that reads the memory of others (`uprobes::Helper`). CAP_SYS_ADMIN: to follow links
/// in /proc/PID/map_files.
const HELPER: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::SYS_ADMIN);

/// In effect while a thread enters another network namespace, and while it mounts the sysfs of that
/// (`netns`).
const NAMESPACE: CapabilitySet = KEPT.union(CapabilitySet::SYS_ADMIN);

/// In effect while a thread changes its own scheduling policy (`unpreempted` in rdmatop-loader).
const PRIORITY: CapabilitySet = KEPT.union(CapabilitySet::SYS_NICE);

/// In effect while a request changes how the kernel binds QPs to counters, or asks for what the firmware has
/// of a QP, which the kernel gives nobody without it. Permitted only where the first was asked for
/// (`--hw-counters`), or a device is there that answers the second.
const COUNTERS: CapabilitySet = KEPT.union(CapabilitySet::NET_ADMIN);

/// What stays permitted; with `--hw-counters`, or with a NIC of mlx5, `COUNTERS`, too.
const PERMITTED: CapabilitySet = ATTACH.union(PRIORITY);

/// Leaves only `PERMITTED` permitted, and only `KEPT` in effect until more is raised. Refuses system calls
/// that rdmatop never makes. Programs that are started later gain nothing from a set-user-id bit. `counters`:
/// the right to change how QPs are bound to counters, and to ask for their contexts, stays permitted.
pub fn shed(counters: bool) {
    let Ok(now) = capabilities(None) else { return };
    let permitted = if counters {
        PERMITTED.union(COUNTERS)
    } else {
        PERMITTED
    };
    let (effective, permitted) = (now.effective & KEPT, now.permitted & permitted);
    log::info!(effective:? = effective, permitted:? = permitted; "rights kept");
    keep(effective, permitted);
    let _ = set_no_new_privs(true);
    syscalls::refuse();
}

/// The calling thread gives up all other rights.
fn keep(effective: CapabilitySet, permitted: CapabilitySet) {
    let sets = CapabilitySets {
        effective,
        permitted,
        inheritable: CapabilitySet::empty(),
    };
    // The kernel does not refuse to give up rights; if it did, the old rights would stay.
    let _ = set_capabilities(None, sets);
}

/// The calling thread gives up everything: it runs code that is not ours.
pub fn renounce() {
    keep(CapabilitySet::empty(), CapabilitySet::empty());
}

/// The helper gives up everything that it does not need to read the memory of others.
pub fn keep_for_helper() {
    let Ok(now) = capabilities(None) else { return };
    let kept = now.permitted & HELPER;
    keep(kept, kept);
    let _ = set_no_new_privs(true);
}

/// Rights of the calling thread, lowered when dropped.
#[derive(Debug)]
pub struct Raised(Option<CapabilitySets>);

impl Raised {
    /// Raises what attaching needs, as far as it is permitted.
    pub fn for_attach() -> Self {
        Self::to(ATTACH)
    }

    /// Raises what another network namespace needs, as far as it is permitted.
    pub(super) fn for_namespace() -> Self {
        Self::to(NAMESPACE)
    }

    /// Raises what a real-time scheduling policy needs, as far as it is permitted.
    pub fn for_priority() -> Self {
        Self::to(PRIORITY)
    }

    /// Raises what a request that changes counters, or asks a NIC's firmware, needs, as far as it is
    /// permitted.
    pub fn for_net_admin() -> Self {
        Self::to(COUNTERS)
    }

    /// A program that is started while this lives gets what the helper needs, as far as it is permitted: by
    /// the ambient set, which the kernel lowers together with the inheritable set.
    pub fn for_helper() -> Self {
        let Ok(before) = capabilities(None) else {
            return Self(None);
        };
        let passed = before.permitted & HELPER;
        let sets = CapabilitySets {
            inheritable: before.inheritable | passed,
            ..before
        };
        let raised = Self(set_capabilities(None, sets).is_ok().then_some(before));
        for capability in passed.iter() {
            let _ = configure_capability_in_ambient_set(capability, true);
        }
        raised
    }

    fn to(wanted: CapabilitySet) -> Self {
        let Ok(before) = capabilities(None) else {
            return Self(None);
        };
        let sets = CapabilitySets {
            effective: before.effective | (before.permitted & wanted),
            ..before
        };
        Self(set_capabilities(None, sets).is_ok().then_some(before))
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        if let Some(before) = self.0.take() {
            let _ = set_capabilities(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_that_checks_has_what_is_kept_and_the_kernels_log() {
        let unit = include_str!("../../../deploy/systemd/rdmatop-check.service");
        let granted = |key: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            let named = |word: &str| CapabilitySet::from_name(word.strip_prefix("CAP_").unwrap()).unwrap();
            line.split_whitespace()
                .map(named)
                .fold(CapabilitySet::empty(), CapabilitySet::union)
        };
        let needed = PERMITTED | CapabilitySet::SYSLOG;
        assert_eq!(granted("AmbientCapabilities="), needed);
        assert_eq!(granted("CapabilityBoundingSet="), needed);
        assert!(unit.lines().any(|line| line == "DynamicUser=yes"));
    }

    #[test]
    fn what_was_shed_is_raised_for_what_needs_it_alone() {
        for counters in [false, true] {
            // Capabilities belong to this thread: the other tests keep theirs.
            let thread = std::thread::spawn(move || {
                let before = capabilities(None).unwrap();
                shed(counters);
                let shed = capabilities(None).unwrap();
                let permitted = if counters {
                    PERMITTED | CapabilitySet::NET_ADMIN
                } else {
                    PERMITTED
                };
                assert_eq!(shed.effective, before.effective & KEPT);
                assert_eq!(shed.permitted, before.permitted & permitted);
                for (wanted, raised) in [
                    (ATTACH, Raised::for_attach as fn() -> Raised),
                    (NAMESPACE, Raised::for_namespace),
                    (PRIORITY, Raised::for_priority),
                    (COUNTERS, Raised::for_net_admin),
                ] {
                    let raised = raised();
                    assert_eq!(capabilities(None).unwrap().effective, shed.permitted & wanted);
                    drop(raised);
                    assert_eq!(capabilities(None).unwrap(), shed);
                }
                for capability in (shed.permitted & HELPER).iter() {
                    let is_ambient = || rustix::thread::capability_is_in_ambient_set(capability).unwrap();
                    let passed = Raised::for_helper();
                    assert!(is_ambient(), "{capability:?}");
                    drop(passed);
                    assert!(!is_ambient() && capabilities(None).unwrap() == shed);
                }
                assert_eq!(rustix::thread::no_new_privs(), Ok(true));
                keep_for_helper();
                let kept = capabilities(None).unwrap();
                assert_eq!(kept.permitted, shed.permitted & HELPER);
            });
            thread.join().unwrap();
        }
    }
}
