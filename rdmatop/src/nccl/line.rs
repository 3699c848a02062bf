//! One line of a log: its process and its text.
//!
//! NCCL writes `HOST:PID:TID [GPU] NCCL INFO TEXT` (`ncclDebugLog`, src/debug.cc, since 2.4), with a time in front if
//! NCCL_DEBUG_TIMESTAMP_LEVELS is set, and in warnings the place in the source between GPU and level. Launchers add
//! their own prefix: `[1,3]<stdout>:` (mpirun --tag-output), `3: ` (srun --label), `[default3]:` (torchrun),
//! `[pod/x/y] ` (kubectl logs --prefix).

use std::borrow::Cow;

use crate::text;

/// Longer lines are cut: NCCL's own buffer is 1 KiB, a list of HCAs 2 KiB.
const MAX: usize = 8192;

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `NCCL INFO`.
    Info,
    /// `NCCL WARN`.
    Warn,
}

/// The process that wrote a line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Writer {
    /// Host, by its own name; empty where the log has none.
    pub host: String,
    /// Process id there.
    pub pid: u32,
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line<'a> {
    /// Of NCCL.
    Nccl {
        /// Its process.
        writer: Writer,
        /// Its level.
        level: Level,
        /// Its text, safe to print.
        text: Cow<'a, str>,
    },
    /// A line of another program: the job, nccl-tests, NCCL's version.
    Plain(Cow<'a, str>),
}

impl<'a> Line<'a> {
    /// Splits a line. Invalid bytes are escaped.
    pub fn read(bytes: &'a [u8]) -> Self {
        let bytes = bytes.get(..MAX).unwrap_or(bytes);
        let raw = without_colours(bytes);
        let safe = match raw {
            // Most lines: nothing to escape, nothing to copy.
            Cow::Borrowed(raw) if raw.iter().all(|b| matches!(b, b' '..=b'~')) => {
                Cow::Borrowed(std::str::from_utf8(raw).unwrap_or_default())
            }
            raw => Cow::Owned(text::sanitize(&tabs_as_spaces(&raw))),
        };
        let Some((writer, level, at)) = Self::parse(&safe) else {
            return Self::Plain(safe);
        };
        let text = match safe {
            Cow::Borrowed(text) => Cow::Borrowed(text.get(at..).unwrap_or_default().trim()),
            Cow::Owned(text) => Cow::Owned(text.get(at..).unwrap_or_default().trim().to_owned()),
        };
        Self::Nccl { writer, level, text }
    }

    /// Process, level and beginning of the text in a line of NCCL's.
    fn parse(line: &str) -> Option<(Writer, Level, usize)> {
        const LEVELS: [(&str, Level); 2] = [("NCCL INFO", Level::Info), ("NCCL WARN", Level::Warn)];
        let found = LEVELS
            .iter()
            .filter_map(|(word, level)| Some((line.find(word)?, *word, *level)))
            .min_by_key(|(at, ..)| *at);
        let (at, word, level) = found?;
        let writer = line.get(..at)?.split_whitespace().find_map(writer);
        // Before 2.4 and in some plugins the line names no process.
        let writer = writer.unwrap_or(Writer {
            host: String::new(),
            pid: 0,
        });
        Some((writer, level, at + word.len()))
    }
}

/// `HOST:PID:TID`, after any prefix of a launcher.
fn writer(word: &str) -> Option<Writer> {
    let mut parts = word.rsplitn(3, ':');
    let tid = parts.next()?;
    let pid = parts.next()?;
    let host = parts.next()?;
    if tid.is_empty() || !tid.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let pid = pid.parse().ok()?;
    let host = host.rsplit(['>', ']', '|', ':']).next().unwrap_or(host);
    Some(Writer {
        host: host.to_owned(),
        pid,
    })
}

/// Removes the sequences that colour text on a terminal.
fn without_colours(bytes: &[u8]) -> Cow<'_, [u8]> {
    if !bytes.contains(&0x1b) {
        return Cow::Borrowed(bytes);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != 0x1b {
            out.push(*first);
            continue;
        }
        let Some(body) = tail.strip_prefix(b"[") else {
            continue;
        };
        // ECMA-48: parameters and intermediates, then one final byte.
        let end = body.iter().position(|b| matches!(b, 0x40..=0x7e));
        rest = end.and_then(|end| body.get(end + 1..)).unwrap_or_default();
    }
    Cow::Owned(out)
}

fn tabs_as_spaces(bytes: &[u8]) -> Vec<u8> {
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    bytes
        .iter()
        .map(|b| if *b == b'\t' { b' ' } else { *b })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(line: &str) -> (String, u32, Level, String) {
        match Line::read(line.as_bytes()) {
            Line::Nccl { writer, level, text } => (writer.host, writer.pid, level, text.into_owned()),
            Line::Plain(text) => panic!("plain: {text}"),
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
            "[1,3]<stdout>:",
            "[1,3]<stderr>: ",
            "[default3]:",
            "[rank3]: ",
            "[pod/job-0/main] ",
            "main | ",
            "[2026-01-02 03:04:05] ",
            "\u{1b}[32m",
        ] {
            let line = format!("{before}node-1:20:289 [2] NCCL INFO Using network IB");
            assert_eq!(of(&line), wanted, "{before:?}");
        }
    }

    #[test]
    fn a_warning_names_its_place_in_the_source_and_that_is_not_the_writer() {
        let line = "n:7:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer";
        let (host, pid, level, text) = of(line);
        assert_eq!((host.as_str(), pid, level), ("n", 7, Level::Warn));
        assert_eq!(text, "NET/IB : Got completion from peer");
        let (host, pid, ..) = of("n:7:9 [0] net_ib.cc:12 (ncclIbTest) NCCL WARN x");
        assert_eq!((host.as_str(), pid), ("n", 7));
    }

    #[test]
    fn a_log_without_host_names_has_processes_all_the_same() {
        assert_eq!(of(":22901:22901 [0] NCCL INFO x").1, 22901);
        assert_eq!(of(" [0] NCCL INFO x").1, 0);
    }

    #[test]
    fn what_is_not_nccl_s_is_plain() {
        for line in [
            "NCCL version 2.18.5+cuda12.0",
            "# Avg bus bandwidth    : 84.8558",
            "",
        ] {
            assert_eq!(Line::read(line.as_bytes()), Line::Plain(line.into()));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_nothing_unsafe_comes_out(bytes: Vec<u8>, tail in "(\\x1b\\[[0-9;]{0,3}m?)?[a-z:0-9 ]{0,20}NCCL (INFO|WARN)\\PC{0,20}") {
            for input in [bytes, tail.into_bytes()] {
                let text = match Line::read(&input) {
                    Line::Nccl { text, writer, .. } => format!("{}{text}", writer.host),
                    Line::Plain(text) => text.into_owned(),
                };
                prop_assert!(!text.chars().any(char::is_control), "{text:?}");
            }
        }
    }
}
