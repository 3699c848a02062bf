//! Turns the outcomes of hooks into causes for the user: what rdmatop does not see because a program is not
//! attached. Pure.

use crate::{
    hooks::{
        Path,
        datapath::{self, DATA_PATHS},
    },
    plan::Outcome,
};
use rdmatop_model::{
    cause::{Cause, CauseId, Concerns, Obstacle},
    input::Verdict,
};

/// What rdmatop does not see without a data path.
pub(super) fn of_data_path(path: &Path) -> String {
    format!(
        "Not seen: work requests, bytes and latency per QP on {}",
        path.of.name
    )
}

/// How many things a line names; `rdmatop probes` lists all.
const NAMED: usize = 3;

/// Returns one cause for each obstacle that prevents programs from being attached. A module that is not
/// loaded is no obstacle, because there is nothing to see. `masked`: the kernel's BTF is not in /sys.
pub(crate) fn causes(outcomes: &[Outcome], masked: bool) -> Vec<Cause> {
    let mut out = Vec::new();
    let off = || {
        outcomes
            .iter()
            .filter(|o| matches!(o.verdict, Verdict::Unsupported | Verdict::Broken))
    };
    // To the user a data path is one thing, so this reports it once, whatever obstacles its programs have.
    let is_of = |outcome: &Outcome, path: &Path| {
        let driver = outcome.hook.path.map(|path| path.of.driver);
        driver == Some(path.of.driver) && outcome.hook.events.is_empty()
    };
    let counted = |path: &Path| outcomes.iter().any(|o| is_of(o, path) && o.is_on());
    for path in DATA_PATHS.iter().map(|path| path.path) {
        let hidden: Vec<_> = off().filter(|o| is_of(o, path) && !counted(path)).collect();
        if let Some(first) = hidden.first() {
            let obstacle = for_the_user(obstacle(first), masked);
            out.push(obstacle.takes(of_data_path(path), programs(&hidden)));
        }
    }
    let mut groups: Vec<(Obstacle, Vec<&Outcome>)> = Vec::new();
    // The user asks for the events of a data path separately, so their hooks are named separately.
    let apart = |o: &&Outcome| !o.hook.events.is_empty() || o.hook.path.is_none_or(counted);
    for outcome in off().filter(apart) {
        let obstacle = for_the_user(obstacle(outcome), masked);
        match groups.iter_mut().find(|(known, _)| *known == obstacle) {
            Some((_, all)) => all.push(outcome),
            None => groups.push((obstacle, vec![outcome])),
        }
    }
    out.extend(
        groups
            .into_iter()
            .map(|(obstacle, all)| obstacle.takes(named(&all), programs(&all))),
    );
    out
}

fn programs(outcomes: &[&Outcome]) -> Concerns {
    Concerns::Programs(outcomes.iter().map(|o| o.hook.program.to_owned()).collect())
}

fn named(all: &[&Outcome]) -> String {
    let mut gives: Vec<&str> = Vec::new();
    for outcome in all {
        if !gives.contains(&outcome.hook.gives) {
            gives.push(outcome.hook.gives);
        }
    }
    let more = gives.len().saturating_sub(NAMED);
    gives.truncate(NAMED);
    let more = if more > 0 {
        format!(" and {more} more (rdmatop probes)")
    } else {
        String::new()
    };
    format!("Not seen: {}{more}", gives.join(", "))
}

fn obstacle(outcome: &Outcome) -> Obstacle {
    let unknown = || Obstacle::new(CauseId::Refused, "no reason is known", "");
    outcome.obstacles.first().cloned().unwrap_or_else(unknown)
}

/// What to do where the files with the BTF of kernel and modules are hidden.
const UNMASK: &str = "mount /sys, or give the container the host's /sys/kernel/btf";

/// Returns the obstacle with a remedy. Without BTF it does not name the members that one program misses,
/// because the cause is the same for all programs.
pub(crate) fn for_the_user(obstacle: Obstacle, masked: bool) -> Obstacle {
    if obstacle.id == CauseId::NoBtf && masked {
        return Obstacle::new(
            obstacle.id,
            "/sys/kernel/btf is hidden, and with it the layout of the modules' structs",
            UNMASK,
        );
    }
    if obstacle.id == CauseId::NoBtf {
        return Obstacle::new(
            obstacle.id,
            "the kernel has no BTF for the structs they read",
            // CONFIG_DEBUG_INFO_BTF_MODULES came with Linux 5.11.
            "use a kernel whose modules have BTF, such as Debian's from 6.1 on",
        );
    }
    if obstacle.remedy.is_empty() {
        let remedy = "`rdmatop probes` names the programs".into();
        return Obstacle { remedy, ..obstacle };
    }
    obstacle
}

/// Causes for what rdmatop does not see. Without vmlinux's BTF it sees nearly nothing, which is reported as
/// one cause. `masked`: the files with the BTF of kernel and modules are hidden.
pub(crate) fn causes_or_no_btf(outcomes: &[Outcome], problems: &[String], masked: bool) -> Vec<Cause> {
    let Some(problem) = problems.first() else {
        return causes(outcomes, masked);
    };
    let no_btf = |outcome: &&Outcome| outcome.obstacles.iter().any(|o| o.id == CauseId::NoBtf);
    // To the user the data path is one thing, so another obstacle to one of its programs is not worth a line.
    let hot = |outcome: &&Outcome| outcome.hook.path.is_some();
    let uncounted = outcomes.iter().filter(hot).any(|outcome| no_btf(&outcome));
    let is_blind = |outcome: &&Outcome| no_btf(outcome) || uncounted && hot(outcome);
    let (blind, others): (Vec<_>, Vec<_>) = outcomes.iter().partition(is_blind);
    let programs = blind.iter().map(|outcome| outcome.hook.program.to_owned());
    let concerns = Concerns::Programs(programs.collect());
    let remedy = "Use a kernel with CONFIG_DEBUG_INFO_BTF=y, and give the container /sys/kernel/btf";
    let first = if masked {
        let why = "/sys/kernel/btf is hidden, and with it the kernel's BTF";
        Obstacle::new(CauseId::NoBtf, why, UNMASK)
    } else {
        Obstacle::new(CauseId::NoBtf, problem.clone(), remedy)
    };
    let first = first.takes(
        "Not seen by eBPF: QPs with their owners, states and bytes",
        concerns,
    );
    let others: Vec<_> = others.into_iter().cloned().collect();
    [first].into_iter().chain(causes(&others, masked)).collect()
}

/// The cause if the counters of QPs cannot be read.
pub(crate) fn no_counters(obstacle: Obstacle) -> Cause {
    let programs = datapath::hooks().map(|hook| hook.program.to_owned());
    let what = "Not seen: work requests, bytes and latency per QP";
    let mut cause = obstacle.takes(what, Concerns::Programs(programs.collect()));
    if cause.remedy.is_empty() {
        cause.remedy = "See dmesg".into();
    }
    cause
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hooks::{Hook, control::CONTROL_PLANE, work::WORK_HOOKS},
        plan,
    };

    fn on(hook: &'static Hook) -> Outcome {
        Outcome {
            hook,
            second: false,
            verdict: Verdict::Ok,
            obstacles: Vec::new(),
        }
    }

    /// Outcomes with all programs attached, except those with these names, for this reason.
    fn outcomes(off: &[&str], obstacle: &Obstacle) -> Vec<Outcome> {
        datapath::all_hooks()
            .map(|hook| {
                if off.contains(&hook.program) {
                    Outcome::off(hook, Verdict::Unsupported, obstacle.clone())
                } else {
                    on(hook)
                }
            })
            .collect()
    }

    fn lines(off: &[&str], obstacle: &Obstacle) -> Vec<String> {
        causes(&outcomes(off, obstacle), false)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn when_all_is_on_there_is_nothing_to_say() {
        let not_loaded = Obstacle::new(CauseId::NoModule, "not loaded", "");
        assert_eq!(lines(&[], &not_loaded), [""; 0]);
        let unloaded: Vec<_> = CONTROL_PLANE
            .iter()
            .map(|hook| Outcome::off(hook, Verdict::NotApplicable, not_loaded.clone()))
            .collect();
        assert_eq!(causes(&unloaded, false), []);
    }

    #[test]
    fn programs_that_one_cause_keeps_off_are_one_line() {
        let off = [
            "cm_event",
            "cm_send_req",
            "cm_send_rep",
            "cm_send_rej",
            "cm_disconnect",
        ];
        assert_eq!(
            lines(
                &off,
                &Obstacle::new(
                    CauseId::NoTracefs,
                    "tracefs is not mounted",
                    "mount -t tracefs tracefs /sys/kernel/tracing"
                )
            ),
            [
                "Not seen: rdma_cm events, rdma_cm connect, rdma_cm accept and 2 more (rdmatop probes): tracefs is not \
              mounted; mount -t tracefs tracefs /sys/kernel/tracing"
            ]
        );
    }

    #[test]
    fn a_data_path_that_is_not_counted_is_one_line_whatever_the_causes() {
        let path = &datapath::RXE;
        let hot: Vec<&str> = path.hooks.iter().map(|hook| hook.program).collect();
        let why = "no BTF for rxe_qp.ibqp, rxe_qp.is_user";
        let mut all = outcomes(&hot, &Obstacle::new(CauseId::NoBtf, why, ""));
        if let Some(last) = all
            .iter_mut()
            .rfind(|outcome| hot.contains(&outcome.hook.program))
        {
            last.obstacles = vec![plan::absent(last.hook)];
        }
        let masked = causes(&all, true);
        assert!(masked[0].remedy.contains("/sys/kernel/btf"), "{masked:?}");
        let notes = causes(&all, false);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let line = notes[0].to_string();
        assert!(
            line.starts_with(&of_data_path(path.path)) && line.contains("no BTF"),
            "{line}"
        );
        assert!(
            !line.contains("rxe_qp.is_user"),
            "members are for the table of probes: {line}"
        );
    }

    #[test]
    fn work_requests_that_make_no_events_are_a_line_of_their_own() {
        let why = Obstacle::new(CauseId::NoBtf, "no BTF for rxe_qp.ibqp", "");
        let all: Vec<&str> = WORK_HOOKS.iter().map(|hook| hook.program).collect();
        let told = lines(&all, &why);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].contains("Not seen: work requests as events") && told[0].contains("from 6.1 on"),
            "{told:?}"
        );
    }

    #[test]
    fn a_part_of_the_data_path_is_named() {
        let one = lines(
            &["kp_xmit"],
            &Obstacle::new(
                CauseId::NoFunction,
                "this kernel has no function rxe_xmit_packet",
                "",
            ),
        );
        assert_eq!(
            one,
            [
                "Not seen: retransmitted packets: this kernel has no function rxe_xmit_packet; `rdmatop probes` names the \
              programs"
            ]
        );
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
        let notes = causes_or_no_btf(
            &outcomes,
            &["cannot read /sys/kernel/btf/vmlinux".to_owned()],
            true,
        );
        assert_eq!(notes.len(), 1, "{notes:?}");
    }
}
