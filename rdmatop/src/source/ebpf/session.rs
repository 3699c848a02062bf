//! One load of the object: offsets in, programs attached one by one, a verdict for each.

use std::collections::{BTreeSet, HashMap};

use aya::maps::{Array, Map, MapData, RingBuf};
use aya_log::EbpfLogger;
use rdmatop_common::{
    counters::{DEFAULT_SLOTS, KNOWN_QPS, place},
    names::map,
    offsets::{EAGER_SLOTS, WANT_COUNTERS},
};

use super::{
    armed,
    attach::{Attached, Attacher, explain, pinned},
    datapath::{self, Attach, DATA_PATHS},
    fast::fast,
    loader::{Loader, Wanted},
    log, object,
    offsets::{self, Places},
    plan::{self, CONTROL_PLANE, Facts, Hook},
    preempt,
    scope::Scope,
    skipped::Watched,
    slots::SlotMap,
    unseen,
};
use crate::{
    model::input::{Note, ProbeVerdict, Verdict},
    source::{limits, platform::find_symbols, root::Root, sysfs::list_devices},
};

/// What the user may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer, a power of two and a multiple of the page size. Tests make it tiny.
    pub ring_bytes: u32,
    /// How hooks are entered.
    pub attach: Attach,
    /// QPs that can have moved and still be there. Tests make it tiny.
    pub slots: u32,
    /// What is wanted of it.
    pub scope: Scope,
    /// Time `write()` commands too, where that costs every doorbell: beside a data path, and in a trace.
    pub verb_times: bool,
}

impl Options {
    /// Whether a hook is needed at all.
    fn wants(&self, hook: &Hook) -> bool {
        // A line trace shows no counter: without being asked it puts nothing on the way of a doorbell.
        let dear = hook.symbol == plan::WRITE_ENTRY && !self.scope.counters();
        self.scope.wants(hook) && (!dear || self.verb_times)
    }
}

impl Default for Options {
    fn default() -> Self {
        // 4 MiB hold some 20 000 QP records: 0.4 s of the fastest storm measured (50 000 a second).
        Self {
            ring_bytes: 4 << 20,
            attach: Attach::Auto,
            slots: DEFAULT_SLOTS,
            scope: Scope::All,
            verb_times: false,
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
    /// Nothing tells which modules are loaded.
    #[error("cannot tell which modules are loaded: /sys is not mounted; `mount -t sysfs sysfs /sys`")]
    NoSys,
    /// As [`Self::NoSys`], with a /sys of which that part is hidden.
    #[error(
        "cannot tell which modules are loaded: there are RDMA devices, and /sys/module does not list ib_core; give the \
         container the host's /sys/module"
    )]
    NoModules,
    /// Nothing tells which functions there are, and how many of one name.
    #[error(
        "cannot tell which functions the kernel has: /proc/kallsyms is not readable; `mount -t proc proc /proc`"
    )]
    NoSymbols,
    /// Attaching has a thread of its own.
    #[error("cannot start a thread: {0}; {remedy}", remedy = limits::threads())]
    NoThread(std::io::Error),
    /// The thread that attaches has ended without a word.
    #[error("attaching ended by itself: this is a defect of rdmatop")]
    Vanished,
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
    /// What is attached would never run.
    #[error("no program would run: {0}")]
    Unarmed(&'static str),
    /// The limit of open files leaves nothing for what else is to be read.
    #[error("no program is attached: each takes three open files and the limit is too low; `ulimit -n 1024`")]
    NoFiles,
    /// Nothing could be attached.
    #[error("no program could be attached: {0}")]
    NothingAttached(String),
}

/// Programs attached; dropping it detaches everything.
pub struct Session {
    maps: HashMap<String, Map>,
    log: Option<EbpfLogger<log::Stderr>>,
    verdicts: Vec<ProbeVerdict>,
    notes: Vec<Note>,
    attached: usize,
    datapath: Option<&'static str>,
    slots: Option<SlotMap>,
    /// Dropped with the session, which detaches.
    programs: Vec<Attached>,
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
/// `None` where nobody can tell.
fn symbols<'a>(root: &Root, names: impl Iterator<Item = &'a str>) -> Option<HashMap<String, usize>> {
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let found = find_symbols(root, &names)?;
    let count = |(name, homes): (String, Vec<_>)| (name, homes.len());
    Some(found.into_iter().map(count).collect())
}

/// Why there is no session without a directory of ib_core: /sys/module may be masked, as container runtimes do it.
fn without_core(root: &Root) -> SessionError {
    let loaded = list_devices(root).is_some()
        || root.bytes(&root.proc("modules"), 1 << 20).is_some_and(|list| {
            list.split(|b| *b == b'\n')
                .any(|line| line.starts_with(b"ib_core "))
        });
    if loaded {
        SessionError::NoModules
    } else {
        SessionError::NoRdma
    }
}

/// What the plan needs to know of this kernel.
fn facts(root: &Root, places: &Places, resolved: &offsets::Resolved) -> Result<Facts, SessionError> {
    let hooks = || CONTROL_PLANE.iter().chain(datapath::hooks());
    let modules = hooks()
        .map(|h| h.module)
        .filter(|m| places.modules.join(m).is_dir());
    let symbols = if refuses_ambiguous_names(root) {
        None
    } else {
        let symbols = symbols(root, hooks().map(|hook| hook.symbol));
        Some(symbols.ok_or(SessionError::NoSymbols)?)
    };
    Ok(Facts {
        modules: modules.map(str::to_owned).collect(),
        symbols,
        without_tracefs: offsets::without_tracefs(places),
        preempts: preempt::why(root),
        offsets: resolved
            .values
            .keys()
            .copied()
            .filter(|global| resolved.has(global))
            .collect(),
    })
}

/// What is not seen. Without vmlinux's BTF nearly nothing is, for that one cause. `masked`: the kernel has BTF, and its
/// files are hidden, those of modules too.
fn notes(verdicts: &[ProbeVerdict], problems: &[String], masked: bool) -> Vec<Note> {
    let Some(problem) = problems.first() else {
        return unseen::notes(verdicts, masked);
    };
    let no_btf = |verdict: &&ProbeVerdict| {
        let why = verdict.reason.as_deref().unwrap_or_default();
        why.starts_with(plan::NO_BTF)
    };
    // The data path is one thing to the user: what else keeps one of its programs off is not worth a line.
    let hot = |verdict: &&ProbeVerdict| datapath::hooks().any(|hook| hook.program == verdict.program);
    let uncounted = verdicts.iter().filter(hot).any(|verdict| no_btf(&verdict));
    let others: Vec<_> = verdicts
        .iter()
        .filter(|verdict| !(no_btf(verdict) || uncounted && hot(verdict)))
        .cloned()
        .collect();
    let first = Note {
        what: "Not seen by eBPF: QPs with their owners, states and bytes".into(),
        why: problem.clone(),
        remedy: "Use a kernel with CONFIG_DEBUG_INFO_BTF=y, and give the container /sys/kernel/btf".into(),
    };
    [first]
        .into_iter()
        .chain(unseen::notes(&others, masked))
        .collect()
}

fn no_counters(why: &str) -> Note {
    let (why, remedy) = why.rsplit_once("; ").unwrap_or((why, "See dmesg"));
    Note {
        what: unseen::DATA_PATH.into(),
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    }
}

/// Programs that may be loaded. Where the kernel takes none by fentry, that by kprobe stands in.
fn programs(options: &Options) -> BTreeSet<&'static str> {
    let control = CONTROL_PLANE.iter().filter(|hook| options.wants(hook));
    let hot = datapath::hooks().filter(|_| options.scope.counters());
    let each = control.chain(hot).flat_map(|hook| {
        let fast = fast(hook).filter(|_| options.attach == Attach::Fentry);
        [Some(hook.program), fast.map(|fast| fast.program)]
    });
    each.flatten().collect()
}

/// What the machine lacks for any program to run.
fn may_start(places: &Places, root: &Root) -> Result<(), SessionError> {
    if !places.modules.is_dir() {
        return Err(SessionError::NoSys);
    }
    if !places.modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match armed::locked_down(root).or_else(|| armed::why_not(root)) {
        Some(why) => Err(SessionError::Unarmed(why)),
        None => Ok(()),
    }
}

impl Session {
    /// Loads and attaches. Nothing is counted until [`Session::set_enabled`].
    pub fn start(options: &Options) -> Result<Self, SessionError> {
        let object = object::bytes().ok_or(SessionError::NoObject)?;
        let places = Places::default();
        let root = Root::default();
        may_start(&places, &root)?;
        lift_memlock();
        let (mut resolved, mut btf) = offsets::resolve(&places);
        let facts = facts(&root, &places, &resolved)?;
        options.scope.narrow(&mut resolved.values);
        // These take 3 KiB of kernel memory a QP: none where there is nothing to count.
        let countable =
            options.scope.counters() && DATA_PATHS.iter().any(|path| facts.modules.contains(path.module));
        let slots = if countable { options.slots.max(1) } else { 1 };
        resolved
            .values
            .insert(WANT_COUNTERS, u32::from(options.scope.counters()));
        resolved.values.insert(EAGER_SLOTS, place::eager(slots));
        let wanted = Wanted {
            programs: &programs(options),
            entries: &[
                (map::EVENTS, options.ring_bytes),
                (map::QP_SLOTS, slots),
                (map::USED_SLOTS, slots),
                (map::QP_PATHS, slots),
                // Of a hash that nobody uses the kernel would still make each bucket.
                (map::QPN_INDEX, if countable { KNOWN_QPS } else { 1 }),
                (map::QUEUE_SLOTS, slots.saturating_mul(2)),
            ],
            globals: &resolved.values,
        };
        let (loader, mut maps) = Loader::new(object, &wanted).map_err(|error| SessionError::Refused {
            what: "cannot load eBPF maps",
            why: explain(&error),
        })?;
        let fast = (options.attach == Attach::Fentry).then_some(&mut btf);
        let mut attacher = Attacher::new(&loader, &facts, &places, fast);
        let mut hot = Vec::new();
        let mut datapath = None;
        for path in DATA_PATHS.iter().filter(|_| options.scope.counters()) {
            let (verdicts, how) = attacher.datapath(path);
            datapath = datapath.or(how);
            hot.extend(verdicts);
        }
        let mut verdicts = Vec::with_capacity(CONTROL_PLANE.len() + hot.len());
        for hook in CONTROL_PLANE.iter().filter(|hook| options.wants(hook)) {
            let left = hook.symbol == plan::WRITE_ENTRY && datapath.is_some() && !options.verb_times;
            verdicts.push(if left {
                plan::verdict(hook, Verdict::NotApplicable, Some(plan::WRITE_LEFT.into()))
            } else {
                attacher.one(hook)
            });
        }
        verdicts.extend(hot);
        if attacher.no_more_files {
            return Err(SessionError::NoFiles);
        }
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
        let Attacher { programs, .. } = attacher;
        let log = programs.first().and_then(|first| log::of(&maps, &first.program));
        let masked = !places.btf.join("vmlinux").exists();
        let mut notes = notes(&verdicts, &resolved.problems, masked);
        let mut slots = None;
        if datapath.is_some()
            && let (Some(array), Some(free)) = (maps.remove(map::QP_SLOTS), maps.remove(map::FREE_SLOTS))
        {
            match SlotMap::open(array, free) {
                Ok(map) => slots = Some(map),
                Err(error) => {
                    notes.push(no_counters(&explain(&error)));
                    datapath = None;
                }
            }
        }
        Ok(Self {
            maps,
            log,
            verdicts,
            notes,
            attached,
            datapath,
            slots,
            programs,
        })
    }

    /// Switches counting and records on or off.
    pub fn set_enabled(&mut self, on: bool) -> Result<(), SessionError> {
        let refused = |why: String| SessionError::Refused {
            what: "cannot switch counting on",
            why,
        };
        let control = self
            .maps
            .get_mut(map::CONTROL)
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

    /// What is not seen, why, and the remedy.
    pub fn notes(&self) -> &[Note] {
        &self.notes
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

    /// Modules that cannot be unloaded while this is there.
    pub fn pinned(&self) -> Vec<&'static str> {
        pinned(&self.programs)
    }

    /// The programs that are attached, to read what the kernel skipped. `None` where too many files are open for that.
    pub(super) fn watched(&self) -> Option<Vec<Watched>> {
        let each = self.programs.iter().map(|attached| {
            let fast = fast(attached.hook).filter(|_| attached.is_fast());
            let entered = fast.map_or(*attached.hook, |fast| Hook {
                program: fast.program,
                entry: fast.entry,
                ..*attached.hook
            });
            let link = match attached.link() {
                Some(link) => Some(link.try_clone().ok()?),
                None => None,
            };
            Some(Watched {
                hook: attached.hook,
                entered,
                program: attached.program.try_clone().ok()?,
                link,
            })
        });
        each.collect()
    }

    /// Whether the calls of `write()` are counted where they enter: then doorbells are not what counts post_send.
    pub(super) fn counts_writes(&self) -> bool {
        let on = |program| self.programs.iter().any(|on| on.hook.program == program);
        on("uverbs_write") && on("uverbs_write_ret")
    }

    /// Takes the QP counters out, once.
    pub(super) fn take_slots(&mut self) -> Option<SlotMap> {
        self.slots.take()
    }

    /// Takes the ring buffer out, once; why not otherwise.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, String> {
        let ring = self
            .maps
            .remove(map::EVENTS)
            .ok_or("the object has no EVENTS map")?;
        RingBuf::try_from(ring).map_err(|error| explain(&error))
    }

    /// Takes a map out, once.
    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.maps.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventKind;
    use crate::source::fake::Fake;

    #[test]
    fn a_masked_list_of_modules_is_not_taken_for_a_machine_without_rdma() {
        let fake = Fake::new();
        assert!(matches!(without_core(&fake.root()), SessionError::NoRdma));
        fake.proc("modules", "ib_core_x 1 0 - Live 0x0\n");
        assert!(matches!(without_core(&fake.root()), SessionError::NoRdma));
        fake.proc("modules", "x 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n");
        assert!(matches!(without_core(&fake.root()), SessionError::NoModules));
        let fake = Fake::new();
        fake.dir("sys/class/infiniband");
        assert!(matches!(without_core(&fake.root()), SessionError::NoModules));
    }

    #[test]
    fn without_the_kernel_s_btf_its_absence_is_the_one_line() {
        let mut verdicts: Vec<_> = plan::CONTROL_PLANE
            .iter()
            .chain(datapath::hooks())
            .map(|hook| plan::verdict(hook, Verdict::Unsupported, Some(format!("{}x.y", plan::NO_BTF))))
            .collect();
        if let Some(last) = verdicts.last_mut() {
            last.reason = Some("this kernel has no function rxe_xmit_packet".into());
        }
        let notes = notes(
            &verdicts,
            &["cannot read /sys/kernel/btf/vmlinux".to_owned()],
            true,
        );
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn a_trace_puts_nothing_on_the_way_of_a_doorbell_unless_asked() {
        let loads = |scope: Scope, verb_times| {
            let options = Options {
                scope,
                verb_times,
                ..Options::default()
            };
            programs(&options).contains("uverbs_write")
        };
        let errors = || Scope::Events(vec![EventKind::VerbError]);
        assert!(!loads(errors(), false) && loads(errors(), true));
        assert!(!loads(Scope::Events(vec![EventKind::QpCreate]), true));
        // Where no data path is, its calls are counted.
        assert!(loads(Scope::All, false));
    }
}
