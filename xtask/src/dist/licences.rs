//! Collects the licences of all crates linked into the program: most require their text to be distributed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::crates::Crate;

/// Beginnings of the names of files that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// What is linked into the program but is no crate.
const OTHERS: &str = "\
The program also contains Rust's standard library (MIT OR Apache-2.0, https://www.rust-lang.org), and LLVM's
libunwind and compiler-rt as zig brings them (Apache-2.0 WITH LLVM-exception, https://llvm.org).
";

/// Returns a text with name, version and licence of each crate, followed by each licence text once, with the
/// crates that it belongs to.
pub(super) fn of_dependencies(crates: &[Crate]) -> Result<String> {
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // The licences of our own crates are separate files.
    for one in crates.iter().filter(|one| one.linked && !one.ours) {
        let name = format!("{} {}", one.name, one.version);
        let _ = writeln!(list, "{name}: {}", one.licence);
        for text in texts_in(&one.dir)? {
            texts.entry(text).or_default().push(name.clone());
        }
    }
    let mut all = format!("rdmatop contains these crates:\n\n{list}\n{OTHERS}");
    for (text, mut crates) in texts {
        crates.dedup();
        let _ = write!(
            all,
            "\n{}\n{}:\n\n{}\n",
            "-".repeat(80),
            crates.join(", "),
            text.trim_end()
        );
    }
    Ok(all)
}

/// Returns the licence texts of a crate, ordered by file name.
fn texts_in(dir: &Path) -> Result<Vec<String>> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .to_uppercase();
            path.is_file() && NAMES.iter().any(|begin| name.starts_with(begin))
        })
        .collect();
    files.sort();
    let text = |file| fs::read(file).map(|bytes| String::from_utf8_lossy(&bytes).replace("\r\n", "\n"));
    files
        .iter()
        .map(|file| text(file).with_context(|| format!("cannot read {}", file.display())))
        .collect()
}
