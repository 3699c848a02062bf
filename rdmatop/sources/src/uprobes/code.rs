//! Where functions begin in a file, and whether it is a provider of verbs, by the file's own tables (ELF, 64
//! bits, little-endian). Pure but for the bytes that are given.
//!
//! A return probe replaces the word that a call has left as the return address. So an address is the entry of
//! a function only where the unwind table says that nothing has been pushed yet: the part of a function that
//! the compiler has moved elsewhere (`.cold`) has an entry in the table, too, and is reached by a jump.

use std::{fs::File, os::unix::fs::FileExt as _};

/// Segments of a file that are looked at.
const MOST_SEGMENTS: u16 = 64;
/// Entries of a dynamic section that are looked at.
const MOST_DYNAMIC: u64 = 256;
/// Size of the names of dynamic symbols that are looked at: libmlx5 has 11 KiB.
const MOST_NAMES: u64 = 1 << 20;
/// How much of a function's record of the unwind table is looked at: its first instruction is among these
/// bytes.
const RECORD: u64 = 64;

const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const EH_FRAME: u32 = 0x6474_e550;
const EXECUTABLE: u32 = 1;
const STRING_TABLE: u64 = 5;
const STRING_SIZE: u64 = 10;

/// What each provider calls to register with libibverbs; the interface's number follows in the name.
const REGISTERS: &[u8] = b"\0verbs_register_driver";

/// How an unwind table begins that a linker has sorted: version, and how its numbers are written
/// (DW_EH_PE_*).
const SORTED: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
/// How a common record says that addresses are written: four signed bytes, relative to their own place.
const RELATIVE: u8 = 0x1b;
/// How the common record of a function says that the caller's frame is where the call has left the stack
/// pointer: `DW_CFA_def_cfa`, register, offset.
const AT_CALL: [u8; 3] = if cfg!(target_arch = "aarch64") {
    [0x0c, 31, 0]
} else {
    [0x0c, 7, 8]
};

/// Bytes by their place in a file.
pub trait Bytes {
    /// Fills `into`; false when any byte of it is not there.
    fn read(&self, offset: u64, into: &mut [u8]) -> bool;
}

impl Bytes for File {
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.read_exact_at(into, offset).is_ok()
    }
}

fn bytes<const N: usize>(file: &impl Bytes, offset: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.read(offset, &mut bytes).then_some(bytes)
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// A part of a file, and where it is in memory.
#[derive(Clone, Copy, Debug)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    size: u64,
}

/// The tables of a file.
#[derive(Debug)]
pub struct Code<'a, F> {
    file: &'a F,
    segments: Vec<Segment>,
}

impl<'a, F: Bytes> Code<'a, F> {
    /// `None` for what is no ELF file of this kind.
    pub fn of(file: &'a F) -> Option<Self> {
        let header: [u8; 64] = bytes(file, 0)?;
        let (size, number) = (half(&header, 54)?, half(&header, 56)?);
        if !header.starts_with(b"\x7fELF\x02\x01\x01") || size != 56 || number > MOST_SEGMENTS {
            return None;
        }
        let first = long(&header, 32)?;
        let segments = (0..u64::from(number)).map(|number| {
            let header: [u8; 56] = bytes(file, first.checked_add(number * 56)?)?;
            Some(Segment {
                kind: word(&header, 0)?,
                flags: word(&header, 4)?,
                offset: long(&header, 8)?,
                address: long(&header, 16)?,
                size: long(&header, 32)?,
            })
        });
        let segments = segments.collect::<Option<_>>()?;
        Some(Self { file, segments })
    }

    fn segment(&self, kind: u32) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.kind == kind)
    }

    /// Where in the file an address is.
    fn offset(&self, address: u64) -> Option<u64> {
        let mut loaded = self.segments.iter().filter(|segment| segment.kind == LOAD);
        let inside = |segment: &Segment| {
            address
                .checked_sub(segment.address)
                .filter(|at| *at < segment.size)
        };
        loaded.find_map(|segment| segment.offset.checked_add(inside(segment)?))
    }

    /// Whether libibverbs can have it as a provider: it calls the function with which providers register.
    pub fn is_provider(&self) -> bool {
        self.names().is_some_and(|names| {
            let mut names = names.windows(REGISTERS.len());
            names.any(|name| name == REGISTERS)
        })
    }

    /// The names of its dynamic symbols.
    fn names(&self) -> Option<Vec<u8>> {
        let dynamic = self.segment(DYNAMIC)?;
        let (mut table, mut size) = (None, None);
        for entry in 0..(dynamic.size / 16).min(MOST_DYNAMIC) {
            let entry: [u8; 16] = bytes(self.file, dynamic.offset.checked_add(entry * 16)?)?;
            match (long(&entry, 0)?, long(&entry, 8)?) {
                (0, _) => break,
                (STRING_TABLE, address) => table = Some(address),
                (STRING_SIZE, bytes) => size = Some(bytes),
                _ => {}
            }
        }
        let mut names = vec![0; usize::try_from(size?.min(MOST_NAMES)).ok()?];
        self.file.read(self.offset(table?)?, &mut names).then_some(names)
    }

    /// Whether a function begins at this place in the file.
    pub fn is_entry(&self, offset: u64) -> bool {
        self.entry(offset).is_some()
    }

    fn entry(&self, offset: u64) -> Option<()> {
        let code = self.segments.iter().find_map(|segment| {
            let inside = offset.checked_sub(segment.offset)?;
            let runs = segment.kind == LOAD && segment.flags & EXECUTABLE != 0 && inside < segment.size;
            runs.then(|| segment.address.checked_add(inside)).flatten()
        })?;
        let table = self.segment(EH_FRAME)?;
        let wanted = i32::try_from(code.wrapping_sub(table.address).cast_signed()).ok()?;
        let head: [u8; 12] = bytes(self.file, table.offset)?;
        let (mut low, mut high) = (0, u64::from(word(&head, 8)?));
        if !head.starts_with(&SORTED) || high > table.size / 8 {
            return None;
        }
        let record = loop {
            if low >= high {
                return None;
            }
            let middle = low.midpoint(high);
            let pair: [u8; 8] = bytes(self.file, table.offset.checked_add(12 + middle * 8)?)?;
            let (begins, record) = (word(&pair, 0)?.cast_signed(), word(&pair, 4)?.cast_signed());
            match begins.cmp(&wanted) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => break record,
            }
        };
        self.begins(table.address.checked_add_signed(record.into())?, code)
    }

    /// A record of the unwind table without its length, as far as it is looked at.
    fn record(&self, address: u64) -> Option<Vec<u8>> {
        let offset = self.offset(address)?;
        let length = u32::from_le_bytes(bytes(self.file, offset)?);
        // Longer ones have their length elsewhere.
        if length > 1 << 20 {
            return None;
        }
        let mut record = vec![0; usize::try_from(u64::from(length).min(RECORD)).ok()?];
        self.file
            .read(offset.checked_add(4)?, &mut record)
            .then_some(record)
    }

    /// Whether the function of this record begins here, with the stack as the call has left it.
    fn begins(&self, address: u64, code: u64) -> Option<()> {
        let record = self.record(address)?;
        let common = address.checked_add(4)?.checked_sub(word(&record, 0)?.into())?;
        let begins = address
            .checked_add(8)?
            .checked_add_signed(word(&record, 4)?.cast_signed().into())?;
        let mut rest = record.get(12..)?.iter();
        // One byte is enough for this length: no common record that `is_plain` accepts needs a longer one.
        let more = usize::from(*rest.next()?);
        let mut instructions = rest.skip(more).skip_while(|byte| **byte == 0);
        // DW_CFA_advance_loc, and the forms with a number of 1, 2 or 4 bytes: whatever changes the stack
        // comes after the entry.
        let later = |byte: &u8| (0x41..0x80).contains(byte) || (2..5).contains(byte);
        let plain = more < 128 && instructions.next().is_none_or(later);
        (begins == code && plain && self.is_plain(common)?).then_some(())
    }

    /// Whether a common record describes plain functions, which are called: not a frame of a signal, for one.
    fn is_plain(&self, address: u64) -> Option<bool> {
        let record = self.record(address)?;
        // CIE id 0, version 1, then letters that say what follows: `z` a length, and each other letter its
        // own data.
        let mut parts = record
            .strip_prefix(&[0, 0, 0, 0, 1, b'z'])?
            .splitn(2, |byte| *byte == 0);
        let (letters, rest) = (parts.next()?, parts.next()?);
        // Before the length come two factors and the register of the return address, a byte each.
        let (length, rest) = rest.get(3..)?.split_first()?;
        let (mut said, instructions) = rest.split_at_checked(usize::from(*length))?;
        let mut take = |bytes: usize| {
            let (taken, rest) = said.split_at_checked(bytes)?;
            said = rest;
            taken.first()
        };
        let mut relative = false;
        for letter in letters {
            match letter {
                b'R' => relative = *take(1)? == RELATIVE,
                // `P`: how the address of the exception handler is written, then this address of four or
                // eight bytes. `L`: how the address of the handler's data is written.
                b'P' => match *take(1)? & 0x0f {
                    0x03 | 0x0b => {
                        take(4)?;
                    }
                    0x00 | 0x04 | 0x0c => {
                        take(8)?;
                    }
                    _ => return None,
                },
                b'L' => {
                    take(1)?;
                }
                // The return address is signed with the second key (aarch64).
                b'B' => {}
                _ => return None,
            }
        }
        Some(relative && instructions.starts_with(&AT_CALL))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path, sync::LazyLock};

    use proptest::prelude::*;

    use super::*;

    impl Bytes for Vec<u8> {
        fn read(&self, offset: u64, into: &mut [u8]) -> bool {
            let from = usize::try_from(offset).ok().and_then(|offset| self.get(offset..));
            let from = from.and_then(|rest| rest.get(..into.len()));
            from.is_some_and(|from| {
                into.copy_from_slice(from);
                true
            })
        }
    }

    fn providers() -> Vec<(String, Vec<u8>)> {
        let directory = Path::new("/usr/lib/x86_64-linux-gnu/libibverbs");
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut files: Vec<_> = files.map(|file| file.path()).collect();
        files.sort();
        let read = |path: std::path::PathBuf| Some((path.display().to_string(), fs::read(path).ok()?));
        files.into_iter().filter_map(read).collect()
    }

    #[test]
    fn providers_are_recognized_and_other_libraries_are_none() {
        for (name, file) in providers() {
            assert!(Code::of(&file).unwrap().is_provider(), "{name}");
        }
        for other in ["libc.so.6", "libm.so.6", "libpcap.so.0.8", "librdmacm.so.1"] {
            if let Ok(file) = fs::read(Path::new("/usr/lib/x86_64-linux-gnu").join(other)) {
                assert!(!Code::of(&file).unwrap().is_provider(), "{other}");
            }
        }
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(!Code::of(&own).unwrap().is_provider());
        assert!(Code::of(&Vec::from(*b"\x7fELF")).is_none());
    }

    /// Functions of real libraries by another reader.
    #[test]
    fn entries_of_real_providers_are_those_that_readelf_lists() {
        for (name, file) in providers() {
            let output = std::process::Command::new("readelf")
                .args(["-wF", &name])
                .output();
            let Ok(output) = output else {
                println!("skipped: no readelf");
                return;
            };
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            // A block for each record: "... FDE cie=00000000 pc=00000000000022f0..00000000000022f8", and
            // where the record says anything of its own a heading and rows: address, and the caller's frame
            // there.
            let (mut entries, mut inner) = (Vec::new(), Vec::new());
            for block in text.split("\n\n").filter(|block| block.contains(" FDE ")) {
                let begins = block.split_once("pc=").unwrap().1.split("..").next().unwrap();
                let begins = u64::from_str_radix(begins, 16).unwrap();
                let frame = block.lines().nth(2).and_then(|row| row.split_whitespace().nth(1));
                if frame.is_none_or(|frame| frame == "rsp+8") {
                    entries.push(begins);
                } else {
                    inner.push(begins);
                }
            }
            let code = Code::of(&file).unwrap();
            let at = |address| code.offset(address).unwrap();
            assert!(
                entries.len() > 5 && !inner.is_empty(),
                "{name}: {} {}",
                entries.len(),
                inner.len()
            );
            for entry in &entries {
                assert!(code.is_entry(at(*entry)), "{name}: {entry:x}");
            }
            for place in inner {
                assert!(
                    !code.is_entry(at(place)),
                    "{name}: {place:x} is reached by a jump"
                );
            }
            for entry in &entries {
                for place in (1..16)
                    .map(|byte| entry + byte)
                    .filter(|place| !entries.contains(place))
                {
                    assert!(
                        !code.is_entry(at(place)),
                        "{name}: {place:x} is inside of {entry:x}"
                    );
                }
            }
        }
    }

    static RXE: LazyLock<Option<Vec<u8>>> = LazyLock::new(|| {
        let rxe = |(name, file): (String, Vec<u8>)| name.contains("rxe").then_some(file);
        providers().into_iter().find_map(rxe)
    });

    proptest! {
        #[test]
        fn no_file_panics(
            raw: Vec<u8>,
            offset: u64,
            holes in prop::collection::vec((0usize..40_000, any::<u8>()), 0..64),
        ) {
            let mut file = [b"\x7fELF\x02\x01\x01".as_slice(), &raw].concat();
            if let Some(code) = Code::of(&file) {
                let _ = (code.is_entry(offset), code.is_provider());
            }
            if let Some(real) = RXE.as_ref() {
                file.clone_from(real);
                for (place, byte) in holes {
                    if let Some(there) = file.get_mut(place) {
                        *there = byte;
                    }
                }
                if let Some(code) = Code::of(&file) {
                    let _ = (code.is_entry(offset % 40_000), code.is_provider());
                }
            }
        }
    }
}
