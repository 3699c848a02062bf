//! One hook after another: decided, loaded, attached, and a verdict for each.

use std::{io, os::fd::OwnedFd, sync::Arc};

use rustix::io::Errno;

use super::{
    btf::Btf,
    datapath::{DataPath, HotHook},
    fentry::{Link, Module},
    loader::{Loader, Target},
    offsets::Places,
    plan::{self, Decision, Entry, Facts, Hook},
    probe::{Event, KprobePmu, ProbeError, tracepoint},
};
use crate::model::input::{ProbeVerdict, Verdict};

/// A program that runs at a kprobe or a tracepoint until this is dropped.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) name: &'static str,
    pub(super) program: OwnedFd,
    event: Event,
}

impl Attached {
    /// Its link, where the kernel has those for probes.
    pub(super) fn link(&self) -> Option<&OwnedFd> {
        self.event.link.as_ref()
    }
}

/// What is on so far.
pub(super) struct Attacher<'a> {
    pub(super) loader: &'a Loader,
    pub(super) facts: &'a Facts,
    places: &'a Places,
    kprobes: Option<KprobePmu>,
    pub(super) probes: Vec<Attached>,
    pub(super) links: Vec<Link>,
}

/// A provider's module to enter by fentry, or why that is not possible; `None` when it was not asked for.
pub(super) type Fast = Option<Result<Module, String>>;

/// Opens a module for fentry; `btf` is its own.
pub(super) fn open(module: &str, btf: Option<Arc<Btf>>) -> Result<Module, String> {
    let btf = btf.ok_or_else(|| format!("the kernel has no BTF for {module}"))?;
    Module::open(module, btf).map_err(|error| explain(&error))
}

fn on(partial: Option<&String>) -> Verdict {
    if partial.is_some() {
        Verdict::Partial
    } else {
        Verdict::Ok
    }
}

impl<'a> Attacher<'a> {
    pub(super) fn new(loader: &'a Loader, facts: &'a Facts, places: &'a Places) -> Self {
        Self {
            loader,
            facts,
            places,
            kprobes: KprobePmu::read(),
            probes: Vec::new(),
            links: Vec::new(),
        }
    }

    /// Decides on one hook, attaches it, and says what became of it.
    pub(super) fn one(&mut self, hook: &Hook) -> ProbeVerdict {
        let partial = match plan::decide(hook, self.facts) {
            Decision::Leave(verdict, why) => return plan::verdict(hook, verdict, Some(why)),
            Decision::Attach(partial) => partial,
        };
        match self.attach(hook) {
            Ok(attached) => {
                self.probes.push(attached);
                plan::verdict(hook, on(partial.as_ref()), partial)
            }
            Err(ProbeError::Open(error)) if errno(&error) == Some(Errno::NOENT) => {
                plan::verdict(hook, Verdict::Unsupported, Some(plan::absent(hook)))
            }
            Err(ProbeError::Open(error)) if errno(&error) == Some(Errno::ADDRNOTAVAIL) => {
                plan::verdict(hook, Verdict::Unsupported, Some(plan::ambiguous(hook)))
            }
            Err(error) => plan::verdict(hook, Verdict::Broken, Some(explain(&error))),
        }
    }

    fn attach(&self, hook: &Hook) -> Result<Attached, ProbeError> {
        let (program, event) = if let Entry::Tracepoint { category } = hook.entry {
            let program = self.loader.load(hook.program, &Target::Tracepoint)?;
            let event = tracepoint(&program, self.places, category, hook.symbol)?;
            (program, event)
        } else {
            let kprobes = self.kprobes.ok_or(ProbeError::NoKprobes)?;
            let program = self.loader.load(hook.program, &Target::Kprobe)?;
            let event = kprobes.attach(&program, hook.symbol, hook.entry == Entry::Kretprobe)?;
            (program, event)
        };
        Ok(Attached {
            name: hook.program,
            program,
            event,
        })
    }

    /// Attaches a provider's hooks: by fentry where that is asked for and works, by kprobe elsewhere.
    pub(super) fn datapath(&mut self, path: &DataPath, fast: &Fast) -> Vec<ProbeVerdict> {
        let hooks = path.hooks.iter();
        hooks.map(|hook| self.hot(hook, fast)).collect()
    }

    fn hot(&mut self, HotHook { kprobe, fast }: &HotHook, module: &Fast) -> ProbeVerdict {
        let why_slow = match (fast, module) {
            (Some((program, entry)), Some(Ok(module))) => match plan::decide(kprobe, self.facts) {
                Decision::Attach(partial) => {
                    match module.attach(self.loader, program, *entry, kprobe.symbol) {
                        Ok(link) => {
                            self.links.push(link);
                            let hook = Hook {
                                program,
                                entry: *entry,
                                ..*kprobe
                            };
                            return plan::verdict(&hook, on(partial.as_ref()), partial);
                        }
                        Err(error) => Some(explain(&error)),
                    }
                }
                Decision::Leave(..) => None,
            },
            (Some(_), Some(Err(why))) => Some(why.clone()),
            _ => None,
        };
        let mut verdict = self.one(kprobe);
        if let Some(why) = why_slow {
            let slow = format!("kprobe instead of fentry: {why}");
            verdict.reason = Some(match verdict.reason {
                Some(reason) => format!("{reason}; {slow}"),
                None => slow,
            });
        }
        verdict
    }
}

/// The whole chain of causes, cut: a verifier log can be hundreds of kilobytes.
pub(super) fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    const LIMIT: usize = 400;
    let mut text = error.to_string();
    let mut cause = error.source();
    let mut errno = errno_in(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        errno = errno.or_else(|| errno_in(inner));
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

fn errno_in(error: &(dyn std::error::Error + 'static)) -> Option<Errno> {
    errno(error.downcast_ref::<io::Error>()?)
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}
