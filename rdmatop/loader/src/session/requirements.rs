//! What every program needs on a machine.
use crate::{
    offsets::Paths,
    session::{armed, would_not_run},
};
use rdmatop_model::cause::{CauseId, Obstacle};
use rdmatop_sources::{root::Root, sysfs::list_devices};

/// Checks what every program needs on this machine.
pub(super) fn may_start(paths: &Paths, root: &Root) -> Result<(), Obstacle> {
    if !paths.modules.is_dir() {
        return Err(Obstacle::new(
            CauseId::NoModuleList,
            "cannot tell which modules are loaded: /sys is not mounted",
            "`mount -t sysfs sysfs /sys`",
        ));
    }
    if !paths.modules.join("ib_core").is_dir() {
        return Err(without_core(root));
    }
    match armed::locked_down(root).or_else(|| armed::Switches::new(root).why_not()) {
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
            "rdmatop waits for it",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_sources::fake::Fake;

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
