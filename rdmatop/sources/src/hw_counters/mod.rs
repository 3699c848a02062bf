//! `--hw-counters`: lets the kernel bind QPs to counters of the NIC by process, and takes that back.
//!
//! * [`decide`]: what to change from what is there, pure; [`state`] and [`store`]: the file that outlives a
//!   SIGKILL;
//! * [`session`]: the changes of this run, and the end of them; [`kernel`]: what is asked of the kernel.
pub mod decide;
pub mod kernel;
pub mod session;
pub mod state;
pub mod store;

pub use session::{HwCounters, recover};
