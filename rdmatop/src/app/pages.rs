//! Pages of the program file that only the start needs.

use std::ptr;

use rustix::param::page_size;

unsafe extern "C" {
    /// The first byte of the program in memory: the linker defines it, and the file is mapped from there.
    static __executable_start: u8;
    /// The end of the code, `end(3)`.
    static etext: u8;
}

/// Takes code and constants out of the resident memory, `MADV_DONTNEED` of `madvise(2)`. What is used again is mapped
/// again from the page cache, 64 KiB at a time.
///
/// The start parses arguments, types of the kernel and an object file, and the kernel maps what lies beside each page
/// that is touched. docs/performance.md (G10) says how much of the program is resident before and after. A debugger loses the
/// breakpoints that it has set in rdmatop, because they are private copies of these pages.
pub(super) fn give_back() {
    let Some((start, length)) = whole_pages(code(), page_size()) else {
        return;
    };
    // SAFETY: these are private mappings of the program file that the program never writes: with position-independent
    // code all that the dynamic linker relocates lies in writable segments, which linkers put after the code. The next
    // access to such a page gets the same bytes from the file. A refusal leaves the pages where they are.
    unsafe { libc::madvise(ptr::without_provenance_mut(start), length, libc::MADV_DONTNEED) };
}

/// Addresses from the first byte of the program to the end of its code.
fn code() -> (usize, usize) {
    ((&raw const __executable_start).addr(), (&raw const etext).addr())
}

/// Start and length of the pages, of `page` bytes each, that lie wholly in a range; none where there is no whole one.
fn whole_pages((start, end): (usize, usize), page: usize) -> Option<(usize, usize)> {
    let start = start.checked_next_multiple_of(page)?;
    let length = (end - end % page).checked_sub(start)?;
    (length > 0).then_some((start, length))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_whole_pages_are_given_back() {
        let pages = |range| whole_pages(range, 0x1000);
        assert_eq!(pages((0x1000, 0x3000)), Some((0x1000, 0x2000)));
        assert_eq!(pages((0x1001, 0x3fff)), Some((0x2000, 0x1000)));
        assert_eq!(pages((0x1001, 0x2fff)), None);
        assert_eq!(pages((0x3000, 0x1000)), None);
        assert_eq!(pages((usize::MAX, usize::MAX)), None);
        assert_eq!(
            whole_pages((0x1000, 0x3_0000), 0x1_0000),
            Some((0x1_0000, 0x2_0000))
        );
    }

    /// Each mapping in the range is of the program file, and none is writable: given back are clean pages alone.
    #[test]
    fn nothing_between_the_program_and_the_end_of_its_code_is_writable() {
        let (start, length) = whole_pages(code(), page_size()).unwrap();
        let program = std::env::current_exe().unwrap();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let mut covered = 0;
        for line in maps.lines() {
            let mut words = line.split_ascii_whitespace();
            let (from, to) = words.next().unwrap().split_once('-').unwrap();
            let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16).unwrap());
            let (from, to) = (from.max(start), to.min(start + length));
            if from >= to {
                continue;
            }
            let rights = words.next().unwrap();
            assert!(!rights.contains('w'), "{line}");
            assert!(line.ends_with(program.to_str().unwrap()), "{line}");
            covered += to - from;
        }
        assert_eq!(covered, length);
    }

    /// What the dynamic linker has relocated is private memory, read-only afterwards: it must not be given back.
    #[test]
    fn relocated_constants_lie_outside() {
        static NAMES: [&str; 2] = ["one", "two"];
        let (start, length) = whole_pages(code(), page_size()).unwrap();
        let names = std::hint::black_box(&NAMES).as_ptr().addr();
        assert!(!(start..start + length).contains(&names));
    }

    #[test]
    fn a_program_that_gave_its_code_back_goes_on() {
        give_back();
        assert_eq!(
            "1 2".split(' ').map(|n| n.parse::<u32>().unwrap()).sum::<u32>(),
            3
        );
    }
}
