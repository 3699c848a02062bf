//! Keeps other tasks off the CPU during one short call.
//!
//! While a task is inside a bpf(2) call that changes a map, the kernel runs no kprobe program on its CPU
//! (`bpf_disable_instrumentation`). A kernel that preempts tasks in system calls (`preempt=lazy`, as in
//! Debian's 7.2, or `full`) may run another task there meanwhile, and skips every program for that task until
//! the first one continues. A task of an ordinary policy never preempts one of `SCHED_FIFO` (sched(7)).

use rdmatop_sources::privileges::Raised;

/// Until this is dropped, the calling thread runs under `SCHED_FIFO`, if it has the right to (`CAP_SYS_NICE`
/// or `RLIMIT_RTPRIO`).
#[must_use = "the policy is put back when this is dropped"]
pub(crate) struct Unpreempted {
    /// The policy before, `None` if it was not changed.
    before: Option<libc::c_int>,
}

/// The policy of the calling thread. These are system calls, because musl's functions of these names fail:
/// POSIX means processes, Linux threads.
fn policy() -> Option<libc::c_int> {
    // SAFETY: 0 is the calling thread; the call takes no address.
    let number = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
    libc::c_int::try_from(number).ok().filter(|number| *number >= 0)
}

/// Whether a task of another ordinary policy can preempt one of this policy.
fn is_ordinary(policy: libc::c_int) -> bool {
    let policy = policy & !libc::SCHED_RESET_ON_FORK;
    [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy)
}

/// Sets the policy of the calling thread. All ordinary ones have priority 0.
fn set(policy: libc::c_int, priority: libc::c_int) -> bool {
    let param = libc::sched_param {
        sched_priority: priority,
    };
    // SAFETY: 0 is the calling thread; the kernel reads one `sched_param`, which outlives the call.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const param) == 0 }
}

impl Unpreempted {
    pub(crate) fn begin() -> Self {
        let before = policy().filter(|policy| is_ordinary(*policy));
        let raised = before.map(|_| Raised::for_priority());
        // The lowest priority is above that of all ordinary tasks.
        let before = before.filter(|_| set(libc::SCHED_FIFO, 1));
        drop(raised);
        Self { before }
    }
}

impl Drop for Unpreempted {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Leaving a real-time policy requires no right.
            set(before, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_is_real_time_for_the_length_of_the_call_and_then_as_before() {
        // Policies belong to threads: other tests keep theirs.
        let thread = std::thread::spawn(|| {
            let before = policy().unwrap();
            let guard = Unpreempted::begin();
            let during = policy().unwrap();
            // Where this process may not have the right, nothing changes.
            assert_eq!(!is_ordinary(during), guard.before.is_some());
            // A second one inside leaves the policy to the first.
            drop(Unpreempted::begin());
            assert_eq!(policy(), Some(during));
            drop(guard);
            assert_eq!(policy(), Some(before));
        });
        thread.join().unwrap();
    }
}
