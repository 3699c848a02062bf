//! Processes as /proc shows them.
//!
//! Two tiers, both read once for each new process that holds RDMA resources and again when it execs:
//! [`ProcBasic`], which [`ProcCache`] keeps and for which the kernel waits for nobody, and [`ProcDetail`],
//! which may be large, and which [`Details`] reads. A process is (pid, start time): pids are reused, and
//! counts of the old one never go to the new one.
mod alive;
mod basic;
mod boot;
mod cache;
pub mod cgroup;
mod delegated;
mod detail;
mod detail_reader;
mod details;
mod environ;
mod late;
mod leader;
pub mod locked;
pub mod maps;
mod nodes;
mod numbered;
mod own;
mod sharers;
mod stat;
mod status;
mod users;

pub use alive::lives;
pub use basic::{ProcBasic, ProcKey, ended, key, read_basic, read_cgroup};
pub use boot::start_offset;
pub use cache::{ProcCache, Refreshed};
pub use cgroup::Cgroup;
pub use detail::{Part, ProcDetail};
pub(crate) use detail::{PartAnswer, read_part};
pub use detail_reader::DetailReader;
pub use details::{Ask, Asker, Details};
pub use environ::relevant;
pub use leader::process_of;
pub use maps::mapped;
pub use numbered::{Numbered, numbered};
pub use own::{SelfMeter, clock_ticks};
pub use rdmatop_base::workload::{SlurmJob, Workload};
pub use sharers::{Sharers, sharers};
pub use stat::Stat;
pub use status::Status;
pub use users::Users;
