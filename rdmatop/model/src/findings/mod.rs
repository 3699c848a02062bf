//! Findings: what is wrong on this host, in words, with the process and the device that it concerns.
//!
//! Rules (`rules`) look at one snapshot and name symptoms. [`Watch`] turns symptoms into findings: a symptom
//! that lasts is raised, one that stays away is cleared. Both are pure. A rule whose inputs are unknown names
//! no symptom.

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

use crate::snapshot::PortRow;
use rdmatop_base::step::NextStep;

pub use kind::{FindingId, Kind, Severity};
pub use limits::{Limit, Limits};
pub use quiet::{Quiet, WITHOUT_EBPF};
pub use watch::{Change, Watch};

/// What a finding is about. The uids are those of the rows of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct About {
    /// Process that causes it, else the one that suffers from it.
    pub process: Option<u64>,
    /// Device.
    pub device: Option<u64>,
    /// Port of the device.
    pub port: Option<u32>,
    /// Further name, where one process or port can have several of a kind: a verb, a counter, a status.
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
    /// The numbers behind it, one a line.
    pub evidence: Vec<String>,
    /// Why it matters.
    pub why: &'static str,
    /// What to run or to change next. A command, then each reading of its result after three spaces and `# `.
    pub next: NextStep,
    /// What one sees when it is mended.
    pub fixed: &'static str,
    /// `CLOCK_MONOTONIC` since which it has been so, as far as it was seen, ns.
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
    /// What it is about.
    #[serde(skip)]
    pub about: About,
}

impl Finding {
    /// How it concerns a process, if it does.
    pub fn role(&self, uid: u64) -> Option<Role> {
        if self.victims.contains(&uid) {
            return Some(Role::Victim);
        }
        (self.about.process == Some(uid)).then_some(Role::Cause)
    }

    /// Whether it concerns a process, as the cause or as a victim.
    pub fn concerns_process(&self, uid: u64) -> bool {
        self.role(uid).is_some()
    }

    /// [`Self::next`] in its parts: the command or the sentence, then each reading of its result with its `#
    /// `.
    pub fn steps(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let mut parts = self.next.split("   # ");
        let command = parts.next().map(Cow::Borrowed);
        command
            .into_iter()
            .chain(parts.map(|reading| Cow::Owned(format!("# {reading}"))))
    }

    /// How one sees that it is over, in a sentence.
    pub fn over(&self) -> String {
        let after = self.id.kind().clear_s;
        let end = match self.end() {
            "over" => "Over",
            _ => "Fixed",
        };
        format!("{end} when {}; shown until {after}s later", self.fixed)
    }

    /// The word for its end: what may be meant is over, and not mended.
    pub fn end(&self) -> &'static str {
        if self.severity == Severity::Info {
            "over"
        } else {
            "fixed"
        }
    }

    /// Whether it concerns a port.
    pub fn concerns_port(&self, device_uid: u64, port: u32) -> bool {
        self.about.device == Some(device_uid) && self.about.port.is_none_or(|number| number == port)
    }

    /// Whole seconds since it began.
    pub fn age_s(&self, mono_ns: u64) -> u64 {
        mono_ns.saturating_sub(self.since_mono_ns) / 1_000_000_000
    }
}

/// How a finding concerns a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It is the one to look at.
    Cause,
    /// It suffers from what another process, a peer or a port does.
    Victim,
}

/// What a rule sees in one snapshot.
#[derive(Clone, Debug, PartialEq)]
struct Symptom {
    id: FindingId,
    severity: Severity,
    about: About,
    /// Since when this snapshot shows it, ns: the begin of the interval for a rate.
    since_ns: u64,
    verdict: String,
    evidence: Vec<String>,
    next: NextStep,
    short: String,
    victims: Vec<u64>,
}
