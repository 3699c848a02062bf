//! Limits of the process that it may raise itself.

use crate::exit::Stop;
use rdmatop_sources::limits;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Enough open files: three for each program, two for each watched process, and a reserve.
const FILES: u64 = 4096;

/// With fewer, the terminal, the threads and netlink cannot be opened, which would look like a machine
/// without RDMA. With this many, up to some hundred, everything but eBPF works.
const LEAST: u64 = 32;

/// Raises the soft limit of open files to the hard one: shells and service managers set it low for programs
/// that use select(2), and rdmatop does not.
pub(super) fn raise() {
    // If this is refused the old limit stays.
    let _ = setrlimit(Resource::Nofile, wanted(getrlimit(Resource::Nofile)));
}

/// With less address space an allocation may fail anywhere, which ends a program without a message: the
/// stacks of threads, the kernel's BTF, the tables of a large machine.
const LEAST_ADDRESSES: u64 = 40 << 20;

/// Ends rdmatop with a message where too few files or too little memory are allowed to read anything.
pub(super) fn check() -> Result<(), Stop> {
    enough(getrlimit(Resource::Nofile).current)?;
    roomy(limits::addresses_left())
}

fn roomy(left: Option<u64>) -> Result<(), Stop> {
    match left {
        Some(left) if left < LEAST_ADDRESSES => Err(Stop::failure(format!(
            "cannot start: {} MB of address space are too few; raise the limit: `ulimit -v unlimited`",
            left >> 20
        ))),
        _ => Ok(()),
    }
}

fn enough(files: Option<u64>) -> Result<(), Stop> {
    match files {
        Some(files) if files < LEAST => Err(Stop::failure(format!(
            "cannot start: {files} open files are too few; raise the limit: `ulimit -n 1024`"
        ))),
        _ => Ok(()),
    }
}

fn wanted(now: Rlimit) -> Rlimit {
    let most = now.maximum.map_or(FILES, |hard| hard.min(FILES));
    Rlimit {
        current: now.current.map(|soft| soft.max(most)),
        ..now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_files_are_a_failure_and_not_a_machine_without_rdma() {
        assert_eq!(
            (enough(None), enough(Some(1024)), enough(Some(LEAST))),
            (Ok(()), Ok(()), Ok(()))
        );
        let stop = enough(Some(9)).unwrap_err();
        assert_eq!(stop.exit, crate::exit::Exit::Failure);
        assert!(
            stop.line.contains("9 open files") && stop.line.contains("ulimit -n"),
            "{stop}"
        );
    }

    #[test]
    fn a_memory_limit_that_would_end_it_without_a_message_is_reported_first() {
        assert_eq!((roomy(None), roomy(Some(1 << 30))), (Ok(()), Ok(())));
        let stop = roomy(Some(20 << 20)).unwrap_err();
        assert!(
            stop.line.contains("20 MB") && stop.line.contains("ulimit -v"),
            "{stop}"
        );
    }

    #[test]
    fn the_soft_limit_rises_to_the_hard_one_and_never_falls() {
        let after = |current, maximum| {
            let limit = wanted(Rlimit { current, maximum });
            assert_eq!(limit.maximum, maximum);
            limit.current
        };
        assert_eq!(after(Some(20), Some(20)), Some(20));
        assert_eq!(after(Some(20), Some(100)), Some(100));
        assert_eq!(after(Some(256), None), Some(FILES));
        assert_eq!(after(Some(100_000), Some(200_000)), Some(100_000));
        assert_eq!(after(None, None), None);
    }
}
