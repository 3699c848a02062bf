//! Runs one guest from boot to the job's exit status.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::job::Job;
use super::kernel::Kernel;
use super::qemu::{Accel, Vm};
use super::stream::UntilMarker;
use super::tty::{self, Escape, RawMode};
use super::{initramfs, kernel, newer_qemu, nic, root};
use crate::arch::Arch;
use crate::paths;

/// Far longer than a boot takes, because other work may share this machine's CPUs.
const BOOT_LIMIT: Duration = Duration::from_mins(4);
/// How long output may arrive after the exit status.
const DRAIN_LIMIT: Duration = Duration::from_secs(15);

/// The machine that runs a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// How instructions are executed.
    pub(crate) accel: Accel,
    /// Number of CPUs.
    pub(crate) cpus: u32,
    /// Memory in MiB.
    pub(crate) memory: u32,
    /// How long the job may run.
    pub(crate) timeout: Option<Duration>,
}

/// How a guest ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The job's exit status.
    Exit(u8),
    /// The job ran out of time and the guest was killed.
    Timeout,
    /// The guest never started the job.
    BootFailed(String),
    /// The guest died during the job.
    Died,
    /// Like [`End::Died`], but the fault is QEMU's: see [`is_stale_code`].
    Mistranslated,
    /// The user ended the guest.
    Escaped,
}

enum Event {
    Control(String),
    StreamEnd,
    Escape,
}

/// A line from the guest's control port.
#[derive(Debug, PartialEq, Eq)]
enum Control {
    Ready(String),
    Exit(u8),
    Fail(String),
    Unknown,
}

fn parse_control(line: &str) -> Control {
    let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match word {
        "ready" => Control::Ready(rest.to_owned()),
        "exit" => rest.parse().map_or(Control::Unknown, Control::Exit),
        "fail" => Control::Fail(rest.to_owned()),
        _ => Control::Unknown,
    }
}

/// Directory for sockets and logs of one run. Its path is short: a socket's path has at most 107 bytes.
struct RunDir(PathBuf);

impl RunDir {
    fn new() -> Result<Self> {
        const ROOM_FOR_NAMES: usize = 60;
        let base = Some(env::temp_dir())
            .filter(|dir| dir.as_os_str().len() < 107 - ROOM_FOR_NAMES)
            .unwrap_or_else(|| "/tmp".into());
        for attempt in 0..1000 {
            let dir = base.join(format!("rdmatop-lab-{}-{attempt}", std::process::id()));
            match fs::create_dir(&dir) {
                Ok(()) => return Ok(Self(dir)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", dir.display())),
            }
        }
        bail!("cannot create a directory in {}", base.display())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Kills QEMU however the run ends.
struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots `kernel`, runs `job` and returns how it ended.
///
/// A guest that dies before the job is started once more, and a message says so: Linux 7.2 sometimes oopses
/// in early boot when instructions are translated.
pub(crate) fn run(kernel: &Kernel, machine: Machine, job: &Job) -> Result<End> {
    match boot(kernel, machine, job)? {
        End::BootFailed(reason) => {
            eprintln!(
                "lab: Linux {} did not come up, trying once more: {reason}",
                kernel.release
            );
            boot(kernel, machine, job)
        }
        end => Ok(end),
    }
}

/// Returns the program that runs guests of an architecture.
fn qemu(arch: Arch, by_newer: bool) -> Result<PathBuf> {
    let newer = by_newer.then(|| newer_qemu::cached(arch)).flatten();
    let found = newer.or_else(|| paths::find_tool(&[&newer_qemu::program(arch)]));
    found.with_context(|| match arch {
        Arch::X86_64 => "no qemu-system-x86_64: `cargo xtask setup`, or `apt-get install qemu-system-x86`",
        Arch::Aarch64 => "no qemu-system-aarch64: `apt-get install qemu-system-arm`",
    })
}

fn boot(kernel: &Kernel, machine: Machine, job: &Job) -> Result<End> {
    // The recorded instruction counts were measured with the machine's own QEMU, so icount uses that one.
    let by_newer = job.nic.is_none() && machine.accel != Accel::Icount;
    let qemu = qemu(kernel.arch, by_newer)?;
    let root = job.foreign.then(|| root::ensure(kernel.arch)).transpose()?;
    let initramfs = initramfs::ensure(kernel, root.as_deref())?;
    let run_dir = RunDir::new()?;
    let job_dir = run_dir.0.join("job");
    fs::create_dir(&job_dir)?;
    fs::create_dir_all(&job.out).with_context(|| format!("cannot create {}", job.out.display()))?;
    job.write(&job_dir, kernel)?;
    let vm = Vm {
        arch: kernel.arch,
        root,
        accel: machine.accel,
        cpus: machine.cpus,
        memory: machine.memory,
        kernel: kernel.image(),
        initramfs,
        run_dir: run_dir.0.clone(),
        job: job_dir,
        out: job.out.clone(),
        terminal: job.terminal.is_some(),
        nic: match &job.nic {
            Some(_) => nic::arguments(&run_dir.0, machine.memory),
            None => Vec::new(),
        },
    };
    let mut listeners = Vec::new();
    for port in vm.ports() {
        let path = run_dir.0.join(format!("{port}.sock"));
        let listener = UnixListener::bind(&path)
            .with_context(|| format!("cannot make the socket {}", path.display()))?;
        listeners.push((*port, listener));
    }
    let log = fs::File::create(run_dir.0.join("qemu.log"))?;
    let env = job.nic.as_ref().map(|nic| nic.env(&run_dir.0));
    let mut command = with_parent_death(&qemu, &env.unwrap_or_default());
    command
        .args(vm.args())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    let mut child = Qemu(command.spawn().context("cannot start QEMU")?);

    let raw = job.terminal.map(|_| RawMode::enter());
    let (sender, receiver) = mpsc::channel();
    let mut control = None;
    for (port, listener) in listeners {
        let Some(stream) = accept(&listener, &mut child.0)? else {
            drop(raw);
            return Ok(End::BootFailed(diagnosis(&run_dir.0)));
        };
        match port {
            "ctl" => {
                control = Some(stream.try_clone()?);
                read_control(stream, sender.clone());
            }
            "tty" => {
                type_into(stream.try_clone()?, sender.clone());
                copy_out(stream, io::stdout(), &job.marker, sender.clone());
            }
            "out" => copy_out(stream, io::stdout(), &job.marker, sender.clone()),
            _ => copy_out(stream, io::stderr(), &job.marker, sender.clone()),
        }
    }
    drop(sender);
    let streams = vm.ports().len() - 1;
    let end = follow(
        &receiver,
        &mut child.0,
        control,
        machine.timeout,
        streams,
        job.terminal,
    );
    drop(child);
    drop(raw);
    match end {
        Followed::End(end) => {
            let mut words = String::new();
            if matches!(end, End::Timeout | End::Died) {
                words = diagnosis(&run_dir.0);
                eprintln!("lab: the guest's last words:\n{words}");
            }
            let stale = machine.accel == Accel::Tcg && machine.cpus > 1 && is_stale_code(&words);
            Ok(match end {
                End::Died if stale => End::Mistranslated,
                end => end,
            })
        }
        Followed::BootFailed(reason) => {
            let mut text = reason;
            let words = diagnosis(&run_dir.0);
            if !words.is_empty() {
                text.push('\n');
                text.push_str(&words);
            }
            Ok(End::BootFailed(text))
        }
    }
}

/// Returns QEMU's command behind the words `before`. QEMU dies with this process, even if that is killed.
fn with_parent_death(qemu: &Path, before: &[String]) -> Command {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(setpriv) = paths::find_tool(&["setpriv"]) {
        words.push(setpriv.into());
        words.extend(["--pdeathsig", "KILL", "--"].map(OsString::from));
    }
    words.extend(before.iter().map(OsString::from));
    words.push(qemu.into());
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Waits for QEMU to connect; returns `None` if it died instead.
fn accept(listener: &UnixListener, child: &mut Child) -> Result<Option<UnixStream>> {
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(Some(stream));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if child.try_wait()?.is_some() {
                    return Ok(None);
                }
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

enum Followed {
    End(End),
    BootFailed(String),
}

/// Follows the guest until it ends.
fn follow(
    receiver: &Receiver<Event>,
    child: &mut Child,
    mut control: Option<UnixStream>,
    timeout: Option<Duration>,
    streams: usize,
    mut terminal: Option<(u16, u16)>,
) -> Followed {
    let mut ready = false;
    let mut deadline = Some(Instant::now() + BOOT_LIMIT);
    let mut exit = None;
    let mut ended = 0;
    let mut next_size = Instant::now();
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(Event::Control(line)) => match parse_control(&line) {
                Control::Ready(_) => {
                    ready = true;
                    deadline = timeout.map(|limit| Instant::now() + limit);
                }
                Control::Exit(code) => {
                    exit = Some(code);
                    deadline = Some(Instant::now() + DRAIN_LIMIT);
                }
                Control::Fail(reason) => return Followed::BootFailed(reason),
                Control::Unknown => {}
            },
            Ok(Event::StreamEnd) => ended += 1,
            Ok(Event::Escape) => return Followed::End(End::Escaped),
            Err(RecvTimeoutError::Timeout) => {}
            // All readers have ended; QEMU has ended too or soon will.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(Duration::from_millis(50)),
        }
        if let Some(code) = exit.filter(|_| ended >= streams) {
            return Followed::End(End::Exit(code));
        }
        let late = deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late || child.try_wait().is_ok_and(|status| status.is_some()) {
            return match (exit, ready) {
                (Some(code), _) => Followed::End(End::Exit(code)),
                (None, true) if late => Followed::End(End::Timeout),
                (None, true) => Followed::End(End::Died),
                (None, false) if late => {
                    Followed::BootFailed(format!("nothing after {} s", BOOT_LIMIT.as_secs()))
                }
                (None, false) => Followed::BootFailed("the guest ended during boot".to_owned()),
            };
        }
        if terminal.is_some() && ready && Instant::now() >= next_size {
            next_size = Instant::now() + Duration::from_secs(1);
            let size = tty::size();
            if let (Some((rows, cols)), Some(stream)) = (size.filter(|_| size != terminal), &mut control) {
                let _ = writeln!(stream, "size {rows} {cols}");
                terminal = size;
            }
        }
    }
}

fn read_control(stream: UnixStream, sender: Sender<Event>) {
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            if sender.send(Event::Control(line)).is_err() {
                break;
            }
        }
    });
}

fn copy_out(mut from: UnixStream, mut to: impl Write + Send + 'static, marker: &str, sender: Sender<Event>) {
    let mut filter = UntilMarker::new(marker);
    thread::spawn(move || {
        let mut chunk = [0_u8; 16384];
        while let Ok(len) = from.read(&mut chunk) {
            if len == 0 {
                break;
            }
            // If the reader went away (`| head`), the job must not stop: its output is still drained.
            let _ = to.write_all(&filter.feed(&chunk[..len]));
            let _ = to.flush();
            if filter.ended() {
                let _ = sender.send(Event::StreamEnd);
                return;
            }
        }
    });
}

fn type_into(mut to: UnixStream, sender: Sender<Event>) {
    thread::spawn(move || {
        let mut escape = Escape::default();
        let mut chunk = [0_u8; 4096];
        while let Ok(len) = io::stdin().read(&mut chunk) {
            if len == 0 {
                break;
            }
            if escape.feed(&chunk[..len]) {
                let _ = sender.send(Event::Escape);
                return;
            }
            if to.write_all(&chunk[..len]).is_err() {
                break;
            }
        }
    });
}

/// Returns the end of the console and of QEMU's own messages.
fn diagnosis(run_dir: &Path) -> String {
    let mut text = String::new();
    for (name, lines) in [("console.log", 25), ("qemu.log", 8)] {
        let Ok(bytes) = fs::read(run_dir.join(name)) else {
            continue;
        };
        let log = String::from_utf8_lossy(&bytes);
        for line in last_words(&log, lines) {
            text.push_str("  | ");
            text.extend(line.chars().filter(|char| !char.is_control() || *char == '\t'));
            text.push('\n');
        }
    }
    text.trim_end().to_owned()
}

/// Returns the last lines of a log; after a kernel's death, all lines from its first sign, with the stack.
fn last_words(log: &str, lines: usize) -> Vec<&str> {
    let all: Vec<&str> = log.lines().collect();
    let tail = all.len().saturating_sub(lines);
    // An oops without a line of its own before it, such as of an int3, begins with its number.
    let begins = |line: &&str| line.contains("] BUG: ") || line.contains(": 0000 [#1]");
    let death = all.iter().position(begins);
    let from = death.filter(|at| all.len() - at <= 4 * lines).unwrap_or(tail);
    all.get(from.min(tail)..).unwrap_or_default().to_vec()
}

/// Whether a kernel died from code that it had changed and that QEMU had not read again.
///
/// Attaching and detaching a kprobe writes an int3 to the function's first byte for a moment. Switching a
/// static branch (`static_key`, frequent in the scheduler) does the same at its 5 bytes. Once in a few dozen
/// runs under full traffic, a guest with two CPUs dies from an int3 that is no longer there, in one of two
/// ways:
///
/// * It jumps to address 0, with interrupts off and the arguments still in their registers. A kernel does
///   this when it takes the int3 for a kprobe's but finds no copy of the instruction (`setup_singlestep`).
/// * Nothing in the kernel knows the int3 (`exc_int3`), and the byte before the instruction pointer is no
///   int3.
///
/// bpftrace's kprobes cause it as ours do; it was never seen with one CPU.
fn is_stale_code(words: &str) -> bool {
    let jumped_to_0 =
        words.contains("#PF: supervisor instruction fetch in kernel mode") && words.contains("RIP: 0010:0x0");
    // The first code line belongs to the oops; those after it to the interrupted code and the program.
    let code = words.lines().find_map(|line| line.split_once("Code: "));
    jumped_to_0 || words.contains("int3: 0000 [#1]") && code.is_some_and(|(_, code)| is_without_int3(code))
}

/// Whether the byte before the instruction pointer, whose own byte is in brackets, is no int3.
fn is_without_int3(code: &str) -> bool {
    let before = code.split_once('<').map_or("", |(before, _)| before);
    before
        .split_whitespace()
        .next_back()
        .is_some_and(|byte| byte != "cc")
}

/// Returns the marker that ends each stream of this run.
pub(crate) fn marker() -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    format!("<<lab-end-{}-{}>>", std::process::id(), now.as_nanos())
}

/// Prints which kernels are cached.
pub(crate) fn print_cached() {
    for series in kernel::ALL.into_iter().chain(kernel::AARCH64) {
        let state = if kernel::is_cached(series) {
            "cached"
        } else {
            "not fetched"
        };
        println!(
            "{:8} {:7} Debian {:9} {state}",
            series.name,
            series.arch.name(),
            series.suite
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_kernel_begin_with_its_death() {
        let before = "[1.0] eth0: up\n".repeat(40);
        let death = "[2.0] BUG: kernel NULL pointer dereference, address: 0000000000000000\n\
                     [2.0] #PF: supervisor instruction fetch in kernel mode\n[2.0] RIP: 0010:0x0\n";
        let stack = "[2.0]  rxe_sender+0x1d/0x40 [rdma_rxe]\n".repeat(30);
        let log = format!("{before}{death}{stack}");
        let words = last_words(&log, 25);
        assert_eq!((words.len(), words[0].contains("BUG: ")), (33, true));
        assert!(is_stale_code(&words.join("\n")));
        assert_eq!(last_words(&before, 25).len(), 25);
        assert!(!is_stale_code(&before));
        assert!(last_words("", 25).is_empty());
    }

    #[test]
    fn an_int3_is_stale_unless_the_code_has_it() {
        let before = "[1.0] eth0: up\n".repeat(40);
        let died = |code: &str| {
            let stack = "[2.0]  update_curr+0x1d/0x40\n".repeat(30);
            let log = format!(
                "{before}[2.0] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n[2.0] RIP: 0010:update_curr+0x9c/0x1d0\n\
                 [2.0] Code: 48 29 c1 {code} 44 00 00 49\n{stack}[2.0] RIP: 0033:0x7f12\n[2.0] Code: 48 89 <f8> c3\n\
                 [2.0] Kernel panic - not syncing: Fatal exception in interrupt\n"
            );
            let words = last_words(&log, 25);
            assert!(words[0].contains("int3"), "{words:#?}");
            is_stale_code(&words.join("\n"))
        };
        assert!(died("0f 1f 44 00 00 0f <1f>"));
        assert!(!died("0f 1f 44 00 00 cc <1f>"));
        // Without the byte before it, nothing is known.
        assert!(!died("0f 1f 44 00 00 0f 1f"));
        assert!(!is_stale_code("[2.0] Code: 0f <1f> 44 00 00"));
    }

    #[test]
    fn control_lines_are_understood() {
        assert_eq!(parse_control("ready 7.81\n"), Control::Ready("7.81".to_owned()));
        assert_eq!(parse_control("exit 0"), Control::Exit(0));
        assert_eq!(parse_control("exit 137"), Control::Exit(137));
        assert_eq!(parse_control("exit 999"), Control::Unknown);
        assert_eq!(parse_control("exit"), Control::Unknown);
        assert_eq!(
            parse_control("fail cannot mount x"),
            Control::Fail("cannot mount x".to_owned())
        );
        assert_eq!(parse_control(""), Control::Unknown);
    }
}
