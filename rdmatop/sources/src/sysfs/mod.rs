//! RDMA devices, their ports and their network devices as sysfs shows them.
//!
//! Source of the layout: `Documentation/ABI/stable/sysfs-class-infiniband` and
//! drivers/infiniband/core/sysfs.c. Nothing here needs privilege. Everything but the counters changes rarely:
//! read a device when it appears and on a slow beat, and its counters at every tick.
mod counters;
mod device;
mod gid;
mod netdev;
mod pci;
mod placeholder;
mod port;

pub use counters::value as counter_value;
pub use counters::{CounterFiles, CounterGroup, FileValue, is_failure};
pub use device::{
    DeviceFacts, count_dangling, device_dir, has_hardware, has_mlx5, is_hardware, list_devices, read_device,
    verbs_files,
};
pub use gid::{GidLimits, read_gids};
pub use netdev::{netdev_bond, netdev_down, netdev_mtu, netdev_pfc};
pub use pci::{PciFacts, pci_path, pcie_link, read_pci_at};
pub use port::{PortFacts, Rate};
