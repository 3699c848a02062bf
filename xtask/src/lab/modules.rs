//! Kernel modules that the lab builds: the test drivers of `tests/kmod`, and siw, which Debian does not ship.

use std::path::PathBuf;

use anyhow::Result;

use super::kbuild::DriverSource;
use super::kernel::{Kernel, Series};
use super::linux_source::SIW;
use crate::arch::Arch;
use crate::paths;

/// Kernels that lack the kind of per-port statistics that the test drivers use (Linux 5.14).
const TOO_OLD: [&str; 1] = ["5.10"];

/// Whether the test drivers are built for this kernel. They are not for aarch64: they make devices whose
/// counters a test sets, which works the same on each architecture.
pub(crate) fn has_test_drivers(series: Series) -> bool {
    series.arch == Arch::X86_64 && !TOO_OLD.contains(&series.name)
}

fn test_drivers() -> Result<DriverSource> {
    DriverSource::read("kmod", &[], &paths::repo().join("tests/kmod"))
}

/// Returns the directory of the test drivers for `kernel` if they were built from the current source.
pub(super) fn built_test_drivers(kernel: &Kernel) -> Option<PathBuf> {
    test_drivers().ok()?.built(kernel)
}

/// Returns the directory of the test drivers for `kernel`, built first if necessary.
pub(super) fn ensure_test_drivers(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    test_drivers()?.ensure(series, kernel)
}

/// Returns the module siw for `kernel` if it was built.
pub(super) fn built_siw(kernel: &Kernel) -> Option<PathBuf> {
    SIW.built(kernel)
}

/// Returns the module siw for `kernel`, built first if necessary.
pub(super) fn ensure_siw(series: Series, kernel: &Kernel) -> Result<PathBuf> {
    SIW.ensure(series, kernel)
}
