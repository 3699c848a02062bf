//! Moves bytes over TCP, like a job whose communication library found no RDMA: a file named libnccl.so.2 is
//! mapped, and the kernel chooses both ports.
//!
//! `tcp-job [--bytes N] [--devices 0]` prints `{"ready":true,"pid":..}`, waits for a line on stdin, and sends
//! N bytes to another thread of its own (0: as many as it can until stdin is closed). Then it prints
//! `{"pid":..,"sent":N}` and keeps the connection until stdin is closed. With `--devices 0` its
//! /dev/infiniband is empty, as in a container that was given no devices.

use std::{
    ffi::CStr,
    io::{self, BufRead as _, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    library,
};
use serde_json::json;

const BUFFER: usize = 256 << 10;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let bytes: u64 = args.value("--bytes", 0)?;
    let without_devices = args.value("--devices", 1)? == 0;
    args.finish()?;
    if without_devices {
        hide_devices()?;
    }
    library::map_nccl()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut to = TcpStream::connect(listener.local_addr()?)?;
    let (mut from, _) = listener.accept()?;
    let receiver = thread::spawn(move || -> io::Result<u64> {
        let (mut buffer, mut received) = (vec![0; BUFFER], 0);
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(received),
                more => received += more as u64,
            }
        }
    });
    report(&json!({"ready": true, "pid": std::process::id()}))?;
    io::stdin().lock().read_line(&mut String::new())?;
    let over = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&over);
    let waiting = thread::spawn(move || {
        let ended = wait_for_stdin_end();
        end.store(true, Ordering::Relaxed);
        ended
    });
    let (buffer, mut sent) = (vec![7; BUFFER], 0_u64);
    while sent < bytes || (bytes == 0 && !over.load(Ordering::Relaxed)) {
        let left = if bytes == 0 { BUFFER as u64 } else { bytes - sent };
        let part = buffer.get(..usize::try_from(left)?).unwrap_or(&buffer);
        to.write_all(part)?;
        sent += part.len() as u64;
    }
    report(&json!({"pid": std::process::id(), "sent": sent}))?;
    waiting.join().ok().context("the thread that waits ended")??;
    drop(to);
    let received = receiver.join().ok().context("the receiver ended")??;
    ensure!(received == sent, "{received} of {sent} bytes came");
    Ok(())
}

/// Mounts an empty directory over /dev/infiniband, in a mount namespace of its own.
fn hide_devices() -> Result<()> {
    // SAFETY: no pointer is passed; this process has only one thread so far.
    let code = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    ensure!(code == 0, io::Error::last_os_error());
    mount(c"none", c"/", None, libc::MS_REC | libc::MS_PRIVATE)?;
    mount(c"none", c"/dev/infiniband", Some(c"tmpfs"), 0)
}

fn mount(what: &CStr, at: &CStr, kind: Option<&CStr>, flags: libc::c_ulong) -> Result<()> {
    let kind = kind.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the strings end with a zero and outlive the call; no data is passed.
    let code = unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind, flags, std::ptr::null()) };
    ensure!(
        code == 0,
        "mount {}: {}",
        at.to_string_lossy(),
        io::Error::last_os_error()
    );
    Ok(())
}
