//! Lines on stderr. Callers never wait for them, because they also handle signals and detach programs.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{collections::VecDeque, io};

use crate::outlet::Outlet;
use rdmatop_base::text;

/// The most bytes that wait for a reader.
const WAITING: usize = 64 << 10;
/// How long one line waits for a slow reader.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the end waits: a slow reader gets everything.
const END: Duration = Duration::from_secs(1);

static STDERR: OnceLock<Mutex<Unwritten>> = OnceLock::new();

fn stderr() -> &'static Mutex<Unwritten> {
    STDERR.get_or_init(|| Mutex::new(Unwritten::new(Outlet::of(io::stderr()).ok())))
}

/// Opens stderr once more while all rights are there: it may be the pipe of another user.
pub fn open() {
    stderr();
}

/// Prints one line on stderr, made safe for a terminal. A failure cannot be reported.
pub fn say(line: &str) {
    let mut said = stderr().lock().unwrap_or_else(PoisonError::into_inner);
    said.line(&text::sanitize(line.as_bytes()));
}

/// Whether anything reads stderr.
pub fn heard() -> bool {
    Outlet::of(io::stderr()).is_ok_and(|to| to.room(END))
}

/// Writes what is still waiting, if anything reads it.
pub fn end() {
    if let Some(said) = STDERR.get() {
        said.lock().unwrap_or_else(PoisonError::into_inner).end(END);
    }
}

/// Lines that stderr has not taken yet.
#[derive(Debug)]
struct Unwritten {
    to: Option<Outlet>,
    waiting: VecDeque<u8>,
    /// Number of lines without room.
    dropped: u64,
}

impl Unwritten {
    fn new(to: Option<Outlet>) -> Self {
        Self {
            to,
            waiting: VecDeque::new(),
            dropped: 0,
        }
    }

    fn line(&mut self, line: &str) {
        self.pour(Duration::ZERO);
        self.tell_dropped();
        let stalled = !self.waiting.is_empty();
        if self.waiting.len() + line.len() >= WAITING {
            self.dropped += 1;
            return;
        }
        self.push(line);
        self.pour(if stalled { Duration::ZERO } else { PATIENCE });
    }

    fn push(&mut self, line: &str) {
        self.waiting.extend(line.as_bytes());
        self.waiting.push_back(b'\n');
    }

    fn tell_dropped(&mut self) {
        if self.dropped > 0 && self.waiting.is_empty() {
            let dropped = std::mem::take(&mut self.dropped);
            self.push(&format!("rdmatop: {dropped} lines had no room on stderr"));
        }
    }

    fn pour(&mut self, limit: Duration) {
        let Some(to) = &self.to else {
            return self.waiting.clear();
        };
        if self.waiting.is_empty() {
            return;
        }
        match to.within(limit, self.waiting.make_contiguous()) {
            Ok(done) => drop(self.waiting.drain(..done)),
            Err(_) => self.waiting.clear(),
        }
    }

    fn end(&mut self, limit: Duration) {
        let begin = Instant::now();
        self.pour(limit);
        self.tell_dropped();
        self.pour(limit.saturating_sub(begin.elapsed()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_stalled_reader_gets_each_line_or_a_count_and_delays_no_caller() {
        let (mut read, write) = io::pipe().unwrap();
        let mut said = Unwritten::new(Outlet::of(&write).ok());
        drop(write);
        let line = "x".repeat(999);
        let begin = Instant::now();
        for _ in 0..300 {
            said.line(&line);
        }
        // The pipe's 64 KiB, 64 KiB here, and a wait for each line that had room here.
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!((150..300).contains(&said.dropped), "{}", said.dropped);
        let dropped = said.dropped;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            read.read_to_string(&mut text).unwrap();
            text
        });
        said.end(Duration::from_secs(10));
        drop(said);
        let text = reader.join().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let (last, whole) = lines.split_last().unwrap();
        assert_eq!(*last, format!("rdmatop: {dropped} lines had no room on stderr"));
        assert_eq!(whole.len() as u64 + dropped, 300);
        assert!(whole.iter().all(|got| *got == line));
    }

    #[test]
    fn without_a_reader_nothing_fails() {
        let (read, write) = io::pipe().unwrap();
        let mut said = Unwritten::new(Outlet::of(&write).ok());
        drop(read);
        said.line("one");
        said.end(END);
        assert!(said.waiting.is_empty());
        Unwritten::new(None).line("two");
    }
}
