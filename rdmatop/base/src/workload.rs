//! The job behind a cgroup path: Slurm, Kubernetes, containers, virtual machines.

/// The job, pod and container that a cgroup path names. They nest (a Slurm job in a pod, a container in a
/// job), so all are kept, each the innermost of its kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    /// Slurm job.
    pub slurm: Option<SlurmJob>,
    /// Kubernetes pod: its UID as the API shows it (with `-`).
    pub pod: Option<String>,
    /// Container, of a pod or on its own: its id, 64 hexadecimal digits.
    pub container: Option<String>,
    /// libvirt virtual machine, as systemd-machined names it.
    pub machine: Option<String>,
    /// A user may have made the directory that names it: below the cgroup of a user's own systemd, of an
    /// unprivileged LXC container, and below any other that is not root's, each user makes what he likes.
    /// What it names is a claim, by which nothing may be summed or decided.
    pub claimed: bool,
}

/// A Slurm job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmJob {
    /// Job number.
    pub job: u64,
    /// Step: a number, `batch`, `extern` or `interactive`.
    pub step: Option<String>,
}

impl Workload {
    /// Reads one path, whose directories are known by their names alone. Leading `/..` (the view from another
    /// cgroup namespace) and systemd's `\xNN` are understood.
    pub fn from_path(path: &str) -> Self {
        Self::named(path, usize::MAX)
    }

    /// Reads one path as [`Self::from_path`] does. Only the first `by_root` of its names were given by root:
    /// the directory of the last of these belongs to a user, who names what is below it.
    pub fn named(path: &str, by_root: usize) -> Self {
        let mut out = Self::default();
        let mut above = "";
        let mut delegated = false;
        let names = path.split('/').filter(|name| !name.is_empty() && *name != "..");
        // "pod.slice:cri-containerd:ID" is one directory when containerd and runc disagree about the driver.
        let parts = names
            .enumerate()
            .flat_map(|(at, name)| name.split(':').map(move |part| (at, part)));
        for (at, raw) in parts.filter(|(_, part)| !part.is_empty()) {
            let part = unescape(raw);
            if !delegated && (at >= by_root || is_delegated(raw)) {
                // What root named outside stands, whatever is claimed further in.
                if out.names_any() {
                    return out;
                }
                delegated = true;
            }
            out.slurm_part(&part, above);
            if let Some(pod) = pod(&part, above) {
                out.pod = Some(pod);
                // A container further out is the node of a cluster in containers, not this pod's.
                out.container = None;
            }
            if let Some(container) = container(&part, above) {
                out.container = Some(container);
            }
            if let Some(name) = part
                .strip_prefix("machine-qemu-")
                .and_then(|name| name.strip_suffix(".scope"))
            {
                out.machine = Some(name.to_owned());
            }
            above = raw;
        }
        out.claimed = delegated && out.names_any();
        out
    }

    /// Whether it names a job, pod, container or machine.
    pub fn names_any(&self) -> bool {
        self.slurm.is_some() || self.pod.is_some() || self.container.is_some() || self.machine.is_some()
    }

    /// Takes from `other` what is not known yet: on a hybrid machine several paths complement each other. A
    /// claim gives way to what root named.
    pub fn fill_from(&mut self, other: &Self) {
        if !other.names_any() || (other.claimed && !self.claimed && self.names_any()) {
            return;
        }
        if !self.names_any() || (self.claimed && !other.claimed) {
            self.clone_from(other);
            return;
        }
        self.slurm = self.slurm.take().or_else(|| other.slurm.clone());
        self.pod = self.pod.take().or_else(|| other.pod.clone());
        self.container = self.container.take().or_else(|| other.container.clone());
        self.machine = self.machine.take().or_else(|| other.machine.clone());
    }

    fn slurm_part(&mut self, part: &str, above: &str) {
        // Version 2: below `slurmstepd.scope` or `NODE_slurmstepd.scope`; version 1: below `uid_N`.
        let in_slurm =
            above == "slurmstepd.scope" || above.ends_with("_slurmstepd.scope") || above.starts_with("uid_");
        let job = part.strip_prefix("job_").and_then(|number| number.parse().ok());
        if let (true, Some(job)) = (in_slurm, job) {
            self.slurm = Some(SlurmJob { job, step: None });
        } else if let Some(slurm) = &mut self.slurm
            && let (Some(step), true) = (part.strip_prefix("step_"), above.starts_with("job_"))
        {
            slurm.step = Some(step.to_owned());
        }
    }
}

/// Whether a directory is handed over to a user, who may then make directories below it: `user@1000.service`,
/// `lxc.payload.NAME`.
fn is_delegated(part: &str) -> bool {
    let of_systemd = part.starts_with("user@") && part.strip_suffix(".service").is_some();
    of_systemd || part.starts_with("lxc.payload.")
}

/// `kubepods-burstable-podUID.slice` (systemd driver, `_` for `-`), or `podUID` below `kubepods` (cgroupfs
/// driver).
fn pod(part: &str, above: &str) -> Option<String> {
    let (uid, place) = match part.strip_suffix(".slice") {
        Some(slice) => {
            let (place, uid) = slice.rsplit_once("-pod")?;
            // A cluster in containers (kind) puts its own prefix before: `kubelet-kubepods-...`.
            (place.contains("kubepods").then(|| uid.replace('_', "-"))?, place)
        }
        None => (part.strip_prefix("pod")?.to_owned(), above),
    };
    // The slice of a quality-of-service class, or of the class without a slice.
    if !matches!(place.rsplit('-').next()?, "burstable" | "besteffort" | "kubepods") {
        return None;
    }
    // 36 characters, or 32 without dashes for static pods, whose UID is a hash of their file.
    let is_uid = matches!(uid.len(), 32..=36) && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    is_uid.then_some(uid)
}

fn container(part: &str, above: &str) -> Option<String> {
    const SCOPES: [&str; 6] = [
        "cri-containerd-",
        "nerdctl-",
        "crio-",
        "docker-",
        "libpod-payload-",
        "libpod-",
    ];
    let name = part.strip_suffix(".scope").unwrap_or(part);
    let of_scope = SCOPES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let by_place = matches!(above, "docker" | "cri-containerd") || above.starts_with("pod");
    let id = of_scope.or_else(|| by_place.then_some(name))?;
    // `libpod-conmon-ID` and `crio-conmon-ID` are the monitors beside the containers: the length
    // distinguishes them.
    let is_id = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    is_id.then(|| id.to_owned())
}

/// Undoes `systemd-escape` for printable ASCII; an escape of anything else stays visible.
fn unescape(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    let mut rest = part;
    while let Some((before, after)) = rest.split_once("\\x") {
        out.push_str(before);
        let byte = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte.filter(u8::is_ascii_graphic) {
            out.push(char::from(byte));
            rest = &after[2..];
        } else {
            out.push_str("\\x");
            rest = after;
        }
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const UID: &str = "8f4c7a52-1b2c-4d3e-9f10-0a1b2c3d4e5f";
    const UID_SYSTEMD: &str = "8f4c7a52_1b2c_4d3e_9f10_0a1b2c3d4e5f";

    fn at(path: &str) -> Workload {
        Workload::from_path(
            &path
                .replace("<id>", ID)
                .replace("<uid>", UID)
                .replace("<uid_>", UID_SYSTEMD),
        )
    }

    #[test]
    fn slurm_paths_of_both_versions_name_job_and_step() {
        for (path, job, step) in [
            (
                "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0",
                211,
                Some("0"),
            ),
            (
                "/system.slice/slurmstepd.scope/job_211/step_batch/user/task_special",
                211,
                Some("batch"),
            ),
            (
                "/system.slice/slurmstepd.scope/job_5/step_extern",
                5,
                Some("extern"),
            ),
            (
                "/system.slice/node-1_slurmstepd.scope/job_5/step_interactive/slurm",
                5,
                Some("interactive"),
            ),
            ("/slurm/uid_1000/job_211/step_0/task_3", 211, Some("0")),
            ("/slurm_node1/uid_1000/job_211", 211, None),
            ("/../../system.slice/slurmstepd.scope/job_9/step_1", 9, Some("1")),
        ] {
            let step = step.map(Into::into);
            assert_eq!(at(path).slurm, Some(SlurmJob { job, step }), "{path}");
        }
        for path in [
            "/user.slice/job_5",
            "/system.slice/slurmstepd.scope/system",
            "/slurm/uid_1/job_x",
            "/",
            "",
        ] {
            assert_eq!(at(path).slurm, None, "{path}");
        }
    }

    #[test]
    fn kubernetes_paths_of_both_drivers_name_pod_and_container() {
        let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid_>.slice";
        for path in [
            format!("{slice}/cri-containerd-<id>.scope"),
            format!("/../..{slice}/crio-<id>.scope"),
            format!("{slice}/docker-<id>.scope/inner"),
            "/kubepods.slice/kubepods-pod<uid_>.slice/cri-containerd-<id>.scope".into(),
            "/kubepods/besteffort/pod<uid>/<id>".into(),
            "/kubepods/burstable/pod<uid>/<id>".into(),
            "/kubepods/pod<uid>/<id>".into(),
            "/system.slice/containerd.service/kubepods-burstable-pod<uid_>.slice:cri-containerd:<id>".into(),
            format!(
                "/docker/{}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<uid_>.slice/cri-containerd-<id>.scope",
                "f".repeat(64)
            ),
        ] {
            let got = at(&path);
            assert_eq!(got.pod, Some(UID.into()), "{path}");
            assert_eq!(got.container, Some(ID.into()), "{path}");
        }
    }

    #[test]
    fn the_pause_level_of_a_pod_has_no_container() {
        let got = at("/docker/<id>/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod<uid_>.slice");
        assert_eq!((got.pod, got.container), (Some(UID.into()), None));
    }

    #[test]
    fn a_static_pod_has_a_uid_without_dashes() {
        let hash = "0a1b2c3d4e5f60718293a4b5c6d7e8f9";
        assert_eq!(
            at(&format!("/kubepods/burstable/pod{hash}/<id>")).pod,
            Some(hash.into())
        );
    }

    #[test]
    fn docker_podman_and_nerdctl_containers_are_named() {
        for path in [
            "/docker/<id>",
            "/system.slice/docker-<id>.scope",
            "/machine.slice/libpod-<id>.scope",
            "/machine.slice/libpod-<id>.scope/container",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-<id>.scope",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service/libpod-payload-<id>",
            "/system.slice/nerdctl-<id>.scope",
        ] {
            assert_eq!(at(path).container, Some(ID.into()), "{path}");
        }
        for path in [
            "/machine.slice/libpod-conmon-<id>.scope",
            "/system.slice/docker.service",
            "/docker/buildx",
            "/<id>",
        ] {
            assert_eq!(at(path).container, None, "{path}");
        }
    }

    #[test]
    fn a_libvirt_machine_is_unescaped() {
        let got = at("/machine.slice/machine-qemu\\x2d2\\x2dinstance\\x2d0000001f.scope/libvirt/emulator");
        assert_eq!(got.machine.as_deref(), Some("2-instance-0000001f"));
    }

    #[test]
    fn what_a_user_may_have_named_is_a_claim() {
        let own = "/user.slice/user-1000.slice/user@1000.service";
        for forged in [
            "slurmstepd.scope/job_777/step_0/user/task_0",
            "app.slice/uid_0/job_777/step_0",
            "kubepods.slice/kubepods-pod<uid_>.slice/cri-containerd-<id>.scope",
            "kubepods/pod<uid>/<id>",
            "docker/<id>",
            "user.slice/libpod-<id>.scope",
            "machine.slice/machine-qemu\\x2d2\\x2dinstance.scope",
        ] {
            for below in [own, "/../..//user@0.service", "/lxc.payload.c1/system.slice"] {
                let got = at(&format!("{below}/{forged}"));
                assert!(got.claimed && got.names_any(), "{below}/{forged}");
            }
            let of_root = at(&format!("/system.slice/{forged}"));
            assert!(!of_root.claimed && of_root.names_any(), "{forged}");
            // A directory of a pod that is called like that of a user claims nothing beside the pod.
            let pod = "/kubepods/pod<uid>/<id>";
            assert_eq!(
                at(&format!("{pod}/user@1000.service/slurmstepd.scope/job_7")),
                at(pod)
            );
        }
        assert!(
            !at(&format!("{own}/app.slice/x.service")).claimed,
            "it names none"
        );
        assert!(!at("/system.slice/user@.service.d/docker/<id>").claimed);
    }

    #[test]
    fn what_is_below_a_directory_of_a_user_is_a_claim_whatever_that_is_called() {
        let job = "/system.slice/x.service/slurmstepd.scope/job_777/step_0";
        for by_root in 0..4 {
            let got = Workload::named(job, by_root);
            assert!(got.claimed && got.slurm.is_some(), "{by_root}");
        }
        // Root named the job, and the step below it is a user's.
        let got = Workload::named(job, 4);
        let want = SlurmJob { job: 777, step: None };
        assert_eq!((got.claimed, got.slurm), (false, Some(want)));
        for by_root in [5, 6, usize::MAX] {
            assert_eq!(Workload::named(job, by_root), at(job), "{by_root}");
        }
        // Names are counted by directory, not by part.
        let pod = format!("/x.service/kubepods-pod{UID_SYSTEMD}.slice:cri-containerd:{ID}");
        let got = Workload::named(&pod, 2);
        assert!(!got.claimed && got.pod.is_some() && got.container.is_some());
        assert!(Workload::named(&pod, 1).claimed);
        assert!(!Workload::named("/x.service/app", 1).claimed, "it names none");
    }

    #[test]
    fn what_root_named_in_one_hierarchy_stands_against_a_claim_in_another() {
        let claim = at("/user@1000.service/slurmstepd.scope/job_777/step_0");
        let real = at("/slurm/uid_1000/job_211/step_0");
        for (mut first, second) in [(claim.clone(), &real), (real.clone(), &claim)] {
            first.fill_from(second);
            assert_eq!(first, real);
        }
        let mut first = claim.clone();
        first.fill_from(&Workload::default());
        assert_eq!(first, claim);
        let mut first = Workload::default();
        first.fill_from(&claim);
        assert_eq!(first, claim);
    }

    #[test]
    fn a_job_in_a_pod_keeps_both() {
        let got = at("/kubepods/pod<uid>/<id>/system.slice/slurmstepd.scope/job_3/step_0");
        assert!(got.pod.is_some() && got.container.is_some());
        assert_eq!(got.slurm.map(|s| s.job), Some(3));
    }

    #[test]
    fn escapes_that_are_not_printable_ascii_stay() {
        assert_eq!(unescape("a\\x2db\\x0ac\\x1b\\xzz\\x2"), "a-b\\x0ac\\x1b\\xzz\\x2");
    }

    proptest! {
        #[test]
        fn no_path_panics_and_escaping_a_second_time_brings_nothing_back(path: String) {
            let _ = Workload::from_path(&path);
            prop_assert!(unescape(&path).chars().filter(|c| c.is_control()).count() <= path.chars().filter(|c| c.is_control()).count());
        }
    }
}
