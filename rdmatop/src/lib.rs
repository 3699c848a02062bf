//! rdmatop: htop for RDMA, augmented by eBPF.
pub mod app;
pub mod cli;
pub mod exit;
#[cfg(feature = "testkit")]
pub mod fuzz;
