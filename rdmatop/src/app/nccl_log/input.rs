//! The bytes of one log. A pipe may be without data for long, or for ever: then a line says what rdmatop
//! waits for.

use std::{
    io::{self, ErrorKind, Read},
    os::fd::AsFd,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// How long a read waits before it says so.
const SILENCE: Duration = Duration::from_secs(1);

/// Reads a file or a pipe.
pub(super) struct Patient<F, S> {
    from: F,
    /// Called when no data comes; `None` once it was called.
    say: Option<S>,
}

impl<F: AsFd + Read, S: FnOnce()> Patient<F, S> {
    pub(super) fn new(from: F, say: S) -> Self {
        let say = Some(say);
        Self { from, say }
    }

    /// Waits until a read gives data, the end or an error. A pipe that nobody has opened for writing yet is
    /// not at its end.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            let patience = self.say.is_some().then_some(SILENCE);
            let patience = patience.and_then(|time| Timespec::try_from(time).ok());
            let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
            match poll(&mut fds, patience.as_ref()) {
                Ok(0) => {
                    if let Some(say) = self.say.take() {
                        say();
                    }
                }
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<F, S> Patient<F, S> {
    /// What it reads.
    pub(super) fn source(&self) -> &F {
        &self.from
    }
}

impl<F: AsFd + Read, S: FnOnce()> Read for Patient<F, S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait()?;
            match self.from.read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => return outcome,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::OpenOptions, io::Write as _, sync::mpsc, thread};

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use rdmatop_sources::foreign;

    #[test]
    fn a_pipe_is_read_to_its_end_and_its_silence_is_said_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("log");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        // Nobody writes yet, and opening does not wait.
        let (said, hears) = mpsc::channel();
        let mut reader = Patient::new(foreign::log(&path).unwrap(), move || said.send(()).unwrap());
        let writer = thread::spawn(move || {
            let mut pipe = OpenOptions::new().write(true).open(&path).unwrap();
            hears.recv().unwrap();
            pipe.write_all(b"one\n").unwrap();
            thread::sleep(SILENCE * 2);
            pipe.write_all(b"two\n").unwrap();
            drop(pipe);
            assert!(hears.recv().is_err(), "it is said once");
        });
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "one\ntwo\n");
        drop(reader);
        writer.join().unwrap();
    }

    #[test]
    fn a_file_and_an_ended_pipe_wait_for_nothing() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let mut text = String::new();
        let mut reader = Patient::new(file, || panic!("nothing is said"));
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        let (end, from) = std::io::pipe().unwrap();
        drop(from);
        let mut reader = Patient::new(end, || panic!("nothing is said"));
        assert_eq!(reader.read_to_string(&mut text).unwrap(), 0);
    }
}
