//! The result of a check.

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

/// One line. All text is safe to print.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// The check.
    pub id: &'static str,
    /// What the line is about.
    pub group: &'static str,
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

/// Lines, before it is known which say the same. Each is with what it says, without the names of its subject:
/// those that differ in them alone become one.
#[derive(Debug, Default)]
pub(super) struct Lines(Vec<(Line, String)>);

impl Lines {
    fn push(&mut self, status: Status, subject: &str, said: [String; 2], remedy: NextStep) {
        let [text, why] = said;
        let mut same = format!("{text}: {why}");
        if !subject.is_empty() {
            same = same.replace(subject, "\0");
        }
        let line = Line {
            id: "",
            group: "",
            status,
            subject: subject.to_owned(),
            text,
            why,
            remedy,
        };
        self.0.push((line, same));
    }

    /// `name`, too, is a name of the last line's subject.
    pub(super) fn alias(&mut self, name: &str) {
        if let Some((_, same)) = self.0.last_mut().filter(|_| !name.is_empty()) {
            *same = same.replace(name, "\0");
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
        let mut groups: Vec<(Line, String, Vec<String>)> = Vec::new();
        for (line, same) in self.0 {
            let is_alike = |(first, of_first, _): &&mut (Line, String, Vec<String>)| {
                first.status == line.status
                    && *of_first == same
                    && (line.subject == first.subject
                        || !line.subject.is_empty() && !first.subject.is_empty())
            };
            match groups.iter_mut().find(is_alike) {
                Some((first, ..)) if first.subject == line.subject => {}
                Some((.., more)) => more.push(line.subject),
                None => groups.push((line, same, Vec::new())),
            }
        }
        let lines = groups.into_iter().map(|(mut line, _, more)| {
            (line.id, line.group) = (check.id, check.group);
            let others = match more.as_slice() {
                [] => String::new(),
                [one] => format!("; the same for {one}"),
                several => format!("; the same for {} others: {}", several.len(), names(several)),
            };
            line.text += &others;
            for subject in more {
                line.subject += ", ";
                line.subject += &subject;
            }
            line
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

    /// The worst status of a line, of which one that was skipped is as one that passed.
    pub(super) fn status(&self) -> Status {
        let worst = self.lines.iter().map(|line| line.status).max();
        worst
            .filter(|status| *status != Status::Skip)
            .unwrap_or(Status::Pass)
    }

    /// The exit code: 0, 1 with warnings, 2 with failures, 3 where neither is there and a check could not be
    /// made.
    pub fn code(&self) -> u8 {
        match self.status() {
            Status::Fail => 2,
            Status::Warn => 1,
            Status::Unknown => 3,
            Status::Skip | Status::Pass => 0,
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
        let first = |status| self.lines.iter().find(|line| line.status == status);
        let worst = [Status::Fail, Status::Warn, Status::Unknown]
            .into_iter()
            .find_map(first);
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
