//! System calls that rdmatop never makes, refused by the kernel from then on (seccomp(2)).
//!
//! A list of what is refused, and not of what is allowed: libraries that are not ours (libc, NVIDIA's NVML)
//! make calls that differ from release to release, and a call that is refused by mistake would be a value
//! that is missing on somebody's machine. The list takes away what CAP_SYS_ADMIN, CAP_SYS_PTRACE and
//! CAP_SYS_RESOURCE, which stay permitted, would let injected code do at once: change mounts, namespaces,
//! modules, the kernel, disk quotas and the clock, and write to other processes by system call. It does not
//! make rdmatop a prison: bpf(2), perf_event_open(2) and /proc stay.
//!
//! What reads RDMA devices of other network namespaces (`netns`) makes four of these calls, and they are
//! refused with all other arguments: a network namespace may be entered and no other; a file system may be
//! mounted that takes no parameter, so none of a block device and none of a user's, and only to be read.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};

use super::netns::MOUNTED;
use rdmatop_base::order::Gather as _;

const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_mknodat,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mknod,
    // ptrace, kexec_load and process_vm_writev of x32. Before Linux 5.4 they could be called without its bit.
    #[cfg(target_arch = "x86_64")]
    521,
    #[cfg(target_arch = "x86_64")]
    528,
    #[cfg(target_arch = "x86_64")]
    540,
];

/// Refused but with this value of the argument of that number.
const REFUSED_BUT: [(libc::c_long, u8, u32); 3] = [
    // FSCONFIG_CMD_CREATE: any other command sets a parameter, or changes a mount that there is.
    (libc::SYS_fsconfig, 1, 6),
    (libc::SYS_fsmount, 2, MOUNTED.bits()),
    (libc::SYS_setns, 1, libc::CLONE_NEWNET.unsigned_abs()),
];

/// `__X32_SYSCALL_BIT`, arch/x86/include/uapi/asm/unistd.h: where the kernel has x32 (CONFIG_X86_X32_ABI),
/// any 64-bit program can make the same calls by numbers with this bit, and seccomp sees the same
/// architecture. On other architectures no call has such a number.
const X32: i64 = 0x4000_0000;

/// Has the kernel answer these calls with `EPERM`, for this thread and those that it starts. A kernel without
/// seccomp refuses nothing.
pub(super) fn refuse() {
    if let Some(program) = program() {
        let _ = seccompiler::apply_filter(&program);
    }
}

fn program() -> Option<BpfProgram> {
    let errno = u32::try_from(libc::EPERM).ok()?;
    let arch = TargetArch::try_from(std::env::consts::ARCH).ok()?;
    // No condition on the arguments.
    let numbers = REFUSED.iter().flat_map(|call| [*call, *call | X32]);
    let of_x32 = [
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fsopen,
        libc::SYS_setns,
    ]
    .map(|call| call | X32);
    let mut rules: BTreeMap<i64, _> = numbers.chain(of_x32).map(|number| (number, Vec::new())).gather();
    for (call, argument, value) in REFUSED_BUT {
        let other = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value.into());
        rules.insert(call, vec![SeccompRule::new(vec![other.ok()?]).ok()?]);
    }
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch).ok()?;
    filter.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_refused_and_nothing_else() {
        // The filter is this thread's alone.
        let thread = std::thread::spawn(|| {
            rustix::thread::set_no_new_privs(true).unwrap();
            let errno = || std::io::Error::last_os_error().raw_os_error();
            let said = |call: libc::c_long, second: u32, third: u32| {
                // SAFETY: no such descriptor exists, so that the call can only fail.
                let got = unsafe { libc::syscall(call, -1, second, third, 0, 0) };
                assert_eq!(got, -1);
                errno()
            };
            let others: Vec<_> = REFUSED_BUT
                .into_iter()
                .map(|(call, argument, value)| {
                    let with = |value| if argument == 1 { (value, 0) } else { (0, value) };
                    (call, with(value), with(value ^ 1))
                })
                .collect();
            let before: Vec<_> = others
                .iter()
                .map(|(call, as_we, _)| said(*call, as_we.0, as_we.1))
                .collect();
            refuse();
            for ((call, as_we, other), before) in others.into_iter().zip(before) {
                assert_eq!(said(call, as_we.0, as_we.1), before, "{call}");
                assert_ne!(before, Some(libc::EPERM), "{call}");
                assert_eq!(said(call, other.0, other.1), Some(libc::EPERM), "{call}");
            }
            // Any other namespace, and any kind at all.
            for kind in [0, libc::CLONE_NEWNS | libc::CLONE_NEWNET, libc::CLONE_NEWUSER] {
                assert_eq!(
                    said(libc::SYS_setns, kind.unsigned_abs(), 0),
                    Some(libc::EPERM),
                    "{kind:#x}"
                );
            }
            #[cfg(target_arch = "x86_64")]
            for number in [
                libc::SYS_mknod,
                libc::SYS_mknod | X32,
                libc::SYS_mount | X32,
                libc::SYS_setns | X32,
                521,
                521 + X32,
            ] {
                // SAFETY: -1 is no request of ptrace and no address of a path: the calls can only fail.
                let got = unsafe { libc::syscall(number, -1_i64, -1_i64, -1_i64, -1_i64, -1_i64) };
                assert_eq!((got, errno()), (-1, Some(libc::EPERM)), "{number:#x}");
            }
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            assert!(status.contains("Seccomp:\t2\n"), "{status}");
        });
        thread.join().unwrap();
    }
}
