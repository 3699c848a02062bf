//! What rdmatop would attach on a kernel that is not running, of which only files exist, as in its package.
//!
//! The plan decides from facts alone, so it can decide for such a machine. The directory has the files that
//! the plan reads: `sys/kernel/btf`, `sys/module`, `sys/kernel/debug/sched/preempt`, `proc/kallsyms`,
//! `proc/sys/kernel/osrelease` and `version`. `cargo xtask kernels` makes such directories.

use std::path::Path;

use crate::{
    hooks::{Entry, datapath},
    offsets,
    plan::{self, Facts, Outcome, unseen},
};
use rdmatop_model::{
    cause::{Cause, Obstacle},
    input::Verdict,
};
use rdmatop_sources::root::Root;

/// What the files tell.
#[derive(Debug)]
pub struct Foreseen {
    /// The outcomes of all hooks on which the files decide, in the order of the tables. The verifier has not
    /// been asked, because it sees a program only on the running kernel.
    pub outcomes: Vec<Outcome>,
    /// Programs about which the files say nothing: those of tracepoints whose fields are in no BTF. A running
    /// kernel lists these fields in tracefs.
    pub undecided: Vec<&'static str>,
    /// Causes for what would not be seen, as the live view shows them.
    pub unseen: Vec<Cause>,
}

/// Decides on all hooks for the machine below `base`.
///
/// # Errors
///
/// The reason if no program would be attached there at all.
pub fn foresee(base: &Path) -> Result<Foreseen, Obstacle> {
    let root = Root::under(base);
    let (resolved, btf) = offsets::resolve(&root, None);
    let facts = Facts {
        // A package says nothing of them.
        gpus: true,
        ..Facts::read(&root, &resolved, &btf)?
    };
    let (mut outcomes, mut undecided) = (Vec::new(), Vec::new());
    for hook in datapath::all_hooks() {
        let outcome = plan::decide(hook, &facts);
        if outcome.verdict == Verdict::Unsupported && hook.entry == Entry::Tracepoint {
            undecided.push(hook.program);
        } else {
            outcomes.push(outcome);
        }
    }
    let unseen = unseen::causes(&outcomes, false);
    Ok(Foreseen {
        outcomes,
        undecided,
        unseen,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rdmatop_model::cause::CauseId;
    use rdmatop_sources::fake::Fake;

    use super::*;
    use crate::hooks::Hook;

    #[test]
    fn a_kernel_without_its_list_of_functions_is_not_decided_on() {
        let fake = Fake::new();
        fake.dir("sys/module/ib_core");
        fake.proc("sys/kernel/osrelease", "6.1.0\n");
        assert_eq!(foresee(fake.path()).unwrap_err().id, CauseId::NoSymbols);
    }

    #[test]
    fn the_page_about_kernels_names_all_programs_and_no_other() {
        let page = include_str!("../../../../docs/kernels.md");
        let (_, table) = page.split_once("\n| program |").unwrap();
        let named: BTreeSet<&str> = table.split('`').skip(1).step_by(2).collect();
        // Of a tracepoint's two programs the page has that of the newer kernels, at the raw tracepoint.
        let of = |hook: &'static Hook| hook.runs(hook.entry == Entry::Tracepoint);
        let programs: BTreeSet<&str> = datapath::all_hooks().map(of).collect();
        assert_eq!(
            named, programs,
            "`cargo xtask kernels` writes docs/kernels.md anew"
        );
    }

    #[test]
    fn without_btf_no_program_that_reads_structures_is_attached() {
        let fake = Fake::new();
        fake.dir("sys/module/ib_core");
        fake.dir("sys/module/rdma_cm");
        fake.proc("sys/kernel/osrelease", "6.1.0\n");
        fake.proc("kallsyms", "0000000000000000 t ib_create_qp_user\t[ib_core]\n");
        let foreseen = foresee(fake.path()).unwrap();
        let hooks = datapath::all_hooks().count();
        assert_eq!(foreseen.outcomes.len() + foreseen.undecided.len(), hooks);
        assert!(!foreseen.undecided.is_empty(), "rdma_cm's tracepoints");
        let reads = |outcome: &&Outcome| outcome.hook.needed().next().is_some();
        assert!(!foreseen.outcomes.iter().filter(reads).any(Outcome::is_on));
        assert!(!foreseen.unseen.is_empty());
    }
}
