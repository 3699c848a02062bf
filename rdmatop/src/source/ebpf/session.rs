//! One load of the object: offsets in, programs attached one by one, a verdict for each.

use std::{collections::BTreeSet, io};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, Map, MapData, RingBuf},
    programs::{KProbe, Program, ProgramError, TracePoint, kprobe::KProbeError},
};
use aya_log::EbpfLogger;
use rdmatop_common::names::map;

use super::{
    log, object,
    offsets::{self, Places},
    plan::{self, CONTROL_PLANE, Decision, Entry, Facts, Hook},
};
use crate::{
    model::input::{ProbeVerdict, Verdict},
    source::{platform::find_symbols, root::Root},
};

/// What the user may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer, a power of two and a multiple of the page size. Tests make it tiny.
    pub ring_bytes: u32,
}

impl Default for Options {
    fn default() -> Self {
        // 4 MiB hold some 20 000 QP records: 0.4 s of the fastest storm measured (50 000 a second).
        Self { ring_bytes: 4 << 20 }
    }
}

/// Why there is no session. The text is what, why, remedy.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Built without the object.
    #[error(
        "this binary carries no eBPF object: it was built without the bpf toolchain; run cargo xtask setup and build again"
    )]
    NoObject,
    /// The kernel has no RDMA core loaded.
    #[error("ib_core is not loaded: there is nothing to trace yet; it is watched for")]
    NoRdma,
    /// The kernel refused.
    #[error("{what}: {why}")]
    Refused {
        /// The step.
        what: &'static str,
        /// The kernel's answer and the remedy.
        why: String,
    },
    /// Nothing could be attached.
    #[error("no program could be attached: {0}")]
    NothingAttached(String),
}

/// Programs attached; dropping it detaches everything.
pub struct Session {
    ebpf: Ebpf,
    log: Option<EbpfLogger<log::Stderr>>,
    verdicts: Vec<ProbeVerdict>,
    problems: Vec<String>,
    attached: usize,
}

/// Removes the limit on locked memory, which kernels before 5.11 charge maps to. Later ones do not care.
fn lift_memlock() {
    let unlimited = rustix::process::Rlimit {
        current: None,
        maximum: None,
    };
    // Without the right to do so the load itself will say what is missing.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Memlock, unlimited);
}

/// What the plan needs to know of this kernel.
fn facts(root: &Root, places: &Places, resolved: &offsets::Resolved) -> Facts {
    let names: Vec<&str> = CONTROL_PLANE
        .iter()
        .map(|h| h.symbol)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    let symbols = find_symbols(root, &names).unwrap_or_default();
    let modules = CONTROL_PLANE
        .iter()
        .map(|h| h.module)
        .filter(|m| places.modules.join(m).is_dir());
    Facts {
        modules: modules.map(str::to_owned).collect(),
        symbols: symbols
            .into_iter()
            .map(|(name, homes)| (name, homes.len()))
            .collect(),
        tracefs: offsets::has_tracefs(places),
        offsets: resolved
            .values
            .keys()
            .copied()
            .filter(|global| resolved.has(global))
            .collect(),
    }
}

impl Session {
    /// Loads and attaches. Counting starts when all is attached.
    pub fn start(options: &Options) -> Result<Self, SessionError> {
        let object = object::bytes().ok_or(SessionError::NoObject)?;
        let places = Places::default();
        if !places.modules.join("ib_core").is_dir() {
            return Err(SessionError::NoRdma);
        }
        lift_memlock();
        let (resolved, _btf) = offsets::resolve(&places);
        let facts = facts(&Root::default(), &places, &resolved);
        let mut loader = EbpfLoader::new();
        // No program of ours needs CO-RE, and reading vmlinux's BTF again would double the start.
        loader.btf(None);
        loader.map_max_entries(map::EVENTS, options.ring_bytes);
        for (global, value) in &resolved.values {
            loader.override_global(global, value, true);
        }
        let mut ebpf = loader.load(object).map_err(|error| SessionError::Refused {
            what: "cannot load eBPF maps",
            why: explain(&error),
        })?;
        let mut verdicts = Vec::with_capacity(CONTROL_PLANE.len());
        for hook in CONTROL_PLANE {
            verdicts.push(match plan::decide(hook, &facts) {
                Decision::Leave(verdict, why) => plan::verdict(hook, verdict, Some(why)),
                Decision::Attach(partial) => match attach(&mut ebpf, hook) {
                    Ok(()) => {
                        let verdict = if partial.is_some() {
                            Verdict::Partial
                        } else {
                            Verdict::Ok
                        };
                        plan::verdict(hook, verdict, partial)
                    }
                    Err(error) => plan::verdict(hook, Verdict::Broken, Some(explain(&error))),
                },
            });
        }
        let attached = verdicts
            .iter()
            .filter(|v| matches!(v.verdict, Verdict::Ok | Verdict::Partial))
            .count();
        if attached == 0 {
            let why = verdicts
                .iter()
                .find(|v| v.verdict == Verdict::Broken)
                .or(verdicts.first());
            let why = why.and_then(|v| v.reason.clone()).unwrap_or_default();
            return Err(SessionError::NothingAttached(why));
        }
        let log = log::of(&mut ebpf);
        let mut session = Self {
            ebpf,
            log,
            verdicts,
            problems: resolved.problems,
            attached,
        };
        session.set_enabled(true)?;
        Ok(session)
    }

    /// Switches counting and records on or off.
    fn set_enabled(&mut self, on: bool) -> Result<(), SessionError> {
        let refused = |why: String| SessionError::Refused {
            what: "cannot switch counting on",
            why,
        };
        let control = self
            .ebpf
            .map_mut(map::CONTROL)
            .ok_or_else(|| refused("no CONTROL map".into()))?;
        let mut control: Array<&mut MapData, u32> =
            Array::try_from(control).map_err(|error| refused(error.to_string()))?;
        control
            .set(0, u32::from(on), 0)
            .map_err(|error| refused(error.to_string()))
    }

    /// Verdicts, in the plan's order.
    pub fn verdicts(&self) -> &[ProbeVerdict] {
        &self.verdicts
    }

    /// Sources of offsets that could not be read.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Programs attached.
    pub fn attached(&self) -> usize {
        self.attached
    }

    /// Prints what programs built with the `log` feature have logged.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Takes the ring buffer out, once.
    pub fn take_ring(&mut self) -> Option<RingBuf<MapData>> {
        RingBuf::try_from(self.ebpf.take_map(map::EVENTS)?).ok()
    }

    /// Takes a map out, once.
    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.ebpf.take_map(name)
    }
}

fn attach(ebpf: &mut Ebpf, hook: &Hook) -> Result<(), ProgramError> {
    let program = ebpf.program_mut(hook.program).ok_or(ProgramError::NotLoaded)?;
    match (hook.entry, program) {
        (Entry::Kprobe | Entry::Kretprobe, program @ Program::KProbe(_)) => {
            let probe: &mut KProbe = program.try_into()?;
            probe.load()?;
            probe.attach(hook.symbol, 0)?;
        }
        (Entry::Tracepoint { category }, program @ Program::TracePoint(_)) => {
            let point: &mut TracePoint = program.try_into()?;
            point.load()?;
            point.attach(category, hook.symbol)?;
        }
        _ => return Err(ProgramError::UnexpectedProgramType),
    }
    Ok(())
}

/// The whole chain of causes, cut: a verifier log can be hundreds of kilobytes.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    const LIMIT: usize = 400;
    let mut text = error.to_string();
    let mut cause = error.source();
    let mut errno = errno_of(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        errno = errno.or_else(|| errno_of(inner));
        cause = inner.source();
    }
    let mut text = crate::text::sanitize(text.as_bytes());
    if text.chars().count() > LIMIT {
        text = text.chars().take(LIMIT).collect::<String>() + " ...";
    }
    if errno == Some(rustix::io::Errno::PERM) || errno == Some(rustix::io::Errno::ACCESS) {
        text.push_str("; run as root, or with CAP_BPF, CAP_PERFMON and perf_event_paranoid <= 2");
    }
    text
}

fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<rustix::io::Errno> {
    let io = |error: &io::Error| error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return io(error);
    }
    if let Some(KProbeError::FileError { io_error, .. }) = error.downcast_ref::<KProbeError>() {
        return io(io_error);
    }
    None
}
