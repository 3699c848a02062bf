//! Decides which programs to attach, from facts alone: it does not ask the kernel.
mod facts;
pub mod foresee;
pub(crate) mod options;
pub mod preempt;
pub(crate) mod scope;
pub(crate) mod unseen;

pub use facts::Facts;
use log::Level;
use rdmatop_common::offsets::{OFFSETS, TRACEPOINT_FIELDS};

use crate::{
    hooks::{Entry, Hook, Role, control::CONTROL_PLANE},
    user,
};
use rdmatop_model::{
    cause::{CauseId, Concerns, Obstacle},
    input::{ProbeVerdict, Verdict},
};

/// Decides on one program: the outcome if the kernel takes what is to be attached. Its `second` is the
/// program of the raw tracepoint.
pub fn decide(hook: &'static Hook, facts: &Facts) -> Outcome {
    let leave = |verdict, id, why: String| Outcome::off(hook, verdict, Obstacle::new(id, why, ""));
    let attach = |raw, off: &[&str]| Outcome::on(hook, raw, (!off.is_empty()).then(|| unread(hook, off)));
    let no_driver = match hook.path {
        Some(path) => !facts.modules.contains(path.of.driver),
        None => hook.role == Role::Finds && !facts.counts(),
    };
    if no_driver {
        // The reason names no driver: on a machine without the driver its name would only distract.
        let why = "the driver whose work requests it counts is not loaded";
        return leave(Verdict::NotApplicable, CauseId::NoDriver, why.to_owned());
    }
    if hook.role == Role::Gpus && !facts.gpus {
        let why = "no GPU of NVIDIA's driver is there";
        return leave(Verdict::NotApplicable, CauseId::NoDriver, why.to_owned());
    }
    if !facts.modules.contains(hook.module) {
        let why = format!("{} is not loaded", hook.module);
        return leave(Verdict::NotApplicable, CauseId::NoModule, why);
    }
    if hook.role == Role::Probes && !facts.loops {
        let why = "this kernel is too old: --uprobes takes Linux 5.17";
        return leave(Verdict::Unsupported, CauseId::NoFunction, why.to_owned());
    }
    let without = |name: &&'static str| !facts.offsets.contains(*name);
    // What the plain tracepoint cannot give, if the raw one is not used.
    let mut unseen = Vec::new();
    if let Some(raw) = hook.raw {
        unseen.extend(raw.needed().filter(without));
        if unseen.is_empty() {
            let off: Vec<_> = raw.wanted().filter(without).collect();
            return attach(true, &off);
        }
    }
    if let (Entry::Tracepoint, Some(why)) = (hook.entry, &facts.without_tracefs) {
        return Outcome::off(hook, Verdict::Unsupported, why.clone());
    }
    if let (Some(symbols), false) = (&facts.symbols, hook.entry == Entry::Tracepoint) {
        match symbols.get(hook.symbol) {
            None | Some(0) => return Outcome::off(hook, Verdict::Unsupported, absent(hook)),
            Some(1) => {}
            Some(_) => return Outcome::off(hook, Verdict::Unsupported, ambiguous(hook)),
        }
    }
    // A return program without its entry program would see no call, and the verifier of 5.10 refuses it.
    let entry = hook.is_return().then(|| {
        CONTROL_PLANE
            .iter()
            .chain(user::HOOKS)
            .find(|entry| entry.symbol == hook.symbol && entry.role == hook.role && !entry.is_return())
    });
    let entry_needs = entry.flatten().into_iter().flat_map(Hook::needed);
    let missing: Vec<_> = hook.needed().chain(entry_needs).filter(without).collect();
    if !missing.is_empty() {
        return Outcome::off(hook, Verdict::Unsupported, unread(hook, &missing));
    }
    let off: Vec<_> = hook.wanted().filter(without).chain(unseen).collect();
    attach(false, &off)
}

/// Why a hook is not attached if the kernel lacks its function.
pub fn absent(hook: &Hook) -> Obstacle {
    let why = format!("this kernel has no function {}", hook.symbol);
    Obstacle::new(CauseId::NoFunction, why, "")
}

/// Why a hook is not attached if several functions have its function's name.
pub fn ambiguous(hook: &Hook) -> Obstacle {
    let why = format!(
        "this kernel has several functions named {}: rdmatop cannot know which one to probe",
        hook.symbol
    );
    Obstacle::new(CauseId::AmbiguousFunction, why, "")
}

/// How many members a line names; it gives only the number of the others.
const NAMED: usize = 4;

/// Why readings are unknown: the members or fields of the globals without an offset.
fn unread(hook: &Hook, globals: &[&str]) -> Obstacle {
    let fields: Vec<_> = TRACEPOINT_FIELDS
        .iter()
        .filter(|field| globals.contains(&field.global))
        .map(|field| field.field)
        .collect();
    if !fields.is_empty() {
        let why = format!(
            "{} has no such field here ({})",
            hook.place(false),
            fields.join(", ")
        );
        return Obstacle::new(CauseId::NoField, why, "");
    }
    let spell = |global: &&str| {
        let member = OFFSETS.iter().find(|offset| offset.global == *global);
        member.map_or_else(|| (*global).to_owned(), |o| format!("{}.{}", o.ty, o.member))
    };
    let named: Vec<_> = globals.iter().take(NAMED).map(spell).collect();
    let more = match globals.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Obstacle::new(
        CauseId::NoBtf,
        format!("no BTF for {}{more}", named.join(", ")),
        "",
    )
}

/// The result for one hook.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The hook.
    pub hook: &'static Hook,
    /// Whether the second program of the hook runs: by fentry or fexit, or at a raw tracepoint.
    pub second: bool,
    /// The verdict.
    pub verdict: Verdict,
    /// Why the verdict is not [`Verdict::Ok`], or which readings are unknown.
    pub obstacles: Vec<Obstacle>,
}

impl Outcome {
    /// The outcome for a program that is attached: its hook's `second` one, or the first. `partial`: what it
    /// lacks.
    pub fn on(hook: &'static Hook, second: bool, partial: Option<Obstacle>) -> Self {
        Self {
            hook,
            second,
            verdict: partial.as_ref().map_or(Verdict::Ok, |_| Verdict::Partial),
            obstacles: partial.into_iter().collect(),
        }
    }

    /// The outcome for a program that is not attached.
    pub fn off(hook: &'static Hook, verdict: Verdict, obstacle: Obstacle) -> Self {
        Self {
            hook,
            second: false,
            verdict,
            obstacles: vec![obstacle],
        }
    }

    /// Whether the program is attached.
    pub fn is_on(&self) -> bool {
        matches!(self.verdict, Verdict::Ok | Verdict::Partial)
    }

    /// Logs the outcome for the maintainer.
    pub(super) fn log(&self) {
        let (level, msg) = match self.verdict {
            Verdict::Ok | Verdict::Partial => (Level::Info, "attached"),
            Verdict::NotApplicable => (Level::Debug, "skipped"),
            Verdict::Unsupported => (Level::Info, "skipped"),
            Verdict::Broken => (Level::Warn, "refused"),
        };
        let why: Vec<&str> = self.obstacles.iter().map(|obstacle| &*obstacle.why).collect();
        log::log!(
            level,
            program = self.hook.runs(self.second), at = self.hook.place(self.second).as_str(), verdict:? = self.verdict,
            why = why.join("; ").as_str();
            "{msg}"
        );
    }

    /// The outcome as users see it.
    pub fn shown(&self) -> ProbeVerdict {
        let program = self.hook.runs(self.second);
        let obstacles = self.obstacles.iter().cloned();
        ProbeVerdict {
            program: program.to_owned(),
            hook: self.hook.place(self.second),
            gives: self.hook.gives.to_owned(),
            verdict: self.verdict,
            causes: obstacles
                .map(|obstacle| obstacle.takes(self.hook.gives, Concerns::Programs(vec![program.to_owned()])))
                .collect(),
        }
    }
}

/// Whether records report every change of the table of QPs. `outcomes`: of all wanted hooks.
pub fn follows_qps(outcomes: &[Outcome]) -> bool {
    let mut table = outcomes
        .iter()
        .filter(|outcome| outcome.hook.role == Role::QpTable);
    table.all(Outcome::is_on)
}

/// Readings of a data path's QPs that are unknown because programs are not attached: bits of `slot_flag`.
pub fn unknown(outcomes: &[Outcome]) -> u32 {
    let off = outcomes.iter().filter(|outcome| !outcome.is_on());
    off.fold(0, |bits, outcome| bits | outcome.hook.unknown_without)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::hooks::datapath::{DATA_PATHS, all_hooks};

    fn facts() -> Facts {
        Facts {
            modules: ["ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm"]
                .map(String::from)
                .into(),
            symbols: Some(CONTROL_PLANE.iter().map(|h| (h.symbol.to_owned(), 1)).collect()),
            without_tracefs: None,
            preempts: None,
            offsets: CONTROL_PLANE.iter().flat_map(Hook::offsets).collect(),
            loops: true,
            gpus: true,
        }
    }

    fn on(hook: &'static Hook) -> Outcome {
        Outcome {
            hook,
            second: false,
            verdict: Verdict::Ok,
            obstacles: Vec::new(),
        }
    }

    fn hook(program: &str) -> &'static Hook {
        CONTROL_PLANE.iter().find(|h| h.program == program).unwrap()
    }

    /// The verdict on a hook, and whether its second program is attached.
    fn decided(hook: &'static Hook, facts: &Facts) -> (Verdict, bool) {
        let outcome = decide(hook, facts);
        (outcome.verdict, outcome.second)
    }

    /// The only obstacle of a hook.
    fn why(hook: &'static Hook, facts: &Facts) -> String {
        let outcome = decide(hook, facts);
        let [obstacle] = outcome.obstacles.as_slice() else {
            panic!("{outcome:?}")
        };
        obstacle.why.clone()
    }

    #[test]
    fn with_everything_there_everything_is_attached() {
        let mut facts = facts();
        // One driver whose work requests are counted is enough.
        facts.modules.insert("siw".to_owned());
        for hook in CONTROL_PLANE {
            let attached = (Verdict::Ok, hook.raw.is_some());
            assert_eq!(decided(hook, &facts), attached, "{}", hook.program);
        }
    }

    #[test]
    fn where_programs_cannot_loop_probes_on_programs_say_what_they_need() {
        for loops in [false, true] {
            let facts = Facts {
                loops,
                symbols: None,
                offsets: all_hooks().flat_map(Hook::offsets).collect(),
                ..facts()
            };
            for hook in all_hooks().filter(|hook| hook.module == "ib_core") {
                let decision = decide(hook, &facts);
                let mut why = decision.obstacles.iter().map(|obstacle| &obstacle.why);
                let too_old =
                    decision.verdict == Verdict::Unsupported && why.any(|why| why.ends_with("Linux 5.17"));
                assert_eq!(
                    too_old,
                    !loops && hook.role == Role::Probes,
                    "{}: {decision:?}",
                    hook.program
                );
            }
        }
    }

    #[test]
    fn without_the_modules_btf_a_tracepoint_takes_the_place_of_the_raw_one() {
        let mut facts = facts();
        facts.without_tracefs = Some(Obstacle::new(CauseId::NoTracefs, "no tracefs", ""));
        // The raw one needs no tracefs.
        let cm_event = hook("cm_event");
        assert_eq!(decided(cm_event, &facts), (Verdict::Ok, true));
        facts.offsets.remove("OFF_IDPRIV_SRC");
        assert_eq!(decided(cm_event, &facts), (Verdict::Partial, true));
        assert_eq!(
            why(cm_event, &facts),
            "no BTF for rdma_id_private.id.route.addr.src_addr"
        );
        facts.offsets.remove("OFF_IDPRIV_RES");
        assert_eq!(decided(cm_event, &facts).0, Verdict::Unsupported);
        facts.without_tracefs = None;
        assert_eq!(decided(cm_event, &facts), (Verdict::Partial, false));
        assert_eq!(why(cm_event, &facts), "no BTF for rdma_id_private.res");
    }

    #[test]
    fn a_module_that_is_not_loaded_is_not_a_fault() {
        let mut facts = facts();
        facts.modules.remove("rdma_cm");
        assert_eq!(decided(hook("cm_event"), &facts).0, Verdict::NotApplicable);
        assert_eq!(decided(hook("modify_qp"), &facts), (Verdict::Ok, false));
    }

    /// Every subset of the modules that hooks name.
    fn module_sets() -> impl Iterator<Item = BTreeSet<String>> {
        let named: BTreeSet<&str> = all_hooks()
            .flat_map(|h| [Some(h.module), h.path.map(|path| path.of.driver)])
            .flatten()
            .collect();
        let named: Vec<&str> = named.into_iter().collect();
        (0..1_u32 << named.len()).map(move |bits| {
            let chosen = named.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1);
            chosen.map(|(_, name)| (*name).to_owned()).collect()
        })
    }

    #[test]
    fn a_program_is_applicable_only_with_its_function_and_its_driver() {
        for modules in module_sets() {
            // A kernel without any BTF: a hook that is not applicable must not be blamed on that.
            let facts = Facts {
                modules,
                ..Facts::default()
            };
            for hook in all_hooks() {
                let there = [Some(hook.module), hook.path.map(|path| path.of.driver)];
                let there = there.iter().flatten().all(|name| facts.modules.contains(*name))
                    && (hook.role != Role::Finds || facts.counts())
                    && hook.role != Role::Gpus;
                let decision = decide(hook, &facts);
                let applicable = decision.verdict != Verdict::NotApplicable;
                assert_eq!(
                    applicable, there,
                    "{} with {:?}: {decision:?}",
                    hook.program, facts.modules
                );
            }
        }
    }

    #[test]
    fn without_a_driver_nothing_is_said_of_it() {
        for path in DATA_PATHS {
            nothing_is_said_of(path.path.of.driver, path.path.of.name);
        }
    }

    fn nothing_is_said_of(driver: &str, name: &str) {
        use crate::plan::unseen;
        let words = [driver.trim_start_matches("rdma_"), name].map(str::to_lowercase);
        for modules in module_sets().filter(|set| !set.contains(driver)) {
            let facts = Facts {
                modules,
                ..Facts::default()
            };
            let outcomes: Vec<_> = all_hooks().map(|hook| decide(hook, &facts)).collect();
            let reasons = outcomes.iter().filter_map(|outcome| outcome.shown().reason());
            let causes = unseen::causes(&outcomes, false);
            for line in reasons.chain(causes.iter().map(ToString::to_string)) {
                let small = line.to_lowercase();
                assert!(!words.iter().any(|word| small.contains(word.as_str())), "{line}");
            }
        }
    }

    #[test]
    fn a_name_that_stands_twice_is_not_guessed_at() {
        let mut facts = facts();
        if let Some(symbols) = &mut facts.symbols {
            symbols.insert("_ib_modify_qp".into(), 2);
            symbols.remove("ib_destroy_qp_user");
        }
        for program in ["modify_qp", "destroy_qp"] {
            assert_eq!(decided(hook(program), &facts).0, Verdict::Unsupported);
        }
        // A kernel that checks names itself is asked by attaching.
        facts.symbols = None;
        assert_eq!(decided(hook("modify_qp"), &facts), (Verdict::Ok, false));
    }

    #[test]
    fn a_missing_member_is_named_as_the_kernel_spells_it() {
        let mut facts = facts();
        facts.offsets.remove("OFF_QP_NUM");
        let outcome = decide(hook("destroy_qp"), &facts);
        assert_eq!(outcome.verdict, Verdict::Unsupported);
        let [why] = outcome.obstacles.as_slice() else {
            panic!()
        };
        assert_eq!((why.id, &*why.why), (CauseId::NoBtf, "no BTF for ib_qp.qp_num"));
        let mut facts = self::facts();
        facts.offsets.remove("OFF_ATTR_PATH_MTU");
        assert_eq!(decided(hook("modify_qp_ret"), &facts), (Verdict::Partial, false));
        assert_eq!(
            self::why(hook("modify_qp_ret"), &facts),
            "no BTF for ib_qp_attr.path_mtu"
        );
    }

    #[test]
    fn without_a_program_that_keeps_the_table_a_dump_does() {
        let mut outcomes: Vec<_> = all_hooks().map(on).collect();
        assert!(follows_qps(&outcomes) && follows_qps(&[]));
        let changed = |outcome: &&mut Outcome| outcome.hook.program == "modify_qp_ret";
        if let Some(outcome) = outcomes.iter_mut().find(changed) {
            outcome.verdict = Verdict::Partial;
        }
        assert!(follows_qps(&outcomes));
        if let Some(outcome) = outcomes.iter_mut().find(changed) {
            outcome.verdict = Verdict::Unsupported;
        }
        assert!(!follows_qps(&outcomes));
    }
}
