//! What frameworks print of an error of NCCL, in lines that are not NCCL's: without NCCL_DEBUG nothing else
//! is in the log.
//!
//! PyTorch (torch/csrc/distributed/c10d/NCCLUtils.hpp, since 1.13) prints `ncclSystemError: ...`, `Last
//! error:`, and then the text of NCCL's last warning, and its watchdog (ProcessGroupNCCL.cpp) a collective
//! that does not end.

use super::dictionary::{self, Entry};

/// Begins the text of NCCL's last warning (`ncclGetLastError`).
const LAST: &str = "Last error:";
/// Begins what PyTorch's watchdog says.
const WATCHDOG: &str = "Watchdog caught collective operation timeout";
/// Words of a prefix before the text: a clock, a rank, a logger.
const PREFIX: usize = 8;
/// Largest number of errors that are kept: one of each entry of the dictionary that frameworks repeat.
const KEPT: usize = 32;

/// The errors that frameworks printed.
#[derive(Clone, Debug, Default)]
pub(super) struct Exceptions {
    /// What stood before `Last error:`, if the last line announced the text of an error.
    announced: Option<String>,
    found: Vec<(String, &'static Entry, u64)>,
}

impl Exceptions {
    /// Takes a line that is not NCCL's.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(prefix) = self.announced.take() {
            self.text(line.strip_prefix(&prefix).unwrap_or(line));
        }
        if let Some((prefix, text)) = line.split_once(LAST) {
            self.announced = text.trim().is_empty().then(|| prefix.to_owned());
            self.text(text);
        } else if let Some(at) = line.find(WATCHDOG) {
            self.text(line.get(at..).unwrap_or_default());
        } else if let Some(at) = line.find("nccl").filter(|_| line.contains("Error:")) {
            let result = line.get(at..).unwrap_or_default();
            self.take(
                result,
                dictionary::look_up(result).filter(|entry| entry.is_only_a_result()),
            );
        }
    }

    /// Takes the text of an error behind the prefix of its line, which may have another clock than the line
    /// before.
    fn text(&mut self, line: &str) {
        let line = line.find("NET/").and_then(|at| line.get(at..)).unwrap_or(line);
        let words = line.split(' ').scan(0, |at, word| {
            let begin = *at;
            *at += word.len() + 1;
            Some(begin)
        });
        let mut texts = words.take(PREFIX).filter_map(|at| line.get(at..));
        let found = texts.find_map(|text| Some((text, dictionary::look_up(text)?)));
        if let Some((text, entry)) = found {
            self.take(text, Some(entry));
        }
    }

    fn take(&mut self, text: &str, entry: Option<&'static Entry>) {
        let Some(entry) = entry else { return };
        if let Some((.., count)) = self
            .found
            .iter_mut()
            .find(|(_, known, _)| std::ptr::eq(*known, entry))
        {
            *count += 1;
        } else if self.found.len() < KEPT {
            self.found.push((text.trim().to_owned(), entry, 1));
        }
    }

    /// Gives the errors that were found, and forgets them.
    pub(super) fn give(&mut self) -> Vec<(String, &'static Entry, u64)> {
        std::mem::take(&mut self.found)
    }
}
