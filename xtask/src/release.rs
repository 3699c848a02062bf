//! `cargo xtask release`: the steps of a release on one machine: version, changelog, commit, files, tag.
//!
//! If the files cannot be made, the commit is taken back and there is no tag.

use std::env;
use std::fmt::{self, Write as _};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{dist::tree::said_by, paths, test};

/// The options of `cargo xtask release`.
#[derive(Args)]
pub(crate) struct ReleaseArgs {
    /// The version to release: 1.2.3
    version: Version,
    /// Show all that would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Options for `cargo xtask dist` [default: --twice --roots --lint]
    #[arg(last = true)]
    dist: Vec<String>,
}

/// Runs the command.
pub(crate) fn main(args: &ReleaseArgs) -> Result<u8> {
    let defaults = ["--twice", "--roots", "--lint"].map(str::to_owned);
    let dist = if args.dist.is_empty() {
        &defaults[..]
    } else {
        &args.dist
    };
    let release = Release::of(&paths::repo(), args.version)?;
    if args.dry_run {
        print!("{}", release.shown(dist)?);
        return Ok(0);
    }
    ensure!(
        test::check(&test::CheckArgs::default())? == 0,
        "`cargo xtask check` failed: nothing was changed"
    );
    release.make(|repo| {
        // A new process, because this program still has the old version compiled in.
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["xtask", "dist"])
            .args(dist)
            .current_dir(repo)
            .status()
            .context("cannot start cargo")?;
        ensure!(status.success(), "`cargo xtask dist {}` failed", dist.join(" "));
        Ok(())
    })?;
    let tag = release.tag();
    println!(
        "{tag} is committed and tagged, and its files are in {}. To publish it: git push origin HEAD {tag}",
        paths::target().join("dist").display()
    );
    Ok(0)
}

/// A version of this project: three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u64; 3]);

impl std::str::FromStr for Version {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Option<Vec<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
        let version = numbers.and_then(|numbers| numbers.try_into().ok()).map(Self);
        // Other spellings (01, +1) would differ from the text in a file name.
        version
            .filter(|version| version.to_string() == text)
            .ok_or("a version has three numbers: 1.2.3")
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// A release that can be made, with the new content of each file.
struct Release {
    repo: PathBuf,
    version: Version,
    files: Vec<(&'static str, String)>,
}

impl Release {
    /// Reads the repository; an error says why nothing can be released.
    fn of(repo: &Path, version: Version) -> Result<Self> {
        let dirty = git(repo, &["status", "--porcelain"])?;
        ensure!(
            dirty.is_empty(),
            "there are changes that are not committed:\n{}",
            dirty.trim_end()
        );
        git(repo, &["symbolic-ref", "--quiet", "HEAD"])
            .context("HEAD is no branch: a commit would belong to none")?;
        let tags = git(repo, &["tag", "--list", "v*"])?;
        let tags = tags
            .lines()
            .filter_map(|tag| tag.strip_prefix('v')?.parse::<Version>().ok());
        if let Some(newest) = tags.max().filter(|newest| *newest >= version) {
            bail!("{newest} is released: {version} does not come after it");
        }
        let read =
            |name: &str| fs::read_to_string(repo.join(name)).with_context(|| format!("cannot read {name}"));
        let manifest = read("Cargo.toml")?;
        let old = workspace_version(&manifest)?;
        ensure!(
            old <= version,
            "Cargo.toml has {old}: {version} does not come after it"
        );
        // The day in UTC, as for the files' times.
        let today = said_by(Command::new("date").args(["--utc", "+%F"]))?;
        let changelog = cut(
            &read("CHANGELOG.md")?,
            version,
            String::from_utf8_lossy(&today).trim(),
        )?;
        Ok(Self {
            repo: repo.to_owned(),
            version,
            files: vec![
                ("Cargo.toml", with_version(&manifest, old, version)),
                ("Cargo.lock", locked(&read("Cargo.lock")?, old, version)),
                ("CHANGELOG.md", changelog),
            ],
        })
    }

    fn tag(&self) -> String {
        format!("v{}", self.version)
    }

    /// Returns the output of a dry run: differences and commands.
    fn shown(&self, dist: &[String]) -> Result<String> {
        let mut all = String::new();
        let new = paths::target().join(format!("release-{}", std::process::id()));
        for (name, text) in &self.files {
            crate::dist::tree::write(&new.join(name), text.as_bytes())?;
            // Status 1 means that the files differ.
            let output = Command::new("git")
                .args(["diff", "--no-index", "--no-color", "--unified=2", name])
                .arg(new.join(name))
                .current_dir(&self.repo)
                .output()
                .context("cannot start git")?;
            let diff = String::from_utf8_lossy(&output.stdout).into_owned();
            let body = diff.find("\n@@").map_or("\nno change", |at| &diff[at..]);
            let _ = writeln!(all, "--- {name}{}", body.trim_end());
        }
        fs::remove_dir_all(&new).with_context(|| format!("cannot remove {}", new.display()))?;
        let (version, tag) = (self.version, self.tag());
        let dist = dist.join(" ");
        let _ = write!(
            all,
            "cargo xtask check\ngit commit --all --message 'Release {version}'\ncargo xtask dist {dist}\n\
             git tag --annotate {tag} --message 'rdmatop {version}'\n\
             release: the above would be done; nothing was changed\n"
        );
        Ok(all)
    }

    /// Commits, makes the files with `dist`, and tags. If the files cannot be made, the commit is taken back.
    fn make(&self, dist: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let before = git(&self.repo, &["rev-parse", "HEAD"])?;
        let made = self.commit().and_then(|()| dist(&self.repo));
        if let Err(error) = made {
            // The tree was clean before, so nobody's work is lost.
            git(&self.repo, &["reset", "--quiet", "--hard", before.trim()])
                .with_context(|| format!("{error:#}; and the commit could not be taken back"))?;
            return Err(error.context("nothing was released, and the commit was taken back"));
        }
        let message = format!("rdmatop {}", self.version);
        git(
            &self.repo,
            &["tag", "--annotate", &self.tag(), "--message", &message],
        )
        .map(drop)
    }

    fn commit(&self) -> Result<()> {
        for (name, text) in &self.files {
            fs::write(self.repo.join(name), text).with_context(|| format!("cannot write {name}"))?;
        }
        // cargo checks whether the lock file matches the manifest.
        let tree = said_by(
            Command::new("cargo")
                .args([
                    "tree",
                    "--locked",
                    "--offline",
                    "--package",
                    "rdmatop",
                    "--depth",
                    "0",
                ])
                .current_dir(&self.repo),
        )?;
        let wanted = format!("rdmatop v{} ", self.version);
        ensure!(
            String::from_utf8_lossy(&tree).starts_with(&wanted),
            "cargo does not see version {}",
            self.version
        );
        let message = format!("Release {}", self.version);
        git(&self.repo, &["commit", "--quiet", "--all", "--message", &message]).map(drop)
    }
}

/// Runs git and returns its output.
fn git(repo: &Path, args: &[&str]) -> Result<String> {
    let said = said_by(Command::new("git").args(args).current_dir(repo))?;
    String::from_utf8(said).context("git prints no text")
}

/// Returns the workspace's version, the first line of that name in its section; crates inherit it.
fn workspace_version(manifest: &str) -> Result<Version> {
    let mut lines = manifest.lines().skip_while(|line| *line != "[workspace.package]");
    let text = lines.find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    text.context("Cargo.toml has no version of the workspace")?
        .parse()
        .map_err(anyhow::Error::msg)
}

fn with_version(manifest: &str, old: Version, new: Version) -> String {
    manifest.replacen(
        &format!("\nversion = \"{old}\"\n"),
        &format!("\nversion = \"{new}\"\n"),
        1,
    )
}

/// Returns a lock file with a new version of the workspace's crates, the only ones without a source.
fn locked(lock: &str, old: Version, new: Version) -> String {
    let (old, new) = (
        format!("\nversion = \"{old}\"\n"),
        format!("\nversion = \"{new}\"\n"),
    );
    let packages = lock.split("[[package]]").map(|package| {
        if package.contains("\nsource = ") {
            package.to_owned()
        } else {
            package.replacen(&old, &new, 1)
        }
    });
    packages.collect::<Vec<_>>().join("[[package]]")
}

const UNRELEASED: &str = "## [Unreleased]\n";

/// The kinds of changes, in the order of Keep a Changelog.
const KINDS: [&str; 6] = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];

/// Returns a changelog that lists the unreleased changes under `version`.
fn cut(changelog: &str, version: Version, date: &str) -> Result<String> {
    let (before, after) = changelog
        .split_once(UNRELEASED)
        .context("CHANGELOG.md has no section [Unreleased]")?;
    let end = after.find("\n## ").map_or(after.len(), |at| at + 1);
    let (changes, earlier) = after.split_at(end);
    let mut order = KINDS.iter();
    for section in changes.split("\n### ").skip(1) {
        let (kind, text) = section.split_once('\n').unwrap_or((section, ""));
        ensure!(
            order.any(|known| *known == kind),
            "CHANGELOG.md: \"{kind}\" is no kind of change, or stands twice or out of order: {}",
            KINDS.join(", ")
        );
        ensure!(
            text.trim_start().starts_with("- "),
            "CHANGELOG.md: nothing is under \"{kind}\""
        );
    }
    ensure!(changes.contains("\n- "), "CHANGELOG.md: nothing is unreleased");
    Ok(format!(
        "{before}{UNRELEASED}\n## [{version}] - {date}\n{changes}{earlier}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A temporary clone of this repository with an unreleased change; `None`, with a message, if the source
    /// is not a git repository.
    struct Clone(PathBuf);

    impl Clone {
        fn new(name: &str) -> Option<Self> {
            if !paths::repo().join(".git").exists() {
                eprintln!("SKIPPED: this source is no clone of git");
                return None;
            }
            let dir = env::temp_dir().join(format!("xtask-release-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            let source = format!("file://{}", paths::repo().display());
            git(
                &env::temp_dir(),
                &["clone", "--quiet", "--depth=1", &source, &dir.to_string_lossy()],
            )
            .unwrap();
            let clone = Self(dir);
            for setting in [
                "user.name=nobody",
                "user.email=nobody@localhost",
                "commit.gpgSign=false",
                "tag.gpgSign=false",
            ] {
                let (key, value) = setting.split_once('=').unwrap();
                clone.git(&["config", key, value]);
            }
            // The clone of a repository with a detached HEAD is detached too.
            clone.git(&["checkout", "--quiet", "-B", "work"]);
            let changelog = clone.read("CHANGELOG.md");
            if cut(&changelog, Version([9, 0, 0]), "2026-01-01").is_err() {
                let more = format!("{UNRELEASED}\n### Added\n- Something.\n");
                fs::write(
                    clone.0.join("CHANGELOG.md"),
                    changelog.replacen(UNRELEASED, &more, 1),
                )
                .unwrap();
                clone.git(&["commit", "--quiet", "--all", "--message=Change something"]);
            }
            Some(clone)
        }

        fn git(&self, args: &[&str]) -> String {
            git(&self.0, args).unwrap()
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).unwrap()
        }

        /// Returns the state of the clone: commit, tags, changed files.
        fn state(&self) -> [String; 3] {
            [
                self.git(&["rev-parse", "HEAD"]),
                self.git(&["tag", "--list"]),
                self.git(&["status", "--porcelain"]),
            ]
        }

        fn refused(&self, version: [u64; 3]) -> String {
            let refused = Release::of(&self.0, Version(version)).err();
            refused.map_or_else(String::new, |error| format!("{error:#}"))
        }
    }

    impl Drop for Clone {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_release_is_one_commit_with_a_tag_and_the_next_one_comes_after_it() {
        let Some(clone) = Clone::new("whole") else { return };
        let before = clone.state();
        let release = Release::of(&clone.0, Version([9, 8, 7])).unwrap();
        let shown = release.shown(&["--twice".to_owned()]).unwrap();
        for line in [
            "+version = \"9.8.7\"",
            "git tag --annotate v9.8.7",
            "cargo xtask check\ngit commit",
            "cargo xtask dist --twice",
        ] {
            assert!(shown.contains(line), "{line} in\n{shown}");
        }
        assert_eq!(clone.state(), before, "a dry run changes nothing");
        let mut at_dist = String::new();
        release
            .make(|repo| {
                at_dist = git(repo, &["log", "-1", "--format=%s"])?;
                Ok(())
            })
            .unwrap();
        assert_eq!(at_dist, "Release 9.8.7\n", "the files are made of the commit");
        let [commit, tags, changed] = clone.state();
        assert_eq!(clone.git(&["rev-parse", "HEAD~1"]), before[0]);
        assert_eq!(clone.git(&["rev-parse", "v9.8.7^{commit}"]), commit);
        assert!(tags.contains("v9.8.7") && changed.is_empty(), "{tags}{changed}");
        let names = clone.git(&["diff", "--name-only", "HEAD~1"]);
        assert_eq!(names, "CHANGELOG.md\nCargo.lock\nCargo.toml\n");
        assert_eq!(
            workspace_version(&clone.read("Cargo.toml")).unwrap(),
            Version([9, 8, 7])
        );
        assert!(
            clone
                .read("CHANGELOG.md")
                .contains("## [Unreleased]\n\n## [9.8.7] - 20")
        );

        assert!(clone.refused([9, 8, 7]).contains("9.8.7 is released"));
        assert!(clone.refused([9, 9, 0]).contains("nothing is unreleased"));
        fs::write(clone.0.join("Cargo.toml"), "").unwrap();
        assert!(clone.refused([9, 9, 0]).contains("not committed"));
    }

    #[test]
    fn a_release_whose_files_cannot_be_made_leaves_everything_as_it_was() {
        let Some(clone) = Clone::new("fails") else { return };
        let before = clone.state();
        let release = Release::of(&clone.0, Version([9, 8, 7])).unwrap();
        let error = release.make(|_| bail!("no linker")).unwrap_err();
        assert!(format!("{error:#}").contains("no linker"), "{error:#}");
        assert_eq!(clone.state(), before);
    }

    #[test]
    fn a_version_is_three_numbers_in_their_order() {
        let version = |text: &str| text.parse::<Version>();
        assert_eq!(version("1.2.30"), Ok(Version([1, 2, 30])));
        for not in ["1.2", "1.2.3.4", "v1.2.3", "1.2.x", "1.02.3", "1.2.3-rc1", ""] {
            assert!(version(not).is_err(), "{not}");
        }
        assert!(version("1.10.0") > version("1.9.9"));
    }

    #[test]
    fn only_this_workspace_s_crates_get_the_version_in_the_lock_file() {
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"0.1.0\"\nsource = \"registry\"\n\n\
                    [[package]]\nname = \"rdmatop\"\nversion = \"0.1.0\"\n";
        let new = locked(lock, Version([0, 1, 0]), Version([0, 2, 0]));
        assert!(new.contains("name = \"a\"\nversion = \"0.1.0\"\n"), "{new}");
        assert!(
            new.ends_with("name = \"rdmatop\"\nversion = \"0.2.0\"\n"),
            "{new}"
        );
    }

    #[test]
    fn the_unreleased_changes_get_version_and_date_and_earlier_ones_stay() {
        let log = "# Changelog\n\n## [Unreleased]\n\n### Added\n- One.\n\n### Fixed\n- Two.\n\n## [0.1.0] - 2026-01-01\n- Old.\n";
        let new = cut(log, Version([0, 2, 0]), "2026-02-03").unwrap();
        let wanted = log.replace(UNRELEASED, "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n");
        assert_eq!(new, wanted);
        let refused = |log: &str| cut(log, Version([0, 2, 0]), "").unwrap_err().to_string();
        assert!(refused(&new).contains("nothing is unreleased"));
        assert!(refused("# Changelog\n").contains("no section"));
        assert!(refused(&log.replace("Added", "News")).contains("\"News\" is no kind"));
        assert!(refused(&log.replace("Fixed", "Added")).contains("twice"));
        assert!(refused(&log.replace("- One.", "")).contains("nothing is under \"Added\""));
    }

    #[test]
    fn the_changelog_of_this_source_can_be_cut_or_has_nothing_new() {
        let log = fs::read_to_string(paths::repo().join("CHANGELOG.md")).unwrap();
        if let Err(error) = cut(&log, Version([9, 0, 0]), "2026-01-01") {
            assert!(error.to_string().contains("nothing is unreleased"), "{error}");
        }
    }
}
