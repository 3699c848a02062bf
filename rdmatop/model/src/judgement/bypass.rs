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

/// With this set to no, libfabric calls the functions of EFA's provider.
const EFA_SWITCH: &str = "FI_EFA_USE_DATA_PATH_DIRECT";
/// How libfabric spells "no" (fi_parse_bool), whatever the case.
const OFF: [&str; 4] = ["0", "false", "no", "off"];

/// Libraries that may post past the functions of the provider: the beginnings of the names of a driver and of
/// the library's file, and the reason. The first whose library a process has loaded is the one that is named.
static BYPASSES: [(&str, &str, Reason); 5] = [
    ("mlx5", "libnvshmem", may(NVSHMEM, "")),
    ("mlx5", "libdoca_gpunetio", may(DOCA, "")),
    ("mlx5", "libuct", may(UCX, "")),
    ("mlx5", "libucp", may(UCX, "")),
    (
        EFA,
        "libfabric",
        may(
            "libfabric is loaded, which may post to EFA by code of its own, past the functions that are probed",
            "with `FI_EFA_USE_DATA_PATH_DIRECT=0` in its environment it calls them",
        ),
    ),
];

const EFA: &str = "efa";
const NVSHMEM: &str = "NVSHMEM is loaded, with which a GPU may post, and no probe sees that";
const DOCA: &str = "DOCA GPUNetIO is loaded, with which a GPU may post, and no probe sees that";
const UCX: &str =
    "UCX is loaded, which may post to mlx5 by code of its own, past the functions that are probed";

const fn may(why: &'static str, remedy: &'static str) -> Reason {
    let id = CauseId::MayBypass;
    Reason { id, why, remedy }
}

/// Why a process may use its QPs on a device past the functions that are probed.
pub(super) fn bypassed(device: &DeviceRow, process: &ProcessRow) -> Option<&'static Reason> {
    let name = device.driver.as_deref()?;
    let libraries = || process.libraries.iter().flat_map(|all| all.iter());
    let has = |library: &str| libraries().any(|name| name.starts_with(library));
    let is_off = |(name, value): &(String, String)| {
        name == EFA_SWITCH && OFF.iter().any(|off| value.eq_ignore_ascii_case(off))
    };
    let off = process.environ.iter().flatten().any(is_off);
    let mut all = BYPASSES.iter();
    let first =
        all.find(|(driver, library, _)| name.starts_with(driver) && has(library) && !(*driver == EFA && off));
    first.map(|(.., reason)| reason)
}
