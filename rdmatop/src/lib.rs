//! rdmatop: htop for RDMA, augmented by eBPF.
pub mod model;
pub mod view;
