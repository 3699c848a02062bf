//! Which limit of this process caused a refusal: the kernel answers ENOMEM or EAGAIN for several of them.

use std::thread;

use rustix::process::{Resource, getrlimit};

use super::root::Root;
use rdmatop_model::cause::{CauseId, Obstacle};

/// Address space that a thread, a ring buffer or a map of counters needs, with a reserve.
const NEEDED: u64 = 64 << 20;

/// The remedy when memory was refused.
pub fn memory() -> &'static str {
    unless_short_of_addresses("free memory, or raise the memory limit of the cgroup")
}

/// The remedy when a thread was refused: its stack may not fit, or the limit of processes is reached.
pub fn threads() -> &'static str {
    unless_short_of_addresses("raise the limit of processes (ulimit -u in bash), or pids.max of the cgroup")
}

/// The remedy, or that for too little address space.
fn unless_short_of_addresses(remedy: &'static str) -> &'static str {
    if short_of_addresses(&Root::default()) {
        "raise the limit of address space: `ulimit -v unlimited`"
    } else {
        remedy
    }
}

/// Runs `work` on a thread of this name that nobody waits for.
///
/// # Errors
///
/// Why the thread was not started, and the remedy.
pub fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), Obstacle> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        let why = format!("cannot start a thread: {error}");
        Obstacle::new(CauseId::NoThread, why, threads())
    })
}

/// The remedy when opening a file was refused.
pub const FILES: &str = "raise the limit of open files: `ulimit -n 4096`";

/// The remedy where maps and programs are charged to the limit of locked memory.
pub const LOCKED: &str = "raise the limit of locked memory: `ulimit -l unlimited`, or add CAP_SYS_RESOURCE";

/// Whether maps and programs may be refused with EPERM because they are charged to the limit of locked
/// memory, as before Linux 5.11 (`bpf_charge_memlock`), and that limit is low. Later kernels charge the
/// cgroup.
pub fn locked_memory_is_short() -> bool {
    charges_locked_memory(kernel_version()) && getrlimit(Resource::Memlock).current.is_some()
}

fn charges_locked_memory(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version < (5, 11))
}

/// Major and minor version of the kernel.
pub fn kernel_version() -> Option<(u32, u32)> {
    Root::default().kernel_version()
}

/// Address space that is left, bytes; `None` without a limit.
pub fn addresses_left() -> Option<u64> {
    left(&Root::default())
}

fn short_of_addresses(root: &Root) -> bool {
    left(root).is_some_and(|left| left < NEEDED)
}

fn left(root: &Root) -> Option<u64> {
    // statm: the first number is the size in pages.
    let pages = root.line(&root.proc("self/statm"));
    let pages = pages.and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    let size = pages.map_or(0, |pages| pages.saturating_mul(page));
    Some(getrlimit(Resource::As).current?.saturating_sub(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_blamed_only_on_kernels_that_charge_it() {
        for (release, charges) in [
            ("5.10.0-32-amd64", true),
            ("5.11.0", false),
            ("6.1.0-41", false),
            ("", false),
        ] {
            assert_eq!(
                charges_locked_memory(crate::root::kernel_version(release)),
                charges,
                "{release}"
            );
        }
    }

    #[test]
    fn without_a_limit_of_address_space_it_is_not_blamed() {
        assert_eq!(getrlimit(Resource::As).current, None, "the tests run without one");
        assert_eq!(addresses_left(), None);
        assert!(memory().contains("cgroup") && threads().contains("ulimit -u"));
    }
}
