//! The facts that the plan is made from, and how they are read.
use std::collections::{BTreeSet, HashMap};

use crate::{
    hooks::datapath::{self, DATA_PATHS},
    offsets::{self, BtfSet, ResolvedOffsets},
    plan::preempt,
};
use rdmatop_base::order::Gather as _;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{gpu, platform::find_symbols, root::Root};

/// The facts that the plan is made from.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Modules with a directory in /sys/module.
    pub modules: BTreeSet<String>,
    /// How many functions in /proc/kallsyms have each wanted name. `None` on a kernel that itself refuses a
    /// name that does not exist or is ambiguous.
    pub symbols: Option<HashMap<String, usize>>,
    /// Why tracefs cannot be read, and the remedy.
    pub without_tracefs: Option<Obstacle>,
    /// Why the kernel can preempt an fentry program; `None` when it cannot.
    pub preempts: Option<Obstacle>,
    /// Globals whose offset is known.
    pub offsets: BTreeSet<&'static str>,
    /// Whether programs may call `bpf_loop`, as those do that walk lists of work requests.
    pub loops: bool,
    /// Whether NVIDIA's driver has a GPU.
    pub gpus: bool,
}

impl Facts {
    /// Whether a driver is loaded whose work requests can be counted.
    pub fn counts(&self) -> bool {
        DATA_PATHS
            .iter()
            .any(|path| self.modules.contains(path.path.of.driver))
    }

    /// Reads the facts about the kernel below `root`.
    pub(crate) fn read(root: &Root, resolved: &ResolvedOffsets, btf: &BtfSet) -> Result<Self, Obstacle> {
        let hooks = datapath::all_hooks;
        let modules = hooks()
            .map(|h| h.module)
            .filter(|m| root.sys("module").join(m).is_dir());
        let symbols = if refuses_ambiguous_names(root) {
            None
        } else {
            let symbols = symbols(root, hooks().map(|hook| hook.symbol));
            Some(symbols.ok_or_else(no_symbols)?)
        };
        Ok(Self {
            modules: modules.map(str::to_owned).collect(),
            symbols,
            without_tracefs: offsets::without_tracefs(root),
            preempts: preempt::why(root),
            offsets: resolved
                .values
                .keys()
                .copied()
                .filter(|global| resolved.has(global))
                .collect(),
            // Linux 5.17 has it, and older ones of distributions that took it over.
            loops: root.kernel_version().is_some_and(|version| version >= (5, 17))
                || btf.has_function("bpf_loop"),
            gpus: gpu::are_listed(root),
        })
    }
}

/// The obstacle if rdmatop cannot read which functions the kernel has, and how many have the same name.
fn no_symbols() -> Obstacle {
    Obstacle::new(
        CauseId::NoSymbols,
        "cannot tell which functions the kernel has: /proc/kallsyms is not readable",
        "`sudo mount -t proc proc /proc`, until the next boot",
    )
}

/// Whether the kernel refuses to probe a function if several have its name. `create_local_trace_kprobe`
/// counts the names from Linux 6.7 on; stable kernels got that at different times. Other kernels would probe
/// the first such function.
fn refuses_ambiguous_names(root: &Root) -> bool {
    root.kernel_version().is_some_and(|version| version >= (6, 7))
}

/// How many functions have each name; `None` if /proc/kallsyms cannot be read. The kernel formats some 200
/// 000 lines one by one, which takes half the time of rdmatop's start.
fn symbols<'a>(root: &Root, names: impl Iterator<Item = &'a str>) -> Option<HashMap<String, usize>> {
    let names: Vec<&str> = names.gather::<BTreeSet<_>>().into_iter().collect();
    let found = find_symbols(root, &names)?;
    let count = |(name, homes): (String, Vec<_>)| (name, homes.len());
    Some(found.into_iter().map(count).collect())
}
