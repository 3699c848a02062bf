//! One hook after another: decided, loaded, attached, and a verdict for each.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::OwnedFd,
};

use rustix::io::Errno;

use super::{
    datapath::DataPath,
    fast::{Fast, fast},
    fentry::Module,
    loader::{Loader, Target},
    offsets::{BtfSet, Places},
    plan::{self, Decision, Entry, Facts, Hook},
    probe::{Event, KprobePmu, ProbeError, tracepoint},
};
use crate::model::input::{ProbeVerdict, Verdict};
use crate::source::{limits, platform::Surroundings, root::Root};

/// A program that runs until this is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) hook: &'static Hook,
    pub(super) program: OwnedFd,
    at: At,
}

/// Where a program is, and what keeps it there.
#[derive(Debug)]
enum At {
    /// A kprobe or a tracepoint.
    Event(Event),
    /// A function, by fentry or fexit: its module cannot be unloaded meanwhile.
    Function { _link: OwnedFd },
}

impl Attached {
    /// Its link, where the kernel has those for probes.
    pub(super) fn link(&self) -> Option<&OwnedFd> {
        match &self.at {
            At::Event(event) => event.link.as_ref(),
            At::Function { .. } => None,
        }
    }

    /// Whether it is entered by fentry or fexit.
    pub(super) fn is_fast(&self) -> bool {
        matches!(self.at, At::Function { .. })
    }
}

/// The modules that a set of programs keeps from being unloaded.
pub(super) fn pinned(programs: &[Attached]) -> Vec<&'static str> {
    let fast = programs.iter().filter(|program| program.is_fast());
    let modules: BTreeSet<_> = fast.map(|program| program.hook.module).collect();
    modules.into_iter().collect()
}

/// What is on so far.
pub(super) struct Attacher<'a> {
    pub(super) loader: &'a Loader,
    pub(super) facts: &'a Facts,
    places: &'a Places,
    kprobes: Option<KprobePmu>,
    /// `None` when fentry was not asked for.
    modules: Option<Modules<'a>>,
    pub(super) programs: Vec<Attached>,
    /// A program is not on because no more files can be open: neither will be what else needs one.
    pub(super) no_more_files: bool,
    /// The kernel lets no program read its memory: to have the verifier say so of each takes seconds.
    forbidden: bool,
}

/// Modules to enter by fentry, or why that is not possible.
struct Modules<'a> {
    btf: &'a mut BtfSet,
    opened: HashMap<&'static str, Result<Module, String>>,
}

impl Modules<'_> {
    fn get(&mut self, name: &'static str) -> Result<&Module, String> {
        let Self { btf, opened } = self;
        let module = opened.entry(name).or_insert_with(|| {
            let own = btf.module(name);
            let own = own.ok_or_else(|| format!("the kernel has no BTF for {name}"))?;
            Module::open(name, own).map_err(|error| explain(&error))
        });
        module.as_ref().map_err(Clone::clone)
    }
}

fn on(partial: Option<&String>) -> Verdict {
    if partial.is_some() {
        Verdict::Partial
    } else {
        Verdict::Ok
    }
}

/// fentry and fexit as what they stand for.
fn by_kprobe(entry: Entry) -> &'static str {
    match entry {
        Entry::Fexit => "kretprobe instead of fexit",
        _ => "kprobe instead of fentry",
    }
}

impl<'a> Attacher<'a> {
    /// With `btf`, what can be is entered by fentry.
    pub(super) fn new(
        loader: &'a Loader,
        facts: &'a Facts,
        places: &'a Places,
        btf: Option<&'a mut BtfSet>,
    ) -> Self {
        Self {
            loader,
            facts,
            places,
            kprobes: KprobePmu::read(),
            modules: btf.map(|btf| Modules {
                btf,
                opened: HashMap::new(),
            }),
            programs: Vec::new(),
            no_more_files: false,
            forbidden: false,
        }
    }

    /// Decides on one hook, attaches it, and says what became of it.
    pub(super) fn one(&mut self, hook: &'static Hook) -> ProbeVerdict {
        let partial = match plan::decide(hook, self.facts) {
            Decision::Leave(verdict, why) => return plan::verdict(hook, verdict, Some(why)),
            Decision::Attach(_) if self.forbidden => {
                return plan::verdict(hook, Verdict::Broken, Some(READS_FORBIDDEN.to_owned()));
            }
            Decision::Attach(partial) => partial,
        };
        let mut reasons: Vec<String> = partial.iter().cloned().collect();
        match self.by_fentry(hook) {
            Some((entered, Ok(attached))) => {
                self.programs.push(attached);
                return plan::verdict(&entered, on(partial.as_ref()), partial);
            }
            Some((entered, Err(why))) => reasons.push(format!("{}: {why}", by_kprobe(entered.entry))),
            None => {}
        }
        match self.attach(hook) {
            Ok(attached) => {
                self.programs.push(attached);
                let reasons = (!reasons.is_empty()).then(|| reasons.join("; "));
                plan::verdict(hook, on(partial.as_ref()), reasons)
            }
            Err(ProbeError::Open(error)) if errno(&error) == Some(Errno::NOENT) => {
                plan::verdict(hook, Verdict::Unsupported, Some(plan::absent(hook)))
            }
            Err(ProbeError::Open(error)) if errno(&error) == Some(Errno::ADDRNOTAVAIL) => {
                plan::verdict(hook, Verdict::Unsupported, Some(plan::ambiguous(hook)))
            }
            Err(error) => {
                self.no_more_files |= first_errno(&error) == Some(Errno::MFILE);
                let why = explain(&error);
                self.forbidden |= why == READS_FORBIDDEN;
                plan::verdict(hook, Verdict::Broken, Some(why))
            }
        }
    }

    /// Attaches a hook's other program, where it has one and that was asked for: the hook as it is entered then, and what
    /// came of it.
    fn by_fentry(&mut self, hook: &'static Hook) -> Option<(Hook, Result<Attached, String>)> {
        let modules = self.modules.as_mut()?;
        let Fast {
            program,
            entry,
            heals,
        } = fast(hook)?;
        let entered = Hook {
            program,
            entry,
            ..*hook
        };
        let attached = modules.get(hook.module).and_then(|module| {
            if let Some(why) = self.facts.preempts.as_ref().filter(|_| !heals) {
                return Err(why.clone());
            }
            let attached = module.attach(self.loader, program, entry, hook.symbol);
            attached.map_err(|error| explain(&error))
        });
        let attached = attached.map(|(program, link)| Attached {
            hook,
            program,
            at: At::Function { _link: link },
        });
        Some((entered, attached))
    }

    fn attach(&self, hook: &'static Hook) -> Result<Attached, ProbeError> {
        let (program, event) = if let Entry::Tracepoint { category } = hook.entry {
            let program = self.loader.load(hook.program, &Target::Tracepoint)?;
            let event = tracepoint(&program, self.places, category, hook.symbol)?;
            (program, event)
        } else {
            let kprobes = self.kprobes.ok_or(ProbeError::NoKprobes)?;
            let program = self.loader.load(hook.program, &Target::Kprobe)?;
            let event = kprobes.attach(&program, hook.module, hook.symbol, hook.entry == Entry::Kretprobe)?;
            (program, event)
        };
        Ok(Attached {
            hook,
            program,
            at: At::Event(event),
        })
    }

    /// Attaches a provider's hooks: their verdicts, and how the path is entered when it counts.
    pub(super) fn datapath(&mut self, path: &DataPath) -> (Vec<ProbeVerdict>, Option<&'static str>) {
        let before = self.programs.len();
        let verdicts: Vec<_> = path.hooks.iter().map(|hook| self.one(hook)).collect();
        let counts = verdicts
            .iter()
            .take(2)
            .all(|verdict| matches!(verdict.verdict, Verdict::Ok | Verdict::Partial));
        let entered = self
            .programs
            .iter()
            .skip(before)
            .filter(|on| on.is_fast())
            .count();
        let can_be = path.hooks.iter().filter(|hook| fast(hook).is_some()).count();
        let how = if entered == can_be { "fentry" } else { "kprobe" };
        (verdicts, counts.then_some(how))
    }
}

/// The verifier's words where a kernel does not let eBPF read its memory, of which a container may see no reason
/// (`bpf_tracing_func_proto`: no such helper under lockdown).
const REFUSES_TO_READ: [&str; 2] = ["cannot use helper bpf_probe_read", "unknown func bpf_probe_read"];
const READS_FORBIDDEN: &str = "the kernel does not let eBPF read its memory, as under lockdown `confidentiality`; \
                               boot with lockdown=integrity";

/// The whole chain of causes, cut: a verifier log can be hundreds of kilobytes.
pub(super) fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    const LIMIT: usize = 400;
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    if REFUSES_TO_READ.iter().any(|words| text.contains(words)) {
        return READS_FORBIDDEN.to_owned();
    }
    let mut text = crate::text::sanitize(text.as_bytes());
    if text.chars().count() > LIMIT {
        text = text.chars().take(LIMIT).collect::<String>() + " ...";
    }
    let remedy = match first_errno(error) {
        // Its root has every capability, and none that eBPF asks for.
        Some(Errno::PERM | Errno::ACCESS) if in_user_namespace() => {
            "rdmatop runs in a user namespace: run it on the host, or in a container without one"
        }
        Some(Errno::PERM | Errno::ACCESS) if rustix::process::geteuid().is_root() => {
            "start the container with --cap-add BPF,PERFMON,SYS_ADMIN,SYS_RESOURCE, or run on the host"
        }
        Some(Errno::PERM | Errno::ACCESS) => {
            "run as root, or with CAP_BPF, CAP_PERFMON and perf_event_paranoid <= 2"
        }
        Some(Errno::MFILE) => "raise the limit of open files: `ulimit -n 1024`",
        Some(Errno::NOMEM) => limits::memory(),
        _ => return text,
    };
    text.push_str("; ");
    text.push_str(remedy);
    text
}

fn in_user_namespace() -> bool {
    let surroundings = Surroundings::read(&Root::default());
    surroundings.initial_user_namespace == Some(false)
}

/// The first errno in the chain of causes.
fn first_errno(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    let mut at = Some(error);
    while let Some(cause) = at {
        if let Some(errno) = errno_in(cause) {
            return Some(errno);
        }
        at = cause.source();
    }
    None
}

fn errno_in(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    errno(error.downcast_ref::<io::Error>()?)
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}
