//! A QP used by several tasks: first by the thread that made it, which is not the process's first, then by a
//! child of fork(2) and by the first thread.
//!
//! `shared-qp [--device rxe0] [--count 100] [--size 64] [--thread-ends] [--sharer]` has a second thread make
//! two QPs and post COUNT writes from the one to the other. It prints
//! `{"ready":true,"pid":..,"tid":..,"qpn":..}`, waits for a line on stdin, and forks. The child puts one
//! write on the ring that it inherited; the kernel refuses its doorbell, because a verbs file is only for the
//! credentials that opened it (`ib_safe_file_access`), so that write waits for the next doorbell. Then the
//! first thread posts COUNT writes. At the end it prints the same with the child's PID and the number of
//! posts. With `--thread-ends` the second thread ends before the first line. With `--sharer` a `sleep`, whose
//! PID is in the first line, inherits the verbs file and has it open until the end.

use std::{
    fs,
    io::{self, Write as _},
    os::{
        fd::{FromRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Mr, Opcode, Pd, Qp, connect, unlimit_memlock},
};
use serde_json::json;

struct Pair {
    cq: Arc<Cq>,
    qp: Qp,
    _peer: Qp,
    from: Mr,
    to: Mr,
    size: u32,
}

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let count: u64 = args.value("--count", 100)?;
    let size: u32 = args.value("--size", 64)?;
    let thread_ends = args.flag("--thread-ends");
    let shares = args.flag("--sharer");
    args.finish()?;
    unlimit_memlock()?;
    let (hand_over, made) = mpsc::channel();
    let second = thread::spawn(move || {
        let made = make(&device, size).and_then(|pair| {
            pair.post(count)?;
            // SAFETY: takes no argument.
            Ok((pair, unsafe { libc::gettid() }))
        });
        if hand_over.send(made).is_ok() && !thread_ends {
            // The kernel gives netlink no PID for a task that has ended.
            loop {
                thread::park();
            }
        }
    });
    let (pair, tid) = made.recv().context("the second thread panicked")??;
    if thread_ends {
        second.join().ok().context("the second thread panicked")?;
        // A thread can be joined a moment before the kernel removes its id.
        while fs::exists(format!("/proc/self/task/{tid}"))? {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let (pid, qpn) = (std::process::id(), pair.qp.qpn());
    let sharer = shares.then(sharer).transpose()?;
    let sharing = sharer.as_ref().map(|sharer| sharer.0.id());
    report(&json!({"ready": true, "pid": pid, "tid": tid, "qpn": qpn, "sharer": sharing}))?;
    io::stdin().read_line(&mut String::new())?;
    drop(sharer);
    let child = in_a_child(|| match pair.post_one(0) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(()),
        other => bail!("the kernel took a doorbell of a child: {other:?}"),
    })?;
    pair.post(count)?;
    pair.finish()?;
    report(&json!({
        "pid": pid,
        "child": child,
        "qpn": qpn,
        "posted": 2 * count + 1,
        "bytes": (2 * count + 1) * u64::from(size),
    }))
}

/// A process that is killed when this is dropped.
struct Sharer(std::process::Child);

impl Drop for Sharer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a program that inherits the verbs file. libibverbs opens the file with close-on-exec, so a
/// duplicate is inherited.
fn sharer() -> Result<Sharer> {
    let mut files = fs::read_dir("/proc/self/fd")?.flatten();
    let is_verbs = |path: &Path| path.as_os_str().as_bytes().starts_with(b"/dev/infiniband/uverbs");
    let file = files.find(|file| fs::read_link(file.path()).is_ok_and(|path| is_verbs(&path)));
    let number = file.context("no verbs file is open")?.file_name();
    let number: i32 = number.to_str().context("a descriptor")?.parse()?;
    // SAFETY: the descriptor is open; this function owns the copy.
    let copy = unsafe { libc::dup(number) };
    ensure!(copy >= 0, "dup: {}", io::Error::last_os_error());
    // SAFETY: nothing else uses the copy; it is closed here after it was inherited.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let child = Command::new("sleep")
        .arg("600")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    drop(copy);
    Ok(Sharer(child))
}

fn make(device: &str, size: u32) -> Result<Pair> {
    let context = Context::open(device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let (qp, peer) = (Qp::new(&pd, &cq, 8)?, Qp::new(&pd, &cq, 8)?);
    connect(&qp, &peer)?;
    Ok(Pair {
        cq,
        qp,
        _peer: peer,
        from: Mr::new(&pd, size as usize)?,
        to: Mr::new(&pd, size as usize)?,
        size,
    })
}

impl Pair {
    fn post_one(&self, number: u64) -> io::Result<()> {
        let Self { qp, from, to, .. } = self;
        qp.post_send(number, Opcode::RdmaWrite, self.size, from, to)
    }

    /// Posts this many writes, one at a time.
    fn post(&self, count: u64) -> Result<()> {
        for number in 0..count {
            self.post_one(number)?;
            self.finish()?;
        }
        Ok(())
    }

    /// Waits for one completion.
    fn finish(&self) -> Result<()> {
        let end = Instant::now() + Duration::from_mins(1);
        loop {
            if let Some(wc) = self.cq.poll()? {
                ensure!(wc.status == 0, "a completion has status {}", wc.status);
                return Ok(());
            }
            ensure!(Instant::now() < end, "no completion in a minute");
            thread::yield_now();
        }
    }
}

/// Runs `work` in a child of fork(2); returns its PID once it has succeeded.
fn in_a_child(work: impl FnOnce() -> Result<()>) -> Result<i32> {
    // SAFETY: the only other thread is parked or has ended, so the child lacks no task that holds a lock.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = match work() {
            Ok(()) => 0,
            Err(error) => {
                let _ = writeln!(io::stderr(), "the child: {error:#}");
                1
            }
        };
        // SAFETY: this ends without destructors, because the QPs are the parent's.
        unsafe { libc::_exit(code) }
    }
    ensure!(child > 0, "fork: {}", io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the status is written into a place of ours.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(
        waited == child && status == 0,
        "the child ended with status {status}"
    );
    Ok(child)
}
