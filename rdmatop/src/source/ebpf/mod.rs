//! eBPF: our programs in the kernel, and what they tell.
//!
//! [`control`] and [`datapath`] list the hooks, each one a record ([`hook`]). [`plan`] decides from facts, [`session`]
//! loads and attaches, [`manager`] keeps a session alive across module reloads, reads the ring buffer and reports the state,
//! [`sweep`] reads the maps, [`slots`] the counters of QPs. [`preempt`] says whether fentry loses nothing. Offsets come
//! from [`btf`] through [`offsets`].
mod armed;
mod attach;
pub mod btf;
mod carried;
pub mod control;
pub mod datapath;
mod fentry;
pub mod hook;
mod kernel_btf;
mod loader;
mod log;
pub mod manager;
pub mod mapped;
mod object;
pub mod offsets;
pub mod plan;
pub mod preempt;
mod probe;
#[cfg(test)]
mod reads;
mod scope;
pub mod session;
pub mod skipped;
pub mod slots;
pub mod sweep;
mod sys;
mod unseen;
mod verb_table;

pub(crate) use armed::why_not as kprobes_off;
pub use datapath::Attach;
pub(crate) use manager::not_started;
pub use manager::{Manager, StopHandle};
pub use object::available as object_available;
pub use scope::Scope;
pub use session::{Options, Session};
pub use sweep::MapSweep;
