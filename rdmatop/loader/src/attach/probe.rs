//! Attaches a loaded program to a kprobe, a kretprobe, a uprobe or a tracepoint: by perf_event_open(2) and a
//! link (Linux 5.15; from 6.7 on it reports what a kprobe missed), or an ioctl on older kernels. The program
//! stays attached while the descriptors are open, so the kernel detaches it when the process ends.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_cmd,
    perf_event_attr, perf_event_sample_format::PERF_SAMPLE_RAW, perf_type_id::PERF_TYPE_TRACEPOINT,
};

use rdmatop_common::offsets::CATEGORY;

use crate::{
    load::{
        error::LoadError,
        sys::{bpf, empty},
    },
    offsets::tracepoint_file,
};
use rdmatop_sources::root::Root;

/// Why a program is not attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// The program could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("this kernel has no kprobe events: CONFIG_KPROBE_EVENTS")]
    NoKprobes,
    #[error("this kernel has no tracepoint {0}")]
    NoTracepoint(String),
    #[error("perf_event_open")]
    Open(#[source] io::Error),
    #[error("cannot bind the program")]
    Bind(#[source] io::Error),
    #[error("the kernel has no BTF for {0}")]
    NoBtf(String),
    #[error("the BTF of the module has no function {0}")]
    NoFunction(String),
    /// The kernel's ftrace cannot call programs, as on arm64 before Linux 6.4.
    #[error("this kernel cannot enter programs at functions (ENOTSUPP)")]
    Unsupported,
    #[error("cannot read the kernel's BTF objects: {command}")]
    Btf {
        /// Command of bpf(2).
        command: &'static str,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
}

/// Keeps a program attached. The link is dropped first, because it holds the event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) link: Option<OwnedFd>,
    _perf: Option<OwnedFd>,
}

/// The PMU that makes kprobes, or the one that makes uprobes:
/// Documentation/ABI/testing/sysfs-bus-event_source-devices-format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pmu {
    kind: u32,
    return_bit: u32,
}

impl Pmu {
    /// Reads the PMU's number, and which bit of `config` selects the return.
    pub(crate) fn read(name: &str) -> Option<Self> {
        let directory = format!("/sys/bus/event_source/devices/{name}");
        let file = |name| fs::read_to_string(format!("{directory}/{name}")).ok();
        let kind = file("type")?.trim().parse().ok()?;
        let return_bit = bit(&file("format/retprobe")?)?;
        Some(Self { kind, return_bit })
    }

    /// Attaches at the entry or the return of a function of a module.
    ///
    /// With the module's name the kernel searches only that module's symbols. Without, it searches those of
    /// all modules, from Linux 6.7 on twice for each probe (`validate_probe_symbol`, `kprobe_lookup_name`).
    /// Built-in code has no module name: there the second try finds the function.
    pub(super) fn at_kernel(
        self,
        program: &OwnedFd,
        module: &str,
        function: &str,
        at_return: bool,
    ) -> Result<Event, AttachError> {
        let perf = self
            .open(&format!("{module}:{function}"), 0, None, at_return)
            .or_else(|_| self.open(function, 0, None, at_return))?;
        bind(perf, program)
    }

    /// Attaches at an offset in a file, or at the return of the function there, in one process or in all that
    /// map the file. The program can read the `cookie` (Linux 5.15).
    pub(crate) fn at_program(
        self,
        program: &OwnedFd,
        (path, offset): (&str, u64),
        pid: Option<u32>,
        at_return: bool,
        cookie: u64,
    ) -> Result<Event, AttachError> {
        let perf = self.open(path, offset, pid, at_return)?;
        let link = link(&perf, program, cookie).map_err(AttachError::Bind)?;
        enabled(perf, Some(link))
    }

    fn open(
        self,
        name: &str,
        offset: u64,
        pid: Option<u32>,
        at_return: bool,
    ) -> Result<OwnedFd, AttachError> {
        let name = CString::new(name).map_err(|error| AttachError::Open(error.into()))?;
        let mut attr = attributes(self.kind);
        if at_return {
            attr.config = 1 << self.return_bit;
        }
        attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
        attr.__bindgen_anon_4.config2 = offset;
        // SAFETY: the name outlives the call.
        unsafe { open(&mut attr, pid) }
    }
}

/// Parses "config:0": the number of a bit of `config` below 64.
fn bit(text: &str) -> Option<u32> {
    text.trim()
        .strip_prefix("config:")?
        .parse()
        .ok()
        .filter(|bit| *bit < 64)
}

pub(crate) fn tracepoint(program: &OwnedFd, root: &Root, event: &str) -> Result<Event, AttachError> {
    let number = tracepoint_file(root, event, "id").and_then(|id| id.trim().parse().ok());
    let mut attr = attributes(PERF_TYPE_TRACEPOINT as u32);
    attr.config = number.ok_or_else(|| AttachError::NoTracepoint(format!("{CATEGORY}:{event}")))?;
    attr.sample_type = PERF_SAMPLE_RAW as u64;
    // SAFETY: the attributes contain only plain numbers, and no address.
    bind(unsafe { open(&mut attr, None) }?, program)
}

/// Attaches to a raw tracepoint, whose program gets the tracepoint's arguments. The kernel finds it by its
/// name alone, in modules too.
pub(crate) fn raw_tracepoint(program: &OwnedFd, event: &str) -> Result<Event, AttachError> {
    let name = CString::new(event).map_err(|error| AttachError::Open(error.into()))?;
    open_raw(program, Some(&name)).map_err(AttachError::Bind)
}

/// Attaches by a link that needs no event of perf: to the raw tracepoint of this name, or without a name to
/// the function that the program was loaded for.
pub(super) fn open_raw(program: &OwnedFd, name: Option<&CStr>) -> io::Result<Event> {
    let mut attr = empty();
    attr.raw_tracepoint.name = name.map_or(0, |name| name.as_ptr() as u64);
    attr.raw_tracepoint.prog_fd = program.as_raw_fd().cast_unsigned();
    // SAFETY: the name outlives the call.
    let link = unsafe { bpf(bpf_cmd::BPF_RAW_TRACEPOINT_OPEN, &mut attr) }?;
    Ok(Event {
        link: Some(link),
        _perf: None,
    })
}

fn attributes(kind: u32) -> perf_event_attr {
    // SAFETY: plain integers; zero means "not requested", also in parts that the kernel does not know.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    attr.type_ = kind;
    attr
}

/// Opens an event, for one process or for all.
///
/// # Safety
/// Addresses in the attributes must be valid.
unsafe fn open(attr: &mut perf_event_attr, pid: Option<u32>) -> Result<OwnedFd, AttachError> {
    // For one process the probe works on any CPU. For all processes perf requires the number of a CPU, but
    // the program runs on all of them.
    let (pid, cpu): (libc::pid_t, libc::c_int) = match pid {
        Some(pid) => (pid.cast_signed(), -1),
        None => (-1, 0),
    };
    // SAFETY: the attributes are a whole struct, and the caller promises that its addresses are valid.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(attr),
            pid,
            cpu,
            -1,
            libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    let fd = i32::try_from(rc).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(|| AttachError::Open(io::Error::last_os_error()))?;
    // SAFETY: the kernel has just made this descriptor for this process, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(perf: OwnedFd, program: &OwnedFd) -> Result<Event, AttachError> {
    let link = link(&perf, program, 0).ok();
    if link.is_none() {
        ask(&perf, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
    }
    enabled(perf, link)
}

fn enabled(perf: OwnedFd, link: Option<OwnedFd>) -> Result<Event, AttachError> {
    ask(&perf, PERF_EVENT_IOC_ENABLE, 0)?;
    Ok(Event {
        link,
        _perf: Some(perf),
    })
}

fn link(perf: &OwnedFd, program: &OwnedFd, cookie: u64) -> io::Result<OwnedFd> {
    let mut attr = empty();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    attr.link_create.__bindgen_anon_2.target_fd = perf.as_raw_fd().cast_unsigned();
    attr.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    attr.link_create.__bindgen_anon_3.perf_event.bpf_cookie = cookie;
    // SAFETY: the attribute has only the two descriptors and plain numbers.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// An ioctl that takes a number.
fn ask(perf: &OwnedFd, request: u32, argument: i32) -> Result<(), AttachError> {
    // SAFETY: both requests that are made with this take a number and no address.
    let rc = unsafe { libc::ioctl(perf.as_raw_fd(), libc::c_ulong::from(request) as _, argument) };
    if rc < 0 {
        return Err(AttachError::Bind(io::Error::last_os_error()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_return_bit_is_read_as_the_kernel_spells_it() {
        assert_eq!(bit("config:0\n"), Some(0));
        assert_eq!(bit("config:7"), Some(7));
        for text in ["", "config:", "config:64", "config1:0", "config:0-3"] {
            assert_eq!(bit(text), None, "{text}");
        }
    }
}
