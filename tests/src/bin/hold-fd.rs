//! Makes an orphan: a QP whose owner has exited while another process holds a copy of its verbs file.
//!
//! `hold-fd [--device rxe0] [--thread]` starts the owner (the same program with `--owner`), copies its file
//! with pidfd_getfd(2) (Linux 5.6) and ends it. It prints `{"ready":true,"owner":..,"holder":..,"qpn":..}`
//! and holds the file until stdin is closed, which destroys the QP. With `--thread` the objects are made by a
//! thread of the owner that is not its first.

use std::{
    io::{self, BufRead, BufReader},
    os::fd::{FromRawFd, OwnedFd},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result};
use rdmatop_tests::{
    args::{Args, report, wait_for_stdin_end},
    verbs::{Context, Cq, Pd, Qp, unlimit_memlock},
};
use serde_json::{Value, json};

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let owner = args.flag("--owner");
    let thread = args.flag("--thread");
    args.finish()?;
    match (owner, thread) {
        (false, _) => hold(&device, thread),
        (true, false) => own(&device),
        (true, true) => thread::spawn(move || own(&device))
            .join()
            .map_err(|_| anyhow::anyhow!("the thread panicked"))?,
    }
}

/// Runs the owner, and ends the process.
fn own(device: &str) -> Result<()> {
    unlimit_memlock()?;
    let context = Context::open(device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let qp = Qp::new(&pd, &cq, 4)?;
    qp.to_init()?;
    qp.to_rtr(qp.qpn())?;
    qp.to_rts(7)?;
    report(&json!({"fd": context.cmd_fd(), "qpn": qp.qpn()}))?;
    wait_for_stdin_end()?;
    // No destructor runs: the owner is gone like a killed process, and only the copied file keeps the QP.
    std::process::exit(0)
}

fn hold(device: &str, thread: bool) -> Result<()> {
    let mut owner = Command::new(std::env::current_exe()?)
        .args(["--owner", "--device", device])
        .args(thread.then_some("--thread"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(owner.stdout.take().context("no stdout")?).read_line(&mut line)?;
    let made: Value = serde_json::from_str(&line).context("the owner did not get ready")?;
    let fd = i32::try_from(made["fd"].as_i64().context("no fd")?)?;
    let copy = copy_fd(owner.id(), fd).context("pidfd_getfd")?;
    drop(owner.stdin.take());
    owner.wait()?;
    report(&json!({"ready": true, "owner": owner.id(), "holder": std::process::id(), "qpn": made["qpn"]}))?;
    wait_for_stdin_end()?;
    drop(copy);
    Ok(())
}

fn copy_fd(pid: u32, fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: only integers are passed; the result is a new descriptor or -1.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let raw = std::os::fd::AsRawFd::as_raw_fd(&process);
    // SAFETY: as above; `process` is open during the call.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, raw, fd, 0) })
}

fn owned(raw: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(raw) {
        // SAFETY: the kernel has just made this descriptor for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
