//! The namespaces that rdmatop is in.

use crate::root::Root;

/// Fixed inode numbers of the first namespaces: `PROC_PID_INIT_INO` and `PROC_USER_INIT_INO` in
/// include/linux/proc_ns.h.
const INITIAL_PID: u64 = 0xEFFF_FFFC;
const INITIAL_USER: u64 = 0xEFFF_FFFD;

/// Facts; `None` is unknown.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// rdmatop is in the PID namespace of the machine. In any other one the kernel names no owner of an RDMA
    /// resource that is outside of it.
    pub initial_pid_namespace: Option<bool>,
    /// rdmatop is in the user namespace of the machine. In any other one root may not use eBPF.
    pub initial_user_namespace: Option<bool>,
}

impl Namespaces {
    /// Reads the namespaces of this process.
    pub fn read(root: &Root) -> Self {
        let inode = |kind: &str| namespace(&root.link(&root.proc("self/ns").join(kind))?);
        Self {
            initial_pid_namespace: inode("pid").map(|ns| ns == INITIAL_PID),
            initial_user_namespace: inode("user").map(|ns| ns == INITIAL_USER),
        }
    }
}

/// The inode in "pid:[4026531836]".
pub(crate) fn namespace(link: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(link).ok()?;
    text.split_once(":[")?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn the_first_namespaces_are_known_by_their_fixed_numbers() {
        let fake = Fake::new();
        fake.link("proc/self/ns/pid", "pid:[4026531836]")
            .link("proc/self/ns/user", "user:[4026532200]");
        let got = Namespaces::read(&fake.root());
        assert_eq!(
            (got.initial_pid_namespace, got.initial_user_namespace),
            (Some(true), Some(false))
        );
        let nothing = Namespaces::read(&Fake::new().root());
        assert_eq!(nothing, Namespaces::default());
    }

    #[test]
    fn odd_namespace_links_are_unknown() {
        for link in ["net:[]", "net:[x]", "net", "net:[5", ""] {
            assert_eq!(namespace(link.as_bytes()), None, "{link:?}");
        }
    }
}
