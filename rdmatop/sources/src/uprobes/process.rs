//! A process whose memory and files the helper reads, because either may keep the reader waiting.

use std::{
    fs::{self, File, metadata},
    io::BufReader,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::PathBuf,
};

use super::{
    files::{Mounts, Opened, answers},
    functions::Memory,
    helper::Mapped,
    places::{Place, places},
};
use crate::{
    execs,
    foreign::MOUNTS,
    proc::Status,
    root::{self, Root},
};

/// How much of another process's list of mounts is read. A user may have a hundred thousand of his own.
const THEIR_MOUNTS: usize = 1 << 20;

/// A process. Another one may get its number while it is read: [`Process::is_there`].
#[derive(Debug)]
pub struct Process {
    pid: libc::pid_t,
    directory: PathBuf,
    memory: File,
}

impl Memory for Process {
    /// By process_vm_readv(2). A read of /proc/PID/mem would hold the lock of the address space while it
    /// waits for a page. The kernel takes that lock to put a probe into a file, keeps fork(2) waiting in all
    /// processes meanwhile, and lets no signal end either.
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let length = into.len();
        let Ok(at) = usize::try_from(address) else {
            return false;
        };
        let local = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: length,
        };
        let remote = libc::iovec {
            iov_base: std::ptr::without_provenance_mut(at),
            iov_len: length,
        };
        // SAFETY: the kernel writes at most `length` bytes to `into`, and checks the other address.
        let read = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(read) == Ok(length)
    }
}

impl Process {
    /// Opens a process for reading, which takes the right to trace it.
    pub fn open(pid: u32) -> std::io::Result<Self> {
        let directory = PathBuf::from(format!("/proc/{pid}"));
        let memory = root::open(&directory.join("mem"))?;
        let pid = pid.cast_signed();
        Ok(Self {
            pid,
            directory,
            memory,
        })
    }

    /// Whether it is still the opened process with the same program: otherwise its memory has no bytes,
    /// unless another process shares it, as that of a child of vfork(2) until its execve(2). Waits until the
    /// lock of its address space is free; a signal can end that wait. Nothing is ever mapped at 0, so no page
    /// is waited for.
    pub fn is_there(&self) -> bool {
        !matches!(self.memory.read_at(&mut [0], 0), Ok(0))
    }

    /// Where addresses are in files.
    pub fn places(&self, addresses: &[u64]) -> std::io::Result<Vec<Option<Place>>> {
        let maps = root::open(&self.directory.join("maps"))?;
        Ok(places(BufReader::new(maps), addresses))
    }

    /// The file of a mapping; `None` if it is no regular file, or its name is not UTF-8.
    pub(super) fn mapped(&self, range: (u64, u64)) -> Option<Mapped> {
        let link = self.directory.join(mapping(range));
        let meta = metadata(&link).ok().filter(fs::Metadata::is_file)?;
        Some(Mapped {
            identity: (meta.dev(), meta.ino()),
            path: root::target(&link).ok()?.to_str()?.to_owned(),
        })
    }
}

fn mapping(range: (u64, u64)) -> String {
    format!("map_files/{:x}-{:x}", range.0, range.1)
}

/// Opens exactly the file that a process has mapped. Its name may lead to another file: if it is in a
/// container, or was deleted or replaced. `None` if it lies on a file system that may keep the reader
/// waiting, unless it is mapped in the calling process.
pub fn file(pid: u32, place: &Place) -> std::io::Result<Option<Opened>> {
    let place = *place;
    let open = move |_: &Root, pid| open(pid, &place);
    let late = || Err(std::io::Error::other("it waits in execve(2)"));
    execs::one(&Root::default(), pid, open).unwrap_or_else(late)
}

fn open(pid: u32, place: &Place) -> std::io::Result<Option<Opened>> {
    let of = |pid: &str, name: &str| PathBuf::from("/proc").join(pid).join(name);
    let their = pid.to_string();
    Opened::behind(&of(&their, &mapping(place.range)), |mount| {
        if pid == std::process::id() {
            return Ok(true);
        }
        let own = root::read(&of("self", "mountinfo"), MOUNTS)?;
        let theirs = || Mounts::read(&of(&their, "mountinfo"), THEIR_MOUNTS);
        answers(mount, place.device, &own, theirs)
    })
}

/// The user of a process, `None` if it has several: then it runs a program of one user for another. The owner
/// of its directory in /proc would not do: that is its effective user alone.
pub fn user(pid: u32) -> Option<u32> {
    let root = Root::default();
    let users = Status::read(&root, &root.proc(pid.to_string()))?.uids;
    let first = *users.first()?;
    users.iter().all(|user| *user == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_user_or_none_is_said() {
        assert_eq!(
            user(std::process::id()),
            Some(rustix::process::geteuid().as_raw())
        );
        assert_eq!(user(u32::MAX), None);
    }

    #[test]
    fn a_process_that_has_ended_is_not_there_any_more() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        // The child shares the memory of this program, which does not end, until its execve(2) has replaced
        // it: vfork(2), by which it was made, may return a moment earlier.
        let comm = PathBuf::from(format!("/proc/{}/comm", child.id()));
        while fs::read(&comm).unwrap() != b"sleep\n" {
            std::thread::yield_now();
        }
        let process = Process::open(child.id()).unwrap();
        assert!(process.is_there());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.is_there());
        assert!(!process.read(0x1000, &mut [0; 8]));
    }

    #[inline(never)]
    extern "C" fn function() -> u32 {
        std::hint::black_box(7)
    }

    #[test]
    fn a_function_of_this_program_is_found_in_its_file() {
        let own = Process::open(std::process::id()).unwrap();
        let address = function as *const () as u64;
        let place = own.places(&[address]).unwrap()[0];
        let place = place.expect("code of the test program");
        let file = match file(std::process::id(), &place) {
            Ok(file) => file.expect("its own file"),
            Err(error) => {
                println!("skipped: /proc/self/map_files cannot be read ({error}): this takes CAP_SYS_ADMIN");
                return;
            }
        };
        let of_path = metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(file.identity, (of_path.dev(), of_path.ino()));
        let mut in_memory = [0; 8];
        assert!(own.read(address, &mut in_memory));
        assert_eq!(file.code(place.offset), in_memory);
        assert_eq!(metadata(file.path()).unwrap().ino(), of_path.ino());
        assert!(!own.read(0, &mut in_memory));
        assert!(own.is_there());
        let mapped = own.mapped(place.range).unwrap();
        assert_eq!(mapped.identity, file.identity);
        assert_eq!(
            std::path::Path::new(&mapped.path),
            std::env::current_exe().unwrap()
        );
        // The file says where the function begins, and that nothing begins elsewhere in it.
        let code = super::super::Code::of(file.file()).unwrap();
        assert!(code.is_entry(place.offset));
        assert!((1..4).all(|byte| !code.is_entry(place.offset + byte)));
    }
}
