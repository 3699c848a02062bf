//! The bpf system call.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::{bpf_attr, bpf_cmd, bpf_prog_info};

pub(crate) fn empty() -> bpf_attr {
    // SAFETY: a union of plain integers; the kernel requires zero in fields that a command does not use.
    unsafe { std::mem::zeroed() }
}

/// The bpf system call, for commands that return a descriptor.
///
/// # Safety
/// The attribute must be one for this command, and addresses in it must be valid.
pub(crate) unsafe fn bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<OwnedFd> {
    // SAFETY: the caller promises what this requires.
    let fd = unsafe { raw_bpf(command, attr) }?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls bpf(2) and returns its result unchanged; [`bpf`] is for commands that make a descriptor.
pub(crate) unsafe fn raw_bpf(command: bpf_cmd, attr: &mut bpf_attr) -> io::Result<RawFd> {
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

/// `BPF_OBJ_GET_INFO_BY_FD`; returns how many bytes of `info` the kernel filled in.
///
/// # Safety
/// `T` must consist of plain integers, and addresses in it must be valid.
pub(crate) unsafe fn info<T>(object: &OwnedFd, info: &mut T) -> io::Result<usize> {
    let mut attr = empty();
    attr.info.bpf_fd = object.as_raw_fd().cast_unsigned();
    attr.info.info_len = u32::try_from(size_of::<T>()).unwrap_or(0);
    attr.info.info = std::ptr::from_mut(info) as u64;
    // SAFETY: the info outlives the call, and its real length is passed; the caller promises the rest.
    unsafe { raw_bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    // SAFETY: the kernel has filled in this member.
    Ok(unsafe { attr.info.info_len } as usize)
}

/// What the kernel knows of a program, without its instructions and lists.
pub(crate) fn program(fd: &OwnedFd) -> io::Result<bpf_prog_info> {
    // SAFETY: the struct has only plain integers; zero asks for none of the lists.
    let mut program: bpf_prog_info = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { info(fd, &mut program) }?;
    Ok(program)
}
