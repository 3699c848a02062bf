//! The log for the maintainer: `RDMATOP_LOG=FILE[:level]` (docs/log.md). It goes to a file and never to the
//! screen, it has a bound, and each line is `key=value` pairs in which no value can look like another pair.
//!
//! rdmatop often runs as root, so the file is a new one, or one that nobody else can write. Nothing is read
//! from the environment of a caller who has fewer rights than the program (file capabilities).

use std::ffi::{OsStr, OsString};
use std::fmt::{Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use log::kv::{Error, Key, Value, VisitSource};
use log::{LevelFilter, Log, Metadata, Record};
use rdmatop_base::text;
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::process::geteuid;

/// The variable that asks for the log.
const VARIABLE: &str = "RDMATOP_LOG";
/// Bytes of the file without its last line.
const MOST: u64 = 4 << 20;
/// Bytes of one value: the kernel's verifier writes more.
const VALUE: usize = 1024;
/// The level where none is given.
const LEVEL: LevelFilter = LevelFilter::Info;

/// Begins the log if the environment asks for one. The error is one line that says why there is none.
pub fn open() -> Result<(), String> {
    let Some(asked) = std::env::var_os(VARIABLE).filter(|asked| !asked.is_empty()) else {
        return Ok(());
    };
    if has_more_rights_than_its_caller() {
        return Err(format!(
            "{VARIABLE} is ignored: this program has rights that its caller has not; use sudo"
        ));
    }
    let (path, level) = parse(&asked)?;
    let file = create(&path).map_err(|error| {
        let path = text::sanitize(path.as_os_str().as_bytes());
        format!(
            "no log is written: {path}: {error}; {VARIABLE} names a new file, or one of your own (mode 0600)"
        )
    })?;
    let journal = Journal(Mutex::new(Lines::new(file, MOST)));
    if log::set_boxed_logger(Box::new(journal)).is_ok() {
        log::set_max_level(level);
    }
    Ok(())
}

/// Whether the kernel marked the start of this program as one that gains rights (`AT_SECURE`): by file
/// capabilities, or by a set-user-ID bit. The environment is then another user's.
fn has_more_rights_than_its_caller() -> bool {
    // SAFETY: reads a word that the kernel gave to the process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// File and level of `FILE[:level]`. What stands behind the last colon is a level, if no slash is in it.
fn parse(asked: &OsStr) -> Result<(PathBuf, LevelFilter), String> {
    let bytes = asked.as_bytes();
    let colon = bytes.iter().rposition(|byte| *byte == b':');
    let Some((file, level)) = colon
        .map(|at| (&bytes[..at], &bytes[at + 1..]))
        .filter(|(_, level)| !level.contains(&b'/'))
    else {
        return Ok((asked.into(), LEVEL));
    };
    let word = text::sanitize(level);
    let level = word
        .parse::<LevelFilter>()
        .ok()
        .filter(|level| *level != LevelFilter::Off && !file.is_empty())
        .ok_or_else(|| {
            format!(
                "no log is written: {VARIABLE} is FILE[:level], and {word:?} is none of error, warn, info, debug, trace"
            )
        })?;
    Ok((OsString::from_vec(file.to_vec()).into(), level))
}

/// Creates the file, or empties it if it is a file of this user that nobody else can read or write.
fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options
        .write(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .mode(0o600);
    let file = match options.create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.create_new(false).open(path)?,
        opened => opened?,
    };
    let facts = file.metadata()?;
    let own = facts.is_file()
        && facts.uid() == geteuid().as_raw()
        && facts.nlink() == 1
        && !Mode::from_raw_mode(facts.mode()).intersects(Mode::RWXG | Mode::RWXO);
    if !own {
        return Err(io::Error::other("it is not a regular file of this user alone"));
    }
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::other("another rdmatop writes it"))?;
    file.set_len(0)?;
    Ok(file)
}

/// The logger of the program.
struct Journal(Mutex<Lines>);

impl Log for Journal {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = line(record, SystemTime::now());
            self.0.lock().unwrap_or_else(PoisonError::into_inner).add(&line);
        }
    }

    fn flush(&self) {}
}

fn line(record: &Record<'_>, at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut line = Line(format!(
        "time={}.{:06} level={}",
        since.as_secs(),
        since.subsec_micros(),
        record.level().as_str().to_ascii_lowercase()
    ));
    line.pair("from", &record.target());
    line.pair("msg", record.args());
    // Only a visitor fails, and this one does not.
    let _ = record.key_values().visit(&mut line);
    line.0.push('\n');
    line.0
}

/// A line that is being made.
struct Line(String);

impl Line {
    /// Adds a pair. A value with a blank, a quote or an equals sign stands between quotes, and a quote in it
    /// is `\x22`: what is hostile gets the escapes that it gets everywhere in rdmatop.
    fn pair(&mut self, key: &str, value: &dyn Display) {
        let whole = value.to_string();
        let mut value = text::sanitize_bounded(whole.as_bytes(), VALUE);
        if whole.len() > VALUE {
            value.push_str("...");
        }
        let bare = |byte: u8| byte.is_ascii_graphic() && !b"\"=".contains(&byte);
        let _ = if !value.is_empty() && value.bytes().all(bare) {
            write!(self.0, " {key}={value}")
        } else {
            write!(self.0, " {key}=\"{}\"", value.replace('"', "\\x22"))
        };
    }
}

impl<'a> VisitSource<'a> for Line {
    fn visit_pair(&mut self, key: Key<'a>, value: Value<'a>) -> Result<(), Error> {
        self.pair(key.as_str(), &value);
        Ok(())
    }
}

/// Lines in a file up to a bound. The line that says how many had no room is the last of the file, and is
/// written anew for each of them: it is true however the program ends.
struct Lines {
    file: File,
    at: u64,
    most: u64,
    dropped: u64,
}

impl Lines {
    fn new(file: File, most: u64) -> Self {
        Self {
            file,
            at: 0,
            most,
            dropped: 0,
        }
    }

    fn add(&mut self, line: &str) {
        let end = self.at + line.len() as u64;
        if self.dropped == 0 && end <= self.most {
            if self.file.write_all_at(line.as_bytes(), self.at).is_ok() {
                self.at = end;
                return;
            }
            // A full disk may have taken a part.
            let _ = self.file.set_len(self.at);
        }
        self.dropped += 1;
        let last = format!(
            "level=warn msg=\"the log is full\" dropped={:020}\n",
            self.dropped
        );
        // Where this fails too, nothing can be written any more.
        let _ = self.file.write_all_at(last.as_bytes(), self.at);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Duration;

    use log::Level;

    use super::*;

    fn read(value: &str) -> Result<(PathBuf, LevelFilter), String> {
        parse(OsStr::new(value))
    }

    #[test]
    fn a_level_stands_behind_the_last_colon() {
        assert_eq!(read("/tmp/log"), Ok(("/tmp/log".into(), LEVEL)));
        assert_eq!(read("log:debug"), Ok(("log".into(), LevelFilter::Debug)));
        assert_eq!(read("a:b:WARN"), Ok(("a:b".into(), LevelFilter::Warn)));
        assert_eq!(read("/a:b/c"), Ok(("/a:b/c".into(), LEVEL)));
        for wrong in ["log:", "log:loud", "log:off", ":info", "log:\u{1b}[2J"] {
            let why = read(wrong).unwrap_err();
            assert!(why.contains("none of error") && !why.contains('\u{1b}'), "{why}");
        }
    }

    #[test]
    fn the_file_is_new_or_the_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let file = create(&path).unwrap();
        file.write_all_at(b"of the run before", 0).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o600);
        let refused = |path: &Path| create(path).unwrap_err().to_string();
        assert_eq!(refused(&path), "another rdmatop writes it");
        drop(file);
        let file = create(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0, "the run before is over");
        drop(file);
        let not_own = "it is not a regular file of this user alone";
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(refused(&path), not_own);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        assert_eq!(refused(&path), not_own);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        symlink(&path, dir.path().join("link")).unwrap();
        create(&dir.path().join("link")).unwrap_err();
        // A directory, and a pipe that nobody reads.
        create(dir.path()).unwrap_err();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .unwrap();
        create(&pipe).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    fn written(args: std::fmt::Arguments<'_>, pairs: &[(&str, &str)]) -> String {
        let mut builder = Record::builder();
        let record = builder
            .args(args)
            .level(Level::Warn)
            .target("rdmatop_loader::plan")
            .key_values(&pairs);
        line(&record.build(), UNIX_EPOCH + Duration::from_micros(1_000_042))
    }

    #[test]
    fn no_value_can_look_like_another_pair_or_line() {
        assert_eq!(
            written(format_args!("attached"), &[("program", "qp_created"), ("at", "")]),
            "time=1.000042 level=warn from=rdmatop_loader::plan msg=attached program=qp_created at=\"\"\n"
        );
        let hostile = "a\" level=error\n\u{1b}[2J\u{202e}=b";
        assert_eq!(
            written(format_args!("two words"), &[("device", hostile)]),
            "time=1.000042 level=warn from=rdmatop_loader::plan msg=\"two words\" \
             device=\"a\\x22 level=error\\x0a\\x1b[2J\\u{202e}=b\"\n"
        );
        let long = written(format_args!("x"), &[("why", &"é".repeat(VALUE))]);
        assert!(long.len() < VALUE + 100 && long.ends_with("...\"\n"), "{long}");
    }

    #[test]
    fn a_full_log_ends_with_the_number_of_lines_that_it_lacks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let mut lines = Lines::new(create(&path).unwrap(), 20);
        let mut add = |line: &str| {
            lines.add(line);
            fs::read_to_string(&path).unwrap()
        };
        assert_eq!(add("msg=one\n"), "msg=one\n");
        assert_eq!(add("msg=two\n"), "msg=one\nmsg=two\n");
        let dropped = |count: u64| {
            format!("msg=one\nmsg=two\nlevel=warn msg=\"the log is full\" dropped={count:020}\n")
        };
        assert_eq!(add("msg=three\n"), dropped(1));
        // A later one that had room would make the others hard to see.
        assert_eq!(add("a=4\n"), dropped(2));
        assert_eq!(add("msg=five\n"), dropped(3));
    }
}
