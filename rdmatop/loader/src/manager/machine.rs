//! The state of the machine that a session is made for.

use crate::{manager::modules::Generations, session::armed::why_unarmed};
use rdmatop_model::cause::Obstacle;
use rdmatop_sources::{root::Root, sysfs::has_hardware};

/// The state of the machine that a session is made for. When modules change, the manager makes another
/// session.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MachineState {
    pub(crate) modules: Generations,
    /// A device exists whose posts no program of ours counts.
    hardware: bool,
    /// Why kprobes do not run. If an administrator switches them off during a session, the session sees
    /// nothing from then on.
    pub(super) unarmed: Option<Obstacle>,
}

impl MachineState {
    pub(crate) fn read() -> Self {
        let root = Root::default();
        Self {
            modules: Generations::read(&root.sys("module")),
            hardware: has_hardware(&root),
            unarmed: why_unarmed(&root),
        }
    }
}
