//! The bpf system call.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd, OwnedFd, RawFd},
};

use aya_obj::generated::{bpf_attr, bpf_btf_info, bpf_cmd, bpf_prog_info};

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

/// What the kernel knows of a BTF object, and its name. Copies as much of its bytes as `bytes` has room for.
pub(crate) fn btf_info(object: &OwnedFd, bytes: &mut [u8]) -> io::Result<(bpf_btf_info, [u8; 64])> {
    let mut name = [0; 64];
    let mut btf = bpf_btf_info {
        btf: bytes.as_mut_ptr() as u64,
        btf_size: u32::try_from(bytes.len()).unwrap_or(0),
        id: 0,
        name: name.as_mut_ptr() as u64,
        name_len: 64,
        kernel_btf: 0,
    };
    // SAFETY: plain integers; bytes and name outlive the call, and their real lengths are passed.
    unsafe { info(object, &mut btf) }?;
    Ok((btf, name))
}

/// Gives the first `most` BTF objects of the kernel to `take` until it takes one. An error comes with the
/// command that the kernel refused; `take` calls none but the last of the three.
pub(crate) fn find_btf<T>(
    most: usize,
    mut take: impl FnMut(OwnedFd) -> io::Result<Option<T>>,
) -> Result<Option<T>, (&'static str, io::Error)> {
    let mut id = 0;
    for _ in 0..most {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        match unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) } {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => break,
            Err(error) => return Err(("BPF_BTF_GET_NEXT_ID", error)),
        }
        // SAFETY: the kernel has filled in this member.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        match unsafe { bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) } {
            Ok(object) => {
                let taken = take(object).map_err(|error| ("BPF_OBJ_GET_INFO_BY_FD", error))?;
                if taken.is_some() {
                    return Ok(taken);
                }
            }
            // The object has been freed since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(("BPF_BTF_GET_FD_BY_ID", error)),
        }
    }
    Ok(None)
}
