//! Records of which only the owner is read, and for memory regions the size: MR, PD, user context, CM id
//! (`fill_res_{mr,pd,ctx,cm_id}_entry`, drivers/infiniband/core/nldev.c). The keys of regions (`RES_LKEY`,
//! `RES_RKEY`) are secrets, so no code reads them.
use super::{Entry, Owner};
use crate::netlink::attr::{
    RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN, RES_CTX, RES_CTX_ENTRY, RES_CTXN, RES_MR, RES_MR_ENTRY,
    RES_MRLEN, RES_MRN, RES_PD, RES_PD_ENTRY, RES_PDN, cmd,
};
use crate::netlink::wire::{Attrs, WireResult};

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

/// Reads an entry of which only the id, the attribute `number`, and the owner are of interest.
fn id_and_owner(attrs: Attrs<'_>, number: u16) -> WireResult<(Option<u32>, Option<Owner>)> {
    let (mut id, mut owner) = (None, None);
    for attr in attrs {
        let attr = attr?;
        if attr.number == number {
            id = Some(attr.u32()?);
        } else {
            Owner::read(&attr, &mut owner)?;
        }
    }
    Ok((id, owner))
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident, $command:ident, $table:ident, $entry:ident, $number:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            /// Id within the device.
            pub id: Option<u32>,
            /// The process or kernel module that created it.
            pub owner: Option<Owner>,
        }

        impl Entry for $name {
            const COMMAND: u16 = cmd::$command;
            const TABLE: u16 = $table;
            const ENTRY: u16 = $entry;

            fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
                let (id, owner) = id_and_owner(attrs, $number)?;
                Ok(Self { id, owner })
            }

            fn identity(&self) -> Option<u64> {
                self.id.map(u64::from)
            }
        }
    };
}

owned! {
    /// A protection domain.
    Pd, RES_PD_GET, RES_PD, RES_PD_ENTRY, RES_PDN
}

owned! {
    /// A user context: the open verbs file of one process. Linux 5.10 lists none.
    Ctx, RES_CTX_GET, RES_CTX, RES_CTX_ENTRY, RES_CTXN
}

owned! {
    /// A connection-manager id: one end of an rdma_cm connection, or a listener.
    CmId, RES_CM_ID_GET, RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN
}
