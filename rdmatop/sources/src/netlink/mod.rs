//! RDMA netlink (`NETLINK_RDMA`, client `RDMA_NL_NLDEV`): devices, ports, resources, hardware counters.
//!
//! Layers, lowest first:
//! * [`wire`]: bytes to messages and attributes, checked, no I/O; [`attr`]: the kernel's numbers;
//! * [`record`]: attributes to typed records;
//! * [`request`] and [`reply`]: one request out, one reply or dump in;
//! * [`socket`] (the only I/O; in tests recorded bytes), a [`transport::Transport`];
//! * [`client`] and [`counting`]: one method per request; [`sampler`]: one reading of a device, each part
//!   with its own error.
//!
//! Reading needs no privilege (`nldev_cb_table` flags only the commands that write with
//! `RDMA_NL_ADMIN_PERM`, drivers/infiniband/core/nldev.c); keys of memory regions are the exception.
pub mod attr;
pub mod client;
pub mod counting;
pub mod error;
pub mod name;
pub mod record;
pub mod reply;
pub mod request;
pub mod sample;
pub mod sampler;
pub mod socket;
pub mod transport;
pub mod wire;

#[cfg(test)]
mod tests;
