//! Work requests of programs whose posts do not enter the kernel, by probes on the provider's functions.
//!
//! The kernel keeps the address of each user `struct ibv_qp` (`ib_uobject.user_handle`). By process and
//! address a probe finds the QP, and from the address user space finds the functions to probe. The layouts of
//! work requests are those that are compiled into applications (rdma-core, libibverbs/verbs.h). A post is
//! counted at its return, when it is known how much of the list the provider accepted; the caller's list
//! still exists then.
pub(crate) mod build;
pub(crate) mod cqs;
pub(crate) mod maps;
pub(crate) mod poll;
pub(crate) mod post;
pub(crate) mod qps;
pub(crate) mod records;
mod sends;
