//! Holds the packages to lintian and rpmlint. docs/install.md names what these may object to.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tree::{files, said_by, write};
use crate::paths;

/// What only the publisher of a package can give it: an address, a bug that it closes.
const LINTIAN: [&str; 3] = [
    "bogus-mail-host",
    "bogus-mail-host-in-debian-changelog",
    "initial-upload-closes-no-bugs",
];

/// What only the publisher can give, and a page that rpmlint does not find.
const RPMLINT: [&str; 3] = ["no-manual-page-for-binary", "no-signature", "no-url-tag"];

/// What a distribution with RPM configures, and Debian's rpmlint lacks.
const SETTINGS: &str = "CompressExtension = \"gz\"\nValidLicenses = [\"MIT\", \"Apache-2.0\"]\n";

/// Fails if there is no lintian.
pub(super) fn possible() -> Result<()> {
    ensure!(
        paths::find_tool(&["lintian"]).is_some(),
        "--lint needs lintian: apt-get install lintian rpmlint"
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
    let mut lintian = Command::new("lintian");
    lintian.args(["--fail-on", "none", "--tag-display-limit", "0"]);
    let said = said_by(lintian.args(of("deb")?))?;
    let mut objections = others(&String::from_utf8_lossy(&said), &LINTIAN);
    if paths::find_tool(&["rpmlint"]).is_some() {
        let settings = work.join("rpmlint.toml");
        write(&settings, SETTINGS.as_bytes())?;
        let mut rpmlint = Command::new("rpmlint");
        rpmlint.arg("--config").arg(&settings).args(of("rpm")?);
        // Its status tells of objections, too.
        let said = rpmlint.output().context("cannot start rpmlint")?;
        let text = String::from_utf8_lossy(&said.stdout);
        ensure!(
            text.contains("checked;"),
            "rpmlint failed: {}",
            String::from_utf8_lossy(&said.stderr)
        );
        objections.extend(others(&text, &RPMLINT));
    } else {
        println!("lint: no rpmlint here, so that the RPM packages were not looked at");
    }
    ensure!(objections.is_empty(), "lint:\n{}", objections.join("\n"));
    println!("lint: no objection to the packages but those that docs/install.md names");
    Ok(())
}

/// Returns the lines with objections that are not `allowed`. `E: NAME: TAG ...` is lintian's form, `NAME: E:
/// TAG ...` rpmlint's.
fn others(text: &str, allowed: &[&str]) -> Vec<String> {
    let objects = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().take(3).collect();
        let [first, second, tag] = words[..] else {
            return false;
        };
        let level = |word| matches!(word, "E:" | "W:");
        (level(first) || level(second)) && !allowed.contains(&tag)
    };
    text.lines().filter(objects).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_objection_that_is_not_allowed_is_told_in_either_form() {
        let text = "E: rdmatop-bpf: bogus-mail-host Maintainer a@localhost\n\
                    N: a note\n\
                    W: rdmatop-bpf: no-manual-page [usr/bin/rdmatop]\n\
                    rdmatop-bpf.x86_64: W: no-url-tag\n\
                    rdmatop-bpf.x86_64: E: zero-length /usr/bin/rdmatop\n \
                    1 packages and 0 specfiles checked; 1 errors, 1 warnings\n";
        assert_eq!(
            others(text, &["bogus-mail-host", "no-url-tag"]),
            [
                "W: rdmatop-bpf: no-manual-page [usr/bin/rdmatop]",
                "rdmatop-bpf.x86_64: E: zero-length /usr/bin/rdmatop"
            ]
        );
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
