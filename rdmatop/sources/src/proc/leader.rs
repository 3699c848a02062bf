//! The process that a thread belongs to: netlink may name the thread that created a resource.

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{basic::dir, status::Status};
use crate::root::Root;

/// The process that a thread belongs to; the number itself where that is not known, as of a thread that has
/// ended. The kernel names in `RDMA_NLDEV_ATTR_RES_PID` the task that made the object
/// (`rdma_restrack_entry.task`), which may be any thread of its process.
pub fn process_of(root: &Root, tid: u32) -> u32 {
    // pidfd_open(2) accepts only the leader of a process, and costs a tenth of reading its status.
    let leader = i32::try_from(tid).ok().and_then(Pid::from_raw);
    if root.is_live() && leader.is_some_and(|pid| pidfd_open(pid, PidfdFlags::empty()).is_ok()) {
        return tid;
    }
    let status = Status::read(root, &dir(root, tid));
    status.and_then(|status| status.tgid).unwrap_or(tid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_thread_leads_to_its_process_and_an_unknown_number_to_itself() {
        let fake = Fake::new();
        fake.proc("10/status", "Tgid:\t9\nPid:\t10\n");
        assert_eq!([10, 11].map(|tid| process_of(&fake.root(), tid)), [9, 11]);
    }
}
