//! Lines for the user that do not stop the work when no process reads them.
use std::fmt;
use std::io::{self, Write};

/// Writes lines. After the first that fails it is silent, and [`Printer::end`] reports that one: half-made
/// devices are worse than a line that is missing.
pub(super) struct Printer<'a> {
    out: &'a mut dyn Write,
    failed: io::Result<()>,
}

impl<'a> Printer<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, failed: Ok(()) }
    }

    pub(super) fn line(&mut self, line: fmt::Arguments<'_>) {
        if self.failed.is_ok() {
            self.failed = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
        }
    }

    /// Whether all lines were taken.
    pub(super) fn end(self) -> io::Result<()> {
        self.failed
    }
}
