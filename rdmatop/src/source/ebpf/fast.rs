//! Hooks that have a second program, entered by fentry or fexit. It costs the traced program less than a kprobe, needs
//! the BTF of the hook's module (Linux 5.11) and keeps that module loaded.
//!
//! A kprobe program runs with preemption off, and the kernel skips it where any other one is running on the CPU. An
//! fentry program is skipped only where the same one is running on the CPU (`prog->active`, kernel/bpf/trampoline.c): for a
//! softirq that interrupts it, and on a preemptible kernel for a task that takes over. In storms of 40 000 events by four
//! threads on two CPUs none was lost in four of each on Linux 6.1 and 6.12 (`preempt=voluntary`), and 299, 767 and 734 in
//! three on 7.2 (`preempt=lazy`), where kprobes lose none. So there the control plane stays with kprobes.

use super::plan::{Entry, Hook};

/// A second program of a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fast {
    /// Name in the object.
    pub program: &'static str,
    /// fentry or fexit.
    pub entry: Entry,
    /// A run that is skipped is made good by a later one: it may be preempted.
    pub heals: bool,
}

/// The program that does by fentry or fexit what a hook's does by kprobe; `None` where that would lose something, or
/// where the call is too rare for it to matter.
pub fn fast(hook: &Hook) -> Option<Fast> {
    let (program, entry) = match hook.program {
        "modify_qp" => ("fe_modify_qp", Entry::Fentry),
        "modify_qp_ret" => ("fx_modify_qp", Entry::Fexit),
        "destroy_qp" => ("fe_destroy_qp", Entry::Fentry),
        "destroy_qp_ret" => ("fx_destroy_qp", Entry::Fexit),
        "dereg_mr" => ("fe_dereg_mr", Entry::Fentry),
        "dereg_mr_ret" => ("fx_dereg_mr", Entry::Fexit),
        "destroy_cq" => ("fe_destroy_cq", Entry::Fentry),
        "destroy_cq_ret" => ("fx_destroy_cq", Entry::Fexit),
        "restrack_add" => ("fe_restrack_add", Entry::Fentry),
        "cmd_verbs" => ("fe_cmd_verbs", Entry::Fentry),
        "cmd_verbs_ret" => ("fx_cmd_verbs", Entry::Fexit),
        // The doorbell, the one hook of the data path that the posting program itself pays for.
        "kp_post_send" => ("fe_post_send", Entry::Fentry),
        _ => return None,
    };
    Some(Fast {
        program,
        entry,
        // The next look at the ring's index finds what a doorbell would have told.
        heals: hook.program == "kp_post_send",
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::source::ebpf::{datapath, plan::CONTROL_PLANE};

    #[test]
    fn a_return_stays_a_return_and_no_program_stands_for_two_hooks() {
        let mut programs = BTreeSet::new();
        for hook in CONTROL_PLANE.iter().chain(datapath::hooks()) {
            programs.insert(hook.program);
            let Some(Fast { program, entry, .. }) = fast(hook) else {
                continue;
            };
            assert!(programs.insert(program), "{program}");
            let wanted = match hook.entry {
                Entry::Kprobe => Entry::Fentry,
                Entry::Kretprobe => Entry::Fexit,
                other => panic!("{program}: {other:?}"),
            };
            assert_eq!(entry, wanted, "{program}");
            // The kernel keeps no more of a name.
            assert!(program.len() <= 15, "{program}");
        }
    }

    #[test]
    fn both_ends_of_a_call_have_one_or_neither_has() {
        for back in CONTROL_PLANE.iter().filter(|hook| hook.entry == Entry::Kretprobe) {
            let there = CONTROL_PLANE
                .iter()
                .find(|hook| hook.entry == Entry::Kprobe && hook.symbol == back.symbol);
            let there = there.unwrap_or_else(|| panic!("{} has no entry", back.program));
            assert_eq!(fast(there).is_some(), fast(back).is_some(), "{}", back.program);
        }
    }
}
