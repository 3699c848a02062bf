//! The process that a thread belongs to: netlink may name the thread that created a resource.

use std::mem::MaybeUninit;

use rustix::{
    fs::RawDir,
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{basic::dir, status::Status};
use crate::root::{self, Root};

/// The process that a thread belongs to; the number itself where that is not known, as of a thread that has
/// ended. The kernel names in `RDMA_NLDEV_ATTR_RES_PID` the task that made the object
/// (`rdma_restrack_entry.task`), which may be any thread of its process.
pub fn process_of(root: &Root, tid: u32) -> u32 {
    if root.is_live() {
        if is_leader(tid) {
            return tid;
        }
        // `status` takes up to 0.2 s of a process with very many groups.
        let of_tid = |first: &u32| root.proc(format!("{first}/task/{tid}")).exists() && is_leader(*first);
        if let Some(leader) = first_listed(root, tid).filter(of_tid) {
            return leader;
        }
    }
    let whose = Status::whose(root, &dir(root, tid));
    whose.and_then(|(tgid, _)| tgid).unwrap_or(tid)
}

/// Whether this is the number of a process: pidfd_open(2) accepts only the leader of one, and costs a tenth
/// of reading its status.
fn is_leader(tid: u32) -> bool {
    let pid = i32::try_from(tid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| pidfd_open(pid, PidfdFlags::empty()).is_ok())
}

/// The first thread that the kernel lists of a thread's process, which is its leader (`first_tid`,
/// fs/proc/base.c). There is room for few more: it makes an inode for each that it lists.
fn first_listed(root: &Root, tid: u32) -> Option<u32> {
    let dir = root::open(&dir(root, tid).join("task")).ok()?;
    let mut space = [MaybeUninit::uninit(); 128];
    let mut listed = RawDir::new(dir, &mut space);
    loop {
        let entry = listed.next()?.ok()?;
        if let Ok(tid) = entry.file_name().to_str().unwrap_or_default().parse() {
            return Some(tid);
        }
    }
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

    #[test]
    fn to_find_the_process_of_a_thread_no_status_is_read() {
        let root = Root::default();
        let of_thread = std::thread::scope(|scope| {
            let ask = || {
                process_of(
                    &root,
                    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned(),
                )
            };
            scope.spawn(ask).join().unwrap()
        });
        assert_eq!((of_thread, root.opens()), (std::process::id(), 0));
    }
}
