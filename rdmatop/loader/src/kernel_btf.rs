//! vmlinux's BTF from the kernel's own BTF object.
//!
//! /sys/kernel/btf/vmlinux returns a page per read(2), copied twice (`kernfs_file_read_iter`,
//! fs/kernfs/file.c): some 1500 reads for 6 MB. `BPF_OBJ_GET_INFO_BY_FD` copies the same bytes at once
//! (`btf_get_info_by_fd`, kernel/bpf/btf.c). It needs CAP_SYS_ADMIN, and Linux 5.11, since which vmlinux's
//! object has an id and a name.

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
};

use aya_obj::generated::{bpf_btf_info, bpf_cmd};
use rustix::param::page_size;

use super::sys::{bpf, empty, raw_bpf};

/// How many BTF objects to look at. vmlinux's has the lowest id, except for those of programs that were
/// loaded before it was first needed.
const LOOKED_AT: usize = 64;
/// A larger size is taken as an error: no kernel has so much BTF.
const MOST: u32 = 256 << 20;

/// The bytes of /sys/kernel/btf/vmlinux; `None` if the kernel does not return them this way: then the caller
/// reads the file.
pub(super) fn vmlinux() -> Option<Vec<u8>> {
    let mut id = 0;
    for _ in 0..LOOKED_AT {
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.start_id = id;
        // SAFETY: the attribute holds the command's one number.
        unsafe { raw_bpf(bpf_cmd::BPF_BTF_GET_NEXT_ID, &mut attr) }.ok()?;
        // SAFETY: the kernel filled it in.
        id = unsafe { attr.__bindgen_anon_6.next_id };
        let mut attr = empty();
        attr.__bindgen_anon_6.__bindgen_anon_1.btf_id = id;
        // SAFETY: as above.
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
    // Megabytes: under a memory limit this must fail and not abort the program.
    bytes.try_reserve_exact(size as usize).ok()?;
    populate(bytes.spare_capacity_mut());
    bytes.resize(size as usize, 0);
    let info = ask(object, &mut bytes, &mut [0; 16]).ok()?;
    (info.btf_size == size).then_some(bytes)
}

/// Has the kernel give a block its memory at once, instead of by a page fault for each page. Linux before
/// 5.14 refuses, and the page faults come.
fn populate(block: &mut [MaybeUninit<u8>]) {
    let (start, page) = (block.as_mut_ptr(), page_size());
    let unaligned = start.addr().next_multiple_of(page) - start.addr();
    let Some(rest) = block.len().checked_sub(unaligned) else {
        return;
    };
    // SAFETY: whole pages inside the block. The kernel changes none that has memory, and gives the others
    // zeroes.
    unsafe {
        libc::madvise(
            start.add(unaligned).cast(),
            rest - rest % page,
            libc::MADV_POPULATE_WRITE,
        )
    };
}

/// Asks the kernel to fill in as much as there is room for, and to report the full size.
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
    // SAFETY: info, bytes and name outlive the call, and their lengths are their own.
    unsafe { raw_bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }?;
    Ok(info)
}
