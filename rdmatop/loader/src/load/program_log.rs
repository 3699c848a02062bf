//! Log lines that the programs write, for developers: an object built with the `log` feature makes them.

use std::{collections::HashMap, os::fd::OwnedFd};

use aya::maps::Map;
use aya_log::EbpfLogger;

use crate::load::sys;

/// The map that aya-log-ebpf writes to.
const LOGS: &str = "AYA_LOGS";

/// Writes to stderr, one line per record.
pub(crate) struct Stderr;

impl log::Log for Stderr {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        rdmatop_output::say::say(&format!("ebpf {} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// The logger for an object that writes log lines, found through any one of its programs.
pub(crate) fn of(maps: &HashMap<String, Map>, program: &OwnedFd) -> Option<EbpfLogger<Stderr>> {
    if !maps.contains_key(LOGS) {
        return None;
    }
    EbpfLogger::init_from_id_with_logger(sys::program(program).ok()?.id, Stderr).ok()
}
