//! Connection-manager id record: `fill_res_cm_id_entry`, drivers/infiniband/core/nldev.c.
use super::{CmAddr, Entry, Owner};
use crate::source::netlink::attr::{
    PORT_INDEX, RES_CM_ID, RES_CM_ID_ENTRY, RES_CM_IDN, RES_DST_ADDR, RES_LQPN, RES_PS, RES_SRC_ADDR,
    RES_STATE, RES_TYPE, cmd,
};
use crate::source::netlink::enums::{CmState, PortSpace, QpType};
use crate::source::netlink::wire::{Attrs, WireResult};

/// A connection-manager id: one end of an rdma_cm connection, or a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CmId {
    /// Id within the device.
    pub id: Option<u32>,
    /// Port it is bound to.
    pub port: Option<u32>,
    /// Its QP, once it has one.
    pub lqpn: Option<u32>,
    /// Type of its QP.
    pub qp_type: Option<QpType>,
    /// Port space.
    pub port_space: Option<PortSpace>,
    /// State.
    pub state: Option<CmState>,
    /// Source address.
    pub src: Option<CmAddr>,
    /// Destination address.
    pub dst: Option<CmAddr>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for CmId {
    const NAME: &'static str = "CM_ID";
    const COMMAND: u16 = cmd::RES_CM_ID_GET;
    const TABLE: u16 = RES_CM_ID;
    const ENTRY: u16 = RES_CM_ID_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let (mut id, mut port, mut lqpn, mut qp_type, mut port_space) = (None, None, None, None, None);
        let (mut state, mut src, mut dst, mut owner) = (None, None, None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_CM_IDN => id = Some(attr.u32()?),
                PORT_INDEX => port = Some(attr.u32()?),
                RES_LQPN => lqpn = Some(attr.u32()?),
                RES_TYPE => qp_type = Some(QpType::from(attr.u8()?)),
                RES_PS => port_space = Some(PortSpace::from(attr.u32()?)),
                RES_STATE => state = Some(CmState::from(attr.u8()?)),
                RES_SRC_ADDR => src = Some(CmAddr::decode(&attr)?),
                RES_DST_ADDR => dst = Some(CmAddr::decode(&attr)?),
                _ => Owner::read(&attr, &mut owner)?,
            }
        }
        Ok(Self {
            id,
            port,
            lqpn,
            qp_type,
            port_space,
            state,
            src,
            dst,
            owner,
        })
    }

    fn identity(&self) -> Option<u64> {
        self.id.map(u64::from)
    }
}
