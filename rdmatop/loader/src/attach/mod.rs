//! Decides on, loads and attaches one hook after another, and returns a verdict for each.
mod fentry;
pub(crate) mod probe;

use std::{
    collections::{BTreeSet, HashMap},
    error::Error,
    io, iter,
    os::fd::OwnedFd,
};

use rustix::io::Errno;

use crate::{
    attach::{
        fentry::Module,
        probe::{AttachError, Event, Pmu, raw_tracepoint, tracepoint},
    },
    hooks::{Entry, Fast, Hook, Role, datapath::DataPath},
    load::{Loader, Target},
    offsets::BtfSet,
    plan::{self, Facts, Outcome},
};
use rdmatop_base::order::Gather as _;
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    input::Verdict,
};
use rdmatop_sources::{limits, platform::is_initial_user, root::Root};

/// An attached program, which runs until this is dropped.
#[derive(Debug)]
pub(super) struct AttachedProgram {
    pub(super) hook: &'static Hook,
    /// Whether the program is the hook's second one.
    pub(super) second: bool,
    pub(super) program: OwnedFd,
    pub(super) event: Event,
}

/// The modules that programs keep from being unloaded because of fentry.
pub(super) fn pinned(programs: &[AttachedProgram]) -> Vec<&'static str> {
    // A raw tracepoint keeps no module.
    let fast = programs.iter().filter(|of| of.second && of.hook.raw.is_none());
    let modules: BTreeSet<_> = fast.map(|program| program.hook.module).gather();
    modules.into_iter().collect()
}

/// Attaches hooks, and holds the programs attached so far.
pub(super) struct Attacher<'a> {
    pub(super) loader: &'a Loader,
    pub(super) facts: &'a Facts,
    root: &'a Root,
    kprobes: Option<Pmu>,
    /// `None` when the user did not ask for fentry.
    modules: Option<Modules<'a>>,
    pub(super) programs: Vec<AttachedProgram>,
    /// The limit of open files is reached, so a program is not attached. Nothing else can be opened either.
    pub(super) no_more_files: bool,
    /// The kernel lets no program read its memory. Having the verifier refuse each program would take
    /// seconds.
    forbidden: bool,
}

/// Modules to attach fentry programs to, or the reason why that is not possible.
struct Modules<'a> {
    btf: &'a mut BtfSet,
    opened: HashMap<&'static str, Result<Module, Obstacle>>,
}

impl Modules<'_> {
    fn get(&mut self, name: &'static str) -> Result<&Module, Obstacle> {
        let Self { btf, opened } = self;
        let module = opened.entry(name).or_insert_with(|| {
            let own = btf.module(name);
            let own = own.ok_or_else(|| no_btf(name))?;
            Module::open(name, own).map_err(|error| explain(&error))
        });
        module.as_ref().map_err(Clone::clone)
    }
}

fn no_btf(module: &str) -> Obstacle {
    Obstacle::new(CauseId::NoBtf, format!("the kernel has no BTF for {module}"), "")
}

/// Says that a kprobe program replaces an fentry or fexit program, and why.
fn instead(entry: Entry, obstacle: &Obstacle) -> Obstacle {
    let how = match entry {
        Entry::Kretprobe => "kretprobe instead of fexit",
        _ => "kprobe instead of fentry",
    };
    let why = format!("{how}: {}", obstacle.why);
    Obstacle::new(CauseId::KprobeInstead, why, obstacle.remedy.clone())
}

impl<'a> Attacher<'a> {
    /// If `btf` is given, hooks that have an fentry or fexit program use it where possible.
    pub(super) fn new(
        loader: &'a Loader,
        facts: &'a Facts,
        root: &'a Root,
        btf: Option<&'a mut BtfSet>,
    ) -> Self {
        Self {
            loader,
            facts,
            root,
            kprobes: Pmu::read("kprobe"),
            modules: btf.map(|btf| Modules {
                btf,
                opened: HashMap::new(),
            }),
            programs: Vec::new(),
            no_more_files: false,
            forbidden: false,
        }
    }

    /// Decides on one hook, attaches it, and returns the outcome.
    pub(super) fn one(&mut self, hook: &'static Hook) -> Outcome {
        let outcome = self.outcome(hook);
        outcome.log();
        outcome
    }

    fn outcome(&mut self, hook: &'static Hook) -> Outcome {
        let mut outcome = plan::decide(hook, self.facts);
        if !outcome.is_on() {
            return outcome;
        }
        if self.forbidden {
            return Outcome::off(hook, Verdict::Broken, reads_forbidden());
        }
        match self.by_fentry(hook) {
            Some(Ok(attached)) => {
                self.programs.push(attached);
                outcome.second = true;
                return outcome;
            }
            Some(Err(obstacle)) => outcome.obstacles.push(instead(hook.entry, &obstacle)),
            None => {}
        }
        match self.attach(hook, outcome.second) {
            Ok(attached) => {
                self.programs.push(attached);
                outcome
            }
            Err(AttachError::Open(error)) if errno(&error) == Some(Errno::NOENT) => {
                Outcome::off(hook, Verdict::Unsupported, plan::absent(hook))
            }
            Err(AttachError::Open(error)) if errno(&error) == Some(Errno::ADDRNOTAVAIL) => {
                Outcome::off(hook, Verdict::Unsupported, plan::ambiguous(hook))
            }
            Err(error) => {
                let obstacle = explain(&error);
                self.no_more_files |= obstacle.id == CauseId::NoFiles;
                self.forbidden |= obstacle.id == CauseId::Lockdown;
                Outcome::off(hook, Verdict::Broken, obstacle)
            }
        }
    }

    /// Attaches a hook's second program, if it has one and the user asked for fentry.
    fn by_fentry(&mut self, hook: &'static Hook) -> Option<Result<AttachedProgram, Obstacle>> {
        let modules = self.modules.as_mut()?;
        let Fast { program, heals } = hook.fast?;
        let attached = modules.get(hook.module).and_then(|module| {
            if let Some(obstacle) = self.facts.preempts.as_ref().filter(|_| !heals) {
                return Err(obstacle.clone());
            }
            let attached = module.attach(self.loader, program, hook.is_return(), hook.symbol);
            attached.map_err(|error| explain(&error))
        });
        Some(attached.map(|(program, event)| AttachedProgram {
            hook,
            second: true,
            program,
            event,
        }))
    }

    /// Attaches a hook's first program, or with `raw` that of the raw tracepoint.
    fn attach(&self, hook: &'static Hook, raw: bool) -> Result<AttachedProgram, AttachError> {
        let load = |target| self.loader.load(hook.runs(raw), &target);
        let (program, event) = match hook.entry {
            Entry::Tracepoint if raw => {
                let program = load(Target::RawTracepoint)?;
                let event = raw_tracepoint(&program, hook.symbol)?;
                (program, event)
            }
            Entry::Tracepoint => {
                let program = load(Target::Tracepoint)?;
                let event = tracepoint(&program, self.root, hook.symbol)?;
                (program, event)
            }
            Entry::Kprobe | Entry::Kretprobe => {
                let kprobes = self.kprobes.ok_or(AttachError::NoKprobes)?;
                let program = load(Target::Kprobe)?;
                let event = kprobes.at_kernel(&program, hook.module, hook.symbol, hook.is_return())?;
                (program, event)
            }
        };
        Ok(AttachedProgram {
            hook,
            second: raw,
            program,
            event,
        })
    }

    /// Attaches a provider's hooks. Returns the outcomes, and how the data path is entered if it counts.
    pub(super) fn datapath(&mut self, path: &DataPath) -> (Vec<Outcome>, Option<&'static str>) {
        let outcomes: Vec<_> = path.hooks.iter().map(|hook| self.one(hook)).collect();
        let counts = outcomes
            .iter()
            .all(|outcome| outcome.hook.role != Role::Counts || outcome.is_on());
        let mut can_be = outcomes
            .iter()
            .filter(|outcome| outcome.hook.fast.is_some())
            .peekable();
        let fast = can_be.peek().is_some() && can_be.all(|outcome| outcome.second);
        let how = if fast { "fentry" } else { "kprobe" };
        (outcomes, counts.then_some(how))
    }
}

/// The verifier's messages if a kernel does not let eBPF read its memory: under lockdown the helper does not
/// exist (`bpf_tracing_func_proto`). In a container the lockdown mode may not be readable.
const REFUSES_TO_READ: [&str; 2] = ["cannot use helper bpf_probe_read", "unknown func bpf_probe_read"];

/// The remedy where lockdown lets no program read the kernel's memory.
pub(super) const WITHOUT_LOCKDOWN: &str = "boot with lockdown=integrity";

fn reads_forbidden() -> Obstacle {
    Obstacle::new(
        CauseId::Lockdown,
        "the kernel does not let eBPF read its memory, as under lockdown `confidentiality`",
        WITHOUT_LOCKDOWN,
    )
}

/// Turns an error and its chain of causes into an obstacle. Cuts long text, because a verifier log can have
/// hundreds of kilobytes.
pub(super) fn explain(error: &(dyn Error + 'static)) -> Obstacle {
    const LIMIT: usize = 400;
    let texts: Vec<String> = chain(error).map(ToString::to_string).collect();
    let text = texts.join(": ");
    if REFUSES_TO_READ.iter().any(|words| text.contains(words)) {
        return reads_forbidden();
    }
    let mut text = rdmatop_base::text::sanitize(text.as_bytes());
    if text.chars().count() > LIMIT {
        text = text.chars().take(LIMIT).collect::<String>() + " ...";
    }
    let (id, remedy) = match chain(error).find_map(|cause| errno(cause.downcast_ref()?)) {
        // Root of a user namespace has every capability there, but none that the kernel checks for eBPF.
        Some(Errno::PERM | Errno::ACCESS) if in_user_namespace() => (
            CauseId::NotPermitted,
            "this is a user namespace: run it on the host, or in a container without one",
        ),
        Some(Errno::PERM) if limits::locked_memory_is_short() => (CauseId::NoMemory, limits::LOCKED),
        Some(Errno::PERM | Errno::ACCESS) if rustix::process::geteuid().is_root() => (
            CauseId::NotPermitted,
            "start the container with --cap-add=BPF --cap-add=PERFMON --cap-add=SYS_ADMIN --cap-add=SYS_RESOURCE, or run on the host",
        ),
        Some(Errno::PERM | Errno::ACCESS) => (
            CauseId::NotPermitted,
            "run as root, or with CAP_BPF, CAP_PERFMON and perf_event_paranoid <= 2",
        ),
        Some(Errno::MFILE) => (
            CauseId::NoFiles,
            "raise the limit of open files: `ulimit -n 1024`",
        ),
        Some(Errno::NOMEM) => (CauseId::NoMemory, limits::memory()),
        _ => (CauseId::Refused, ""),
    };
    Obstacle::new(id, text, remedy)
}

fn in_user_namespace() -> bool {
    is_initial_user(&Root::default()) == Some(false)
}

/// An error and its causes, the outermost first.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| Error::source(*error))
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}
