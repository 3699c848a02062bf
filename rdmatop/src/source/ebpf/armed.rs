//! Whether kprobes run at all.
//!
//! Two switches of the kernel let a kprobe be attached and never run, without an error and without a count: what such
//! programs do not see would look like nothing that happened.

use std::path::PathBuf;

use crate::model::cause::{CauseId, Obstacle};
use crate::source::root::Root;

/// Whether a kprobe at a function's entry is a client of ftrace (`CONFIG_KPROBES_ON_FTRACE`), which arm64 has not.
const BY_FTRACE: bool = !cfg!(target_arch = "aarch64");

/// Why kprobes do not run, and the remedy; `None` where they do, or where nothing says that they do not.
///
/// `ftrace_startup_enable` (kernel/trace/ftrace.c) leaves the function alone while `kernel.ftrace_enabled` is 0, and
/// `arm_all_kprobes` (kernel/kprobes.c) is what `kprobes/enabled` in debugfs switches.
pub(crate) fn why_not(root: &Root) -> Option<Obstacle> {
    let is_off = |path: PathBuf| root.number(&path) == Some(0);
    if BY_FTRACE && is_off(root.proc("sys/kernel/ftrace_enabled")) {
        return Some(off(
            "kernel.ftrace_enabled is 0, so that no kprobe runs",
            "`sysctl kernel.ftrace_enabled=1`",
        ));
    }
    if is_off(root.sys("kernel/debug/kprobes/enabled")) {
        return Some(off(
            "kprobes are switched off",
            "`echo 1 >/sys/kernel/debug/kprobes/enabled`",
        ));
    }
    None
}

/// Why no program would be loaded whatever the rights are, and the remedy. The verifier's own words for it are a refused
/// instruction.
///
/// Not looked at again later: what is loaded goes on (`bpf_tracing_func_proto`, kernel/trace/bpf_trace.c, asks at load).
pub(super) fn locked_down(root: &Root) -> Option<Obstacle> {
    let modes = root.line(&root.sys("kernel/security/lockdown"))?;
    modes.contains("[confidentiality]").then(|| {
        Obstacle::new(
            CauseId::Lockdown,
            "kernel lockdown is `confidentiality`, which forbids eBPF to read kernel memory",
            "boot with lockdown=integrity",
        )
    })
}

fn off(why: &str, remedy: &str) -> Obstacle {
    Obstacle::new(CauseId::ProbesOff, why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::fake::Fake;

    #[test]
    fn a_lockdown_that_forbids_reading_is_told_and_a_weaker_one_is_not() {
        let fake = Fake::new();
        assert_eq!(locked_down(&fake.root()), None);
        fake.sys("kernel/security/lockdown", "none [integrity] confidentiality\n");
        assert_eq!(locked_down(&fake.root()), None);
        fake.sys("kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert!(locked_down(&fake.root()).is_some_and(|why| why.remedy.contains("lockdown=integrity")));
    }

    #[test]
    fn a_switch_that_is_off_is_told_with_the_way_to_turn_it_on() {
        let fake = Fake::new();
        assert_eq!(why_not(&fake.root()), None, "unknown is not off");
        fake.proc("sys/kernel/ftrace_enabled", "1\n")
            .sys("kernel/debug/kprobes/enabled", "1\n");
        assert_eq!(why_not(&fake.root()), None);
        fake.sys("kernel/debug/kprobes/enabled", "0\n");
        assert!(why_not(&fake.root()).is_some_and(|why| why.remedy.contains("kprobes/enabled")));
        fake.proc("sys/kernel/ftrace_enabled", "0\n");
        assert_eq!(
            why_not(&fake.root()).is_some_and(|why| why.remedy.contains("sysctl kernel.ftrace_enabled=1")),
            BY_FTRACE
        );
    }
}
