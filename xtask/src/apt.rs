//! Fetches and verifies Debian packages with an apt in a private directory; nothing is installed.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{arch::Arch, step};

/// A package archive as the machine's `apt-get indextargets` reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Archive {
    uri: String,
    origin: String,
    label: String,
}

/// The fields that [`archives`] asks of each package list.
const TARGET: &str = "$(REPO_URI)|$(ORIGIN)|$(LABEL)";

fn parse_targets(text: &str) -> Vec<Archive> {
    let archive = |line: &str| {
        let mut parts = line.split('|').map(str::to_owned);
        Some(Archive {
            uri: parts.next()?,
            origin: parts.next()?,
            label: parts.next()?,
        })
    };
    text.lines().filter_map(archive).collect()
}

/// Returns the archives of the machine's apt, whatever format its sources have. Apt knows them only by their
/// Release files; where an image lacks these, they are fetched into `lists`.
fn archives(lists: &Path) -> Result<Vec<Archive>> {
    let ask = |options: &[String]| -> Result<Vec<Archive>> {
        let mut command = Command::new("apt-get");
        command.args(options);
        let output = command
            .args(["indextargets", "--format", TARGET, "Created-By: Packages"])
            .output()
            .context("cannot start apt-get; the lab takes its kernels from a Debian archive")?;
        Ok(parse_targets(&String::from_utf8_lossy(&output.stdout)))
    };
    let known = ask(&[])?;
    if !known.is_empty() {
        return Ok(known);
    }
    fs::create_dir_all(lists.join("partial"))
        .with_context(|| format!("cannot create {}", lists.display()))?;
    let private = [
        "-o".to_owned(),
        format!("Dir::State::Lists={}", lists.display()),
        "-o".to_owned(),
        "APT::Sandbox::User=root".to_owned(),
    ];
    let label = "lab: package lists of this machine's apt sources";
    step::run(label, Command::new("apt-get").args(&private).arg("update")).map_err(explained)?;
    ask(&private)
}

/// Addresses of the Debian archive and its security archive, taken from the machine's apt sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Address of the main archive.
    pub(crate) main: String,
    /// Address of the security archive, if the machine has one.
    pub(crate) security: Option<String>,
}

impl Mirror {
    /// Returns the machine's mirror; `None` if its apt sources have no Debian archive. Missing package lists
    /// are fetched into the directory `lists`.
    pub(crate) fn of_machine(lists: &Path) -> Result<Option<Self>> {
        Ok(choose_mirror(&archives(lists)?))
    }
}

/// Chooses Debian's own among `archives`, which their signed Release files tell.
fn choose_mirror(archives: &[Archive]) -> Option<Mirror> {
    let labelled = |label: &str| {
        let mut debian = archives.iter().filter(|archive| archive.origin == "Debian");
        debian
            .find(|archive| archive.label == label)
            .map(|archive| archive.uri.clone())
    };
    Some(Mirror {
        main: labelled("Debian")?,
        security: labelled("Debian-Security"),
    })
}

/// The archive lines to try, in order, for the kernel of `suite`.
///
/// The main archive drops an old suite one day. Its security suite then still holds the same kernel series,
/// and some mirrors keep archived suites beside the current ones.
pub(crate) fn candidates(mirror: &Mirror, suite: &str) -> Vec<(String, String)> {
    let mut list = vec![(mirror.main.clone(), suite.to_owned())];
    if suite != "unstable" && !suite.ends_with("-backports") {
        if let Some(security) = &mirror.security {
            list.push((security.clone(), format!("{suite}-security")));
        }
        if let Some(base) = mirror.main.trim_end_matches('/').strip_suffix("/debian") {
            list.push((format!("{base}/debian-archive/debian"), suite.to_owned()));
        }
    }
    list
}

/// Compares two versions by Debian's order, with dpkg.
fn compare_versions(left: &str, right: &str) -> Ordering {
    let is = |relation: &str| {
        let mut dpkg = Command::new("dpkg");
        let status = dpkg.args(["--compare-versions", left, relation, right]).status();
        status.is_ok_and(|status| status.success())
    };
    match (is("lt"), is("gt")) {
        (true, _) => Ordering::Less,
        (_, true) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

/// The packages that make up one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelPackages {
    /// The version as `uname -r` gives it.
    pub(crate) release: String,
    /// Names to download and unpack.
    pub(crate) packages: Vec<String>,
}

/// Picks the newest plain kernel of a `flavour` (`amd64`, `arm64-16k`) among package `names`. `series`
/// (`6.12`) narrows the choice; `compare` orders versions.
///
/// Newer Debian splits the kernel into linux-binary and linux-modules and leaves linux-image as an empty
/// package. Where the split pair exists, it is chosen.
fn pick_kernel<'a>(
    names: &(impl Iterator<Item = &'a str> + Clone),
    flavour: &str,
    series: Option<&str>,
    compare: fn(&str, &str) -> Ordering,
) -> Option<KernelPackages> {
    let end = format!("-{flavour}");
    let version_of = |prefix: &'static str| {
        let end = &end;
        move |name: &'a str| -> Option<&'a str> {
            let version = name.strip_prefix(prefix)?.strip_suffix(end.as_str())?;
            let mut parts = version.split(['.', '-', '+']);
            // A kernel release has three numbers; a meta package (linux-image-6.1-amd64) has two. The cloud
            // and rt kernels have a word after the version, backports have ~bpo or +bpo.
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
            .max_by(|a, b| compare(a, b))
    };
    let split = newest("linux-binary-");
    let whole = newest("linux-image-");
    let version = match (split, whole) {
        (Some(split), Some(whole)) if compare(split, whole) == Ordering::Less => whole,
        (Some(split), _) => split,
        (None, whole) => whole?,
    };
    let release = format!("{version}{end}");
    // linux-base-VERSION holds modules.builtin, from which depmod learns what is built in and no module.
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

/// Replaces the end of apt's output, which is the same for every archive and package, by apt's own reason.
pub(crate) fn explained(error: anyhow::Error) -> anyhow::Error {
    let line = error.downcast_ref::<step::Failed>().and_then(|failed| {
        let reason = reason(&failed.output)?;
        Some(format!("{}: {reason}", failed.label))
    });
    line.map_or(error, anyhow::Error::msg)
}

/// Returns the first error in apt's output. Its prefix `E: ` is the same in every language.
fn reason(output: &str) -> Option<String> {
    let line = output.lines().find_map(|line| line.strip_prefix("E: "))?;
    // Apt separates an address from its failure by two blanks.
    Some(line.trim().replace("  ", ": "))
}

/// Returns the packages named by `Depends: NAME` lines of `apt-cache depends`; a bar marks an alternative.
fn parse_depends(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.trim_start_matches([' ', '|']).strip_prefix("Depends: "))
        .map(str::to_owned)
        .collect()
}

/// Returns the package files in a directory.
fn debs_in(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "deb"))
        .collect();
    files.sort();
    Ok(files)
}

/// An apt with its own sources, lists and cache. The machine's sources are read but never written.
pub(crate) struct PrivateApt {
    dir: PathBuf,
    arch: Arch,
}

impl PrivateApt {
    /// Sets up `dir` for one archive line and for packages of one architecture.
    pub(crate) fn new(dir: PathBuf, arch: Arch, uri: &str, suite: &str) -> Result<Self> {
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
            format!(
                "deb [arch={} signed-by={keyring}] {uri} {suite} main\n",
                arch.debian()
            ),
        )
        .with_context(|| format!("cannot write in {}", dir.display()))?;
        // For `download_whole`: an empty status file says that nothing is installed.
        fs::write(dir.join("status"), "").with_context(|| format!("cannot write in {}", dir.display()))?;
        Ok(Self { dir, arch })
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let dir = self.dir.display();
        let debian = self.arch.debian();
        for option in [
            format!("APT::Architecture={debian}"),
            format!("APT::Architectures::={debian}"),
            format!("Dir::Etc::SourceList={dir}/sources.list"),
            "Dir::Etc::SourceParts=/dev/null".to_owned(),
            format!("Dir::State::Lists={dir}/lists"),
            format!("Dir::Cache={dir}/cache"),
            "APT::Sandbox::User=root".to_owned(),
            // An archived suite is never signed again, so its signature is checked but not its age.
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
        // Without this option, apt reports a failed fetch only as a warning.
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

    /// Returns the names of all packages that match `pattern` (an extended regular expression).
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

    /// Returns the packages of the newest plain kernel of a flavour, of `series` if that is given.
    pub(crate) fn newest_kernel(
        &self,
        title: &str,
        flavour: &str,
        series: Option<&str>,
    ) -> Result<KernelPackages> {
        let names = self.search(&format!("^linux-(image|binary|modules|base)-[0-9].*-{flavour}$"))?;
        let names = names.iter().map(String::as_str);
        pick_kernel(&names, flavour, series, compare_versions).with_context(|| {
            format!(
                "{title}: no linux-image-{}*-{flavour}",
                series.unwrap_or_default()
            )
        })
    }

    /// Returns the packages that `package` depends on; none if the archive does not have it.
    pub(crate) fn depends(&self, package: &str) -> Result<Vec<String>> {
        let output = self
            .command("apt-cache")
            .args(["depends", package])
            .env("LC_ALL", "C")
            .output()
            .context("cannot start apt-cache")?;
        Ok(parse_depends(&String::from_utf8_lossy(&output.stdout)))
    }

    /// Downloads `packages` and all their dependencies, as for a machine that has nothing installed.
    pub(crate) fn download_whole(&self, label: &str, packages: &[&str]) -> Result<Vec<PathBuf>> {
        let status = format!("Dir::State::status={}", self.dir.join("status").display());
        let mut command = self.command("apt-get");
        command.args(["-o", &status, "-o", "Debug::NoLocking=1"]).args([
            "--yes",
            "--download-only",
            "--no-install-recommends",
            "install",
        ]);
        step::run(label, command.args(packages)).map_err(explained)?;
        debs_in(&self.dir.join("cache/archives"))
    }

    /// Downloads `packages`, which apt checks against the signed lists, and returns the files.
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
        let files = debs_in(&debs)?;
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

    const TARGETS: &str = "\
http://vendor.example/node/|Node|Node
http://mirror.example/debian/|Debian|Debian
http://mirror.example/debian/|Debian|Debian
http://mirror.example/debian-security/|Debian|Debian-Security
";

    #[test]
    fn the_mirror_is_debians_own_and_not_a_vendors() {
        let mirror = choose_mirror(&parse_targets(TARGETS)).unwrap();
        assert_eq!(mirror.main, "http://mirror.example/debian/");
        let security = mirror.security.as_deref();
        assert_eq!(security, Some("http://mirror.example/debian-security/"));
        assert_eq!(
            choose_mirror(&parse_targets("http://vendor.example/|Docker|Docker CE\n")),
            None
        );
        assert_eq!(choose_mirror(&parse_targets("")), None);
    }

    #[test]
    fn an_old_suite_is_looked_for_in_three_places_and_sid_in_one() {
        let mirror = choose_mirror(&parse_targets(TARGETS)).unwrap();
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
        // If apt gives no reason, its whole output is shown.
        let error = step::run("lists", Command::new("sh").args(["-c", "echo odd; exit 1"])).unwrap_err();
        assert!(explained(error).to_string().contains("odd"));
    }

    #[test]
    fn what_a_package_depends_on_is_read_and_what_it_suggests_is_not() {
        let text = "linux-headers-6.12-amd64\n  Depends: linux-base\n |Depends: a\n  Depends: b\n  Suggests: c\n    d\n";
        assert_eq!(parse_depends(text), ["linux-base", "a", "b"]);
    }

    /// Compares versions by their numbers alone, which is enough for the names below.
    fn by_number(left: &str, right: &str) -> Ordering {
        let numbers = |version: &str| -> Vec<u32> {
            let parts = version.split(|c: char| !c.is_ascii_digit());
            parts.filter_map(|part| part.parse().ok()).collect()
        };
        numbers(left).cmp(&numbers(right))
    }

    #[test]
    fn versions_compare_as_dpkg_says() {
        if Command::new("dpkg").arg("--version").output().is_err() {
            println!("skipped: this machine has no dpkg");
            return;
        }
        for (small, large) in [("6.12.94+deb13", "6.12.107+deb13"), ("7.2~rc1", "7.2")] {
            assert_eq!(compare_versions(small, large), Ordering::Less);
            assert_eq!(compare_versions(large, small), Ordering::Greater);
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
        let picked = pick_kernel(&names.into_iter(), "amd64", Some("6.1"), by_number).unwrap();
        assert_eq!(picked.release, "6.1.0-50-amd64");
        assert_eq!(picked.packages, ["linux-image-6.1.0-50-amd64"]);
        assert_eq!(
            pick_kernel(&names.into_iter(), "amd64", None, by_number)
                .unwrap()
                .release,
            "6.12.107+deb13-amd64"
        );
        assert_eq!(
            pick_kernel(&names.into_iter(), "amd64", Some("5.10"), by_number),
            None
        );
    }

    #[test]
    fn a_kernel_of_other_pages_is_another_flavour() {
        let names = [
            "linux-image-6.12.117+deb13-arm64",
            "linux-image-6.12.118+deb13-arm64-16k",
            "linux-image-6.12.119+deb13-arm64-16k-unsigned",
            "linux-image-arm64-16k",
        ];
        let of = |flavour| pick_kernel(&names.into_iter(), flavour, Some("6.12"), by_number).unwrap();
        assert_eq!(of("arm64").release, "6.12.117+deb13-arm64");
        assert_eq!(of("arm64-16k").release, "6.12.118+deb13-arm64-16k");
        assert_eq!(pick_kernel(&names.into_iter(), "amd64", None, by_number), None);
    }

    #[test]
    fn a_split_kernel_is_taken_as_binary_and_modules() {
        let names = [
            "linux-image-7.2.13+deb14-amd64",
            "linux-modules-7.2.13+deb14-amd64",
            "linux-binary-7.2.13+deb14-amd64",
            "linux-base-7.2.13+deb14-amd64",
        ];
        let picked = pick_kernel(&names.into_iter(), "amd64", None, by_number).unwrap();
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
