//! Hardware counters of a port: `stat_get_doit_default_counter`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{STAT_HWCOUNTER_ENTRY_NAME, STAT_HWCOUNTER_ENTRY_VALUE, STAT_HWCOUNTERS};
use crate::netlink::wire::{Attrs, WireResult};

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

pub(super) fn visit_table(table: Attrs<'_>, visit: &mut dyn FnMut(&[u8], u64)) -> WireResult<()> {
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
