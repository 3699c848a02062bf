//! Notes about processes whose details are unknown.

use super::detail::Part;
use super::detail_reader::{Miss, Why};
use crate::limits;
use rdmatop_base::order::Ordered as _;
use rdmatop_base::{step::step, turns::in_turn};
use rdmatop_model::cause::{Cause, CauseId, Concerns};

/// A process that takes longer to answer is named, ns.
pub(super) const SLOW: u64 = 1_000_000_000;
/// How many processes get a line of their own.
const LINES: usize = 3;
/// The number of names in one line.
const NAMES: usize = 8;

/// Why a process is not read now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The process's turn has not come.
    Turn,
    /// No thread could be started.
    Thread,
    /// The process was read often enough.
    Repeats,
    /// Readers of its user's processes hang.
    Hung,
    /// The process is in execve(2).
    Exec,
}

impl Waits {
    fn reason(self) -> (&'static str, &'static str) {
        match self {
            Self::Turn => (
                "it has not been read yet: others that are read at the same time do not answer",
                "It is read when its turn comes",
            ),
            Self::Thread => ("no thread to read it could be started", limits::threads()),
            Self::Repeats => (
                "its name changes again and again, and reading it takes long",
                "It is read again when that has taken less of the time",
            ),
            Self::Hung => (
                "readers of its user's processes wait in the kernel and cannot be ended",
                "It is read when one of them ends",
            ),
            Self::Exec => (
                "reading of it does not end: it is probably in execve(2), and what that call waits for does not answer",
                "It is read when that call ends: it may wait for a file system of its user's",
            ),
        }
    }
}

/// A process of which something is unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Late<'a> {
    pub(super) pid: u32,
    pub(super) user: Option<u32>,
    /// Safe to print.
    pub(super) name: &'a str,
    /// What was asked for.
    pub(super) parts: &'a [Part],
    /// What its last reading lacks; `None`: it waits for its turn, or is being read.
    pub(super) miss: Option<&'a Miss>,
    pub(super) waits: Waits,
}

/// A line for each of the first few, and one for all others. The users take turns.
pub(super) fn notes(mut late: Vec<Late<'_>>) -> Vec<Cause> {
    // A process whose reading failed comes before one that only waits.
    late.order_by_key(|one| (one.miss.is_none() && one.waits != Waits::Exec, one.pid));
    let lines = if late.len() > LINES { LINES - 1 } else { LINES };
    let first = in_turn(0..late.len(), lines, |at| late[*at].user);
    let mut notes: Vec<Cause> = first.iter().map(|at| late[*at].note()).collect();
    let more = late.iter().enumerate().filter(|(at, _)| !first.contains(at));
    let more: Vec<&Late<'_>> = more.map(|(_, one)| one).collect();
    if !more.is_empty() {
        let named = in_turn(&more, NAMES, |one| one.user);
        let named: Vec<String> = named.into_iter().map(|one| one.who()).collect();
        let dots = if more.len() > NAMES { ", ..." } else { "" };
        notes.push(Cause {
            id: CauseId::SlowProcess,
            concerns: Concerns::Host,
            what: format!("{} more processes are not read to their end", more.len()),
            why: format!("{}{dots}", named.join(", ")),
            remedy: "What is unknown of them is shown as unknown; their counts do not depend on it".into(),
        });
    }
    notes
}

impl Late<'_> {
    fn who(&self) -> String {
        format!("{} ({})", self.name, self.pid)
    }

    fn note(&self) -> Cause {
        let miss = self.miss.map(|miss| (miss.part, &miss.why));
        let lacks = |part: &&Part| match miss {
            Some((long, Why::TooLong)) => **part == long,
            // The parts after it were not read.
            Some((first, _)) => {
                let mut unread = self.parts.iter().skip_while(|one| **one != first);
                unread.any(|one| one == *part)
            }
            None => true,
        };
        let mut unknown: Vec<&str> = self.parts.iter().filter(lacks).map(|part| part.words()).collect();
        if self.waits == Waits::Exec {
            unknown.extend(["its state", "its open files and connections", "its namespaces"]);
        }
        let place = |part: Part| part.place(self.pid);
        let (why, remedy) = match miss {
            Some((part, Why::Late)) => (
                format!("{} did not answer for 2 s: {}", place(part), part.holder()),
                step!(
                    "sudo cat /proc/{}/task/*/stack   # shows what it waits for; it is read again later",
                    self.pid
                ),
            ),
            Some((part, Why::TooLong)) => {
                let why = format!("{} is longer than what rdmatop reads", place(part));
                (why, "".into())
            }
            Some((part, Why::NoReader(error))) => {
                let why = format!("{} cannot be read: {error}", place(part));
                (why, limits::threads().into())
            }
            None => {
                let (why, remedy) = self.waits.reason();
                (why.to_owned(), remedy.into())
            }
        };
        Cause {
            id: CauseId::SlowProcess,
            concerns: Concerns::Host,
            what: format!("Unknown of {}: {}", self.who(), unknown.join(", ")),
            why,
            remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_process_is_named_with_its_file_and_what_is_unknown() {
        let miss = |part, why| Miss { part, why };
        let line = |miss: Option<&Miss>| {
            let parts = Part::SHOWN;
            let [note] = &notes(vec![Late {
                pid: 7,
                user: None,
                name: "python3",
                parts,
                miss,
                waits: Waits::Turn,
            }])[..] else {
                panic!("one line");
            };
            note.to_string()
        };
        let late = line(Some(&miss(Part::Environment, Why::Late)));
        assert!(
            late.starts_with(
                "Unknown of python3 (7): environment, libraries: /proc/7/environ did not answer for 2 s"
            ),
            "{late}"
        );
        assert!(late.contains("sudo cat /proc/7/task/*/stack"), "{late}");
        let long = line(Some(&miss(Part::Libraries, Why::TooLong)));
        assert!(
            long.starts_with("Unknown of python3 (7): libraries: /proc/7/maps is longer"),
            "{long}"
        );
        let none = line(Some(&miss(Part::CommandLine, Why::NoReader("no memory".into()))));
        assert!(
            none.contains("/proc/7/cmdline cannot be read: no memory; raise the limit"),
            "{none}"
        );
        assert!(line(None).contains("command line, environment, libraries: it has not been read yet"));
    }

    #[test]
    fn many_late_processes_share_a_line() {
        let miss = Miss {
            part: Part::Libraries,
            why: Why::Late,
        };
        let late = |pid| Late {
            pid,
            user: Some(if pid == 19 { 2000 } else { 1000 }),
            name: "x",
            parts: Part::SHOWN,
            miss: Some(&miss).filter(|_| pid != 3),
            waits: Waits::Turn,
        };
        let notes = notes((1..20).map(late).collect());
        assert_eq!(notes.len(), LINES);
        assert!(
            notes[2].what.starts_with("17 more") && notes[2].why.ends_with(", ..."),
            "{notes:?}"
        );
        assert!(
            notes.iter().all(|note| !note.why.contains("(3)")),
            "it only waits"
        );
        let alone = notes[1].to_string();
        assert!(alone.contains("/proc/19/"), "its user has no other: {alone}");
    }
}
