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
    before: Option<Policy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Policy {
    number: libc::c_int,
    priority: libc::c_int,
}

impl Policy {
    /// The policy of the calling thread.
    fn now() -> Option<Self> {
        let mut param = libc::sched_param { sched_priority: 0 };
        // Use the system calls, because musl's functions of these names fail: POSIX means processes, Linux
        // threads. SAFETY: 0 is the calling thread; the call takes no address.
        let number = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) };
        // SAFETY: the kernel writes one `sched_param`, which outlives the call.
        let rc = unsafe { libc::syscall(libc::SYS_sched_getparam, 0, &raw mut param) };
        let number = libc::c_int::try_from(number).ok().filter(|number| *number >= 0)?;
        (rc == 0).then_some(Self {
            number,
            priority: param.sched_priority,
        })
    }

    /// Whether a task of an ordinary policy never preempts one of this policy.
    fn is_real_time(self) -> bool {
        let policy = self.number & !libc::SCHED_RESET_ON_FORK;
        ![libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].contains(&policy)
    }

    /// Sets this policy for the calling thread.
    fn set(self) -> bool {
        let param = libc::sched_param {
            sched_priority: self.priority,
        };
        // SAFETY: 0 is the calling thread; the kernel reads one `sched_param`, which outlives the call.
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, self.number, &raw const param) == 0 }
    }
}

impl Unpreempted {
    pub(crate) fn begin() -> Self {
        /// The lowest priority above that of all ordinary tasks.
        const FIFO: Policy = Policy {
            number: libc::SCHED_FIFO,
            priority: 1,
        };
        let before = Policy::now().filter(|policy| !policy.is_real_time());
        let raised = before.map(|_| Raised::for_priority());
        let before = before.filter(|_| FIFO.set());
        drop(raised);
        Self { before }
    }
}

impl Drop for Unpreempted {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Leaving a real-time policy requires no right.
            before.set();
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
            let before = Policy::now().unwrap();
            let guard = Unpreempted::begin();
            let during = Policy::now().unwrap();
            // Where this process may not have the right, nothing changes.
            assert_eq!(during.is_real_time(), guard.before.is_some());
            // A second one inside leaves the policy to the first.
            drop(Unpreempted::begin());
            assert_eq!(Policy::now(), Some(during));
            drop(guard);
            assert_eq!(Policy::now(), Some(before));
        });
        thread.join().unwrap();
    }
}
