//! What every program needs on a machine, above all that kprobes run.
//!
//! While one of two kernel switches is off, a kprobe can be attached but never runs, and the kernel reports
//! no error and no count. Events that its program misses would look like events that did not happen.

use super::would_not_run;
use crate::attach::WITHOUT_LOCKDOWN;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{root::Root, sysfs::list_devices};

/// Whether a kprobe at a function's entry uses ftrace (`CONFIG_KPROBES_ON_FTRACE`), which arm64 lacks.
const BY_FTRACE: bool = !cfg!(target_arch = "aarch64");

/// Why kprobes do not run, and the remedy; `None` if they run, or if the switches cannot be read.
///
/// While `kernel.ftrace_enabled` is 0, `ftrace_startup_enable` (kernel/trace/ftrace.c) does not patch the
/// function. `kprobes/enabled` in debugfs calls `arm_all_kprobes` or its opposite (kernel/kprobes.c).
pub fn why_unarmed(root: &Root) -> Option<Obstacle> {
    let off = |why: &str, remedy: &'static str| Some(Obstacle::new(CauseId::ProbesOff, why, remedy));
    if BY_FTRACE && root.number(&root.proc("sys/kernel/ftrace_enabled")) == Some(0) {
        return off(
            "kernel.ftrace_enabled is 0, so that no kprobe runs",
            "`sudo sysctl -w kernel.ftrace_enabled=1`, until the next boot",
        );
    }
    if root.number(&root.sys("kernel/debug/kprobes/enabled")) == Some(0) {
        return off(
            "kprobes are switched off",
            "`echo 1 | sudo tee /sys/kernel/debug/kprobes/enabled`, until the next boot",
        );
    }
    None
}

/// Why the kernel would load no program, whatever rights rdmatop has, and the remedy. The verifier would only
/// report that it refuses an instruction.
///
/// Checked only at the start: the kernel checks lockdown at load (`bpf_tracing_func_proto`,
/// kernel/trace/bpf_trace.c), and loaded programs keep running.
pub(super) fn locked_down(root: &Root) -> Option<Obstacle> {
    let modes = root.line(&root.sys("kernel/security/lockdown"))?;
    modes.contains("[confidentiality]").then(|| {
        Obstacle::new(
            CauseId::Lockdown,
            "kernel lockdown is `confidentiality`, which forbids eBPF to read kernel memory",
            WITHOUT_LOCKDOWN,
        )
    })
}

/// Checks what every program needs on this machine.
pub(super) fn may_start(root: &Root) -> Result<(), Obstacle> {
    let modules = root.sys("module");
    if !modules.is_dir() {
        return Err(Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: /sys is not mounted",
            "`sudo mount -t sysfs sysfs /sys` until the next boot, or give the container the host's /sys",
        ));
    }
    if !modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match locked_down(root).or_else(|| why_unarmed(root)) {
        Some(obstacle) => Err(would_not_run(obstacle)),
        None => Ok(()),
    }
}

/// Why there is no session if /sys/module does not list ib_core: either a container runtime masks the
/// directory, or ib_core is not loaded.
fn without_core(root: &Root) -> Obstacle {
    let loaded = list_devices(root).is_some()
        || root.bytes(&root.proc("modules"), 1 << 20).is_some_and(|list| {
            list.split(|b| *b == b'\n')
                .any(|line| line.starts_with(b"ib_core "))
        });
    if loaded {
        Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: there are RDMA devices, and /sys/module does not list ib_core",
            "give the container the host's /sys/module",
        )
    } else {
        Obstacle::new(
            CauseId::NoRdmaSubsystem,
            "ib_core is not loaded: there is nothing to trace yet",
            "it is waited for",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

    #[test]
    fn a_lockdown_that_forbids_reading_is_reported_and_a_weaker_one_is_not() {
        let fake = Fake::new();
        assert_eq!(locked_down(&fake.root()), None);
        fake.sys("kernel/security/lockdown", "none [integrity] confidentiality\n");
        assert_eq!(locked_down(&fake.root()), None);
        fake.sys("kernel/security/lockdown", "none integrity [confidentiality]\n");
        assert!(locked_down(&fake.root()).is_some_and(|why| why.remedy.contains("lockdown=integrity")));
    }

    #[test]
    fn a_switch_that_is_off_is_reported_with_the_way_to_turn_it_on() {
        let fake = Fake::new();
        let why = |fake: &Fake| why_unarmed(&fake.root());
        let names = |fake: &Fake, text: &str| why(fake).is_some_and(|why| why.remedy.contains(text));
        assert_eq!(why(&fake), None, "unknown is not off");
        fake.proc("sys/kernel/ftrace_enabled", "1\n")
            .sys("kernel/debug/kprobes/enabled", "1\n");
        assert_eq!(why(&fake), None);
        fake.sys("kernel/debug/kprobes/enabled", "0\n");
        assert!(names(&fake, "kprobes/enabled"));
        fake.proc("sys/kernel/ftrace_enabled", "0\n");
        assert_eq!(names(&fake, "sudo sysctl -w kernel.ftrace_enabled=1"), BY_FTRACE);
        fake.proc("sys/kernel/ftrace_enabled", "1\n")
            .sys("kernel/debug/kprobes/enabled", "1\n");
        assert_eq!(why(&fake), None);
        fake.sys("kernel/debug/kprobes/enabled", "");
        assert_eq!(why(&fake), None, "nothing to read is unknown");
    }

    #[test]
    fn a_masked_list_of_modules_is_not_taken_for_a_machine_without_rdma() {
        let fake = Fake::new();
        assert_eq!(without_core(&fake.root()).id, CauseId::NoRdmaSubsystem);
        fake.proc("modules", "ib_core_x 1 0 - Live 0x0\n");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoRdmaSubsystem);
        fake.proc("modules", "x 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoModuleList);
        let fake = Fake::new();
        fake.dir("sys/class/infiniband");
        assert_eq!(without_core(&fake.root()).id, CauseId::NoModuleList);
    }
}
