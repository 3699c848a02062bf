//! rdmatop: htop for RDMA, augmented by eBPF.
pub mod app;
pub mod cli;
pub mod exit;
#[doc(hidden)]
pub mod fuzz;
pub mod lab;
pub mod source;
