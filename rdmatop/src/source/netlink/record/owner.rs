//! Who made a resource.
use crate::source::netlink::attr::{RES_KERN_NAME, RES_PID};
use crate::source::netlink::wire::{Attr, WireResult};

/// Who made a resource (`fill_res_name_pid`, drivers/infiniband/core/nldev.c).
///
/// Records hold `Option<Owner>`: the kernel sends neither for an orphan, a user object whose creator exited
/// while another process holds the verbs file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A process, by its id in our PID namespace. The creator, which need not be the user of today.
    Process(u32),
    /// A kernel module.
    Kernel(Box<str>),
}

impl Owner {
    /// The process id, if it is a process.
    pub const fn pid(&self) -> Option<u32> {
        match self {
            Self::Process(pid) => Some(*pid),
            Self::Kernel(_) => None,
        }
    }

    /// The process of a number. Kernels before 6.x send pid 0 for a creator outside of our PID namespace: nobody we
    /// can name.
    pub(super) fn process(pid: u32) -> Option<Self> {
        Some(pid).filter(|&pid| pid != 0).map(Self::Process)
    }

    /// Takes what `attr` says of the owner, if it does.
    pub(super) fn read(attr: &Attr<'_>, owner: &mut Option<Self>) -> WireResult<()> {
        match attr.number {
            RES_PID => *owner = Self::process(attr.u32()?),
            RES_KERN_NAME => *owner = Some(Self::Kernel(attr.text()?)),
            _ => {}
        }
        Ok(())
    }
}
