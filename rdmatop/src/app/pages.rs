//! Pages of the program and of its libraries that only the start needs.

use std::{
    fs::{self, File},
    ops::Range,
    os::unix::fs::FileExt as _,
    path::Path,
    ptr,
    sync::OnceLock,
};

use rustix::param::page_size;

/// Takes code and constants out of the resident memory, `MADV_DONTNEED` of `madvise(2)`. What is used again is mapped
/// again from the page cache, 64 KiB at a time.
///
/// The start parses arguments, types of the kernel and an object file, and the kernel maps what lies beside each page
/// that is touched. docs/performance.md (G10) says how much is resident before and after.
pub(super) fn give_back() {
    /// They stay where they are. With eBPF there are hundreds of mappings, so they are looked for once.
    static MAPPINGS: OnceLock<Vec<Range<usize>>> = OnceLock::new();
    let mappings = MAPPINGS.get_or_init(mappings);
    // Without /proc the pages stay where they are.
    let Ok(pagemap) = File::open("/proc/self/pagemap") else {
        return;
    };
    for pages in mappings.iter().filter(|pages| is_as_in_file(&pagemap, pages)) {
        // SAFETY: these are private mappings of files, and none of their pages was ever written: the next access to such a
        // page gets the same bytes from the file. Only the dynamic linker writes to such mappings, and it was done with these
        // files before `main`. A refusal leaves the pages where they are.
        unsafe {
            libc::madvise(
                ptr::without_provenance_mut(pages.start),
                pages.len(),
                libc::MADV_DONTNEED,
            )
        };
    }
}

/// The mappings of this program and of the libraries that it is linked with.
fn mappings() -> Vec<Range<usize>> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    of_files(&maps, |file| file == program || is_linked(file))
}

/// Whether a file is one of the libraries that every program in Rust is linked with. Others, such as NVML, are loaded later, and the
/// dynamic linker may be writing to them.
fn is_linked(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    [&b"libc."[..], b"libgcc_s.", b"libm.", b"ld-"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The private mappings of `wanted` files that nobody may write, from `proc_pid_maps(5)`.
fn of_files(maps: &str, wanted: impl Fn(&Path) -> bool) -> Vec<Range<usize>> {
    let found = maps.lines().filter_map(of_file);
    found
        .filter(|(_, file)| wanted(file))
        .map(|(pages, _)| pages)
        .collect()
}

/// The addresses and the file of a mapping if it is a private one of a file and nobody may write there. A line has addresses, rights,
/// offset, device, inode and the path, which may have blanks.
fn of_file(line: &str) -> Option<(Range<usize>, &Path)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let rights = words.next()?;
    if rights.contains('w') || !rights.ends_with('p') {
        return None;
    }
    let path = Path::new(line.get(line.find('/')?..)?);
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16));
    Some((start.ok()?..end.ok()?, path))
}

/// Whether each page that is in memory is the file's. A page that was written, by the dynamic linker or for a debugger's breakpoint,
/// is a copy that belongs to this process.
fn is_as_in_file(pagemap: &File, pages: &Range<usize>) -> bool {
    let page = page_size();
    let mut entries = vec![0; pages.len() / page * size_of::<u64>()];
    let place = (pages.start / page * size_of::<u64>()) as u64;
    let read = pagemap.read_exact_at(&mut entries, place);
    let (entries, _) = entries.as_chunks();
    read.is_ok() && entries.iter().all(|entry| is_files(u64::from_ne_bytes(*entry)))
}

/// Whether the entry of a page says that it is not in memory or of a file, Documentation/admin-guide/mm/pagemap.rst.
fn is_files(entry: u64) -> bool {
    const OF_FILE: u64 = 1 << 61;
    const SWAPPED: u64 = 1 << 62;
    const PRESENT: u64 = 1 << 63;
    entry & SWAPPED == 0 && (entry & PRESENT == 0 || entry & OF_FILE != 0)
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_private_mappings_of_these_files_that_nobody_may_write_are_given_back() {
        let maps = "1000-3000 r--p 00000000 fe:00 7   /usr/bin/rdmatop\n\
                    3000-4000 r-xp 00002000 fe:00 7   /usr/bin/rdmatop\n\
                    4000-5000 r-xp 00000000 fe:00 9   /usr/lib/libnvidia-ml.so.1\n\
                    7000-9000 rw-p 00006000 fe:00 7   /usr/bin/rdmatop\n\
                    9000-a000 r--s 00000000 fe:00 7   /usr/bin/rdmatop\n\
                    a000-b000 r-xp 00000000 00:00 0   [vdso]\n\
                    b000-c000 r--s 00000000 00:0f 1   anon_inode:bpf-map\n\
                    c000-d000 r--p 00000000 00:00 0 \n\
                    ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]\n";
        let program = |file: &Path| file == "/usr/bin/rdmatop";
        assert_eq!(of_files(maps, program), [0x1000..0x3000, 0x3000..0x4000]);
        let deleted = "1000-3000 r--p 00000000 fe:00 7   /a b/rdmatop (deleted)";
        let program = |file: &Path| file == "/a b/rdmatop (deleted)";
        assert_eq!(of_files(deleted, program).len(), 1);
        let linked = [
            "libc.so.6",
            "libgcc_s.so.1",
            "ld-linux-x86-64.so.2",
            "libcrypt.so.1",
        ];
        assert_eq!(
            linked.map(|name| is_linked(&Path::new("/lib").join(name))),
            [true, true, true, false]
        );
    }

    #[test]
    fn a_page_that_was_written_or_swapped_is_no_file_s() {
        let bits = |bits: &[u32]| bits.iter().fold(0x1234, |all, bit| all | 1u64 << bit);
        assert!(is_files(0) && is_files(bits(&[63, 61])) && is_files(bits(&[])));
        assert!(!is_files(bits(&[63])) && !is_files(bits(&[62])) && !is_files(bits(&[62, 61])));
    }

    /// The code is among them, and neither what the dynamic linker has relocated nor what is written is.
    #[test]
    fn of_this_program_the_code_is_given_back_and_what_was_written_stays() {
        static NAMES: LazyLock<String> = LazyLock::new(|| "one".to_owned());
        static RELOCATED: [&str; 2] = ["one", "two"];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let found = mappings();
        let is_given_back = |at: usize| {
            let its = found.iter().filter(|pages| pages.contains(&at));
            its.filter(|pages| is_as_in_file(&pagemap, pages)).count() == 1
        };
        assert!(is_given_back(give_back as fn() as usize));
        assert!(!is_given_back((&raw const NAMES).addr()) && !is_given_back(NAMES.as_ptr().addr()));
        assert!(!is_given_back(black_box(&RELOCATED).as_ptr().addr()));
    }

    #[test]
    fn a_program_that_gave_its_code_back_goes_on() {
        give_back();
        assert_eq!(
            "1 2".split(' ').map(|n| n.parse::<u32>().unwrap()).sum::<u32>(),
            3
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,80}", line in "[0-9a-f]{0,18}-[0-9a-f]{0,18} [rwxps-]{0,4} 0 0 0 /?[a-z]{0,3}") {
            let _ = of_files(&text, |_| true);
            let _ = of_files(&line, |_| true);
        }
    }
}
