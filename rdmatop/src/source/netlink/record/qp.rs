//! Queue pair record: `fill_res_qp_entry`, drivers/infiniband/core/nldev.c.
use serde::{Deserialize, Serialize};

use super::{Entry, Owner};
use crate::source::netlink::attr::{
    PORT_INDEX, RES_CQN, RES_LQPN, RES_PATH_MIG_STATE, RES_PDN, RES_QP, RES_QP_ENTRY, RES_RQ_PSN, RES_RQPN,
    RES_SQ_PSN, RES_STATE, RES_SUBTYPE, RES_TYPE, cmd,
};
use crate::source::netlink::enums::{MigState, QpState, QpType};
use crate::source::netlink::wire::{Attrs, WireError, WireResult};

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Path migration state; RC, UC and XRC only.
    pub mig_state: Option<MigState>,
    /// Protection domain's id, as in [`Pd`](super::Pd); user QPs only.
    pub pdn: Option<u32>,
    /// Completion queue's id, where the kernel gives it.
    pub cqn: Option<u32>,
    /// The driver's own kind of QP (`DCI`, `REG_UMR`, ...).
    pub subtype: Option<Box<str>>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for Qp {
    const NAME: &'static str = "QP";
    const COMMAND: u16 = cmd::RES_QP_GET;
    const TABLE: u16 = RES_QP;
    const ENTRY: u16 = RES_QP_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut lqpn = None;
        let (mut port, mut qp_type, mut state, mut rqpn, mut rq_psn) = (None, None, None, None, None);
        let (mut sq_psn, mut mig_state, mut pdn, mut cqn) = (None, None, None, None);
        let (mut subtype, mut owner) = (None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_LQPN => lqpn = Some(attr.u32()?),
                PORT_INDEX => port = Some(attr.u32()?),
                RES_TYPE => qp_type = Some(QpType::from(attr.u8()?)),
                RES_STATE => state = Some(QpState::from(attr.u8()?)),
                RES_RQPN => rqpn = Some(attr.u32()?),
                RES_RQ_PSN => rq_psn = Some(attr.u32()?),
                RES_SQ_PSN => sq_psn = Some(attr.u32()?),
                RES_PATH_MIG_STATE => mig_state = Some(MigState::from(attr.u8()?)),
                RES_PDN => pdn = Some(attr.u32()?),
                RES_CQN => cqn = Some(attr.u32()?),
                RES_SUBTYPE => subtype = Some(attr.text()?),
                _ => Owner::read(&attr, &mut owner)?,
            }
        }
        Ok(Self {
            lqpn: lqpn.ok_or(WireError::Missing {
                record: Self::NAME,
                number: RES_LQPN,
            })?,
            port,
            qp_type,
            state,
            rqpn,
            rq_psn,
            sq_psn,
            mig_state,
            pdn,
            cqn,
            subtype,
            owner,
        })
    }

    /// The QP number; QP 0 and QP 1 exist once per port, so they take their port with them, as the kernel's
    /// own key does (`rdma_restrack_add`, drivers/infiniband/core/restrack.c).
    fn identity(&self) -> Option<u64> {
        let special = matches!(self.qp_type, Some(QpType::Smi | QpType::Gsi));
        let port = if special { self.port.unwrap_or(0) } else { 0 };
        Some(u64::from(port) << 32 | u64::from(self.lqpn))
    }
}
