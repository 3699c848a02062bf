//! Log lines that the programs write, for developers: an object built with the `log` feature makes them.

use std::{
    collections::HashMap,
    os::fd::{AsRawFd, OwnedFd},
};

use aya::maps::Map;
use aya_log::EbpfLogger;
use aya_obj::generated::{bpf_cmd, bpf_prog_info};

use super::sys::{empty, raw_bpf};

/// The map that aya-log-ebpf writes to.
const LOGS: &str = "AYA_LOGS";

/// Writes to stderr, one line per record.
pub(super) struct Stderr;

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
pub(super) fn of(maps: &HashMap<String, Map>, program: &OwnedFd) -> Option<EbpfLogger<Stderr>> {
    if !maps.contains_key(LOGS) {
        return None;
    }
    EbpfLogger::init_from_id_with_logger(number(program)?, Stderr).ok()
}

/// The kernel's id of a program.
fn number(program: &OwnedFd) -> Option<u32> {
    // SAFETY: the struct has only plain integers; zero asks for none of the arrays.
    let mut info: bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut attr = empty();
    attr.info.bpf_fd = program.as_raw_fd().cast_unsigned();
    attr.info.info_len = u32::try_from(size_of::<bpf_prog_info>()).ok()?;
    attr.info.info = std::ptr::from_mut(&mut info) as u64;
    // SAFETY: the info outlives the call, and its real length is passed.
    unsafe { raw_bpf(bpf_cmd::BPF_OBJ_GET_INFO_BY_FD, &mut attr) }.ok()?;
    Some(info.id)
}
