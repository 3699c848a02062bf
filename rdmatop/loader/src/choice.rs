//! What a session loads and attaches: the programs and the sizes of maps that follow from the user's choices.

use std::collections::{BTreeSet, HashMap};

use aya::maps::{Array, Map, MapData};
use rdmatop_common::{names::map, offsets::SIGN_OF_TASK_BTF, wr::WrFilter};

use super::{
    attach::{Attacher, explain},
    control::CONTROL_PLANE,
    datapath::{self, Attach, DATA_PATHS},
    hook::{Hook, Role},
    plan::{self, Facts, Outcome},
    scope::Scope,
    session::at,
    unpreempted::Unpreempted,
    user::{self, UserOptions},
    work::WORK_HOOKS,
};
use rdmatop_model::{
    cause::{CauseId, Obstacle},
    input::{DataPaths, Verdict},
};

/// The user's choices.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of the ring buffer, a power of two and a multiple of the page size. Tests make it tiny.
    pub ring_bytes: u32,
    /// Which programs to attach to hooks.
    pub attach: Attach,
    /// How many QPs to have room for. `None`: twice as many as exist at the start, with a minimum.
    pub max_qps: Option<u32>,
    /// How many slots to have in any case. Tests make it tiny.
    pub slots: Option<u32>,
    /// How many QPs the tables are to hold in any case. Tests make it tiny.
    pub known_qps: Option<u32>,
    /// What the session is to deliver.
    pub scope: Scope,
    /// Time `write()` commands even where that slows down every doorbell: with a data path, and in a trace.
    pub verb_times: bool,
    /// Probe programs whose posts bypass the kernel.
    pub uprobes: Option<UserOptions>,
    /// Count work requests in the kernel where possible. Tests switch it off to test probes on programs.
    pub datapaths: bool,
    /// Make records of the work requests that the filter selects; the number is the size of their ring buffer
    /// in bytes. With `None` the programs that make them are not loaded.
    pub work: Option<(WrFilter, u32)>,
}

impl Options {
    /// Whether these options need a hook.
    pub(super) fn wants(&self, hook: &Hook) -> bool {
        // A trace shows no counters, so it does not slow down doorbells unless the user asks for that.
        let dear = hook.role == Role::Write && !self.scope.counters();
        self.scope.wants(hook) && (!dear || self.verb_times)
    }

    /// Whether hooks of kernel functions report work requests. Tests can leave all to probes on programs.
    pub(super) fn kernel_work(&self) -> bool {
        self.work.is_some() && self.datapaths
    }

    /// Whether probes on programs report work requests.
    pub(super) fn user_work(&self) -> bool {
        self.work.is_some() && self.uprobes.is_some()
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ring_bytes: 512 << 10,
            attach: Attach::Auto,
            max_qps: None,
            slots: None,
            known_qps: None,
            scope: Scope::All,
            verb_times: false,
            uprobes: None,
            datapaths: true,
            work: None,
        }
    }
}

/// Programs that may be loaded. A kprobe program is used where the kernel does not accept the fentry program.
pub(super) fn programs(options: &Options) -> BTreeSet<&'static str> {
    let control = CONTROL_PLANE.iter().filter(|hook| options.wants(hook));
    let hot = datapath::hooks().filter(|_| options.scope.counters());
    let work = WORK_HOOKS.iter().filter(|_| options.kernel_work());
    let each = control.chain(hot).chain(work).flat_map(|hook| {
        let fast = hook.fast.filter(|_| options.attach == Attach::Fentry);
        let raw = hook.raw.map(|raw| raw.program);
        [Some(hook.program), fast.map(|fast| fast.program), raw]
    });
    let hooks = user::HOOKS.iter().map(|hook| hook.program);
    let user = options.uprobes.map(|wanted| hooks.chain(user::programs(wanted)));
    each.flatten().chain(user.into_iter().flatten()).collect()
}

/// The offsets that the programs of a trace read, so that rdmatop need not read the BTF of drivers. `None` if
/// the programs may read all offsets.
pub(super) fn read_offsets(options: &Options) -> Option<BTreeSet<&'static str>> {
    if options.scope.counters() || options.kernel_work() || options.uprobes.is_some() {
        return None;
    }
    let loaded = programs(options);
    let hooks = CONTROL_PLANE.iter().filter(|hook| loaded.contains(hook.program));
    let named = hooks.flat_map(Hook::offsets);
    // The other sign matters only where counters are read.
    Some(named.chain([SIGN_OF_TASK_BTF]).collect())
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
pub(super) fn counts_all_posts(datapaths: &DataPaths, facts: &Facts, hardware: bool) -> bool {
    let mut loaded = DATA_PATHS
        .iter()
        .map(|path| path.path.driver)
        .filter(|driver| facts.modules.contains(*driver));
    !datapaths.is_empty() && !hardware && loaded.all(|driver| datapaths.of(driver).is_some())
}

/// Attaches the hooks that find QPs whose programs are to be probed, if the user asked for such probes.
/// Returns their outcomes, and why not all are attached. Their order relative to other hooks of the same
/// functions does not matter, because each of them remembers a QP that is not known yet.
pub(super) fn find_users(options: &Options, attacher: &mut Attacher<'_>) -> (Vec<Outcome>, Option<Obstacle>) {
    let hooks = user::HOOKS.iter().filter(|_| options.uprobes.is_some());
    let outcomes: Vec<_> = hooks.map(|hook| attacher.one(hook)).collect();
    let off = outcomes.iter().find(|outcome| !outcome.is_on());
    let why = off.and_then(|outcome| outcome.obstacles.first().cloned());
    (outcomes, why)
}

/// How many QPs there are at the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Existing {
    pub(super) all: u64,
    /// The QPs of software devices.
    pub(super) software: u64,
}

/// How many QPs the maps have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// QPs that can be known at one time, idle ones included.
    known: u32,
    /// QPs that can be counted at one time: see `counters::place`.
    pub(super) slots: u32,
}

/// Bytes of the counters of a QP and of its data path, with its entries in QUEUE_SLOTS.
const SLOT: u64 = 3400;
/// Bytes of the entries of a QP in QP_INDEX and QPN_INDEX, if the kernel makes entries beforehand. Else a QP
/// takes two buckets.
const KNOWN: u64 = 320;
const KNOWN_ON_DEMAND: u64 = 32;

impl Sizes {
    /// The fewest QPs that the tables hold, on kernels that make entries on demand and on others. The QPs of
    /// one user must not easily take all the room, and all maps of a view must take less than 4 MiB. So there
    /// is more room where there are no slots, and most in a trace, whose ring buffer is larger than its
    /// tables.
    const LEAST_KNOWN: [u32; 2] = [16_384, 2048];
    const LEAST_WITHOUT_SLOTS: [u32; 2] = [32_768, 4096];
    const LEAST_OF_TRACE: [u32; 2] = [131_072, 16_384];
    /// The largest sizes that rdmatop chooses by itself.
    const MOST_KNOWN: u32 = 131_072;
    const LEAST_SLOTS: u32 = 256;
    const MOST_SLOTS: u32 = 16_384;

    /// `counted`: a provider is loaded whose work requests the kernel side counts.
    pub(super) fn of(options: &Options, existing: Existing, counted: bool, on_demand: bool) -> Self {
        let twice = |existing: u64| u32::try_from(existing.saturating_mul(2)).unwrap_or(u32::MAX);
        let [tables, small] = match options.scope {
            Scope::Events(_) => Self::LEAST_OF_TRACE,
            Scope::All if counted => Self::LEAST_KNOWN,
            Scope::All => Self::LEAST_WITHOUT_SLOTS,
        };
        let least = if on_demand { tables } else { small };
        // A user who asks for room for few QPs wants to save memory. The slots take most of it, so only they
        // shrink; the tables keep their usual size.
        let known = twice(existing.all).clamp(least, Self::MOST_KNOWN);
        let slots = twice(existing.software).clamp(Self::LEAST_SLOTS, Self::MOST_SLOTS);
        Self {
            known: options
                .known_qps
                .unwrap_or(known.max(options.max_qps.unwrap_or(0))),
            slots: if counted {
                options.slots.or(options.max_qps).unwrap_or(slots)
            } else {
                1
            },
        }
    }

    /// About how many bytes the maps of these sizes take.
    pub(super) fn bytes(self, on_demand: bool) -> u64 {
        let known = if on_demand { KNOWN_ON_DEMAND } else { KNOWN };
        u64::from(self.slots) * SLOT + u64::from(self.known) * known
    }

    /// Entries of the maps whose size is set at load.
    pub(super) fn entries(self, options: &Options) -> Vec<(&'static str, u32)> {
        let work = options.work.map(|(_, bytes)| (map::WR_EVENTS, bytes));
        [
            (map::EVENTS, options.ring_bytes),
            (map::QP_INDEX, self.known),
            (map::QPN_INDEX, self.known),
            (map::QP_SLOTS, self.slots),
            (map::QP_PATHS, self.slots),
            (map::USED_SLOTS, self.slots),
            (map::QUEUE_SLOTS, self.slots.saturating_mul(2)),
        ]
        .into_iter()
        .chain(work)
        .collect()
    }
}

/// Passes the filter for work requests to the kernel side, before any program runs.
pub(super) fn choose_work(maps: &mut HashMap<String, Map>, filter: WrFilter) -> Result<(), Obstacle> {
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

/// The data paths that are attached.
pub(super) struct Counting {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) datapaths: DataPaths,
    /// Readings that are unknown for each provider's QPs, because a program of its data path is not attached.
    pub(super) unknown: Vec<(u32, u32)>,
}

/// Attaches the programs that count work requests, where they are wanted.
pub(super) fn count(options: &Options, attacher: &mut Attacher<'_>) -> Counting {
    let mut all = Counting {
        outcomes: Vec::new(),
        datapaths: DataPaths::default(),
        unknown: Vec::new(),
    };
    for path in DATA_PATHS
        .iter()
        .filter(|_| options.scope.counters() && options.datapaths)
    {
        let (outcomes, how) = attacher.datapath(path);
        if let Some(how) = how {
            all.datapaths = all.datapaths.and(path.path.driver, how);
            all.unknown.push((path.path.provider, plan::unknown(&outcomes)));
        }
        all.outcomes.extend(outcomes);
    }
    all
}

/// Attaches the programs of the control plane. `all_counted`: the data paths count the posts of all devices.
pub(super) fn control_plane(
    options: &Options,
    all_counted: bool,
    attacher: &mut Attacher<'_>,
) -> Vec<Outcome> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(options: &Options, all: u64, software: u64, counted: bool) -> (u32, u32) {
        let sizes = Sizes::of(options, Existing { all, software }, counted, true);
        (sizes.known, sizes.slots)
    }

    #[test]
    fn there_is_room_for_twice_the_qps_and_slots_where_they_are_counted() {
        let default = Options::default();
        assert_eq!(sizes(&default, 100, 100, true), (16_384, 256));
        assert_eq!(sizes(&default, 10_000, 1000, true), (20_000, 2000));
        assert_eq!(sizes(&default, 10_000, 0, true), (20_000, 256), "all of hardware");
        assert_eq!(sizes(&default, 20_000, 0, false), (40_000, 1));
        assert_eq!(sizes(&default, 100, 0, false), (32_768, 1));
        assert_eq!(sizes(&default, u64::MAX, u64::MAX, true), (131_072, 16_384));
        let old = Sizes::of(&default, Existing::default(), true, false);
        assert_eq!((old.known, old.slots), (2048, 256));
        let trace = Options {
            scope: Scope::Events(Vec::new()),
            ..Options::default()
        };
        assert_eq!(sizes(&trace, 100, 0, false), (131_072, 1));
    }

    #[test]
    fn what_is_asked_for_is_made_and_a_test_can_make_less() {
        let asked = Options {
            max_qps: Some(100_000),
            ..Options::default()
        };
        assert_eq!(sizes(&asked, 7, 7, true), (100_000, 100_000));
        assert_eq!(sizes(&asked, 7, 7, false), (100_000, 1));
        let few = Options {
            max_qps: Some(10),
            ..Options::default()
        };
        assert_eq!(sizes(&few, 7, 7, true), (16_384, 10), "the tables do not shrink");
        let tiny = Options {
            slots: Some(8),
            known_qps: Some(64),
            ..asked
        };
        assert_eq!(sizes(&tiny, 7, 7, true), (64, 8));
    }

    #[test]
    fn the_default_maps_are_small() {
        for on_demand in [false, true] {
            let sizes = Sizes::of(&Options::default(), Existing::default(), true, on_demand);
            assert!(sizes.bytes(on_demand) < 2 << 20, "{}", sizes.bytes(on_demand));
        }
    }
}
