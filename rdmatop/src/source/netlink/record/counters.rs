//! Hardware counters of a port, and counter sets bound to QPs: `stat_get_doit_default_counter` and
//! `fill_res_counter_entry`, drivers/infiniband/core/nldev.c.
use super::object::decode_qpns;
use super::{Entry, Owner, QpnRange};
use crate::source::netlink::attr::{
    PORT_INDEX, RES_QP, RES_TYPE, STAT_COUNTER, STAT_COUNTER_ENTRY, STAT_COUNTER_ID,
    STAT_HWCOUNTER_ENTRY_NAME, STAT_HWCOUNTER_ENTRY_VALUE, STAT_HWCOUNTERS, STAT_MODE, cmd,
};
use crate::source::netlink::enums::{CounterMode, QpType};
use crate::source::netlink::wire::{Attrs, WireError, WireResult};

/// One hardware counter, by the driver's own name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HwCounter {
    /// The driver's name; any name passes.
    pub name: Box<str>,
    /// Value since the device was made, as wide as the driver counts (32 bits in some).
    pub value: u64,
}

/// Reads the counters of a `STAT_GET` answer. `None` when the answer has no table of counters.
pub fn decode_counters(attrs: Attrs<'_>) -> WireResult<Option<Vec<HwCounter>>> {
    let mut counters = None;
    for attr in attrs {
        let attr = attr?;
        if attr.number == STAT_HWCOUNTERS {
            counters = Some(decode_table(attr.nest())?);
        }
    }
    Ok(counters)
}

fn decode_table(table: Attrs<'_>) -> WireResult<Vec<HwCounter>> {
    let mut counters = Vec::with_capacity(32);
    visit_table(table, &mut |name, value| {
        let name = String::from_utf8_lossy(name).into();
        counters.push(HwCounter { name, value });
    })?;
    Ok(counters)
}

/// Hands each counter of a `STAT_GET` answer to `visit`. False when the answer has no table of counters.
pub fn visit_counters(attrs: Attrs<'_>, visit: &mut dyn FnMut(&[u8], u64)) -> WireResult<bool> {
    let mut found = false;
    for attr in attrs {
        let attr = attr?;
        if attr.number == STAT_HWCOUNTERS {
            found = true;
            visit_table(attr.nest(), visit)?;
        }
    }
    Ok(found)
}

fn visit_table(table: Attrs<'_>, visit: &mut dyn FnMut(&[u8], u64)) -> WireResult<()> {
    for entry in table {
        let (mut name, mut value) = (None, None);
        for attr in entry?.nest() {
            let attr = attr?;
            match attr.number {
                STAT_HWCOUNTER_ENTRY_NAME => name = Some(attr.string()?),
                STAT_HWCOUNTER_ENTRY_VALUE => value = Some(attr.u64()?),
                _ => {}
            }
        }
        if let (Some(name), Some(value)) = (name, value) {
            visit(name, value);
        }
    }
    Ok(())
}

/// A set of hardware counters and the QPs bound to it (`rdma statistic qp`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterSet {
    /// Id within the device.
    pub id: u32,
    /// Port.
    pub port: Option<u32>,
    /// How QPs got here.
    pub mode: Option<CounterMode>,
    /// In mode AUTO by type: the type.
    pub qp_type: Option<QpType>,
    /// In mode AUTO by process: the process.
    pub owner: Option<Owner>,
    /// The QPs bound now.
    pub qpns: Vec<QpnRange>,
    /// The counters, sums over the QPs.
    pub counters: Vec<HwCounter>,
}

impl Entry for CounterSet {
    const NAME: &'static str = "QP counter set";
    const COMMAND: u16 = cmd::STAT_GET;
    const TABLE: u16 = STAT_COUNTER;
    const ENTRY: u16 = STAT_COUNTER_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let (mut id, mut port, mut mode, mut qp_type, mut owner) = (None, None, None, None, None);
        let (mut qpns, mut counters) = (Vec::new(), Vec::new());
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                STAT_COUNTER_ID => id = Some(attr.u32()?),
                PORT_INDEX => port = Some(attr.u32()?),
                STAT_MODE => mode = Some(CounterMode::from(attr.u32()?)),
                RES_TYPE => qp_type = Some(QpType::from(attr.u8()?)),
                RES_QP => qpns.extend(decode_qpns(attr.nest())?),
                STAT_HWCOUNTERS => counters = decode_table(attr.nest())?,
                _ => Owner::read(&attr, &mut owner)?,
            }
        }
        let missing = WireError::Missing {
            record: Self::NAME,
            number: STAT_COUNTER_ID,
        };
        Ok(Self {
            id: id.ok_or(missing)?,
            port,
            mode,
            qp_type,
            owner,
            qpns,
            counters,
        })
    }

    /// Ids are per device and port.
    fn identity(&self) -> Option<u64> {
        Some(u64::from(self.port.unwrap_or(0)) << 32 | u64::from(self.id))
    }
}
