//! How the program ends.
//!
//! | code | when |
//! |---|---|
//! | 0 | done; the reader of our pipe went away; SIGINT or SIGTERM |
//! | 1 | failure; an unknown `--device` or `--pid`; the terminal went away (SIGHUP) |
//! | 2 | the command line makes no sense |
//! | 3 | nothing to show: no RDMA on this machine |
//!
//! A reader that goes away (`rdmatop --trace | head -3`) is not a failure and ends rdmatop without a message.
//! The summary on stderr counts what was seen and not printed.

use std::{io, process::ExitCode};

/// Exit codes, documented in the man page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Something did not work.
    Failure = 1,
    /// The command line makes no sense.
    Usage = 2,
    /// This machine has no RDMA to show.
    NothingToShow = 3,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// An end with a message: one line for stderr, what, why and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{line}")]
pub struct Stop {
    /// Exit code.
    pub exit: Exit,
    /// The line, without the program's name and without a newline.
    pub line: String,
}

impl Stop {
    /// A failure.
    pub fn failure(line: impl Into<String>) -> Self {
        Self::of(Exit::Failure, line)
    }

    /// A usage error.
    pub fn usage(line: impl Into<String>) -> Self {
        Self::of(Exit::Usage, line)
    }

    /// No RDMA.
    pub fn nothing(line: impl Into<String>) -> Self {
        Self::of(Exit::NothingToShow, line)
    }

    fn of(exit: Exit, line: impl Into<String>) -> Self {
        let line = line.into();
        Self { exit, line }
    }
}

/// The result of writing to stdout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of the text was written.
    All,
    /// The reader is gone.
    ReaderGone,
}

/// Turns the result of a write to stdout into an end: a reader that went away is not a failure.
pub fn written(result: io::Result<()>) -> Result<Written, Stop> {
    match result {
        Ok(()) => Ok(Written::All),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Written::ReaderGone),
        Err(e) => Err(Stop::failure(format!("cannot write to stdout: {e}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        assert_eq!(
            written(Err(io::ErrorKind::BrokenPipe.into())),
            Ok(Written::ReaderGone)
        );
        assert_eq!(written(Ok(())), Ok(Written::All));
    }

    #[test]
    fn a_full_disk_is_a_failure_in_one_line() {
        let stop = written(Err(io::Error::from_raw_os_error(libc::ENOSPC))).unwrap_err();
        assert_eq!(stop.exit, Exit::Failure);
        assert_eq!(
            stop.line,
            "cannot write to stdout: No space left on device (os error 28)"
        );
    }
}
