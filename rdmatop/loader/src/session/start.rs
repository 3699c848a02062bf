//! The stages of a start. Each is a type that only the stage before it can make: nothing is loaded before the
//! offsets are resolved, nothing is attached before the maps exist, and a session has attached programs.
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use aya::maps::{Array, Map, MapData};
use rdmatop_common::{
    counters::place,
    names::map,
    offsets::{COUNTS, EAGER_SLOTS, HAS_FENCE, UNKNOWN, WANT_DEVX, WANT_USER_WORK},
    provider,
    wr::WrFilter,
};

use super::Session;
use crate::{
    attach::{Attacher, explain, pinned},
    hooks::{Role, control::CONTROL_PLANE, datapath::DATA_PATHS, work::WORK_HOOKS},
    load::{
        Loader, Maps, Wanted, allocates_on_demand,
        object::{self, Object},
        program_log,
    },
    maps::{rxe_seen, slots::SlotMap, unpreempted::Unpreempted},
    offsets::{self, BtfSet, ResolvedOffsets, btf_dir},
    plan::{
        self, Facts, Outcome,
        options::{Options, programs, read_offsets},
        scope::Scope,
        unseen,
    },
    session::{
        armed::may_start,
        at, headroom,
        sizes::{Existing, Sizes},
    },
    user::{self, UserPath},
};
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    event::EventKind,
    input::{DataPaths, Verdict},
};
use rdmatop_sources::{limits, root::Root, sysfs::has_hardware};

/// The machine can run programs, and the offsets of its structs are known.
pub(super) struct Resolved<'a> {
    options: &'a Options,
    object: Object,
    root: Root,
    offsets: ResolvedOffsets,
    /// For fentry alone: it takes several MB.
    btf: Option<BtfSet>,
    facts: Facts,
}

impl<'a> Resolved<'a> {
    /// Checks the machine, and resolves the offsets that the wanted programs read.
    pub(crate) fn of(options: &'a Options) -> Result<Self, Obstacle> {
        let object = object::embedded().ok_or_else(no_object)?;
        let root = Root::default();
        may_start(&root)?;
        lift_memlock();
        let (mut offsets, btf) = offsets::resolve(&root, read_offsets(options).as_ref());
        let facts = Facts::read(&root, &offsets, &btf)?;
        offsets.log();
        narrow(options, &mut offsets.values);
        Ok(Self {
            options,
            object,
            root,
            offsets,
            btf: options.fentry.then_some(btf),
            facts,
        })
    }

    /// Makes the maps, large enough for the QPs that exist, and links the programs.
    pub(crate) fn load(&mut self) -> Result<(Loader, Maps), Obstacle> {
        let (options, version) = (self.options, limits::kernel_version());
        // If there is nothing to count, no program takes a slot.
        let countable = options.scope.counters() && options.datapaths && self.facts.counts();
        let on_demand = allocates_on_demand(version);
        let existing = Existing::read(&self.root);
        let sizes = Sizes::of(options, existing, countable, on_demand);
        log::info!(existing:? = existing, sizes:? = sizes, bytes = sizes.bytes(on_demand), on_demand; "sized");
        headroom::can_start(&self.root, sizes.bytes(on_demand))?;
        let globals = &mut self.offsets.values;
        globals.insert(HAS_FENCE, u32::from(has_fence(version)));
        globals.insert(EAGER_SLOTS, place::eager(sizes.slots));
        let wanted = Wanted {
            programs: &programs(options),
            entries: &sizes.entries(options),
            on_demand,
            globals,
        };
        let (loader, mut maps) = Loader::new(&self.object, &wanted)
            .map_err(|error| at("cannot load eBPF maps", explain(&error)))?;
        log::info!(maps = maps.len(); "loaded");
        if let Some((filter, _)) = options.work {
            choose_work(&mut maps, filter)?;
        }
        Ok((loader, maps))
    }

    /// Attaches the programs one by one, with an outcome for each, and opens the counters. The programs count
    /// nothing until [`Session::set_enabled`].
    pub(crate) fn session(mut self, loader: &Loader, mut maps: Maps) -> Result<Session, Obstacle> {
        let (options, facts) = (self.options, &self.facts);
        let mut attacher = Attacher::new(loader, facts, &self.root, self.btf.as_mut());
        let (hot, mut datapaths, unknown) = count(options, &mut attacher);
        let all_counted = counts_all_posts(&datapaths, facts, has_hardware(&self.root));
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
        // A kernel without BTF has no such directory either.
        let btf = btf_dir(&self.root);
        let may_have = btf.exists() || !btf.parent().is_some_and(Path::exists);
        let masked = may_have && !btf.join("vmlinux").exists();
        let mut unseen = unseen::causes_or_no_btf(&outcomes, &self.offsets.problems, masked);
        let compares = rxe_seen::compared(&self.offsets, &unknown);
        let mut slots = None;
        if !datapaths.is_empty()
            && let (Some(array), Some(mut free)) = (maps.remove(map::QP_SLOTS), maps.remove(map::FREE_SLOTS))
        {
            match SlotMap::open(array, &mut free, map::QP_SLOTS, unknown) {
                Ok(map) => slots = Some(map),
                Err(error) => {
                    unseen.push(unseen::no_counters(explain(&error)));
                    datapaths = DataPaths::default();
                }
            }
        }
        let user = options.uprobes.map(|wanted| match cannot_find {
            Some(obstacle) => Err(user::off(obstacle)),
            None => UserPath::open(wanted, loader, &mut maps).map_err(user::off),
        });
        log::info!(programs = programs.len(), datapaths:? = datapaths, pinned = pinned(&programs).join(",").as_str(); "ready");
        Ok(Session {
            maps,
            log,
            outcomes,
            unseen,
            datapaths,
            slots,
            follows_user_work: options.user_work() && matches!(user, Some(Ok(_))),
            user,
            compares,
            programs,
        })
    }
}

/// The obstacle if rdmatop was built without the eBPF object.
fn no_object() -> Obstacle {
    built_without(option_env!("RDMATOP_EBPF_MISSING").unwrap_or_default())
}

/// `missing`: what build.rs did not find, a colon, and the remedy.
fn built_without(missing: &'static str) -> Obstacle {
    let (what, remedy) = missing.split_once(": ").unwrap_or((missing, ""));
    let why = format!("this rdmatop was built without eBPF programs: {what}");
    Obstacle::new(CauseId::NoObject, why, remedy)
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

/// Whether the kernel has atomic instructions that return a value. With these, programs keep their stores in
/// order where the machine does not: on arm64 from Linux 5.18 on. On x86-64 no program has them.
fn has_fence(version: Option<(u32, u32)>) -> bool {
    version.is_some_and(|version| version >= (5, 18))
}

/// Takes away the offsets of readings that nobody asked for.
fn narrow(options: &Options, globals: &mut BTreeMap<&'static str, u32>) {
    options.scope.narrow(globals);
    let devx = [EventKind::DevxCreate, EventKind::DevxDestroy];
    globals.insert(
        WANT_DEVX,
        u32::from(devx.iter().any(|kind| options.scope.shows(*kind))),
    );
    globals.insert(WANT_USER_WORK, u32::from(options.user_work()));
    globals.insert(COUNTS, u32::from(options.scope.counters()));
    if !options.datapaths {
        // Without these the kernel side recognises no QP of a driver, and counts none.
        globals.extend(provider::ALL.map(|counted| (counted.sign, UNKNOWN)));
    }
}

/// Passes the filter for work requests to the kernel side, before any program runs.
fn choose_work(maps: &mut HashMap<String, Map>, filter: WrFilter) -> Result<(), Obstacle> {
    const WORDS: usize = size_of::<WrFilter>() / 8;
    let none = || Obstacle::new(CauseId::Defect, "the object has no WR_FILTER map", "");
    let words: [u64; WORDS] = zerocopy::transmute!(filter);
    let map = maps.get_mut(map::WR_FILTER).ok_or_else(none)?;
    let mut array: Array<&mut MapData, [u64; WORDS]> =
        Array::try_from(map).map_err(|error| explain(&error))?;
    // Another session may be counting at this moment.
    let _unpreempted = Unpreempted::begin();
    array
        .set(0, words, 0)
        .map_err(|error| at("cannot say which work requests are asked for", explain(&error)))
}

/// Attaches the programs that count work requests, where they are wanted. Returns their outcomes, the data
/// paths that count, and for each the readings of its QPs that are unknown, because a program of the path is
/// not attached.
fn count(options: &Options, attacher: &mut Attacher<'_>) -> (Vec<Outcome>, DataPaths, Vec<(u32, u32)>) {
    let (mut all, mut datapaths, mut unknown) = (Vec::new(), DataPaths::default(), Vec::new());
    for path in DATA_PATHS
        .iter()
        .filter(|_| options.scope.counters() && options.datapaths)
    {
        let (outcomes, how) = attacher.datapath(path);
        if let Some(how) = how {
            datapaths = datapaths.and(path.path.of.driver, how);
            unknown.push((path.path.of.flag, plan::unknown(&outcomes)));
        }
        all.extend(outcomes);
    }
    (all, datapaths, unknown)
}

/// Attaches the programs of the control plane. `all_counted`: the data paths count the posts of all devices.
fn control_plane(options: &Options, all_counted: bool, attacher: &mut Attacher<'_>) -> Vec<Outcome> {
    let hooks = CONTROL_PLANE.iter().filter(|hook| options.wants(hook));
    hooks
        .map(|hook| {
            if hook.role == Role::Write && all_counted && !options.verb_times {
                Outcome::off(hook, Verdict::NotApplicable, too_costly())
            } else {
                attacher.one(hook)
            }
        })
        .collect()
}

/// Why the `write()` commands are not probed beside a data path. `cargo xtask bench --only G6` measures the
/// cost.
fn too_costly() -> Obstacle {
    Obstacle::new(
        CauseId::TooCostly,
        "off: it costs each post 1500 instructions more, of some 3800. The data path counts post_send, without errors and \
         times",
        "--verb-times turns this on",
    )
}

/// Whether every call of post_send shows as a doorbell of a QP, so that `write()` need not be probed for such
/// calls. It must be probed if any device has a driver whose QPs are not counted.
fn counts_all_posts(datapaths: &DataPaths, facts: &Facts, hardware: bool) -> bool {
    let mut loaded = DATA_PATHS
        .iter()
        .map(|path| path.path.of.driver)
        .filter(|driver| facts.modules.contains(*driver));
    !datapaths.is_empty() && !hardware && loaded.all(|driver| datapaths.of(driver).is_some())
}

/// Attaches the hooks that find QPs whose programs are to be probed, if the user asked for such probes.
/// Returns their outcomes, and why not all are attached. Their order relative to other hooks of the same
/// functions does not matter, because each of them remembers a QP that is not known yet.
fn find_users(options: &Options, attacher: &mut Attacher<'_>) -> (Vec<Outcome>, Option<Obstacle>) {
    let hooks = user::HOOKS.iter().filter(|_| options.uprobes.is_some());
    let outcomes: Vec<_> = hooks.map(|hook| attacher.one(hook)).collect();
    let off = outcomes.iter().find(|outcome| !outcome.is_on());
    let why = off.and_then(|outcome| outcome.obstacles.first().cloned());
    (outcomes, why)
}

/// The obstacle if the limit of open files would leave none for rdmatop's other reads.
fn no_files() -> Obstacle {
    Obstacle::new(
        CauseId::NoFiles,
        "no program is attached: each takes three open files and the limit is too low",
        "`ulimit -n 1024`",
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_without_an_object_says_what_was_missing_when_it_was_built() {
        let obstacle = built_without("no linker: `install one`; then build it again");
        assert_eq!(
            (obstacle.why.as_str(), obstacle.remedy.to_string().as_str()),
            (
                "this rdmatop was built without eBPF programs: no linker",
                "`install one`; then build it again"
            )
        );
        if object::embedded().is_none() {
            assert_ne!(no_object().remedy.to_string(), "", "build.rs told nothing");
        }
    }

    #[test]
    fn fences_are_there_from_linux_5_18_on_and_not_on_unknown_versions() {
        assert!(has_fence(Some((5, 18))) && has_fence(Some((7, 2))));
        assert!(!has_fence(Some((5, 17))) && !has_fence(None));
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
}
