//! The test drivers of `tests/kmod`, which the lab builds.

use anyhow::Result;

use super::kbuild::DriverSource;
use super::kernel::Series;
use crate::arch::Arch;
use crate::paths;

/// Kernels that lack the kind of per-port statistics that the test drivers use (Linux 5.14).
const TOO_OLD: [&str; 1] = ["5.10"];

/// Whether the test drivers are built for this kernel. They are not for aarch64: they make devices whose
/// counters a test sets, which works the same on each architecture.
pub(crate) fn has_test_drivers(series: Series) -> bool {
    series.arch == Arch::X86_64 && !TOO_OLD.contains(&series.name)
}

/// The test drivers of this source.
pub(super) fn test_drivers() -> Result<DriverSource> {
    DriverSource::read("kmod", &[], &paths::repo().join("tests/kmod"))
}
