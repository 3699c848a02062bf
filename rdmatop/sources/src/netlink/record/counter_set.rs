//! Counters that QPs are bound to, and how they are bound: `fill_res_counter_entry`, `stat_get_doit_qp` and
//! `nldev_stat_get_counter_status_doit`, drivers/infiniband/core/nldev.c.
use super::counters::visit_table;
use super::{Entry, Owner};
use crate::netlink::attr::{
    PORT_INDEX, RES_LQPN, RES_QP, RES_QP_ENTRY, RES_TYPE, STAT_AUTO_MODE_MASK, STAT_COUNTER,
    STAT_COUNTER_ENTRY, STAT_COUNTER_ID, STAT_HWCOUNTER_DYNAMIC, STAT_HWCOUNTER_ENTRY_NAME,
    STAT_HWCOUNTER_INDEX, STAT_HWCOUNTERS, STAT_MODE, cmd,
};
use crate::netlink::wire::{Attr, Attrs, WireResult};
use rdmatop_base::ib::QpType;

/// How QPs are bound to counters (`enum rdma_nl_counter_mode`, include/uapi/rdma/rdma_netlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// QPs are not bound.
    None,
    /// The kernel binds each QP when it goes from RESET to INIT.
    Auto,
    /// A program binds QPs one by one. Also after [`Mode::Auto`] was switched off, while QPs are still bound.
    Manual,
    /// A number unknown to this build.
    Other(u32),
}

impl From<u32> for Mode {
    fn from(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Auto,
            2 => Self::Manual,
            other => Self::Other(other),
        }
    }
}

impl Mode {
    /// The kernel's number.
    pub const fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Auto => 1,
            Self::Manual => 2,
            Self::Other(number) => number,
        }
    }
}

/// By what QPs share a counter in [`Mode::Auto`] (`enum rdma_nl_counter_mask`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mask(pub u32);

impl Mask {
    /// QPs of one type share a counter.
    pub const TYPE: Self = Self(1);
    /// QPs of one process share a counter.
    pub const PID: Self = Self(2);

    /// As rdma(8) writes it: `type,pid`.
    pub fn words(self) -> String {
        let known = [(Self::TYPE, "type"), (Self::PID, "pid")];
        let named = known.iter().filter(|(mask, _)| self.0 & mask.0 != 0);
        let mut words: Vec<String> = named.map(|(_, word)| (*word).to_owned()).collect();
        let rest = self.0 & !(Self::TYPE.0 | Self::PID.0);
        if rest != 0 || words.is_empty() {
            words.push(format!("{rest:#x}"));
        }
        words.join(",")
    }
}

/// How the QPs of a port are bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding {
    /// The mode.
    pub mode: Mode,
    /// In [`Mode::Auto`]: by what QPs share a counter.
    pub mask: Mask,
}

/// Reads the answer about a port's mode.
pub fn decode_binding(attrs: &Attrs<'_>) -> WireResult<Binding> {
    let mask = attrs.get(STAT_AUTO_MODE_MASK, Attr::u32)?;
    Ok(Binding {
        mode: attrs.need("counter mode", STAT_MODE, Attr::u32)?.into(),
        mask: mask.map(Mask).unwrap_or_default(),
    })
}

/// A counter that counts only when it is told to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionalCounter {
    /// The driver's name.
    pub name: Box<str>,
    /// Its place in the driver's table.
    pub index: u32,
    /// Whether it counts.
    pub on: bool,
}

/// Reads which counters of a port are optional.
pub fn decode_optional(attrs: &Attrs<'_>) -> WireResult<Vec<OptionalCounter>> {
    let mut out = Vec::new();
    for entry in attrs.nested(STAT_HWCOUNTERS)? {
        let counter = entry?.nest();
        let name = counter.get(STAT_HWCOUNTER_ENTRY_NAME, Attr::text)?;
        let index = counter.get(STAT_HWCOUNTER_INDEX, Attr::u32)?;
        let on = counter.get(STAT_HWCOUNTER_DYNAMIC, Attr::u8)?;
        if let (Some(name), Some(index), Some(on)) = (name, index, on) {
            let on = on != 0;
            out.push(OptionalCounter { name, index, on });
        }
    }
    Ok(out)
}

/// A counter that QPs are bound to, and what it has counted of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CounterSet {
    /// Its number on the device.
    pub id: u32,
    /// Port of its QPs.
    pub port: u32,
    /// How they were bound to it.
    pub mode: Option<Mode>,
    /// The process of all its QPs; only where they are bound by process.
    pub owner: Option<Owner>,
    /// The type of all its QPs; only where they are bound by type.
    pub qp_type: Option<QpType>,
    /// Its QPs.
    pub qps: Vec<u32>,
    /// What it has counted, by the driver's own names.
    pub counters: Vec<(String, u64)>,
}

impl CounterSet {
    /// By what the kernel put its QPs together. The record has no mask, but it has the type of the QPs only
    /// if the mask has `TYPE`, and their process only if the mask has `PID`.
    pub fn mask(&self) -> Mask {
        let by = |there: bool, mask: Mask| if there { mask.0 } else { 0 };
        Mask(by(self.qp_type.is_some(), Mask::TYPE) | by(self.owner.is_some(), Mask::PID))
    }
}

impl Entry for CounterSet {
    const COMMAND: u16 = cmd::STAT_GET;
    const TABLE: u16 = STAT_COUNTER;
    const ENTRY: u16 = STAT_COUNTER_ENTRY;

    fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let what = "counter";
        let mut counters = Vec::new();
        visit_table(attrs.nested(STAT_HWCOUNTERS)?, &mut |name, value| {
            counters.push((String::from_utf8_lossy(name).into_owned(), value));
        })?;
        let mut qps = Vec::new();
        for entry in attrs.nested(RES_QP)? {
            let entry = entry?;
            if entry.number == RES_QP_ENTRY {
                qps.extend(entry.nest().get(RES_LQPN, Attr::u32)?);
            }
        }
        Ok(Self {
            id: attrs.need(what, STAT_COUNTER_ID, Attr::u32)?,
            port: attrs.need(what, PORT_INDEX, Attr::u32)?,
            mode: attrs.get(STAT_MODE, Attr::u32)?.map(Mode::from),
            owner: Owner::of(&attrs)?,
            qp_type: attrs.get(RES_TYPE, Attr::u8)?.map(QpType),
            qps,
            counters,
        })
    }

    fn identity(&self) -> Option<u64> {
        Some(u64::from(self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_written_as_rdma_writes_it() {
        assert_eq!(Mask::PID.words(), "pid");
        assert_eq!(Mask(3).words(), "type,pid");
        assert_eq!(Mask(6).words(), "pid,0x4");
        assert_eq!(Mask(0).words(), "0x0");
    }

    #[test]
    fn every_number_of_a_mode_comes_back_unchanged() {
        for number in 0..9 {
            assert_eq!(Mode::from(number).number(), number);
        }
    }
}
