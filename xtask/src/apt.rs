//! Debian packages through apt in a private directory: fetched and verified, never installed.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::step;

/// One archive line of the machine's apt sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    /// The archive's address, as apt writes it.
    pub(crate) uri: String,
    /// The suite, such as `bookworm-security`.
    pub(crate) suite: String,
    /// The components, such as `main`.
    pub(crate) components: Vec<String>,
}

/// Parses apt's one-line format (`deb [options] URI suite components`).
pub(crate) fn parse_list(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line
            .strip_prefix("deb")
            .filter(|rest| rest.starts_with([' ', '\t']))
        else {
            continue;
        };
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[') {
            Some(options) => options.split_once(']').map_or("", |(_, after)| after),
            None => rest,
        };
        let mut words = rest.split_whitespace().map(str::to_owned);
        if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
            sources.push(Source {
                uri,
                suite,
                components: words.collect(),
            });
        }
    }
    sources
}

/// Parses apt's deb822 format (`*.sources`).
pub(crate) fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    // Comment lines may stand inside a stanza and do not end it.
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in lines.split(|line| line.trim().is_empty()) {
        let mut fields: Vec<(String, String)> = Vec::new();
        for line in stanza {
            if line.starts_with([' ', '\t']) {
                if let Some((_, value)) = fields.last_mut() {
                    value.push(' ');
                    value.push_str(line.trim());
                }
            } else if let Some((name, value)) = line.split_once(':') {
                fields.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
            }
        }
        let words = |name: &str| -> Vec<String> {
            let field = fields.iter().find(|(key, _)| key == name);
            field
                .map(|(_, value)| value.split_whitespace().map(str::to_owned).collect())
                .unwrap_or_default()
        };
        let off = words("enabled")
            .first()
            .is_some_and(|word| word.eq_ignore_ascii_case("no"));
        if off || !words("types").iter().any(|kind| kind == "deb") {
            continue;
        }
        for uri in words("uris") {
            for suite in words("suites") {
                sources.push(Source {
                    uri: uri.clone(),
                    suite,
                    components: words("components"),
                });
            }
        }
    }
    sources
}

/// Reads all of the machine's apt sources.
pub(crate) fn machine_sources(etc_apt: &Path) -> Vec<Source> {
    let mut files = vec![etc_apt.join("sources.list")];
    if let Ok(dir) = fs::read_dir(etc_apt.join("sources.list.d")) {
        let mut parts: Vec<PathBuf> = dir.flatten().map(|entry| entry.path()).collect();
        parts.sort();
        files.extend(parts);
    }
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else {
            continue;
        };
        match file.extension().and_then(|ext| ext.to_str()) {
            Some("list") => sources.extend(parse_list(&text)),
            Some("sources") => sources.extend(parse_deb822(&text)),
            _ => {}
        }
    }
    sources
}

/// The Debian archive and its security archive, chosen from the machine's sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Address of the main archive.
    pub(crate) main: String,
    /// Address of the security archive, if the machine has one.
    pub(crate) security: Option<String>,
}

/// Tells which of `sources` are Debian's own, by suite name and component.
pub(crate) fn choose_mirror(sources: &[Source]) -> Option<Mirror> {
    const CODENAMES: [&str; 10] = [
        "bullseye",
        "bookworm",
        "trixie",
        "forky",
        "sid",
        "unstable",
        "testing",
        "stable",
        "oldstable",
        "duke",
    ];
    let debian = |source: &&Source| {
        let base = source.suite.split(['-', '/']).next().unwrap_or_default();
        CODENAMES.contains(&base) && source.components.iter().any(|component| component == "main")
    };
    let is_security =
        |source: &&Source| source.suite.contains("security") || source.suite.contains("/updates");
    let main = sources
        .iter()
        .filter(debian)
        .find(|source| !is_security(source))?;
    let security = sources.iter().filter(debian).find(is_security);
    Some(Mirror {
        main: main.uri.clone(),
        security: security.map(|source| source.uri.clone()),
    })
}

/// The archive lines to try, in order, for the kernel of `suite`.
///
/// An old suite leaves the main archive one day: then its security suite still holds the same kernel
/// series, and some mirrors keep the archived suites beside the living ones.
pub(crate) fn candidates(mirror: &Mirror, suite: &str) -> Vec<(String, String)> {
    let mut list = vec![(mirror.main.clone(), suite.to_owned())];
    if suite != "unstable" {
        if let Some(security) = &mirror.security {
            list.push((security.clone(), format!("{suite}-security")));
        }
        if let Some(base) = mirror.main.trim_end_matches('/').strip_suffix("/debian") {
            list.push((format!("{base}/debian-archive/debian"), suite.to_owned()));
        }
    }
    list
}

/// Compares two version strings: digit runs by value, the rest byte by byte, `~` before everything.
pub(crate) fn compare_versions(left: &str, right: &str) -> Ordering {
    let (mut left, mut right) = (left.as_bytes(), right.as_bytes());
    loop {
        let (left_text, left_rest) = split_while(left, |byte| !byte.is_ascii_digit());
        let (right_text, right_rest) = split_while(right, |byte| !byte.is_ascii_digit());
        let rank = |byte: Option<&u8>| match byte {
            Some(b'~') => -1,
            None => 0,
            Some(&byte) if byte.is_ascii_alphabetic() => i32::from(byte),
            Some(&byte) => i32::from(byte) + 256,
        };
        for index in 0..left_text.len().max(right_text.len()) {
            let order = rank(left_text.get(index)).cmp(&rank(right_text.get(index)));
            if order != Ordering::Equal {
                return order;
            }
        }
        let (left_digits, left_after) = split_while(left_rest, u8::is_ascii_digit);
        let (right_digits, right_after) = split_while(right_rest, u8::is_ascii_digit);
        let number = |digits: &[u8]| {
            digits.iter().fold(0_u64, |sum, digit| {
                sum.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
            })
        };
        let order = number(left_digits).cmp(&number(right_digits));
        if order != Ordering::Equal {
            return order;
        }
        if left_after.is_empty() && right_after.is_empty() {
            return Ordering::Equal;
        }
        (left, right) = (left_after, right_after);
    }
}

fn split_while(bytes: &[u8], keep: impl Fn(&u8) -> bool) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|byte| !keep(byte)).unwrap_or(bytes.len());
    bytes.split_at(end)
}

/// The packages that make up one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelPackages {
    /// The version as `uname -r` gives it.
    pub(crate) release: String,
    /// Names to download and unpack.
    pub(crate) packages: Vec<String>,
}

/// Picks the newest plain amd64 kernel among package `names`; `series` (`6.12`) narrows it down.
///
/// Newer Debian splits the kernel into linux-binary and linux-modules and leaves linux-image as an
/// empty shell; where the split pair exists it is taken.
pub(crate) fn pick_kernel<'a>(
    names: &(impl Iterator<Item = &'a str> + Clone),
    series: Option<&str>,
) -> Option<KernelPackages> {
    let version_of = |prefix: &'static str| {
        move |name: &'a str| -> Option<&'a str> {
            let version = name.strip_prefix(prefix)?.strip_suffix("-amd64")?;
            let mut parts = version.split(['.', '-', '+']);
            // Three numbers: the meta packages (linux-image-6.1-amd64) have two. cloud and rt follow the
            // version with a word, backports with ~bpo or +bpo.
            let numbers = parts
                .by_ref()
                .take(3)
                .filter(|part| part.parse::<u32>().is_ok())
                .count();
            let plain = !["cloud", "rt", "bpo", "unsigned", "dbg"]
                .iter()
                .any(|word| version.contains(word));
            (numbers == 3 && plain).then_some(version)
        }
    };
    let in_series = |version: &&str| {
        series.is_none_or(|series| {
            version
                .strip_prefix(series)
                .is_some_and(|rest| rest.starts_with(['.', '-', '+']))
        })
    };
    let newest = |prefix: &'static str| {
        names
            .clone()
            .filter_map(version_of(prefix))
            .filter(in_series)
            .max_by(|a, b| compare_versions(a, b))
    };
    let split = newest("linux-binary-");
    let whole = newest("linux-image-");
    let version = match (split, whole) {
        (Some(split), Some(whole)) if compare_versions(split, whole) == Ordering::Less => whole,
        (Some(split), _) => split,
        (None, whole) => whole?,
    };
    let release = format!("{version}-amd64");
    // linux-base-VERSION holds modules.builtin, from which depmod knows what is no module.
    let wanted: &[&str] = if split == Some(version) {
        &["linux-binary-", "linux-modules-", "linux-base-"]
    } else {
        &["linux-image-"]
    };
    let packages = wanted.iter().map(|prefix| format!("{prefix}{release}"));
    let packages = packages
        .filter(|package| names.clone().any(|name| name == package))
        .collect();
    Some(KernelPackages { release, packages })
}

/// Apt's reason in one line instead of its last words, which are the same for every archive and package.
pub(crate) fn explained(error: anyhow::Error) -> anyhow::Error {
    let line = error.downcast_ref::<step::Failed>().and_then(|failed| {
        let reason = reason(&failed.output)?;
        Some(format!("{}: {reason}", failed.label))
    });
    line.map_or(error, anyhow::Error::msg)
}

/// The first error among apt's output: apt marks it so in every language.
fn reason(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("E: "))?;
    // Two blanks stand between an address and what became of it.
    Some(line.trim().replace("  ", ": "))
}

/// The packages in the lines `Depends: NAME` of `apt-cache depends`; a bar marks an alternative.
fn parse_depends(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect()
}

/// An apt with its own sources, lists and cache: the machine's are read, never written.
pub(crate) struct PrivateApt {
    dir: PathBuf,
}

impl PrivateApt {
    /// Sets up `dir` for one archive line.
    pub(crate) fn new(dir: PathBuf, uri: &str, suite: &str) -> Result<Self> {
        let keyring = [
            "/usr/share/keyrings/debian-archive-keyring.gpg",
            "/usr/share/keyrings/debian-archive-keyring.pgp",
        ]
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .context("no Debian archive keyring: `apt-get install debian-archive-keyring`")?;
        for part in ["lists/partial", "cache/archives/partial", "debs"] {
            fs::create_dir_all(dir.join(part)).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        fs::write(
            dir.join("sources.list"),
            format!("deb [arch=amd64 signed-by={keyring}] {uri} {suite} main\n"),
        )
        .with_context(|| format!("cannot write in {}", dir.display()))?;
        Ok(Self { dir })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = self.dir.display();
        for option in [
            format!("Dir::Etc::SourceList={dir}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={dir}/lists"),
            format!("Dir::Cache={dir}/cache"),
            "APT::Sandbox::User=root".to_owned(),
            // An archived suite is never signed anew: its signature is checked, its age is not.
            "Acquire::Check-Valid-Until=false".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command
    }

    /// Fetches the package lists.
    pub(crate) fn update(&self, label: &str) -> Result<()> {
        // Without this, apt takes a failed fetch for a mere warning.
        let text = step::run(
            label,
            self.command("apt-get")
                .args(["-o", "APT::Update::Error-Mode=any", "update"]),
        )
        .map_err(explained)?;
        ensure!(
            !text.lines().any(|line| line.starts_with("E:")),
            "{label}: {}",
            step::tail(&text, 5)
        );
        Ok(())
    }

    /// Names of all packages whose name matches `pattern` (an extended regular expression).
    pub(crate) fn search(&self, pattern: &str) -> Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["search", "--names-only", pattern])
            .output()
            .context("cannot start apt-cache")?;
        if !output.status.success() {
            bail!(
                "apt-cache search failed: {}",
                step::tail(&String::from_utf8_lossy(&output.stderr), 5)
            );
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text
            .lines()
            .filter_map(|line| line.split_whitespace().next())
            .map(str::to_owned)
            .collect())
    }

    /// Names of the packages that `package` depends on; none when the archive does not have it.
    pub(crate) fn depends(&self, package: &str) -> Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["depends", package])
            .env("LC_ALL", "C")
            .output()
            .context("cannot start apt-cache")?;
        Ok(parse_depends(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads `packages` (apt checks them against the signed lists) and returns the files.
    pub(crate) fn download(&self, label: &str, packages: &[String]) -> Result<Vec<PathBuf>> {
        let debs = self.dir.join("debs");
        let _ = fs::remove_dir_all(&debs);
        fs::create_dir_all(&debs)?;
        step::run(
            label,
            self.command("apt-get")
                .arg("download")
                .args(packages)
                .current_dir(&debs),
        )
        .map_err(explained)?;
        let mut files: Vec<PathBuf> = fs::read_dir(&debs)?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "deb"))
            .collect();
        files.sort();
        ensure!(
            files.len() == packages.len(),
            "{label}: apt brought {} of {} files",
            files.len(),
            packages.len()
        );
        Ok(files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
Types: deb
# kept: http://snapshot.example/archive
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
 contrib

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: trixie
Components: main
";

    #[test]
    fn deb822_stanzas_give_one_source_for_each_suite() {
        let sources = parse_deb822(DEB822);
        let suites: Vec<&str> = sources.iter().map(|source| source.suite.as_str()).collect();
        assert_eq!(suites, ["bookworm", "bookworm-updates", "bookworm-security"]);
        assert_eq!(sources[0].uri, "http://mirror.example/debian");
        assert_eq!(sources[2].components, ["main", "contrib"]);
    }

    #[test]
    fn one_line_sources_are_read_with_options_and_comments() {
        let text = "# deb http://no.example x main\ndeb [arch=amd64 signed-by=/k] http://a.example/debian sid main # x\n\
                    deb-src http://a.example/debian sid main\ndeb http://b.example/debian bookworm main contrib\ndebris x y\n";
        let sources = parse_list(text);
        assert_eq!(sources.len(), 2);
        assert_eq!(
            (sources[0].uri.as_str(), sources[0].suite.as_str()),
            ("http://a.example/debian", "sid")
        );
        assert_eq!(sources[0].components, ["main"]);
        assert_eq!(sources[1].components, ["main", "contrib"]);
    }

    #[test]
    fn the_mirror_is_debians_own_and_not_a_vendors() {
        let mut sources = parse_list("deb http://vendor.example/node nodistro main\n");
        sources.extend(parse_deb822(DEB822));
        let mirror = choose_mirror(&sources).unwrap();
        assert_eq!(mirror.main, "http://mirror.example/debian");
        assert_eq!(
            mirror.security.as_deref(),
            Some("http://mirror.example/debian-security")
        );
        assert_eq!(
            choose_mirror(&parse_list("deb http://vendor.example/node nodistro main\n")),
            None
        );
    }

    #[test]
    fn an_old_suite_is_looked_for_in_three_places_and_sid_in_one() {
        let mirror = choose_mirror(&parse_deb822(DEB822)).unwrap();
        let places = candidates(&mirror, "bullseye");
        assert_eq!(places.len(), 3);
        assert_eq!(places[1].1, "bullseye-security");
        assert_eq!(places[2].0, "http://mirror.example/debian-archive/debian");
        assert_eq!(candidates(&mirror, "unstable").len(), 1);
    }

    #[test]
    fn a_failed_fetch_is_told_in_one_line() {
        let script = "echo 'Err:1 http://a.example/debian sid InRelease'; echo 'W: old' >&2
                      echo 'E: Failed to fetch http://a.example/x  Could not resolve a.example' >&2
                      echo 'E: Some index files failed to download.' >&2; exit 100";
        let error = step::run("lists", Command::new("sh").args(["-c", script])).unwrap_err();
        assert_eq!(
            explained(error).to_string(),
            "lists: Failed to fetch http://a.example/x: Could not resolve a.example"
        );
        // Without a reason of apt's, all there is.
        let error = step::run("lists", Command::new("sh").args(["-c", "echo odd; exit 1"])).unwrap_err();
        assert!(explained(error).to_string().contains("odd"));
    }

    #[test]
    fn what_a_package_depends_on_is_read_and_what_it_suggests_is_not() {
        let text = "linux-headers-6.12-amd64\n  Depends: linux-base\n |Depends: a\n  Depends: b\n  Suggests: c\n    d\n";
        assert_eq!(parse_depends(text), ["linux-base", "a", "b"]);
    }

    #[test]
    fn versions_compare_by_number() {
        for (small, large) in [
            ("6.12.94+deb13", "6.12.107+deb13"),
            ("5.10.0-9", "5.10.0-32"),
            ("7.2~rc1", "7.2"),
            ("6.12.115+deb13", "6.12.115+deb13.1"),
            ("6.9.1", "6.12.0"),
        ] {
            assert_eq!(
                compare_versions(small, large),
                Ordering::Less,
                "{small} < {large}"
            );
            assert_eq!(
                compare_versions(large, small),
                Ordering::Greater,
                "{large} > {small}"
            );
            assert_eq!(compare_versions(small, small), Ordering::Equal);
        }
    }

    #[test]
    fn the_newest_plain_kernel_of_the_series_is_picked() {
        let names = [
            "linux-image-6.1-amd64",
            "linux-image-6.1.0-47-amd64",
            "linux-image-6.1.0-50-amd64",
            "linux-image-6.1.0-60-cloud-amd64",
            "linux-image-6.1.0-61-rt-amd64",
            "linux-image-6.12.9+bpo-amd64",
            "linux-image-6.12.107+deb13-amd64",
        ];
        let picked = pick_kernel(&names.into_iter(), Some("6.1")).unwrap();
        assert_eq!(picked.release, "6.1.0-50-amd64");
        assert_eq!(picked.packages, ["linux-image-6.1.0-50-amd64"]);
        assert_eq!(
            pick_kernel(&names.into_iter(), None).unwrap().release,
            "6.12.107+deb13-amd64"
        );
        assert_eq!(pick_kernel(&names.into_iter(), Some("5.10")), None);
    }

    #[test]
    fn a_split_kernel_is_taken_as_binary_and_modules() {
        let names = [
            "linux-image-7.2.13+deb14-amd64",
            "linux-modules-7.2.13+deb14-amd64",
            "linux-binary-7.2.13+deb14-amd64",
            "linux-base-7.2.13+deb14-amd64",
        ];
        let picked = pick_kernel(&names.into_iter(), None).unwrap();
        assert_eq!(
            picked.packages,
            [
                "linux-binary-7.2.13+deb14-amd64",
                "linux-modules-7.2.13+deb14-amd64",
                "linux-base-7.2.13+deb14-amd64"
            ]
        );
    }
}
