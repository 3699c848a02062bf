//! Whether two open files are one, by the memory in which the kernel keeps their bytes.
//!
//! A file of an overlay has a device of the overlay's, and may have an inode of it, whatever the file below
//! is called elsewhere. The kernel maps the file below, and puts probes into that one.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    path::Path,
    ptr::{null_mut, with_exposed_provenance_mut},
};

use rustix::{
    mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap},
    param::page_size,
};

use crate::root;

/// How often to compare: the kernel may move or drop a page between two looks.
const TRIES: usize = 8;
/// In a word of /proc/PID/pagemap: the page is in memory, and the number of its frame.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;

/// A page of a file in rdmatop's memory. It is mapped shared, because the kernel puts a probe for all
/// processes into each private mapping of the file, and then has a page for that mapping alone.
struct Page(usize);

impl Page {
    fn of(file: &File, offset: u64) -> Option<Self> {
        let size = page_size() as u64;
        let first = offset / size * size;
        // SAFETY: the kernel chooses the place, and nobody reads or writes it.
        let at = unsafe {
            mmap(
                null_mut(),
                page_size(),
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                first,
            )
        };
        Some(Self(at.ok()?.expose_provenance()))
    }

    /// The number of the page's frame in memory; `None` if the file has no such page, or the kernel does not
    /// say.
    fn frame(&self, pagemap: &File) -> Option<u64> {
        // Reads the page in without a fault, which behind the file's end would be a signal.
        // SAFETY: the page is this value's, and its bytes do not change by it.
        unsafe {
            madvise(
                with_exposed_provenance_mut(self.0),
                page_size(),
                Advice::LinuxPopulateRead,
            )
        }
        .ok()?;
        let mut word = [0; 8];
        let nth = self.0 / page_size();
        pagemap.read_exact_at(&mut word, 8 * nth as u64).ok()?;
        let word = u64::from_ne_bytes(word);
        Some(word & FRAME).filter(|frame| word & PRESENT != 0 && *frame != 0)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is this value's, and nothing refers to it.
        let _ = unsafe { munmap(with_exposed_provenance_mut(self.0), page_size()) };
    }
}

/// Whether two files have one page at this offset: then they are one file. This takes CAP_SYS_ADMIN, without
/// which the kernel hides frames; then, and where one of the files is shorter, it is false.
pub(super) fn are_one(a: &File, b: &File, offset: u64) -> bool {
    let compared = || {
        let pagemap = root::open(Path::new("/proc/self/pagemap")).ok()?;
        let (a, b) = (Page::of(a, offset)?, Page::of(b, offset)?);
        let look = || Some([a.frame(&pagemap)?, b.frame(&pagemap)?, a.frame(&pagemap)?]);
        // A page that stayed in its frame meanwhile is the other one, or is not.
        let settled = |[before, other, after]: [u64; 3]| (before == after).then_some(before == other);
        (0..TRIES).find_map(|_| look().and_then(settled))
    };
    compared().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn two_names_of_a_file_are_one_and_a_copy_is_another() {
        let directory = tempfile::tempdir().unwrap();
        let [name, link, copy] = ["name", "link", "copy"].map(|name| directory.path().join(name));
        fs::write(&name, vec![7; 3 * page_size()]).unwrap();
        fs::hard_link(&name, &link).unwrap();
        fs::copy(&name, &copy).unwrap();
        let [name, link, copy] = [name, link, copy].map(|path| File::open(path).unwrap());
        let last = 3 * page_size() as u64 - 1;
        if !are_one(&name, &name, 0) {
            println!("skipped: frames of pages cannot be read: this takes CAP_SYS_ADMIN");
            return;
        }
        for offset in [0, 1, last] {
            assert!(are_one(&name, &link, offset), "{offset}");
            assert!(!are_one(&name, &copy, offset), "{offset}");
        }
        assert!(!are_one(&name, &link, last + 1), "behind the end");
        assert!(!are_one(&name, &link, u64::MAX));
    }
}
