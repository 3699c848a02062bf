//! Records of which only the owner is read, and for memory regions the size: MR, PD, user context, CM id
//! (`fill_res_{mr,pd,ctx,cm_id}_entry`, drivers/infiniband/core/nldev.c). The keys of regions (`RES_LKEY`,
//! `RES_RKEY`) are secrets, so no code reads them.
use super::{Entry, Owner};
use crate::netlink::attr::{RES_MR, RES_MR_ENTRY, RES_MRLEN, RES_MRN, cmd};
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// A memory region.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mr {
    /// Id within the device.
    pub mrn: Option<u32>,
    /// Bytes registered.
    pub bytes: Option<u64>,
    /// The process or kernel module that created it.
    pub owner: Option<Owner>,
}

impl Entry for Mr {
    const COMMAND: u16 = cmd::RES_MR_GET;
    const TABLE: u16 = RES_MR;
    const ENTRY: u16 = RES_MR_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut mr = Self::default();
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_MRN => mr.mrn = Some(attr.u32()?),
                RES_MRLEN => mr.bytes = Some(attr.u64()?),
                _ => Owner::read(&attr, &mut mr.owner)?,
            }
        }
        Ok(mr)
    }

    fn identity(&self) -> Option<u64> {
        self.mrn.map(u64::from)
    }
}

/// A protection domain, a user context (the open verbs file of one process), or a connection-manager id (one
/// end of an rdma_cm connection, or a listener).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// Id within the device.
    pub id: Option<u32>,
    /// The process or kernel module that created it.
    pub owner: Option<Owner>,
}

impl Owned {
    /// Reads an entry whose id is the attribute `number`.
    pub fn decode(attrs: &Attrs<'_>, number: u16) -> WireResult<Self> {
        Ok(Self {
            id: attrs.get(number, Attr::u32)?,
            owner: Owner::of(attrs)?,
        })
    }
}
