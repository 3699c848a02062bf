//! The memory of all BPF maps according to the kernel.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};

/// `BPF_MAP_GET_NEXT_ID` and `BPF_MAP_GET_FD_BY_ID`, include/uapi/linux/bpf.h.
const NEXT_ID: libc::c_long = 12;
const FD_BY_ID: libc::c_long = 14;

fn bpf(command: libc::c_long, attr: &mut [u32; 32]) -> io::Result<i32> {
    // SAFETY: the attribute has only numbers and the stated length.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), size_of_val(attr)) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(rc).map_err(io::Error::other)
}

/// Sums the bytes of all maps (`memlock` of their descriptors); only rdmatop has maps in the guest.
pub fn bytes() -> Result<u64> {
    let (mut sum, mut id) = (0, 0);
    loop {
        let mut attr = [0; 32];
        attr[0] = id;
        if bpf(NEXT_ID, &mut attr).is_err() {
            return Ok(sum);
        }
        id = attr[1];
        let mut attr = [0; 32];
        attr[0] = id;
        // A map that has gone meanwhile has no descriptor.
        let Ok(fd) = bpf(FD_BY_ID, &mut attr) else {
            continue;
        };
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("memlock:"));
        sum += line.context("no memlock in fdinfo")?.trim().parse::<u64>()?;
    }
}
