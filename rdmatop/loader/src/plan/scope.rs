//! What a session has to deliver: which hooks it needs, and which readings it can do without.
//!
//! Loading and attaching a program costs tens of millions of instructions, and each attached program slows
//! down the calls that it observes. A trace of some events needs neither the data path nor the hooks of other
//! events.

use std::collections::BTreeMap;

use rdmatop_common::offsets::UNKNOWN;

use crate::hooks::{Hook, datapath};
use rdmatop_model::event::EventKind;

/// What a session is to deliver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Events and counters: views, `rdmatop probes`.
    #[default]
    All,
    /// Events of these kinds and no counters; an empty list means all kinds.
    Events(Vec<EventKind>),
}

/// Whether a trace of `kinds` asks for any of `events`; an empty list asks for all kinds.
fn asks_for(kinds: &[EventKind], events: &[EventKind]) -> bool {
    kinds.is_empty() || events.iter().any(|kind| kinds.contains(kind))
}

impl Scope {
    /// Whether counters are wanted.
    pub fn counters(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether events of this kind are shown.
    pub fn shows(&self, kind: EventKind) -> bool {
        match self {
            Self::All => true,
            Self::Events(kinds) => asks_for(kinds, &[kind]),
        }
    }

    /// Whether a hook is needed.
    pub fn wants(&self, hook: &Hook) -> bool {
        let Self::Events(kinds) = self else { return true };
        if hook.events.iter().any(|kind| kind.is_on_request()) {
            return hook.events.iter().any(|kind| kinds.contains(kind));
        }
        !hook.events.is_empty() && asks_for(kinds, hook.events)
    }

    /// Sets the offsets of unwanted readings to unknown. The verifier then removes the code for them, and the
    /// kernel side makes no record that the filter would drop.
    pub fn narrow(&self, offsets: &mut BTreeMap<&'static str, u32>) {
        let Self::Events(kinds) = self else { return };
        let each = datapath::all_hooks().flat_map(|hook| hook.only_for);
        // The programs that report work requests read owners by this offset too.
        let works = kinds.iter().any(|kind| kind.is_on_request());
        for (global, events) in each {
            if works && *global == "OFF_QP_RES" {
                continue;
            }
            if !asks_for(kinds, events) {
                offsets.insert(global, UNKNOWN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        hooks::{Role, control::CONTROL_PLANE, reads_tests},
        load::object,
        plan::options::{self, Options},
    };

    fn wanted(kinds: &[EventKind]) -> Vec<&'static str> {
        let scope = Scope::Events(kinds.to_vec());
        datapath::all_hooks()
            .filter(|hook| scope.wants(hook))
            .map(|hook| hook.program)
            .collect()
    }

    #[test]
    fn a_trace_of_everything_leaves_out_what_only_counts() {
        let all = wanted(&[]);
        let usual = EventKind::ALL.into_iter().filter(|kind| !kind.is_on_request());
        assert_eq!(all, wanted(&usual.collect::<Vec<_>>()));
        assert!(!all.iter().any(|program| program.starts_with("wr_")), "{all:?}");
        let left: Vec<_> = CONTROL_PLANE
            .iter()
            .filter(|hook| !matches!(hook.role, Role::Finds | Role::Gpus))
            .map(|hook| hook.program)
            .filter(|program| !all.contains(program))
            .collect();
        assert!(left.is_empty(), "{left:?}");
        let counts = |program: &&str| {
            program.starts_with("kp_") || program.starts_with("siw_") || *program == "query_qp"
        };
        assert!(!all.iter().any(counts), "{all:?}");
    }

    #[test]
    fn every_kind_of_event_has_a_hook_that_gives_it() {
        for kind in EventKind::ALL {
            assert_eq!(wanted(&[kind]).is_empty(), kind.is_concluded(), "{kind:?}");
        }
    }

    #[test]
    fn a_trace_resolves_every_offset_that_its_programs_read() {
        let Some(object) = object::embedded() else {
            println!("skipped: this build carries no eBPF object, so that no program can be looked at");
            return;
        };
        let there = reads_tests::by_program(&object);
        // What only data paths read: in a trace the verifier removes the code that counts.
        let named = |hooks: &[Hook]| hooks.iter().flat_map(Hook::offsets).collect::<BTreeSet<_>>();
        let mut counting: BTreeSet<_> = datapath::hooks().flat_map(Hook::offsets).collect();
        counting.retain(|global| !named(CONTROL_PLANE).contains(global));
        counting.insert("OFF_RXE_TASK_TASKLET");
        for kind in EventKind::ALL.into_iter().filter(|kind| !kind.is_on_request()) {
            let options = Options {
                scope: Scope::Events(vec![kind]),
                fentry: true,
                ..Options::default()
            };
            let resolved = options::read_offsets(&options).unwrap();
            for program in options::programs(&options) {
                let read = there[program].iter();
                let unresolved: Vec<_> = read
                    .filter(|global| !resolved.contains(*global) && !counting.contains(*global))
                    .collect();
                assert!(unresolved.is_empty(), "{kind:?}, {program}: {unresolved:?}");
            }
        }
    }

    #[test]
    fn the_state_before_a_modify_needs_creates_and_destroys() {
        assert_eq!(
            wanted(&[EventKind::QpModify, EventKind::Lost]),
            [
                "modify_qp_ret",
                "modify_qp",
                "destroy_qp_ret",
                "destroy_qp",
                "restrack_add"
            ]
        );
    }

    #[test]
    fn only_readings_that_nobody_asked_for_are_taken_away() {
        let after = |scope: Scope| {
            let names = ["OFF_MR_RES", "OFF_CQ_RES", "OFF_QP_RES", "OFF_QP_NUM"];
            let mut offsets: BTreeMap<&'static str, u32> = names.map(|name| (name, 8)).into();
            scope.narrow(&mut offsets);
            let mut off: Vec<_> = offsets
                .into_iter()
                .filter(|(_, at)| *at == UNKNOWN)
                .map(|(name, _)| name)
                .collect();
            off.sort_unstable();
            off
        };
        assert!(after(Scope::All).is_empty());
        assert!(after(Scope::Events(Vec::new())).is_empty());
        assert_eq!(
            after(Scope::Events(vec![EventKind::QpModify, EventKind::Lost])),
            ["OFF_CQ_RES", "OFF_MR_RES"]
        );
        assert_eq!(
            after(Scope::Events(vec![EventKind::WrDone])),
            ["OFF_CQ_RES", "OFF_MR_RES"]
        );
        assert_eq!(
            after(Scope::Events(vec![EventKind::MrReg])),
            ["OFF_CQ_RES", "OFF_QP_RES"]
        );
    }
}
