//! What frameworks print of an error of NCCL, and what libraries beside it print of the network, in lines
//! that are not NCCL's: without NCCL_DEBUG nothing else is in the log.
//!
//! PyTorch (torch/csrc/distributed/c10d/NCCLUtils.hpp) prints `ncclSystemError: ...`, with NCCL 2.13 and
//! later also a line `Last error:` and then the text of NCCL's last warning; its watchdog
//! (ProcessGroupNCCL.cpp) prints a collective that does not end. Others print the words of
//! `ncclGetErrorString`, some with the text of NCCL's last warning behind them.

use rdmatop_base::order::Ordered as _;
use rdmatop_base::text;

use super::{
    dictionary::{self, Entry},
    line,
    warning::{Warning, Warnings},
};

/// Ends the line before the text of NCCL's last warning (`ncclGetLastError`).
const LAST_ERROR: &str = "Last error:";
/// Stands before that text in an error of XLA (JAX, TensorFlow).
const LAST_OF_XLA: &str = "Last NCCL warning(error) log entry (may be unrelated)";
/// Stands before an error that UCX prints.
const UCX_ERROR: &str = "UCX  ERROR ";
/// Stands before the words of an error of CUDA in what nccl-tests print.
const CUDA_OF_TESTS: &str = "Test CUDA failure ";
/// The least width, in bytes, at which a tool breaks lines wherever that is.
const WIDTH: usize = 80;
/// How much is kept of a line that may go on in the next one: more than the longest beginning.
const TAIL: usize = 80;
/// How long a prefix of a launcher or a logger may be.
const HEAD: usize = 64;
/// Words of a prefix before the text: a clock, a rank, a logger.
const PREFIX: usize = 8;
/// Longest text of an error: NCCL keeps 1 KiB of it.
const MAX_TEXT: usize = 1024;
/// How often `nccl` is looked at in a line.
const MAX_NAMES: usize = 4;

/// The errors that frameworks printed.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameworkErrors {
    /// Whether the last line said with what a call failed. Other programs have a `Last error:` too.
    failed: bool,
    /// Whether it did so by the words of the error alone.
    in_words: bool,
    /// What stood before `Last error:`, if the last line announced the text of an error.
    announced: Option<String>,
    /// The last line was empty, and the first such.
    blank: bool,
    /// The beginning of the last line that was not.
    head: String,
    /// The end of the last line, if it may go on in this one.
    tail: String,
    errors: Warnings,
}

impl FrameworkErrors {
    /// Takes a line that is not NCCL's.
    pub(super) fn line(&mut self, line: &str) {
        // Some loggers put an empty line behind each.
        if is_blank(line, &self.head) && !std::mem::replace(&mut self.blank, true) {
            return;
        }
        text::cut(line, HEAD).clone_into(&mut self.head);
        let after_blank = std::mem::take(&mut self.blank);
        let (failed, in_words) = (self.failed, self.in_words);
        (self.failed, self.in_words) = (false, false);
        let before = std::mem::replace(&mut self.tail, tail(line).to_owned());
        if let Some(prefix) = self.announced.take() {
            let text = line.strip_prefix(&prefix).unwrap_or(line);
            // Behind an empty line something else may stand.
            if !after_blank || dictionary::look_up(text).is_some() {
                self.add_text(text);
                return;
            }
        }
        if let Some(prefix) = line.trim_end().strip_suffix(LAST_ERROR) {
            self.announced = failed.then(|| prefix.to_owned());
        } else if let Some(at) = beginnings().find_map(|begin| line.find(begin)) {
            let (head, text) = line.split_at_checked(at).unwrap_or_default();
            let is_of_ucx = text.starts_with(dictionary::UCX) || text.starts_with(UCX_ERROR);
            if self.add_own(if is_of_ucx { host(head) } else { "" }, text) {
                self.tail.clear();
            }
        } else if let Some(text) = broken(&before, line) {
            self.add_own("", &text);
        } else if let Some((call, text)) = line.split_once(LAST_OF_XLA) {
            if let Some((words, entry)) = result(call) {
                self.add("", words, Some(entry));
            }
            let text = text.split("'.;").next().unwrap_or_default();
            self.add_text(text.trim_matches(['\'', '.', ' ']));
        } else if let Some((_, words)) = line.split_once(CUDA_OF_TESTS) {
            let words = words.split('\'').nth(1).unwrap_or_default();
            self.add_text(&format!("Cuda failure '{words}'"));
        } else if let Some((text, entry)) = result(line) {
            // PyTorch prints the words of the error first, and its name in the next line.
            let is_named = text.starts_with("nccl") || text.starts_with("flagcx");
            if !(is_named && in_words) {
                self.add("", text, Some(entry));
            }
            (self.failed, self.in_words) = (true, !is_named);
            // nccl-tests goes on with the text of the last warning, and so does PyTorch where somebody joined
            // its lines.
            if let Some((_, last)) = text.split_once(" / ").or_else(|| text.split_once(LAST_ERROR)) {
                self.add_text(last.trim_end_matches('\''));
            }
        }
    }

    /// A line of NCCL's came: what was announced does not come any more.
    pub(super) fn interrupt(&mut self) {
        (self.failed, self.announced) = (false, None);
    }

    /// Takes what PyTorch or a library says itself, if it is one of the dictionary's messages, or an error.
    fn add_own(&mut self, host: &str, text: &str) -> bool {
        let found = dictionary::look_up(text);
        let is_kept = found.is_some() || text.starts_with(UCX_ERROR);
        if is_kept {
            self.add(host, text, found);
        }
        is_kept
    }

    /// Takes the text of an error behind the prefix of its line, which may have another clock than the line
    /// before. PyTorch goes on with its own stack where NCCL has no text.
    fn add_text(&mut self, line: &str) {
        let line = line.find("NET/").and_then(|at| line.get(at..)).unwrap_or(line);
        let line = text::cut(line.trim(), MAX_TEXT);
        let words = line.split(' ').scan(0, |at, word| {
            let begin = *at;
            *at += word.len() + 1;
            Some(begin)
        });
        let mut texts = words.take(PREFIX).filter_map(|at| line.get(at..));
        let found = texts.find_map(|text| Some((text, dictionary::look_up(text)?)));
        let is_of_stack = ["Exception raised", "Traceback", "frame #", "File ", LAST_ERROR]
            .iter()
            .any(|begin| line.contains(begin));
        match found {
            Some((text, entry)) => self.add("", text, Some(entry)),
            None if line.is_empty() || is_of_stack => {}
            None => self.add("", line, None),
        }
    }

    fn add(&mut self, host: &str, text: &str, entry: Option<&'static Entry>) {
        self.errors.add(host, text.trim(), entry, None);
    }

    /// Gives the errors that were found, and forgets them. With what a call failed is last, as in NCCL's own
    /// lines, where the warning comes first.
    pub(super) fn drain(&mut self) -> Warnings {
        let mut found = std::mem::take(&mut self.errors);
        found.list.order_by_key(Warning::is_only_a_result);
        found
    }
}

/// The host of UCX's head `[HOST:PID:TID]`, whose name has no domain. Behind it may stand the source's file.
fn host(head: &str) -> &str {
    let named = |word: &str| {
        let (host, rest) = word.split_once(':')?;
        line::number(rest.split(':').next()?)?;
        let begins = host.starts_with(|c: char| c.is_ascii_alphabetic());
        (begins && line::is_host(host) && !host.contains('.')).then_some(host.len())
    };
    let words = head.split([' ', '[', ']', '>', '|']).rev();
    let mut near = words.filter(|word| !word.is_empty()).take(PREFIX);
    near.find_map(|word| word.get(..named(word)?)).unwrap_or_default()
}

/// Whether a line has nothing but the prefix of the one before, in which a clock may have gone on.
fn is_blank(line: &str, head: &str) -> bool {
    let line = line.trim_end();
    let is_like = |(a, b): (u8, u8)| a == b || (a.is_ascii_digit() && b.is_ascii_digit());
    line.len() <= head.len() && line.bytes().zip(head.bytes()).all(is_like)
}

/// The end of a line that is long enough to be broken.
fn tail(line: &str) -> &str {
    let at = line.len().saturating_sub(TAIL);
    let begin = (at..line.len()).find(|at| line.is_char_boundary(*at));
    begin
        .filter(|_| line.len() >= WIDTH)
        .and_then(|at| line.get(at..))
        .unwrap_or_default()
}

/// How the messages begin that PyTorch and other libraries print themselves.
fn beginnings() -> impl Iterator<Item = &'static str> {
    [dictionary::UCX, UCX_ERROR]
        .into_iter()
        .chain(dictionary::beginnings())
}

/// What PyTorch says, where a tool broke its beginning into two lines.
fn broken(before: &str, line: &str) -> Option<String> {
    if before.is_empty() {
        return None;
    }
    let joined = format!("{before}{}", text::cut(line, TAIL));
    let at = beginnings().find_map(|begin| joined.find(begin).filter(|at| *at < before.len()))?;
    Some(format!("{}{line}", before.get(at..)?))
}

/// With what a call failed, by a line.
fn result(line: &str) -> Option<(&str, &'static Entry)> {
    let of_pytorch = |(at, _)| {
        let text = line.get(at..)?;
        let entry = dictionary::look_up(text).filter(|entry| entry.is_only_a_result())?;
        Some((text, entry))
    };
    let is_of_pytorch = line.contains("Error:") || line.contains("Invalid");
    let names = line.match_indices("nccl").chain(line.match_indices("flagcx"));
    let mut names = names.take(MAX_NAMES).filter(|_| is_of_pytorch);
    names
        .find_map(of_pytorch)
        .or_else(|| dictionary::error_of_program(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_texts_that_are_not_known_leave_room_for_one_that_is() {
        let mut all = FrameworkErrors::default();
        let mut say = |text: &str| {
            for line in ["ncclSystemError: System call failed", LAST_ERROR, text] {
                all.line(line);
            }
        };
        for n in 0..100 {
            say(&format!("made up {}", "x".repeat(n + 1)));
        }
        say("Call to ibv_create_qp failed");
        let found = all.drain();
        assert_eq!((found.unknown().count(), found.left_out), (64, 36));
        let found = found.list;
        let known = |one: &&Warning| one.entry.is_some_and(|entry| !entry.is_only_a_result());
        assert_eq!(found.iter().filter(known).count(), 1, "{found:?}");
    }
}
