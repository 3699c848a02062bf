//! Queue pair record: `fill_res_qp_entry`, drivers/infiniband/core/nldev.c.
use super::{Entry, Owner};
use crate::netlink::attr::{
    PORT_INDEX, RES_KERN_NAME, RES_LQPN, RES_PID, RES_QP, RES_QP_ENTRY, RES_RQ_PSN, RES_RQPN, RES_SQ_PSN,
    RES_STATE, RES_TYPE, cmd,
};
use crate::netlink::wire::{ATTR_HEADER, Attrs, WireError, WireResult};
use rdmatop_base::ib::{QpState, QpType};

/// A queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
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
        let mut lqpn = None;
        let (mut port, mut qp_type, mut state, mut rqpn, mut rq_psn) = (None, None, None, None, None);
        let (mut sq_psn, mut owner) = (None, None);
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                RES_LQPN => lqpn = Some(attr.u32()?),
                PORT_INDEX => port = Some(attr.u32()?),
                RES_TYPE => qp_type = Some(QpType(attr.u8()?)),
                RES_STATE => state = Some(QpState(attr.u8()?)),
                RES_RQPN => rqpn = Some(attr.u32()?),
                RES_RQ_PSN => rq_psn = Some(attr.u32()?),
                RES_SQ_PSN => sq_psn = Some(attr.u32()?),
                _ => Owner::read(&attr, &mut owner)?,
            }
        }
        Ok(Self {
            lqpn: lqpn.ok_or(WireError::Missing {
                record: "QP",
                number: RES_LQPN,
            })?,
            port,
            qp_type,
            state,
            rqpn,
            rq_psn,
            sq_psn,
            owner,
        })
    }

    /// The QP number. QP 0 and QP 1 exist once for each port, so their port is part of the identity, as in
    /// the kernel's own key (`rdma_restrack_add`, drivers/infiniband/core/restrack.c).
    fn identity(&self) -> Option<u64> {
        let special = matches!(self.qp_type, Some(QpType::SMI | QpType::GSI));
        let port = if special { self.port.unwrap_or(0) } else { 0 };
        Some(u64::from(port) << 32 | u64::from(self.lqpn))
    }
}

/// Reads the entries of a dump one after another.
///
/// Nearly all of ten thousand entries hold the same attributes in the same order: their values are then read
/// from the places known from the entry before, for a third of the cost of decoding each attribute.
#[derive(Debug, Default)]
pub struct QpReader {
    shape: Option<Shape>,
}

/// Which attributes an entry holds, and where.
#[derive(Debug, Default)]
struct Shape {
    length: usize,
    headers: Vec<(usize, [u8; ATTR_HEADER])>,
    lqpn: usize,
    port: Option<usize>,
    qp_type: Option<usize>,
    state: Option<usize>,
    rqpn: Option<usize>,
    rq_psn: Option<usize>,
    sq_psn: Option<usize>,
    pid: Option<usize>,
}

impl QpReader {
    /// Reads one entry, as [`Qp::decode`](Entry::decode) does.
    pub fn read(&mut self, entry: &[u8]) -> WireResult<Qp> {
        if let Some(qp) = self.shape.as_ref().and_then(|shape| shape.read(entry)) {
            return Ok(qp);
        }
        let qp = Qp::decode(Attrs::new(entry))?;
        // A kernel QP has no shape, because it holds a string: the shape of the user QPs before it is kept.
        self.shape = Shape::of(entry).or_else(|| self.shape.take());
        Ok(qp)
    }
}

impl Shape {
    /// The shape of a fully decoded entry; `None` if it holds a string.
    fn of(entry: &[u8]) -> Option<Self> {
        let mut shape = Self {
            length: entry.len(),
            ..Self::default()
        };
        let mut lqpn = None;
        let mut attrs = Attrs::new(entry);
        loop {
            let at = entry.len() - attrs.left();
            let Some(attr) = attrs.next() else { break };
            let value = at + ATTR_HEADER;
            let place = match attr.ok()?.number {
                RES_LQPN => &mut lqpn,
                PORT_INDEX => &mut shape.port,
                RES_TYPE => &mut shape.qp_type,
                RES_STATE => &mut shape.state,
                RES_RQPN => &mut shape.rqpn,
                RES_RQ_PSN => &mut shape.rq_psn,
                RES_SQ_PSN => &mut shape.sq_psn,
                RES_PID => &mut shape.pid,
                RES_KERN_NAME => return None,
                _ => &mut None,
            };
            *place = Some(value);
            shape.headers.push((at, bytes_at(entry, at)?));
        }
        shape.lqpn = lqpn?;
        Some(shape)
    }

    /// Reads an entry of this shape.
    fn read(&self, entry: &[u8]) -> Option<Qp> {
        if entry.len() != self.length {
            return None;
        }
        // The same headers at the same places mean the same attributes, whose sizes were checked before.
        for (at, header) in &self.headers {
            if bytes_at::<ATTR_HEADER>(entry, *at)? != *header {
                return None;
            }
        }
        let number = |at: Option<usize>| Some(u32::from_ne_bytes(bytes_at(entry, at?)?));
        let byte = |at: Option<usize>| entry.get(at?).copied();
        Some(Qp {
            lqpn: number(Some(self.lqpn))?,
            port: number(self.port),
            qp_type: byte(self.qp_type).map(QpType),
            state: byte(self.state).map(QpState),
            rqpn: number(self.rqpn),
            rq_psn: number(self.rq_psn),
            sq_psn: number(self.sq_psn),
            owner: number(self.pid).and_then(Owner::process),
        })
    }
}

fn bytes_at<const N: usize>(entry: &[u8], at: usize) -> Option<[u8; N]> {
    entry.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::wire::MessageWriter;
    use proptest::prelude::*;

    /// Entries over few attributes, so that the same shapes repeat; some of a wrong size, some cut.
    fn entry() -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![
            Just(RES_LQPN),
            Just(PORT_INDEX),
            Just(RES_SQ_PSN),
            Just(RES_PID),
            Just(0x3abc)
        ];
        let attr = prop_oneof![
            8 => (number, prop_oneof![Just(0_u32), any::<u32>()]).prop_map(|(n, v)| (n, v.to_ne_bytes().to_vec())),
            4 => (prop_oneof![Just(RES_TYPE), Just(RES_STATE)], 0_u8..8)
                .prop_map(|(n, v)| (n, vec![v])),
            1 => Just((RES_KERN_NAME, b"ib_core\0".to_vec())),
            1 => (Just(RES_RQPN), proptest::collection::vec(any::<u8>(), 0..6)),
        ];
        let attrs = proptest::collection::vec(attr, 0..4);
        (attrs, 0_usize..40).prop_map(|(attrs, cut)| {
            let start = MessageWriter::new(0, 0, 0).u32(RES_LQPN, 17);
            let whole = attrs
                .iter()
                .fold(start, |m, (number, value)| m.bytes(*number, value));
            let mut bytes = whole.finish().split_off(16);
            if cut < 8 {
                bytes.truncate(bytes.len().saturating_sub(cut));
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn an_entry_is_read_the_same_whatever_came_before_it(
            entries in proptest::collection::vec(entry(), 1..5),
            order in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        ) {
            let mut reader = QpReader::default();
            for (which, value) in order {
                let mut entry = entries[which.index(entries.len())].clone();
                // The same shape with another value, or another shape by one byte.
                if let Some(byte) = entry.get_mut(usize::from(value) % 24).filter(|_| value < 128) {
                    *byte = value;
                }
                prop_assert_eq!(reader.read(&entry), Qp::decode(Attrs::new(&entry)));
            }
        }
    }
}
