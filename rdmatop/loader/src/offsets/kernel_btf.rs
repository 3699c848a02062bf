//! vmlinux's BTF from the kernel's own BTF object.
//!
//! /sys/kernel/btf/vmlinux returns a page per read(2), and the kernel copies it twice
//! (`kernfs_file_read_iter`, fs/kernfs/file.c): some 1500 reads for 6 MB. `BPF_OBJ_GET_INFO_BY_FD` copies the
//! same bytes at once (`btf_get_info_by_fd`, kernel/bpf/btf.c). It needs CAP_SYS_ADMIN and Linux 5.11, which
//! first gave vmlinux's object an id and a name.

use std::{mem::MaybeUninit, os::fd::OwnedFd};

use rustix::param::page_size;

use crate::load::sys::{btf_info, find_btf};

/// How many BTF objects to look at. vmlinux's has the lowest id, except for the objects of programs that were
/// loaded before the kernel first needed it.
const LOOKED_AT: usize = 64;
/// The largest size that is believed: no kernel has so much BTF.
const MOST: u32 = 256 << 20;

/// Returns the bytes of /sys/kernel/btf/vmlinux. `None` if the kernel does not give them this way, and the
/// caller must read the file.
pub(super) fn vmlinux() -> Option<Vec<u8>> {
    let is_vmlinux = |object: OwnedFd| {
        let (info, name) = btf_info(&object, &mut [])?;
        let is_it = info.kernel_btf != 0 && name.starts_with(b"vmlinux\0") && info.btf_size <= MOST;
        Ok(is_it.then_some((object, info.btf_size)))
    };
    let (object, size) = find_btf(LOOKED_AT, is_vmlinux).ok()??;
    bytes(&object, size)
}

fn bytes(object: &OwnedFd, size: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    // These are megabytes: under a memory limit the reservation must fail, and not abort rdmatop.
    bytes.try_reserve_exact(size as usize).ok()?;
    populate(bytes.spare_capacity_mut());
    bytes.resize(size as usize, 0);
    let (info, _) = btf_info(object, &mut bytes).ok()?;
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
