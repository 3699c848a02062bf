//! Holds the packages to lintian and rpmlint. docs/install.md names what these may object to.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tree::{files, said_by, write};
use crate::paths;

/// What only the publisher of a package can give it: an address, a bug that it closes. Each version says the
/// first of each package, which shows that it has read them.
const LINTIAN: [&str; 3] = [
    "bogus-mail-host",
    "bogus-mail-host-in-debian-changelog",
    "initial-upload-closes-no-bugs",
];

/// What only the publisher can give, and a page that rpmlint 2.4 does not find. Each version says the first.
const RPMLINT: [&str; 3] = ["no-signature", "no-url-tag", "no-manual-page-for-binary"];

/// The linters. One of them alone would leave half of the packages unread.
const TOOLS: [&str; 2] = ["lintian", "rpmlint"];

/// What a distribution with RPM configures, and Debian's rpmlint lacks.
const SETTINGS: &str = "CompressExtension = \"gz\"\nValidLicenses = [\"MIT\", \"Apache-2.0\"]\n";

/// Returns an error with the remedy if one of the linters is missing.
pub(super) fn possible() -> Result<()> {
    all_there(|tool| paths::find_tool(&[tool]).is_some())
}

fn all_there(there: impl Fn(&str) -> bool) -> Result<()> {
    let missing: Vec<&str> = TOOLS.into_iter().filter(|tool| !there(tool)).collect();
    ensure!(
        missing.is_empty(),
        "--lint needs {}: apt-get install {}",
        missing.join(" and "),
        missing.join(" ")
    );
    Ok(())
}

/// Fails with what is objected to in the packages in `out` and not allowed.
pub(super) fn packages(out: &Path, work: &Path) -> Result<()> {
    let of = |end: &str| -> Result<Vec<_>> {
        let mut all = files(out)?;
        all.retain(|file| file.extension().is_some_and(|own| own == end));
        Ok(all)
    };
    let debs = of("deb")?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "none", "--tag-display-limit", "0"]);
    let said = said_by(lintian.args(&debs))?;
    let mut objections = others(TOOLS[0], &String::from_utf8_lossy(&said), &LINTIAN, debs.len())?;
    let rpms = of("rpm")?;
    let settings = work.join("rpmlint.toml");
    write(&settings, SETTINGS.as_bytes())?;
    let mut rpmlint = Command::new("rpmlint");
    rpmlint.arg("--config").arg(&settings).args(&rpms);
    // Its status tells of objections, too.
    let said = rpmlint.output().context("cannot start rpmlint")?;
    let text = String::from_utf8_lossy(&said.stdout);
    ensure!(
        text.contains("checked;"),
        "rpmlint failed: {}",
        String::from_utf8_lossy(&said.stderr)
    );
    objections.extend(others(TOOLS[1], &text, &RPMLINT, rpms.len())?);
    ensure!(objections.is_empty(), "lint:\n{}", objections.join("\n"));
    println!("lint: no objection to the packages but those that docs/install.md names");
    Ok(())
}

/// Returns the lines in what `tool` says of so many packages that object to what is not `allowed`; an error
/// if it does not say the first of these of each: a linter that reads nothing objects to nothing. `E: NAME:
/// TAG ...` is lintian's form, `NAME: E: TAG ...` rpmlint's.
fn others(tool: &str, text: &str, allowed: &[&str], packages: usize) -> Result<Vec<String>> {
    let tag = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        let [first, second, tag] = words[..] else {
            return None;
        };
        let level = |word| matches!(word, "E:" | "W:");
        (level(first) || level(second)).then(|| tag.to_owned())
    };
    let objections: Vec<(&str, String)> = text.lines().filter_map(|line| Some((line, tag(line)?))).collect();
    let said = objections.iter().filter(|(_, tag)| *tag == allowed[0]).count();
    ensure!(
        said == packages && packages > 0,
        "lint: {tool} says {} of {said} of {packages} packages: either it has not read them, or they no longer \
         give reason for it and xtask/src/dist/lint.rs has to expect something else",
        allowed[0]
    );
    let other = |(line, tag): &(&str, String)| (!allowed.contains(&&**tag)).then(|| (*line).to_owned());
    Ok(objections.iter().filter_map(other).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_objection_that_is_not_allowed_is_told_in_either_form() {
        let text = "E: rdmatop-bpf: bogus-mail-host Maintainer a@localhost\n\
                    N: a note\n\
                    W: rdmatop-bpf: no-manual-page [usr/bin/rdmatop]\n";
        assert_eq!(
            others("lintian", text, &["bogus-mail-host"], 1).unwrap(),
            ["W: rdmatop-bpf: no-manual-page [usr/bin/rdmatop]"]
        );
        let text = "rdmatop-bpf.x86_64: W: no-url-tag\n\
                    rdmatop-bpf.x86_64: E: no-signature\n\
                    rdmatop-bpf.x86_64: E: zero-length /usr/bin/rdmatop\n \
                    1 packages and 0 specfiles checked; 1 errors, 1 warnings\n";
        assert_eq!(
            others("rpmlint", text, &["no-signature", "no-url-tag"], 1).unwrap(),
            ["rdmatop-bpf.x86_64: E: zero-length /usr/bin/rdmatop"]
        );
    }

    #[test]
    fn a_linter_that_has_not_read_every_package_is_an_error() {
        let line = "E: rdmatop-bpf: bogus-mail-host Maintainer a@localhost\n";
        for (text, packages) in [("", 1), (line, 2), ("", 0)] {
            let error = others("lintian", text, &LINTIAN, packages)
                .unwrap_err()
                .to_string();
            assert!(error.contains("lintian says bogus-mail-host of "), "{error}");
        }
        assert!(
            others("lintian", &line.repeat(2), &LINTIAN, 2)
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn a_missing_linter_is_an_error_with_the_remedy() {
        all_there(|_| true).unwrap();
        let error = all_there(|tool| tool == "lintian").unwrap_err().to_string();
        assert_eq!(error, "--lint needs rpmlint: apt-get install rpmlint");
        assert!(all_there(|tool| tool == "rpmlint").is_err());
    }

    #[test]
    fn the_page_names_the_objections_that_are_allowed() {
        let page = fs::read_to_string(paths::repo().join("docs/install.md")).unwrap();
        let paragraph = page
            .split("\n\n")
            .find(|text| text.contains("lintian objects to"));
        let words = paragraph.unwrap().split('`').skip(1).step_by(2);
        let named: Vec<&str> = words.filter(|word| !word.contains(' ')).collect();
        assert_eq!(named, [LINTIAN, RPMLINT].concat());
    }
}
