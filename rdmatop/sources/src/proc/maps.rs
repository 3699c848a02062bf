//! `/proc/PID/maps`: which RDMA, MPI and collective libraries a process has loaded, and how many mappings it
//! has.
use std::io::{BufRead, Result};

use crate::root::Root;
use rdmatop_base::text;
use rustix::io::Errno;

/// The largest number of libraries. A process has some dozens; it can map sixty-five thousand files with such
/// names.
const MOST: usize = 128;
/// The largest number of bytes of a library's name. The kernel allows 255, and each may take four when it is
/// printed.
const NAME_LIMIT: usize = 64;

/// Library names up to `.so`, or their first part where plugins and versions follow (`libnccl-net-ofi.so`).
#[rustfmt::skip] // names, as many as a line has room for
const EXACT: [&str; 14] = [
    "libibverbs", "librdmacm", "libnccl", "librccl", "libfabric", "libucp", "libuct", "libucs", "libmpi",
    "libmpich", "libmpi_cray", "libcuda", "libefa", "libibumad",
];
#[rustfmt::skip] // names, as many as a line has room for
const PREFIXES: [&str; 20] = [
    "libnccl-", "librccl-", "libnvshmem", "libdoca_", "libuct_", "libnixl", "libsharp", "libpsm2", "libpsm3",
    "libmlx4", "libmlx5", "librxe", "libsiw", "libirdma", "libbnxt_re", "liberdma", "libhns", "libmana",
    "libefa-", "libhfi1",
];

/// The address of the page that x86-64 lists at the end of each process's mappings and does not count as one
/// of them (`get_gate_vma`, arch/x86/entry/vsyscall). No mapping of a process can have it.
const GATE: &[u8] = b"ffffffffff600000-";

/// What the list of mappings says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// File names of libraries without paths, such as `libnccl.so.2`, each once, at most 128.
    pub libraries: Vec<String>,
    /// How many mappings there are, as `vm.max_map_count` counts them; `None`: the list was not read to its
    /// end. The kernel gives the lock of the address space away between two parts of a long list, so this is
    /// exact for a process that maps nothing meanwhile.
    pub count: Option<u64>,
}

/// Reads the file line by line: a large process has tens of thousands of mappings. The kernel writes a line
/// break in a file's name as `\012`, so a line is a mapping.
///
/// Fails where a read does, such as with ESRCH when the process ends meanwhile (`m_start`,
/// fs/proc/task_mmu.c): the libraries that were read until then would be taken for all that it has. It also
/// fails where there is no mapping: the process has ended, or its first thread has, which this file is of.
pub fn mapped(mut maps: impl BufRead) -> Result<Mapped> {
    let mut out: Vec<String> = Vec::new();
    let (mut line, mut last) = (Vec::new(), Vec::new());
    let (mut lines, mut ended) = (0, false);
    while out.len() < MOST {
        line.clear();
        if maps.read_until(b'\n', &mut line)? == 0 {
            ended = true;
            break;
        }
        lines += u64::from(!line.starts_with(GATE));
        let Some(path) = path(&line) else { continue };
        // A library that was replaced on disk since is still loaded.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let file = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        // A library has several mappings, one after the other: compare before anything is allocated.
        if file == last || !is_of_interest(file) {
            continue;
        }
        file.clone_into(&mut last);
        let file = text::sanitize_bounded(file, NAME_LIMIT);
        if !out.contains(&file) {
            out.push(file);
        }
    }
    if lines == 0 {
        return Err(Errno::SRCH.into());
    }
    Ok(Mapped {
        libraries: out,
        count: ended.then_some(lines),
    })
}

/// How many mappings a process may have; one limit for all processes of the machine.
pub fn limit(root: &Root) -> Option<u64> {
    root.number(&root.proc("sys/vm/max_map_count"))
}

/// The sixth column: all from the first slash on; anonymous mappings and `[stack]` have none.
fn path(line: &[u8]) -> Option<&[u8]> {
    let start = line.iter().position(|b| *b == b'/')?;
    Some(line[start..].trim_ascii_end())
}

fn is_of_interest(file: &[u8]) -> bool {
    let Some(so) = file.windows(3).position(|w| w == b".so") else {
        return false;
    };
    let stem = &file[..so];
    EXACT.iter().any(|name| stem == name.as_bytes())
        || PREFIXES.iter().any(|p| stem.starts_with(p.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;
    use proptest::prelude::*;

    #[test]
    fn libraries_of_interest_are_listed_once() {
        let maps = b"55d0-55d1 r-xp 00000000 08:01 1 /usr/bin/python3\n\
            7f00-7f01 r--p 00000000 08:01 2 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14\n\
            7f01-7f02 r-xp 00001000 08:01 2 /usr/lib/x86_64-linux-gnu/libibverbs.so.1.14\n\
            7f03-7f04 r-xp 00000000 08:01 3 /opt/my libs/libnccl.so.2 (deleted)\n\
            7f05-7f06 r-xp 00000000 08:01 4 /opt/libnccl-net-ofi.so\n\
            7f07-7f08 r-xp 00000000 08:01 5 /usr/lib/libibverbs/librxe-rdmav34.so\n\
            7f09-7f0a rw-p 00000000 00:00 0 \n\
            7f0b-7f0c r-xp 00000000 08:01 6 /usr/lib/libmpi_cxx.so.40\n\
            7f0d-7f0e r-xp 00000000 08:01 7 /home/x/libnccl.txt\n\
            7fff-8000 rw-p 00000000 00:00 0 [stack]\n";
        let want = [
            "libibverbs.so.1.14",
            "libnccl.so.2",
            "libnccl-net-ofi.so",
            "librxe-rdmav34.so",
        ];
        let got = mapped(maps.as_slice()).unwrap();
        assert_eq!(got.libraries, want);
        assert_eq!(got.count, Some(10));
    }

    #[test]
    fn mappings_that_are_made_to_be_many_are_not_listed_all() {
        let maps: Vec<u8> = (0..65_000)
            .flat_map(|n| format!("1-2 r-xp 0 08:01 3 /l/libnccl-{n}.so\n").into_bytes())
            .collect();
        let got = mapped(maps.as_slice()).unwrap();
        assert_eq!(
            (got.libraries.len(), got.count),
            (MOST, None),
            "the rest was not read"
        );
    }

    #[test]
    fn the_last_line_counts_without_its_newline_too() {
        let got = mapped(b"1-2 r-xp 0 08:01 3 /l/librdmacm.so.1".as_slice()).unwrap();
        assert_eq!((got.libraries.len(), got.count), (1, Some(1)));
    }

    /// Gives some lines and then an error, as when the process ends meanwhile.
    struct Torn<'a>(&'a [u8]);

    impl std::io::Read for Torn<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            if self.0.is_empty() {
                return Err(std::io::Error::from_raw_os_error(libc::ESRCH));
            }
            self.0.read(to)
        }
    }

    #[test]
    fn a_list_that_breaks_off_says_nothing() {
        let maps = std::io::BufReader::new(Torn(b"1-2 r-xp 0 08:01 3 /l/libnccl.so.2\n2-3 rw-p 0 0:0 0\n"));
        assert_eq!(mapped(maps).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_vsyscall_page_is_not_counted_whatever_a_file_is_called() {
        let maps = b"7f00-7f01 r-xp 0 08:01 2 /x/ffffffffff600000-[vsyscall]\n\
            7ffc-7ffd r-xp 00000000 00:00 0 [vdso]\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
        assert_eq!(mapped(maps.as_slice()).unwrap().count, Some(2));
        let none = mapped(b"".as_slice()).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_limit_of_mappings_is_read_or_not_known() {
        let fake = Fake::new();
        assert_eq!(limit(&fake.root()), None);
        fake.proc("sys/vm/max_map_count", "65530\n");
        assert_eq!(limit(&fake.root()), Some(65_530));
        fake.proc("sys/vm/max_map_count", "many\n");
        assert_eq!(limit(&fake.root()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, tail in "\\PC{0,40}") {
            let _ = mapped(raw.as_slice());
            let _ = mapped(format!("1-2 r-xp 0 08:01 3 /{tail}libnccl{tail}").as_bytes());
        }
    }
}
