//! eBPF: our programs in the kernel, and what they tell.
//!
//! [`plan`] decides from facts, [`session`] loads and attaches, [`manager`] keeps a session alive across module
//! reloads and reads the ring buffer, [`sweep`] reads the maps, [`slots`] the counters of QPs. [`datapath`] says
//! where a provider's data path is hooked, [`fast`] which hooks can be entered by fentry, [`preempt`]
//! whether that loses nothing. Offsets come from [`btf`] through [`offsets`].
mod armed;
mod attach;
pub mod btf;
mod carried;
pub mod datapath;
pub mod fast;
mod fentry;
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
mod scope;
pub mod session;
pub mod skipped;
pub mod slots;
pub mod status;
pub mod sweep;
mod unseen;
mod verb_table;

pub use datapath::Attach;
pub use manager::{Manager, StopHandle};
pub use object::available as object_available;
pub use scope::Scope;
pub use session::{Options, Session, SessionError};
pub use status::{EbpfStatus, SharedStatus};
pub use sweep::MapSweep;
