//! Kernel tests: see `cargo xtask test`. The harness of the tests and the verbs of the traffic programs.

pub mod args;
pub mod case;
pub mod child;
pub mod events;
pub mod faults;
pub mod kernel;
pub mod lab;
pub mod nvme;
pub mod perftest;
pub mod rdmatop;
pub mod snapshot;
pub mod storm;
pub mod table;
pub mod traffic;
pub mod verbs;
pub mod wait;
pub mod wire;
