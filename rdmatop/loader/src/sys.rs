//! The bpf system call.

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd};

/// An empty attribute, to be filled in.
pub(super) fn empty() -> bpf_attr {
    // SAFETY: a union of plain integers; the kernel requires zero in fields that a command does not use.
    unsafe { std::mem::zeroed() }
}

/// The bpf system call, for commands that return a descriptor.
///
/// # Safety
/// The attribute must be one for this command, and addresses in it must be valid.
pub(super) unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises what this requires.
    let fd = unsafe { raw_bpf(command, attr) }?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2) and returns its result unchanged; [`bpf`] is for commands that make a descriptor.
pub(super) unsafe fn raw_bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
    // SAFETY: the caller promises what [`bpf`] requires.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attr),
            size_of::<bpf_attr>(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(rc).map_err(io::Error::other)
}
