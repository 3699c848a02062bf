//! Kernel tests: see `cargo xtask test`. The harness of the tests and the verbs of the traffic programs.

pub mod args;
pub mod case;
pub mod child;
pub mod device;
mod document;
pub mod events;
pub mod faults;
pub mod ftrace;
pub mod kernel;
pub mod kmod;
pub mod lab;
pub mod nvme;
pub mod perftest;
pub mod pty;
pub mod rdmatop;
pub mod rxe;
pub mod siw;
pub mod snapshot;
pub mod storm;
pub mod table;
pub mod testnic;
pub mod things;
pub mod traffic;
pub mod verbs;
pub mod wait;
pub mod wire;
