//! Owns a QP but lets nobody read its memory: one of its calls holds the lock of its address space and waits
//! for a file system that does not answer, like calls of a job whose file server is gone.
//!
//! `stuck-memory [--device rxe0] [--page [--until-line]]` prints `{"ready":true,"pid":..,"qpn":..}` and then
//! waits in the kernel until it is killed. With `--page` no call of its own waits: it maps the page with
//! libibverbs' structure of the QP from that file system, prints `covered`, and whoever reads the structure
//! waits; with `--until-line` until there is a line on stdin: from then on the page has what was there.
//!
//! It needs root to mount. The file system is its own, on `/dev/fuse`; a child is the daemon, which answers
//! all requests except reads and ends with its parent. Then the kernel ends all waits.

use std::{
    convert::Infallible,
    ffi::CString,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{
        fd::AsRawFd as _,
        unix::{ffi::OsStrExt as _, fs::FileExt as _},
    },
    path::Path,
    ptr, thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use rdmatop_tests::{
    args::{Args, report},
    verbs::{Context, Cq, Pd, Qp, unlimit_memlock},
};
use serde_json::json;

const PAGE: u32 = 4096;

/// Requests that the daemon answers, include/uapi/linux/fuse.h.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const INIT: u32 = 26;

fn main() -> Result<()> {
    let mut args = Args::from_env();
    let device: String = args.value("--device", "rxe0".into())?;
    let is_page = args.flag("--page");
    let until_line = args.flag("--until-line");
    args.finish()?;
    let content = shared_page()?;
    // The daemon is forked before there are threads and QPs.
    let silent = silent_file(until_line.then_some(content))?;
    unlimit_memlock()?;
    let context = Context::open(&device).with_context(|| format!("open {device}"))?;
    let pd = Pd::new(&context)?;
    let cq = Cq::new(&context, 16)?;
    let qp = Qp::new(&pd, &cq, 1)?;
    report(&json!({"ready": true, "pid": std::process::id(), "qpn": qp.qpn()}))?;
    if is_page {
        cover(&silent, &qp, content)?;
    }
    let page = map(silent.as_raw_fd(), None)?;
    let memory = File::open("/proc/self/mem")?;
    // The kernel holds the lock for reading while it waits for the page.
    thread::spawn(move || memory.read_exact_at(&mut [0; 8], page));
    thread::sleep(Duration::from_millis(300));
    // This call waits to get the lock for writing, and every later reader waits behind it.
    map(silent.as_raw_fd(), None)?;
    anyhow::bail!("the lock was free")
}

fn checked(result: i32, what: &'static str) -> Result<i32> {
    ensure!(result >= 0, "{what}: {}", std::io::Error::last_os_error());
    Ok(result)
}

/// Maps the file over the page with the QP's structure, and waits until killed. The allocator has other data
/// on that page, so from then on nothing is allocated, freed or dropped.
fn cover(silent: &File, qp: &Qp, content: u64) -> Result<Infallible> {
    const COVERED: &[u8] = b"covered\n";
    let page = qp.address() & !u64::from(PAGE - 1);
    // SAFETY: both are pages of this process; the second is for this.
    unsafe { ptr::copy_nonoverlapping(at(page)?, at(content)?, PAGE as usize) };
    map(silent.as_raw_fd(), Some(qp.address()))?;
    loop {
        // SAFETY: static memory; `pause` gets nothing. No signal has a handler: the line is written once.
        unsafe {
            libc::write(1, COVERED.as_ptr().cast(), COVERED.len());
            libc::pause();
        }
    }
}

fn at(address: u64) -> Result<*mut u8> {
    Ok(ptr::with_exposed_provenance_mut(usize::try_from(address)?))
}

/// A page that this process and the daemon share.
fn shared_page() -> Result<u64> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at the kernel's choice.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE as usize, rights, flags, -1, 0) };
    ensure!(
        page != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    Ok(page as u64)
}

/// Maps one page of a file, over the page with this address if given, and returns its address.
fn map(fd: i32, over: Option<u64>) -> Result<u64> {
    let (place, fixed) = over.map_or((0, 0), |address| {
        (address & !u64::from(PAGE - 1), libc::MAP_FIXED)
    });
    // SAFETY: a new mapping at the kernel's choice, or over a page that the caller no longer uses.
    let page = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(usize::try_from(place)?),
            PAGE as usize,
            libc::PROT_READ,
            libc::MAP_PRIVATE | fixed,
            fd,
            0,
        )
    };
    ensure!(
        page != libc::MAP_FAILED,
        "mmap: {}",
        std::io::Error::last_os_error()
    );
    Ok(page as u64)
}

/// A file whose reads are never answered, or from a line on stdin on, with the content of a page.
fn silent_file(content: Option<u64>) -> Result<File> {
    let path = std::env::temp_dir().join(format!("stuck-memory.{}", std::process::id()));
    fs::write(&path, "")?;
    let channel = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .context("/dev/fuse")?;
    // The channel cannot be read before it belongs to a mount.
    mount(&path, channel.as_raw_fd())?;
    // SAFETY: this process has one thread.
    if checked(unsafe { libc::fork() }, "fork")? == 0 {
        // SAFETY: only numbers are passed.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let _ = serve(channel, content);
        std::process::exit(0);
    }
    drop(channel);
    let file = File::open(&path)?;
    // The size must be right, because a page beyond the end is not read.
    ensure!(
        file.metadata()?.len() == u64::from(PAGE),
        "the daemon does not answer"
    );
    let name = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `name` lives during the call. Open files stay usable.
    let unmounted = unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
    checked(unmounted, "umount")?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn mount(path: &Path, channel: i32) -> Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let options = CString::new(format!("fd={channel},rootmode=100000,user_id=0,group_id=0"))?;
    // SAFETY: all strings live during the call and end with a zero.
    let mounted = unsafe {
        libc::mount(
            c"stuck-memory".as_ptr(),
            name.as_ptr(),
            c"fuse".as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV,
            options.as_ptr().cast(),
        )
    };
    checked(mounted, "mount").map(|_| ())
}

/// Runs the daemon of a file system with one file. It answers reads with the content of a page once there is
/// a line on stdin.
fn serve(mut channel: File, content: Option<u64>) -> Result<()> {
    let mut request = vec![0; 1 << 17];
    let mut answers = false;
    loop {
        let length = channel.read(&mut request)?;
        ensure!(length >= 40, "a request of {length} bytes");
        let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| request[at + byte]));
        let (kind, unique) = (word(4), request[8..16].to_vec());
        let body = match kind {
            READ => {
                let Some(content) = content else { continue };
                if !answers {
                    answers = std::io::stdin().read_line(&mut String::new())? > 0;
                }
                if !answers {
                    continue;
                }
                // SAFETY: a page of this process, to which nobody writes any more.
                unsafe { std::slice::from_raw_parts(at(content)?, PAGE as usize) }.to_vec()
            }
            // Version 7.31, no flags, and writes of one page.
            INIT => words(&[7, 31, 0, 0, 0, PAGE, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            // Valid for an hour; number, size, blocks; a file that everybody may read; block size.
            GETATTR => words(&[
                3600, 0, 0, 0, 1, 0, PAGE, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0o100_444, 1, 0, 0, 0, PAGE, 0,
            ]),
            OPEN => words(&[0; 4]),
            _ => Vec::new(),
        };
        let error = if body.is_empty() { -libc::ENOSYS } else { 0 };
        let length = u32::try_from(16 + body.len())?;
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique].concat();
        channel.write_all(&[head, body].concat())?;
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
