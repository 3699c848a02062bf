//! Processes as /proc shows them.
//!
//! Two tiers, both read once for each new process that holds RDMA resources and again when it execs: [`ProcBasic`],
//! which [`ProcCache`] keeps, and [`ProcDetail`], which may be large.
//! A process is (pid, start time): pids are reused, and counts of the old one never go to the new one.
mod alive;
mod basic;
mod boot;
mod cache;
mod cgroup;
mod detail;
mod environ;
pub(crate) mod locked;
mod maps;
mod nodes;
mod numbered;
mod own;
mod sharers;
mod stat;
mod status;
mod users;

pub use crate::workload::{Container, Pod, SlurmJob, Workload};
pub use alive::lives;
pub use basic::{ProcBasic, ProcKey, key, read_basic};
pub use boot::start_offset;
pub use cache::{ProcCache, Refreshed};
pub use cgroup::Cgroup;
pub use detail::{ProcDetail, read_detail};
pub(crate) use environ::relevant;
pub(crate) use maps::libraries;
pub use nodes::verbs_files;
pub use numbered::{Numbered, numbered};
pub use own::{SelfCost, SelfMeter, clock_ticks};
pub use sharers::{Sharers, sharers};
pub use stat::Stat;
pub use status::Status;
pub use users::Users;
