//! eBPF: our programs in the kernel, and what they report.
//!
//! [`control`] and [`datapath`] list the hooks, each as one [`hook::Hook`]. [`plan`] decides from facts which
//! to attach, [`session`] loads and attaches the programs, [`manager`] replaces the session when modules are
//! reloaded, reads the ring buffer and reports the state, [`sweep`] reads the maps, [`slots`] the counters of
//! QPs. [`preempt`] decides whether fentry programs could miss events. Offsets come from [`btf`] through
//! [`offsets`].
mod armed;
mod attach;
pub mod btf;
mod callers;
mod carried;
mod choice;
pub mod control;
pub mod datapath;
mod drain;
mod fentry;
pub mod foresee;
mod headroom;
pub mod hook;
mod kernel_btf;
#[cfg(test)]
mod keys;
mod load_error;
mod loader;
mod machine;
pub mod manager;
pub mod mapped;
mod modules;
mod object;
pub mod offsets;
mod panicked;
pub mod plan;
pub mod preempt;
mod probe;
mod prober;
mod program_log;
#[cfg(test)]
mod reads;
mod relist;
mod report;
mod rxe_seen;
mod scope;
pub mod session;
pub mod skipped;
pub mod slots;
pub mod sweep;
mod sys;
mod unpreempted;
mod unseen;
pub mod user;
mod verb_table;
mod watcher;
mod work;

pub use armed::Switches;
pub use datapath::Attach;
pub use manager::{Manager, StopHandle};
pub use object::available as object_available;
pub use panicked::reported;
pub use prober::{Asked, Prober};
pub use report::not_started;
pub use scope::Scope;
pub use session::{Options, Session};
pub use sweep::MapSweep;
pub use user::UserOptions;
pub use watcher::Watcher;
