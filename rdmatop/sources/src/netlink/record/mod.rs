//! Typed records, one file each: the kernel's data about a device, a port, a QP, ...
//!
//! A field that the kernel did not send is `None`. An attribute of the wrong size fails its record, because a
//! truncated number is not a number. Unknown attributes are skipped.
mod counter_set;
mod counters;
mod device;
mod mlx5;
mod object;
mod owner;
mod port;
mod qp;
mod summary;
mod sys;

pub use counter_set::{Binding, CounterSet, Mask, Mode, OptionalCounter, decode_binding, decode_optional};
pub use counters::visit_counters;
pub use device::Device;
pub use mlx5::QpContext;
pub use object::{Mr, Owned};
pub use owner::Owner;
pub use port::{NetdevRef, Port};
pub use qp::Qp;
pub use summary::Summary;
pub use sys::NetnsMode;

use super::wire::{Attrs, WireResult};

/// A record that a dump lists in a table of entries.
pub trait Entry: Sized {
    /// The command that dumps it.
    const COMMAND: u16;
    /// The attribute that holds the table.
    const TABLE: u16;
    /// The attribute of one entry.
    const ENTRY: u16;

    /// Reads one entry.
    fn decode(attrs: Attrs<'_>) -> WireResult<Self>;

    /// The key of an object within its device; `None` when the kernel sent no id.
    fn identity(&self) -> Option<u64>;
}
