//! Logs what a snapshot says is missing, late, refused or lost, when it begins and when it is over: what any
//! source, the loader or the engine reports to the user is in the log of the maintainer too (docs/log.md).

use std::collections::{BTreeMap, BTreeSet};

use rdmatop_model::cause::Cause;
use rdmatop_model::snapshot::{Health, Snapshot};

/// What the log says already.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// The causes of the last snapshot: what they are about, without numbers, which change every second.
    causes: BTreeSet<String>,
    /// How much was lost so far, by what lost it.
    lost: BTreeMap<String, u64>,
}

/// What stays the same of a cause while it lasts.
fn key(cause: &Cause) -> String {
    let what = cause.what.chars().filter(|c| !c.is_ascii_digit());
    format!("{:?} {:?} {}", cause.id, cause.concerns, what.collect::<String>())
}

/// Everything that was lost, by what lost it.
fn losses(health: &Health) -> impl Iterator<Item = (String, u64)> {
    let losses = health.losses.iter().map(|loss| (loss.at.to_owned(), loss.count));
    let skipped = health.skipped.iter().flat_map(|skipped| skipped.iter());
    let skipped = skipped.map(|skipped| (format!("skipped {}", skipped.program), skipped.count));
    let floods = health.floods.iter();
    let floods = floods.map(|flood| (format!("flood {}", flood.who()), flood.failures + flood.records));
    losses.chain(skipped).chain(floods)
}

impl Noted {
    /// Logs what is new in a snapshot. Without a log this does nothing.
    pub(super) fn see(&mut self, snapshot: &Snapshot) {
        if !log::log_enabled!(log::Level::Info) {
            return;
        }
        let health = &snapshot.health;
        let mut causes = BTreeSet::new();
        for cause in health.notes.iter().chain(&health.errors) {
            let key = key(cause);
            if !self.causes.contains(&key) && !causes.contains(&key) {
                log::warn!(
                    id:? = cause.id, what = cause.what.as_str(), why = cause.why.as_str(), remedy:% = cause.remedy;
                    "missing"
                );
            }
            causes.insert(key);
        }
        for over in self.causes.difference(&causes) {
            log::info!(cause = over.as_str(); "over");
        }
        self.causes = causes;
        for (what, count) in losses(health) {
            let before = self.lost.get(&what).copied().unwrap_or(0);
            if count > before {
                log::warn!(what = what.as_str(), count = count - before, total = count; "lost");
                self.lost.insert(what, count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmatop_model::cause::{CauseId, Concerns};

    fn cause(what: &str, device: &str) -> Cause {
        Cause {
            id: CauseId::SlowDevice,
            concerns: Concerns::Device(device.into()),
            what: what.into(),
            why: "no answer for 2 s".into(),
            remedy: "".into(),
        }
    }

    #[test]
    fn a_cause_stays_the_same_while_only_its_numbers_change() {
        let key = |what, device| key(&cause(what, device));
        assert_eq!(
            key("3 more devices are slow", "a"),
            key("12 more devices are slow", "a")
        );
        assert_ne!(
            key("3 more devices are slow", "a"),
            key("3 more devices are slow", "b")
        );
        assert_ne!(key("is slow", "a"), key("is not read", "a"));
    }
}
