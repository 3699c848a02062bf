//! What every program needs on a machine, above all that kprobes run.
//!
//! While one of two kernel switches is off, a kprobe can be attached but never runs, and the kernel reports
//! no error and no count. Events that its program misses would look like events that did not happen.

use std::{fs::File, os::unix::fs::FileExt as _, path::PathBuf};

use super::would_not_run;
use crate::attach::WITHOUT_LOCKDOWN;
use crate::offsets::Paths;
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{root::Root, sysfs::list_devices};

/// Whether a kprobe at a function's entry uses ftrace (`CONFIG_KPROBES_ON_FTRACE`), which arm64 lacks.
const BY_FTRACE: bool = !cfg!(target_arch = "aarch64");

/// The two switches.
///
/// While `kernel.ftrace_enabled` is 0, `ftrace_startup_enable` (kernel/trace/ftrace.c) does not patch the
/// function. `kprobes/enabled` in debugfs calls `arm_all_kprobes` or its opposite (kernel/kprobes.c).
#[derive(Debug)]
pub struct Switches {
    ftrace: Switch,
    kprobes: Switch,
}

impl Switches {
    /// The switches below `root`.
    pub fn new(root: &Root) -> Self {
        Self {
            ftrace: Switch::at(root.proc("sys/kernel/ftrace_enabled")),
            kprobes: Switch::at(root.sys("kernel/debug/kprobes/enabled")),
        }
    }

    /// Why kprobes do not run, and the remedy; `None` if they run, or if the switches cannot be read.
    pub fn why_not(&mut self) -> Option<Obstacle> {
        if BY_FTRACE && self.ftrace.is_off() {
            return Some(off(
                "kernel.ftrace_enabled is 0, so that no kprobe runs",
                "`sudo sysctl -w kernel.ftrace_enabled=1`, until the next boot",
            ));
        }
        if self.kprobes.is_off() {
            return Some(off(
                "kprobes are switched off",
                "`echo 1 | sudo tee /sys/kernel/debug/kprobes/enabled`, until the next boot",
            ));
        }
        None
    }
}

/// A file with 0 or 1. It stays open, because a session reads it once a second, and opening it costs three
/// times as much as reading it. While it is open, its file system (debugfs) cannot be unmounted.
#[derive(Debug)]
struct Switch {
    path: PathBuf,
    file: Option<File>,
}

impl Switch {
    const fn at(path: PathBuf) -> Self {
        Self { path, file: None }
    }

    fn is_off(&mut self) -> bool {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut digit = [0];
        let read = self.file.as_ref().map(|file| file.read_at(&mut digit, 0));
        if let Some(Ok(1)) = read {
            return digit == *b"0";
        }
        // When the file exists again, it may be another file: open it anew.
        self.file = None;
        false
    }
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

fn off(why: &str, remedy: &'static str) -> Obstacle {
    Obstacle::new(CauseId::ProbesOff, why, remedy)
}

/// Checks what every program needs on this machine.
pub(super) fn may_start(paths: &Paths, root: &Root) -> Result<(), Obstacle> {
    if !paths.modules.is_dir() {
        return Err(Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: /sys is not mounted",
            "`sudo mount -t sysfs sysfs /sys` until the next boot, or give the container the host's /sys",
        ));
    }
    if !paths.modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match locked_down(root).or_else(|| Switches::new(root).why_not()) {
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
    use std::os::fd::AsRawFd;

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
        let mut switches = Switches::new(&fake.root());
        assert_eq!(switches.why_not(), None, "unknown is not off");
        fake.proc("sys/kernel/ftrace_enabled", "1\n")
            .sys("kernel/debug/kprobes/enabled", "1\n");
        assert_eq!(switches.why_not(), None);
        fake.sys("kernel/debug/kprobes/enabled", "0\n");
        assert!(
            switches
                .why_not()
                .is_some_and(|why| why.remedy.contains("kprobes/enabled"))
        );
        fake.proc("sys/kernel/ftrace_enabled", "0\n");
        assert_eq!(
            switches
                .why_not()
                .is_some_and(|why| why.remedy.contains("sudo sysctl -w kernel.ftrace_enabled=1")),
            BY_FTRACE
        );
        fake.proc("sys/kernel/ftrace_enabled", "1\n")
            .sys("kernel/debug/kprobes/enabled", "1\n");
        assert_eq!(switches.why_not(), None);
        let opened = switches.kprobes.file.as_ref().map(AsRawFd::as_raw_fd);
        fake.sys("kernel/debug/kprobes/enabled", "0\n");
        assert!(switches.why_not().is_some());
        assert_eq!(
            switches.kprobes.file.as_ref().map(AsRawFd::as_raw_fd),
            opened,
            "it stays open"
        );
        fake.sys("kernel/debug/kprobes/enabled", "");
        assert_eq!(switches.why_not(), None, "nothing to read is unknown");
        assert!(
            switches.kprobes.file.is_none(),
            "it is opened again when it is there again"
        );
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
