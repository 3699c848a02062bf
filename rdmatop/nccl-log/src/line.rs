//! One line of a log: the process that wrote it, and its text.
//!
//! NCCL writes `HOST:PID:TID [GPU] NCCL INFO TEXT` (`ncclDebugLog`, src/debug.cc; up to 2.2 `INFO` alone). If
//! NCCL_DEBUG_TIMESTAMP_LEVELS is set, a time comes first; in warnings the place in the source stands between
//! GPU and level. Launchers and loggers add their own prefix: `[1,3]<stdout>:` (mpirun --tag-output), `3: `
//! (srun --label), `[default3]:` (torchrun), `[pod/x/y] ` (kubectl logs --prefix), `FILE:12:` (grep -n), a
//! clock, or JSON around the whole line (docker, journald). Libraries that were made from NCCL write the same
//! line with their own name: ACCL, VCCL, FLAGCX.

use std::borrow::Cow;

use rdmatop_base::text;
use serde_json::Value;

/// Longer lines are cut. NCCL's own buffer has 1 KiB, a list of HCAs 2 KiB; JSON around them may be longer.
const MAX: usize = 32 * 1024;
/// The largest process id of Linux (`PID_MAX_LIMIT`, 2^22).
const LAST_PID: u32 = 1 << 22;

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `NCCL INFO`.
    Info,
    /// `NCCL WARN`, or RCCL's `[FATAL ERROR]`.
    Warn,
    /// `NCCL ATTN`, which NCCL has since 2.32 for what is worth knowing and no error.
    Attention,
}

/// The words by which a line of NCCL is recognised.
const LEVELS: [(&str, Level); 3] = [
    ("NCCL INFO", Level::Info),
    ("NCCL WARN", Level::Warn),
    ("NCCL ATTN", Level::Attention),
];
/// Words that other programs have, too, so that a writer must stand before them: those of RCCL since ROCm 7.2
/// (`ncclDebugLog`, src/debug.cc), which prints such lines without NCCL_DEBUG, those of NCCL up to 2.2, and
/// the ends of those of libraries that were made from it (`VCCL INFO`, `FLAGCX INFO`).
const BARE_LEVELS: [(&str, Level); 5] = [
    ("] [FATAL ERROR]: ", Level::Warn),
    ("] INFO ", Level::Info),
    ("CCL INFO ", Level::Info),
    ("CX INFO ", Level::Info),
    (" WARN ", Level::Warn),
];

/// The process that wrote a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// Host, by its own name; empty if the line has none.
    pub host: String,
    /// Process id on that host.
    pub pid: u32,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// A line of NCCL.
    Nccl {
        /// The process that wrote the line.
        writer: Writer,
        /// The line's level.
        level: Level,
        /// What stands before the level: the writer, and what launchers and loggers put there.
        before: &'a str,
        /// The line's text, safe to print.
        text: &'a str,
    },
    /// Lines of several processes are cut into each other.
    Torn,
    /// A line of another program: the job, nccl-tests, NCCL's version.
    Plain(&'a str),
}

/// The bytes of a line as text that is safe to print, without colours, byte order marks, and the zero bytes
/// of UTF-16.
pub fn clean(bytes: &[u8]) -> Cow<'_, str> {
    let bytes = bytes.get(..MAX).unwrap_or(bytes);
    if bytes.iter().all(|b| matches!(b, b' '..=b'~') && *b != b'&') {
        // Most lines need neither escapes nor a copy.
        return std::str::from_utf8(bytes).unwrap_or_default().into();
    }
    let bytes = [&b"\xff\xfe"[..], b"\xfe\xff", b"\xef\xbb\xbf"]
        .iter()
        .find_map(|mark| bytes.strip_prefix(*mark))
        .unwrap_or(bytes);
    let mut out = without_colours(bytes);
    while out.last().is_some_and(|b| matches!(b, b'\r' | b'\n')) {
        out.pop();
    }
    let safe = text::sanitize(&out);
    // A line copied from the source of a web page has these.
    if safe.contains("&gt;") || safe.contains("&lt;") {
        return safe.replace("&gt;", ">").replace("&lt;", "<").into();
    }
    safe.into()
}

/// The lines that a logger wrapped into JSON, one for each line of its text; `None` for other lines.
pub fn unpacked(line: &str) -> Option<Vec<String>> {
    let line = line.trim();
    if !(line.starts_with('{') && line.ends_with('}')) {
        return None;
    }
    let mut texts = Vec::new();
    collect(&serde_json::from_str(line).ok()?, &mut texts);
    let lines = texts
        .iter()
        .flat_map(|text| text.trim_ascii_end().split(|b| *b == b'\n'));
    (!texts.is_empty()).then(|| lines.map(|line| clean(line).into_owned()).collect())
}

/// Takes the texts of an object, which may be inside another, as Elastic's and Google's are.
fn collect(value: &Value, texts: &mut Vec<Vec<u8>>) {
    /// The keys of docker and CRI-O, of journald, and of common loggers.
    const KEYS: [&str; 7] = ["log", "MESSAGE", "message", "msg", "line", "text", "textPayload"];
    match value {
        Value::Object(object) => match KEYS.iter().find_map(|key| text_of(object.get(*key)?)) {
            Some(text) => texts.push(text),
            None => object.values().for_each(|value| collect(value, texts)),
        },
        Value::Array(list) => match list.as_slice() {
            // Loki's answers have pairs of a time and a line.
            [Value::String(time), Value::String(text), ..] if time.bytes().all(|b| b.is_ascii_digit()) => {
                texts.push(text.clone().into_bytes());
            }
            list => list.iter().for_each(|value| collect(value, texts)),
        },
        _ => {}
    }
}

/// A text. journald has numbers for the bytes of one with colours.
fn text_of(value: &Value) -> Option<Vec<u8>> {
    let byte = |value: &Value| u8::try_from(value.as_u64()?).ok();
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(bytes) => bytes.iter().map(byte).collect(),
        _ => None,
    }
}

/// A line without what Ray adds to one of several alike, ` [repeated 15x across cluster] (Ray deduplicates
/// ...)` (python/ray/_private/ray_logging), and how many lines Ray left out for it.
pub fn repeated(line: &str) -> (&str, u64) {
    let split = || {
        let (text, rest) = line.rsplit_once(" [repeated ")?;
        let (count, _) = rest.split_once("x across cluster]")?;
        Some((text, count.parse().ok()?))
    };
    split().unwrap_or((line, 0))
}

/// A line that a log's viewer has twice, as the table of CloudWatch copies it: the second one, which has no
/// clock before it.
pub fn once(line: &str) -> &str {
    if !line.contains(BETWEEN) || !is_nccl(line) {
        return line;
    }
    let is_twice = |(first, second): &(&str, &str)| first.ends_with(second) && is_nccl(second);
    halves(line).find(is_twice).map_or(line, |(_, second)| second)
}

/// What stands between a line and the same line once more.
const BETWEEN: &str = " | ";
/// At how many places a line is tried to be parted. With a clock before the line, the right one is half a
/// clock's length behind the middle: few can come before it.
const PARTED: usize = 16;

/// The parts of a line that may have the second one twice: it is no longer than the first.
fn halves(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = line.match_indices(BETWEEN).filter_map(|(at, between)| {
        let (first, second) = (line.get(..at)?, line.get(at + between.len()..)?);
        (first.len() >= second.len()).then_some((first, second))
    });
    parts.take(PARTED)
}

/// The lines that somebody joined to one, as where text was copied from a page that lost its ends of lines.
/// `None` where lines were cut into each other: then the host before a level is no host of the log, or lacks
/// its beginning.
pub fn joined(line: &str, is_host: impl Fn(&str) -> bool) -> Option<Vec<&str>> {
    let is_level = |at: &usize| {
        let text = line.get(*at..).unwrap_or_default();
        LEVELS.iter().any(|(word, _)| text.starts_with(word))
    };
    let levels = line.match_indices("NCCL ").map(|(at, _)| at);
    let (mut pieces, mut begin, mut end) = (Vec::new(), 0, 0);
    let mut first: Option<(&str, String)> = None;
    for level in levels.filter(is_level) {
        let before = line.get(end..level)?;
        let Prefix::Writer(Writer { host, pid }) = find_writer(before) else {
            return None;
        };
        let at = before.rfind(&format!("{host}:{pid}:"))?;
        let at = end + before.get(..at)?.rfind(' ').map_or(0, |space| space + 1);
        if let Some((prefix, first)) = &first {
            let piece = line.get(begin..at)?;
            if at == end || !(host == *first || is_host(&host) || piece.ends_with("  ")) {
                return None;
            }
            pieces.push(without(piece, prefix));
            begin = at;
        } else {
            first = Some((line.get(..at)?, host));
        }
        end = level + 1;
    }
    pieces.push(line.get(begin..)?);
    (pieces.len() > 1).then_some(pieces)
}

/// A line without the prefix of the next one behind it, which may stand there more than once. Its numbers, as
/// of a clock, are others.
fn without<'a>(mut line: &'a str, prefix: &str) -> &'a str {
    let shape = |word: &str| word.replace(|c: char| c.is_ascii_digit(), "");
    loop {
        line = line.trim_end();
        let length = line.len();
        for word in prefix.split_whitespace().rev() {
            match line.rsplit_once(' ') {
                Some((rest, last)) if !shape(last).is_empty() && shape(last) == shape(word) => {
                    line = rest.trim_end();
                }
                _ => break,
            }
        }
        if line.len() == length {
            return line;
        }
    }
}

/// Whether the line holds one of NCCL's.
pub fn is_nccl(line: &str) -> bool {
    level(line).is_some()
}

/// Where the words for the level of a line of NCCL's begin and end, and the level.
fn level(line: &str) -> Option<(usize, usize, Level)> {
    let at = |(word, level): &(&str, Level)| {
        let at = line.find(word)?;
        Some((at, at + word.len(), *level))
    };
    let named = LEVELS.iter().filter_map(at).min_by_key(|(at, ..)| *at);
    named.or_else(|| {
        BARE_LEVELS.iter().filter_map(at).find(|(at, ..)| {
            let before = line.get(..*at).unwrap_or_default();
            before.contains('[')
                && matches!(find_writer(before), Prefix::Writer(writer) if !is_source(&writer.host))
        })
    })
}

impl<'a> Line<'a> {
    /// Splits a line that was cleaned.
    pub fn read(line: &'a str) -> Self {
        let Some((begin, end, level)) = level(line) else {
            return Self::Plain(line);
        };
        let (before, text) = (
            line.get(..begin).unwrap_or_default(),
            line.get(end..).unwrap_or_default().trim(),
        );
        // A line between quotes; its end may belong to JSON that was cut.
        let text = if before.contains('"') {
            text.split("\\n\"")
                .next()
                .unwrap_or_default()
                .trim_end_matches('"')
        } else {
            text
        };
        let writer = match find_writer(before) {
            Prefix::Writer(writer) => writer,
            Prefix::Unnamed => Writer::default(),
            Prefix::Torn => return Self::Torn,
        };
        if is_nccl(text) || names_writer(text, &writer) {
            return Self::Torn;
        }
        Self::Nccl {
            writer,
            level,
            before,
            text,
        }
    }
}

/// The length of a point and the nine digits of nanoseconds behind it.
const FRACTION: usize = 10;
/// The length of a zone such as `+01:00`.
const ZONE: usize = 6;

/// When a line was written, by a clock before it that has a date.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// What follows the clock: `Z`, `+01:00`, ` UTC`. Clocks with different ends cannot be compared.
    zone: String,
    /// Its digits: year to second, and those of the second's fraction.
    digits: String,
}

impl Clock {
    /// Finds a clock in what stands before a line: `2026-11-26T12:34:56.789Z`, `[2026-11-26 12:34:56]`.
    pub(super) fn find(before: &str) -> Option<Self> {
        const FORM: &[u8; 19] = b"dddd-dd-ddTdd:dd:dd";
        let fits = |(byte, form): (&u8, &u8)| match form {
            b'd' => byte.is_ascii_digit(),
            b'T' => matches!(byte, b'T' | b' '),
            other => byte == other,
        };
        let is_clock = |text: &[u8]| text.iter().zip(FORM).all(fits);
        let at = before.as_bytes().windows(FORM.len()).position(is_clock)?;
        let (clock, rest) = before.get(at..)?.split_at_checked(FORM.len())?;
        let is_part = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',');
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (fraction, zone) = rest.split_at_checked(end)?;
        let mut words = zone.split([' ', ']']);
        let zone = words.next().filter(|word| !word.is_empty());
        let zone = zone.or_else(|| words.next().filter(|word| is_zone(word)));
        let zone = zone.unwrap_or_default();
        let fraction = text::cut(fraction, FRACTION);
        Some(Self {
            zone: text::cut(zone, ZONE).to_owned(),
            digits: format!("{clock}{fraction}").replace(|c: char| !c.is_ascii_digit(), ""),
        })
    }

    /// Whether the two can be compared.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.zone == other.zone
    }

    /// Whether this is the earlier of two that can be compared. If one has fewer digits, it is not known when
    /// within its last one it was.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        let mut both = self.digits.bytes().zip(other.digits.bytes());
        both.find(|(a, b)| a != b).is_some_and(|(a, b)| a < b)
    }
}

/// Whether a word behind a clock is its zone: `+0000`, `-01:00`, `UTC`, `GMT`.
fn is_zone(word: &str) -> bool {
    let is_offset = |rest: &str| rest.len() >= 4 && rest.bytes().all(|b| b.is_ascii_digit() || b == b':');
    matches!(word, "UTC" | "GMT") || word.strip_prefix(['+', '-']).is_some_and(is_offset)
}

/// Whether another line's prefix of the same host begins within the text.
fn names_writer(text: &str, writer: &Writer) -> bool {
    let host = writer.host.as_str();
    if host.is_empty() {
        return false;
    }
    text.match_indices(host).any(|(at, _)| {
        let rest = text.get(at + host.len()..).unwrap_or_default();
        let Some((pid, tid)) = rest.strip_prefix(':').and_then(|rest| rest.split_once(':')) else {
            return false;
        };
        let tid = tid.split(' ').next().unwrap_or_default();
        number(pid).is_some() && number(tid).is_some()
    })
}

/// What stands before the level of a line names as its writer.
#[derive(Debug, PartialEq, Eq)]
enum Prefix {
    Writer(Writer),
    /// The line names no process: it is older than 2.4, or somebody removed the prefix.
    Unnamed,
    /// The prefixes of several lines are cut into each other.
    Torn,
}

fn find_writer(before: &str) -> Prefix {
    let words: Vec<&str> = before.split_whitespace().collect();
    // `[0]`, which some programs print as `[ 0 ]`.
    let gpu = words.iter().rposition(|word| {
        let inner = word.trim_start_matches('[').trim_end_matches(']');
        word.starts_with('[') && inner.parse::<i32>().is_ok() || *word == "["
    });
    match gpu {
        Some(gpu) => gpu
            .checked_sub(1)
            .and_then(|at| words.get(at))
            .map_or(Prefix::Unnamed, |word| parse_writer(word)),
        // Somebody shortened the line: take the last word that can name a process.
        None => words
            .iter()
            .rev()
            .map(|word| parse_writer(word))
            .find(|prefix| *prefix != Prefix::Unnamed)
            .unwrap_or(Prefix::Unnamed),
    }
}

/// Reads `HOST:PID:TID`, with any prefix of a launcher before it.
fn parse_writer(word: &str) -> Prefix {
    let word = word
        .rsplit(['>', ']', '|', '"', '\'', '`', '=', '(', '{'])
        .next()
        .unwrap_or(word);
    let word = word.strip_prefix(':').unwrap_or(word);
    let parts: Vec<&str> = word.split(':').collect();
    if let [host, masks @ ..] = parts.as_slice()
        && matches!(masks.len(), 1 | 2)
        && masks.iter().all(|mask| is_mask(mask))
        && host.contains(|c: char| c.is_ascii_alphabetic())
        && is_host(host)
    {
        let host = (*host).to_owned();
        return Prefix::Writer(Writer { host, pid: 0 });
    }
    let [prefix @ .., pid, tid] = parts.as_slice() else {
        return Prefix::Unnamed;
    };
    let (Some(pid), Some(_)) = (number(pid), number(tid)) else {
        return Prefix::Unnamed;
    };
    let (host, prefix) = match prefix {
        [] => ("", prefix),
        [prefix @ .., host] => (*host, prefix),
    };
    if !is_host(host) || is_clock(host, word) {
        return Prefix::Unnamed;
    }
    // Where somebody took the host out, nothing is left of it.
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let is_path = |part: &str| part.contains(['.', '/']);
    // Before the host there may be labels, a file name of grep's, and a number that is a label or follows
    // such a name. A host and a number there may also begin another prefix, into whose numbers this prefix
    // was cut.
    let begins_with_digit = host.starts_with(|c: char| c.is_ascii_digit());
    let number_fits = |at: usize| {
        let before = at.checked_sub(1).and_then(|at| prefix.get(at));
        before.is_none_or(|file| is_path(file) || (!begins_with_digit && *file != host))
    };
    let numbers_fit = prefix
        .iter()
        .enumerate()
        .all(|(at, part)| !is_number(part) || number_fits(at));
    let host_fits = prefix
        .last()
        .is_none_or(|last| !is_number(host) && (!begins_with_digit || is_number(last) || is_path(last)));
    if !numbers_fit || !host_fits {
        return Prefix::Torn;
    }
    Prefix::Writer(Writer {
        host: host.to_owned(),
        pid,
    })
}

/// Reads the number of a process: digits alone, and no more than the kernel gives.
pub(super) fn number(word: &str) -> Option<u32> {
    let digits = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    word.parse().ok().filter(|number| digits && *number <= LAST_PID)
}

/// What people put in place of a number before they publish a log: `XXXXXX`, `***`.
fn is_mask(word: &str) -> bool {
    let mut bytes = word.bytes();
    let first = bytes.next();
    matches!(first, Some(b'X' | b'x' | b'*')) && word.len() > 1 && bytes.all(|byte| Some(byte) == first)
}

/// Letters, digits, dots, dashes and underscores; empty if NCCL was told to leave the host out.
pub(super) fn is_host(host: &str) -> bool {
    host.len() < 256
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

/// Whether other programs than NCCL may have it before a level: the name of a source file, as in
/// `main.rs:12:34 [3] INFO`, or nothing.
fn is_source(host: &str) -> bool {
    const ENDINGS: &str = " c cc cpp cu cxx go h hpp java js kt py rb rs scala ts ";
    let ending = host.rsplit_once('.').map(|(_, ending)| format!(" {ending} "));
    host.is_empty() || ending.is_some_and(|ending| ENDINGS.contains(&ending))
}

/// Whether it is a clock: `12:34:56`, `2026-11-26T12:34:56`.
fn is_clock(host: &str, word: &str) -> bool {
    let two_each = word.len() > 6 && word.rsplit(':').take(2).all(|part| part.len() == 2);
    let hour = host.get(host.len().saturating_sub(2)..).unwrap_or_default();
    let is_hour = hour.len() == 2 && hour.parse::<u8>().is_ok_and(|hour| hour < 24);
    let date = host.strip_suffix(hour).unwrap_or_default();
    // `2026-11-26T`, `20261126-`.
    let is_date = |date: &str| {
        let digits = date.replace(['-', '.'], "");
        digits.len() == 8 && digits.starts_with("20") && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let is_date = date.is_empty() || date.strip_suffix(['T', '_', '-']).is_some_and(is_date);
    two_each && is_hour && is_date
}

/// Removes zero bytes and the sequences that colour text on a terminal; makes spaces of tabs.
fn without_colours(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match *first {
            0 => {}
            b'\t' => out.push(b' '),
            0x1b => {
                let Some(body) = tail.strip_prefix(b"[") else {
                    continue;
                };
                // ECMA-48: parameters and intermediates, then one final byte.
                let end = body.iter().position(|b| matches!(b, 0x40..=0x7e));
                rest = end.and_then(|end| body.get(end + 1..)).unwrap_or_default();
            }
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(line: &str) -> (String, u32, Level, String) {
        match Line::read(&clean(line.as_bytes())) {
            Line::Nccl {
                writer, level, text, ..
            } => (writer.host, writer.pid, level, text.to_owned()),
            other => panic!("{other:?}: {line}"),
        }
    }

    #[test]
    fn words_that_other_programs_have_too_are_levels_behind_a_writer_alone() {
        for (words, level) in [
            ("[FATAL ERROR]: ", Level::Warn),
            ("INFO ", Level::Info),
            ("misc/ibvwrap.cu:60 WARN ", Level::Warn),
            ("(f) x.cc:7 NCCL ATTN ", Level::Attention),
        ] {
            let wanted = ("node-1".to_owned(), 20, level, "text".to_owned());
            assert_eq!(of(&format!("node-1:20:289 [2] {words}text")), wanted);
            assert_eq!(
                of(&format!("[1,3]<stdout>:node-1:20:289 [2] {words}text")),
                wanted
            );
        }
        for plain in [
            "[2] INFO text",
            "12:34:56 [2] INFO text",
            "2026-01-02 12:34:56 [2] INFO text",
            "worker [2] INFO text",
            "node-1:20:289 INFO text",
            "[FATAL ERROR]: text",
            "node-1 [2] [FATAL ERROR]: text",
            "[2] a.py:7 WARN text",
            "12:34:56 [2] a.py:7 WARN text",
        ] {
            assert_eq!(Line::read(plain), Line::Plain(plain));
        }
    }

    #[test]
    fn a_host_whose_numbers_somebody_masked_is_known() {
        for head in [
            "host-1.example.com:XXXXXX",
            "host-1.example.com:xxx:xxx",
            "host-1.example.com:***:***",
        ] {
            let (host, pid, ..) = of(&format!("[2026-01-02 03:04:05] {head} [5] x.c:2 NCCL WARN text"));
            assert_eq!((host.as_str(), pid), ("host-1.example.com", 0), "{head}");
        }
        for head in ["12:XX", "a:b", "a:Xx", "a:X", "00:**:**", "-:XX"] {
            let (host, ..) = of(&format!("{head} [5] x.c:2 NCCL WARN text"));
            assert_eq!(host, "", "{head}");
        }
    }

    #[test]
    fn the_writer_is_found_behind_what_launchers_put_before_it() {
        let wanted = (
            "node-1".to_owned(),
            20,
            Level::Info,
            "Using network IB".to_owned(),
        );
        for before in [
            "",
            "3: ",
            "3:",
            "[1,3]<stdout>:",
            "[1,3]<stderr>: ",
            "[default3]:",
            "[rank3]: ",
            "[pod/job-0/main] ",
            "main | ",
            "main  |",
            "[1,mpirank:0,algo-1]<stdout>:",
            "[1,0]&lt;stdout&gt;:",
            "[prterun-head-77@1,0]<stdout>: ",
            "[0] ",
            "[ 1234.567890] head step[77]: ",
            "I1126 12:34:56.789 77 file.cc:12] ",
            "> ",
            "gpu-7: ",
            "slurm-12.out:",
            "logs/slurm-12.out:34:",
            "log:34:",
            "[2026-01-02 03:04:05] ",
            "2026-01-02 03:04:05 ",
            "2026-01-02T03:04:05.678901234Z stdout F ",
            "2026-01-02T03:04:05Z ",
            "2026-01-02T03:04:05 ",
            "0: [2026-01-02 03:04:05] ",
            "Jan  2 03:04:05 head slurmstepd[77]: ",
            "Jan 02 03:04:05 head python3[77]: ",
            "03:04:05 ",
            "(RayWorker pid=77, ip=192.0.2.1) ",
            "INFO:root:",
            "time=03:04:05 msg=\"",
            "\u{feff}",
            "\u{1b}[32m",
            "\u{1b}[36m(RayWorker pid=77)\u{1b}[0m ",
        ] {
            let line = format!("{before}node-1:20:289 [2] NCCL INFO Using network IB");
            assert_eq!(of(&line), wanted, "{before:?}");
        }
    }

    #[test]
    fn a_clock_is_no_writer_even_where_nothing_else_is() {
        for clock in [
            "12:34:56",
            "2026-11-26T12:34:56",
            "20261126-12:34:56",
            "[12:34:56]",
            "12:34:56.789",
        ] {
            let (host, pid, ..) = of(&format!("{clock} [0] NCCL INFO Using network IB"));
            assert_eq!((host.as_str(), pid), ("", 0), "{clock}");
        }
        // Host names that look like numbers, and short ones.
        assert_eq!(of("7:123:456 [0] NCCL INFO x").0, "7");
        assert_eq!(of("10:1:1 [0] NCCL INFO x").0, "10");
        assert_eq!(of("a:12:34 [0] NCCL INFO x").0, "a");
        assert_eq!(of("192-0-2-12:34:56 [0] NCCL INFO x").0, "192-0-2-12");
        assert_eq!(of("ip-192-168-10-12:34:56 [0] NCCL INFO x").0, "ip-192-168-10-12");
        assert_eq!(of("192-168-10-12:34:56 [0] NCCL INFO x").0, "192-168-10-12");
    }

    #[test]
    fn clocks_with_a_date_are_compared_where_their_zones_are_alike() {
        let find = |before: &str| Clock::find(before).unwrap();
        let early = find("[2026-11-26 12:34:56] n:1:1 [0] ");
        let late = find("3: 2026-11-26T12:34:56.5 n:1:1 [0] ");
        assert!(early.is_like(&late) && !early.is_before(&late) && !late.is_before(&early));
        let next = find("2026-11-26 12:34:57");
        assert!(late.is_before(&next) && !next.is_before(&late));
        assert!(find("2026-11-26 12:34:56.4").is_before(&late));
        assert_eq!(early, find("2026-11-26 12:34:56"));
        assert!(!early.is_like(&find("2026-11-26T12:34:56Z n:1:1 [0]")));
        assert!(find("2026-11-26T12:34:56.1Z stdout F n").is_like(&find("2026-11-26T12:34:56.25Z n")));
        for zone in ["+0000", "-01:00", "UTC", "GMT"] {
            let zoned = find(&format!("[2026-11-26 12:34:56.5 {zone}] n:1:1 [0] "));
            assert!(!zoned.is_like(&early), "{zone}");
            assert_eq!(zoned, find(&format!("2026-11-26 12:34:56.5 {zone} n:1:1 [0] ")));
        }
        assert!(find("2026-11-26 12:34:56 + n:1:1 [0]").is_like(&early));
        for other in [
            "12:34:56 n:1:1 [0]",
            "2026-11-26 12:34",
            "",
            "é2026-11-26T12:34:5",
        ] {
            assert_eq!(Clock::find(other), None, "{other}");
        }
    }

    #[test]
    fn a_warning_names_its_place_in_the_source_and_that_is_not_the_writer() {
        for place in [
            "transport/net_ib.cc:1295",
            "net_ib.cc:12 (ncclIbTest)",
            "int handle(context_t*, fid_cq*, uint16_t):46",
            "",
        ] {
            let (host, pid, level, text) =
                of(&format!("n:7:9 [0] {place} NCCL WARN NET/IB : Got completion"));
            assert_eq!((host.as_str(), pid, level), ("n", 7, Level::Warn), "{place}");
            assert_eq!(text, "NET/IB : Got completion");
        }
        assert_eq!(of("vm-0:606:642 [ 6 ] NCCL INFO Using network gIB").0, "vm-0");
    }

    #[test]
    fn a_source_file_before_a_bare_level_is_no_host() {
        for file in [
            "main.rs", "a.c", "a.cc", "a.cpp", "a.cu", "x.pb.go", "A.java", "train.py", "a-b.h", "a.ts",
        ] {
            for level in ["INFO", "WARN", "[FATAL ERROR]:"] {
                let line = format!("{file}:12:34 [3] {level} Using internal Network Socket");
                assert_eq!(Line::read(&line), Line::Plain(&line));
            }
            // Where NCCL's name is in the level, it is NCCL's line.
            assert_eq!(of(&format!("{file}:12:34 [3] NCCL INFO x")).0, file);
        }
        for host in ["node1", "cs", "h1.example.com", "rs"] {
            assert_eq!(of(&format!("{host}:12:34 [3] INFO x")).0, host);
        }
    }

    #[test]
    fn a_log_without_host_names_has_processes_all_the_same() {
        assert_eq!(of(":22901:22901 [0] NCCL INFO x").1, 22901);
        for line in [
            " [0] NCCL INFO x",
            "NCCL INFO x",
            "worker [0] NCCL INFO x",
            "é:1:1 [0] NCCL INFO x",
        ] {
            assert_eq!((of(line).0.as_str(), of(line).1), ("", 0), "{line}");
        }
    }

    #[test]
    fn prefixes_that_are_cut_into_each_other_are_no_writer() {
        for line in [
            "g1:161258:16169g1:161264:161695 [7] NCCL INFO x",
            "g1:161258:1616g2:161264:161695 [7] NCCL INFO x",
            "vm:57vm:571:571 [0] NCCL INFO x",
            "vm:57:vm:571:571 [0] NCCL INFO x",
            "vm:570:571:571 [0] NCCL INFO x",
            "vm:1:1 [0] NCCL INFO such file or divm:2:2 [0] NCCL INFO y",
            "vm:1:1 [0] NCCL INFO such file or divm:2:2 [0] NC",
            "vm:1:1 [0] NCCL INvm:2:2 [0] NCCL WARN yNCCL INFO x",
        ] {
            assert_eq!(Line::read(line), Line::Torn, "{line}");
        }
    }

    #[test]
    fn lines_that_somebody_joined_are_parted_where_a_known_host_begins() {
        let is_host = |host: &str| host == "b1";
        for (line, wanted) in [
            (
                "a1:1:1 [0] NCCL INFO x a1:2:2 [1] f.cc:7 NCCL WARN y",
                Some(vec!["a1:1:1 [0] NCCL INFO x", "a1:2:2 [1] f.cc:7 NCCL WARN y"]),
            ),
            (
                "7:[03:04:05] a1:1:1 [0] NCCL INFO x 19:[03:04:06] b1:2:2 [1] NCCL INFO y",
                Some(vec![
                    "7:[03:04:05] a1:1:1 [0] NCCL INFO x",
                    "b1:2:2 [1] NCCL INFO y",
                ]),
            ),
            (
                "a1:1:1 [0] NCCL INFO x   c1:2:2 [1] NCCL INFO y",
                Some(vec!["a1:1:1 [0] NCCL INFO x", "c1:2:2 [1] NCCL INFO y"]),
            ),
            (
                "0: a1:1:1 [0] NCCL INFO x 7 0: a1:2:2 [1] NCCL INFO y",
                Some(vec!["0: a1:1:1 [0] NCCL INFO x 7", "a1:2:2 [1] NCCL INFO y"]),
            ),
            ("a1:1:1 [0] NCCL INFO x c1:2:2 [1] NCCL INFO y", None),
            ("a1:1:1 [0] NCCL INFO xa1:2:2 [1] NCCL INFO y", None),
            ("a1:1:1 [0] NCCL INFO NCCL INFO y", None),
            ("a1:1:1 [0] NCCL INFO x", None),
            ("x", None),
        ] {
            assert_eq!(joined(line, is_host), wanted, "{line}");
        }
    }

    #[test]
    fn json_around_a_line_is_taken_off() {
        let line = r#"{"log":"n:1:1 [0] NCCL INFO \u001b[1mx\n","stream":"stdout"}"#;
        assert_eq!(unpacked(line).unwrap(), ["n:1:1 [0] NCCL INFO x"]);
        let two = r#"{"level":"info","message":"one\ntwo"}"#;
        assert_eq!(unpacked(two).unwrap(), ["one", "two"]);
        for other in ["n:1:1 [0] NCCL INFO {x}", r#"{"log":7}"#, "{}", "{\"log\":\"a\""] {
            assert_eq!(unpacked(other), None, "{other}");
        }
        // JSON that was cut and other quotes must not become a part of the host or the text.
        for quoted in [
            r#"{"log":"n:1:1 [0] NCCL INFO Using network IB"#,
            r#"{"log":"n:1:1 [0] NCCL INFO Using network IB\n","stream":"std"#,
            r#"level=info msg="n:1:1 [0] NCCL INFO Using network IB""#,
        ] {
            let (host, _, _, text) = of(quoted);
            assert_eq!(
                (host.as_str(), text.as_str()),
                ("n", "Using network IB"),
                "{quoted}"
            );
        }
    }

    #[test]
    fn a_line_that_its_viewer_has_twice_is_taken_once() {
        const LINE: &str = "web | n:1:1 [0] NCCL INFO a | b |  | c";
        for before in ["", "2026-01-02T03:04:05.678Z ", "| 1767322800 | "] {
            assert_eq!(once(&format!("{before}{LINE} | {LINE}")), LINE);
        }
        for other in ["n NCCL INFO x | n NCCL INFO y", "a | a", LINE] {
            assert_eq!(once(other), other);
        }
        // However many places a line could be parted at, few are tried.
        let many = format!("n:1:1 [0] NCCL INFO x{}", BETWEEN.repeat(10_900));
        assert_eq!((once(&many), halves(&many).count()), (many.as_str(), PARTED));
    }

    #[test]
    fn what_windows_writes_is_read() {
        let utf16: Vec<u8> = "\u{feff}n:1:1 [0] NCCL INFO x\r"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        assert_eq!(clean(&utf16), "n:1:1 [0] NCCL INFO x");
        assert_eq!(clean(b"\xef\xbb\xbfn:1:1\t[0]\r"), "n:1:1 [0]");
    }

    #[test]
    fn what_is_not_nccl_s_is_plain() {
        for line in [
            "NCCL version 2.18.5+cuda12.0",
            "# Avg bus bandwidth    : 84.8558",
            "",
        ] {
            assert_eq!(Line::read(line), Line::Plain(line));
        }
    }

    proptest! {
        #[test]
        fn a_line_is_parted_where_all_places_that_were_tried_would_part_it(
            words in prop::collection::vec("n:1:1 |\\[0\\] |NCCL (INFO|WARN) |x|é| \\| ", 0..12),
            before in "(1 \\| ?)?",
            is_twice: bool,
        ) {
            let mut line = before + &words.concat();
            if is_twice {
                line = format!("{line}{BETWEEN}{}", words.concat());
            }
            let all = line.match_indices(BETWEEN).map(|(at, _)| (&line[..at], &line[at + BETWEEN.len()..]));
            let mut twice = all.filter(|(first, second)| first.ends_with(second) && is_nccl(second));
            prop_assert_eq!(once(&line), twice.next().map_or(line.as_str(), |(_, second)| second));
        }

        #[test]
        fn lines_that_were_joined_are_parts_of_the_line_in_its_order(
            words in prop::collection::vec("(a1|b1|é):[0-9]{1,2}:1|\\[[0-9]\\]|NCCL (INFO|WARN) ?|0:|x| ", 0..24),
            separator in " ?",
        ) {
            let line = words.join(&separator);
            let mut rest = line.as_str();
            for piece in joined(&line, |host| host == "b1").unwrap_or_default() {
                let at = rest.find(piece);
                prop_assert!(at.is_some() && is_nccl(piece), "{line:?} {piece:?}");
                rest = &rest[at.unwrap() + piece.len()..];
            }
        }

        #[test]
        fn no_bytes_panic_and_nothing_unsafe_comes_out(bytes: Vec<u8>, tail in "(\\x1b\\[[0-9;]{0,3}m?)?[a-z:0-9 ]{0,20}NCCL (INFO|WARN)\\PC{0,20}") {
            for input in [bytes, tail.into_bytes()] {
                let safe = clean(&input);
                prop_assert!(!safe.chars().any(char::is_control), "{safe:?}");
                for line in unpacked(&safe).unwrap_or_else(|| vec![safe.to_string()]) {
                    prop_assert!(!line.chars().any(char::is_control), "{line:?}");
                    if let Line::Nccl { writer, .. } = Line::read(&line) {
                        prop_assert!(is_host(&writer.host));
                    }
                }
            }
        }
    }
}
