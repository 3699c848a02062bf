//! Pages of the program and of its libraries that only the start needs.

use std::{fs, ops::Range, path::Path, ptr};

/// Takes code and constants out of the resident memory, `MADV_DONTNEED` of `madvise(2)`. What is used again is mapped
/// again from the page cache, 64 KiB at a time.
///
/// The start parses arguments, types of the kernel and an object file, and the kernel maps what lies beside each page
/// that is touched. docs/performance.md (G10) says how much is resident before and after.
pub(super) fn give_back() {
    // Without /proc the pages stay where they are.
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let program = fs::read_link("/proc/self/exe").unwrap_or_default();
    for pages in as_in_files(&smaps, |file| file == program || is_linked(file)) {
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

/// Whether a file is one of the libraries that every program in Rust is linked with. Others, such as NVML, are loaded later, and the
/// dynamic linker may be writing to them.
fn is_linked(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().as_encoded_bytes();
    [&b"libc."[..], b"libgcc_s.", b"libm.", b"ld-"]
        .iter()
        .any(|start| name.starts_with(start))
}

/// The private mappings of `wanted` files that nobody may write and in which each page is as in the file, from `proc_pid_smaps(5)`. A
/// page that was written, by the dynamic linker or a debugger's breakpoint, is anonymous.
fn as_in_files(smaps: &str, wanted: impl Fn(&Path) -> bool) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut present = None;
    for line in smaps.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("Anonymous:") => {
                let is_clean = words.next() == Some("0");
                found.extend(present.take().filter(|_| is_clean));
            }
            Some(word) if word.ends_with(':') => {}
            Some(addresses) => {
                let found = of_file(addresses, words, line).filter(|(_, file)| wanted(file));
                present = found.map(|(pages, _)| pages);
            }
            None => {}
        }
    }
    found
}

/// The addresses and the file of a mapping if it is a private one of a file and nobody may write there. `words`: rights, offset,
/// device, inode, path, which may have blanks and reaches to the end of the `line`.
fn of_file<'a>(
    addresses: &str,
    mut words: impl Iterator<Item = &'a str>,
    line: &'a str,
) -> Option<(Range<usize>, &'a Path)> {
    let rights = words.next()?;
    if rights.contains('w') || !rights.ends_with('p') {
        return None;
    }
    let path = Path::new(line.get(line.find('/')?..)?);
    let (start, end) = addresses.split_once('-')?;
    let [start, end] = [start, end].map(|number| usize::from_str_radix(number, 16));
    Some((start.ok()?..end.ok()?, path))
}

#[cfg(test)]
mod tests {
    use std::{hint::black_box, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_private_mappings_of_files_without_a_written_page_are_given_back() {
        let mapping = |first: &str, anonymous: u32| {
            format!("{first}\nSize: 8 kB\nRss: 8 kB\nAnonymous: {anonymous} kB\nVmFlags: rd mr\n")
        };
        let smaps = [
            mapping("1000-3000 r--p 00000000 fe:00 7   /usr/bin/rdmatop", 0),
            mapping("3000-4000 r-xp 00002000 fe:00 7   /usr/bin/rdmatop", 0),
            mapping("4000-5000 r-xp 00000000 fe:00 9   /usr/lib/libnvidia-ml.so.1", 0),
            mapping("5000-7000 r--p 00004000 fe:00 7   /usr/bin/rdmatop", 4),
            mapping("7000-9000 rw-p 00006000 fe:00 7   /usr/bin/rdmatop", 0),
            mapping("9000-a000 r--s 00000000 fe:00 8   /etc/a", 0),
            mapping("a000-b000 r-xp 00000000 00:00 0   [vdso]", 0),
            mapping("b000-c000 r--s 00000000 00:0f 1   anon_inode:bpf-map", 0),
            mapping("c000-d000 r--p 00000000 00:00 0 ", 0),
            mapping(
                "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0   [vsyscall]",
                0,
            ),
        ];
        let program = |file: &Path| file == "/usr/bin/rdmatop";
        assert_eq!(
            as_in_files(&smaps.concat(), program),
            [0x1000..0x3000, 0x3000..0x4000]
        );
        let deleted = mapping("1000-3000 r--p 00000000 fe:00 7   /a b/rdmatop (deleted)", 0);
        let program = |file: &Path| file == "/a b/rdmatop (deleted)";
        assert_eq!(as_in_files(&deleted, program).len(), 1);
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

    /// The code is among them, and neither what the dynamic linker has relocated nor what is written is.
    #[test]
    fn of_this_program_the_code_is_given_back_and_what_was_written_stays() {
        static NAMES: LazyLock<String> = LazyLock::new(|| "one".to_owned());
        static RELOCATED: [&str; 2] = ["one", "two"];
        let found = as_in_files(&fs::read_to_string("/proc/self/smaps").unwrap(), |_| true);
        let is_given_back = |at: usize| found.iter().any(|pages| pages.contains(&at));
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
            let _ = as_in_files(&text, |_| true);
            let _ = as_in_files(&format!("{line}\nAnonymous: 0 kB\n"), |_| true);
        }
    }
}
