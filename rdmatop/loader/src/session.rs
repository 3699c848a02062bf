//! A session: loads the object with resolved offsets and attaches the programs one by one, with a verdict for
//! each.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use aya::maps::{Array, Map, MapData, RingBuf};
use aya_log::EbpfLogger;
use rdmatop_common::{
    counters::place,
    names::map,
    offsets::{COUNTS, EAGER_SLOTS, HAS_FENCE, WANT_QP_CREATES, WANT_USER_WORK},
};

pub use super::choice::Options;
use super::{
    armed,
    attach::{Attached, Attacher, explain, pinned},
    choice::{
        Counting, Existing, Sizes, choose_work, control_plane, count, counts_all_posts, find_users, programs,
        read_offsets,
    },
    datapath::{self, Attach},
    headroom,
    hook::{Role, Skip},
    loader::{Loader, Wanted, allocates_on_demand},
    object,
    offsets::{self, Paths},
    plan::{self, Facts, Outcome},
    preempt, program_log,
    rxe_seen::Kept,
    scope::Scope,
    skipped::Watched,
    slots::SlotMap,
    unseen,
    user::{self, UserPath},
    work::WORK_HOOKS,
};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    event::EventKind,
    input::{DataPaths, ProbeVerdict, Verdict},
};
use rdmatop_sources::{
    limits,
    netlink::client::Nldev,
    platform::find_symbols,
    root::Root,
    sysfs::{has_hardware, is_hardware, list_devices},
};

/// The obstacle if rdmatop was built without the eBPF object.
fn no_object() -> Obstacle {
    Obstacle::new(
        CauseId::NoObject,
        "this binary carries no eBPF object: it was built without the bpf toolchain",
        "run cargo xtask setup and build again",
    )
}

/// The obstacle if rdmatop cannot read which functions the kernel has, and how many have the same name.
fn no_symbols() -> Obstacle {
    Obstacle::new(
        CauseId::NoSymbols,
        "cannot tell which functions the kernel has: /proc/kallsyms is not readable",
        "`mount -t proc proc /proc`",
    )
}

/// The obstacle if the limit of open files would leave none for rdmatop's other reads.
fn no_files() -> Obstacle {
    Obstacle::new(
        CauseId::NoFiles,
        "no program is attached: each takes three open files and the limit is too low",
        "`ulimit -n 1024`",
    )
}

/// Puts the step that failed before the reason.
pub(super) fn at(step: &str, obstacle: Obstacle) -> Obstacle {
    Obstacle {
        why: format!("{step}: {}", obstacle.why),
        ..obstacle
    }
}

/// The obstacle if programs could be attached but would never run.
pub(super) fn would_not_run(obstacle: Obstacle) -> Obstacle {
    at("no program would run", obstacle)
}

/// Loaded maps and attached programs. Dropping it detaches everything.
pub struct Session {
    maps: HashMap<String, Map>,
    log: Option<EbpfLogger<program_log::Stderr>>,
    outcomes: Vec<Outcome>,
    unseen: Vec<Cause>,
    datapaths: DataPaths,
    slots: Option<SlotMap>,
    user: Option<Result<UserPath, Cause>>,
    /// Probes on programs make records of work requests.
    follows_user_work: bool,
    kept: Kept,
    /// Attached programs; dropping them detaches them.
    programs: Vec<Attached>,
}

/// Removes the limit on locked memory, because kernels before 5.11 charge maps to it.
fn lift_memlock() {
    let unlimited = rustix::process::Rlimit {
        current: None,
        maximum: None,
    };
    // If rdmatop lacks the right to do so, the load itself reports what is missing.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Memlock, unlimited);
}

/// Whether the kernel refuses to probe a function if several have its name. `create_local_trace_kprobe`
/// counts the names from Linux 6.7 on; stable kernels got that at different times. Other kernels would probe
/// the first such function.
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

/// Whether the kernel has atomic instructions that return a value. With these, programs keep their stores in
/// order where the machine does not: on arm64 from Linux 5.18 on. On x86-64 no program has them.
fn has_fence(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= (5, 18))
}

/// How many functions have each name; `None` if /proc/kallsyms cannot be read. The kernel formats some 200
/// 000 lines one by one, which takes half the time of rdmatop's start.
fn symbols<'a>(root: &Root, names: impl Iterator<Item = &'a str>) -> Option<HashMap<String, usize>> {
    let names: Vec<&str> = names.collect::<BTreeSet<_>>().into_iter().collect();
    let found = find_symbols(root, &names)?;
    let count = |(name, homes): (String, Vec<_>)| (name, homes.len());
    Some(found.into_iter().map(count).collect())
}

/// Why there is no session if /sys/module does not list ib_core: either a container runtime masks the
/// directory, or ib_core is not loaded.
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
            "rdmatop waits for it",
        )
    }
}

/// The facts about a kernel that the plan needs.
pub(super) fn facts(root: &Root, paths: &Paths, resolved: &offsets::Resolved) -> Result<Facts, Obstacle> {
    let hooks = datapath::all_hooks;
    let modules = hooks()
        .map(|h| h.module)
        .filter(|m| paths.modules.join(m).is_dir());
    let symbols = if refuses_ambiguous_names(root) {
        None
    } else {
        let symbols = symbols(root, hooks().map(|hook| hook.symbol));
        Some(symbols.ok_or_else(no_symbols)?)
    };
    Ok(Facts {
        modules: modules.map(str::to_owned).collect(),
        symbols,
        without_tracefs: offsets::without_tracefs(paths),
        preempts: preempt::why(root),
        offsets: resolved
            .values
            .keys()
            .copied()
            .filter(|global| resolved.has(global))
            .collect(),
    })
}

/// Causes for what rdmatop does not see. Without vmlinux's BTF it sees nearly nothing, which is reported as
/// one cause. `masked`: the files with the BTF of kernel and modules are hidden.
fn unseen(outcomes: &[Outcome], problems: &[String], masked: bool) -> Vec<Cause> {
    let Some(problem) = problems.first() else {
        return unseen::causes(outcomes, masked);
    };
    let no_btf = |outcome: &&Outcome| outcome.obstacles.iter().any(|o| o.id == CauseId::NoBtf);
    // To the user the data path is one thing, so another obstacle to one of its programs is not worth a line.
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
        cause.remedy = "See dmesg".into();
    }
    cause
}

/// How many QPs exist now.
fn existing_qps(root: &Root) -> Existing {
    let listed = Nldev::open().and_then(|mut nldev| nldev.named_summaries());
    let mut existing = Existing::default();
    for (device, summary) in listed.into_iter().flat_map(|dump| dump.items) {
        let counts = summary.counts.iter().filter(|count| &*count.name == "qp");
        let qps: u64 = counts.map(|count| count.count).sum();
        existing.all += qps;
        if !is_hardware(root, device.to_string().as_ref()) {
            existing.software += qps;
        }
    }
    existing
}

/// Checks what every program needs on this machine.
fn may_start(paths: &Paths, root: &Root) -> Result<(), Obstacle> {
    if !paths.modules.is_dir() {
        return Err(Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: /sys is not mounted",
            "`mount -t sysfs sysfs /sys`",
        ));
    }
    if !paths.modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match armed::locked_down(root).or_else(|| armed::Switches::new(root).why_not()) {
        Some(obstacle) => Err(would_not_run(obstacle)),
        None => Ok(()),
    }
}

/// Why nothing is attached. If there is a program that should have worked, its obstacle says most.
fn nothing_attached(outcomes: &[Outcome]) -> Obstacle {
    let broken = outcomes.iter().find(|o| o.verdict == Verdict::Broken);
    let first = broken.or(outcomes.first()).and_then(|o| o.obstacles.first());
    match first {
        Some(obstacle) => at(
            "no program could be attached",
            unseen::for_the_user(obstacle.clone(), false),
        ),
        None => Obstacle::new(CauseId::NothingAttached, "no program could be attached", ""),
    }
}

/// Whether any program is attached, or will be once a module is loaded.
fn check(options: &Options, outcomes: &[Outcome]) -> Result<(), Obstacle> {
    // If a trace needs only hooks whose modules are not loaded yet, wait for the modules.
    let waiting = options.scope != Scope::All && outcomes.iter().all(|o| o.verdict == Verdict::NotApplicable);
    // A raw tracepoint can be attached where kprobes are forbidden (kernel.perf_event_paranoid above 2).
    // rdma_cm's events alone are not enough for a session, unless a trace asks for nothing else.
    let is_enough =
        |outcome: &Outcome| outcome.is_on() && (options.scope != Scope::All || outcome.hook.raw.is_none());
    if waiting || outcomes.iter().any(is_enough) {
        return Ok(());
    }
    Err(nothing_attached(outcomes))
}

/// Takes away the offsets of readings that nobody asked for.
fn narrow(options: &Options, globals: &mut BTreeMap<&'static str, u32>) {
    options.scope.narrow(globals);
    globals.insert(
        WANT_QP_CREATES,
        u32::from(options.scope.shows(EventKind::QpCreate)),
    );
    globals.insert(WANT_USER_WORK, u32::from(options.user_work()));
    globals.insert(COUNTS, u32::from(options.scope.counters()));
}

impl Session {
    /// Loads and attaches the programs. They count nothing until [`Session::set_enabled`].
    pub fn start(options: &Options) -> Result<Self, Obstacle> {
        let counts = options.scope.counters();
        let object = object::embedded().ok_or_else(no_object)?;
        let paths = Paths::default();
        let root = Root::default();
        may_start(&paths, &root)?;
        lift_memlock();
        let (mut resolved, btf) = offsets::resolve(&paths, read_offsets(options).as_ref());
        let facts = facts(&root, &paths, &resolved)?;
        resolved.log();
        // From here on only fentry needs the BTF, which takes several MB, and so does the verifier.
        let mut btf = (options.attach == Attach::Fentry).then_some(btf);
        narrow(options, &mut resolved.values);
        if !options.datapaths {
            datapath::blank(&mut resolved.values);
        }
        // If there is nothing to count, no program takes a slot.
        let countable = counts && options.datapaths && facts.counts();
        let on_demand = allocates_on_demand(limits::kernel_version());
        let existing = existing_qps(&root);
        let sizes = Sizes::of(options, existing, countable, on_demand);
        log::info!(existing:? = existing, sizes:? = sizes, bytes = sizes.bytes(on_demand), on_demand; "sized");
        headroom::can_start(sizes.bytes(on_demand))?;
        let has_fence = has_fence(limits::kernel_version());
        resolved.values.insert(HAS_FENCE, u32::from(has_fence));
        resolved.values.insert(EAGER_SLOTS, place::eager(sizes.slots));
        let wanted = Wanted {
            programs: &programs(options),
            entries: &sizes.entries(options),
            on_demand,
            globals: &resolved.values,
        };
        let (loader, mut maps) =
            Loader::new(&object, &wanted).map_err(|error| at("cannot load eBPF maps", explain(&error)))?;
        log::info!(maps = maps.len(); "loaded");
        if let Some((filter, _)) = options.work {
            choose_work(&mut maps, filter)?;
        }
        let mut attacher = Attacher::new(&loader, &facts, &paths, btf.as_mut());
        let Counting {
            outcomes: hot,
            mut datapaths,
            unknown,
        } = count(options, &mut attacher);
        let all_counted = counts_all_posts(&datapaths, &facts, has_hardware(&root));
        let mut outcomes = control_plane(options, all_counted, &mut attacher);
        outcomes.extend(hot);
        let (probes, cannot_find) = find_users(options, &mut attacher);
        outcomes.extend(probes);
        for hook in WORK_HOOKS.iter().filter(|_| options.kernel_work()) {
            outcomes.push(attacher.one(hook));
        }
        if attacher.no_more_files {
            return Err(no_files());
        }
        check(options, &outcomes)?;
        let Attacher { programs, .. } = attacher;
        let log = programs
            .first()
            .and_then(|first| program_log::of(&maps, &first.program));
        let masked = !paths.btf.join("vmlinux").exists();
        let mut unseen = unseen(&outcomes, &resolved.problems, masked);
        let mut slots = None;
        if !datapaths.is_empty()
            && let (Some(array), Some(free)) = (maps.remove(map::QP_SLOTS), maps.remove(map::FREE_SLOTS))
        {
            match SlotMap::open(array, free, map::QP_SLOTS, unknown) {
                Ok(map) => slots = Some(map),
                Err(error) => {
                    unseen.push(no_counters(explain(&error)));
                    datapaths = DataPaths::default();
                }
            }
        }
        let user = options.uprobes.map(|wanted| match cannot_find {
            Some(obstacle) => Err(user::off(obstacle)),
            None => UserPath::open(wanted, &loader, &mut maps).map_err(user::off),
        });
        let kept = Kept::of(counts, &resolved, &outcomes);
        log::info!(programs = programs.len(), datapaths:? = datapaths, pinned = pinned(&programs).join(",").as_str(); "ready");
        Ok(Self {
            maps,
            log,
            outcomes,
            unseen,
            datapaths,
            slots,
            follows_user_work: options.user_work() && matches!(user, Some(Ok(_))),
            user,
            kept,
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

    /// Verdicts of all hooks, in the order of the tables.
    pub fn verdicts(&self) -> Vec<ProbeVerdict> {
        self.outcomes.iter().map(Outcome::shown).collect()
    }

    /// Causes for what is not seen, with remedies.
    pub fn unseen(&self) -> &[Cause] {
        &self.unseen
    }

    /// Number of attached programs.
    pub fn attached(&self) -> usize {
        self.programs.len()
    }

    /// Whether records report every change of the table of QPs.
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

    /// Modules that cannot be unloaded during this session.
    pub fn pinned(&self) -> Vec<&'static str> {
        pinned(&self.programs)
    }

    /// The attached programs, to read how often the kernel skipped them. `None` if too many files are open
    /// for that.
    pub(super) fn watched(&self) -> Option<Vec<Watched>> {
        let each = self.programs.iter().map(|attached| {
            let link = match attached.link() {
                Some(link) => Some(link.try_clone().ok()?),
                None => None,
            };
            Some(Watched {
                hook: attached.hook,
                second: attached.is_second(),
                program: attached.program.try_clone().ok()?,
                link,
            })
        });
        each.collect()
    }

    /// Whether `write()` is probed. If so, its calls count post_send, and the doorbells do not.
    pub(super) fn counts_writes(&self) -> bool {
        let mut writes = self
            .outcomes
            .iter()
            .filter(|o| o.hook.role == Role::Write)
            .peekable();
        writes.peek().is_some() && writes.all(Outcome::is_on)
    }

    /// Takes the QP counters, once.
    pub(super) fn take_slots(&mut self) -> Option<SlotMap> {
        self.slots.take()
    }

    /// Takes the counters of probed programs, once.
    pub(super) fn take_user(&mut self) -> Option<Result<UserPath, Cause>> {
        self.user.take()
    }

    /// Takes the ring buffer, once.
    pub fn take_ring(&mut self) -> Result<RingBuf<MapData>, Obstacle> {
        let none = || Obstacle::new(CauseId::Defect, "the object has no EVENTS map", "");
        let ring = self.maps.remove(map::EVENTS).ok_or_else(none)?;
        RingBuf::try_from(ring).map_err(|error| explain(&error))
    }

    /// What SoftRoCE's programs count for the comparison with the driver.
    pub(super) fn kept(&self) -> Kept {
        self.kept
    }

    /// Whether work requests make records.
    pub(super) fn follows_work(&self) -> bool {
        let mut of_work = self
            .outcomes
            .iter()
            .filter(|outcome| outcome.hook.skip == Skip::Work);
        of_work.any(Outcome::is_on) || self.follows_user_work
    }

    /// Why work requests make no records.
    pub(super) fn why_no_work(&self) -> Option<Obstacle> {
        let off = self.outcomes.iter().filter(|outcome| !outcome.is_on());
        off.flat_map(|outcome| &outcome.obstacles)
            .next()
            .map(|obstacle| unseen::for_the_user(obstacle.clone(), false))
    }

    /// Takes the ring buffer of work requests, once; `None` if no program makes such records.
    pub fn take_work(&mut self) -> Option<RingBuf<MapData>> {
        if !self.follows_work() {
            return None;
        }
        RingBuf::try_from(self.maps.remove(map::WR_EVENTS)?).ok()
    }

    /// Takes a map, once.
    pub fn take_map(&mut self, name: &str) -> Option<Map> {
        self.maps.remove(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_common::wr::WrFilter;
    use rdmatop_sources::fake::Fake;
    use zerocopy::FromZeros as _;

    #[test]
    fn fences_are_there_from_linux_5_18_on_and_not_on_unknown_versions() {
        assert!(has_fence(Some((5, 18))) && has_fence(Some((7, 2))));
        assert!(!has_fence(Some((5, 17))) && !has_fence(None));
    }

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
    fn programs_of_work_requests_are_loaded_only_on_request() {
        let works = |options: &Options| {
            programs(options)
                .iter()
                .filter(|name| name.starts_with("wr_"))
                .count()
        };
        for scope in [
            Scope::All,
            Scope::Events(Vec::new()),
            Scope::Events(vec![EventKind::QpCreate]),
        ] {
            let without = Options {
                scope,
                ..Options::default()
            };
            assert_eq!(works(&without), 0, "{without:?}");
            let with = Options {
                work: Some((WrFilter::new_zeroed(), 4096)),
                ..without.clone()
            };
            assert_eq!(works(&with), WORK_HOOKS.len());
            // The data path stays as it is.
            assert!(programs(&without).is_subset(&programs(&with)));
        }
        let only = Options {
            scope: Scope::Events(vec![EventKind::WrPost, EventKind::WrDone, EventKind::Lost]),
            work: Some((WrFilter::new_zeroed(), 4096)),
            ..Options::default()
        };
        assert_eq!(programs(&only).len(), WORK_HOOKS.len());
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
        // Without a data path the programs at `write()` count its calls.
        assert!(loads(Scope::All, false));
    }
}
