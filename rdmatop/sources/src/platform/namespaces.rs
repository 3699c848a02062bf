//! The namespaces that rdmatop is in.

use crate::root::Root;

/// Fixed inode numbers of the first namespaces: `PROC_PID_INIT_INO` and `PROC_USER_INIT_INO` in
/// include/linux/proc_ns.h.
const INITIAL_PID: u64 = 0xEFFF_FFFC;
const INITIAL_USER: u64 = 0xEFFF_FFFD;

/// Whether rdmatop is in the PID namespace of the machine. In any other one the kernel names no owner of an
/// RDMA resource that is outside of it.
pub(super) fn is_initial_pid(root: &Root) -> Option<bool> {
    is_initial(root, "self/ns/pid", INITIAL_PID)
}

/// Whether rdmatop is in the user namespace of the machine. In any other one root may not use eBPF.
pub fn is_initial_user(root: &Root) -> Option<bool> {
    is_initial(root, "self/ns/user", INITIAL_USER)
}

fn is_initial(root: &Root, link: &str, initial: u64) -> Option<bool> {
    Some(namespace(&root.link(&root.proc(link))?)? == initial)
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
        let both = |root: Root| (is_initial_pid(&root), is_initial_user(&root));
        assert_eq!(both(fake.root()), (Some(true), Some(false)));
        assert_eq!(both(Fake::new().root()), (None, None));
    }

    #[test]
    fn odd_namespace_links_are_unknown() {
        for link in ["net:[]", "net:[x]", "net", "net:[5", ""] {
            assert_eq!(namespace(link.as_bytes()), None, "{link:?}");
        }
    }
}
