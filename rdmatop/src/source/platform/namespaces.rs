//! What is around rdmatop: namespaces and containers.
use serde::{Deserialize, Serialize};

use crate::source::proc::{Cgroup, Runtime};
use crate::source::root::Root;

/// Fixed inode numbers of the first namespaces: `PROC_PID_INIT_INO` and `PROC_USER_INIT_INO` in
/// include/linux/proc_ns.h.
const INITIAL_PID: u64 = 0xEFFF_FFFC;
const INITIAL_USER: u64 = 0xEFFF_FFFD;

/// Facts; `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// rdmatop is in the PID namespace of the machine. In another one the kernel leaves the owners of RDMA
    /// resources outside of it out of every answer.
    pub initial_pid_namespace: Option<bool>,
    /// rdmatop is in the user namespace of the machine. In another one root has no say over eBPF.
    pub initial_user_namespace: Option<bool>,
    /// What looks like a container around rdmatop: `docker`, `podman`, `kubernetes`, or systemd's own word.
    pub container: Option<String>,
}

impl Surroundings {
    pub(crate) fn read(root: &Root) -> Self {
        let inode = |kind: &str| namespace(&root.link(&root.proc("self/ns").join(kind))?);
        Self {
            initial_pid_namespace: inode("pid").map(|ns| ns == INITIAL_PID),
            initial_user_namespace: inode("user").map(|ns| ns == INITIAL_USER),
            container: container(root),
        }
    }
}

/// The inode in "pid:[4026531836]".
fn namespace(link: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(link).ok()?;
    text.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

/// Hints only, strongest first: each manager leaves a mark in the root of its containers; the cgroup tells
/// where the cgroup namespace is shared with the host.
fn container(root: &Root) -> Option<String> {
    const CGROUP_LIMIT: usize = 64 << 10;
    let marked = |mark: &str| root.proc("self/root").join(mark).exists();
    if marked("var/run/secrets/kubernetes.io") {
        return Some("kubernetes".into());
    }
    if let Some(word) = root.line(&root.proc("self/root/run/systemd/container")) {
        return Some(word);
    }
    if marked(".dockerenv") {
        return Some("docker".into());
    }
    if marked("run/.containerenv") {
        return Some("podman".into());
    }
    let workload = Cgroup::parse(&root.bytes(&root.proc("self/cgroup"), CGROUP_LIMIT)?)?.workload;
    if workload.pod.is_some() {
        return Some("kubernetes".into());
    }
    let word = match workload.container?.runtime {
        Some(Runtime::Docker) => "docker",
        Some(Runtime::Podman) => "podman",
        Some(Runtime::Containerd) => "containerd",
        Some(Runtime::CriO) => "cri-o",
        None => "container",
    };
    Some(word.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn the_first_namespaces_are_known_by_their_fixed_numbers() {
        let fake = Fake::new();
        fake.link("proc/self/ns/pid", "pid:[4026531836]")
            .link("proc/self/ns/user", "user:[4026532200]");
        let got = Surroundings::read(&fake.root());
        assert_eq!(
            (got.initial_pid_namespace, got.initial_user_namespace),
            (Some(true), Some(false))
        );
        let nothing = Surroundings::read(&Fake::new().root());
        assert_eq!(nothing, Surroundings::default());
    }

    #[test]
    fn odd_namespace_links_are_unknown() {
        for link in ["net:[]", "net:[x]", "net", "net:[5", ""] {
            assert_eq!(namespace(link.as_bytes()), None, "{link:?}");
        }
    }

    #[test]
    fn a_container_is_known_by_its_marks_or_by_its_cgroup() {
        let cgroup = Fake::new();
        cgroup.proc(
            "self/cgroup",
            format!("0::/machine.slice/libpod-{}.scope\n", "a".repeat(64)),
        );
        assert_eq!(container(&cgroup.root()).as_deref(), Some("podman"));
        let marks = Fake::new();
        marks.proc("self/root/.dockerenv", "");
        assert_eq!(container(&marks.root()).as_deref(), Some("docker"));
        marks.proc("self/root/var/run/secrets/kubernetes.io/x", "");
        assert_eq!(container(&marks.root()).as_deref(), Some("kubernetes"));
        let host = Fake::new();
        host.proc("self/cgroup", "0::/user.slice\n");
        assert_eq!(container(&host.root()), None);
    }
}
