//! `/proc/PID/maps`: which RDMA, MPI and collective libraries a process has loaded.
use std::io::BufRead;

use rdmatop_base::text;

/// The largest number of libraries. A process has some dozens; it can map sixty-five thousand files with such
/// names.
const MOST: usize = 128;

/// Library names up to `.so`, or their first part where plugins and versions follow (`libnccl-net-ofi.so`).
const EXACT: [&str; 14] = [
    "libibverbs",
    "librdmacm",
    "libnccl",
    "librccl",
    "libfabric",
    "libucp",
    "libuct",
    "libucs",
    "libmpi",
    "libmpich",
    "libmpi_cray",
    "libcuda",
    "libefa",
    "libibumad",
];
const PREFIXES: [&str; 20] = [
    "libnccl-",
    "librccl-",
    "libnvshmem",
    "libdoca_",
    "libuct_",
    "libnixl",
    "libsharp",
    "libpsm2",
    "libpsm3",
    "libmlx4",
    "libmlx5",
    "librxe",
    "libsiw",
    "libirdma",
    "libbnxt_re",
    "liberdma",
    "libhns",
    "libmana",
    "libefa-",
    "libhfi1",
];

/// File names without paths, such as `libnccl.so.2`, each once, at most `MOST`. Reads the file line by
/// line: a large process has tens of thousands of mappings.
pub fn libraries(mut maps: impl BufRead) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let (mut line, mut last) = (Vec::new(), Vec::new());
    while out.len() < MOST {
        line.clear();
        match maps.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let Some(path) = path(&line) else { continue };
        // A library that was replaced on disk since is still loaded.
        let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
        let file = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        // A library has several mappings, one after the other: compare before anything is allocated.
        if file == last || !is_of_interest(file) {
            continue;
        }
        file.clone_into(&mut last);
        let file = text::sanitize(file);
        if !out.contains(&file) {
            out.push(file);
        }
    }
    out
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
        assert_eq!(libraries(maps.as_slice()), want);
    }

    #[test]
    fn mappings_that_are_made_to_be_many_are_not_listed_all() {
        let maps: Vec<u8> = (0..65_000)
            .flat_map(|n| format!("1-2 r-xp 0 08:01 3 /l/libnccl-{n}.so\n").into_bytes())
            .collect();
        assert_eq!(libraries(maps.as_slice()).len(), MOST);
    }

    #[test]
    fn the_last_line_counts_without_its_newline_too() {
        assert_eq!(
            libraries(b"1-2 r-xp 0 08:01 3 /l/librdmacm.so.1".as_slice()).len(),
            1
        );
    }

    proptest! {
        #[test]
        fn no_bytes_panic(raw: Vec<u8>, tail in "\\PC{0,40}") {
            let _ = libraries(raw.as_slice());
            let _ = libraries(format!("1-2 r-xp 0 08:01 3 /{tail}libnccl{tail}").as_bytes());
        }
    }
}
