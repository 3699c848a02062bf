//! Typed records, one file each: what the kernel says of a device, a port, a QP, ...
//!
//! A field the kernel did not send is `None`. An attribute of the wrong size fails its record: a number cut
//! short is no number. Attributes this build does not know are skipped.
mod address;
mod cm_id;
mod counters;
mod device;
mod object;
mod owner;
mod port;
mod qp;
mod summary;
mod sys;

pub use address::CmAddr;
pub use cm_id::CmId;
pub use counters::{CounterSet, HwCounter, decode_counters, visit_counters};
pub use device::{Device, DeviceKey, Guid};
pub use object::{Cq, Ctx, Mr, Pd, QpnRange, Srq};
pub use owner::Owner;
pub use port::{NetdevRef, Port};
pub use qp::{Qp, QpReader};
pub use summary::{ResourceCount, Summary};
pub use sys::SysSettings;

use super::wire::{Attrs, WireResult};

/// A record that a dump lists in a table of entries.
pub trait Entry: Sized {
    /// What errors call it.
    const NAME: &'static str;
    /// The command that dumps it.
    const COMMAND: u16;
    /// The attribute that holds the table.
    const TABLE: u16;
    /// The attribute of one entry.
    const ENTRY: u16;

    /// Reads one entry.
    fn decode(attrs: Attrs<'_>) -> WireResult<Self>;

    /// What makes two entries of one device the same object; `None` when the kernel sent no id.
    fn identity(&self) -> Option<u64>;
}
