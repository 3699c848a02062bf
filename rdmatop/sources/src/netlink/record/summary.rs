//! Counts of resources: `fill_res_info`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{DEV_INDEX, RES_SUMMARY, RES_SUMMARY_ENTRY_CURR, RES_SUMMARY_ENTRY_NAME};
use crate::netlink::wire::{Attrs, WireError, WireResult};

/// The count of one kind of resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceCount {
    /// The kernel's name: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`, and any later kind.
    pub name: Box<str>,
    /// How many, of those visible in our PID namespace.
    pub count: u64,
}

/// Resource counts of a device. For the kernel some 30 times cheaper than a list of the QPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Index of the device that answered.
    pub device_index: u32,
    /// Counts in the kernel's order.
    pub counts: Vec<ResourceCount>,
}

impl Summary {
    /// Reads a summary.
    pub fn decode(attrs: Attrs<'_>) -> WireResult<Self> {
        let (mut device_index, mut counts) = (None, Vec::new());
        for attr in attrs {
            let attr = attr?;
            match attr.number {
                DEV_INDEX => device_index = Some(attr.u32()?),
                RES_SUMMARY => {
                    for entry in attr.nest() {
                        counts.extend(decode_count(entry?.nest())?);
                    }
                }
                _ => {}
            }
        }
        Ok(Self {
            device_index: device_index.ok_or(WireError::missing("summary", DEV_INDEX))?,
            counts,
        })
    }

    /// The count of `name`; `None` when this kernel does not count it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.counts
            .iter()
            .find(|entry| &*entry.name == name)
            .map(|entry| entry.count)
    }
}

fn decode_count(attrs: Attrs<'_>) -> WireResult<Option<ResourceCount>> {
    let (mut name, mut count) = (None, None);
    for attr in attrs {
        let attr = attr?;
        match attr.number {
            RES_SUMMARY_ENTRY_NAME => name = Some(attr.text()?),
            RES_SUMMARY_ENTRY_CURR => count = Some(attr.u64()?),
            _ => {}
        }
    }
    Ok(name.zip(count).map(|(name, count)| ResourceCount { name, count }))
}
