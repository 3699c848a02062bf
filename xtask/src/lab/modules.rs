//! Kernel modules that the lab brings along: the test drivers of `tests/kmod`, and siw, which Debian leaves
//! out.

use std::path::PathBuf;

use anyhow::Result;

use super::kbuild::DriverSource;
use super::kernel::{Kernel, Series};
use super::linux_source::SIW;
use crate::arch::Arch;
use crate::paths;

/// Kernels without per-port statistics of the kind that the test drivers have (Linux 5.14).
const TOO_OLD: [&str; 1] = ["5.10"];

/// Whether the test drivers are for this kernel. For aarch64 they are not built: they make devices whose
/// counters a test sets, which is the same on each machine.
pub(crate) fn has_test_drivers(series: Series) -> bool {
    series.arch == Arch::X86_64 && !TOO_OLD.contains(&series.name)
}

fn test_drivers() -> Result<DriverSource> {
    DriverSource::read("kmod", &[], &paths::repo().join("tests/kmod"))
}

/// The directory of the test drivers for `kernel`, if they were built since their source changed.
pub(super) fn built_test_drivers(kernel: &Kernel) -> Option<PathBuf> {
    test_drivers().ok()?.built(kernel)
}

/// The directory of the test drivers for `kernel`.
pub(super) fn ensure_test_drivers(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    test_drivers()?.ensure(series, kernel)
}

/// The module siw for `kernel`, if it was built.
pub(super) fn built_siw(kernel: &Kernel) -> Option<PathBuf> {
    SIW.built(kernel)
}

/// The module siw for `kernel`.
pub(super) fn ensure_siw(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    SIW.ensure(series, kernel)
}
