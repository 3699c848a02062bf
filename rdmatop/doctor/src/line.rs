//! The result of a check.

use std::iter;

use serde::Serialize;

use super::{facts::Reading, table::Check, words::names};
use rdmatop_base::step::NextStep;

/// The status of a line, the mildest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// What was checked is as it should be.
    Pass,
    /// Not checked, and need not be: it does not apply, or rdmatop was told to leave it alone.
    Skip,
    /// The check could not be made, and could have found something: without the right to read what it takes,
    /// where the kernel does not say it, or not in time.
    Unknown,
    /// What was checked works, and costs speed or may fail.
    Warn,
    /// What was checked does not work.
    Fail,
}

/// The subject of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// RDMA devices.
    Devices,
    /// Ports and network interfaces of the devices.
    Ports,
    /// PCI Express, interrupts, NUMA.
    Pcie,
    /// GPUs beside the NICs.
    Gpu,
    /// Flow control of Ethernet.
    Lossless,
    /// Limits of processes.
    Limits,
    /// The fallback without RDMA.
    Tcp,
    /// Settings of running jobs.
    Jobs,
    /// What rdmatop itself needs.
    Rdmatop,
}

impl Group {
    /// The group's name on the page.
    pub fn word(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Ports => "ports",
            Self::Pcie => "pcie",
            Self::Gpu => "gpu",
            Self::Lossless => "lossless",
            Self::Limits => "limits",
            Self::Tcp => "tcp",
            Self::Jobs => "jobs",
            Self::Rdmatop => "rdmatop",
        }
    }
}

/// One line. All text is safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The check.
    pub id: &'static str,
    /// What the line is about.
    pub group: Group,
    /// What the check came to.
    pub status: Status,
    /// Device, port or process, if it concerns one.
    pub subject: String,
    /// The result in words.
    pub text: String,
    /// Why it matters, or why the result is unknown.
    pub why: String,
    /// What to do, as a command where possible.
    pub remedy: NextStep,
}

/// The remedy of a line that needs root's rights.
pub(super) const WITH_ROOT: &str = "sudo rdmatop doctor";

#[derive(Debug, Default)]
pub(super) struct Lines(Vec<UnmergedLine>);

/// A line, before it is known which others say the same.
#[derive(Debug)]
struct UnmergedLine {
    status: Status,
    subject: String,
    text: String,
    why: String,
    remedy: NextStep,
    /// What it says, without the names of its subject: lines that differ in them alone become one.
    same: String,
}

impl Lines {
    fn push(&mut self, status: Status, subject: &str, said: [String; 2], remedy: NextStep) {
        let [text, why] = said;
        let mut same = format!("{text}: {why}");
        if !subject.is_empty() {
            same = same.replace(subject, "\0");
        }
        self.0.push(UnmergedLine {
            status,
            subject: subject.to_owned(),
            text,
            why,
            remedy,
            same,
        });
    }

    /// `name`, too, is a name of the last line's subject.
    pub(super) fn alias(&mut self, name: &str) {
        if let Some(last) = self.0.last_mut().filter(|_| !name.is_empty()) {
            last.same = last.same.replace(name, "\0");
        }
    }

    /// Adds a line of something that is as it should be.
    pub(super) fn pass(&mut self, subject: &str, text: impl Into<String>) {
        self.push(
            Status::Pass,
            subject,
            [text.into(), String::new()],
            NextStep::default(),
        );
    }

    /// Adds a line of something that need not be checked.
    pub(super) fn skip(
        &mut self,
        text: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<NextStep>,
    ) {
        self.push(Status::Skip, "", [text.into(), why.into()], remedy.into());
    }

    /// Adds a line of something that could not be checked, of no subject. `remedy` makes it possible.
    pub(super) fn unknown_until(
        &mut self,
        text: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<NextStep>,
    ) {
        self.push(Status::Unknown, "", [text.into(), why.into()], remedy.into());
    }

    /// Adds a line of something that could not be checked.
    pub(super) fn unknown(&mut self, subject: &str, text: impl Into<String>, why: impl Into<String>) {
        let said = [text.into(), why.into()];
        self.push(Status::Unknown, subject, said, NextStep::default());
    }

    /// The value of a fact. Where the fact may exist and is not known, a line says why: `what` is not known
    /// of `subject`, and `remedy` brings the right to read it.
    pub(super) fn known<'a, T>(
        &mut self,
        fact: &'a Reading<T>,
        subject: &str,
        what: impl Into<String>,
        remedy: impl Into<NextStep>,
    ) -> Option<&'a T> {
        match fact {
            Reading::Known(value) => return Some(value),
            Reading::Absent => {}
            Reading::Unreadable(why) => {
                self.push(
                    Status::Unknown,
                    subject,
                    [what.into(), why.clone()],
                    remedy.into(),
                );
            }
            Reading::Unknown(why) => self.unknown(subject, what, why),
        }
        None
    }

    /// Adds a line of something that works with a loss.
    pub(super) fn warn(
        &mut self,
        subject: &str,
        text: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<NextStep>,
    ) {
        self.push(Status::Warn, subject, [text.into(), why.into()], remedy.into());
    }

    /// Adds a line of something that does not work.
    pub(super) fn fail(
        &mut self,
        subject: &str,
        text: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<NextStep>,
    ) {
        self.push(Status::Fail, subject, [text.into(), why.into()], remedy.into());
    }

    /// Whether the checks had nothing to say.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lines of `check`. Subjects with the same result for the same reason share one line, which has the
    /// remedy for the first of them.
    pub(super) fn into_lines(self, check: &Check) -> Vec<Line> {
        let mut groups: Vec<(UnmergedLine, Vec<String>)> = Vec::new();
        for found in self.0 {
            let same = |(first, _): &&mut (UnmergedLine, Vec<String>)| {
                first.status == found.status
                    && first.same == found.same
                    && (found.subject == first.subject
                        || !found.subject.is_empty() && !first.subject.is_empty())
            };
            match groups.iter_mut().find(same) {
                Some((first, _)) if first.subject == found.subject => {}
                Some((_, more)) => more.push(found.subject),
                None => groups.push((found, Vec::new())),
            }
        }
        let lines = groups.into_iter().map(|(first, more)| {
            let others = match more.as_slice() {
                [] => String::new(),
                [one] => format!("; the same for {one}"),
                several => format!("; the same for {} others: {}", several.len(), names(several)),
            };
            Line {
                id: check.id,
                group: check.group,
                status: first.status,
                subject: iter::once(first.subject)
                    .chain(more)
                    .collect::<Vec<_>>()
                    .join(", "),
                text: first.text + &others,
                why: first.why,
                remedy: first.remedy,
            }
        });
        lines.collect()
    }
}

/// The lines of all checks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The lines in the order of the table.
    pub lines: Vec<Line>,
    /// Checks without a subject on this machine.
    pub not_applicable: Vec<&'static str>,
}

impl Report {
    /// The number of lines that have this status.
    pub fn count(&self, status: Status) -> usize {
        self.lines.iter().filter(|line| line.status == status).count()
    }

    /// The exit code: 0, 1 with warnings, 2 with failures, 3 where neither is there and a check could not be
    /// made.
    pub fn code(&self) -> u8 {
        match self.lines.iter().map(|line| line.status).max() {
            Some(Status::Fail) => 2,
            Some(Status::Warn) => 1,
            Some(Status::Unknown) => 3,
            Some(Status::Skip | Status::Pass) | None => 0,
        }
    }

    /// The overall result in one line.
    pub fn verdict(&self) -> String {
        let count = |status, one: &str, more: &str| match self.count(status) {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {more}")),
        };
        let found: Vec<String> = [
            count(Status::Fail, "problem", "problems"),
            count(Status::Warn, "warning", "warnings"),
            count(Status::Unknown, "check not made", "checks not made"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let worst = self
            .lines
            .iter()
            .find(|line| line.status == Status::Fail)
            .or_else(|| self.lines.iter().find(|line| line.status == Status::Warn))
            .or_else(|| self.lines.iter().find(|line| line.status == Status::Unknown));
        if let Some(worst) = worst {
            return format!("doctor: {}: {}", found.join(", "), worst.text);
        }
        let skipped = match self.count(Status::Skip) {
            0 => String::new(),
            count => format!("; {count} skipped"),
        };
        let passed = super::words::count(self.count(Status::Pass), "check");
        format!("doctor: no problem found; {passed} passed{skipped}")
    }
}
