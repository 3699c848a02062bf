//! Soft iWARP: its driver has no counters.

use super::table::{Carries, Table};

pub(super) const TABLE: Table = Table {
    name: "soft iWARP (siw)",
    source: "sw/siw/siw_main.c",
    note: "The driver has no counters.",
    carries: Carries::Unknown("the driver counts no bytes"),
    pma: false,
    counters: &[],
};
