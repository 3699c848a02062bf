//! Findings: what is wrong on this host, in words, with the process and the device that it concerns.
//!
//! Rules (`rules`) look at one snapshot and name symptoms. [`FindingTracker`] turns symptoms into findings:
//! it raises a symptom that lasts, and clears one that stays away. Both are pure. A rule names no symptom
//! when an input that it needs is unknown.

mod kind;
mod limits;
mod quiet;
mod rules;
#[cfg(test)]
mod tests;
mod watch;
mod words;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;

use crate::facts::{PortRow, ProcessRow};
use rdmatop_base::{step::NextStep, text};

pub use kind::{FindingId, FindingKind, Severity};
pub use limits::{Limit, Limits};
pub use quiet::{NoFindings, WITHOUT_EBPF, shared_port};
pub use watch::{Change, FindingTracker, LeftOut};

/// What a finding is about. The uids are those of rows of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// The process that causes it; if none is known, the process that suffers from it.
    pub process: Option<u64>,
    /// The device that it is about.
    pub device: Option<u64>,
    /// Port number.
    pub port: Option<u32>,
    /// Tells several findings of one kind and one process or port apart: a verb, a counter, a status.
    pub part: Option<Arc<str>>,
}

impl About {
    fn of_process(uid: impl Into<Option<u64>>) -> Self {
        Self {
            process: uid.into(),
            ..Self::default()
        }
    }

    fn of_device(uid: u64) -> Self {
        Self {
            device: Some(uid),
            ..Self::default()
        }
    }

    fn of_port(row: &PortRow) -> Self {
        Self {
            port: Some(row.port),
            ..Self::of_device(row.device_uid)
        }
    }

    fn by(self, process_uid: u64) -> Self {
        Self {
            process: Some(process_uid),
            ..self
        }
    }

    fn part(self, part: impl Into<Arc<str>>) -> Self {
        Self {
            part: Some(part.into()),
            ..self
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Stable name.
    pub id: FindingId,
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong, in one line that names the process and the device.
    pub verdict: String,
    /// The numbers behind the verdict, one a line.
    pub evidence: Vec<String>,
    /// Why it matters.
    pub why: &'static str,
    /// What to run or change next: a command, then its possible results, each after three spaces and `# `.
    pub next: NextStep,
    /// What one sees when the trouble is over.
    pub fixed: &'static str,
    /// Time (`CLOCK_MONOTONIC`, ns) since which it has been so, as far as rdmatop saw it.
    pub since_mono_ns: u64,
    /// A few words for the row of the process or of the port.
    pub short: String,
    /// Process id.
    pub pid: Option<u32>,
    /// Name of the process.
    pub comm: Option<Arc<str>>,
    /// Device name.
    pub device: Option<Arc<str>>,
    /// Port number.
    pub port: Option<u32>,
    /// Processes that suffer from what another one does.
    pub victims: Vec<u64>,
    /// What the finding is about.
    #[serde(skip)]
    pub about: About,
    /// The process that takes what the victims lack, of a finding that is about a port.
    #[serde(skip)]
    pub taker: Option<u64>,
    /// Time of the last snapshot that showed it, ns; of a symptom 0.
    #[serde(skip)]
    pub seen_mono_ns: u64,
}

/// Nanoseconds in a second.
const S: u64 = 1_000_000_000;
/// What was not seen for this long is said to be past, s: bursts leave gaps.
const QUIET_S: u64 = 5;

impl Finding {
    /// One without words: what a rule finds in a snapshot is a symptom, until it has lasted.
    fn of(id: FindingId, about: About, since_mono_ns: u64) -> Self {
        let kind = id.kind();
        Self {
            id,
            severity: kind.severity,
            verdict: String::new(),
            evidence: Vec::new(),
            why: kind.why,
            next: NextStep::default(),
            fixed: kind.fixed,
            since_mono_ns,
            short: String::new(),
            pid: None,
            comm: None,
            device: None,
            port: about.port,
            victims: Vec::new(),
            about,
            taker: None,
            seen_mono_ns: 0,
        }
    }

    /// How the finding concerns a process; `None` if it does not.
    pub fn role(&self, uid: u64) -> Option<Role> {
        if self.victims.contains(&uid) {
            return Some(Role::Victim);
        }
        [self.about.process, self.taker]
            .contains(&Some(uid))
            .then_some(Role::Cause)
    }

    /// How it concerns the process of a row. Where only a port is known, it may concern any process with QPs
    /// there.
    pub fn role_of(&self, row: &ProcessRow) -> Option<Role> {
        let nobody = self.about.process.is_none() && self.victims.is_empty();
        let uses = |device: &Arc<str>| !row.exited && row.devices.contains(device);
        let possible = nobody && self.device.as_ref().is_some_and(uses);
        self.role(row.uid).or(possible.then_some(Role::Possible))
    }

    /// Whether the finding concerns a process, as the cause or as a victim.
    pub fn concerns_process(&self, uid: u64) -> bool {
        self.role(uid).is_some()
    }

    /// The parts of [`Self::next`]: the command or the sentence, then each possible result with its `# `.
    pub fn steps(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let mut parts = self.next.split("   # ");
        let command = parts.next().map(Cow::Borrowed);
        command
            .into_iter()
            .chain(parts.map(|reading| Cow::Owned(format!("# {reading}"))))
    }

    /// A sentence that says how one sees that it is over.
    pub fn over(&self, mono_ns: u64) -> String {
        let after = self.id.kind().clear_s;
        let end = match (self.quiet_s(mono_ns), self.end()) {
            (Some(quiet), _) => {
                let more = after.saturating_sub(quiet);
                return format!("It is over: shown {more}s more, unless it comes again");
            }
            (None, "over") => "Over",
            _ => "Fixed",
        };
        format!("{end} when {}; shown until {after}s later", self.fixed)
    }

    /// The word for its end: information may be meant to be so, and is then over rather than fixed.
    pub fn end(&self) -> &'static str {
        if self.severity == Severity::Info {
            "over"
        } else {
            "fixed"
        }
    }

    /// Whether the finding concerns a port.
    pub fn concerns_port(&self, device_uid: u64, port: u32) -> bool {
        self.about.device == Some(device_uid) && self.about.port.is_none_or(|number| number == port)
    }

    /// When it was so: `for 21s`, `over: ended 21s ago`, `over: lasted 40s, ended 12s ago`.
    pub fn when(&self, mono_ns: u64) -> String {
        let lasted = self.lasted_s(mono_ns);
        match self.quiet_s(mono_ns).map(text::age) {
            None => format!("for {}", text::age(self.age_s(mono_ns))),
            Some(quiet) if lasted < QUIET_S => format!("over: ended {quiet} ago"),
            Some(quiet) => format!("over: lasted {}, ended {quiet} ago", text::age(lasted)),
        }
    }

    /// The same for a narrow column: `21s` if it is so, `over` if it was.
    pub fn when_short(&self, mono_ns: u64) -> String {
        match self.quiet_s(mono_ns) {
            None => text::age(self.age_s(mono_ns)),
            Some(_) => "over".to_owned(),
        }
    }

    /// Whether it was so and is not any more, as far as is seen.
    pub fn is_past(&self, mono_ns: u64) -> bool {
        self.quiet_s(mono_ns).is_some()
    }

    /// Whole seconds for which it has been past.
    fn quiet_s(&self, mono_ns: u64) -> Option<u64> {
        let quiet = mono_ns.saturating_sub(self.seen_mono_ns) / S;
        (quiet >= QUIET_S).then_some(quiet)
    }

    /// Whole seconds from its begin until it was last seen.
    pub fn lasted_s(&self, mono_ns: u64) -> u64 {
        self.age_s(self.seen_mono_ns.min(mono_ns))
    }

    /// Whole seconds since it began.
    pub fn age_s(&self, mono_ns: u64) -> u64 {
        mono_ns.saturating_sub(self.since_mono_ns) / S
    }
}

/// How a finding concerns a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The process that one should look at.
    Cause,
    /// The process suffers from what another process, a peer or a port does.
    Victim,
    /// The process uses the port that has the trouble, and it is not known whose trouble it is.
    Possible,
}
