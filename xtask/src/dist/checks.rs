//! Checks that a program is fit for release: it runs on an old glibc, is small, and reveals no path of the
//! machine that built it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use object::LittleEndian;
use object::elf::{ET_DYN, FileHeader64};
use object::read::elf::{FileHeader as _, SectionHeader as _};

/// The maximum size of a program in bytes: 8 MiB.
const MOST: u64 = 8 << 20;

/// What was measured of a program that passes.
pub(super) struct Passed {
    /// The file's size in bytes.
    pub(super) size: u64,
    /// The newest glibc symbol version that it needs.
    pub(super) glibc: Version,
}

/// Checks the program `file`: it may need symbols of `glibc` at most and contain none of the paths `own`.
pub(super) fn program(file: &Path, glibc: &str, own: &[PathBuf]) -> Result<Passed> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let size = bytes.len() as u64;
    let newest = newest_glibc(&needed(&bytes)?)?;
    let limit = Version::of(glibc).context("a limit that is no version")?;
    ensure!(
        newest <= limit,
        "{} needs glibc {newest}, and may need {limit} at most",
        file.display()
    );
    if let Some(path) = own.iter().find(|path| names(&bytes, path.as_os_str().as_bytes())) {
        bail!(
            "{} has the path {} of this machine in it",
            file.display(),
            path.display()
        );
    }
    ensure!(
        size <= MOST,
        "{} has {size} bytes, and may have {MOST} at most",
        file.display()
    );
    Ok(Passed { size, glibc: newest })
}

/// A version, ordered by its numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(Vec<u32>);

impl Version {
    /// Parses `2.28`; `None` if a part is no number.
    fn of(text: &str) -> Option<Self> {
        text.split('.')
            .map(|part| part.parse().ok())
            .collect::<Option<_>>()
            .map(Self)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&parts.join("."))
    }
}

/// Returns the symbol versions that a program needs of its libraries, as `readelf --version-info` lists them.
fn needed(elf: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<LittleEndian>::parse(elf).context("no ELF file of 64 bits")?;
    let endian = header.endian()?;
    ensure!(
        header.e_type.get(endian) == ET_DYN,
        "no position-independent program"
    );
    let sections = header.sections(endian, elf)?;
    let mut names = Vec::new();
    for section in sections.iter() {
        let Some((mut libraries, strings)) = section.gnu_verneed(endian, elf)? else {
            continue;
        };
        let strings = sections.strings(endian, elf, strings)?;
        while let Some((_, mut versions)) = libraries.next()? {
            while let Some(version) = versions.next()? {
                let name = version.name(endian, strings)?;
                names.push(String::from_utf8_lossy(name).into_owned());
            }
        }
    }
    Ok(names)
}

/// Returns the newest glibc version among the names. Versions without a number are skipped: `GLIBC_PRIVATE`
/// belongs to no release, and `GLIBC_ABI_DT_RELR` only to new ones.
fn newest_glibc(names: &[String]) -> Result<Version> {
    let mut newest = None;
    for name in names {
        let Some(text) = name.strip_prefix("GLIBC_") else {
            continue;
        };
        let version =
            Version::of(text).with_context(|| format!("it needs {name}, which is no release of glibc"))?;
        newest = newest.max(Some(version));
    }
    newest.context("it names no version of glibc: is it linked to another C library?")
}

/// Whether `path` occurs in `bytes`, alone or as the beginning of a longer path.
fn names(bytes: &[u8], path: &[u8]) -> bool {
    let of_a_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
    let Some(first) = path.first() else {
        return false;
    };
    let mut places = bytes.iter().enumerate().filter(|(_, byte)| *byte == first);
    places.any(|(at, _)| {
        // A match within a longer name does not count: /src in a/src and in /srcs.
        let before = at.checked_sub(1).and_then(|at| bytes.get(at));
        let after = bytes.get(at + path.len());
        bytes[at..].starts_with(path)
            && !before.is_some_and(of_a_name)
            && !after.is_some_and(|byte| *byte != b'/' && of_a_name(byte))
    })
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    fn newest(names: &[&str]) -> Result<Version> {
        newest_glibc(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn versions_are_ordered_by_their_numbers() {
        let found = newest(&["GLIBC_2.2.5", "GLIBC_2.28", "GCC_3.0", "GLIBC_2.3", "GLIBC_2.9"]).unwrap();
        assert_eq!(found.to_string(), "2.28");
        assert!(Version::of("2.34") > Version::of("2.28"));
        assert!(Version::of("2.2.5") > Version::of("2.2"));
        assert!(Version::of("3.0") > Version::of("2.99"));
    }

    #[test]
    fn a_version_that_no_release_has_is_refused() {
        for name in ["GLIBC_PRIVATE", "GLIBC_ABI_DT_RELR", "GLIBC_"] {
            let error = newest(&["GLIBC_2.2.5", name]).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
        }
        assert!(newest(&["GCC_3.0"]).is_err(), "a static program, or one for musl");
    }

    #[test]
    fn a_real_program_names_the_glibc_that_it_needs() {
        let own = fs::read(env::current_exe().unwrap()).unwrap();
        let versions = needed(&own).unwrap();
        let found = newest_glibc(&versions).unwrap();
        assert!(
            found >= Version::of("2.2.5").unwrap() && found < Version::of("3").unwrap(),
            "{found}"
        );
        assert!(needed(&own[..own.len() / 2]).is_err(), "cut in the middle");
        assert!(needed(b"#!/bin/sh\n").is_err());
    }

    #[test]
    fn a_program_that_is_not_fit_is_refused_with_the_reason() {
        // The test program needs the glibc of this machine, and contains the name of this directory: here,
        // and without its debug info nowhere else.
        let named = std::hint::black_box(concat!("\n", env!("CARGO_MANIFEST_DIR"), "/src"));
        let here = Path::new(named.trim()).parent().unwrap();
        let own = env::current_exe().unwrap();
        let refused = |glibc, paths: &[PathBuf]| match program(&own, glibc, paths) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        assert!(
            refused("2.2", &[]).contains("may need 2.2 at most"),
            "{}",
            refused("2.2", &[])
        );
        assert!(refused("9.9", &[here.to_owned()]).contains("of this machine"));
    }

    #[test]
    fn a_path_is_found_and_what_only_ends_or_begins_like_it_is_not() {
        for there in ["\0/src\0", "at /src/main.rs", "x=/src"] {
            assert!(names(there.as_bytes(), b"/src"), "{there}");
        }
        for not in ["crate/src/main.rs", "/srcs", "/src-old/a", "/sr", ""] {
            assert!(!names(not.as_bytes(), b"/src"), "{not}");
        }
    }
}
