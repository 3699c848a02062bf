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
    control::CONTROL_PLANE,
    datapath::{self, Attach, DATA_PATHS},
    hook::{Hook, Role},
    loader::{Loader, Wanted},
    log, object,
    offsets::{self, Places},
    plan::{self, Facts, Outcome},
    preempt,
    scope::Scope,
    skipped::Watched,
    slots::SlotMap,
    unseen,
};
use crate::{
    model::{
        cause::{Cause, CauseId, Concerns, Obstacle},
        input::{DataPaths, ProbeVerdict, Verdict},
    },
    source::{
        platform::find_symbols,
        root::Root,
        sysfs::{has_hardware, list_devices},
    },
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
        let dear = hook.role == Role::Write && !self.scope.counters();
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

/// Built without the object.
fn no_object() -> Obstacle {
    Obstacle::new(
        CauseId::NoObject,
        "this binary carries no eBPF object: it was built without the bpf toolchain",
        "run cargo xtask setup and build again",
    )
}

/// Nothing says which functions there are, and how many of one name.
fn no_symbols() -> Obstacle {
    Obstacle::new(
        CauseId::NoSymbols,
        "cannot tell which functions the kernel has: /proc/kallsyms is not readable",
        "`mount -t proc proc /proc`",
    )
}

/// The limit of open files leaves nothing for what else is to be read.
fn no_files() -> Obstacle {
    Obstacle::new(
        CauseId::NoFiles,
        "no program is attached: each takes three open files and the limit is too low",
        "`ulimit -n 1024`",
    )
}

/// The step that an obstacle was met at comes first.
fn at(step: &str, obstacle: Obstacle) -> Obstacle {
    Obstacle {
        why: format!("{step}: {}", obstacle.why),
        ..obstacle
    }
}

/// What is attached would never run.
pub(super) fn would_not_run(obstacle: Obstacle) -> Obstacle {
    at("no program would run", obstacle)
}

/// Programs attached; dropping it detaches everything.
pub struct Session {
    maps: HashMap<String, Map>,
    log: Option<EbpfLogger<log::Stderr>>,
    outcomes: Vec<Outcome>,
    unseen: Vec<Cause>,
    datapaths: DataPaths,
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
fn without_core(root: &Root) -> Obstacle {
    let loaded = list_devices(root).is_some()
        || root.bytes(&root.proc("modules"), 1 << 20).is_some_and(|list| {
            list.split(|b| *b == b'\n')
                .any(|line| line.starts_with(b"ib_core "))
        });
    if loaded {
        Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: there are RDMA devices, and /sys/module does not list ib_core",
            "give the container the host's /sys/module",
        )
    } else {
        Obstacle::new(
            CauseId::NoRdmaSubsystem,
            "ib_core is not loaded: there is nothing to trace yet",
            "it is watched for",
        )
    }
}

/// What the plan needs to know of this kernel.
fn facts(root: &Root, places: &Places, resolved: &offsets::Resolved) -> Result<Facts, Obstacle> {
    let hooks = datapath::all_hooks;
    let modules = hooks()
        .map(|h| h.module)
        .filter(|m| places.modules.join(m).is_dir());
    let symbols = if refuses_ambiguous_names(root) {
        None
    } else {
        let symbols = symbols(root, hooks().map(|hook| hook.symbol));
        Some(symbols.ok_or_else(no_symbols)?)
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
fn unseen(outcomes: &[Outcome], problems: &[String], masked: bool) -> Vec<Cause> {
    let Some(problem) = problems.first() else {
        return unseen::causes(outcomes, masked);
    };
    let no_btf = |outcome: &&Outcome| outcome.obstacles.iter().any(|o| o.id == CauseId::NoBtf);
    // The data path is one thing to the user: what else keeps one of its programs off is not worth a line.
    let hot = |outcome: &&Outcome| outcome.hook.path.is_some();
    let uncounted = outcomes.iter().filter(hot).any(|outcome| no_btf(&outcome));
    let is_blind = |outcome: &&Outcome| no_btf(outcome) || uncounted && hot(outcome);
    let (blind, others): (Vec<_>, Vec<_>) = outcomes.iter().partition(is_blind);
    let programs = blind.iter().map(|outcome| outcome.hook.program.to_owned());
    let first = Cause {
        id: CauseId::NoBtf,
        concerns: Concerns::Programs(programs.collect()),
        what: "Not seen by eBPF: QPs with their owners, states and bytes".into(),
        why: problem.clone(),
        remedy: "Use a kernel with CONFIG_DEBUG_INFO_BTF=y, and give the container /sys/kernel/btf".into(),
    };
    let others: Vec<_> = others.into_iter().cloned().collect();
    [first]
        .into_iter()
        .chain(unseen::causes(&others, masked))
        .collect()
}

fn no_counters(obstacle: Obstacle) -> Cause {
    let programs = datapath::hooks().map(|hook| hook.program.to_owned());
    let what = "Not seen: work requests, bytes and latency per QP";
    let mut cause = obstacle.takes(what, Concerns::Programs(programs.collect()));
    if cause.remedy.is_empty() {
        "See dmesg".clone_into(&mut cause.remedy);
    }
    cause
}

/// Programs that may be loaded. Where the kernel takes none by fentry, that by kprobe stands in.
fn programs(options: &Options) -> BTreeSet<&'static str> {
    let control = CONTROL_PLANE.iter().filter(|hook| options.wants(hook));
    let hot = datapath::hooks().filter(|_| options.scope.counters());
    let each = control.chain(hot).flat_map(|hook| {
        let fast = hook.fast.filter(|_| options.attach == Attach::Fentry);
        [Some(hook.program), fast.map(|fast| fast.program)]
    });
    each.flatten().collect()
}

/// Why the `write()` commands are left alone beside a data path. The price is measured: `cargo xtask bench --only G6`.
fn too_dear() -> Obstacle {
    Obstacle::new(
        CauseId::TooDear,
        "off: it costs each post 1500 instructions more, of some 3800. The data path counts post_send, without errors and \
         times",
        "--verb-times turns this on",
    )
}

/// Whether every call of post_send shows as a doorbell of a QP: then `write()` need not be followed for them. It is
/// followed where one device's driver is not counted, whatever others are there.
fn counts_all_posts(datapaths: &DataPaths, facts: &Facts, hardware: bool) -> bool {
    let mut loaded = DATA_PATHS
        .iter()
        .map(|path| path.path.driver)
        .filter(|driver| facts.modules.contains(*driver));
    !datapaths.is_empty() && !hardware && loaded.all(|driver| datapaths.of(driver).is_some())
}

/// What the machine lacks for any program to run.
fn may_start(places: &Places, root: &Root) -> Result<(), Obstacle> {
    if !places.modules.is_dir() {
        return Err(Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: /sys is not mounted",
            "`mount -t sysfs sysfs /sys`",
        ));
    }
    if !places.modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match armed::locked_down(root).or_else(|| armed::why_not(root)) {
        Some(obstacle) => Err(would_not_run(obstacle)),
        None => Ok(()),
    }
}

/// Why nothing is attached: what should have worked says most.
fn nothing_attached(outcomes: &[Outcome]) -> Obstacle {
    let broken = outcomes.iter().find(|o| o.verdict == Verdict::Broken);
    let first = broken.or(outcomes.first()).and_then(|o| o.obstacles.first());
    match first {
        Some(obstacle) => at("no program could be attached", obstacle.clone()),
        None => Obstacle::new(CauseId::NothingAttached, "no program could be attached", ""),
    }
}

impl Session {
    /// Loads and attaches. Nothing is counted until [`Session::set_enabled`].
    pub fn start(options: &Options) -> Result<Self, Obstacle> {
        let object = object::bytes().ok_or_else(no_object)?;
        let places = Places::default();
        let root = Root::default();
        may_start(&places, &root)?;
        lift_memlock();
        let (mut resolved, mut btf) = offsets::resolve(&places);
        let facts = facts(&root, &places, &resolved)?;
        options.scope.narrow(&mut resolved.values);
        // These take 3 KiB of kernel memory a QP: none where there is nothing to count.
        let countable = options.scope.counters() && facts.counts();
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
        let (loader, mut maps) =
            Loader::new(object, &wanted).map_err(|error| at("cannot load eBPF maps", explain(&error)))?;
        let fast = (options.attach == Attach::Fentry).then_some(&mut btf);
        let mut attacher = Attacher::new(&loader, &facts, &places, fast);
        let mut hot = Vec::new();
        let mut datapaths = DataPaths::default();
        let mut unknown = Vec::new();
        for path in DATA_PATHS.iter().filter(|_| options.scope.counters()) {
            let (outcomes, how) = attacher.datapath(path);
            if let Some(how) = how {
                datapaths = datapaths.and(path.path.driver, how);
                unknown.push((path.path.provider, plan::unknown(&outcomes)));
            }
            hot.extend(outcomes);
        }
        let all_counted = counts_all_posts(&datapaths, &facts, has_hardware(&root));
        let mut outcomes = Vec::with_capacity(CONTROL_PLANE.len() + hot.len());
        for hook in CONTROL_PLANE.iter().filter(|hook| options.wants(hook)) {
            let left = hook.role == Role::Write && all_counted && !options.verb_times;
            outcomes.push(if left {
                Outcome::off(hook, Verdict::NotApplicable, too_dear())
            } else {
                attacher.one(hook)
            });
        }
        outcomes.extend(hot);
        if attacher.no_more_files {
            return Err(no_files());
        }
        // What is only not loaded yet is waited for, where that is all that was asked for.
        let waiting =
            options.scope != Scope::All && outcomes.iter().all(|o| o.verdict == Verdict::NotApplicable);
        if !waiting && !outcomes.iter().any(Outcome::is_on) {
            return Err(nothing_attached(&outcomes));
        }
        let Attacher { programs, .. } = attacher;
        let log = programs.first().and_then(|first| log::of(&maps, &first.program));
        let masked = !places.btf.join("vmlinux").exists();
        let mut unseen = unseen(&outcomes, &resolved.problems, masked);
        let mut slots = None;
        if !datapaths.is_empty()
            && let (Some(array), Some(free)) = (maps.remove(map::QP_SLOTS), maps.remove(map::FREE_SLOTS))
        {
            match SlotMap::open(array, free, unknown) {
                Ok(map) => slots = Some(map),
                Err(error) => {
                    unseen.push(no_counters(explain(&error)));
                    datapaths = DataPaths::default();
                }
            }
        }
        Ok(Self {
            maps,
            log,
            outcomes,
            unseen,
            datapaths,
            slots,
            programs,
        })
    }

    /// Switches counting and records on or off.
    pub fn set_enabled(&mut self, on: bool) -> Result<(), Obstacle> {
        let refused =
            |why: String| Obstacle::new(CauseId::Refused, format!("cannot switch counting on: {why}"), "");
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

    /// Verdicts, in the order of the tables.
    pub fn verdicts(&self) -> Vec<ProbeVerdict> {
        self.outcomes.iter().map(Outcome::shown).collect()
    }

    /// What is not seen, why, and the remedy.
    pub fn unseen(&self) -> &[Cause] {
        &self.unseen
    }

    /// Programs attached.
    pub fn attached(&self) -> usize {
        self.programs.len()
    }

    /// Whether records say all that happens to the table of QPs.
    pub fn follows_qps(&self) -> bool {
        plan::follows_qps(&self.outcomes)
    }

    /// Prints what programs built with the `log` feature have logged.
    pub fn flush_log(&mut self) {
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// The data paths that are counted.
    pub fn datapaths(&self) -> &DataPaths {
        &self.datapaths
    }

    /// Modules that cannot be unloaded while this is there.
    pub fn pinned(&self) -> Vec<&'static str> {
        pinned(&self.programs)
    }

    /// The programs that are attached, to read what the kernel skipped. `None` where too many files are open for that.
    pub(super) fn watched(&self) -> Option<Vec<Watched>> {
        let each = self.programs.iter().map(|attached| {
            let link = match attached.link() {
                Some(link) => Some(link.try_clone().ok()?),
                None => None,
            };
            Some(Watched {
                hook: attached.hook,
                fast: attached.is_fast(),
                program: attached.program.try_clone().ok()?,
                link,
            })
        });
        each.collect()
    }

    /// Whether the calls of `write()` are counted where they enter: then doorbells are not what counts post_send.
    pub(super) fn counts_writes(&self) -> bool {
        let mut writes = self
            .outcomes
            .iter()
            .filter(|o| o.hook.role == Role::Write)
            .peekable();
        writes.peek().is_some() && writes.all(Outcome::is_on)
    }

    /// Takes the QP counters out, once.
    pub(super) fn take_slots(&mut self) -> Option<SlotMap> {
        self.slots.take()
    }

    /// Takes the ring buffer out, once; why not otherwise.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, Obstacle> {
        let none = || Obstacle::new(CauseId::Defect, "the object has no EVENTS map", "");
        let ring = self.maps.remove(map::EVENTS).ok_or_else(none)?;
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
        assert_eq!(without_core(&fake.root()).id, CauseId::NoRdmaSubsystem);
        fake.proc("modules", "ib_core_x 1 0 - Live 0x0\n");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoRdmaSubsystem);
        fake.proc("modules", "x 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoModuleList);
        let fake = Fake::new();
        fake.dir("sys/class/infiniband");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoModuleList);
    }

    #[test]
    fn without_the_kernel_s_btf_its_absence_is_the_one_line() {
        let off = |hook| {
            let no_btf = Obstacle::new(CauseId::NoBtf, "no BTF for x.y", "");
            Outcome::off(hook, Verdict::Unsupported, no_btf)
        };
        let mut outcomes: Vec<_> = datapath::all_hooks().map(off).collect();
        if let Some(last) = outcomes.last_mut() {
            last.obstacles = vec![plan::absent(last.hook)];
        }
        let notes = unseen(
            &outcomes,
            &["cannot read /sys/kernel/btf/vmlinux".to_owned()],
            true,
        );
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn doorbells_of_one_provider_do_not_stand_for_the_posts_of_another() {
        let rxe = DataPaths::default().and("rdma_rxe", "kprobe");
        let facts = |modules: &[&str]| Facts {
            modules: modules.iter().map(|module| (*module).to_owned()).collect(),
            ..Facts::default()
        };
        assert!(counts_all_posts(&rxe, &facts(&["rdma_rxe"]), false));
        assert!(
            !counts_all_posts(&rxe, &facts(&["rdma_rxe"]), true),
            "a NIC beside it"
        );
        let both = facts(&["rdma_rxe", "siw"]);
        assert!(!counts_all_posts(&rxe, &both, false), "siw is not counted");
        assert!(counts_all_posts(&rxe.and("siw", "kprobe"), &both, false));
        assert!(!counts_all_posts(&DataPaths::default(), &facts(&[]), false));
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
