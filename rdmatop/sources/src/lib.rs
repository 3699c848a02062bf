//! Sources: everything that reads the outside world. They do not know the engine or the views. Only the eBPF
//! source imports model types beside inputs and causes: the kinds of events.
pub mod clock;
pub mod dcb;
pub mod ethtool;
pub mod foreign;
pub mod gpu;
pub mod hw_counters;
pub mod kernel_log;
pub mod limits;
pub mod netlink;
pub mod open_files;
pub mod openers;
pub mod platform;
pub mod privileges;
pub mod proc;
pub mod readers;
pub mod removal;
pub mod root;
pub mod seam;
mod syscalls;
pub mod sysfs;
pub mod tcp;
pub mod uprobes;

#[cfg(any(test, feature = "testkit"))]
pub mod fake;
