//! Statistics that the driver of a network interface keeps, as `ethtool -S` prints them: ioctl SIOCETHTOOL of
//! netdevice(7), linux/ethtool.h. Any user may read them.

use std::{
    num::NonZeroUsize,
    os::fd::{AsRawFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
};

use rustix::{
    io::Errno,
    mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap},
    net::{AddressFamily, SocketFlags, SocketType, socket_with},
    param::page_size,
};

const SIOCETHTOOL: libc::c_ulong = 0x8946;
const GSTRINGS: u32 = 0x1b;
const GSTATS: u32 = 0x1d;
const GSSET_INFO: u32 = 0x37;
const ETH_SS_STATS: u32 = 1;
/// `ETH_GSTRING_LEN`.
pub(crate) const NAME: usize = 32;
/// More statistics than any driver has: mlx5 has some 40 for each of its queues.
const MOST: usize = 1 << 16;

/// `struct ifreq` of an ethtool call.
#[repr(C)]
struct Request {
    name: [libc::c_char; libc::IFNAMSIZ],
    data: *mut libc::c_void,
    rest: [u8; 16],
}

/// Statistics of one interface that a caller chose by name.
///
/// No socket stays open: one would keep its network namespace, and so the devices of a pod, from ending.
#[derive(Debug)]
pub struct Statistics {
    name: [libc::c_char; libc::IFNAMSIZ],
    /// The number of statistics that the driver has.
    total: usize,
    /// Place in the driver's list and name of each chosen statistic.
    chosen: Vec<(usize, Arc<str>)>,
    buffer: Buffer,
}

impl Statistics {
    /// Opens the statistics of `interface`, of the thread's network namespace, whose names are `wanted`.
    /// `None` when it has none of these or they cannot be read.
    pub fn open(interface: &str, wanted: impl Fn(&str) -> bool) -> Option<Self> {
        let name = interface_name(interface)?;
        let socket = socket()?;
        let total = count(&socket, &name).filter(|total| (1..=MOST).contains(total))?;
        let mut strings = Buffer::new(12 + total * NAME).ok()?;
        let words = strings.bytes();
        words[..4].copy_from_slice(&GSTRINGS.to_ne_bytes());
        words[4..8].copy_from_slice(&ETH_SS_STATS.to_ne_bytes());
        words[8..12].copy_from_slice(&u32::try_from(total).ok()?.to_ne_bytes());
        call(&socket, &name, &mut strings).ok()?;
        if word(strings.bytes(), 8) != u32::try_from(total).ok()? {
            return None;
        }
        let chosen = choose(&strings.bytes()[12..], wanted);
        if chosen.is_empty() {
            return None;
        }
        Some(Self {
            buffer: Buffer::new(8 + total * 8).ok()?,
            name,
            total,
            chosen,
        })
    }

    /// Reads the chosen statistics, in the same namespace. `None` when the interface is gone or has another
    /// number of statistics: the caller opens them again.
    pub fn read(&mut self) -> Option<impl Iterator<Item = (&Arc<str>, u64)>> {
        let total = u32::try_from(self.total).ok()?;
        let bytes = self.buffer.bytes();
        bytes[..4].copy_from_slice(&GSTATS.to_ne_bytes());
        bytes[4..8].copy_from_slice(&total.to_ne_bytes());
        call(&socket()?, &self.name, &mut self.buffer).ok()?;
        let bytes = &*self.buffer.bytes();
        if word(bytes, 4) != total {
            return None;
        }
        Some(self.chosen.iter().filter_map(move |(at, name)| {
            let from = 8 + at * 8;
            let value = bytes.get(from..from + 8)?;
            Some((name, u64::from_ne_bytes(value.try_into().ok()?)))
        }))
    }
}

fn socket() -> Option<OwnedFd> {
    socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()
}

/// `interface` as `ifr_name`; `None` when it is empty, too long or contains NUL.
fn interface_name(interface: &str) -> Option<[libc::c_char; libc::IFNAMSIZ]> {
    let mut name = [0; libc::IFNAMSIZ];
    let bytes = interface.as_bytes();
    if bytes.is_empty() || bytes.len() >= name.len() || bytes.contains(&0) {
        return None;
    }
    for (to, from) in name.iter_mut().zip(bytes) {
        *to = libc::c_char::from_ne_bytes([*from]);
    }
    Some(name)
}

/// Asks for the number of statistics that the driver has.
fn count(socket: &OwnedFd, name: &[libc::c_char; libc::IFNAMSIZ]) -> Option<usize> {
    // Command, a reserved word, the mask of sets, and the size of the one set.
    let mut buffer = Buffer::new(20).ok()?;
    let bytes = buffer.bytes();
    bytes[..4].copy_from_slice(&GSSET_INFO.to_ne_bytes());
    bytes[8..16].copy_from_slice(&(1_u64 << ETH_SS_STATS).to_ne_bytes());
    call(socket, name, &mut buffer).ok()?;
    let bytes = buffer.bytes();
    // In the mask that it returns, the kernel keeps only sets that the driver has.
    let has = u64::from_ne_bytes(bytes[8..16].try_into().ok()?) != 0;
    has.then(|| usize::try_from(word(bytes, 16)).ok()).flatten()
}

/// Places and names of those that are `wanted` in the block of names that `ETHTOOL_GSTRINGS` returns.
pub(crate) fn choose(names: &[u8], wanted: impl Fn(&str) -> bool) -> Vec<(usize, Arc<str>)> {
    let names = names.chunks_exact(NAME).map(text).enumerate();
    names
        .filter_map(|(at, name)| Some((at, name.filter(|name| wanted(name))?.into())))
        .collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes)
}

fn text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    std::str::from_utf8(bytes.get(..end)?).ok()
}

fn call(socket: &OwnedFd, name: &[libc::c_char; libc::IFNAMSIZ], buffer: &mut Buffer) -> Result<(), Errno> {
    let mut request = Request {
        name: *name,
        data: buffer.bytes().as_mut_ptr().cast(),
        rest: [0; 16],
    };
    // SAFETY: `request` has the layout and the size of `struct ifreq`. The kernel writes into the buffer
    // from its beginning: as many statistics as the driver has at that moment, whatever the size of the
    // buffer. A write beyond the buffer meets a page without access, and the call fails with EFAULT.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    if done < 0 {
        return Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(())
}

/// Memory that ends at a page without access.
///
/// The number of statistics may grow between the call that counts them and the one that reads them, and the
/// kernel does not compare it with the room that the caller has.
#[derive(Debug)]
struct Buffer {
    map: NonNull<u8>,
    mapped: NonZeroUsize,
    /// Where the bytes begin, and how many there are.
    from: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Result<Self, Errno> {
        let page = page_size();
        // The kernel writes words of eight bytes.
        let len = len.next_multiple_of(8);
        let room = len.next_multiple_of(page);
        let mapped = NonZeroUsize::new(room + page).ok_or(Errno::INVAL)?;
        // SAFETY: a new mapping, at an address that the kernel chooses, overlaps nothing.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                mapped.get(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }?;
        let map = NonNull::new(map.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let buffer = Self {
            map,
            mapped,
            from: room - len,
            len,
        };
        // SAFETY: the last page of the mapping just made, to which no reference exists.
        unsafe { mprotect(map.as_ptr().add(room).cast(), page, MprotectFlags::empty()) }?;
        Ok(buffer)
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `from` and `len` lie in the mapping before its last page; it is readable, writable and
        // zeroed at first, and lives as long as the buffer, which is borrowed mutably here.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_ptr().add(self.from), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made; every reference into it borrows the buffer.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.mapped.get()) };
    }
}

// SAFETY: the mapping belongs to this buffer alone, and is reached only through a mutable reference to it.
unsafe impl Send for Buffer {}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn an_interface_without_statistics_and_one_that_is_not_there_have_none() {
        assert!(Statistics::open("lo", |_| true).is_none());
        for name in ["none-such", "", "a-name-of-sixteen", "e\0h"] {
            assert!(Statistics::open(name, |_| true).is_none(), "{name:?}");
        }
    }

    #[test]
    fn what_is_written_beyond_the_buffer_meets_no_other_memory() {
        for len in [1, 20, page_size(), page_size() + 8] {
            let mut buffer = Buffer::new(len).unwrap();
            assert_eq!(buffer.len % 8, 0);
            buffer.bytes().fill(7);
            // The kernel refuses to write one byte more.
            let (read, mut write) = std::io::pipe().unwrap();
            let room = buffer.bytes().len();
            write.write_all(&vec![1; room + 1]).unwrap();
            let begin = buffer.bytes().as_mut_ptr();
            let mut got = 0;
            while got < room {
                // SAFETY: the kernel checks each address that it writes to; up to `room` all are the
                // buffer's.
                let now = unsafe { libc::read(read.as_raw_fd(), begin.add(got).cast(), room - got) };
                got += usize::try_from(now).unwrap();
            }
            // SAFETY: the address is that of the page without access, which the kernel refuses.
            let now = unsafe { libc::read(read.as_raw_fd(), begin.add(got).cast(), 1) };
            assert_eq!(now, -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        }
    }
}
