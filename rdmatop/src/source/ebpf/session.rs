//! One load of the object: offsets in, programs attached one by one, a verdict for each.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::{AsFd, OwnedFd},
};

use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, Map, MapData, RingBuf},
    programs::{KProbe, Program, ProgramError, TracePoint, kprobe::KProbeError},
    sys::SyscallError,
};
use aya_log::EbpfLogger;
use rdmatop_common::{counters::DEFAULT_SLOTS, names::map, offsets::WANT_COUNTERS};
use rustix::io::Errno;

use super::{
    datapath::{self, Attach, DATA_PATHS, DataPath, HotHook},
    fentry::{Link, Loader},
    log, object,
    offsets::{self, BtfSet, Places},
    plan::{self, CONTROL_PLANE, Decision, Entry, Facts, Hook},
    scope::Scope,
    skipped::{Skip, Watched},
    slots::SlotMap,
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
    /// How a provider's data path is entered.
    pub attach: Attach,
    /// QPs that can be counted at one time.
    pub slots: u32,
    /// What is wanted of it.
    pub scope: Scope,
}

impl Default for Options {
    fn default() -> Self {
        // 4 MiB hold some 20 000 QP records: 0.4 s of the fastest storm measured (50 000 a second).
        Self {
            ring_bytes: 4 << 20,
            attach: Attach::Auto,
            slots: DEFAULT_SLOTS,
            scope: Scope::All,
        }
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
    datapath: Option<&'static str>,
    slots: Option<SlotMap>,
    /// Dropped with the session, which detaches.
    links: Vec<Link>,
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

/// Whether the kernel refuses to probe a function whose name is not alone: `create_local_trace_kprobe` counts the
/// names from Linux 6.7 on, and stable kernels got that at different times. Without it the first one would be probed.
fn refuses_ambiguous_names(root: &Root) -> bool {
    let release = root.line(&root.proc("sys/kernel/osrelease")).unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|part| part.parse::<u32>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= (6, 7),
        _ => false,
    }
}

/// How many functions there are of each name. Some 200 000 lines that the kernel formats one by one: half of a
/// start's time.
fn symbols<'a>(root: &Root, names: impl Iterator<Item = &'a str>) -> HashMap<String, usize> {
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let found = find_symbols(root, &names).unwrap_or_default();
    found
        .into_iter()
        .map(|(name, homes)| (name, homes.len()))
        .collect()
}

/// What the plan needs to know of this kernel.
fn facts(root: &Root, places: &Places, resolved: &offsets::Resolved) -> Facts {
    let hooks = || {
        CONTROL_PLANE
            .iter()
            .chain(datapath::hooks().map(|hot| &hot.kprobe))
    };
    let modules = hooks()
        .map(|h| h.module)
        .filter(|m| places.modules.join(m).is_dir());
    Facts {
        modules: modules.map(str::to_owned).collect(),
        symbols: (!refuses_ambiguous_names(root)).then(|| symbols(root, hooks().map(|hook| hook.symbol))),
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
    /// Loads and attaches. Nothing is counted until [`Session::set_enabled`].
    pub fn start(options: &Options) -> Result<Self, SessionError> {
        let object = object::bytes().ok_or(SessionError::NoObject)?;
        let places = Places::default();
        if !places.modules.join("ib_core").is_dir() {
            return Err(SessionError::NoRdma);
        }
        lift_memlock();
        let (mut resolved, mut btf) = offsets::resolve(&places);
        let facts = facts(&Root::default(), &places, &resolved);
        options.scope.narrow(&mut resolved.values);
        let mut loader = EbpfLoader::new();
        // No program of ours needs CO-RE, and reading vmlinux's BTF again would double the start.
        loader.btf(None);
        loader.map_max_entries(map::EVENTS, options.ring_bytes);
        // These take 3 KiB of kernel memory a QP: none where there is nothing to count.
        let countable =
            options.scope.counters() && DATA_PATHS.iter().any(|path| facts.modules.contains(path.module));
        let slots = if countable { options.slots.max(1) } else { 1 };
        for name in [map::QP_SLOTS, map::USED_SLOTS, map::QP_PATHS] {
            loader.map_max_entries(name, slots);
        }
        let counters = u32::from(options.scope.counters());
        loader.override_global(WANT_COUNTERS, &counters, true);
        for (global, value) in &resolved.values {
            loader.override_global(global, value, true);
        }
        let mut ebpf = loader.load(object).map_err(|error| SessionError::Refused {
            what: "cannot load eBPF maps",
            why: explain(&error),
        })?;
        let mut hot = Vec::new();
        let mut links = Vec::new();
        let mut datapath = None;
        for path in DATA_PATHS.iter().filter(|_| options.scope.counters()) {
            let loader = fast_loader(options.attach, path, &ebpf, object, &facts, &mut btf);
            let (verdicts, fast) = attach_datapath(&mut ebpf, path, &facts, loader.as_ref());
            let on = |i: usize| {
                verdicts
                    .get(i)
                    .is_some_and(|v| matches!(v.verdict, Verdict::Ok | Verdict::Partial))
            };
            if on(0) && on(1) {
                let all_fast = fast.len() == path.hooks.iter().filter(|h| h.fast.is_some()).count();
                datapath = Some(if all_fast { "fentry" } else { "kprobe" });
            }
            links.extend(fast);
            hot.extend(verdicts);
        }
        let mut verdicts = Vec::with_capacity(CONTROL_PLANE.len() + hot.len());
        for hook in CONTROL_PLANE.iter().filter(|hook| options.scope.wants(hook)) {
            // A probe on write() costs every doorbell a second time.
            verdicts.push(if hook.program == "uverbs_write" && datapath.is_some() {
                let why = "post_send is counted by the data path's doorbells; other write() commands are not";
                plan::verdict(hook, Verdict::NotApplicable, Some(why.into()))
            } else {
                attach_one(&mut ebpf, hook, &facts)
            });
        }
        verdicts.extend(hot);
        let attached = verdicts
            .iter()
            .filter(|v| matches!(v.verdict, Verdict::Ok | Verdict::Partial))
            .count();
        // What is only not loaded yet is waited for, where that is all that was asked for.
        let waiting =
            options.scope != Scope::All && verdicts.iter().all(|v| v.verdict == Verdict::NotApplicable);
        if attached == 0 && !waiting {
            let why = verdicts
                .iter()
                .find(|v| v.verdict == Verdict::Broken)
                .or(verdicts.first());
            let why = why.and_then(|v| v.reason.clone()).unwrap_or_default();
            return Err(SessionError::NothingAttached(why));
        }
        let log = log::of(&mut ebpf);
        let mut problems = resolved.problems;
        let mut slots = None;
        if datapath.is_some()
            && let (Some(array), Some(free)) = (ebpf.take_map(map::QP_SLOTS), ebpf.take_map(map::FREE_SLOTS))
        {
            match SlotMap::open(array, free) {
                Ok(map) => slots = Some(map),
                Err(error) => {
                    problems.push(error.to_string());
                    datapath = None;
                }
            }
        }
        Ok(Self {
            ebpf,
            log,
            verdicts,
            problems,
            attached,
            datapath,
            slots,
            links,
        })
    }

    /// Switches counting and records on or off.
    pub fn set_enabled(&mut self, on: bool) -> Result<(), SessionError> {
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

    /// How the data path is entered: `kprobe` or `fentry`; `None` when it is not counted.
    pub fn datapath(&self) -> Option<&'static str> {
        self.datapath
    }

    /// The programs that are attached, to read what the kernel skipped.
    pub(super) fn watched(&self) -> Vec<Watched> {
        let fd = |name: &str| -> Option<OwnedFd> {
            let fd = match self.ebpf.program(name)? {
                Program::KProbe(probe) => probe.fd().ok()?,
                Program::TracePoint(point) => point.fd().ok()?,
                _ => return None,
            };
            fd.as_fd().try_clone_to_owned().ok()
        };
        let kprobes = CONTROL_PLANE
            .iter()
            .chain(datapath::hooks().map(|hot| &hot.kprobe))
            .filter_map(|hook| {
                Some(Watched {
                    skip: plan::when_skipped(hook),
                    program: fd(hook.program)?,
                })
            });
        let fast = self.links.iter().filter_map(|link| {
            Some(Watched {
                skip: Skip::Count,
                program: link.program.try_clone().ok()?,
            })
        });
        kprobes.chain(fast).collect()
    }

    /// Takes the QP counters out, once.
    pub(super) fn take_slots(&mut self) -> Option<SlotMap> {
        self.slots.take()
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

/// Decides on one hook, attaches it, and says what became of it.
fn attach_one(ebpf: &mut Ebpf, hook: &Hook, facts: &Facts) -> ProbeVerdict {
    match plan::decide(hook, facts) {
        Decision::Leave(verdict, why) => plan::verdict(hook, verdict, Some(why)),
        Decision::Attach(partial) => match attach(ebpf, hook) {
            Ok(()) => {
                let verdict = if partial.is_some() {
                    Verdict::Partial
                } else {
                    Verdict::Ok
                };
                plan::verdict(hook, verdict, partial)
            }
            Err(error) => match kernel_says(&error) {
                Some(Errno::NOENT) => plan::verdict(hook, Verdict::Unsupported, Some(plan::absent(hook))),
                Some(Errno::ADDRNOTAVAIL) => {
                    plan::verdict(hook, Verdict::Unsupported, Some(plan::ambiguous(hook)))
                }
                _ => plan::verdict(hook, Verdict::Broken, Some(explain(&error))),
            },
        },
    }
}

/// What the kernel answered to opening the probe itself; other steps have other reasons.
fn kernel_says(error: &ProgramError) -> Option<Errno> {
    match error {
        ProgramError::SyscallError(SyscallError {
            call: "perf_event_open",
            io_error,
        }) => errno_of(io_error),
        _ => None,
    }
}

/// What can load a provider's fentry programs: `None` when they are not asked for.
fn fast_loader(
    wanted: Attach,
    path: &DataPath,
    ebpf: &Ebpf,
    object: &[u8],
    facts: &Facts,
    btf: &mut BtfSet,
) -> Option<Result<Loader, String>> {
    if wanted != Attach::Fentry || !facts.modules.contains(path.module) {
        return None;
    }
    let Some(btf) = btf.module(path.module) else {
        return Some(Err(format!("the kernel has no BTF for {}", path.module)));
    };
    Some(Loader::new(ebpf, object, path.module, btf).map_err(|error| explain(&error)))
}

/// Attaches a provider's hooks: by fentry where that is asked for and works, by kprobe elsewhere.
fn attach_datapath(
    ebpf: &mut Ebpf,
    path: &DataPath,
    facts: &Facts,
    loader: Option<&Result<Loader, String>>,
) -> (Vec<ProbeVerdict>, Vec<Link>) {
    let mut links = Vec::new();
    let mut verdicts = Vec::with_capacity(path.hooks.len());
    for HotHook { kprobe, fast } in path.hooks {
        let why_slow = match (fast, loader) {
            (Some((program, entry)), Some(Ok(loader))) => match plan::decide(kprobe, facts) {
                Decision::Attach(partial) => match loader.attach(program, *entry, kprobe.symbol) {
                    Ok(link) => {
                        links.push(link);
                        let hook = Hook {
                            program,
                            entry: *entry,
                            ..*kprobe
                        };
                        let verdict = if partial.is_some() {
                            Verdict::Partial
                        } else {
                            Verdict::Ok
                        };
                        verdicts.push(plan::verdict(&hook, verdict, partial));
                        continue;
                    }
                    Err(error) => Some(explain(&error)),
                },
                Decision::Leave(..) => None,
            },
            (Some(_), Some(Err(why))) => Some(why.clone()),
            _ => None,
        };
        let mut verdict = attach_one(ebpf, kprobe, facts);
        if let Some(why) = why_slow {
            let slow = format!("kprobe instead of fentry: {why}");
            verdict.reason = Some(match verdict.reason {
                Some(reason) => format!("{reason}; {slow}"),
                None => slow,
            });
        }
        verdicts.push(verdict);
    }
    (verdicts, links)
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
    if errno == Some(Errno::PERM) || errno == Some(Errno::ACCESS) {
        text.push_str("; run as root, or with CAP_BPF, CAP_PERFMON and perf_event_paranoid <= 2");
    }
    text
}

fn errno_of(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let io = |error: &io::Error| error.raw_os_error().map(Errno::from_raw_os_error);
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return io(error);
    }
    if let Some(KProbeError::FileError { io_error, .. }) = error.downcast_ref::<KProbeError>() {
        return io(io_error);
    }
    None
}
