//! Queue pair record: `fill_res_qp_entry`, drivers/infiniband/core/nldev.c.
use super::{Entry, Owner};
use crate::netlink::attr::{
    PORT_INDEX, RES_LQPN, RES_QP, RES_QP_ENTRY, RES_RQ_PSN, RES_RQPN, RES_SQ_PSN, RES_STATE, RES_TYPE, cmd,
};
use crate::netlink::wire::{Attrs, WireError, WireResult};
use rdmatop_base::ib::{QpState, QpType};

/// A queue pair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Qp {
    /// Local QP number; reused by the kernel after destroy.
    pub lqpn: u32,
    /// Port it is bound to; none before INIT.
    pub port: Option<u32>,
    /// Type.
    pub qp_type: Option<QpType>,
    /// State.
    pub state: Option<QpState>,
    /// Remote QP number; RC and UC only, 0 until RTR.
    pub rqpn: Option<u32>,
    /// Receive PSN, 24 bits; RC and UC only.
    pub rq_psn: Option<u32>,
    /// Send PSN, 24 bits. SoftRoCE moves it with every packet; other drivers may not.
    pub sq_psn: Option<u32>,
    /// The process or kernel module that created it.
    pub owner: Option<Owner>,
}

impl Entry for Qp {
    const COMMAND: u16 = cmd::RES_QP_GET;
    const TABLE: u16 = RES_QP;
    const ENTRY: u16 = RES_QP_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let (mut qp, mut lqpn) = (Self::default(), None);
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_LQPN => lqpn = Some(attr.u32()?),
                PORT_INDEX => qp.port = Some(attr.u32()?),
                RES_TYPE => qp.qp_type = Some(QpType(attr.u8()?)),
                RES_STATE => qp.state = Some(QpState(attr.u8()?)),
                RES_RQPN => qp.rqpn = Some(attr.u32()?),
                RES_RQ_PSN => qp.rq_psn = Some(attr.u32()?),
                RES_SQ_PSN => qp.sq_psn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut qp.owner)?,
            }
        }
        qp.lqpn = lqpn.ok_or(WireError::missing("QP", RES_LQPN))?;
        Ok(qp)
    }

    /// The QP number. QP 0 and QP 1 exist once for each port, so their port is part of the identity, as in
    /// the kernel's own key (`rdma_restrack_add`, drivers/infiniband/core/restrack.c).
    fn identity(&self) -> Option<u64> {
        let special = matches!(self.qp_type, Some(QpType::SMI | QpType::GSI));
        let port = if special { self.port.unwrap_or(0) } else { 0 };
        Some(u64::from(port) << 32 | u64::from(self.lqpn))
    }
}
