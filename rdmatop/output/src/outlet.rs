//! Writes that never wait.
//!
//! A terminal whose other side has stopped reading, and a pipe without a reader, block a plain write(2) for
//! ever, and the thread with it: a thread that handles signals or detaches programs must not write that way.
//! `O_NONBLOCK` on the descriptor that we were given would affect all processes that share it, among them the
//! shell, and would stay after a SIGKILL. So the same terminal or pipe is opened once more, for us alone.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::{io::Errno, termios};

/// Bytes that a pipe takes without blocking once poll(2) reports room: a page, `PIPE_BUF` (pipe(7)).
const OF_A_PIPE: usize = 4096;
/// The same for a terminal: `tty_buffer_alloc` allocates multiples of 256, and a serial line reports room
/// only when fewer than 256 bytes (`WAKEUP_CHARS`) wait in its page.
const OF_A_TERMINAL: usize = 256;

/// Writes bytes without blocking.
#[derive(Debug)]
pub struct Outlet {
    fd: OwnedFd,
    /// How much may be written after poll(2) reported room, when the descriptor is shared and so may block.
    guarded: Option<usize>,
}

impl Outlet {
    /// Opens the destination of `shared` once more; `shared` stays as it is.
    pub fn of(shared: impl AsFd) -> io::Result<Self> {
        let shared = shared.as_fd();
        let terminal = termios::isatty(shared);
        let kind = FileType::from_raw_mode(fstat(shared)?.st_mode);
        // All who share a file share its position, and a file does not block.
        let blocks = terminal || matches!(kind, FileType::Fifo | FileType::Socket);
        let anew = if blocks { anew(shared, terminal) } else { None };
        let most = if terminal { OF_A_TERMINAL } else { OF_A_PIPE };
        let guarded = (blocks && anew.is_none()).then_some(most);
        let fd = anew.map_or_else(|| shared.try_clone_to_owned(), Ok)?;
        Ok(Self { fd, guarded })
    }

    /// Writes as much as finds room at once; `WouldBlock` when nothing does. Safe in a signal handler.
    pub fn some(&self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = match self.guarded {
            Some(_) if !self.room(Duration::ZERO) => return Err(io::ErrorKind::WouldBlock.into()),
            Some(most) => bytes.get(..most).unwrap_or(bytes),
            None => bytes,
        };
        loop {
            match rustix::io::write(&self.fd, bytes) {
                Err(Errno::INTR) => {}
                done => return Ok(done?),
            }
        }
    }

    /// Writes as much as finds room within `limit`, and returns how much that was. Safe in a signal handler.
    pub fn within(&self, limit: Duration, bytes: &[u8]) -> io::Result<usize> {
        let begin = Instant::now();
        let mut done = 0;
        while let Some(rest) = bytes.get(done..)
            && !rest.is_empty()
        {
            match self.some(rest) {
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.room(limit.saturating_sub(begin.elapsed())) {
                        break;
                    }
                }
                Err(error) => return Err(error),
            }
            // A reader that takes a byte at a time counts as none.
            if begin.elapsed() > limit && done < bytes.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Waits for room; false when there was none within `limit`. A broken descriptor has room: the write
    /// reports the error.
    pub fn room(&self, limit: Duration) -> bool {
        let limit = Timespec::try_from(limit).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        });
        let mut ends = [PollFd::new(&self.fd, PollFlags::OUT)];
        matches!(poll(&mut ends, Some(&limit)), Ok(1..))
    }
}

/// The pipe or terminal of `shared`, opened once more without blocking.
fn anew(shared: BorrowedFd<'_>, terminal: bool) -> Option<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", shared.as_raw_fd());
    if let Ok(fd) = open(path, flags, Mode::empty()) {
        return Some(fd);
    }
    // After su(1) the terminal belongs to another user, and root has given up the right to bypass that.
    // Anyone may open /dev/tty; tcgetsid(3) fails on a terminal that is not the controlling one.
    if terminal && termios::tcgetsid(shared).is_ok() {
        return open("/dev/tty", flags, Mode::empty()).ok();
    }
    None
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    const SHORT: Duration = Duration::from_millis(20);

    /// What was written, and how long the last write took.
    fn fill(outlet: &Outlet) -> usize {
        let page = [b'x'; 1000];
        let mut sent = 0;
        loop {
            let begin = Instant::now();
            let got = outlet.within(SHORT, &page).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
            sent += got;
            if got < page.len() {
                return sent;
            }
        }
    }

    #[test]
    fn a_pipe_without_a_reader_takes_what_it_holds_and_no_time() {
        let (mut read, write) = io::pipe().unwrap();
        let outlet = Outlet::of(&write).unwrap();
        let sent = fill(&outlet);
        assert!(sent >= 4096, "{sent}");
        // The rest of the last page takes single bytes.
        let more = (0..1000).take_while(|_| outlet.some(b"y").is_ok()).count();
        assert!(matches!(outlet.some(b"y"), Err(e) if e.kind() == io::ErrorKind::WouldBlock));
        let mut taken = vec![0; sent + more];
        read.read_exact(&mut taken).unwrap();
        assert_eq!(outlet.within(SHORT, b"y").unwrap(), 1);
        // The shared descriptor blocks as before.
        let flags = rustix::fs::fcntl_getfl(&write).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_pipe_and_a_socket_that_cannot_be_reopened_do_not_block_either() {
        let (_read, write) = io::pipe().unwrap();
        let pipe = Outlet {
            fd: write.into(),
            guarded: Some(OF_A_PIPE),
        };
        assert!(fill(&pipe) >= 4096);
        let (_far, near) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = Outlet::of(&near).unwrap();
        assert!(socket.guarded.is_some());
        assert!(fill(&socket) > 0);
    }

    #[test]
    fn a_file_keeps_the_position_that_all_share() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"one ").unwrap();
        assert_eq!(Outlet::of(&file).unwrap().within(SHORT, b"two ").unwrap(), 4);
        file.write_all(b"three").unwrap();
        let mut text = String::new();
        io::Seek::rewind(&mut file).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one two three");
    }

    #[test]
    fn a_reader_that_went_away_is_an_error_and_no_wait() {
        let (read, write) = io::pipe().unwrap();
        let outlet = Outlet::of(&write).unwrap();
        drop(read);
        let error = outlet.within(SHORT, b"x").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
