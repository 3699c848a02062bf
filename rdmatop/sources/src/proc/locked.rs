//! How much memory a process may lock, and how much drivers hold for it.

use crate::{execs, proc::Status, root::Root};
use rdmatop_model::input::LockedMemory;

/// Bytes of `/proc/PID/limits` that are read.
const LIMITS: usize = 16 << 10;
/// `CAP_IPC_LOCK` of capabilities(7).
const IPC_LOCK: u64 = 1 << 14;
/// `PROC_USER_INIT_INO`, include/linux/proc_ns.h: in another user namespace the capability does not count.
const FIRST_USER_NAMESPACE: &[u8] = b"user:[4026531837]";

/// What decides whether `ib_umem_get` (drivers/infiniband/core/umem.c) lets a process register more memory;
/// `None` when it has ended, or its limits are not readable.
pub fn locked(root: &Root, pid: u32) -> Option<LockedMemory> {
    let limits = root.bytes(&root.proc(format!("{pid}/limits")), LIMITS)?;
    let status = Status::read(root, &root.proc(pid.to_string()));
    let namespace = || {
        execs::one(root, pid, |root, pid| {
            root.link(&root.proc(format!("{pid}/ns/user")))
        })?
    };
    Some(LockedMemory {
        pid,
        limit: memlock(&limits)?,
        exempt: status.as_ref().and_then(|status| exempt(status, namespace)),
        pinned: status.and_then(|status| status.pinned),
    })
}

/// Whether the limit does not count for a process; `namespace`: its user namespace, `None` when that cannot
/// be read. Then nobody knows of a process with the capability whether it counts (`capable` in `ib_umem_get`
/// asks for the first user namespace): any user has all capabilities in a user namespace of his own.
pub fn exempt(status: &Status, namespace: impl FnOnce() -> Option<Vec<u8>>) -> Option<bool> {
    let has = status.cap_eff? & IPC_LOCK != 0;
    if !has {
        return Some(false);
    }
    Some(namespace()? == FIRST_USER_NAMESPACE)
}

/// The soft limit in `/proc/PID/limits`, bytes: `Some(None)` is unlimited, and `None` means that the file has
/// no such line.
pub fn memlock(raw: &[u8]) -> Option<Option<u64>> {
    let text = String::from_utf8_lossy(raw);
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    Some(match line.split_whitespace().next()? {
        "unlimited" => None,
        bytes => Some(bytes.parse().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn limit_capability_and_pinned_memory_are_read() {
        let fake = Fake::new();
        let limits = |limit: &str| {
            format!("Limit  Soft Limit  Hard Limit  Units\nMax locked memory  {limit}  unlimited  bytes\n")
        };
        fake.proc("7/limits", limits("65536"))
            .proc("7/status", "CapEff:\t0000000000000000\nVmPin:\t 60 kB\n");
        fake.proc("8/limits", limits("unlimited"));
        fake.proc("9/limits", limits("8388608"))
            .proc("9/status", "CapEff:\t0000000000004000\n");
        fake.link("proc/9/ns/user", "user:[4026531837]");
        fake.proc("10/limits", "Max open files 1024 1024 files\n");
        let of = |pid| locked(&fake.root(), pid).map(|got| (got.limit, got.exempt, got.pinned));
        assert_eq!(of(7), Some((Some(65_536), Some(false), Some(60 << 10))));
        assert_eq!(of(8), Some((None, None, None)));
        assert_eq!(of(9), Some((Some(8 << 20), Some(true), None)));
        assert_eq!(of(10), None);
        assert_eq!(of(11), None);
    }

    #[test]
    fn the_capability_counts_in_the_first_user_namespace_alone() {
        let status = Status::parse(b"CapEff:\t0000000000004000\n");
        assert_eq!(
            exempt(&status, || Some(b"user:[4026531837]".to_vec())),
            Some(true)
        );
        assert_eq!(
            exempt(&status, || Some(b"user:[4026532999]".to_vec())),
            Some(false)
        );
        assert_eq!(
            exempt(&status, || None),
            None,
            "whose namespace it is, is not readable"
        );
        let without = Status::parse(b"CapEff:\t0000000000000000\n");
        assert_eq!(exempt(&without, || None), Some(false));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, value in "\\PC{0,30}") {
            let _ = memlock(&raw);
            let _ = memlock(format!("Max locked memory {value}\n").as_bytes());
        }
    }
}
