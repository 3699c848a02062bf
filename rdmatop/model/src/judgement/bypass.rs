//! Libraries that may post past the functions of the provider, so that the probes on these see nothing. A
//! loaded library does not prove it, nor does a QP without any call: the words say "may".

use super::uncounted::concerns;
use crate::{
    cause::{Cause, CauseId, Obstacle},
    facts::{DeviceRow, ProcessRow, Quantity},
};

/// A reason that depends on no device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) id: CauseId,
    pub(super) why: &'static str,
    pub(super) remedy: &'static str,
}

impl Reason {
    pub(super) fn cause(&self, what: Quantity, device: Option<&DeviceRow>) -> Cause {
        Obstacle::new(self.id, self.why, self.remedy).takes(what.name(), concerns(device))
    }
}

/// A library that may post past the functions of the provider, on NICs of one driver.
struct Bypass {
    /// Prefix of the driver's name.
    driver: &'static str,
    /// Prefix of the file's name.
    library: &'static str,
    reason: Reason,
}

/// With this set to no, libfabric calls the functions of EFA's provider.
const EFA_SWITCH: &str = "FI_EFA_USE_DATA_PATH_DIRECT";
/// How libfabric spells "no" (fi_parse_bool), whatever the case.
const OFF: [&str; 4] = ["0", "false", "no", "off"];

/// The first entry whose library a process has loaded is the one that is named.
static BYPASSES: [Bypass; 5] = [
    bypass("mlx5", "libnvshmem", NVSHMEM, ""),
    bypass("mlx5", "libdoca_gpunetio", DOCA, ""),
    bypass("mlx5", "libuct", UCX, ""),
    bypass("mlx5", "libucp", UCX, ""),
    bypass(
        "efa",
        "libfabric",
        "libfabric is loaded, which may post to EFA by code of its own, past the functions that are probed",
        "with `FI_EFA_USE_DATA_PATH_DIRECT=0` in its environment it calls them",
    ),
];

const NVSHMEM: &str = "NVSHMEM is loaded, with which a GPU may post, and no probe sees that";
const DOCA: &str = "DOCA GPUNetIO is loaded, with which a GPU may post, and no probe sees that";
const UCX: &str =
    "UCX is loaded, which may post to mlx5 by code of its own, past the functions that are probed";

const fn bypass(
    driver: &'static str,
    library: &'static str,
    why: &'static str,
    remedy: &'static str,
) -> Bypass {
    let id = CauseId::MayBypass;
    Bypass {
        driver,
        library,
        reason: Reason { id, why, remedy },
    }
}

impl Bypass {
    fn applies(&self, driver: &str, process: &ProcessRow) -> bool {
        let libraries = process.libraries.iter().flatten();
        let loaded = libraries.into_iter().any(|name| name.starts_with(self.library));
        let is_off = |(name, value): &(String, String)| {
            name == EFA_SWITCH && OFF.iter().any(|off| value.eq_ignore_ascii_case(off))
        };
        let off = self.driver == "efa" && process.environ.iter().flatten().any(is_off);
        driver.starts_with(self.driver) && loaded && !off
    }
}

/// Why a process may use its QPs on a device past the functions that are probed.
pub(super) fn bypassed(device: &DeviceRow, process: &ProcessRow) -> Option<&'static Reason> {
    let driver = device.driver.as_deref()?;
    let mut all = BYPASSES.iter();
    all.find(|bypass| bypass.applies(driver, process))
        .map(|bypass| &bypass.reason)
}
