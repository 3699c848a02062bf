//! A process whose memory and files are read.

use std::{
    fs::File,
    io::BufReader,
    os::{
        fd::AsRawFd as _,
        unix::fs::{FileExt as _, MetadataExt as _},
    },
    path::PathBuf,
};

use super::{
    functions::Memory,
    places::{Place, places},
};
use crate::source::{foreign, root};

/// How much of a function is looked at.
const HEAD: usize = 8;

/// A process, as long as it is the one that was opened: its memory is gone with it, whoever gets its number.
#[derive(Debug)]
pub(crate) struct Process {
    directory: PathBuf,
    memory: File,
}

/// A file that holds a function.
#[derive(Debug)]
pub(crate) struct Opened {
    file: File,
    /// Device and inode: the same for all names of it.
    pub(crate) identity: (u64, u64),
}

impl Memory for Process {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.memory.read_exact_at(into, address).is_ok()
    }
}

impl Process {
    /// Opens a process for reading, which takes the right to trace it.
    pub(crate) fn open(pid: u32) -> std::io::Result<Self> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let memory = root::open(&directory.join("mem"))?;
        Ok(Self { directory, memory })
    }

    /// Where addresses are in files.
    pub(crate) fn places<const N: usize>(&self, addresses: [u64; N]) -> std::io::Result<[Option<Place>; N]> {
        let maps = root::open(&self.directory.join("maps"))?;
        Ok(places(BufReader::new(maps), addresses))
    }

    /// Opens the very file that is mapped: in a container, deleted or replaced since. Under its name there may be another.
    pub(crate) fn file(&self, place: &Place) -> std::io::Result<Opened> {
        let range = format!("map_files/{:x}-{:x}", place.range.0, place.range.1);
        let file = foreign::mapped(&self.directory.join(range))?;
        let meta = file.metadata()?;
        Ok(Opened {
            identity: (meta.dev(), meta.ino()),
            file,
        })
    }
}

impl Opened {
    /// The first bytes of a function; fewer at the end of the file.
    pub(crate) fn code(&self, offset: u64) -> Vec<u8> {
        let mut bytes = vec![0; HEAD];
        let read = self.file.read_at(&mut bytes, offset).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// A path that leads to it and to no other file, as long as it is open.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    /// Keeps it open.
    pub(crate) fn into_file(self) -> File {
        self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::metadata;

    #[inline(never)]
    extern "C" fn function() -> u32 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_this_program_is_found_in_its_file() {
        let own = Process::open(std::process::id()).unwrap();
        let address = function as *const () as u64;
        let [place] = own.places([address]).unwrap();
        let place = place.expect("code of the test program");
        let file = match own.file(&place) {
            Ok(file) => file,
            Err(error) => {
                println!("skipped: /proc/self/map_files cannot be read ({error}): this takes CAP_SYS_ADMIN");
                return;
            }
        };
        let of_path = metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(file.identity, (of_path.dev(), of_path.ino()));
        let mut in_memory = [0; HEAD];
        assert!(own.read(address, &mut in_memory));
        assert_eq!(file.code(place.offset), in_memory);
        assert_eq!(metadata(file.path()).unwrap().ino(), of_path.ino());
        assert!(!own.read(0, &mut in_memory));
    }
}
