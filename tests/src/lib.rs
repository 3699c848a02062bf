//! Kernel tests: see `cargo xtask test`. The harness of the tests and the verbs of the traffic programs.

pub mod args;
pub mod verbs;
