//! Log lines from inside the programs, for developers: an object built with the `log` feature has them.

use aya::Ebpf;
use aya_log::EbpfLogger;

/// Writes to stderr, one line a record.
pub(super) struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        use std::io::Write as _;
        // Nobody is left to tell when stderr is gone.
        let _ = writeln!(std::io::stderr(), "ebpf {} {}", record.level(), record.args());
    }

    fn flush(&self) {}
}

/// The logger of an object that has one.
pub(super) fn of(ebpf: &mut Ebpf) -> Option<EbpfLogger<Stderr>> {
    EbpfLogger::init_with_logger(ebpf, Stderr).ok()
}
