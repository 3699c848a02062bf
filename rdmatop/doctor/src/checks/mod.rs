//! The checks, one file a subject.

pub(super) mod acs;
pub(super) mod devices;
pub(super) mod distance;
pub(super) mod gids;
pub(super) mod gpu;
pub(super) mod irqs;
pub(super) mod jobs;
pub(super) mod limits;
pub(super) mod lossless;
pub(super) mod mtu;
pub(super) mod nodes;
pub(super) mod own;
pub(super) mod pcie;
pub(super) mod ports;
pub(super) mod tcp;
