//! vmlinux's BTF from the kernel's own BTF object.
//!
//! /sys/kernel/btf/vmlinux returns a page per read(2), and the kernel copies it twice
//! (`kernfs_file_read_iter`, fs/kernfs/file.c): some 1500 reads for 6 MB. `BPF_OBJ_GET_INFO_BY_FD` copies the
//! same bytes at once (`btf_get_info_by_fd`, kernel/bpf/btf.c). It needs CAP_SYS_ADMIN and Linux 5.11, which
//! first gave vmlinux's object an id and a name.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
};

use aya_obj::generated::{bpf_btf_info, bpf_cmd};
use rustix::param::page_size;

use crate::load::sys::{bpf, empty, raw_bpf};

/// How many BTF objects to look at. vmlinux's has the lowest id, except for the objects of programs that were
/// loaded before the kernel first needed it.
const LOOKED_AT: usize = 64;
/// The largest size that is believed: no kernel has so much BTF.
const MOST: u32 = 256 << 20;

/// Returns the bytes of /sys/kernel/btf/vmlinux. `None` if the kernel does not give them this way, and the
/// caller must read the file.
pub(crate) fn vmlinux() -> Option<Vec<u8>> {
    let mut id = 0;
    for _ in 0..LOOKED_AT {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) }.ok()?;
        // SAFETY: the kernel has filled in this member.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        // SAFETY: the attribute holds only the number that the command takes.
        match unsafe { bpf(bpf_cmd::BPF_BTF_GET_FD_BY_ID, &mut attr) } {
            Ok(object) => {
                if let Some(size) = is_vmlinux(&object).ok()? {
                    return bytes(&object, size);
                }
            }
            // The object has been freed since it was listed.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(_) => return None,
        }
    }
    None
}

/// The size of vmlinux's object; `None` for any other.
fn is_vmlinux(object: &OwnedFd) -> io::Result<Option<u32>> {
    let mut name = [0u8; 16];
    let info = ask(object, &mut [], &mut name)?;
    Ok(
        (info.kernel_btf != 0 && name.starts_with(b"vmlinux\0") && info.btf_size <= MOST)
            .then_some(info.btf_size),
    )
}

fn bytes(object: &OwnedFd, size: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // These are megabytes: under a memory limit the reservation must fail, and not abort rdmatop.
    bytes.try_reserve_exact(size as usize).ok()?;
    populate(bytes.spare_capacity_mut());
    bytes.resize(size as usize, 0);
    let info = ask(object, &mut bytes, &mut [0; 16]).ok()?;
    (info.btf_size == size).then_some(bytes)
}

/// Has the kernel provide the memory of a block at once, instead of at a page fault for each page. Linux
/// before 5.14 refuses that, and the page faults come.
fn populate(block: &mut [MaybeUninit<u8>]) {
    let (start, page) = (block.as_mut_ptr(), page_size());
    let unaligned = start.addr().next_multiple_of(page) - start.addr();
    let Some(rest) = block.len().checked_sub(unaligned) else {
        return;
    };
    // SAFETY: these are whole pages inside the block. The kernel does not change pages that have memory, and
    // gives zeroes to the others.
    unsafe {
        libc::madvise(
            start.add(unaligned).cast(),
            rest - rest % page,
            libc::MADV_POPULATE_WRITE,
        )
    };
}

/// Asks the kernel for as much as the buffers have room for, and for the full size.
fn ask(object: &OwnedFd, bytes: &mut [u8], name: &mut [u8; 16]) -> io::Result<bpf_btf_info> {
    let mut info = bpf_btf_info {
        btf: bytes.as_mut_ptr() as u64,
        btf_size: u32::try_from(bytes.len()).unwrap_or(0),
        id: 0,
        name: name.as_mut_ptr() as u64,
        name_len: 16,
        kernel_btf: 0,
    };
    let mut attr = empty();
    attr.info.bpf_fd = object.as_raw_fd().cast_unsigned();
    attr.info.info_len = u32::try_from(size_of::<bpf_btf_info>()).unwrap_or(0);
    attr.info.info = std::ptr::from_mut(&mut info) as u64;
    // SAFETY: info, bytes and name outlive the call, and their real lengths are passed.
    unsafe { raw_bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}
