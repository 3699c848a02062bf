//! Counts of resources: `fill_res_info`, drivers/infiniband/core/nldev.c.
use std::collections::BTreeMap;

use crate::netlink::attr::{DEV_INDEX, RES_SUMMARY, RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME};
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// Resource counts of a device. For the kernel some 30 times cheaper than a list of the QPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Index of the device that answered.
    pub device_index: u32,
    /// How many there are of each kind, of those visible in our PID namespace, by the kernel's name: `pd`,
    /// `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`, and any later kind.
    pub counts: BTreeMap<Box<str>, u64>,
}

impl Summary {
    /// Reads a summary.
    pub fn decode(attrs: &Attrs<'_>) -> WireResult<Self> {
        let mut counts = BTreeMap::new();
        for entry in attrs.nested(RES_SUMMARY)? {
            let count = entry?.nest();
            let name = count.get(RES_SUMMARY_ENTRY_NAME, Attr::text)?;
            counts.extend(name.zip(count.get(RES_SUMMARY_ENTRY_CURR, Attr::u64)?));
        }
        let device_index = attrs.need("summary", DEV_INDEX, Attr::u32)?;
        Ok(Self { device_index, counts })
    }

    /// The count of `name`; `None` when this kernel does not count it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counts.get(name).copied()
    }
}
