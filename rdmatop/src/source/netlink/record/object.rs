//! Records of the smaller resources: CQ, MR, PD, user context, SRQ (`fill_res_{cq,mr,pd,ctx,srq}_entry`,
//! drivers/infiniband/core/nldev.c). Keys (`RES_LKEY`, `RES_RKEY`) are left unread on purpose: they are secrets.
use super::{Entry, Owner};
use crate::source::netlink::attr::{
    MAX_RANGE, MIN_RANGE, RES_CQ, RES_CQ_ENTRY, RES_CQE, RES_CQN, RES_CTX, RES_CTX_ENTRY, RES_CTXN, RES_IOVA,
    RES_LQPN, RES_MR, RES_MR_ENTRY, RES_MRLEN, RES_MRN, RES_PD, RES_PD_ENTRY, RES_PDN, RES_POLL_CTX, RES_QP,
    RES_SRQ, RES_SRQ_ENTRY, RES_SRQN, RES_TYPE, RES_USECNT, cmd,
};
use crate::source::netlink::enums::{PollContext, SrqType};
use crate::source::netlink::wire::{Attrs, WireResult};

/// A completion queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cq {
    /// Id within the device.
    pub cqn: Option<u32>,
    /// Entries it can hold.
    pub cqe: Option<u32>,
    /// How many QPs and SRQs use it.
    pub users: Option<u64>,
    /// How a kernel CQ is polled.
    pub poll_context: Option<PollContext>,
    /// User context it belongs to.
    pub ctxn: Option<u32>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for Cq {
    const NAME: &'static str = "CQ";
    const COMMAND: u16 = cmd::RES_CQ_GET;
    const TABLE: u16 = RES_CQ;
    const ENTRY: u16 = RES_CQ_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut cq = Self {
            cqn: None,
            cqe: None,
            users: None,
            poll_context: None,
            ctxn: None,
            owner: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_CQN => cq.cqn = Some(attr.u32()?),
                RES_CQE => cq.cqe = Some(attr.u32()?),
                RES_USECNT => cq.users = Some(attr.u64()?),
                RES_POLL_CTX => cq.poll_context = Some(PollContext::from(attr.u8()?)),
                RES_CTXN => cq.ctxn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut cq.owner)?,
            }
        }
        Ok(cq)
    }

    fn identity(&self) -> Option<u64> {
        self.cqn.map(u64::from)
    }
}

/// A memory region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mr {
    /// Id within the device.
    pub mrn: Option<u32>,
    /// Bytes registered.
    pub bytes: Option<u64>,
    /// I/O address, where the kernel gives it.
    pub iova: Option<u64>,
    /// Protection domain's id; user regions only.
    pub pdn: Option<u32>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for Mr {
    const NAME: &'static str = "MR";
    const COMMAND: u16 = cmd::RES_MR_GET;
    const TABLE: u16 = RES_MR;
    const ENTRY: u16 = RES_MR_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut mr = Self {
            mrn: None,
            bytes: None,
            iova: None,
            pdn: None,
            owner: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_MRN => mr.mrn = Some(attr.u32()?),
                RES_MRLEN => mr.bytes = Some(attr.u64()?),
                RES_IOVA => mr.iova = Some(attr.u64()?),
                RES_PDN => mr.pdn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut mr.owner)?,
            }
        }
        Ok(mr)
    }

    fn identity(&self) -> Option<u64> {
        self.mrn.map(u64::from)
    }
}

/// A protection domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pd {
    /// Id within the device.
    pub pdn: Option<u32>,
    /// How many objects use it.
    pub users: Option<u64>,
    /// User context it belongs to.
    pub ctxn: Option<u32>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for Pd {
    const NAME: &'static str = "PD";
    const COMMAND: u16 = cmd::RES_PD_GET;
    const TABLE: u16 = RES_PD;
    const ENTRY: u16 = RES_PD_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut pd = Self {
            pdn: None,
            users: None,
            ctxn: None,
            owner: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_PDN => pd.pdn = Some(attr.u32()?),
                RES_USECNT => pd.users = Some(attr.u64()?),
                RES_CTXN => pd.ctxn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut pd.owner)?,
            }
        }
        Ok(pd)
    }

    fn identity(&self) -> Option<u64> {
        self.pdn.map(u64::from)
    }
}

/// A user context: one process's open verbs file. Not on 5.10.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ctx {
    /// Id within the device.
    pub ctxn: Option<u32>,
    /// Who opened it.
    pub owner: Option<Owner>,
}

impl Entry for Ctx {
    const NAME: &'static str = "CTX";
    const COMMAND: u16 = cmd::RES_CTX_GET;
    const TABLE: u16 = RES_CTX;
    const ENTRY: u16 = RES_CTX_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut ctx = Self {
            ctxn: None,
            owner: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_CTXN => ctx.ctxn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut ctx.owner)?,
            }
        }
        Ok(ctx)
    }

    fn identity(&self) -> Option<u64> {
        self.ctxn.map(u64::from)
    }
}

/// QP numbers from `first` to `last`, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpnRange {
    /// Lowest number.
    pub first: u32,
    /// Highest number.
    pub last: u32,
}

/// Reads the table of QP numbers that SRQ and counter-set records hold.
pub(super) fn decode_qpns(table: Attrs<'_>) -> WireResult<Vec<QpnRange>> {
    let mut ranges = Vec::new();
    for entry in table {
        let (mut single, mut first, mut last) = (None, None, None);
        for attr in entry?.nest() {
            let attr = attr?;
            match attr.number {
                RES_LQPN => single = Some(attr.u32()?),
                MIN_RANGE => first = Some(attr.u32()?),
                MAX_RANGE => last = Some(attr.u32()?),
                _ => {}
            }
        }
        if let Some((first, last)) = single.map(|qpn| (qpn, qpn)).or(first.zip(last)) {
            ranges.push(QpnRange { first, last });
        }
    }
    Ok(ranges)
}

/// A shared receive queue. Not on 5.10.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Srq {
    /// Id within the device.
    pub srqn: Option<u32>,
    /// Type.
    pub srq_type: Option<SrqType>,
    /// Protection domain's id.
    pub pdn: Option<u32>,
    /// Completion queue's id, of the types that have one.
    pub cqn: Option<u32>,
    /// QPs that receive through it.
    pub qpns: Vec<QpnRange>,
    /// Who made it.
    pub owner: Option<Owner>,
}

impl Entry for Srq {
    const NAME: &'static str = "SRQ";
    const COMMAND: u16 = cmd::RES_SRQ_GET;
    const TABLE: u16 = RES_SRQ;
    const ENTRY: u16 = RES_SRQ_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let mut srq = Self {
            srqn: None,
            srq_type: None,
            pdn: None,
            cqn: None,
            qpns: Vec::new(),
            owner: None,
        };
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_SRQN => srq.srqn = Some(attr.u32()?),
                RES_TYPE => srq.srq_type = Some(SrqType::from(attr.u8()?)),
                RES_PDN => srq.pdn = Some(attr.u32()?),
                RES_CQN => srq.cqn = Some(attr.u32()?),
                RES_QP => srq.qpns.extend(decode_qpns(attr.nest())?),
                _ => Owner::read(&attr, &mut srq.owner)?,
            }
        }
        Ok(srq)
    }

    fn identity(&self) -> Option<u64> {
        self.srqn.map(u64::from)
    }
}
