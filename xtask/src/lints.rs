//! Decides whether compiler warnings fail a check. Each clippy release has new lints: correct code that
//! passed yesterday would fail on a machine with today's stable toolchain.

use std::path::Path;
use std::process::Command;

/// The minor version of the newest Rust 1.x whose lints this source passes.
const CHECKED: u32 = 97;

/// Whether warnings of this `rustc` are failures; prints a note if they are not.
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

/// Returns the minor version in the output of `rustc --version`.
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
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::paths;

    /// `max_width` of rustfmt.toml, which rustfmt does not enforce for comments.
    const WIDTH: usize = 110;

    /// The longest name of a test, in characters.
    const NAME: usize = 70;

    /// Returns the files below a directory whose names end in `.extension`.
    fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let of = |path: PathBuf| {
            if path.is_dir() {
                files(&path, extension)
            } else {
                vec![path]
            }
        };
        let found = entries.flat_map(of);
        found
            .filter(|file| file.extension().is_some_and(|end| end == extension))
            .collect()
    }

    /// Returns the Rust files of all crates with their texts.
    fn sources() -> Vec<(PathBuf, String)> {
        let crates = ["rdmatop", "rdmatop-common", "rdmatop-ebpf", "tests", "xtask"];
        let files = crates
            .iter()
            .flat_map(|name| files(&paths::repo().join(name), "rs"));
        files
            .map(|file| (file.clone(), fs::read_to_string(file).unwrap()))
            .collect()
    }

    /// Returns the identifier at the beginning of a text.
    fn name(text: &str) -> &str {
        let end = text.find(|char: char| !char.is_ascii_alphanumeric() && char != '_');
        &text[..end.unwrap_or(text.len())]
    }

    /// Returns the names of the functions in a source file.
    fn functions(text: &str) -> impl Iterator<Item = &str> {
        text.split("fn ")
            .skip(1)
            .map(name)
            .filter(|name| !name.is_empty())
    }

    #[test]
    fn no_comment_is_wider_than_the_code() {
        let mut wide = Vec::new();
        for (file, text) in sources() {
            // Lines of a picture may be wider.
            let mut drawn = false;
            for (line, text) in text.lines().enumerate() {
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
    fn no_function_has_a_longer_name_than_a_test_may_have() {
        let mut long = Vec::new();
        for (file, text) in sources() {
            let names = functions(&text).filter(|name| name.len() > NAME);
            long.extend(names.map(|name| format!("{}: {name}", file.display())));
        }
        assert_eq!(long, [""; 0]);
    }

    /// Returns the names with at least three underscores that end a path, as in `module::name`: only tests
    /// have such names there.
    fn mentioned(text: &str) -> impl Iterator<Item = &str> {
        let names = text.split("::").skip(1).map(name);
        names.filter(|name| name.matches('_').count() >= 3)
    }

    #[test]
    fn tests_that_comments_and_documents_mention_exist() {
        let sources = sources();
        let all: BTreeSet<&str> = sources.iter().flat_map(|(_, text)| functions(text)).collect();
        // The beginning of a name suffices, as in the tables of what runs where.
        let exists = |name: &str| {
            all.range(name..)
                .next()
                .is_some_and(|next| next.starts_with(name))
        };
        let mut gone = Vec::new();
        for (file, text) in &sources {
            let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
            let names = comments.flat_map(mentioned).filter(|name| !exists(name));
            gone.extend(names.map(|name| format!("{}: {name}", file.display())));
        }
        let mut pages = files(&paths::repo().join("docs"), "md");
        pages
            .extend(["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"].map(|name| paths::repo().join(name)));
        for file in pages {
            let text = fs::read_to_string(&file).unwrap();
            let names = mentioned(&text).filter(|name| !all.contains(name));
            gone.extend(names.map(|name| format!("{}: {name}", file.display())));
        }
        assert_eq!(gone, [""; 0]);
    }

    #[test]
    fn a_document_that_names_an_ignored_test_says_how_it_is_run() {
        let sources = sources();
        let ignored = sources.iter().flat_map(|(_, text)| {
            let after = text.split("#[ignore").skip(1);
            after.filter_map(|text| functions(text).next())
        });
        let ignored: BTreeSet<&str> = ignored.collect();
        assert!(!ignored.is_empty());
        for file in files(&paths::repo().join("docs"), "md") {
            let text = fs::read_to_string(&file).unwrap();
            let named = ignored.iter().find(|name| text.contains(**name));
            assert!(
                named.is_none() || text.contains(" --ignored"),
                "{}: {named:?}",
                file.display()
            );
        }
    }

    #[test]
    fn names_of_functions_and_of_mentioned_tests_are_found() {
        let source = "fn a_short_name() {}\n    async fn another<T>(of: fn(T)) {}\n";
        assert_eq!(functions(source).collect::<Vec<_>>(), ["a_short_name", "another"]);
        let text = "`robust::what_is_named_so`, as std::fs::read and slots::one_of_two; exact::a_b_c_d.";
        assert_eq!(
            mentioned(text).collect::<Vec<_>>(),
            ["what_is_named_so", "a_b_c_d"]
        );
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
