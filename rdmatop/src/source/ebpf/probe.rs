//! Attaching a loaded program to a kprobe, a kretprobe or a tracepoint: perf_event_open(2), and a link (Linux 5.15, which
//! tells from 6.7 on what a kprobe missed) or an ioctl before. It stays attached while the descriptors are open: whatever
//! ends the process ends it.

use std::{
    ffi::CString,
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use aya_obj::generated::{
    PERF_EVENT_IOC_ENABLE, PERF_EVENT_IOC_SET_BPF, PERF_FLAG_FD_CLOEXEC, bpf_attach_type, bpf_cmd,
    perf_event_attr, perf_event_sample_format::PERF_SAMPLE_RAW, perf_type_id::PERF_TYPE_TRACEPOINT,
};

use super::{
    loader::LoadError,
    offsets::{Places, tracepoint_file},
    sys::{bpf, empty},
};

/// Why a program is not on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProbeError {
    /// It could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kernel makes no kprobes for perf.
    #[error("this kernel has no kprobe events: CONFIG_KPROBE_EVENTS")]
    NoKprobes,
    /// The tracepoint is not in tracefs.
    #[error("this kernel has no tracepoint {0}")]
    NoTracepoint(String),
    /// The kernel does not open the probe.
    #[error("perf_event_open")]
    Open(#[source] io::Error),
    /// The kernel does not bind the program to it.
    #[error("cannot bind the program")]
    Bind(#[source] io::Error),
}

/// A program's place. The link goes first: it holds the event.
#[derive(Debug)]
pub(super) struct Event {
    pub(super) link: Option<OwnedFd>,
    _perf: OwnedFd,
}

/// The PMU that makes kprobes: Documentation/ABI/testing/sysfs-bus-event_source-devices-format.
#[derive(Clone, Copy, Debug)]
pub(super) struct KprobePmu {
    kind: u32,
    return_bit: u32,
}

impl KprobePmu {
    /// Reads its number and which bit of `config` asks for the return.
    pub(super) fn read() -> Option<Self> {
        let file = |name| fs::read_to_string(format!("/sys/bus/event_source/devices/kprobe/{name}")).ok();
        let kind = file("type")?.trim().parse().ok()?;
        let return_bit = bit(&file("format/retprobe")?)?;
        Some(Self { kind, return_bit })
    }

    /// Attaches at the entry or the return of a function of a module.
    ///
    /// With the module's name the kernel looks through its symbols only, and not through those of all modules: twice for
    /// each probe from Linux 6.7 on (`validate_probe_symbol`, `kprobe_lookup_name`). A module that is built in is none.
    pub(super) fn attach(
        self,
        program: &OwnedFd,
        module: &str,
        function: &str,
        at_return: bool,
    ) -> Result<Event, ProbeError> {
        let perf = self
            .open(&format!("{module}:{function}"), at_return)
            .or_else(|_| self.open(function, at_return))?;
        bind(perf, program)
    }

    fn open(self, function: &str, at_return: bool) -> Result<OwnedFd, ProbeError> {
        let name = CString::new(function).map_err(|error| ProbeError::Open(error.into()))?;
        let mut attr = attributes(self.kind);
        if at_return {
            attr.config = 1 << self.return_bit;
        }
        attr.__bindgen_anon_3.config1 = name.as_ptr() as u64;
        // SAFETY: the name outlives the call.
        unsafe { open(&mut attr) }
    }
}

/// "config:0": the number of a bit of `config` below 64.
fn bit(text: &str) -> Option<u32> {
    text.trim()
        .strip_prefix("config:")?
        .parse()
        .ok()
        .filter(|bit| *bit < 64)
}

/// Attaches to a tracepoint.
pub(super) fn tracepoint(
    program: &OwnedFd,
    places: &Places,
    category: &str,
    event: &str,
) -> Result<Event, ProbeError> {
    let number = tracepoint_file(places, category, event, "id").and_then(|id| id.trim().parse().ok());
    let mut attr = attributes(PERF_TYPE_TRACEPOINT as u32);
    attr.config = number.ok_or_else(|| ProbeError::NoTracepoint(format!("{category}:{event}")))?;
    attr.sample_type = PERF_SAMPLE_RAW as u64;
    // SAFETY: plain numbers only.
    bind(unsafe { open(&mut attr) }?, program)
}

fn attributes(kind: u32) -> perf_event_attr {
    // SAFETY: plain integers; the kernel takes zero as "not asked for", in any part that it does not know too.
    let mut attr: perf_event_attr = unsafe { std::mem::zeroed() };
    attr.size = u32::try_from(size_of::<perf_event_attr>()).unwrap_or(0);
    attr.type_ = kind;
    attr
}

/// Opens an event of all processes. One CPU is named because perf wants one; a program runs on all of them.
///
/// # Safety
/// Addresses in the attributes must be valid.
unsafe fn open(attr: &mut perf_event_attr) -> Result<OwnedFd, ProbeError> {
    const ALL: libc::pid_t = -1;
    // SAFETY: the attributes are whole, and the caller's promise.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_mut(attr),
            ALL,
            0,
            -1,
            libc::c_ulong::from(PERF_FLAG_FD_CLOEXEC),
        )
    };
    let fd = i32::try_from(rc).ok().filter(|fd| *fd >= 0);
    let fd = fd.ok_or_else(|| ProbeError::Open(io::Error::last_os_error()))?;
    // SAFETY: the kernel has just made it, for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn bind(perf: OwnedFd, program: &OwnedFd) -> Result<Event, ProbeError> {
    let link = link(&perf, program).ok();
    if link.is_none() {
        ask(&perf, PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
    }
    ask(&perf, PERF_EVENT_IOC_ENABLE, 0)?;
    Ok(Event { link, _perf: perf })
}

fn link(perf: &OwnedFd, program: &OwnedFd) -> io::Result<OwnedFd> {
    let mut attr = empty();
    attr.link_create.__bindgen_anon_1.prog_fd = program.as_raw_fd().cast_unsigned();
    attr.link_create.__bindgen_anon_2.target_fd = perf.as_raw_fd().cast_unsigned();
    attr.link_create.attach_type = bpf_attach_type::BPF_PERF_EVENT as u32;
    // SAFETY: the attribute names only the two descriptors.
    unsafe { bpf(bpf_cmd::BPF_LINK_CREATE, &mut attr) }
}

/// An ioctl that takes a number.
fn ask(perf: &OwnedFd, request: u32, argument: i32) -> Result<(), ProbeError> {
    // SAFETY: the two requests made here take a number.
    let rc = unsafe { libc::ioctl(perf.as_raw_fd(), libc::c_ulong::from(request) as _, argument) };
    if rc < 0 {
        return Err(ProbeError::Bind(io::Error::last_os_error()));
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
