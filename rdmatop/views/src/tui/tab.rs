//! The tabs.

/// A tab of the live view.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Tab {
    /// Processes and kernel consumers that use RDMA.
    #[default]
    Processes,
    /// Queue pairs.
    Qps,
    /// Ports, side by side.
    Devices,
    /// Verb calls by process.
    Verbs,
    /// Events as they happen.
    Trace,
    /// Attached programs, and what is missing.
    Probes,
    /// What is wrong.
    Findings,
}

impl Tab {
    /// All tabs in the order of the screen.
    pub const ALL: [Self; 7] = [
        Self::Processes,
        Self::Qps,
        Self::Devices,
        Self::Verbs,
        Self::Trace,
        Self::Probes,
        Self::Findings,
    ];

    /// Place in [`Self::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name, and a short one.
    pub const fn names(self) -> [&'static str; 2] {
        match self {
            Self::Processes => ["Processes", "Proc"],
            Self::Qps => ["QPs", "QPs"],
            Self::Devices => ["Devices", "Dev"],
            Self::Verbs => ["Verbs", "Verb"],
            Self::Trace => ["Trace", "Trc"],
            Self::Probes => ["Probes", "Prb"],
            Self::Findings => ["Findings", "Fnd"],
        }
    }

    /// The tab `step` places further, going around at the ends.
    #[must_use]
    pub fn step(self, step: isize) -> Self {
        let count = Self::ALL.len().cast_signed();
        let at = (self.index().cast_signed() + step).rem_euclid(count);
        Self::ALL[at.unsigned_abs()]
    }
}
