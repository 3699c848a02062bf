//! Sources: what reads the outside world, but for the eBPF programs (rdmatop-loader). They do not know the
//! engine or the views, and import only inputs and causes of the model.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests do I/O"))]

pub mod clock;
pub mod dcb;
pub mod ethtool;
pub mod execs;
pub mod foreign;
pub mod gpu;
pub mod hw_counters;
pub mod kernel_log;
pub mod limits;
pub mod netlink;
pub mod netns;
pub mod open_files;
pub mod openers;
pub mod owned_file;
pub mod platform;
pub mod privileges;
pub mod proc;
pub mod readers;
pub mod removal;
pub mod root;
pub mod seam;
pub mod signals;
mod syscalls;
pub mod sysfs;
pub mod tcp;
pub mod uprobes;

#[cfg(any(test, feature = "testkit"))]
mod testkit;
#[cfg(any(test, feature = "testkit"))]
pub use testkit::{fake, fuzz};
