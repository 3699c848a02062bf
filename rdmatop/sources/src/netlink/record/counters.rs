//! Hardware counters of a port: `stat_get_doit_default_counter`, drivers/infiniband/core/nldev.c.
use crate::netlink::attr::{STAT_HWCOUNTER_ENTRY_NAME, STAT_HWCOUNTER_ENTRY_VALUE, STAT_HWCOUNTERS};
use crate::netlink::wire::{Attr, Attrs, WireResult};

/// Hands each counter of a `STAT_GET` answer to `visit`. False when the answer has no table of counters.
pub fn visit_counters(attrs: &Attrs<'_>, visit: &mut dyn FnMut(&[u8], u64)) -> WireResult<bool> {
    let table = attrs.get(STAT_HWCOUNTERS, |attr| Ok(attr.nest()))?;
    let found = table.is_some();
    table.map_or(Ok(()), |table| visit_table(table, visit))?;
    Ok(found)
}

pub(super) fn visit_table(table: Attrs<'_>, visit: &mut dyn FnMut(&[u8], u64)) -> WireResult<()> {
    for entry in table {
        let counter = entry?.nest();
        let name = counter.get(STAT_HWCOUNTER_ENTRY_NAME, Attr::string)?;
        let value = counter.get(STAT_HWCOUNTER_ENTRY_VALUE, Attr::u64)?;
        if let (Some(name), Some(value)) = (name, value) {
            visit(name, value);
        }
    }
    Ok(())
}
