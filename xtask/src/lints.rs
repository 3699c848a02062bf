//! Whether a compiler's warnings fail a check. Each release of clippy knows new lints: what passed yesterday
//! would fail on a machine whose stable toolchain is of today, with nothing wrong.

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
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::paths;

    /// `max_width` of rustfmt.toml, which rustfmt does not hold comments to.
    const WIDTH: usize = 110;

    /// The Rust files below a directory.
    fn sources(dir: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: PathBuf| if path.is_dir() { sources(&path) } else { vec![path] };
        let files = entries.flat_map(of);
        files
            .filter(|file| file.extension().is_some_and(|end| end == "rs"))
            .collect()
    }

    #[test]
    fn no_comment_is_wider_than_the_code() {
        let crates = ["rdmatop", "rdmatop-common", "rdmatop-ebpf", "tests", "xtask"];
        let files = crates.iter().flat_map(|name| sources(&paths::repo().join(name)));
        let mut wide = Vec::new();
        for file in files {
            // Pictures are as wide as they are.
            let mut drawn = false;
            for (line, text) in fs::read_to_string(&file).unwrap().lines().enumerate() {
                let comment = text.trim_start().starts_with("//");
                drawn ^= comment && text.contains("```");
                if comment && !drawn && text.chars().count() > WIDTH {
                    wide.push(format!("{}:{}", file.display(), line + 1));
                }
            }
        }
        assert_eq!(wide, [""; 0]);
    }

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
