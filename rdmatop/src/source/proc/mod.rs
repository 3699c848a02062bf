//! Processes as /proc shows them.
//!
//! Two tiers: [`ProcBasic`] is read once for each new process that holds RDMA resources and kept by
//! [`ProcCache`]; [`ProcDetail`] is read on demand for the one process that the user looks at.
//! A process is (pid, start time): pids are reused, and counts of the old one never go to the new one.
mod alive;
mod basic;
mod cache;
mod cgroup;
mod detail;
mod environ;
mod limits;
mod maps;
mod own;
mod stat;
mod status;
mod users;
mod workload;

pub use basic::{ProcBasic, ProcKey, read_basic};
pub use cache::{ProcCache, Refreshed};
pub use cgroup::Cgroup;
pub(crate) use detail::namespace;
pub use detail::{Namespaces, ProcDetail, RdmaFd, read_detail};
pub use limits::{Limit, Memlock};
pub use maps::MappedLibrary;
pub use own::{SelfCost, SelfMeter, clock_ticks};
pub use stat::Stat;
pub use status::{Memory, Status};
pub use users::Users;
pub use workload::{Container, Pod, Qos, Runtime, SlurmJob, Workload};
