//! The owner of a resource.
use crate::netlink::attr::{RES_KERN_NAME, RES_PID};
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// The process or kernel module that created a resource (`fill_res_name_pid`,
/// drivers/infiniband/core/nldev.c).
///
/// Records hold `Option<Owner>`: the kernel sends neither for an orphan, a user object whose creator exited
/// while another process holds the verbs file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A process, by its id in our PID namespace. It created the resource; another one may use it now.
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

    /// The owner for a PID. Kernels before 6.x send PID 0 for a creator outside of our PID namespace: that
    /// owner is unknown.
    pub(super) fn process(pid: u32) -> Option<Self> {
        Some(pid).filter(|&pid| pid != 0).map(Self::Process)
    }

    /// The owner in a record.
    pub(super) fn of(attrs: &Attrs<'_>) -> WireResult<Option<Self>> {
        let mut owner = None;
        for attr in attrs.clone() {
            Self::read(&attr?, &mut owner)?;
        }
        Ok(owner)
    }

    /// Takes the owner from `attr`, if it holds one.
    #[inline]
    pub(super) fn read(attr: &Attr<'_>, owner: &mut Option<Self>) -> WireResult<()> {
        match attr.number {
            RES_PID => *owner = Self::process(attr.u32()?),
            RES_KERN_NAME => *owner = Some(Self::Kernel(attr.text()?)),
            _ => {}
        }
        Ok(())
    }
}
