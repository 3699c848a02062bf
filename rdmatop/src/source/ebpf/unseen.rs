//! What nobody sees because a program is not on: the verdicts in plain lines. Pure.

use super::datapath;
use crate::model::input::{Note, ProbeVerdict, Verdict};

/// What the data path gives.
pub(super) const DATA_PATH: &str = "Not seen: work requests, bytes and latency per QP on SoftRoCE";
/// What a line names of several things; `rdmatop probes` has all.
const NAMED: usize = 3;

/// One line for each cause that keeps programs off. A module that is not loaded is none: it has nothing to see.
/// `masked`: the kernel's BTF is not in /sys.
pub(super) fn notes(verdicts: &[ProbeVerdict], masked: bool) -> Vec<Note> {
    let mut out = Vec::new();
    let hot = |verdict: &ProbeVerdict| datapath::hooks().any(|hook| hook.program == verdict.program);
    let off = || {
        verdicts
            .iter()
            .filter(|v| matches!(v.verdict, Verdict::Unsupported | Verdict::Broken))
    };
    // The data path is one thing to the user, whatever keeps each of its programs off.
    let counted = verdicts
        .iter()
        .any(|v| hot(v) && matches!(v.verdict, Verdict::Ok | Verdict::Partial));
    if let Some(first) = off().find(|v| hot(v)).filter(|_| !counted) {
        out.push(line(DATA_PATH.to_owned(), first, masked));
    }
    let mut causes: Vec<(String, Vec<&ProbeVerdict>)> = Vec::new();
    for verdict in off().filter(|v| counted || !hot(v)) {
        let cause = short(verdict);
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, all)) => all.push(verdict),
            None => causes.push((cause, vec![verdict])),
        }
    }
    for (_, all) in causes {
        if let Some(first) = all.first() {
            out.push(line(named(&all), first, masked));
        }
    }
    out
}

fn named(all: &[&ProbeVerdict]) -> String {
    let mut gives: Vec<&str> = Vec::new();
    for verdict in all {
        if !gives.contains(&verdict.gives.as_str()) {
            gives.push(&verdict.gives);
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

/// The reason without the list of members behind it: those without BTF are one cause.
fn short(verdict: &ProbeVerdict) -> String {
    let reason = verdict.reason.as_deref().unwrap_or("no reason is known");
    if reason.starts_with(super::plan::NO_BTF) {
        return "the kernel has no BTF for the structs they read".to_owned();
    }
    reason.to_owned()
}

fn line(what: String, first: &ProbeVerdict, masked: bool) -> Note {
    let reason = short(first);
    let (why, remedy) = match reason.rsplit_once("; ") {
        Some((why, remedy)) => (why.to_owned(), remedy.to_owned()),
        None if masked && is_no_btf(first) => (
            "/sys/kernel/btf is hidden, and with it the layout of the modules' structs".to_owned(),
            "mount /sys, or give the container the host's /sys/kernel/btf".to_owned(),
        ),
        None => (reason.clone(), remedy(first)),
    };
    Note { what, why, remedy }
}

fn is_no_btf(verdict: &ProbeVerdict) -> bool {
    let why = verdict.reason.as_deref().unwrap_or_default();
    why.starts_with(super::plan::NO_BTF)
}

fn remedy(verdict: &ProbeVerdict) -> String {
    if is_no_btf(verdict) {
        // CONFIG_DEBUG_INFO_BTF_MODULES came with Linux 5.11.
        "use a kernel whose modules have BTF, such as Debian's from 6.1 on".to_owned()
    } else {
        "`rdmatop probes` names the programs".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::ebpf::plan::{self, CONTROL_PLANE};

    /// All programs on, but those of these names off for this reason.
    fn verdicts(off: &[&str], reason: &str) -> Vec<ProbeVerdict> {
        let hooks = CONTROL_PLANE.iter().chain(datapath::hooks());
        hooks
            .map(|hook| {
                if off.contains(&hook.program) {
                    plan::verdict(hook, Verdict::Unsupported, Some(reason.to_owned()))
                } else {
                    plan::verdict(hook, Verdict::Ok, None)
                }
            })
            .collect()
    }

    fn lines(off: &[&str], reason: &str) -> Vec<String> {
        notes(&verdicts(off, reason), false)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn when_all_is_on_there_is_nothing_to_say() {
        assert_eq!(lines(&[], ""), [""; 0]);
        let unloaded: Vec<_> = CONTROL_PLANE
            .iter()
            .map(|hook| plan::verdict(hook, Verdict::NotApplicable, Some("not loaded".into())))
            .collect();
        assert_eq!(notes(&unloaded, false), []);
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
                "tracefs is not mounted; mount -t tracefs tracefs /sys/kernel/tracing"
            ),
            [
                "Not seen: rdma_cm events, rdma_cm connect, rdma_cm accept and 2 more (rdmatop probes): tracefs is not \
              mounted. mount -t tracefs tracefs /sys/kernel/tracing"
            ]
        );
    }

    #[test]
    fn a_data_path_that_is_not_counted_is_one_line_whatever_the_causes() {
        let hot: Vec<&str> = datapath::hooks().map(|hook| hook.program).collect();
        let mut all = verdicts(&hot, "no BTF for rxe_qp.ibqp, rxe_qp.is_user");
        if let Some(last) = all.last_mut() {
            last.reason = Some("this kernel has no function x".into());
        }
        let masked = notes(&all, true);
        assert!(masked[0].remedy.contains("/sys/kernel/btf"), "{masked:?}");
        let notes = notes(&all, false);
        assert_eq!(notes.len(), 1, "{notes:?}");
        let line = notes[0].to_string();
        assert!(line.starts_with(DATA_PATH) && line.contains("no BTF"), "{line}");
        assert!(
            !line.contains("rxe_qp.is_user"),
            "members are for the table of probes: {line}"
        );
    }

    #[test]
    fn a_part_of_the_data_path_is_named() {
        let one = lines(&["kp_xmit"], "this kernel has no function rxe_xmit_packet");
        assert_eq!(
            one,
            [
                "Not seen: retransmitted packets: this kernel has no function rxe_xmit_packet. `rdmatop probes` names the \
              programs"
            ]
        );
    }
}
