//! What a session loads and attaches: the programs and the sizes of maps that the user's choices ask for.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use aya::maps::{Array, Map, MapData};
use rdmatop_common::{
    counters::{
        DEFAULT_SLOTS, SLOTS_A_CHUNK, VERB_ENTRIES, VERB_ERROR_ENTRIES, VERB_ERRORS_A_CHUNK, VERBS_A_CHUNK,
        room,
    },
    names::map,
    offsets::SIGN_OF_TASK_BTF,
    wr::WrFilter,
};

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
use crate::model::{
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
    /// How many existing QPs can have moved. Tests make it tiny.
    pub slots: u32,
    /// How many QPs can be known at one time, if fewer than `room::KNOWN_QPS`. Tests make it tiny.
    pub known_qps: u32,
    /// What the session is to deliver.
    pub scope: Scope,
    /// Time `write()` commands even where that slows down every doorbell: beside a data path, and in a trace.
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
        // A trace shows no counters: it does not slow down doorbells unless the user asks for it.
        let dear = hook.role == Role::Write && !self.scope.counters();
        self.scope.wants(hook) && (!dear || self.verb_times)
    }

    /// Whether the kernel's own functions report work requests. Tests leave all to the probes on programs.
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
        // 4 MiB hold some 20 000 QP records: 0.4 s of the fastest storm measured (50 000 a second).
        Self {
            ring_bytes: 4 << 20,
            attach: Attach::Auto,
            slots: DEFAULT_SLOTS,
            known_qps: u32::MAX,
            scope: Scope::All,
            verb_times: false,
            uprobes: None,
            datapaths: true,
            work: None,
        }
    }
}

/// Programs that may be loaded. A kprobe program replaces an fentry program that the kernel does not accept.
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

/// The offsets that the programs of a trace read, so that rdmatop need not read the BTF of drivers; `None`:
/// programs may read all.
pub(super) fn read_offsets(options: &Options) -> Option<BTreeSet<&'static str>> {
    if options.scope.counters() || options.kernel_work() || options.uprobes.is_some() {
        return None;
    }
    let loaded = programs(options);
    let hooks = CONTROL_PLANE.iter().filter(|hook| loaded.contains(hook.program));
    let named = hooks.flat_map(Hook::offsets);
    // The other sign is about counters.
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

/// Whether every call of post_send shows as a doorbell of a QP: then `write()` need not be probed for such
/// calls. It must be if any device's driver is not counted.
pub(super) fn counts_all_posts(datapaths: &DataPaths, facts: &Facts, hardware: bool) -> bool {
    let mut loaded = DATA_PATHS
        .iter()
        .map(|path| path.path.driver)
        .filter(|driver| facts.modules.contains(*driver));
    !datapaths.is_empty() && !hardware && loaded.all(|driver| datapaths.of(driver).is_some())
}

/// The growing maps, and how many inner maps each may have. `slots`: how many QPs can be counted at most.
pub(super) fn growing(slots: u32) -> [(&'static str, u32); 9] {
    [
        (map::EVENTS, 1),
        (map::QP_SLOTS, slots.div_ceil(SLOTS_A_CHUNK)),
        (map::VERBS, VERB_ENTRIES / VERBS_A_CHUNK),
        (map::VERB_ERRORS, VERB_ERROR_ENTRIES / VERB_ERRORS_A_CHUNK),
        (map::QP_INDEX, room::GENERATIONS),
        (map::QPN_INDEX, room::GENERATIONS),
        (map::QUEUE_SLOTS, room::GENERATIONS),
        (map::VERB_INDEX, room::GENERATIONS),
        (map::VERB_ERROR_INDEX, room::GENERATIONS),
    ]
}

/// Size of the first ring buffer in bytes.
pub(super) fn first_ring(options: &Options) -> u32 {
    /// Holds two and a half thousand QP records: those of four naps of the reader in the fastest storm
    /// measured.
    const FIRST: u32 = 512 << 10;
    /// A trace shows only records, so nothing makes up for a lost one. This holds the records of 80 ms of
    /// that storm if the reader gets no CPU; the trace gets its whole ring buffer [`TRACE_SETTLES`] after its
    /// start.
    const FIRST_OF_TRACE: u32 = 1 << 20;
    match options.scope {
        Scope::All => options.ring_bytes.min(FIRST),
        Scope::Events(_) => options.ring_bytes.min(FIRST_OF_TRACE),
    }
}

/// When a trace replaces its first ring buffer by one of the full size, after it began to count. To make 16
/// MiB and to map them takes 12 million instructions, a tenth of what a trace needs until its first event.
pub(super) const TRACE_SETTLES: Duration = Duration::from_millis(100);

/// Attaches the hooks that find QPs whose programs are to be probed, if the user asked for that. Returns
/// their outcomes, and why not all are attached. Their order relative to other hooks of the same functions
/// does not matter, because each of them remembers a QP that is not known yet.
pub(super) fn find_users(options: &Options, attacher: &mut Attacher<'_>) -> (Vec<Outcome>, Option<Obstacle>) {
    let hooks = user::HOOKS.iter().filter(|_| options.uprobes.is_some());
    let outcomes: Vec<_> = hooks.map(|hook| attacher.one(hook)).collect();
    let off = outcomes.iter().find(|outcome| !outcome.is_on());
    let why = off.and_then(|outcome| outcome.obstacles.first().cloned());
    (outcomes, why)
}

/// Entries of maps that do not grow, if at most `most` QPs are counted, and the size of the first ring
/// buffer.
pub(super) fn entries(options: &Options, most: u32) -> Vec<(&'static str, u32)> {
    let work = options.work.map(|(_, bytes)| (map::WR_EVENTS, bytes));
    [(map::EVENTS, first_ring(options)), (map::USED_SLOTS, most)]
        .into_iter()
        .chain(work)
        .collect()
}

/// Passes the filter for work requests to the kernel side, before any program runs.
pub(super) fn choose_work(maps: &mut HashMap<String, Map>, filter: WrFilter) -> Result<(), Obstacle> {
    const WORDS: usize = size_of::<WrFilter>() / 8;
    let none = || Obstacle::new(CauseId::Defect, "the object has no WR_FILTER map", "");
    let words: [u64; WORDS] = zerocopy::transmute!(filter);
    let map = maps.get_mut(map::WR_FILTER).ok_or_else(none)?;
    let mut array: Array<&mut MapData, [u64; WORDS]> =
        Array::try_from(map).map_err(|error| explain(&error))?;
    // Another session may be counting.
    let _unpreempted = Unpreempted::begin();
    array
        .set(0, words, 0)
        .map_err(|error| at("cannot say which work requests are asked for", explain(&error)))
}

/// The data paths that are attached.
pub(super) struct Counting {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) datapaths: DataPaths,
    /// What is not known of each provider's QPs, because a program of its data path is not attached.
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
