//! rdmatop: htop for RDMA, augmented by eBPF.
pub mod app;
pub mod cli;
pub mod doctor;
mod driver_log;
pub mod errno;
pub mod exit;
#[doc(hidden)]
pub mod fuzz;
pub mod lab;
mod locked;
pub mod model;
pub mod nccl;
pub mod outlet;
mod pause;
pub mod pcie;
mod roce;
pub mod say;
pub mod source;
pub mod step;
pub mod text;
mod variables;
pub mod view;
mod wire_bytes;
pub mod workload;
