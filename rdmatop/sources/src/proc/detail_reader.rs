//! Reads details of processes within bounded time: a helper process reads, and is killed when it is late.

use super::basic::{ProcKey, key};
use super::detail::{Part, PartAnswer, ProcDetail, read_part};
use crate::{
    root::Root,
    uprobes::{Helper, Purpose, Unanswered},
};

/// Why a part is unknown although it may be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The helper did not answer in time.
    Late,
    TooLong,
    /// The helper could not be started, or has ended.
    NoReader(String),
}

/// A part that is unknown. Unless it is too long, the parts after it were not read either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Miss {
    pub(super) part: Part,
    pub(super) why: Why,
}

/// What a [`DetailReader`] read of one process, and what it could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) detail: ProcDetail,
    pub(super) miss: Option<Miss>,
    /// The process has ended; its number may be another one's.
    pub(super) ended: bool,
}

/// Reads details, each part in two seconds at most.
pub struct DetailReader {
    root: Root,
    helper: Option<Helper>,
}

impl DetailReader {
    /// Reads under `root`. Nothing is started before the first question.
    pub fn new(root: Root) -> Self {
        Self { root, helper: None }
    }

    /// Reads these parts of exactly this process; `None` when it has ended. A part that is late is unknown.
    pub fn details(&mut self, process: ProcKey, user: Option<u32>, parts: &[Part]) -> Option<ProcDetail> {
        let reading = self.read(process, user, parts);
        (!reading.ended).then_some(reading.detail)
    }

    /// Reads these parts, up to the first that has no answer.
    pub(super) fn read(&mut self, process: ProcKey, user: Option<u32>, parts: &[Part]) -> Reading {
        let mut reading = Reading::default();
        for part in parts.iter().copied() {
            let why = match self.part(process.pid, user, part) {
                Ok(told) => {
                    reading.detail.add(told.detail);
                    told.too_long.then_some(Why::TooLong)
                }
                Err(why) => Some(why),
            };
            let Some(why) = why else { continue };
            let goes_on = why == Why::TooLong;
            reading.miss = Some(Miss { part, why });
            if !goes_on {
                break;
            }
        }
        // The number must still be this process's, and it must say so: facts of two processes are not mixed.
        // This also detects a number that was reused before the first read.
        reading.ended = key(&self.root, process.pid) != Some(process);
        reading
    }

    fn part(&mut self, pid: u32, user: Option<u32>, part: Part) -> Result<PartAnswer, Why> {
        if !self.root.is_live() {
            return Ok(read_part(&self.root, pid, part));
        }
        let helper = Helper::kept(&mut self.helper, Purpose::Details);
        let helper = helper.map_err(|error| Why::NoReader(error.to_string()))?;
        helper
            .part(pid, user, part)
            .map_err(|unanswered| match unanswered {
                Unanswered::Late => Why::Late,
                Unanswered::Lost => Why::NoReader("the process that reads it has ended".to_owned()),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::super::stat::line;
    use super::*;
    use crate::fake::Fake;

    #[test]
    fn a_reused_number_is_not_the_process_that_was_asked_for() {
        let fake = Fake::new();
        fake.proc("7/stat", line(7, b"python3", 100));
        let mut reader = DetailReader::new(fake.root());
        let mut tell = |pid, start| reader.details(ProcKey { pid, start }, None, Part::SHOWN);
        assert_eq!(tell(7, 100), Some(ProcDetail::default()));
        assert_eq!(tell(7, 99), None);
        assert_eq!(tell(8, 1), None);
    }

    #[test]
    fn the_running_test_is_read_by_a_process_apart() {
        let root = Root::default();
        let me = key(&root, std::process::id()).unwrap();
        let mut reader = DetailReader::new(root);
        let detail = reader.details(me, None, Part::SHOWN).unwrap();
        assert!(detail.cmdline.is_some() && detail.environ.is_some() && detail.libraries.is_some());
        assert!(reader.helper.is_some(), "it serves the next question");
    }
}
