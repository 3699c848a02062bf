//! The record of a hook: all that user space knows of one program and of the place that it is attached to.
//!
//! A new hook is one record in [`super::control`] or in a data path of [`super::datapath`]. Everything else asks the
//! record.

use crate::model::event::EventKind;

/// How a program is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// At a function's first instruction.
    Kprobe,
    /// At a function's return.
    Kretprobe,
    /// At a function's first instruction, through its BTF.
    Fentry,
    /// At a function's return, through its BTF.
    Fexit,
    /// At a tracepoint of a category.
    Tracepoint {
        /// Category, a directory under tracefs' events.
        category: &'static str,
    },
}

impl Entry {
    /// The entry through BTF at the same place.
    #[must_use]
    pub fn fast(self) -> Self {
        match self {
            Self::Kprobe => Self::Fentry,
            Self::Kretprobe => Self::Fexit,
            other => other,
        }
    }
}

/// A second program of a hook, entered by fentry or fexit. It costs the traced program less than a kprobe, needs the BTF
/// of the hook's module (Linux 5.11) and keeps that module loaded. A hook where it would lose something, or whose call is
/// too rare for it to matter, has none.
///
/// A kprobe program runs with preemption off, and the kernel skips it where any other one is running on the CPU. An
/// fentry program is skipped only where the same one is running on the CPU (`prog->active`, kernel/bpf/trampoline.c): for a
/// softirq that interrupts it, and on a preemptible kernel for a task that takes over. In storms of 40 000 events by four
/// threads on two CPUs none was lost in four of each on Linux 6.1 and 6.12 (`preempt=voluntary`), and 299, 767 and 734 in
/// three on 7.2 (`preempt=lazy`), where kprobes lose none. So there the control plane stays with kprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fast {
    /// Name in the object.
    pub program: &'static str,
    /// A run that is skipped is made good by a later one: it may be preempted.
    pub heals: bool,
}

/// What a skipped run of a program costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// A record: the program makes it alone. What it ignores (other kinds of object) counts too, so this is a bound.
    Record,
    /// A record: the program makes it from what its entry program remembered. The entry program's own skips are not
    /// looked at, because the return then finds nothing remembered and counts that itself.
    Return,
    /// Counts that may be short.
    Count,
    /// Nothing that something else does not count or make good.
    Nothing,
}

/// What depends on a hook beside its own readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Nothing.
    Other,
    /// The table of QPs is kept by its records: without it a dump is needed for each look.
    QpTable,
    /// It sees every `write()` to a verbs file, doorbells among them.
    Write,
    /// Its data path counts nothing without it.
    Counts,
    /// It finds QPs to count, of every data path: without any there is nothing for it to do.
    Finds,
}

/// Names of globals that carry offsets, in groups that hooks share.
pub type Offsets = &'static [&'static [&'static str]];

/// The part that all hooks of a provider's data path share.
#[derive(Debug)]
pub struct Path {
    /// The provider's driver, a module: without it there is nothing to count, wherever a hook's function is.
    pub driver: &'static str,
    /// What users call the provider.
    pub name: &'static str,
    /// What its slots carry: one of `slot_flag::provider`.
    pub provider: u32,
    /// Offsets without which nothing of it can be counted.
    pub needs: &'static [&'static str],
}

/// A program, what it hooks and what for.
#[derive(Clone, Copy, Debug)]
pub struct Hook {
    /// Name in the object.
    pub program: &'static str,
    /// How.
    pub entry: Entry,
    /// Function or tracepoint.
    pub symbol: &'static str,
    /// Module that has it.
    pub module: &'static str,
    /// The data path that it belongs to.
    pub path: Option<&'static Path>,
    /// It belongs to no data path, and keeps the slots of all: it reads what their hooks read.
    pub keeps_slots: bool,
    /// What is not known of its data path's QPs without it: bits of `slot_flag`.
    pub unknown_without: u32,
    /// What the user gets from it.
    pub gives: &'static str,
    /// The events that it is needed for; none for one that only counts.
    pub events: &'static [EventKind],
    /// Offsets without which it is pointless.
    pub needs: Offsets,
    /// Offsets that make single readings; without them those show as unknown.
    pub wants: Offsets,
    /// Offsets that only some events need. Of a trace that does not ask for these they are taken away, so that the
    /// verifier leaves out what reads them; none of a counter has events.
    pub only_for: &'static [(&'static str, &'static [EventKind])],
    /// What it costs when the kernel skips it.
    pub skip: Skip,
    /// What that may have cost the numbers, in words, where these are not those of `skip`.
    pub cost: Option<&'static str>,
    /// The program that stands for it by fentry or fexit.
    pub fast: Option<Fast>,
    /// What depends on it.
    pub role: Role,
}

impl Hook {
    /// A hook of nothing, for the tables to fill in.
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
        role: Role::Other,
    };

    /// Whether it is the return of a call.
    pub fn is_return(&self) -> bool {
        matches!(self.entry, Entry::Kretprobe | Entry::Fexit)
    }

    /// The offsets without which it is pointless: its own, and what its data path needs.
    pub fn needed(&self) -> impl Iterator<Item = &'static str> {
        let path = self.path.map_or(&[][..], |path| path.needs);
        self.needs.iter().copied().flatten().chain(path).copied()
    }

    /// The offsets that make single readings.
    pub fn wanted(&self) -> impl Iterator<Item = &'static str> {
        self.wants.iter().copied().flatten().copied()
    }

    /// Where it sits, as `rdmatop probes` spells it; `fast`: entered by fentry or fexit.
    pub fn place(&self, fast: bool) -> String {
        let how = match if fast { self.entry.fast() } else { self.entry } {
            Entry::Kprobe => "kprobe",
            Entry::Kretprobe => "kretprobe",
            Entry::Fentry => "fentry",
            Entry::Fexit => "fexit",
            Entry::Tracepoint { category } => return format!("tracepoint:{category}:{}", self.symbol),
        };
        format!("{how}:{}", self.symbol)
    }

    /// The name of the program that runs.
    pub fn runs(&self, fast: bool) -> &'static str {
        match self.fast.filter(|_| fast) {
            Some(fast) => fast.program,
            None => self.program,
        }
    }

    /// What it may have cost the numbers when the kernel skipped the program, in words that follow its name.
    pub fn cost_of_a_skip(&self) -> String {
        match (self.cost, self.skip) {
            (Some(cost), _) => cost.to_owned(),
            (None, Skip::Count) => format!("short by as many may be: {}", self.gives),
            (None, _) => format!("as many events may be missing: {}", self.gives),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rdmatop_common::offsets::{OFFSETS, SIGNS, TRACEPOINT_FIELDS};

    use super::{
        super::{
            control::CONTROL_PLANE,
            datapath::{DATA_PATHS, all_hooks},
            object, reads,
        },
        *,
    };

    fn hook(program: &str) -> &'static Hook {
        all_hooks().find(|hook| hook.program == program).unwrap()
    }

    /// What a hook names of itself, without what its data path needs.
    fn own(hook: &Hook) -> BTreeSet<&'static str> {
        hook.needs
            .iter()
            .chain(hook.wants)
            .copied()
            .flatten()
            .copied()
            .collect()
    }

    /// What hooks that keep slots may read: what one of them names.
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
    fn every_offset_that_a_hook_names_exists_and_every_one_that_exists_is_named_by_a_hook() {
        let mut named: BTreeSet<_> = all_hooks()
            .flat_map(|hook| hook.needed().chain(hook.wanted()))
            .collect();
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

    /// From the object itself: the read-only globals that each program's code refers to.
    #[test]
    fn a_program_reads_what_its_hook_names_and_nothing_else() {
        let Some(object) = object::bytes() else {
            println!("skipped: this build carries no eBPF object, so that no program can be looked at");
            return;
        };
        let mut reads = reads::by_program(object);
        let mut of_paths: BTreeMap<&str, usize> = BTreeMap::new();
        for hook in all_hooks() {
            for program in [Some(hook.program), hook.fast.map(|fast| fast.program)]
                .into_iter()
                .flatten()
            {
                let mut read = reads
                    .remove(program)
                    .unwrap_or_else(|| panic!("no program {program}"));
                read.retain(|global| !SIGNS.contains(global));
                let unread: Vec<_> = own(hook).difference(&read).copied().collect();
                assert!(unread.is_empty(), "{program} does not read {unread:?}");
                for global in &read {
                    *of_paths.entry(global).or_default() += 1;
                }
                let mut named = own(hook);
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
        assert!(reads.is_empty(), "without a hook: {:?}", reads.keys());
        for path in DATA_PATHS {
            for global in path.path.needs {
                assert!(of_paths.contains_key(global), "no program reads {global}");
            }
        }
    }

    #[test]
    fn no_program_stands_for_two_hooks() {
        let mut programs = BTreeSet::new();
        for hook in all_hooks() {
            for program in [Some(hook.program), hook.fast.map(|fast| fast.program)]
                .into_iter()
                .flatten()
            {
                assert!(programs.insert(program), "{program}");
            }
            // The kernel keeps no more of a name.
            assert!(
                hook.fast.is_none_or(|fast| fast.program.len() <= 15),
                "{}",
                hook.program
            );
            assert!(
                hook.fast.is_none() || hook.entry.fast() != hook.entry,
                "{} cannot be entered otherwise",
                hook.program
            );
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
            // A skipped call has one program that counts it.
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
        assert_eq!(words("kp_xmit"), "short by as many may be: retransmitted packets");
        assert_eq!(
            words("modify_qp_ret"),
            "as many events may be missing: QP state changes, errno and duration"
        );
        assert!(words("cmd_verbs_ret").starts_with("short by as many"));
        // What the next visit makes good is not said to be short.
        assert!(!words("kp_completer").contains("short"));
        let skip = |program: &str| hook(program).skip;
        assert_eq!(
            (skip("restrack_add"), skip("cm_event")),
            (Skip::Record, Skip::Record)
        );
        for hot in all_hooks().filter(|hook| hook.path.is_some()) {
            assert_eq!(hot.skip, Skip::Count, "{}", hot.program);
        }
    }
}
