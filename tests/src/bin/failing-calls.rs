//! Makes failing verbs calls as fast as it can, as user 1000: by turns a method that the kernel does not
//! define, another one each time, and `query_port` without a port.
//!
//! `failing-calls [--device rxe0]` prints `{"ready":true,"pid":..}`, goes on until stdin is closed, and
//! prints how often each call failed: `{"pid":..,"unknown":N,"known":N}`.

use std::{
    io::{self, Read as _},
    os::fd::RawFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::Context,
};
use serde_json::json;

/// `RDMA_VERBS_IOCTL`, include/uapi/rdma/rdma_user_ioctl_cmds.h.
const VERBS_IOCTL: libc::c_ulong = 0xc018_1b01;
/// `RDMA_DRIVER_RXE`.
const RXE: u32 = 14;
/// `UVERBS_METHOD_QUERY_PORT` of `UVERBS_OBJECT_DEVICE`.
const QUERY_PORT: u16 = 2;
const USER: libc::uid_t = 1000;

/// `struct ib_uverbs_ioctl_hdr` without attributes.
#[repr(C)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved: u64,
    driver: u32,
    reserved2: u32,
}

fn call(fd: RawFd, object: u16, method: u16) -> io::Result<()> {
    let mut header = Header {
        length: 24,
        object,
        method,
        attributes: 0,
        reserved: 0,
        driver: RXE,
        reserved2: 0,
    };
    // SAFETY: the header has the length that it states, and lives during the call.
    if unsafe { libc::ioctl(fd, VERBS_IOCTL, &raw mut header) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    args.finish()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    // SAFETY: only a number is passed.
    let lowered = unsafe { libc::setuid(USER) } == 0;
    ensure!(lowered, "setuid: {}", io::Error::last_os_error());
    let over = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&over);
    thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        waits.store(true, Ordering::Relaxed);
    });
    let pid = std::process::id();
    report(&json!({"ready": true, "pid": pid}))?;
    let (mut unknown, mut known) = (0_u64, 0_u64);
    while !over.load(Ordering::Relaxed) {
        let number = u16::try_from(unknown & 0xffff)?;
        ensure!(
            call(context.cmd_fd(), 32 + number % 4000, number).is_err(),
            "the kernel knows method {number}"
        );
        unknown += 1;
        ensure!(
            call(context.cmd_fd(), 0, QUERY_PORT).is_err(),
            "a port without a number"
        );
        known += 1;
    }
    report(&json!({"pid": pid, "unknown": unknown, "known": known}))
}
