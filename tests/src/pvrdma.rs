//! The guest's NIC to which programs post without entering the kernel (`cargo xtask lab --nic pvrdma`).

use crate::lab::{self, Lab};

/// The driver's only device.
pub const DEVICE: &str = "vmw_pvrdma0";

/// Waits for the turn of a test that needs the device; without it prints that and returns `None`.
pub fn enter(name: &str) -> Option<Lab> {
    let lab = Lab::enter(name)?;
    if lab::devices().is_ok_and(|devices| devices == [DEVICE]) {
        return Some(lab);
    }
    lab::skip(
        name,
        "no pvrdma in this guest: `cargo xtask lab run --nic pvrdma`",
    );
    None
}
