//! A [`Hook`]: everything that user space knows about one program and the place that it is attached to.
//!
//! A new hook is one entry in a table of [`control`], [`datapath`], `work` or [`crate::user`].
//! All other code reads the entry.
pub mod control;
pub mod datapath;
#[cfg(test)]
pub(crate) mod reads_tests;
pub(crate) mod work;

use rdmatop_common::{offsets::CATEGORY, provider::Counted};
use rdmatop_model::event::EventKind;

/// Where and how the kernel enters a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The program runs at a function's first instruction.
    Kprobe,
    /// The program runs at a function's return.
    Kretprobe,
    /// The program runs at a tracepoint of `rdma_cma`.
    Tracepoint,
}

/// A second program for a hook, entered by fentry or fexit. It costs the traced function less than a kprobe,
/// needs the BTF of the hook's module (Linux 5.11) and keeps that module loaded. A hook has no such program
/// if it would miss events, or if the function is called too rarely to matter.
///
/// A kprobe program runs with preemption off, and the kernel skips it if any other kprobe program is running
/// on the CPU. The kernel skips an fentry program only if the same program is running on the CPU
/// (`prog->active`, kernel/bpf/trampoline.c): in a softirq that interrupts it, and on a preemptible kernel in
/// a task that preempts it. In storms of 40 000 events by four threads on two CPUs, fentry lost none in four
/// runs each on Linux 6.1 and 6.12 (`preempt=voluntary`), and 299, 767 and 734 in three runs on 7.2
/// (`preempt=lazy`), where kprobes lose none. So the control plane uses kprobes on such kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fast {
    /// Name in the object.
    pub program: &'static str,
    /// A later run finds what a skipped run missed, so it does no harm if the kernel preempts the program.
    pub heals: bool,
}

/// A second program for a tracepoint, which gets the tracepoint's arguments instead of the record that the
/// kernel makes of them. It is used where all offsets in `needs` are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw {
    /// Name in the object.
    pub program: &'static str,
    /// Offsets without which this program would tell no more than the first one.
    pub needs: Offsets,
    /// Offsets for single readings.
    pub wants: Offsets,
}

/// What a skipped run of a program costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// A record, which the program makes by itself. Skipped runs for objects that it ignores count too, so
    /// the number is an upper bound.
    Record,
    /// A record, which the program makes from what its entry program remembered. Skips of the entry program
    /// need no check: the return program then finds nothing and counts a loss.
    Return,
    /// Counts, which may be too low.
    Count,
    /// Records of work requests, unless the next visit of the QP finds them by the ring's index.
    Work,
    /// Something only if the kernel skipped other programs too. rdmatop names the program and the number of
    /// its skips, and adds them to no sum of losses.
    Named,
    /// Nothing: another program counts the loss or finds what this one missed.
    Nothing,
}

/// What depends on a hook besides the readings that it gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing else depends on the hook.
    Other,
    /// Its records keep the table of QPs up to date; without them each refresh needs a dump over netlink.
    QpTable,
    /// It sees every `write()` to a verbs file, including doorbells.
    Write,
    /// Without it, its data path counts nothing.
    Counts,
    /// It finds QPs of every data path to count. Without a data path it is not needed.
    Finds,
    /// It finds QPs whose programs are probed.
    Probes,
    /// It is about the memory of GPUs. Without GPUs it is not needed.
    Gpus,
}

/// Names of the globals that carry offsets, in groups that hooks share.
pub type Offsets = &'static [&'static [&'static str]];

fn flat(offsets: Offsets) -> impl Iterator<Item = &'static str> {
    offsets.iter().copied().flatten().copied()
}

/// What all hooks of a provider's data path share.
#[derive(Debug)]
pub struct Path {
    /// The provider. If its driver is not loaded, there is nothing to count, whichever module has the hook's
    /// function.
    pub of: &'static Counted,
    /// Offsets without which nothing can be counted.
    pub needs: &'static [&'static str],
}

/// A program, where it is attached, and what it is for.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Name in the object.
    pub program: &'static str,
    /// Where in the function, or that it is a tracepoint.
    pub entry: Entry,
    /// Function or tracepoint.
    pub symbol: &'static str,
    /// Module that has the function or tracepoint.
    pub module: &'static str,
    /// The data path that the hook belongs to.
    pub path: Option<&'static Path>,
    /// The hook belongs to no data path but gives slots to the QPs of all of them, so it reads the offsets
    /// that their hooks read.
    pub keeps_slots: bool,
    /// Readings of its data path's QPs that are unknown without the hook: bits of `slot_flag`.
    pub unknown_without: u32,
    /// What the user gets from the hook.
    pub gives: &'static str,
    /// The events that need the hook; none for a hook that only counts.
    pub events: &'static [EventKind],
    /// Offsets without which the hook is useless.
    pub needs: Offsets,
    /// Offsets for single readings, which show as unknown without them.
    pub wants: Offsets,
    /// Offsets that only some events need. A trace that does not ask for these events sets the offsets to
    /// unknown, so that the verifier removes the code that reads them.
    pub only_for: &'static [(&'static str, &'static [EventKind])],
    /// What is lost when the kernel skips the program.
    pub skip: Skip,
    /// What a skip may have done to the numbers, in words; `None` if the usual words for `skip` fit.
    pub cost: Option<&'static str>,
    /// The program that can replace this one, by fentry or fexit.
    pub fast: Option<Fast>,
    /// For a tracepoint: the program that replaces this one where the module has BTF.
    pub raw: Option<Raw>,
    /// What depends on the hook.
    pub role: Role,
}

impl Hook {
    /// An empty hook, for the tables to fill in.
    pub(super) const BASE: Self = Self {
        program: "",
        entry: Entry::Kprobe,
        symbol: "",
        module: "ib_core",
        path: None,
        keeps_slots: false,
        unknown_without: 0,
        gives: "",
        events: &[],
        needs: &[],
        wants: &[],
        only_for: &[],
        skip: Skip::Nothing,
        cost: None,
        fast: None,
        raw: None,
        role: Role::Other,
    };

    /// Whether the program runs at the return of a call.
    pub fn is_return(&self) -> bool {
        self.entry == Entry::Kretprobe
    }

    /// The offsets without which the hook is useless: its own, and those that its data path needs.
    pub fn needed(&self) -> impl Iterator<Item = &'static str> {
        let path = self.path.map_or(&[][..], |path| path.needs);
        flat(self.needs).chain(path.iter().copied())
    }

    /// The offsets for single readings.
    pub fn wanted(&self) -> impl Iterator<Item = &'static str> {
        flat(self.wants)
    }

    /// All offsets that any of the hook's programs reads.
    pub fn offsets(&self) -> impl Iterator<Item = &'static str> {
        let raw = self.raw.into_iter();
        let raw = raw.flat_map(|raw| flat(raw.needs).chain(flat(raw.wants)));
        self.needed().chain(self.wanted()).chain(raw)
    }

    /// The names of the hook's programs.
    pub fn programs(&self) -> impl Iterator<Item = &'static str> {
        let fast = self.fast.map(|fast| fast.program);
        let raw = self.raw.map(|raw| raw.program);
        [Some(self.program), fast, raw].into_iter().flatten()
    }

    /// The place as `rdmatop probes` shows it. `second`: by fentry or fexit, or at a raw tracepoint.
    pub fn place(&self, second: bool) -> String {
        let how = match self.entry {
            Entry::Kprobe if second => "fentry",
            Entry::Kprobe => "kprobe",
            Entry::Kretprobe if second => "fexit",
            Entry::Kretprobe => "kretprobe",
            Entry::Tracepoint if second => "raw_tracepoint",
            Entry::Tracepoint => return format!("tracepoint:{CATEGORY}:{}", self.symbol),
        };
        format!("{how}:{}", self.symbol)
    }

    /// The name of the program that runs; `second`: as for [`Hook::place`].
    pub fn runs(&self, second: bool) -> &'static str {
        let mut names = self.programs();
        if second { names.last() } else { names.next() }.unwrap_or(self.program)
    }

    /// What a skip of the program may have done to the numbers, in words that follow the program's name.
    pub fn cost_of_a_skip(&self) -> String {
        match (self.cost, self.skip) {
            (Some(cost), _) => cost.to_owned(),
            (None, Skip::Count) => format!("as many may be missing: {}", self.gives),
            (None, _) => format!("as many events may be missing: {}", self.gives),
        }
    }
}

impl Raw {
    /// The offsets without which the program does not run.
    pub fn needed(self) -> impl Iterator<Item = &'static str> {
        flat(self.needs)
    }

    /// The offsets for single readings.
    pub fn wanted(self) -> impl Iterator<Item = &'static str> {
        flat(self.wants)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rdmatop_common::offsets::{OFFSETS, SIGNS, TRACEPOINT_FIELDS};

    use super::{
        control::CONTROL_PLANE,
        datapath::{DATA_PATHS, all_hooks},
        *,
    };
    use crate::{load::object, user};

    fn hook(program: &str) -> &'static Hook {
        all_hooks().find(|hook| hook.program == program).unwrap()
    }

    /// The offsets that a hook itself names, without those of its data path.
    fn own(hook: &Hook) -> BTreeSet<&'static str> {
        hook.needs
            .iter()
            .chain(hook.wants)
            .copied()
            .flatten()
            .copied()
            .collect()
    }

    /// The offsets that hooks which keep slots may read: all that any of these hooks names.
    fn of_slots() -> BTreeSet<&'static str> {
        let hooks = all_hooks().filter(|hook| hook.path.is_some() || hook.keeps_slots);
        let paths = DATA_PATHS.iter().flat_map(|path| path.path.needs).copied();
        hooks.flat_map(own).chain(paths).collect()
    }

    fn known() -> BTreeSet<&'static str> {
        let fields = TRACEPOINT_FIELDS.iter().map(|field| field.global);
        OFFSETS.iter().map(|offset| offset.global).chain(fields).collect()
    }

    #[test]
    fn hooks_name_offsets_that_exist_and_each_offset_has_a_hook() {
        let mut named: BTreeSet<_> = all_hooks().flat_map(Hook::offsets).collect();
        assert!(
            SIGNS.iter().all(|sign| named.insert(sign)),
            "a sign is no reading"
        );
        assert_eq!(named, known());
        for hook in all_hooks() {
            for (global, _) in hook.only_for {
                assert!(of_slots().contains(global), "{}: {global}", hook.program);
            }
        }
    }

    /// Compares with the object: the read-only globals that each program's code refers to.
    #[test]
    fn a_program_reads_what_its_hook_names_and_nothing_else() {
        let Some(object) = object::embedded() else {
            println!("skipped: this build carries no eBPF object, so that no program can be looked at");
            return;
        };
        let mut reads = reads_tests::by_program(&object);
        let mut of_paths: BTreeMap<&str, usize> = BTreeMap::new();
        for hook in all_hooks() {
            for program in hook.programs() {
                let raw = hook.raw.filter(|raw| raw.program == program);
                let own = match raw {
                    Some(raw) => raw.needed().chain(raw.wanted()).collect(),
                    None => own(hook),
                };
                let mut read = reads
                    .remove(program)
                    .unwrap_or_else(|| panic!("no program {program}"));
                read.retain(|global| !SIGNS.contains(global));
                let unread: Vec<_> = own.difference(&read).copied().collect();
                assert!(unread.is_empty(), "{program} does not read {unread:?}");
                for global in &read {
                    *of_paths.entry(global).or_default() += 1;
                }
                let mut named = own;
                if hook.path.is_some() || hook.keeps_slots {
                    named.extend(of_slots());
                }
                let unnamed: Vec<_> = read.difference(&named).copied().collect();
                assert!(
                    unnamed.is_empty(),
                    "{program} reads {unnamed:?}, which no hook names"
                );
            }
        }
        for program in user::PROGRAMS {
            assert!(
                reads.remove(program).is_none_or(|read| read.is_empty()),
                "{program} reads a struct of the kernel"
            );
        }
        assert!(reads.is_empty(), "without a hook: {:?}", reads.keys());
        for path in DATA_PATHS {
            assert!(path.path.needs.contains(&path.path.of.sign));
            for global in path.path.needs {
                assert!(of_paths.contains_key(global), "no program reads {global}");
            }
        }
    }

    #[test]
    fn no_program_stands_for_two_hooks() {
        let mut programs = BTreeSet::new();
        for hook in all_hooks() {
            for program in hook.programs() {
                assert!(programs.insert(program), "{program}");
            }
            // The kernel keeps no more characters of the name of a program.
            assert!(
                hook.fast.is_none_or(|fast| fast.program.len() <= 15),
                "{}",
                hook.program
            );
            let is_tracepoint = hook.entry == Entry::Tracepoint;
            assert!(
                hook.fast.is_none() || !is_tracepoint,
                "{} cannot be entered otherwise",
                hook.program
            );
            assert!(hook.raw.is_none() || is_tracepoint, "{}", hook.program);
        }
    }

    #[test]
    fn both_ends_of_a_call_agree() {
        for back in CONTROL_PLANE.iter().filter(|hook| hook.entry == Entry::Kretprobe) {
            let there = CONTROL_PLANE
                .iter()
                .find(|hook| hook.entry == Entry::Kprobe && hook.symbol == back.symbol);
            let there = there.unwrap_or_else(|| panic!("{} has no entry", back.program));
            assert_eq!(there.fast.is_some(), back.fast.is_some(), "{}", back.program);
            assert_eq!(
                (there.module, there.events, there.role),
                (back.module, back.events, back.role),
                "{}",
                back.program
            );
            // Exactly one program counts a skipped call.
            assert_eq!(there.skip, Skip::Nothing, "{}", there.program);
            assert!(
                matches!(back.skip, Skip::Return | Skip::Count),
                "{}",
                back.program
            );
        }
    }

    #[test]
    fn a_skip_that_costs_something_says_which_numbers_or_events() {
        let words = |program: &str| hook(program).cost_of_a_skip();
        assert_eq!(words("kp_xmit"), "as many may be missing: retransmitted packets");
        assert_eq!(
            words("modify_qp_ret"),
            "as many events may be missing: QP state changes, errno and duration"
        );
        assert!(words("cmd_verbs_ret").starts_with("as many may be missing"));
        // A skip that the next run makes good must not be reported as missing.
        assert!(!words("kp_completer").contains("short"));
        let skip = |program: &str| hook(program).skip;
        assert_eq!(
            (skip("restrack_add"), skip("cm_event")),
            (Skip::Record, Skip::Record)
        );
        for hot in all_hooks().filter(|hook| hook.path.is_some()) {
            if hot.events.is_empty() {
                assert_eq!(hot.skip, Skip::Count, "{}", hot.program);
            } else {
                let heals = matches!(hot.skip, Skip::Work | Skip::Named | Skip::Nothing);
                assert!(heals, "{}", hot.program);
            }
        }
    }
}
