//! Collects the licences of all crates linked into the program: most require their text to be distributed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::{crates::Crate, linker};

/// Beginnings of the names of files that hold a licence or a notice.
const NAMES: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE"];

/// What is linked into the program but is no crate.
const OTHERS: &str = "\
The program also contains Rust's standard library (MIT OR Apache-2.0, https://www.rust-lang.org), and what
zig links: LLVM's libunwind (Apache-2.0 WITH LLVM-exception, https://llvm.org); Zig's own compiler_rt (MIT,
Zig contributors; parts of it are ported from LLVM's compiler-rt and from musl, which is MIT, too); and the
start files and small functions of glibc that each program for it has in itself (LGPL-2.1-or-later,
https://www.gnu.org/licenses, nearly all with the permission to distribute what is linked with them without
any restriction; their source is in lib/libc/glibc of PyPI's ziglang). glibc itself is not contained. The
texts that Zig's package has of these three are below.
";

/// Returns a text with name, version and licence of each crate, followed by each licence text once, with the
/// crates and the other parts that it belongs to.
pub(super) fn of_dependencies(crates: &[Crate]) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (part, file) in linker::licences()? {
        texts.entry(text(&file)?).or_default().push(part.to_owned());
    }
    with_crates(crates, texts)
}

/// Like [`of_dependencies`]; `texts` are those of what is no crate.
fn with_crates(crates: &[Crate], mut texts: BTreeMap<String, Vec<String>>) -> Result<String> {
    let mut list = String::new();
    // The licences of our own crates are separate files.
    for one in crates.iter().filter(|one| one.linked && !one.ours) {
        let name = format!("{} {}", one.name, one.version);
        let mut own = texts_in(&one.dir)?;
        let mut from = String::new();
        if own.is_empty() {
            let lender;
            (lender, own) = lent(one, crates)?;
            from = format!(
                " (without a text of its own: that of {} {}, from the same repository)",
                lender.name, lender.version
            );
        }
        let _ = writeln!(list, "{name}: {}{from}", one.licence);
        for text in own {
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

/// Returns a crate of the same repository and licence that has licence texts, and these: some workspaces keep
/// them at their top, from where they do not get into the package of each crate.
fn lent<'a>(one: &Crate, crates: &'a [Crate]) -> Result<(&'a Crate, Vec<String>)> {
    let place = repository(&one.dir)?;
    for other in crates.iter().filter(|other| other.licence == one.licence) {
        if place.is_some() && repository(&other.dir)? == place {
            let texts = texts_in(&other.dir)?;
            if !texts.is_empty() {
                return Ok((other, texts));
            }
        }
    }
    bail!(
        "{} {} has no licence text, nor has another crate of its repository ({}) with its licence ({})",
        one.name,
        one.version,
        place.as_deref().unwrap_or("unknown"),
        one.licence
    )
}

/// Returns the repository that the manifest in `dir` names.
fn repository(dir: &Path) -> Result<Option<String>> {
    let manifest: toml::Table = toml::from_str(&text(&dir.join("Cargo.toml"))?)
        .with_context(|| format!("the manifest in {}", dir.display()))?;
    let named = manifest
        .get("package")
        .and_then(|package| package.get("repository"));
    Ok(named.and_then(|named| named.as_str()).map(str::to_owned))
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
    files.iter().map(|file| text(file)).collect()
}

/// Returns the text of a file, with the line ends of this system.
fn text(file: &Path) -> Result<String> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8_lossy(&bytes).replace("\r\n", "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dist::tree::write;

    /// Makes a crate with this manifest line and, if there is a text, a licence.
    fn one(dir: &Path, name: &str, line: &str, licence: Option<&str>) -> Crate {
        let dir = dir.join(name);
        write(&dir.join("Cargo.toml"), format!("[package]\n{line}\n").as_bytes()).unwrap();
        if let Some(text) = licence {
            write(&dir.join("LICENSE-MIT"), text.as_bytes()).unwrap();
        }
        Crate {
            name: name.to_owned(),
            version: "1.2.3".to_owned(),
            licence: "MIT".to_owned(),
            dir,
            ours: false,
            linked: true,
            needs: Vec::new(),
        }
    }

    #[test]
    fn a_crate_without_a_text_has_that_of_its_repository_or_is_refused() {
        let dir = std::env::temp_dir().join(format!("xtask-licences-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let here = r#"repository = "https://example.org/here""#;
        let there = r#"repository = "https://example.org/there""#;
        let of = |crates: &[Crate]| {
            let zig = BTreeMap::from([("zig's text".to_owned(), vec!["Zig".to_owned()])]);
            with_crates(crates, zig)
        };
        let crates = [
            one(&dir, "bare", here, None),
            one(&dir, "else", there, Some("of else")),
            one(&dir, "whole", here, Some("of whole")),
        ];
        let all = of(&crates).unwrap();
        assert!(all.contains("bare 1.2.3: MIT (without a text of its own: that of whole 1.2.3,"));
        assert!(all.contains("bare 1.2.3, whole 1.2.3:\n\nof whole\n"), "{all}");
        assert!(all.contains("else 1.2.3:\n\nof else\n") && all.contains("Zig:\n\nzig's text\n"));
        let refused = of(&crates[..2]).unwrap_err().to_string();
        assert!(refused.starts_with("bare 1.2.3 has no licence text"), "{refused}");
        // Two crates that name no repository need not be of one.
        let unknown = [one(&dir, "a", "", None), one(&dir, "b", "", Some("of b"))];
        assert!(of(&unknown).unwrap_err().to_string().contains("(unknown)"));
        let mut other = one(&dir, "other", here, Some("Apache's"));
        other.licence = "Apache-2.0".to_owned();
        assert!(
            of(&[one(&dir, "bare", here, None), other]).is_err(),
            "another licence"
        );
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn every_crate_of_the_program_has_a_text_or_one_of_its_repository() {
        // The crates of the eBPF programs are in the source directory of cargo only after they were built.
        let Ok(crates) = crate::dist::crates::of(crate::arch::Arch::X86_64.triple()) else {
            println!("skipped: cargo has not all crates here");
            return;
        };
        let all = with_crates(&crates, BTreeMap::new()).unwrap();
        assert!(all.contains("\naya-ebpf "), "{all}");
    }
}
