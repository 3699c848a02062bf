//! Who sets the limit of locked memory of a process, and how it gets a larger one: that depends on what it
//! runs in.

use crate::step::{NextStep, ShellWord, step};
use crate::workload::Workload;

/// How the unit of a user's own systemd begins.
const USER_MANAGER: &str = "user@";
const SCOPE: &str = ".scope";

/// The unit of systemd that a process in this cgroup belongs to, if it is a service.
pub fn unit(cgroup: &str) -> Option<&str> {
    let (_, name) = below_slices(cgroup);
    name.strip_suffix(".service")
        .is_some_and(|name| !name.is_empty())
        .then_some(name)
}

/// The part of a path up to the first directory that is no slice, and the name of that. It is the unit to
/// which systemd counts a process: whatever is below has its name from the unit itself, from a container in
/// it, or from a user to whom it was handed over.
fn below_slices(cgroup: &str) -> (&str, &str) {
    let mut end = 0;
    for name in cgroup.split('/') {
        end += name.len();
        let is_above = name.is_empty() || name == ".." || name.strip_suffix(".slice").is_some();
        if !is_above {
            return (&cgroup[..end], name);
        }
        end += 1;
    }
    (cgroup, "")
}

/// What [`raise`] may believe of a path: if a user may have named the job in it (`claimed`), its unit alone.
/// Below the user's own systemd it believes no job anyway.
pub fn believed(cgroup: &str, claimed: bool) -> &str {
    match below_slices(cgroup) {
        (unit, name) if claimed && !name.starts_with(USER_MANAGER) => unit,
        _ => cgroup,
    }
}

/// How a process in this cgroup gets a larger limit at its next start: by who sets the limit, as the path
/// shows. `None`: the cgroup is not known.
pub fn raise(cgroup: Option<&str>) -> NextStep {
    let cgroup = cgroup.unwrap_or_default();
    let workload = Some(Workload::from_path(cgroup)).filter(|workload| !workload.claimed);
    let workload = workload.unwrap_or_default();
    if workload.slurm.is_some() {
        // KillMode=process of Slurm's own unit leaves the steps alone.
        return "slurm.conf PropagateResourceLimitsExcept=MEMLOCK, then sudo scontrol reconfigure; LimitMEMLOCK=infinity, by: sudo systemctl edit slurmd; sudo \
            systemctl restart slurmd (running jobs go on)"
            .into();
    }
    // A capability that a runtime adds is not effective in a process of another user than root
    // (capabilities(7), execve).
    if workload.pod.is_some() && cgroup.contains("/crio-") {
        return "if it runs as root, capabilities.add [IPC_LOCK]   # else -> [crio.runtime] default_ulimits = [\"memlock=-1:-1\"] in a file of \
            /etc/crio/crio.conf.d (OpenShift: by a MachineConfig); sudo systemctl restart crio (pods go on), then the pod anew"
            .into();
    }
    if workload.pod.is_some() {
        // The path does not tell whose containerd it is: that of k3s and RKE2 runs in their own unit. A node
        // may have a containerd.service beside it, which can be edited and has no pods.
        return "if it runs as root, capabilities.add [IPC_LOCK]   # else -> UNIT of containerd-shim, by ps -eo unit,args; sudo systemctl edit UNIT: \
            LimitMEMLOCK=infinity; sudo systemctl restart UNIT (pods go on)   # then the pod anew; an image as system (Bottlerocket, BCM) -> in its settings, or it is gone at the next start"
            .into();
    }
    if workload.container.is_some() {
        let program = if cgroup.contains("libpod") {
            "podman"
        } else if cgroup.contains("nerdctl-") {
            "nerdctl"
        } else {
            "docker"
        };
        return step!("{} run --ulimit memlock=-1", program);
    }
    if workload.machine.is_some() {
        return "sudo virsh edit MACHINE, <memtune><hard_limit> above its memory; then start it anew".into();
    }
    let (above, name) = below_slices(cgroup);
    let is_scope = |name: &str, of: &str| name.starts_with(of) && name.ends_with(SCOPE);
    if name.starts_with(USER_MANAGER) {
        // A shell asks the user's systemd for these scopes, and what runs there has its limits.
        let (_, below) = below_slices(&cgroup[above.len()..]);
        if is_scope(below, "libpod-") {
            return "'* - memlock unlimited' in /etc/security/limits.conf; log in anew; podman run --ulimit memlock=-1"
                .into();
        }
        if !is_scope(below, "tmux-spawn-") {
            return step!(
                "[Service] LimitMEMLOCK=infinity, by: sudo systemctl edit user@.service; sudo systemctl restart {}, which ends all units of this user's own systemd",
                ShellWord::new(name, "UNIT")
            );
        }
    }
    if name.starts_with(USER_MANAGER) || is_scope(name, "session-") {
        return "'* - memlock unlimited' in /etc/security/limits.conf; log in anew".into();
    }
    let Some(unit) = unit(cgroup) else {
        return "ulimit -l unlimited in the shell that starts it".into();
    };
    let unit = ShellWord::new(unit, "UNIT");
    step!(
        "[Service] LimitMEMLOCK=infinity, by: sudo systemctl edit {}; sudo systemctl restart {}, which stops it",
        unit,
        unit
    )
}

/// What an RDMA cgroup counts under the name of a resource.
pub fn counted_as(resource: &str) -> &'static str {
    match resource {
        "hca_handle" => "device handles",
        _ => "RDMA objects",
    }
}

/// The command that ends an RDMA limit of a cgroup.
pub fn without_rdma_limit(device: &str, resource: &str, cgroup: &str) -> NextStep {
    step!(
        "printf '%s %s=max\\n' {} {} | sudo tee /sys/fs/cgroup{}/rdma.max",
        ShellWord::device(device),
        ShellWord::new(resource, "RESOURCE"),
        ShellWord::cgroup(cgroup)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn of_a_job_that_a_user_may_have_named_only_the_unit_is_believed() {
        let path = "/system.slice/x.service/slurmstepd.scope/job_7/step_0";
        assert!(raise(Some(believed(path, false))).contains("slurm.conf"));
        assert!(raise(Some(believed(path, true))).contains("systemctl edit x.service"));
        for (path, unit) in [
            (
                "/user.slice/x.service/slurmstepd.scope/job_7",
                "/user.slice/x.service",
            ),
            ("/lxc.payload.c1/docker/x", "/lxc.payload.c1"),
            ("/../a.slice", "/../a.slice"),
            ("/", "/"),
            ("", ""),
        ] {
            assert_eq!(believed(path, true), unit);
        }
    }

    #[test]
    fn the_advice_is_that_for_what_the_process_runs_in() {
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod8f4c7a52_1b2c_4d3e_9f10_0a1b2c3d4e5f.slice";
        for (cgroup, says) in [
            (
                "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0".to_owned(),
                "PropagateResourceLimitsExcept=MEMLOCK",
            ),
            (
                format!("{pod}/cri-containerd-{ID}.scope"),
                "UNIT of containerd-shim, by ps -eo unit,args; sudo systemctl edit UNIT: LimitMEMLOCK=infinity; sudo systemctl restart UNIT (pods go on)",
            ),
            (format!("{pod}/crio-{ID}.scope"), "crio.conf"),
            (
                format!("/system.slice/docker-{ID}.scope"),
                "docker run --ulimit memlock=-1",
            ),
            (format!("/docker/{ID}"), "docker run --ulimit memlock=-1"),
            (
                format!("/machine.slice/libpod-{ID}.scope/container"),
                "podman run --ulimit memlock=-1",
            ),
            (
                format!("/system.slice/nerdctl-{ID}.scope"),
                "nerdctl run --ulimit memlock=-1",
            ),
            (
                r"/machine.slice/machine-qemu\x2d2\x2dinstance.scope/libvirt/emulator".to_owned(),
                "hard_limit",
            ),
            (
                "/system.slice/kvstore.service".to_owned(),
                "[Service] LimitMEMLOCK=infinity, by: sudo systemctl edit kvstore.service",
            ),
            (
                "/system.slice/system-kv.slice/kv@7.service/worker".to_owned(),
                "systemctl edit kv@7.service",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service".to_owned(),
                "systemctl edit user@.service; sudo systemctl restart user@1000.service, which ends",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7/step_0".to_owned(),
                "systemctl edit user@.service",
            ),
            (
                "/user.slice/user-1000.slice/session-3.scope".to_owned(),
                "limits.conf",
            ),
            ("/".to_owned(), "ulimit -l unlimited"),
            (
                "/system.slice/a;reboot.service".to_owned(),
                "systemctl edit 'a;reboot.service'",
            ),
            // Below its unit, a container or a user gives the names.
            (
                "/system.slice/x.service/system.slice/sshd.service".to_owned(),
                "systemctl edit x.service;",
            ),
            (
                "/system.slice/x.service/user@0.service/y.service".to_owned(),
                "systemctl edit x.service;",
            ),
            (
                "/lxc.payload.c1/system.slice/sshd.service".to_owned(),
                "ulimit -l unlimited",
            ),
            (
                "/machine.slice/machine-c1.scope/payload/system.slice/slurmd.service".to_owned(),
                "ulimit -l unlimited",
            ),
            (
                "/../../system.slice/kvstore.service".to_owned(),
                "systemctl edit kvstore.service",
            ),
        ] {
            let said = raise(Some(&cgroup));
            assert!(said.contains(says), "{cgroup}: {said}");
            // A limit in a unit's file is none before something starts with it.
            let starts = ["systemctl restart ", "log in anew"];
            assert!(
                !said.contains("systemctl edit") || starts.iter().any(|start| said.contains(start)),
                "{cgroup}: {said}"
            );
            assert_eq!(
                said.contains("LimitMEMLOCK"),
                said.contains("systemctl edit"),
                "{cgroup}: {said}"
            );
            // And that must not read as if it ended what others run.
            let of_others = said.contains("restart UNIT") || said.contains("restart slurmd");
            assert!(!of_others || said.contains(" go on)"), "{cgroup}: {said}");
            let docker = said.contains("docker");
            assert_eq!(docker, cgroup.contains("docker"), "{cgroup}: {said}");
        }
        assert!(raise(None).contains("ulimit -l unlimited"));
    }

    #[test]
    fn scopes_that_a_shell_asks_for_have_the_limits_of_the_shell() {
        let podman = format!("user.slice/libpod-{ID}.scope/container");
        for (below, says) in [
            (
                podman.as_str(),
                "limits.conf; log in anew; podman run --ulimit memlock=-1",
            ),
            ("tmux-spawn-0b1c.scope", "limits.conf; log in anew"),
            (
                "app.slice/x.service/libpod-payload-7",
                "systemctl edit user@.service",
            ),
            (
                "app.slice/x.service/tmux-spawn-0b1c.scope",
                "systemctl edit user@.service",
            ),
        ] {
            let cgroup = format!("/user.slice/user-1000.slice/user@1000.service/{below}");
            for claimed in [false, true] {
                let said = raise(Some(believed(&cgroup, claimed)));
                assert!(said.contains(says), "{cgroup}: {said}");
            }
        }
    }
}
