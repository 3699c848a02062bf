//! Warnings of a log; those with one meaning are counted together.

use std::collections::BTreeSet;

use super::{
    dictionary::{self, Entry, Kind},
    line::Clock,
    process::MAX_NAMES,
};

/// Largest number of kinds of unknown warnings that are kept. The dictionary bounds those that it explains.
const MAX_UNKNOWN_KINDS: usize = 64;

/// A warning, and how often it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its entry in the dictionary, if there is one.
    pub entry: Option<&'static Entry>,
    /// The words of its first line.
    pub text: String,
    /// How often it was printed.
    pub count: u64,
    /// The hosts that wrote it.
    pub hosts: BTreeSet<String>,
    /// RDMA devices that it names, with their host.
    pub devices: BTreeSet<(String, String)>,
    /// When its first line was written, if a clock says so.
    since: Option<Clock>,
    /// The words of its first line with a sign in place of each number.
    shape: String,
}

impl Warning {
    /// What it is about, where an echo is a fault; `None` for an unknown warning, which may be about
    /// anything.
    pub fn kind(&self) -> Option<Kind> {
        self.entry.map(|entry| {
            if entry.kind == Kind::Echo {
                Kind::Fault
            } else {
                entry.kind
            }
        })
    }

    /// Whether it only says that a call failed, and not why.
    pub fn is_only_a_result(&self) -> bool {
        self.entry.is_some_and(Entry::is_only_a_result)
    }
}

/// The warnings of a log, in the order of their first line.
#[derive(Clone, Debug, Default)]
pub struct Warnings {
    /// The warnings that were kept.
    pub list: Vec<Warning>,
    /// Warnings of unknown kinds beyond the limit.
    pub left_out: u64,
}

impl Warnings {
    /// Where the warnings of this meaning, or of this shape without one, are counted.
    fn position(&self, shape: &str, entry: Option<&Entry>) -> Option<usize> {
        self.list.iter().position(|known| match (known.entry, entry) {
            (Some(a), Some(b)) => (a.id, a.means) == (b.id, b.means),
            (None, None) => known.shape == shape,
            _ => false,
        })
    }

    /// Takes a warning of a kind that it does not have; `false` if there is no room.
    fn push(&mut self, warning: Warning) -> bool {
        let has_room = warning.entry.is_some() || self.unknown().count() < MAX_UNKNOWN_KINDS;
        if has_room {
            self.list.push(warning);
        }
        has_room
    }

    /// Takes those of the others that it does not have.
    pub(super) fn extend(&mut self, others: Self) {
        self.left_out += others.left_out;
        for one in others.list {
            let count = one.count;
            if self.position(&one.shape, one.entry).is_none() && !self.push(one) {
                self.left_out += count;
            }
        }
    }

    /// Takes a warning; the host is empty if it is not known.
    pub(super) fn add(
        &mut self,
        host: &str,
        text: &str,
        entry: Option<&'static Entry>,
        clock: Option<Clock>,
    ) {
        let shape = if entry.is_some() {
            String::new()
        } else {
            shape(text)
        };
        let known = self.position(&shape, entry);
        let at = known.unwrap_or(self.list.len());
        if known.is_none() {
            let new = Warning {
                entry,
                text: text.to_owned(),
                count: 0,
                hosts: BTreeSet::new(),
                devices: BTreeSet::new(),
                since: clock.clone(),
                shape,
            };
            if !self.push(new) {
                self.left_out += 1;
                return;
            }
        }
        let warning = &mut self.list[at];
        warning.count += 1;
        // Logs are read one after the other, so a later line may be older.
        if let (Some(since), Some(clock)) = (&mut warning.since, clock)
            && since.is_like(&clock)
            && clock.is_before(since)
        {
            *since = clock;
        }
        if !host.is_empty() && warning.hosts.len() < MAX_NAMES {
            warning.hosts.insert(host.to_owned());
        }
        if let Some(device) = dictionary::device(text)
            && warning.devices.len() < MAX_NAMES
        {
            warning.devices.insert((host.to_owned(), device.to_owned()));
        }
    }

    /// Warnings that the dictionary does not explain.
    pub(super) fn unknown(&self) -> impl Iterator<Item = &Warning> {
        self.list.iter().filter(|one| one.entry.is_none())
    }

    /// Forgets the hosts that turned out to be none.
    pub(super) fn retain_hosts(&mut self, is_host: impl Fn(&String) -> bool) {
        for warning in &mut self.list {
            warning.hosts.retain(|host| is_host(host));
            warning.devices.retain(|(host, _)| is_host(host));
        }
    }

    /// Whether one of them is a fault.
    pub fn has_fault(&self) -> bool {
        self.list
            .iter()
            .any(|warning| warning.kind() == Some(Kind::Fault))
    }

    /// The warning for the first line of the page: the first fault, or the first that follows from one. A
    /// fault that is mostly the echo of another comes after those that are none, in whatever order the logs
    /// were given. That a call failed says less than these, but more where the warning before it is not
    /// known.
    pub fn worst(&self) -> Option<&Warning> {
        let of_kind = |kind: Kind, is: fn(&Entry) -> bool| {
            self.first(|one| one.entry.is_some_and(|entry| entry.kind == kind && is(entry)))
        };
        let failed = || of_kind(Kind::Follows, Entry::is_only_a_result);
        of_kind(Kind::Fault, |_| true)
            .or_else(|| of_kind(Kind::Echo, |_| true))
            .or_else(|| failed().filter(|failed| self.unknown_before(failed).is_some()))
            .or_else(|| {
                of_kind(Kind::Follows, |entry| {
                    !entry.is_only_a_result() && entry.id != "proxy"
                })
            })
            .or_else(|| of_kind(Kind::Follows, |entry| !entry.is_only_a_result()))
            .or_else(failed)
    }

    /// The first of some warnings: by their clocks if all have one that can be compared, otherwise in the
    /// order in which they were read.
    fn first<'a>(&'a self, is: impl Fn(&Warning) -> bool) -> Option<&'a Warning> {
        let all: Vec<&Warning> = self.list.iter().filter(|one| is(one)).collect();
        let first = *all.first()?;
        let both = |one: &'a Warning, two: &'a Warning| one.since.as_ref().zip(two.since.as_ref());
        if !all
            .iter()
            .all(|one| both(one, first).is_some_and(|(a, b)| a.is_like(b)))
        {
            return Some(first);
        }
        let is_before = |one, two| both(one, two).is_some_and(|(a, b)| a.is_before(b));
        let earlier = |first, one| if is_before(one, first) { one } else { first };
        all.into_iter().reduce(earlier)
    }

    /// The last warning before this one that is not known and may be its cause: of the same host.
    pub fn unknown_before(&self, warning: &Warning) -> Option<&Warning> {
        let before = self.list.iter().take_while(|other| *other != warning);
        let is_near = |other: &&Warning| {
            other.hosts.is_empty() || warning.hosts.is_empty() || !other.hosts.is_disjoint(&warning.hosts)
        };
        before
            .filter(|other| other.entry.is_none())
            .filter(is_near)
            .last()
    }
}

/// Two lines from one place in the source differ in addresses and numbers, so words with digits are masked.
fn shape(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let is_number = word.bytes().any(|b| b.is_ascii_digit());
        if is_number { "#" } else { word }
    });
    words.collect::<Vec<_>>().join(" ")
}
