//! The user's choices, kept in `$XDG_CONFIG_HOME/rdmatop/config.toml` (else `~/.config/...`).

mod check;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer, ser::Error as _};

use super::format::Units;
use super::tab::Tab;
use super::theme;
use rdmatop_base::text::sanitize;
use rdmatop_model::fields;
use rdmatop_model::findings::Limits;

/// The first lines of every file that rdmatop writes.
const HEAD: &str =
    "# Written by rdmatop when a key changed something; comments are not kept. Keys: docs/config.md\n";
/// The largest size of a settings file, in bytes.
const LARGEST: u64 = 1 << 20;
/// Slowest refresh that a key or this file may set; `--delay` may set a slower one.
pub const SLOWEST: Duration = Duration::from_mins(1);
/// Fastest refresh.
pub const FASTEST: Duration = Duration::from_millis(100);

/// Settings of the live view. Unknown keys, tables and columns are errors, so that typing mistakes are
/// reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Name of the theme: `default`, `dark`, `light`, `high-contrast`, `colour-blind`, `mono`.
    pub theme: String,
    /// `bits` or `bytes`.
    pub units: Units,
    /// Processes as a tree.
    pub tree: bool,
    /// Stuck QPs on top of their table, whatever its order.
    pub stuck_first: bool,
    /// Whether the view takes the mouse; if not, the terminal selects text.
    pub mouse: bool,
    /// Whether to use ASCII signs only; unset: as the locale says.
    pub ascii: Option<bool>,
    /// Seconds between samples, 0.1 to 60.
    pub delay: f64,
    /// Sort column and direction, by table.
    pub sort: BTreeMap<Tab, Sort>,
    /// Devices that are left alone, as by `--exclude-device`, in all modes and commands that have the option.
    pub exclude_device: Vec<String>,
    /// By table: columns whose state differs from the default.
    pub columns: BTreeMap<Tab, BTreeMap<String, bool>>,
    /// The limits with which the rules of findings compare; `--once` and `check` use them too.
    #[serde(skip_serializing_if = "is_default", serialize_with = "changed")]
    pub findings: Limits,
}

fn is_default(limits: &Limits) -> bool {
    *limits == Limits::default()
}

/// Writes only limits that differ from the defaults, because a later version may have better defaults.
fn changed<S: Serializer>(limits: &Limits, to: S) -> Result<S::Ok, S::Error> {
    let table = |limits: &Limits| toml::Table::try_from(limits).map_err(S::Error::custom);
    let (mut own, defaults) = (table(limits)?, table(&Limits::default())?);
    own.retain(|name, value| defaults.get(name) != Some(value));
    own.serialize(to)
}

/// Sort column and direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sort {
    /// Column id.
    pub by: String,
    /// Largest first.
    #[serde(default)]
    pub down: bool,
}

impl Sort {
    /// The order of processes for a word of `--sort`.
    pub fn of_processes(word: &str) -> Option<Self> {
        let meta = &fields::sorted_by(word)?.meta;
        Some(Self {
            by: meta.id.to_owned(),
            down: !meta.up,
        })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            theme: theme::THEMES[0].name.to_owned(),
            units: Units::default(),
            tree: false,
            stuck_first: true,
            mouse: true,
            ascii: None,
            delay: 1.0,
            sort: BTreeMap::new(),
            exclude_device: Vec::new(),
            columns: BTreeMap::new(),
            findings: Limits::default(),
        }
    }
}

/// Why settings were not read or written, in one line that is safe for a terminal whatever the file, the path
/// and the environment contain.
fn fault<E: Display>(path: &Path) -> impl Fn(E) -> String {
    |why| {
        format!(
            "settings {}: {}",
            safe(path),
            sanitize(why.to_string().as_bytes())
        )
    }
}

fn safe(path: &Path) -> String {
    sanitize(path.as_os_str().as_bytes())
}

/// Path of the settings file; `None` without a home. `env` reads an environment variable.
pub fn path(env: impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    // XDG base directories: a relative path there is to be ignored.
    let xdg = env("XDG_CONFIG_HOME").map(PathBuf::from);
    let home = || env("HOME").filter(|home| !home.is_empty());
    let of_home = || Some(PathBuf::from(home()?).join(".config"));
    let base = xdg.filter(|path| path.is_absolute()).or_else(of_home)?;
    Some(base.join("rdmatop").join("config.toml"))
}

/// The first of `path` and the directories above it that exists and does not belong to root, with its owner.
fn foreign(path: &Path) -> Option<(PathBuf, u32)> {
    path.ancestors().find_map(|at| {
        let uid = std::fs::metadata(at).ok()?.uid();
        (uid != 0).then(|| (at.to_owned(), uid))
    })
}

/// The content of `path`, which must be a regular file. A sudo that keeps HOME makes root read a file of the
/// user's: a FIFO there would block root's program for ever, and /dev/zero would fill its memory.
fn text_of(path: &Path) -> io::Result<String> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no regular file; remove it"));
    }
    let mut text = String::new();
    file.take(LARGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST {
        return Err(io::Error::other("is larger than 1 MiB; remove it"));
    }
    Ok(text)
}

impl Settings {
    /// Reads `path`; if there is no such file, the defaults hold.
    pub fn load(path: &Path) -> Result<Self, String> {
        let text = match text_of(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            read => read.map_err(fault(path))?,
        };
        Self::parse(&text).map_err(fault(path))
    }

    /// Parses the text of a settings file; the error is one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let out: Self = toml::from_str(text).map_err(|error| check::one_line(text, &error))?;
        check::check(text, &out.findings)?;
        Ok(out)
    }

    /// Writes `path` completely or not at all, and makes its directory. Root writes only below root's
    /// directories: with a sudo that keeps HOME, root would leave files that the user cannot change, and
    /// follow the user's links.
    pub fn save(&self, path: &Path) -> Result<(), String> {
        if rustix::process::geteuid().is_root()
            && let Some((owner, uid)) = foreign(path)
        {
            return Err(fault(path)(format!(
                "{} is of uid {uid} and rdmatop runs as root; sudo -H keeps settings of root's own",
                safe(&owner)
            )));
        }
        // In one line, because the error is printed as one line.
        let text = toml::to_string(self).map_err(fault(path))?;
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(fault(path))?;
        }
        let beside = path.with_extension(format!("toml.{}", std::process::id()));
        std::fs::write(&beside, format!("{HEAD}{text}")).map_err(fault(path))?;
        std::fs::rename(&beside, path).map_err(|e| {
            let _ = std::fs::remove_file(&beside);
            fault(path)(e)
        })
    }

    /// The settings to write at the end: `saved` with what the user has changed since `start`. An option of
    /// one run, which is in `start` but not in `saved`, is not saved.
    #[must_use]
    pub fn onto(&self, start: &Self, saved: &Self) -> Self {
        fn pick<T: Clone + PartialEq>(now: &T, start: &T, saved: &T) -> T {
            if now == start { saved.clone() } else { now.clone() }
        }
        Self {
            theme: pick(&self.theme, &start.theme, &saved.theme),
            units: pick(&self.units, &start.units, &saved.units),
            tree: pick(&self.tree, &start.tree, &saved.tree),
            stuck_first: pick(&self.stuck_first, &start.stuck_first, &saved.stuck_first),
            delay: pick(&self.delay, &start.delay, &saved.delay),
            sort: pick(&self.sort, &start.sort, &saved.sort),
            columns: pick(&self.columns, &start.columns, &saved.columns),
            // No key changes the others.
            ..saved.clone()
        }
    }

    /// Time between samples. `--delay` may have set an hour.
    pub fn delay(&self) -> Duration {
        Duration::try_from_secs_f64(self.delay)
            .unwrap_or(Duration::from_secs(1))
            .clamp(FASTEST, Duration::from_hours(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_what_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep").join("config.toml");
        let mut settings = Settings {
            theme: "dark".to_owned(),
            delay: 0.25,
            ..Settings::default()
        };
        settings.sort.insert(
            Tab::Qps,
            Sort {
                by: "age".to_owned(),
                down: true,
            },
        );
        settings
            .columns
            .entry(Tab::Qps)
            .or_default()
            .insert("mtu".to_owned(), false);
        (settings.findings.leak_qps, settings.findings.hot_share) = (64, 0.25);
        settings.save(&path).unwrap();
        assert_eq!(Settings::load(&path).unwrap(), settings);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("leak_qps = 64\n") && !text.contains("mr_per_s"),
            "{text}"
        );
        let left = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 1, "no temporary file stays");
    }

    #[test]
    fn a_missing_file_is_the_defaults_and_a_broken_one_says_why_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        assert_eq!(Settings::load(&path).unwrap(), Settings::default());
        for (text, why) in [
            ("theme = [", "config.toml"),
            ("thme = \"dark\"", "thme"),
            ("theme = \"pink\"", "high-contrast"),
            ("delay = 0", "0.1 to 60"),
            ("delay = nan", "0.1 to 60"),
            ("delay = \"1\"", "line 1"),
            ("\n[sort.qps]\nby = \"agee\"", "line 3: sort.qps by \"agee\""),
            (
                "tree = true\n[findings]\nhot_share = 2.5",
                "line 3: findings.hot_share = 2.5: give 0 to 1",
            ),
            ("[findings]\nmr_rate = 1", "mr_rate"),
            (
                "[columns.qps]\nmut = true",
                "line 2: columns.qps has no column \"mut\"",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Settings::load(&path).unwrap_err();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn what_the_file_and_the_path_hold_reaches_no_terminal_raw() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("\u{1b}]0;title\u{7}.toml");
        let acts = |text: &str| text.chars().any(char::is_control);
        // TOML refuses a raw ESC, but accepts its escapes.
        for text in [
            "\"\\u001b[31m\" = 1",
            "theme = \"\\u001b[31m\"",
            "[sort]\n\"\\u001b[31m\" = { by = \"\\u009b\" }",
            "[sort]\nqps = { by = \"\\u001b[31m\" }",
            "[columns.qps]\n\"\\u001b[31m\" = true",
            "units = \"\\u001b[31m\"",
            "\u{1b}[31m",
            "theme = \"\u{9b}31m\u{202e}\"",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Settings::load(&path).unwrap_err();
            assert!(!acts(&error), "{error:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let error = Settings::default().save(&path).unwrap_err();
        assert!(!acts(&error) && error.contains("title"), "{error:?}");
    }

    #[test]
    fn a_fifo_and_a_file_without_end_are_reported_and_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success(), "mkfifo");
        let error = Settings::load(&path).unwrap_err();
        assert!(error.contains("no regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        let error = Settings::load(&path).unwrap_err();
        assert!(error.contains("no regular file"), "{error}");
        std::fs::remove_file(&path).unwrap();
        let spaces = " ".repeat(usize::try_from(LARGEST).unwrap());
        std::fs::write(&path, &spaces).unwrap();
        assert_eq!(Settings::load(&path).unwrap(), Settings::default());
        std::fs::write(&path, spaces + " ").unwrap();
        let error = Settings::load(&path).unwrap_err();
        assert!(error.contains("1 MiB"), "{error}");
    }

    #[test]
    fn root_does_not_write_below_what_is_someone_elses() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let path = home.join(".config/rdmatop/config.toml");
        if rustix::process::geteuid().is_root() {
            Settings::default().save(&path).unwrap();
            std::fs::remove_dir_all(home.join(".config")).unwrap();
            std::os::unix::fs::chown(&home, Some(4711), None).unwrap();
            let error = Settings::default().save(&path).unwrap_err();
            assert!(error.contains("uid 4711") && error.contains("sudo -H"), "{error}");
        } else {
            // Anyone can see who owns a directory, but only root has to stay away.
            Settings::default().save(&path).unwrap();
            std::fs::remove_dir_all(home.join(".config")).unwrap();
        }
        assert!(foreign(&path).is_some_and(|(at, uid)| at == home && uid != 0));
        assert!(!home.join(".config").exists(), "nothing was written");
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = Settings::default()
            .save(&file.join("rdmatop/config.toml"))
            .unwrap_err();
        assert!(error.contains("config.toml") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_delay_of_the_command_line_may_be_longer_than_the_keys_go() {
        let slow = Settings {
            delay: 600.0,
            ..Settings::default()
        };
        assert_eq!(slow.delay(), Duration::from_mins(10));
    }

    #[test]
    fn a_flag_of_one_run_is_not_saved_and_a_change_is() {
        let saved = Settings::default();
        let start = Settings {
            delay: 5.0,
            ..saved.clone()
        };
        let now = Settings {
            theme: "dark".to_owned(),
            ..start.clone()
        };
        assert_eq!(
            now.onto(&start, &saved),
            Settings {
                theme: "dark".to_owned(),
                ..saved.clone()
            }
        );
        let slower = Settings {
            delay: 10.0,
            ..start.clone()
        };
        assert!((slower.onto(&start, &saved).delay - 10.0).abs() < f64::EPSILON);
    }

    #[test]
    fn the_file_is_where_xdg_says() {
        let with = |vars: &'static [(&str, &str)]| {
            path(|n| vars.iter().find(|(k, _)| *k == n).map(|(_, v)| (*v).to_owned()))
        };
        let file = |p: &str| Some(PathBuf::from(p));
        assert_eq!(
            with(&[("XDG_CONFIG_HOME", "/x"), ("HOME", "/h")]),
            file("/x/rdmatop/config.toml")
        );
        assert_eq!(
            with(&[("XDG_CONFIG_HOME", "x"), ("HOME", "/h")]),
            file("/h/.config/rdmatop/config.toml")
        );
        assert_eq!(with(&[]), None);
    }

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");

    #[test]
    fn the_page_of_settings_has_every_key_with_its_default() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let documented: BTreeMap<&str, &str> = page
            .lines()
            .filter_map(|line| {
                let mut cells = line.strip_prefix("| `")?.split(" | ");
                Some((cells.next()?.strip_suffix('`')?, cells.next()?.trim_matches('`')))
            })
            .collect();
        // An unset value leaves no trace in TOML; JSON shows it.
        let defaults = serde_json::to_value(Settings::default()).unwrap();
        let defaults: BTreeMap<&str, String> = defaults
            .as_object()
            .unwrap()
            .iter()
            .map(|(key, value)| (key.as_str(), value.to_string().replace("null", "unset")))
            // Limits that are not changed are not written.
            .chain([("findings", "{}".to_owned())])
            .collect();
        let documented: BTreeMap<&str, String> =
            documented.into_iter().map(|(k, v)| (k, v.to_owned())).collect();
        assert_eq!(documented, defaults);
        for theme in theme::THEMES {
            assert!(page.contains(&format!("`{}`", theme.name)), "{}", theme.name);
        }
    }

    #[test]
    fn the_example_on_the_page_of_settings_works() {
        let page = std::fs::read_to_string(PAGE).unwrap();
        let example = page
            .split("```toml\n")
            .nth(1)
            .unwrap()
            .split("```")
            .next()
            .unwrap();
        let settings = Settings::parse(example).unwrap();
        assert_eq!(settings.theme, "light");
        assert!(settings.sort[&Tab::Qps].down && !settings.columns[&Tab::Processes]["user"]);
    }

    #[test]
    fn the_page_of_settings_lists_every_table_and_column() {
        use super::super::columns;
        use std::fmt::Write as _;
        let page = std::fs::read_to_string(PAGE).unwrap();
        let mut lists = String::new();
        for tab in Tab::ALL {
            let ids = columns::spec(tab).columns().iter().map(|c| format!("`{}`", c.id));
            let ids: Vec<_> = ids.collect();
            let _ = writeln!(lists, "* `{}`: {}", tab.names()[0].to_lowercase(), ids.join(" "));
        }
        let (head, _) = page.split_at(page.find("* `processes`").unwrap_or(page.len()));
        if std::env::var_os("RDMATOP_WRITE_DOCS").is_some() {
            std::fs::write(PAGE, format!("{head}{lists}")).unwrap();
            return;
        }
        assert!(page.ends_with(&lists), "run the test with RDMATOP_WRITE_DOCS=1");
    }
}
