//! eBPF: our programs in the kernel, and what they report.
//!
//! In the order in which a session comes to be:
//!
//! * [`hooks`] lists the programs and where they run, each as one [`hooks::Hook`];
//! * [`offsets`] finds struct members in the running kernel's BTF;
//! * [`plan`] decides from facts alone which programs to attach, and says what is not seen;
//! * `load` makes maps and has programs verified, `attach` attaches them to functions and tracepoints;
//! * [`session`] goes through these steps once;
//! * [`maps`] reads counters and losses of the session;
//! * [`manager`] replaces the session when modules are reloaded, and reads its ring buffer;
//! * `on_request` has sessions that a user asks for: a QP's work requests, a process's probes;
//! * [`user`] probes functions of programs (`--uprobes`).
mod attach;
pub mod hooks;
mod load;
pub mod manager;
pub mod maps;
pub mod offsets;
mod on_request;
pub mod plan;
pub mod session;
pub mod user;

pub use load::object::available as object_available;
pub use manager::{Manager, panicked::reported};
pub use maps::sweep::MapSweep;
pub use on_request::{prober::Prober, watcher::Watcher};
pub use plan::{options::Options, scope::Scope};
pub use session::{Session, armed::why_unarmed, report::not_started};
pub use user::UserOptions;
