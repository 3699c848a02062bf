//! From addresses of a process to places in files, by its list of mappings. Pure.

use std::io::{BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::root::hex;

/// Mappings looked at. A process may have 65 530, and more where an administrator allows it.
const MOST: usize = 1 << 20;
/// A line is an address range, five short columns and a path.
const LONGEST_LINE: u64 = 8192;

/// Where a function is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The mapping: its name in /proc/PID/map_files.
    pub range: (u64, u64),
    /// Where in the mapped file.
    pub offset: u64,
    /// Major and minor number of the device that the file is on, as the kernel writes them into the list of
    /// mounts.
    pub device: (u32, u32),
}

/// The place of a mapping's first byte, if the line is of code in a file.
fn code_of_a_file(line: &[u8]) -> Option<Place> {
    let mut columns = line.split(|b| *b == b' ').filter(|column| !column.is_empty());
    let range = columns.next()?;
    let dash = range.iter().position(|b| *b == b'-')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    let rights = columns.next()?;
    let offset = hex(columns.next()?)?;
    let device = columns.next()?;
    let colon = device.iter().position(|b| *b == b':')?;
    let number = |digits| u32::try_from(hex(digits)?).ok();
    let device = (number(&device[..colon])?, number(&device[colon + 1..])?);
    let inode = columns.next()?;
    // Read and execute, never write: code that the program may change is not the file's.
    let code = rights.get(..3) == Some(b"r-x") && rights.get(3) == Some(&b'p');
    (code && inode != b"0" && start < end).then_some(Place {
        range: (start, end),
        offset,
        device,
    })
}

/// The places of addresses; `None` for one that is not in code of a file. Line by line: a large process has
/// tens of thousands of mappings.
pub(super) fn places(mut maps: impl BufRead, addresses: &[u64]) -> Vec<Option<Place>> {
    let mut found = vec![None; addresses.len()];
    let mut line = Vec::new();
    let mut goes_on = false;
    for _ in 0..MOST {
        if found.iter().all(Option::is_some) {
            break;
        }
        line.clear();
        match Read::take(&mut maps, LONGEST_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        // Skips the rest of a line that is too long: it is text that the process has chosen.
        if std::mem::replace(&mut goes_on, line.last() != Some(&b'\n')) {
            continue;
        }
        let Some(first) = code_of_a_file(&line) else {
            continue;
        };
        for (address, place) in addresses.iter().zip(&mut found) {
            if (first.range.0..first.range.1).contains(address)
                && let Some(offset) = (address - first.range.0).checked_add(first.offset)
            {
                *place = Some(Place { offset, ..first });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAPS: &[u8] = b"55d000000000-55d000001000 r-xp 00000000 08:01 1 /usr/bin/x\n\
        7f0000000000-7f0000002000 r--p 00000000 08:01 2 /usr/lib/my libs/librxe.so\n\
        7f0000002000-7f0000004000 r-xp 00002000 fd:01 2 /usr/lib/my libs/librxe.so\n\
        7f0000004000-7f0000005000 rwxp 00004000 08:01 2 /usr/lib/my libs/librxe.so\n\
        7f0000005000-7f0000006000 r-xp 00000000 00:00 0 \n\
        7f0000006000-7f0000007000 r-xs 00000000 08:01 3 /dev/shm/code\n";

    #[test]
    fn an_address_in_code_has_its_place_in_the_file() {
        let place = |offset| {
            Some(Place {
                range: (0x7f00_0000_2000, 0x7f00_0000_4000),
                offset,
                device: (0xfd, 1),
            })
        };
        assert_eq!(
            places(MAPS, &[0x7f00_0000_2000, 0x7f00_0000_3fff]),
            [place(0x2000), place(0x3fff)]
        );
    }

    #[test]
    fn data_and_code_that_may_change_have_none() {
        for address in [
            0,
            0x7f00_0000_1000,
            0x7f00_0000_4000,
            0x7f00_0000_5000,
            0x7f00_0000_6000,
            u64::MAX,
        ] {
            assert_eq!(places(MAPS, &[address]), [None], "{address:x}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_found_lies_inside(raw: Vec<u8>, address: u64, tail in "[0-9a-f]{0,20}") {
            let _ = places(raw.as_slice(), &[address]);
            let line = format!("{tail}-{tail}f r-xp {tail} 08:01 7 /x\n");
            if let [Some(place)] = places(line.as_bytes(), &[address])[..] {
                prop_assert!(place.range.0 <= address && address < place.range.1);
            }
        }
    }
}
