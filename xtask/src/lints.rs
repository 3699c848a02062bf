//! Whether a compiler's warnings fail a check. Each release of clippy knows new lints: what passed yesterday would
//! fail on a machine whose stable toolchain is of today, with nothing wrong.

use std::path::Path;
use std::process::Command;

/// The newest 1.x whose lints this source was checked with.
const CHECKED: u32 = 97;

/// Whether warnings of this `rustc` are failures; says so where they are not.
pub(crate) fn fail(label: &str, rustc: &Path) -> bool {
    let version = Command::new(rustc)
        .arg("--version")
        .output()
        .ok()
        .and_then(|out| minor(&String::from_utf8_lossy(&out.stdout)));
    let newer = version.filter(|minor| *minor > CHECKED);
    if let Some(minor) = newer {
        println!(
            "{label}: Rust 1.{minor} is newer than 1.{CHECKED}, with which this source is checked: its lints do \
             not fail"
        );
    }
    newer.is_none()
}

/// The minor version in what `rustc --version` prints.
fn minor(version: &str) -> Option<u32> {
    version
        .strip_prefix("rustc 1.")?
        .split(|char: char| !char.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_rustc_of_every_channel() {
        assert_eq!(minor("rustc 1.95.0 (59807616e 2026-04-14)\n"), Some(95));
        assert_eq!(minor("rustc 1.101.0-nightly (92b5b8c87 2026-10-29)\n"), Some(101));
        assert_eq!(
            minor("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)"),
            Some(96)
        );
        assert_eq!(minor("rustc 2.0.0"), None);
        assert_eq!(minor(""), None);
    }

    #[test]
    fn warnings_of_a_compiler_that_does_not_tell_its_version_fail() {
        assert!(fail("clippy", Path::new("/nonexistent/rustc")));
    }
}
