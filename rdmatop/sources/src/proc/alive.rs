//! Whether a process exists.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::basic::dir;
use crate::root::Root;

/// Whether a process with this number exists. /proc may not be mounted, or hide processes of other users
/// (hidepid); then kill(2) with signal 0 answers: EPERM for another user's process, ESRCH for none.
pub fn lives(root: &Root, pid: u32) -> bool {
    let signalled = || {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        root.is_live() && number.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
    };
    dir(root, pid).exists() || signalled()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_proc_hides_is_asked_for_by_signal() {
        let live = Root::default();
        assert!(lives(&live, std::process::id()) && lives(&live, 1));
        assert!(!lives(&live, u32::MAX) && !lives(&live, 0));
        let other = crate::fake::Fake::new();
        assert!(!lives(&other.root(), 1), "another machine's");
        other.proc("7/comm", "x\n");
        assert!(lives(&other.root(), 7));
    }
}
